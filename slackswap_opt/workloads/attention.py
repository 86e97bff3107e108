"""The attention part of a layer: projections, positions, scores, context."""

from __future__ import annotations

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.workloads.context import Context, dropout, linear
from slackswap_opt.workloads.kernels import STATISTIC_BYTES, matmul, pointwise
from slackswap_opt.workloads.tape import Backward

BACKWARD_FLOPS = 2.5
"""A fused backward runs five products where the forward runs two: it rebuilds the scores."""


def attention(ctx: Context, layer: str, source: str, out: str) -> None:
    """From the normalized stream to this device's output of the attention part."""
    sizes, network = ctx.sizes, ctx.workload.architecture
    context = f"{layer}.context"
    operands = _operands(ctx, layer, source)
    if ctx.workload.training.attention == "fused":
        _fused(ctx, layer, operands, context)
    else:
        _stored(ctx, layer, operands, context)
    linear(ctx, layer, "proj", context, out, sizes.query_width, sizes.width, bias=network.bias)


def _operands(ctx: Context, layer: str, source: str) -> dict[str, int]:
    """Project to queries, keys and values; returns the storages that hold them, with bytes.

    A joint projection is one storage, of which the three are views.
    """
    sizes, network = ctx.sizes, ctx.workload.architecture
    if network.projections == "joint":
        joint = f"{layer}.qkv"
        columns = sizes.query_width + 2 * sizes.kv_width
        linear(ctx, layer, "qkv", source, joint, sizes.width, columns, bias=network.bias)
        return {joint: sizes.stream_bytes(columns)}
    widths = {"q": sizes.query_width, "k": sizes.kv_width, "v": sizes.kv_width}
    for name, columns in widths.items():
        linear(ctx, layer, name, source, f"{layer}.{name}", sizes.width, columns, bias=network.bias)
    operands = {f"{layer}.{name}": sizes.stream_bytes(n) for name, n in widths.items()}
    if network.positions != "rotary":
        return operands
    return {
        (_rotary(ctx, layer, name) if name != "v" else f"{layer}.v"): sizes.stream_bytes(columns)
        for name, columns in widths.items()
    }


def _rotary(ctx: Context, layer: str, name: str) -> str:
    """Turn queries or keys by their position; only the (static) angles are saved.

    Eager: product with the cosine, negated half, concatenation, product with the sine, sum.
    """
    source, out = f"{layer}.{name}", f"{layer}.{name}.rotated"
    size = ctx.tape.tensors[source].size_bytes
    elements = size // ctx.sizes.element
    moves = (2,) if ctx.fused else (2, 1, 2, 2, 3)
    kernels = tuple(pointwise(elements, units * size) for units in moves)
    workspace = 0 if ctx.fused else 2 * size
    ctx.tape.forward(
        f"{layer}.{name}.rotary",
        layer,
        kernels,
        [source],
        {out: size},
        Backward(of=out, kernels=kernels, grads={source: size}, workspace_bytes=workspace),
        workspace_bytes=workspace,
    )
    return out


def _fused(ctx: Context, layer: str, operands: dict[str, int], context: str) -> None:
    """Attention in one kernel: saves its operands, its output and one statistic per row.

    Dropout inside of the kernel saves the generator's state instead of a mask. A causal kernel
    skips the half of the scores that is masked.
    """
    sizes, training = ctx.sizes, ctx.workload.training
    network = ctx.workload.architecture
    statistic = f"{layer}.attn.logsumexp"
    size = sizes.stream_bytes(sizes.query_width)
    rows = sizes.tokens * sizes.heads
    flops = 4.0 * rows * training.sequence * sizes.head_dim * (0.5 if network.causal else 1.0)
    moved = sum(operands.values()) + size + rows * STATISTIC_BYTES
    # The gradients of queries, keys and values are copied together where their storage is joint,
    # unless the kernel is written for that storage.
    copied = sum(operands.values()) if len(operands) == 1 and not ctx.fused else 0
    concatenate = (pointwise(1, 2 * copied),) if copied else ()
    ctx.tape.forward(
        f"{layer}.attn",
        layer,
        [Kernel(flops, moved, training.dtype)],
        list(operands),
        {context: size, statistic: rows * STATISTIC_BYTES},
        Backward(
            of=context,
            kernels=(
                # Row sums of output x gradient first, then the products.
                pointwise(rows * sizes.head_dim, 2 * size + rows * STATISTIC_BYTES, 2),
                Kernel(BACKWARD_FLOPS * flops, 2 * moved, training.dtype),
                *concatenate,
            ),
            saved=(*operands, context, statistic),
            grads=operands,
            # Gradients of queries are summed in fp32.
            workspace_bytes=rows * (sizes.head_dim * 4 + STATISTIC_BYTES) + copied,
        ),
        random=ctx.dropout > 0,
    )


def _stored(ctx: Context, layer: str, operands: dict[str, int], context: str) -> None:
    """Attention with its scores in memory: two batched products, softmax and dropout between.

    Softmax saves its output, dropout its mask, each product its two operands. Scale and mask are
    kernels of their own where nothing is fused.
    """
    sizes, training, tape = ctx.sizes, ctx.workload.training, ctx.tape
    rows = sizes.tokens * sizes.heads
    elements = rows * training.sequence
    size = elements * sizes.element
    names = tuple(operands)
    # Of three storages the scores read two and the context one; of a joint one, both read all.
    for_scores = names[:2] if len(names) == 3 else names
    for_context = names[2:] if len(names) == 3 else names
    scores, probabilities = f"{layer}.attn.scores", f"{layer}.attn.probabilities"
    context_bytes = sizes.stream_bytes(sizes.query_width)
    per_row = (training.sequence, sizes.head_dim, training.sequence)

    def products(count: int) -> tuple[Kernel, ...]:
        one = matmul(*per_row, sizes.element, training.dtype)
        batch = rows // training.sequence
        kernel = Kernel(one.flops * batch, one.moved_bytes * batch, one.dtype)
        return (kernel,) * count

    # Of a joint storage, the second product makes the gradient of the value's third; the first
    # one completes it, in a gradient of the whole storage.
    joint_gradient = for_scores == for_context
    value_gradient = f"{layer}.qkv.value"
    concatenate = pointwise(1, 2 * sum(operands.values()))
    tape.forward(
        f"{layer}.attn.scores",
        layer,
        products(1),
        for_scores,
        {scores: size},
        Backward(
            of=scores,
            kernels=products(2) + ((concatenate,) if joint_gradient else ()),
            saved=for_scores,
            grads={name: operands[name] for name in for_scores},
            gathers=(value_gradient,) if joint_gradient else (),
            workspace_bytes=2 * context_bytes if joint_gradient else 0,
        ),
    )
    scale_and_mask = () if ctx.fused else (pointwise(elements, 2 * size),) * 2
    scale = () if ctx.fused else (pointwise(elements, 2 * size),)
    tape.forward(
        f"{layer}.attn.softmax",
        layer,
        [*scale_and_mask, pointwise(elements, 2 * size, 5)],
        [scores],
        {probabilities: size},
        Backward(
            of=probabilities,
            kernels=(pointwise(elements, 3 * size, 5), *scale),
            saved=(probabilities,),
            grads={scores: size},
            workspace_bytes=0 if ctx.fused else size,
        ),
        workspace_bytes=0 if ctx.fused else size,
    )
    weights = probabilities
    if ctx.dropout > 0:
        weights = f"{layer}.attn.dropped"
        dropout(ctx, layer, "attn.dropout", probabilities, weights, elements)
    value_grads = (
        {value_gradient: context_bytes}
        if joint_gradient
        else {name: operands[name] for name in for_context}
    )
    tape.forward(
        f"{layer}.attn.context",
        layer,
        products(1),
        (weights, *for_context),
        {context: context_bytes},
        Backward(
            of=context,
            kernels=products(2),
            saved=(weights, *for_context),
            grads={weights: size, **value_grads},
        ),
    )

"""Both ends of the network: embedding, output map and loss."""

from __future__ import annotations

from slackswap_opt.workloads.context import (
    Context,
    dropout,
    enter_group,
    linear,
    sum_over_group,
)
from slackswap_opt.workloads.feed_forward import gelu
from slackswap_opt.workloads.kernels import INDEX_BYTES, STATISTIC_BYTES, pointwise
from slackswap_opt.workloads.norms import FLOAT_BYTES, norm
from slackswap_opt.workloads.tape import Backward

LOSS = "head.loss"


def embedding(ctx: Context) -> str:
    """Look tokens up, add learned positions, normalize and drop out; returns the stream."""
    layer, sizes, network = "embed", ctx.sizes, ctx.workload.architecture
    elements, size = sizes.tokens * sizes.width, sizes.stream_bytes(sizes.width)
    table_bytes = sizes.vocabulary * sizes.width * sizes.element
    tokens = ctx.tape.static("batch.tokens", sizes.tokens * INDEX_BYTES)
    learned = network.positions == "learned"
    kernels = [pointwise(elements, 2 * size)]
    if learned:
        kernels += [pointwise(elements, 2 * size), pointwise(elements, 3 * size)]
    looked_up = "embed.sum"
    ctx.tape.forward(
        "embed.lookup",
        layer,
        kernels,
        [tokens],
        {looked_up: size},
        Backward(
            of=looked_up,
            # The table's gradient is cleared, then rows are added to it.
            kernels=(
                pointwise(0, table_bytes),
                pointwise(elements, 3 * size),
                ctx.accumulated(sizes.vocabulary * sizes.width),
            ),
            saved=(tokens,),
            whole=True,
        ),
        workspace_bytes=2 * size if learned else 0,
    )
    stream = sum_over_group(ctx, layer, looked_up, "embed.reduced")
    if network.embedding_norm:
        norm(ctx, layer, "norm", stream, "embed.normalized")
        stream = "embed.normalized"
    if network.dropout > 0:
        dropout(ctx, layer, "dropout", stream, "embed.out", elements)
        stream = "embed.out"
    return stream


def head(ctx: Context, stream: str) -> str:
    """From the residual stream to the loss; returns the loss.

    With `loss_positions`, the positions that enter the loss are gathered first, as masked
    language models do.
    """
    layer, sizes, network = "head", ctx.sizes, ctx.workload.architecture
    tokens, width = sizes.loss_tokens, sizes.width
    size = sizes.stream_bytes(width, tokens)
    ctx.tape.static("batch.targets", tokens * INDEX_BYTES)
    if network.norm_position == "pre":
        norm(ctx, layer, "norm", stream, "head.hidden")
        stream = "head.hidden"
    if tokens < sizes.tokens:
        whole = sizes.stream_bytes(width)
        ctx.tape.forward(
            "head.gather", layer, [pointwise(tokens * width, 2 * size)], [stream],
            {"head.gathered": size},
            Backward(
                of="head.gathered",
                kernels=(pointwise(0, whole), pointwise(tokens * width, 3 * size)),
                grads={stream: whole},
            ),
        )  # fmt: skip
        stream = "head.gathered"
    if network.head_transform:
        linear(
            ctx, layer, "transform", stream, "head.transformed", width, width, bias=True,
            tokens=tokens,
        )  # fmt: skip
        gelu(ctx, layer, "gelu", "head.transformed", "head.activated", tokens * width)
        norm(ctx, layer, "transform_norm", "head.activated", "head.normalized", tokens=tokens)
        stream = "head.normalized"
    enter_group(ctx, layer, stream)
    linear(
        ctx, layer, "logits", stream, "head.logits.out", width, sizes.vocabulary, bias=False,
        tokens=tokens,
    )  # fmt: skip
    _loss(ctx, layer, "head.logits.out")
    return LOSS


def _loss(ctx: Context, layer: str, logits: str) -> None:
    """Cross-entropy in fp32.

    Eager: a cast, log-softmax (which saves its output), and the negative log-likelihood. Fused:
    one kernel that saves the logits and one statistic per row. A vocabulary split over a group
    exchanges three numbers per row, and is always fused.
    """
    tape, sizes = ctx.tape, ctx.sizes
    rows = sizes.loss_tokens
    elements = rows * sizes.vocabulary
    size, wide = elements * sizes.element, elements * FLOAT_BYTES
    targets = "batch.targets"
    if ctx.fused or ctx.parallel:
        statistic, statistic_bytes = "head.loss.logsumexp", rows * STATISTIC_BYTES
        exchange = (ctx.collective(statistic_bytes),) * 3 if ctx.parallel else ()
        tape.forward(
            "head.loss.cross_entropy",
            layer,
            [pointwise(elements, size, 5), *exchange],
            [logits, targets],
            {LOSS: STATISTIC_BYTES, statistic: statistic_bytes},
            Backward(
                of=LOSS,
                kernels=(pointwise(elements, 2 * size, 5),),
                saved=(logits, statistic, targets),
                grads={logits: size},
            ),
            recomputable=not ctx.parallel,
            sums=(LOSS,),
        )
        return
    source = logits
    if size != wide:
        source = "head.logits.float"
        cast = pointwise(elements, size + wide)
        tape.forward(
            "head.cast", layer, [cast], [logits], {source: wide},
            Backward(of=source, kernels=(cast,), grads={logits: size}),
        )  # fmt: skip
    logarithms = "head.log_probabilities"
    tape.forward(
        "head.log_softmax", layer, [pointwise(elements, 2 * wide, 5)], [source],
        {logarithms: wide},
        Backward(
            of=logarithms, kernels=(pointwise(elements, 3 * wide, 5),), saved=(logarithms,),
            grads={source: wide},
        ),
    )  # fmt: skip
    count = "head.loss.weight"
    tape.forward(
        "head.loss.nll",
        layer,
        [pointwise(rows, rows * (FLOAT_BYTES + INDEX_BYTES))],
        [logarithms, targets],
        {LOSS: FLOAT_BYTES, count: FLOAT_BYTES},
        Backward(
            of=LOSS,
            kernels=(pointwise(0, wide), pointwise(rows, rows * (FLOAT_BYTES + INDEX_BYTES))),
            saved=(count, targets),
            grads={logarithms: wide},
        ),
        sums=(LOSS, count),
    )

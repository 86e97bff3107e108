"""What every part of the builder shares: the tape, the sizes and the options."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.workloads.describe import Workload
from slackswap_opt.workloads.kernels import MASK_BYTES, Sizes, matmul, pointwise
from slackswap_opt.workloads.tape import Backward, Tape


@dataclass(frozen=True)
class Context:
    """The workload under construction.

    Attributes:
        tape: where operations are recorded.
        workload: what is built.
        sizes: of one device's shard.
    """

    tape: Tape
    workload: Workload
    sizes: Sizes

    @property
    def fused(self) -> bool:
        """Whether norms, dropout and gates run as one kernel each."""
        return self.workload.training.kernels == "fused"

    @property
    def dropout(self) -> float:
        """Dropout probability."""
        return self.workload.architecture.dropout

    @property
    def parallel(self) -> bool:
        """Whether the layer is split over a tensor-parallel group."""
        return self.workload.tensor_parallel.degree > 1

    def product(self, rows: int, inner: int, columns: int) -> Kernel:
        """A matrix product in the workload's data type."""
        return matmul(rows, inner, columns, self.sizes.element, self.workload.training.dtype)

    def accumulated(self, parameters: int) -> Kernel:
        """The sum of a gradient of parameters with that of earlier micro-batches.

        The first micro-batch has nothing to add to; the average one is charged its share.
        """
        count = self.workload.training.accumulation
        share = (count - 1) / count
        return Kernel(share * parameters, share * 3 * parameters * self.sizes.element)

    def collective(self, size_bytes: int) -> Kernel:
        """An all-reduce over the tensor-parallel group."""
        group = self.workload.tensor_parallel
        moved = 2 * (group.degree - 1) / group.degree * size_bytes
        seconds = moved / group.all_reduce_bytes_per_s
        return Kernel(fixed_ns=seconds * 1e9 + group.all_reduce_latency_ns)


def linear(
    ctx: Context,
    layer: str,
    name: str,
    source: str,
    out: str,
    inner: int,
    columns: int,
    *,
    bias: bool,
    tokens: int | None = None,
) -> None:
    """A linear map; its backward makes the input's gradient and the weight's (static).

    The weight's gradient needs the input: that is what is saved. The bias's is a kernel of its own
    unless kernels are fused, when the product's epilogue makes it.
    """
    sizes = ctx.sizes
    rows = sizes.tokens if tokens is None else tokens
    backward = [
        ctx.product(rows, columns, inner),
        ctx.product(inner, rows, columns),
        ctx.accumulated(inner * columns),
    ]
    if bias and not ctx.fused:
        backward.append(pointwise(rows * columns, sizes.stream_bytes(columns, rows)))
    ctx.tape.forward(
        f"{layer}.{name}",
        layer,
        [ctx.product(rows, inner, columns)],
        [source],
        {out: sizes.stream_bytes(columns, rows)},
        Backward(
            of=out,
            kernels=tuple(backward),
            saved=(source,),
            grads={source: sizes.stream_bytes(inner, rows)},
            whole=True,
        ),
    )


def dropout(ctx: Context, layer: str, name: str, source: str, out: str, elements: int) -> None:
    """Dropout as a kernel of its own, which saves its mask."""
    size, mask = elements * ctx.sizes.element, f"{layer}.{name}.mask"
    moved = 2 * size + elements * MASK_BYTES
    ctx.tape.forward(
        f"{layer}.{name}",
        layer,
        [pointwise(elements, moved, 2)],
        [source],
        {out: size, mask: elements * MASK_BYTES},
        Backward(
            of=out, kernels=(pointwise(elements, moved, 2),), saved=(mask,), grads={source: size}
        ),
        random=True,
    )


def add(ctx: Context, layer: str, name: str, residual: str, branch: str, out: str) -> None:
    """A residual sum; both terms receive the same gradient, which costs nothing."""
    size = ctx.sizes.stream_bytes(ctx.sizes.width)
    ctx.tape.forward(
        f"{layer}.{name}",
        layer,
        [pointwise(ctx.sizes.tokens * ctx.sizes.width, 3 * size)],
        [residual, branch],
        {out: size},
        Backward(of=out, passes=(residual, branch)),
    )


def dropout_add(
    ctx: Context, layer: str, number: int, residual: str, branch: str, out: str
) -> None:
    """Dropout of a branch and its sum with the residual stream, in one kernel or in two."""
    sizes = ctx.sizes
    name, summed = f"dropout{number}", f"add{number}"
    if ctx.dropout == 0:
        add(ctx, layer, summed, residual, branch, out)
        return
    elements = sizes.tokens * sizes.width
    if not ctx.fused:
        dropped = f"{layer}.{name}.out"
        dropout(ctx, layer, name, branch, dropped, elements)
        add(ctx, layer, summed, residual, dropped, out)
        return
    size, mask = sizes.stream_bytes(sizes.width), f"{layer}.{name}.mask"
    mask_bytes = elements * MASK_BYTES
    ctx.tape.forward(
        f"{layer}.{name}_add",
        layer,
        [pointwise(elements, 3 * size + mask_bytes, 3)],
        [residual, branch],
        {out: size, mask: mask_bytes},
        Backward(
            of=out,
            kernels=(pointwise(elements, 2 * size + mask_bytes, 2),),
            saved=(mask,),
            grads={branch: size},
            passes=(residual,),
        ),
        random=True,
    )


def sum_over_group(ctx: Context, layer: str, source: str, out: str) -> str:
    """Sum partial results over the tensor-parallel group; returns the tensor that holds the sum.

    The gradient passes through unchanged. Without a group there is nothing to do.
    """
    if not ctx.parallel:
        return source
    size = ctx.tape.tensors[source].size_bytes
    ctx.tape.forward(
        f"{source}.all_reduce",
        layer,
        [ctx.collective(size)],
        [source],
        {out: size},
        Backward(of=out, passes=(source,)),
        recomputable=False,
        whole=True,
    )
    return out


def enter_group(ctx: Context, layer: str, source: str) -> None:
    """Mark a tensor as the input of a sharded part: its gradient is summed over the group."""
    if not ctx.parallel:
        return
    size = ctx.tape.tensors[source].size_bytes
    ctx.tape.rule(
        f"{source}.all_reduce",
        layer,
        Backward(
            of=source,
            kernels=(ctx.collective(size),),
            grads={source: size},
            replaces=True,
            recomputable=False,
            whole=True,
        ),
    )

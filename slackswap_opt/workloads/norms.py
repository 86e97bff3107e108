"""Normalization: LayerNorm and RMSNorm, as one kernel or as an eager framework runs them."""

from __future__ import annotations

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.workloads.context import Context
from slackswap_opt.workloads.kernels import STATISTIC_BYTES, pointwise
from slackswap_opt.workloads.tape import Backward

FLOAT_BYTES = 4


def norm(
    ctx: Context, layer: str, name: str, source: str, out: str, *, tokens: int | None = None
) -> None:
    """Normalize the residual stream.

    LayerNorm is one kernel everywhere; it saves its input and two fp32 statistics per token. A
    fused RMSNorm saves its input and one.
    """
    kind = ctx.workload.architecture.norm
    if kind == "rmsnorm" and not ctx.fused:
        _eager_rms_norm(ctx, layer, name, source, out, tokens)
    else:
        statistics = ("mean", "rstd") if kind == "layernorm" else ("rstd",)
        _one_kernel(ctx, layer, name, source, out, statistics, tokens)


def _one_kernel(
    ctx: Context,
    layer: str,
    name: str,
    source: str,
    out: str,
    statistics: tuple[str, ...],
    tokens: int | None,
) -> None:
    sizes = ctx.sizes
    rows = sizes.tokens if tokens is None else tokens
    elements, size = rows * sizes.width, sizes.stream_bytes(sizes.width, rows)
    saved = {f"{layer}.{name}.{statistic}": rows * STATISTIC_BYTES for statistic in statistics}
    # The gradients of scale and shift are a second kernel unless kernels are fused.
    backward: tuple[Kernel, ...] = (pointwise(elements, 3 * size, 8),)
    if not ctx.fused:
        backward += (pointwise(elements, 2 * size, 4),)
    ctx.tape.forward(
        f"{layer}.{name}",
        layer,
        [pointwise(elements, 2 * size, 5)],
        [source],
        {out: size, **saved},
        Backward(
            of=out,
            kernels=backward,
            saved=(source, *saved),
            grads={source: size},
            whole=True,
        ),
    )


def _eager_rms_norm(
    ctx: Context, layer: str, name: str, source: str, out: str, tokens: int | None
) -> None:
    """RMSNorm written out: cast to fp32, root mean square, scale, cast back, weight.

    Saved are the fp32 copy of the input (not the input), the inverse root, and what the weight
    multiplies. In an fp32 model the two casts do nothing.
    """
    tape, sizes = ctx.tape, ctx.sizes
    rows = sizes.tokens if tokens is None else tokens
    elements = rows * sizes.width
    size, wide = sizes.stream_bytes(sizes.width, rows), elements * FLOAT_BYTES
    inverse_bytes = rows * STATISTIC_BYTES
    prefix = f"{layer}.{name}"
    casts = size != wide
    upcast = f"{prefix}.float" if casts else source
    inverse, scaled = f"{prefix}.rstd", f"{prefix}.normalized"
    cast = pointwise(elements, size + wide)
    if casts:
        tape.forward(
            f"{prefix}.cast", layer, [cast], [source], {upcast: wide},
            Backward(of=upcast, kernels=(cast,), grads={source: size}),
        )  # fmt: skip
    tape.forward(
        f"{prefix}.rms",
        layer,
        # Square, mean; the sum with epsilon and the inverse root touch one number per token.
        [
            pointwise(elements, 2 * wide),
            pointwise(elements, wide),
            pointwise(2 * rows, 4 * inverse_bytes),
        ],
        [upcast],
        {inverse: inverse_bytes},
        Backward(
            of=inverse,
            kernels=(
                pointwise(2 * rows, 4 * inverse_bytes),
                pointwise(elements, wide),
                pointwise(elements, 2 * wide),
                pointwise(elements, 3 * wide),
            ),
            saved=(inverse, upcast),
            grads={upcast: wide},
            workspace_bytes=2 * wide,
        ),
        workspace_bytes=wide,
    )
    downcast = (cast,) if casts else ()
    tape.forward(
        f"{prefix}.normalize",
        layer,
        [pointwise(elements, 2 * wide), *downcast],
        [upcast, inverse],
        {scaled: size},
        Backward(
            of=scaled,
            kernels=(
                *downcast,
                pointwise(elements, 2 * wide),
                pointwise(elements, 3 * wide),
                pointwise(elements, wide),
            ),
            saved=(upcast, inverse),
            grads={upcast: wide, inverse: inverse_bytes},
            workspace_bytes=(2 if casts else 1) * wide,
        ),
        workspace_bytes=wide if casts else 0,
    )
    tape.forward(
        f"{prefix}.weight",
        layer,
        [pointwise(elements, 2 * size)],
        [scaled],
        {out: size},
        Backward(
            of=out,
            kernels=(
                pointwise(elements, 2 * size),
                pointwise(elements, 3 * size),
                pointwise(elements, size),
            ),
            saved=(scaled,),
            grads={scaled: size},
            workspace_bytes=size,
            whole=True,
        ),
    )

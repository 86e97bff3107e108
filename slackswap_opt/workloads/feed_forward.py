"""The feed-forward part of a layer: GELU between two maps, or the gated SwiGLU."""

from __future__ import annotations

from slackswap_opt.workloads.context import Context, linear
from slackswap_opt.workloads.kernels import pointwise
from slackswap_opt.workloads.tape import Backward


def feed_forward(ctx: Context, layer: str, source: str, out: str) -> None:
    """From the normalized stream to this device's output of the feed-forward part."""
    sizes, network = ctx.sizes, ctx.workload.architecture
    activated = f"{layer}.activated"
    if network.activation == "gelu":
        inner = f"{layer}.inner"
        linear(ctx, layer, "fc1", source, inner, sizes.width, sizes.inner, bias=network.bias)
        gelu(ctx, layer, "gelu", inner, activated, sizes.tokens * sizes.inner)
    else:
        for name in ("gate", "up"):
            linear(
                ctx, layer, name, source, f"{layer}.{name}.out", sizes.width, sizes.inner,
                bias=network.bias,
            )  # fmt: skip
        _gate(ctx, layer, f"{layer}.gate.out", f"{layer}.up.out", activated)
    linear(ctx, layer, "fc2", activated, out, sizes.inner, sizes.width, bias=network.bias)


def gelu(ctx: Context, layer: str, name: str, source: str, out: str, elements: int) -> None:
    """GELU, which saves its input."""
    size = elements * ctx.sizes.element
    ctx.tape.forward(
        f"{layer}.{name}",
        layer,
        [pointwise(elements, 2 * size, 8)],
        [source],
        {out: size},
        Backward(
            of=out,
            kernels=(pointwise(elements, 3 * size, 12),),
            saved=(source,),
            grads={source: size},
        ),
    )


def _gate(ctx: Context, layer: str, gate: str, up: str, out: str) -> None:
    """SiLU of the gate times the other map.

    As two kernels, SiLU saves its input and the product both of its factors; as one kernel it
    saves the two inputs and rebuilds the SiLU in the backward.
    """
    tape = ctx.tape
    elements = ctx.sizes.tokens * ctx.sizes.inner
    size = elements * ctx.sizes.element
    if ctx.fused:
        tape.forward(
            f"{layer}.swiglu",
            layer,
            [pointwise(elements, 3 * size, 5)],
            [gate, up],
            {out: size},
            Backward(
                of=out,
                kernels=(pointwise(elements, 5 * size, 10),),
                saved=(gate, up),
                grads={gate: size, up: size},
            ),
        )
        return
    activated = f"{layer}.silu.out"
    tape.forward(
        f"{layer}.silu",
        layer,
        [pointwise(elements, 2 * size, 4)],
        [gate],
        {activated: size},
        Backward(
            of=activated,
            kernels=(pointwise(elements, 3 * size, 6),),
            saved=(gate,),
            grads={gate: size},
        ),
    )
    tape.forward(
        f"{layer}.mul",
        layer,
        [pointwise(elements, 3 * size)],
        [activated, up],
        {out: size},
        Backward(
            of=out,
            kernels=(pointwise(elements, 3 * size), pointwise(elements, 3 * size)),
            saved=(activated, up),
            grads={activated: size, up: size},
        ),
    )

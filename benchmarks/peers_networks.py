"""Networks like the peers', made here: convolutions, skips and inverted bottlenecks of many shapes.

Instances in the form of `benchmarks/peers_instances.py`, one training step each: a forward pass,
and a backward pass with an operation per forward one. Costs follow from shapes: multiply-adds at
`FLOPS`, bytes at `BANDWIDTH`, whole microseconds; sizes are kibibytes of fp32. Nothing is measured,
and nothing is tuned to what any planner does: they are there so that it is not tuned to the few
networks whose profiles are published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from fractions import Fraction

from benchmarks.peers_instances import Instance, Op

FLOPS = 7e12
"""Multiply-adds count twice; what a card of the time reaches."""
BANDWIDTH = 5e11
"""Bytes per second."""
LAUNCH_US = 5
"""Least time of an operation that does anything."""
FP32 = 4


@dataclass(frozen=True)
class Shape:
    """Of an activation: images, channels, height and width."""

    images: int
    channels: int
    side: int

    @property
    def size(self) -> int:
        """Bytes."""
        return self.images * self.channels * self.side**2 * FP32


@dataclass(frozen=True)
class _Backward:
    """How an operation is undone: what its backward operation reads besides the gradient."""

    inputs: tuple[int, ...]
    to: tuple[int, ...]
    reads: tuple[int, ...]
    us: int


@dataclass
class Network:
    """A forward pass under construction.

    Attributes:
        images: how many are in a batch.
        ops: the operations so far.
        shapes: of their outputs.
    """

    images: int
    ops: list[Op] = field(default_factory=list)
    shapes: list[Shape] = field(default_factory=list)
    _backward: list[_Backward] = field(default_factory=list)

    def image(self, side: int) -> int:
        """The batch, decoded and normalized: the first operation."""
        return self._add("input", Shape(self.images, 3, side), (), moved=2.0, to=())

    def conv(self, x: int, channels: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> int:
        """A convolution; its gradients need its input."""
        before = self.shapes[x]
        after = Shape(self.images, channels, -(-before.side // stride))
        flops = 2 * after.size / FP32 * before.channels / groups * kernel**2
        return self._add("conv", after, (x,), saved=(x,), flops=flops)

    def up(self, x: int, channels: int) -> int:
        """A transposed convolution that doubles the side."""
        before = self.shapes[x]
        after = Shape(self.images, channels, 2 * before.side)
        flops = 2 * before.size / FP32 * channels * 4
        return self._add("up", after, (x,), saved=(x,), flops=flops)

    def norm(self, x: int) -> int:
        """Batch normalization; its gradients need its input."""
        return self._add("norm", self.shapes[x], (x,), saved=(x,), moved=3.0)

    def relu(self, x: int) -> int:
        """A rectifier; its gradient needs its output."""
        return self._add("relu", self.shapes[x], (x,), keeps=True)

    def pool(self, x: int) -> int:
        """Halves the side; its gradient needs input and output."""
        before = self.shapes[x]
        after = Shape(self.images, before.channels, -(-before.side // 2))
        return self._add("pool", after, (x,), saved=(x,), keeps=True)

    def add(self, x: int, y: int) -> int:
        """A sum; the gradients of both are that of the sum."""
        return self._add("add", self.shapes[x], (x, y))

    def concat(self, parts: Sequence[int]) -> int:
        """Channels one after another, copied."""
        first = self.shapes[parts[0]]
        channels = sum(self.shapes[x].channels for x in parts)
        return self._add("concat", Shape(self.images, channels, first.side), tuple(parts))

    def loss(self, x: int) -> int:
        """Means over the image, a classifier, and its loss."""
        return self._add("loss", Shape(self.images, 1000, 1), (x,), saved=(x,))

    def _add(
        self,
        name: str,
        shape: Shape,
        inputs: tuple[int, ...],
        *,
        saved: tuple[int, ...] = (),
        keeps: bool = False,
        flops: float = 0.0,
        moved: float = 1.0,
        to: tuple[int, ...] | None = None,
    ) -> int:
        number = len(self.ops)
        touched = shape.size * moved + sum(self.shapes[x].size for x in inputs)
        us = max(LAUNCH_US, round(1e6 * max(flops / FLOPS, touched / BANDWIDTH)))
        self.ops.append(Op(f"{name}{number}", "fwd", Fraction(us), _kib(shape), inputs))
        self.shapes.append(shape)
        reads = (*saved, number) if keeps else saved
        grows = inputs if to is None else to
        self._backward.append(_Backward(inputs, grows, reads, us))
        return number

    def step(self, name: str) -> Instance:
        """The forward pass with its backward one: gradients from the last operation down.

        A convolution's backward operation takes twice its time (two gradients), any other's once.
        Where an output is read more than once, its gradients are added up.
        """
        ops = list(self.ops)
        gradient: dict[int, int] = {}
        for number in reversed(range(len(self.ops))):
            back, op = self._backward[number], self.ops[number]
            above = (gradient[number],) if number in gradient else ()
            wide = op.name.startswith(("conv", "up"))
            if op.name.startswith("add"):
                for x in back.to:
                    self._accumulate(ops, gradient, x, above[0])
                continue
            if not back.to:
                continue
            for x in back.to:
                share = Fraction(back.us * (2 if wide else 1), len(back.to))
                time = Fraction(max(LAUNCH_US, round(share)))
                reads = tuple(sorted({*back.reads, *above}))
                ops.append(Op(f"d_{op.name}", "bwd", time, _kib(self.shapes[x]), reads))
                self._accumulate(ops, gradient, x, len(ops) - 1)
        return Instance(name, tuple(ops), ())

    def _accumulate(self, ops: list[Op], gradient: dict[int, int], x: int, new: int) -> None:
        if x not in gradient:
            gradient[x] = new
            return
        us = max(LAUNCH_US, round(3e6 * self.shapes[x].size / BANDWIDTH))
        reads = tuple(sorted((gradient[x], new)))
        ops.append(Op(f"sum_{x}", "bwd", Fraction(us), _kib(self.shapes[x]), reads))
        gradient[x] = len(ops) - 1


def _kib(shape: Shape) -> Fraction:
    return Fraction(max(1, shape.size // 1024))


# -- Networks --------------------------------------------------------------------------------------


def unet(depth: int = 4, channels: int = 32, side: int = 256, images: int = 16) -> Instance:
    """Encoder and decoder with long skips, two convolutions a level."""
    net = Network(images)

    def double(x: int, width: int) -> int:
        for _ in range(2):
            x = net.relu(net.norm(net.conv(x, width)))
        return x

    x, skips = net.image(side), []
    for level in range(depth):
        x = double(x, channels << level)
        skips.append(x)
        x = net.pool(x)
    x = double(x, channels << depth)
    for level in reversed(range(depth)):
        x = net.concat([skips[level], net.up(x, channels << level)])
        x = double(x, channels << level)
    net.loss(net.conv(x, 4, kernel=1))
    return net.step(f"unet_{depth}")


def densenet(
    blocks: Sequence[int] = (6, 12, 8), growth: int = 32, side: int = 112, images: int = 64
) -> Instance:
    """Each layer reads what all layers before it in its block made."""
    net = Network(images)
    x = net.pool(net.relu(net.norm(net.conv(net.image(2 * side), 2 * growth, 7, 2))))
    for number, layers in enumerate(blocks):
        parts = [x]
        for _ in range(layers):
            x = net.concat(parts) if len(parts) > 1 else parts[0]
            x = net.conv(net.relu(net.norm(x)), 4 * growth, 1)
            parts.append(net.conv(net.relu(net.norm(x)), growth))
        x = net.concat(parts)
        if number + 1 < len(blocks):
            x = net.conv(net.relu(net.norm(x)), net.shapes[x].channels // 2, 1)
            x = net.pool(x)
    net.loss(net.relu(net.norm(x)))
    return net.step("densenet_" + "_".join(map(str, blocks)))


def mobilenet(repeats: Sequence[int] = (1, 2, 3, 4, 3, 3, 1), images: int = 96) -> Instance:
    """Inverted residuals: narrow sums, and between them six times wider depthwise convolutions."""
    net = Network(images)
    x = net.relu(net.norm(net.conv(net.image(224), 32, 3, 2)))
    widths = (16, 24, 32, 64, 96, 160, 320)
    for stage, (count, width) in enumerate(zip(repeats, widths, strict=True)):
        for number in range(count):
            stride = 2 if number == 0 and stage in (1, 2, 3, 5) else 1
            inside = net.shapes[x].channels * (6 if stage else 1)
            y = net.relu(net.norm(net.conv(x, inside, 1))) if stage else x
            y = net.relu(net.norm(net.conv(y, inside, 3, stride, groups=inside)))
            y = net.norm(net.conv(y, width, 1))
            x = net.add(x, y) if number else y
    net.loss(net.relu(net.norm(net.conv(x, 1280, 1))))
    return net.step("mobilenet_" + "_".join(map(str, repeats)))


def resnet(
    blocks: Sequence[int] = (3, 4, 6, 3), *, bottleneck: bool = True, images: int = 96
) -> Instance:
    """Residual blocks: of two convolutions, or three with a bottleneck."""
    net = Network(images)
    x = net.pool(net.relu(net.norm(net.conv(net.image(224), 64, 7, 2))))
    for stage, count in enumerate(blocks):
        width = 64 << stage
        wide = 4 * width if bottleneck else width
        for number in range(count):
            stride = 2 if stage and number == 0 else 1
            kernels = ((width, 1, 1), (width, 3, stride), (wide, 1, 1))
            if not bottleneck:
                kernels = ((width, 3, stride), (wide, 3, 1))
            y = x
            for place, (channels, kernel, step) in enumerate(kernels):
                y = net.norm(net.conv(y, channels, kernel, step))
                y = net.relu(y) if place + 1 < len(kernels) else y
            if number == 0 and (bottleneck or stage):
                x = net.norm(net.conv(x, wide, 1, stride))
            x = net.relu(net.add(x, y))
    net.loss(x)
    layers = sum(blocks) * (3 if bottleneck else 2) + 2
    return net.step(f"resnet_{layers}")


NETWORKS: dict[str, Callable[[], Instance]] = {
    "unet_4": unet,
    "unet_5": lambda: unet(depth=5, channels=24, side=320, images=8),
    "densenet": densenet,
    "mobilenet": mobilenet,
    "resnet_18": lambda: resnet((2, 2, 2, 2), bottleneck=False, images=192),
    "resnet_50": resnet,
    "resnet_101": lambda: resnet((3, 4, 23, 3), images=64),
}
"""What the benchmark plans, by name."""

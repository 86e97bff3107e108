"""Writes the example graphs in models/graphs/, from the shapes of published architectures.

    python -m benchmarks.example_graphs [NAME]... [--write]

Sizes are those of the tensors, in 16-bit floats. Durations are of a plain roofline, round but of
the right order: `FLOPS_PER_S` and `BYTES_PER_S` attained, and a launch. The backward phase is
derived with `TrainingStep.with_backward`, by type of operation; an AdamW operation ends the step.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path

import networkx as nx

from slackswap_opt.formats import write_step
from slackswap_opt.step import LayerRule, Operation, Phase, TrainingStep, Value

FLOPS_PER_S = 160e12
"""Half of an A100's peak in 16-bit floats, what large matrix products attain."""
BYTES_PER_S = 1.5e12
"""About three quarters of its memory bandwidth (80 GB version)."""
LAUNCH_US = 4
ELEMENT = 2
"""Bytes of a 16-bit float."""
FOLDER = Path(__file__).parent.parent / "models" / "graphs"

FUSED_ATTENTION = LayerRule(saves_input=True, saves_output=True, ratio=2.5)
"""Reads q, k, v and its output again and computes the scores anew: five products after two."""
CELL = LayerRule(saves_input=True, saves_output=True)
GATHER = LayerRule()
"""Its backward operation scatters, and reads neither input nor output."""


@dataclass
class Network:
    """A forward graph in the making.

    Attributes:
        name: of the step.
        note: what it is, with its shapes.
        layer: label of the operations added next.
    """

    name: str
    note: str
    layer: str = ""
    graph: nx.MultiDiGraph = field(default_factory=nx.MultiDiGraph)
    rules: dict[str, str | LayerRule] = field(default_factory=dict)

    def input(self, name: str, elements: int) -> str:
        """A batch input, which is static."""
        self.graph.add_node(name, role="tensor", static=True, size_bytes=elements * ELEMENT)
        return name

    def add(
        self,
        name: str,
        kind: str | LayerRule,
        inputs: Iterable[str],
        elements: int,
        *,
        flops: float = 0,
        parameters: int = 0,
        moved: int | None = None,
        **attributes: object,
    ) -> str:
        """An operation.

        Args:
            name: its name, to be given as an input of others; `name:output` names one of several.
            kind: a type of layer, or its rule.
            inputs: what it reads.
            elements: of its own output.
            flops: of the forward operation.
            parameters: number of its weights.
            moved: elements read and written; three times the output if left out.
            attributes: further ones of the node.
        """
        seconds = max(
            flops / FLOPS_PER_S,
            ELEMENT * (3 * elements if moved is None else moved) / BYTES_PER_S,
        )
        self.graph.add_node(
            name,
            duration_us=round(seconds * 1e6) + LAUNCH_US,
            size_bytes=elements * ELEMENT,
            layer=self.layer,
            **({"parameter_bytes": parameters * ELEMENT} if parameters else {}),
            **attributes,
        )
        self.rules[name] = kind
        for source in inputs:
            writer, _, output = source.partition(":")
            size = self.graph.nodes[writer].get(f"_{output}")
            self.graph.add_edge(
                writer, name, **({"tensor": source, "size_bytes": size} if output else {})
            )
        return name

    def linear(self, name: str, source: str, rows: int, width: int, out: int) -> str:
        """A matrix product with weights."""
        return self.add(
            name, "linear", [source], rows * out, flops=2.0 * rows * width * out,
            parameters=width * out, moved=rows * (width + out) + width * out,
        )  # fmt: skip

    def several(self, name: str, **outputs: int) -> None:
        """Further outputs of an operation, by name and elements."""
        self.graph.nodes[name].update({f"_{o}": n * ELEMENT for o, n in outputs.items()})

    def step(self) -> TrainingStep:
        """The training step, backward phase and optimizer included."""
        for _, attributes in self.graph.nodes(data=True):
            for key in [key for key in attributes if key.startswith("_")]:
                del attributes[key]
        forward = TrainingStep.from_networkx(self.graph, self.name)
        step = forward.with_backward(2.0, self.rules)
        weights = [t for t in step.tensors if t.static and t.name.endswith(".weight")]
        # reads and writes weights, gradients and two 32-bit moments with a 32-bit copy
        moved = sum(t.size_bytes for t in weights) // ELEMENT * (2 * 2 + 2 + 2 * 12)
        adamw = Operation(
            "adamw",
            Phase.OPTIMIZER,
            round(moved / BYTES_PER_S * 1e6) * 1000 + LAUNCH_US * 1000,
            reads=tuple(Value(t.name) for t in weights),
            layer="optimizer",
        )
        notes = [
            self.note,
            "Durations are of a roofline (160 TFLOP/s, 1.5 TB/s, 4 us a launch), not measured.",
            *step.notes,
        ]
        return TrainingStep.build(self.name, [*step.operations, adamw], step.tensors, notes)


def resnet() -> TrainingStep:
    """ResNet-50 (He et al. 2015), 64 images of 224 by 224."""
    batch = 64
    net = Network("resnet", "ResNet-50, 64 images of 224 by 224, 16-bit floats.")
    current = net.input("image", batch * 3 * 224 * 224)

    def conv(name: str, source: str, size: int, inner: int, out: int, kernel: int, at: int) -> str:
        """Convolution to `out` channels of size `at`, and its normalization."""
        elements = batch * out * at * at
        weights = inner * out * kernel * kernel
        net.add(
            f"{name}.conv", "conv2d", [source], elements, flops=2.0 * elements * inner * kernel**2,
            parameters=weights, moved=elements + batch * inner * size * size + weights,
        )  # fmt: skip
        return net.add(f"{name}.bn", "batchnorm2d", [f"{name}.conv"], elements, parameters=2 * out)

    def relu(name: str, source: str, elements: int) -> str:
        return net.add(f"{name}.relu", "relu", [source], elements, moved=2 * elements)

    net.layer = "stem"
    current = relu("stem", conv("stem", current, 224, 3, 64, 7, 112), batch * 64 * 112 * 112)
    current = net.add("stem.pool", "maxpool2d", [current], batch * 64 * 56 * 56)
    size, channels, number = 56, 64, 0
    for width, blocks in ((64, 3), (128, 4), (256, 6), (512, 3)):
        for block in range(blocks):
            net.layer = name = f"block.{number}"
            at = size // 2 if block == 0 and width > 64 else size
            inner = conv(f"{name}.1", current, size, channels, width, 1, size)
            inner = relu(f"{name}.1", inner, batch * width * size * size)
            inner = conv(f"{name}.2", inner, size, width, width, 3, at)
            inner = relu(f"{name}.2", inner, batch * width * at * at)
            inner = conv(f"{name}.3", inner, at, width, 4 * width, 1, at)
            if block == 0:
                current = conv(f"{name}.down", current, size, channels, 4 * width, 1, at)
            elements = batch * 4 * width * at * at
            current = relu(
                name, net.add(f"{name}.add", "add", [inner, current], elements), elements
            )
            size, channels, number = at, 4 * width, number + 1
    net.layer = "head"
    current = net.add("pool", "avgpool2d", [current], batch * 2048, moved=batch * 2048 * 49)
    net.linear("classifier", current, batch, 2048, 1000)
    return net.step()


def attention(
    net: Network,
    name: str,
    queries: str,
    rows: int,
    width: int,
    length: int,
    memory: tuple[str, int] | None = None,
) -> str:
    """Projections, fused attention and output projection.

    Args:
        net: what to add to.
        name: prefix of the names.
        queries: normalized input; keys and values come from it too, unless `memory` is given.
        rows: its tokens, over the batch.
        width: of the model.
        length: of the sequence that is attended to.
        memory: what keys and values come from instead, and its tokens over the batch.
    """
    if memory is None:
        inputs, moved = [net.linear(f"{name}.qkv", queries, rows, width, 3 * width)], 4 * rows
    else:
        source, many = memory
        inputs = [
            net.linear(f"{name}.q", queries, rows, width, width),
            net.linear(f"{name}.kv", source, many, width, 2 * width),
        ]
        moved = 2 * rows + 2 * many
    mixed = net.add(
        f"{name}.attention", FUSED_ATTENTION, inputs, rows * width,
        flops=4.0 * rows * length * width, moved=moved * width,
    )  # fmt: skip
    return net.linear(f"{name}.o", mixed, rows, width, width)


def norm(net: Network, name: str, source: str, rows: int, width: int) -> str:
    """A layer normalization."""
    return net.add(name, "layernorm", [source], rows * width, parameters=2 * width)


def moe() -> TrainingStep:
    """A mixture of eight experts, of which each token takes two, in two layers."""
    batch, length, width, hidden, experts = 4, 2048, 1024, 3584, 8
    rows = batch * length
    net = Network(
        "moe",
        "Two transformer layers with eight experts each, two for a token; 4 sequences of 2048, "
        "width 1024, experts' width 3584, 16-bit floats. Experts have unequal loads; what depends "
        "on the routing may not run again.",
    )
    current = net.input("embedded", rows * width)
    loads = (0.19, 0.16, 0.14, 0.13, 0.12, 0.10, 0.09, 0.07)
    for number in range(2):
        net.layer = name = f"layer.{number}"
        normed = norm(net, f"{name}.norm1", current, rows, width)
        mixed = attention(net, name, normed, rows, width, length)
        current = net.add(f"{name}.add1", "add", [current, mixed], rows * width)
        normed = norm(net, f"{name}.norm2", current, rows, width)
        scores = net.linear(f"{name}.router", normed, rows, width, experts)
        chosen = net.add(f"{name}.top2", "softmax", [scores], rows * 2 * 2, recomputable=False)
        tokens = [round(2 * rows * share) for share in loads]
        outputs = []
        for expert in range(experts):
            own, many = f"{name}.expert{expert}", tokens[(expert + 3 * number) % experts]
            taken = net.add(
                f"{own}.take", GATHER, [normed, chosen], many * width, recomputable=False
            )
            up = net.linear(f"{own}.up", taken, many, width, hidden)
            gate = net.linear(f"{own}.gate", taken, many, width, hidden)
            inner = net.add(f"{own}.silu_mul", "mul", [gate, up], many * hidden)
            outputs.append(net.linear(f"{own}.down", inner, many, hidden, width))
        merged = net.add(
            f"{name}.combine", LayerRule(saves_input=True), [chosen, *outputs], rows * width,
            moved=5 * rows * width,
        )  # fmt: skip
        current = net.add(f"{name}.add2", "add", [current, merged], rows * width)
    net.layer = "head"
    current = norm(net, "head.norm", current, rows, width)
    net.linear("head.logits", current, rows, width, 8192)
    return net.step()


def encoder_decoder() -> TrainingStep:
    """An encoder-decoder (Vaswani et al. 2017): every decoder layer reads the memory."""
    batch, source, target, width, hidden, vocabulary = 32, 256, 128, 512, 2048, 8192
    rows, out = batch * source, batch * target
    net = Network(
        "encoder-decoder",
        "Encoder-decoder transformer, four layers each, 32 pairs of 256 and 128 tokens, width 512, "
        "vocabulary 8192, 16-bit floats; all decoder layers read the encoder's output.",
    )

    def feed_forward(name: str, current: str, many: int) -> str:
        normed = norm(net, f"{name}.norm3", current, many, width)
        inner = net.linear(f"{name}.fc1", normed, many, width, hidden)
        inner = net.add(f"{name}.relu", "relu", [inner], many * hidden, moved=2 * many * hidden)
        inner = net.linear(f"{name}.fc2", inner, many, hidden, width)
        return net.add(f"{name}.add3", "add", [current, inner], many * width)

    def attended(name: str, current: str, memory: str | None, many: int) -> str:
        normed = norm(net, f"{name}.norm", current, many, width)
        other, length = (None, many // batch) if memory is None else ((memory, rows), source)
        mixed = attention(net, name, normed, many, width, length, other)
        return net.add(f"{name}.add", "add", [current, mixed], many * width)

    current = net.input("source", rows * width)
    for number in range(4):
        net.layer = name = f"encoder.{number}"
        current = feed_forward(name, attended(f"{name}.self", current, None, rows), rows)
    net.layer = "encoder.norm"
    memory = norm(net, "memory", current, rows, width)
    current = net.input("target", out * width)
    for number in range(4):
        net.layer = name = f"decoder.{number}"
        current = attended(f"{name}.self", current, None, out)
        current = attended(f"{name}.cross", current, memory, out)
        current = feed_forward(name, current, out)
    net.layer = "head"
    current = norm(net, "head.norm", current, out, width)
    net.linear("head.logits", current, out, width, vocabulary)
    return net.step()


def rnn() -> TrainingStep:
    """Two LSTM layers, unrolled over 24 steps of time: long chains of small tensors."""
    batch, width, steps = 256, 1024, 24
    net = Network(
        "rnn",
        "Two LSTM layers of width 1024, unrolled over 24 steps, batch 256, 16-bit floats; a cell "
        "writes its gates, which only its backward operation reads, its state and its output.",
    )
    state = batch * width
    for layer in range(2):
        for name in ("h", "c"):
            net.input(f"{name}{layer}.start", state)
    outputs = []
    for time in range(steps):
        below = net.input(f"x{time}", state)
        for layer in range(2):
            net.layer = f"time.{time}"
            before = f"cell{layer}.{time - 1}"
            past = (
                [f"{before}:h", f"{before}:c"] if time else [f"h{layer}.start", f"c{layer}.start"]
            )
            cell = net.add(
                f"cell{layer}.{time}", CELL, [below, *past], 4 * state,
                flops=2.0 * batch * 2 * width * 4 * width, moved=8 * width * width + 10 * state,
                **({"parameter_bytes": 8 * width * width * ELEMENT} if not time else {}),
            )  # fmt: skip
            net.several(cell, h=state, c=state)
            below = f"{cell}:h"
        outputs.append(below)
    net.layer = "head"
    joined = net.add("head.stack", "stack", outputs, steps * state)
    net.linear("head.logits", joined, steps * batch, width, 2048)
    return net.step()


def diffusion_transformer() -> TrainingStep:
    """DiT-B/2 (Peebles and Xie 2022): every block is modulated by the same conditioning."""
    batch, tokens, width, blocks = 64, 256, 768, 12
    rows = batch * tokens
    net = Network(
        "diffusion-transformer",
        "DiT-B/2: 12 blocks of width 768, 64 latents of 32 by 32 in 256 tokens, 16-bit floats; "
        "every block is modulated by the conditioning, which all of them read.",
    )
    net.layer = "embed"
    noise = net.input("latent", batch * 4 * 32 * 32)
    current = net.linear("embed.patch", noise, rows, 16, width)
    condition = net.linear("embed.time", net.input("time", batch * 256), batch, 256, width)
    condition = net.add("embed.silu", "silu", [condition], batch * width)
    for number in range(blocks):
        net.layer = name = f"block.{number}"
        shift = net.linear(f"{name}.modulation", condition, batch, width, 6 * width)
        for part in ("1", "2"):
            normed = net.add(f"{name}.norm{part}", "layernorm", [current, shift], rows * width)
            if part == "1":
                inner = attention(net, name, normed, rows, width, tokens)
            else:
                inner = net.linear(f"{name}.fc1", normed, rows, width, 4 * width)
                inner = net.add(f"{name}.gelu", "gelu", [inner], rows * 4 * width)
                inner = net.linear(f"{name}.fc2", inner, rows, 4 * width, width)
            gated = net.add(f"{name}.gate{part}", "mul", [inner, shift], rows * width)
            current = net.add(f"{name}.add{part}", "add", [current, gated], rows * width)
    net.layer = "head"
    current = net.add("head.norm", "layernorm", [current], rows * width)
    net.linear("head.noise", current, rows, width, 32)
    return net.step()


GRAPHS: dict[str, Callable[[], TrainingStep]] = {
    "diffusion-transformer": diffusion_transformer,
    "encoder-decoder": encoder_decoder,
    "moe": moe,
    "resnet": resnet,
    "rnn": rnn,
}


def main() -> None:
    """Print the graphs, or write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", choices=[*GRAPHS, []], metavar="NAME")
    parser.add_argument("--write", action="store_true", help="write to models/graphs/")
    arguments = parser.parse_args()
    for name in arguments.names or GRAPHS:
        step = GRAPHS[name]()
        print(f"{name}: {len(step.operations)} operations, {len(step.tensors)} tensors")
        if arguments.write:
            write_step(step, FOLDER / f"{name}.json", force=True)


if __name__ == "__main__":
    main()

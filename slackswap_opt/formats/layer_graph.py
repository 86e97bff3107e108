"""From a graph of layers, as profilers print it, to a training step with its backward phase.

A profile says what each layer costs and how large its output is, not what a framework allocates.
This module supplies that, by rules that `docs/formats.md` states: which outputs share memory,
what each backward operation reads, and where gradients live.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Any

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.step.backward import Derivative, backward_phase
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.layer_rules import LayerRule, rule_for
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

_NAMED_IN_NOTES = 5


@dataclass(frozen=True, slots=True)
class Layer:
    """One node of a profile.

    Attributes:
        name: unique.
        kind: type of layer, such as `Conv2d`.
        inputs: names of the layers whose outputs it reads, in order.
        forward_ns: time of the forward operation.
        backward_ns: time of the backward operation.
        output_bytes: size of each output.
        parameter_bytes: size of its parameters.
        in_place: it claims to overwrite one of its inputs.
        random: it draws random numbers.
        picks: for `__getitem__`, which output of its input it is.
        order: where it stands among layers that are ready at the same time.
        rule: what is known of it, where its type does not tell.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    forward_ns: int
    backward_ns: int
    output_bytes: tuple[int, ...]
    parameter_bytes: int = 0
    in_place: bool = False
    random: bool = False
    picks: int | None = None
    order: tuple[int, int] = (0, 0)
    rule: LayerRule | None = None

    @property
    def batch_input(self) -> bool:
        """Whether it only hands in the batch: no inputs, no parameters, no backward."""
        if self.inputs or self.parameter_bytes or self.backward_ns:
            return False
        return self.forward_ns == 0 or self.kind.rstrip("0123456789").lower() == "input"

    @property
    def free(self) -> bool:
        """Whether it takes no time."""
        return self.forward_ns == 0 and self.backward_ns == 0


@dataclass(eq=False, slots=True)
class _Output:
    """One output of a layer and the value that holds it."""

    layer: Layer
    name: str
    size_bytes: int
    static: bool
    value: Value
    readers: list[Layer] = field(default_factory=list)
    names: list[str] = field(default_factory=list)
    overwritten: bool = False


def training_step(name: str, layers: Iterable[Layer]) -> TrainingStep:
    """The training step of a graph of layers.

    Raises:
        InputError: if the layers form a cycle, or as `TrainingStep.build`.
    """
    return _Builder(name, _sorted(list(layers))).build()


class _Builder:
    """Holds what the passes over the layers share; each method is one pass."""

    def __init__(self, name: str, layers: list[Layer]) -> None:
        self.name = name
        self.layers = layers
        self.rules = {layer.name: layer.rule or rule_for(layer.kind) for layer in layers}
        self.parameters = {layer.name: _parameters(layer) for layer in layers}
        self.outputs: dict[str, list[_Output]] = {}
        self.inputs: dict[str, list[_Output]] = {}
        self.views: dict[str, Layer] = {}
        self.kept_apart: dict[str, Layer] = {}
        self.differentiable: dict[str, bool] = {}
        self.operations: list[Operation] = []
        self.gradients: list[Tensor] = []
        self.labels: dict[str, str] = {}

    def build(self) -> TrainingStep:
        """Run the passes."""
        self._find_outputs()
        self._find_differentiable()
        order = self._share_in_place()
        self.layers = [layer for layer in order if layer.name not in self.views]
        self._label()
        self._add_forward()
        self._add_backward()
        notes = tuple(self._notes())
        return TrainingStep.build(self.name, self.operations, self._tensors(), notes)

    # What each layer reads and writes, and which outputs are one memory

    def _find_outputs(self) -> None:
        for layer in self.layers:
            produced = [output for source in layer.inputs for output in self.outputs[source]]
            inputs = list(dict.fromkeys(produced))
            viewed = self._viewed(layer, inputs)
            if viewed is not None:
                viewed.names.append(layer.name)
                self.outputs[layer.name] = [viewed]
                self.views[layer.name] = layer
                continue
            self.inputs[layer.name] = inputs
            for source in inputs:
                source.readers.append(layer)
            several = len(layer.output_bytes) > 1
            self.outputs[layer.name] = [
                _Output(layer, name, size, layer.batch_input, Value(name))
                for index, size in enumerate(layer.output_bytes)
                for name in [f"{layer.name}[{index}]" if several else layer.name]
            ]

    def _viewed(self, layer: Layer, inputs: list[_Output]) -> _Output | None:
        """The output that this layer is only another name of, if any."""
        if not (self.rules[layer.name].view and layer.free and len(layer.output_bytes) == 1):
            return None
        size = layer.output_bytes[0]
        if layer.picks is not None and len(layer.inputs) == 1 and len(inputs) > 1:
            if not -len(inputs) <= layer.picks < len(inputs):
                return None
            picked = inputs[layer.picks]
            return picked if size <= picked.size_bytes else None
        if any(len(self.outputs[source]) > 1 for source in layer.inputs):
            return None
        same = (output for output in inputs if output.size_bytes == size)
        larger = (output for output in inputs if output.size_bytes > size)
        return next(same, None) or next(larger, None)

    def _find_differentiable(self) -> None:
        for layer in self.layers:
            if layer.name in self.inputs:
                self.differentiable[layer.name] = self._is_differentiable(layer)

    def _is_differentiable(self, layer: Layer) -> bool:
        if layer.batch_input or (not self.rules[layer.name].differentiable and layer.free):
            return False
        if layer.parameter_bytes or layer.backward_ns:
            return True
        return any(self.differentiable[o.layer.name] for o in self.inputs[layer.name])

    def _saves(self, layer: Layer) -> tuple[bool, bool]:
        """Whether its backward operation reads its inputs, and its outputs."""
        rule = self.rules[layer.name]
        if not self.differentiable[layer.name]:
            return False, False
        if layer.in_place and rule.saves_input:
            return False, True  # it has destroyed its input
        return rule.saves_input, rule.saves_output

    def _share_in_place(self) -> list[Layer]:
        """Give in-place layers the memory of an input where that is safe; the order it needs."""
        if not any(layer.in_place for layer in self.layers):
            return self.layers
        order: nx.DiGraph[Any] = nx.DiGraph()
        position = {layer.name: index for index, layer in enumerate(self.layers)}
        order.add_nodes_from(position)
        order.add_edges_from(
            (source, layer.name) for layer in self.layers for source in layer.inputs
        )
        for layer in self.layers:
            if not layer.in_place or layer.name not in self.inputs:
                continue
            target = next(
                (o for o in self.inputs[layer.name] if self._may_overwrite(layer, o, order)), None
            )
            if target is None:
                self.kept_apart[layer.name] = layer
                continue
            (output,) = self.outputs[layer.name]
            output.value = Value(target.value.tensor, target.value.version + 1)
            target.overwritten = True
            order.add_edges_from((r.name, layer.name) for r in target.readers if r is not layer)
        names = nx.lexicographical_topological_sort(order, key=position.__getitem__)
        return [self.layers[position[name]] for name in names]

    def _may_overwrite(self, layer: Layer, target: _Output, order: nx.DiGraph[Any]) -> bool:
        outputs = self.outputs[layer.name]
        if target.static or target.overwritten or len(outputs) != 1:
            return False
        if outputs[0].size_bytes != target.size_bytes or self._saves(target.layer)[1]:
            return False
        if self.differentiable[target.layer.name] and not self.differentiable[layer.name]:
            return False  # the loss reads what the target holds
        others = [reader for reader in target.readers if reader is not layer]
        if any(self._saves(reader)[0] for reader in others):
            return False
        return not any(nx.has_path(order, layer.name, reader.name) for reader in others)

    def _label(self) -> None:
        """Number the layers of the network; a new one begins where a single tensor passes.

        That is at the first operation of each stretch in which several tensors pass, and,
        outside of such stretches, at each operation with weights.
        """
        computed = [layer for layer in self.layers if not layer.batch_input]
        position = {layer.name: index for index, layer in enumerate(computed)}
        change = [0] * (len(computed) + 1)
        for layer in computed:
            for output in self.outputs[layer.name]:
                if output.readers:
                    change[position[layer.name]] += 1
                    change[max(position[reader.name] for reader in output.readers)] -= 1
        number, passing, inside = 0, 0, False
        for index, layer in enumerate(computed):
            passing += change[index]
            several = passing > 1
            chain_start = layer.parameter_bytes > 0 and self.rules[layer.name].starts_layer
            if index and not inside and (several or chain_start):
                number += 1
            self.labels[layer.name] = f"layer.{number}"
            inside = several

    # Operations

    def _add_forward(self) -> None:
        for layer in self.layers:
            if layer.batch_input:
                continue
            self.operations.append(
                Operation(
                    name=_forward_name(layer),
                    phase=Phase.FORWARD,
                    duration_ns=layer.forward_ns,
                    reads=(*_values(self.inputs[layer.name]), *self.parameters[layer.name]),
                    writes=tuple(_values(self.outputs[layer.name])),
                    layer=self.labels[layer.name],
                    random=layer.random,
                )
            )

    def _add_backward(self) -> None:
        """Walk the layers backwards; every gradient is named after the output it belongs to."""
        outputs = {o.value: o for outputs in self.outputs.values() for o in outputs}
        backward, self.gradients = backward_phase(
            self.operations,
            {
                _forward_name(layer): self._derivative(layer)
                for layer in self.layers
                if self.differentiable[layer.name] and not layer.batch_input
            },
            {output.value.tensor: output.size_bytes for output in outputs.values()},
            lambda value: f"{outputs[value].name}.grad",
        )
        self.operations += backward

    def _derivative(self, layer: Layer) -> Derivative:
        saves_input, saves_output = self._saves(layer)
        return Derivative(
            name=f"{_forward_name(layer)}.backward",
            duration_ns=layer.backward_ns,
            saved=(
                *(_values(self.inputs[layer.name]) if saves_input else ()),
                *(_values(self.outputs[layer.name]) if saves_output else ()),
                *self.parameters[layer.name],
            ),
            passes_gradient=self.rules[layer.name].passes_gradient,
        )

    # Tensors and notes

    def _tensors(self) -> list[Tensor]:
        first: dict[str, _Output] = {}
        aliases: dict[str, list[str]] = defaultdict(list)
        for layer in self.layers:
            for output in self.outputs[layer.name]:
                storage = output.value.tensor
                first.setdefault(storage, output)
                if output.name != storage:
                    aliases[storage].append(output.name)
                if output.names:
                    aliases[storage] += output.names
        activations = [
            Tensor(
                storage,
                output.size_bytes,
                output.size_bytes,
                output.static,
                tuple(aliases.get(storage, ())),
            )
            for storage, output in first.items()
        ]
        parameters = [
            Tensor.of(value.tensor, layer.parameter_bytes, static=True)
            for layer in self.layers
            for value in self.parameters[layer.name]
        ]
        return activations + self.gradients + parameters

    def _notes(self) -> Iterator[str]:
        loaded = sum(layer.forward_ns for layer in self.layers if layer.batch_input)
        if loaded:
            yield (
                f"The {loaded / 1e6:g} ms of the input are the loading of data, not compute; "
                "they are left out."
            )
        if self.views:
            names = _named(self.views.values())
            yield f"Views without cost share the memory of their input: {names}."
        if any(len(layer.output_bytes) > 1 for layer in self.layers):
            yield "Where a size is a list, each of its elements is a tensor of its own."
        shared = [
            layer for layer in self.layers if layer.in_place and layer.name not in self.kept_apart
        ]
        if shared:
            yield f"In place, overwriting an input: {_named(shared)}."
        if self.kept_apart:
            yield (
                "Said to be in place, but no input may be overwritten, so they have memory of "
                f"their own: {_named(self.kept_apart.values())}."
            )
        unknown = [
            layer
            for layer in self.layers
            if not layer.batch_input and not self.rules[layer.name].known
        ]
        if unknown:
            yield (
                "Types without a rule, whose backward operations are taken to read both input "
                f"and output: {_named(unknown, kinds=True)}."
            )
        random = [layer for layer in self.layers if layer.random]
        if random:
            yield (
                "Random operations run again with their saved generator state; their masks are "
                f"not in the profile and stand as their outputs: {_named(random, kinds=True)}."
            )
        yield (
            "Derived, not measured: what backward operations read (by type of layer), the "
            "gradients of activations, a loss without cost; no workspace is known."
        )
        yield (
            "The profile has no optimizer; gradients of parameters and optimizer state are "
            "static and not listed."
        )


def _sorted(layers: list[Layer]) -> list[Layer]:
    """The layers in the topological order that takes the lowest `order` that is ready."""
    by_order = sorted(layers, key=attrgetter("order"))
    if _inputs_come_first(by_order):
        return by_order
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from(layer.name for layer in layers)
    graph.add_edges_from((source, layer.name) for layer in layers for source in layer.inputs)
    by_name = {layer.name: layer for layer in layers}
    try:
        names = list(nx.lexicographical_topological_sort(graph, key=lambda n: by_name[n].order))
    except nx.NetworkXUnfeasible:
        edges = nx.find_cycle(graph)
        cycle = " -> ".join([edge[0] for edge in edges] + [edges[0][0]])
        raise InputError(f"the layers form a cycle: {cycle}; remove one edge") from None
    return [by_name[name] for name in names]


def _inputs_come_first(layers: Iterable[Layer]) -> bool:
    seen: set[str] = set()
    for layer in layers:
        if not seen.issuperset(layer.inputs):
            return False
        seen.add(layer.name)
    return True


def _forward_name(layer: Layer) -> str:
    return f"{layer.name}.{layer.kind}"


def _values(outputs: Iterable[_Output]) -> list[Value]:
    return [output.value for output in outputs]


def _parameters(layer: Layer) -> list[Value]:
    return [Value(f"{layer.name}.weight")] if layer.parameter_bytes else []


def _named(layers: Iterable[Layer], *, kinds: bool = False) -> str:
    shown = [f"{layer.name} {layer.kind}" if kinds else layer.name for layer in layers]
    more = len(shown) - _NAMED_IN_NOTES
    return ", ".join(shown[:_NAMED_IN_NOTES]) + (f" and {more} more" if more > 0 else "")

"""JSON graphs of the dnn-partitioning repository: layers or operators with latencies and sizes.

`nodes` have `id`, `fpgaLatency` (the accelerator's time, in ms), `size` (bytes of output and
parameters together), `isBackwardNode` and `colorClass`; `edges` have `sourceId`, `destId` and the
`size` of what passes. Three kinds of file are told apart:

* *Layer graphs for training*: the backward nodes are a copy of the forward ones, paired by colour
  class, and no edge joins the two. The file says what backward operations take, not what they read;
  that is derived as for PipeDream profiles (`layer_graph`).
* *Operator graphs for training*: edges lead from forward to backward nodes and say who reads what.
* *Graphs for inference*: forward nodes only.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterator
from decimal import Decimal
from typing import Any, NamedTuple

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, strict_json
from slackswap_opt.formats.layer_graph import Layer, training_step
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS, TrainingStep
from slackswap_opt.step.layer_rules import LayerRule
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

NAME = "dnn-partitioning graph (JSON with fpgaLatency)"

_KEYS = tuple(re.compile(rb'"' + key + rb'"\s*:') for key in (b"nodes", b"fpgaLatency"))
_NS_PER_MS = 10**6
_UNIT_NOTE = "Latencies are taken to be milliseconds, as in the profiles that such files come from."


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is such a graph, sound or not."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    return start.startswith(b"{") and all(key.search(start) for key in _KEYS)


def read(content: bytes, name: str) -> TrainingStep:
    """Read a step from the content of a file.

    Raises:
        InputError: with every fault, by node and edge.
    """
    document, faults = strict_json.parse(files.decode(content))
    if not isinstance(document, dict):
        raise InputError(*faults, f"the document is {shown(document)}, expected an object {{...}}")
    graph = _Graph(document, faults)
    if faults:
        raise InputError(*faults)
    if not graph.backward:
        return _operators(name, graph)
    crossing = any(
        graph.nodes[e.source].backward != graph.nodes[e.target].backward for e in graph.edges
    )
    return _operators(name, graph) if crossing else _layers(name, graph)


class _Place(NamedTuple):
    """The place of a fault; made into text only for one."""

    field: str
    number: int
    entry: dict[str, Any]

    def __str__(self) -> str:
        title = self.entry.get("name")
        return f"node {shown(title)}" if _is_name(title) else f"{self.field}[{self.number}]"


class _Node(NamedTuple):
    id: int
    name: str
    duration_ns: int
    size_bytes: int
    backward: bool
    color: int | None


class _Edge(NamedTuple):
    source: int
    target: int
    size_bytes: int | None


class _Graph:
    """Nodes and edges, with what is wrong with them."""

    def __init__(self, document: dict[str, Any], faults: list[str]) -> None:
        self.faults = faults
        self.rounded = 0
        entries = list(self._objects(document, "nodes"))
        if not entries and not faults:
            faults.append("there are no nodes; add at least one")
        names = Counter([name for _, entry in entries if _is_name(name := entry.get("name"))])
        self.nodes: dict[int, _Node] = {}
        for where, entry in entries:
            node = self._node(where, entry, names)
            if node.id in self.nodes:
                faults.append(f"{where}: the id {node.id} is there already; ids must be unique")
            self.nodes[node.id] = node
        self.edges: list[_Edge] = []
        for where, entry in self._objects(document, "edges"):
            source, target = self._id(where, entry, "sourceId"), self._id(where, entry, "destId")
            faults += [
                f"{where}: there is no node with the id {end}; add it"
                for end in (source, target)
                if end is not None and end not in self.nodes
            ]
            size = self._size(where, entry) if "size" in entry else None
            if source is not None and target is not None:
                self.edges.append(_Edge(source, target, size))
        self.forward = [node for node in self.nodes.values() if not node.backward]
        self.backward = [node for node in self.nodes.values() if node.backward]

    def output_bytes(self) -> dict[int, int]:
        """The size of what each node hands on, by id: the largest that its edges name."""
        sizes: dict[int, int] = {}
        for edge in self.edges:
            if edge.size_bytes is not None:
                sizes[edge.source] = max(edge.size_bytes, sizes.get(edge.source, 0))
        return sizes

    def notes(self) -> Iterator[str]:
        """What was assumed of figures."""
        yield _UNIT_NOTE
        if self.rounded:
            yield f"{self.rounded} sizes with fractions of a byte are rounded up."

    def _objects(
        self, document: dict[str, Any], field: str
    ) -> Iterator[tuple[_Place, dict[str, Any]]]:
        entries = document.get(field)
        if not isinstance(entries, list):
            self.faults.append(f"{field} is {shown(entries)}, expected a list [...]")
            return
        for index, entry in enumerate(entries):
            if isinstance(entry, dict):
                yield _Place(field, index, entry), entry
            else:
                self.faults.append(
                    f"{field}[{index}] is {shown(entry)}, expected an object {{...}}"
                )

    def _node(self, where: _Place, entry: dict[str, Any], names: Counter[Any]) -> _Node:
        identity = self._id(where, entry, "id")
        number = -1 - len(self.nodes) if identity is None else identity
        title: Any = entry.get("name")
        name: str = title if _is_name(title) else f"node{number}"
        if names[name] > 1:
            name = f"{name}#{number}"
        backward = entry.get("isBackwardNode", False)
        if backward not in (0, 1):
            self.faults.append(
                f"{where}: isBackwardNode is {shown(backward)}, expected true, false, 0 or 1"
            )
        color = entry.get("colorClass")
        if color is not None and not _is_whole(color):
            self.faults.append(f"{where}: colorClass is {shown(color)}, expected a whole number")
            color = None
        return _Node(
            number,
            name,
            round(_NS_PER_MS * self._number(where, entry, "fpgaLatency", MAX_NS // _NS_PER_MS)),
            self._size(where, entry),
            bool(backward),
            color,
        )

    def _id(self, where: _Place, entry: dict[str, Any], field: str) -> int | None:
        value: Any = entry.get(field)
        if _is_whole(value) and abs(value) < MAX_NS:
            return int(value)
        self.faults.append(f"{where}: {field} is {shown(value)}, expected a whole number")
        return None

    def _size(self, where: _Place, entry: dict[str, Any]) -> int:
        exact = self._number(where, entry, "size", MAX_BYTES)
        whole = math.ceil(exact)
        self.rounded += whole != exact
        return whole

    def _number(
        self, where: _Place, entry: dict[str, Any], field: str, limit: int
    ) -> Decimal | int:
        value = entry.get(field)
        if field not in entry:
            self.faults.append(f"{where}: {field} is missing; add it")
        elif isinstance(value, bool) or not isinstance(value, int | float):
            self.faults.append(f"{where}: {field} is {shown(value)}, expected a number")
        elif not 0 <= value <= limit:
            self.faults.append(f"{where}: {field} is {shown(value)}, expected 0 to {limit}")
        else:
            whole = int(value)
            return whole if whole == value else Decimal(repr(value))
        return 0


def _is_name(value: object) -> bool:
    return isinstance(value, str) and bool(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool)


# Layer graphs


def _layers(name: str, graph: _Graph) -> TrainingStep:
    partner = _partners(graph)
    color = {node.id: node.color for node in graph.nodes.values()}
    forward_edges = [e for e in graph.edges if not graph.nodes[e.source].backward]
    backward_edges = [e for e in graph.edges if graph.nodes[e.source].backward]
    ahead = {(color[e.source], color[e.target]) for e in forward_edges}
    back = {(color[e.source], color[e.target]) for e in backward_edges}
    if back not in (ahead, {(target, source) for source, target in ahead}):
        raise InputError(
            "the edges of the backward nodes are not those of the forward nodes, and no edge joins "
            "the two, so nothing says what the backward nodes read; add edges from forward nodes"
        )
    outputs = graph.output_bytes()
    same_direction = back == ahead
    gradient = {
        color[e.target]: e.size_bytes
        for e in backward_edges
        if same_direction and e.size_bytes is not None
    }  # of the output of the layer that the edge leads to
    inputs: dict[int, list[str]] = defaultdict(list)
    for edge in forward_edges:
        inputs[edge.target].append(graph.nodes[edge.source].name)
    layers = []
    for node in graph.forward:
        own = outputs.get(node.id, gradient.get(node.color, node.size_bytes))
        parameter_bytes = max(0, node.size_bytes - own)
        backward_ns = partner[node.id].duration_ns
        layers.append(
            Layer(
                name=node.name,
                kind="layer" if inputs[node.id] else "input",
                inputs=tuple(dict.fromkeys(inputs[node.id])),
                forward_ns=node.duration_ns,
                backward_ns=backward_ns,
                output_bytes=(own,),
                parameter_bytes=parameter_bytes,
                order=(0, node.id),
                rule=_rule(node, backward_ns, parameter_bytes, len(inputs[node.id])),
            )
        )
    step = training_step(name, layers)
    notes = (
        *graph.notes(),
        "Forward and backward nodes are paired by colour class; sizes of outputs are those of "
        "edges, what a node holds beyond its output are its parameters.",
        *step.notes,
        "The file does not say what layers are. The backward operation of one with parameters is "
        "taken to read its inputs, of one without its inputs and output; one with a single input "
        "that takes no time is a view.",
    )
    return TrainingStep(step.name, step.operations, step.tensors, notes)


_SAVES_INPUT = LayerRule(saves_input=True, starts_layer=True)
_SAVES_BOTH = LayerRule(saves_input=True, saves_output=True)
_VIEW = LayerRule(view=True)


def _rule(node: _Node, backward_ns: int, parameter_bytes: int, inputs: int) -> LayerRule:
    """What figures tell of a layer whose type the file does not name.

    Every type with parameters in the table of layers reads its inputs, and none its output.
    """
    if parameter_bytes:
        return _SAVES_INPUT
    if inputs == 1 and not node.duration_ns and not backward_ns:
        return _VIEW
    return _SAVES_BOTH


def _partners(graph: _Graph) -> dict[int, _Node]:
    """The backward node of each forward node, by id."""
    by_color: dict[int | None, tuple[list[_Node], list[_Node]]] = defaultdict(lambda: ([], []))
    for node in graph.nodes.values():
        by_color[node.color][node.backward].append(node)
    faults: list[str] = []
    for color, (ahead, back) in by_color.items():
        if color is None:
            faults.extend(
                f"node {shown(node.name)}: colorClass is missing; without edges between forward "
                "and backward nodes it is what pairs them"
                for node in ahead + back
            )
        elif len(ahead) != 1 or len(back) != 1:
            faults.append(
                f"colour class {color} has {len(ahead)} forward and {len(back)} backward nodes; "
                "without edges between forward and backward nodes it must have one of each"
            )
    if faults:
        raise InputError(*faults)
    return {ahead[0].id: back[0] for ahead, back in by_color.values()}


# Operator graphs


def _operators(name: str, graph: _Graph) -> TrainingStep:
    outputs = graph.output_bytes()
    incoming: dict[int, list[int]] = defaultdict(list)
    for edge in graph.edges:
        incoming[edge.target].append(edge.source)
        outputs.setdefault(edge.source, graph.nodes[edge.source].size_bytes)
    tensors: list[Tensor] = []
    operations: list[Operation] = []
    for node in [*graph.forward, *graph.backward]:
        given = node.id in outputs
        if not incoming[node.id] and not node.backward and not node.duration_ns:
            tensors.append(Tensor.of(node.name, outputs.get(node.id, node.size_bytes), static=True))
            continue
        if given:
            tensors.append(Tensor.of(node.name, outputs[node.id]))
        own = [] if node.backward else [node.size_bytes - outputs.get(node.id, 0)]
        weights = [Tensor.of(f"{node.name}.weight", size, static=True) for size in own if size > 0]
        tensors += weights
        operations.append(
            Operation(
                name=node.name,
                phase=Phase.BACKWARD if node.backward else Phase.FORWARD,
                duration_ns=node.duration_ns,
                reads=(
                    *(Value(graph.nodes[source].name) for source in incoming[node.id]),
                    *(Value(weight.name) for weight in weights),
                ),
                writes=(Value(node.name),) if given else (),
            )
        )
    notes = [
        *graph.notes(),
        "Each node makes one tensor, of the size that its edges name, and none where nobody reads "
        "it; forward nodes without inputs and latency are parameters or batch inputs.",
    ]
    if not graph.backward:
        notes.append("There are forward nodes only; a backward phase has to be added to train.")
    return TrainingStep.build(name, operations, tensors, notes)

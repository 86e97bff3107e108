"""A step as plain nodes and edges with attributes, for every format that knows graphs.

Nodes are operations, or tensors if their `role` says so. Two ways to write the same step go
together in one graph:

* *An edge between operations*: the second reads what the first makes. The size of that output is
  the attribute `size_bytes` of the first, or of the edge; an operation with several outputs names
  them on its edges (`tensor`). Parallel edges are one read.
* *Tensors as nodes*: an edge from an operation to a tensor is a write, one from a tensor to an
  operation a read. Views, in-place writes, static tensors and transfer sizes need this;
  `records_of` writes it, and reading it back gives the same step.
"""

from __future__ import annotations

import difflib
import functools
import json
import math
import operator
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from numbers import Integral, Real
from typing import Any, NamedTuple

from slackswap_opt.errors import InputError
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS, TrainingStep
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

NS_PER_UNIT = {"duration_ns": 1, "duration_us": 10**3, "duration_ms": 10**6, "duration_s": 10**9}
"""The attributes that may give a duration, and the nanoseconds of their unit."""

OPERATION_FIELDS = frozenset({
    "role", "name", "phase", *NS_PER_UNIT, "size_bytes", "parameter_bytes", "workspace_bytes",
    "layer", "recomputable", "random", "per_sample",
})  # fmt: skip
TENSOR_FIELDS = frozenset({
    "role", "name", "size_bytes", "transfer_bytes", "static", "aliases", "samples", "storage",
    "version",
})  # fmt: skip
EDGE_FIELDS = frozenset({"tensor", "size_bytes", "position"})
LISTS = ("aliases", "notes")
"""Attributes that hold several texts."""
FLAGS = ("static", "recomputable", "random", "per_sample")
NUMBERS = (
    *NS_PER_UNIT, "size_bytes", "transfer_bytes", "parameter_bytes", "workspace_bytes", "samples",
    "version", "position",
)  # fmt: skip

_SYNONYMS = {
    "size_bytes": ("size", "bytes", "memory", "mem", "output_size", "activation_size"),
    "duration_us": ("duration", "time", "latency", "cost", "runtime", "weight", "compute_time"),
    "phase": ("type", "pass", "stage"),
}
_PHASES = {phase.value: phase for phase in Phase}
_SHOWN = 60
_MOST_HINTS = 20
_MOST_TO_COMPARE = 2000
_ENOUGH = 1000
"""Faults after which no more are looked for."""


class Node(NamedTuple):
    """A node: its identity in the graph, its attributes, and what messages put before its name."""

    key: Hashable
    attributes: Mapping[str, Any]
    place: str = ""

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{self.place}node {brief(self.key)}"


class Edge(NamedTuple):
    """An edge by the keys of its ends, its attributes, and what messages put before them."""

    source: Hashable
    target: Hashable
    attributes: Mapping[str, Any]
    place: str = "edge"

    @property
    def where(self) -> str:
        """What messages call it."""
        return f"{self.place} {brief(self.source)} -> {brief(self.target)}"


def brief(value: object) -> str:
    """A value for a message, cut to a readable length."""
    try:
        text = json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        text = repr(value)
    text = text.encode(errors="backslashreplace").decode()
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}... ({len(text)} characters)"


def step_of(
    name: str, nodes: Sequence[Node], edges: Sequence[Edge], notes: Sequence[str] = ()
) -> TrainingStep:
    """The training step that nodes and edges describe.

    Operations keep the order of the nodes as far as the edges allow.

    Raises:
        InputError: with every fault of the attributes and edges together; then as
            `TrainingStep.build`.
    """
    return _Reader(nodes, edges).read(name, notes)


@dataclass(slots=True)
class _Made:
    """An operation and the outputs that its edges give it; `fields` are those edges do not."""

    node: Node
    name: str
    fields: dict[str, Any]
    size_bytes: int | None = 0
    parameter_bytes: int = 0
    outputs: dict[str, int | None] = field(default_factory=dict)
    reads: list[tuple[float, Value]] = field(default_factory=list)
    writes: list[tuple[float, Value]] = field(default_factory=list)


class _Reader:
    def __init__(self, nodes: Sequence[Node], edges: Sequence[Edge]) -> None:
        self.nodes = nodes
        self.edges = edges
        self.faults: list[str] = []
        self.unused: Counter[str] = Counter()
        self.hints = _MOST_HINTS
        self.made: dict[Hashable, _Made] = {}
        self.values: dict[Hashable, Value] = {}
        self.tensors: list[Tensor] = []

    def read(self, name: str, notes: Sequence[str]) -> TrainingStep:
        for key, count in Counter([node.key for node in self.nodes]).items():
            if count > 1:
                self.faults.append(f"{count} nodes have the id {brief(key)}; ids must be unique")
        for node in self.nodes:
            self._add_node(node)
            self._stop_if_enough()
        for edge in self.edges:
            self._add_edge(edge)
            self._stop_if_enough()
        self._check_storages()
        for made in self.made.values():
            self._add_outputs(made)
        if self.faults:
            raise InputError(*self.faults)
        operations = [self._finished(made) for made in self.made.values()]
        return TrainingStep.build(name, operations, self.tensors, [*notes, *self._notes()])

    def _stop_if_enough(self) -> None:
        if len(self.faults) > _ENOUGH:
            raise InputError(*self.faults)

    # Nodes

    def _add_node(self, node: Node) -> None:
        role = node.attributes.get("role", "operation")
        if not node.attributes:
            self.faults.append(
                f"{node.where} has no attributes; add its duration, or mend the edge that should "
                "name another node"
            )
            self.made[node.key] = _Made(node, str(node.key), {})
        elif role == "operation":
            self._add_operation(node)
        elif role == "tensor":
            self._add_tensor(node)
        else:
            self.faults.append(
                f'{node.where}: role is {brief(role)}, expected "operation" or "tensor"'
            )

    def _add_operation(self, node: Node) -> None:
        self._look_for_slips(node, OPERATION_FIELDS)
        name = self._name(node)
        given = node.attributes.get("phase", Phase.FORWARD)
        phase = _PHASES.get(given) if isinstance(given, str) else None
        if phase is None:
            close = difflib.get_close_matches(str(given)[:100].lower(), tuple(Phase), n=1)
            hint = f"; did you mean {brief(close[0])}?" if close else ""
            self.faults.append(
                f"{node.where}: phase is {brief(given)}, expected forward, backward or "
                f"optimizer{hint}"
            )
        fields = {
            "phase": phase,
            "duration_ns": self._duration_ns(node),
            "workspace_bytes": self._whole(node, "workspace_bytes") or 0,
            "layer": self._text(node, "layer"),
            "recomputable": self._flag(node, "recomputable", default=True),
            "random": self._flag(node, "random", default=False),
            "per_sample": self._flag(node, "per_sample", default=False),
        }
        self.made[node.key] = _Made(
            node,
            name,
            fields,
            self._whole(node, "size_bytes"),
            self._whole(node, "parameter_bytes") or 0,
        )

    def _add_tensor(self, node: Node) -> None:
        self._look_for_slips(node, TENSOR_FIELDS)
        if "storage" in node.attributes:
            version = self._whole(node, "version", least=1)
            if "version" not in node.attributes:
                self.faults.append(
                    f"{node.where}: version is missing; with storage, add the number of the "
                    "in-place write that makes it"
                )
            self.values[node.key] = Value(self._text(node, "storage"), version or 1)
            return
        size = self._whole(node, "size_bytes")
        if "size_bytes" not in node.attributes:
            self.faults.append(f"{node.where}: {self._missing_size(node.attributes)}")
        given = self._whole(node, "transfer_bytes")
        aliases = self._aliases(node) if "aliases" in node.attributes else ()
        tensor = Tensor(
            self._name(node),
            size or 0,
            (size or 0) if given is None else given,
            self._flag(node, "static", default=False),
            aliases,
            self._whole(node, "samples") or 0,
        )
        self.tensors.append(tensor)
        self.values[node.key] = Value(tensor.name)

    def _aliases(self, node: Node) -> tuple[str, ...]:
        given = node.attributes["aliases"]
        if isinstance(given, list | tuple) and all(isinstance(name, str) for name in given):
            return tuple(given)
        self.faults.append(f"{node.where}: aliases is {brief(given)}, expected names in a list")
        return ()

    def _check_storages(self) -> None:
        known = {tensor.name for tensor in self.tensors}
        for node in self.nodes:
            value = self.values.get(node.key)
            if value is not None and value.version and value.tensor not in known:
                self.faults.append(
                    f"{node.where}: there is no tensor {brief(value.tensor)} to be the storage; "
                    "add a node with role tensor and this name"
                )

    # Edges

    def _add_edge(self, edge: Edge) -> None:
        self._look_for_slips(edge, EDGE_FIELDS)
        writer, read = self._end(edge, edge.source)
        reader, written = self._end(edge, edge.target)
        position = self._whole(edge, "position")
        at = math.inf if position is None else position
        size = self._whole(edge, "size_bytes")
        if read and written:
            self.faults.append(
                f"{edge.where}: both ends are tensors; an edge joins an operation and what it "
                "reads or writes"
            )
        elif writer and written:
            writer.writes.append((at, written))
        elif read and reader:
            reader.reads.append((at, read))
        elif writer and reader:
            self._add_output(edge, writer, size)
            name = edge.attributes.get("tensor", writer.name)
            if isinstance(name, str):
                reader.reads.append((at, Value(name)))

    def _end(self, edge: Edge, key: Hashable) -> tuple[_Made | None, Value | None]:
        """The operation or the tensor at an end of an edge."""
        made, value = self.made.get(key), self.values.get(key)
        if made is None and value is None:
            self.faults.append(f"{edge.where}: there is no node {brief(key)}{self._close(key)}")
        return made, value

    def _add_output(self, edge: Edge, writer: _Made, size: int | None) -> None:
        """The output that an edge between operations stands for."""
        name = edge.attributes.get("tensor", writer.name)
        if not isinstance(name, str) or not name:
            self.faults.append(f"{edge.where}: tensor is {brief(name)}, expected a name")
            return
        known = writer.outputs.setdefault(name, size)
        if known is None:
            writer.outputs[name] = size
        elif size is not None and size != known:
            mend = (
                "make them the same"
                if "tensor" in edge.attributes
                else "an operation with several outputs names them with the edges' attribute tensor"
            )
            self.faults.append(
                f"{edge.where}: size_bytes is {size}, but {known} on another edge from the same "
                f"output; {mend}"
            )

    def _add_outputs(self, made: _Made) -> None:
        """Sizes of the outputs that no tensor node stands for."""
        name, node = made.name, made.node
        if made.size_bytes is not None:
            if made.outputs.setdefault(name, made.size_bytes) not in (None, made.size_bytes):
                self.faults.append(
                    f"{node.where}: size_bytes is {made.size_bytes}, but {made.outputs[name]} on "
                    "an edge from it; make them the same, or name outputs with the edges' "
                    "attribute tensor"
                )
            made.outputs[name] = made.size_bytes
        for output, size in made.outputs.items():
            if size is not None:
                self.tensors.append(Tensor.of(output, size))
            elif output == name:
                if "size_bytes" not in node.attributes:
                    self.faults.append(f"{node.where}: {self._missing_size(node.attributes)}")
            else:
                self.faults.append(
                    f"{node.where}: no edge gives the size_bytes of its output {brief(output)}; "
                    "add it to one"
                )
        if made.parameter_bytes:
            self.tensors.append(Tensor.of(f"{name}.weight", made.parameter_bytes, static=True))

    def _finished(self, made: _Made) -> Operation:
        for group in (made.writes, made.reads):
            if len(group) > 1:
                group.sort(key=operator.itemgetter(0))
        reads = [value for _, value in made.reads]
        writes = [value for _, value in made.writes]
        if made.parameter_bytes:
            reads.append(Value(f"{made.name}.weight"))
        if made.outputs:
            writes += map(Value, made.outputs)
        return Operation(made.name, reads=tuple(reads), writes=tuple(writes), **made.fields)

    # Attributes

    def _name(self, node: Node) -> str:
        name = node.attributes.get("name", node.key)
        if not isinstance(name, str):
            name = str(name) if "name" not in node.attributes else ""
        if not name:
            self.faults.append(
                f"{node.where}: name is {brief(node.attributes.get('name'))}, expected text that "
                "is not empty"
            )
        return name

    def _text(self, node: Node, field_name: str) -> str:
        value = node.attributes.get(field_name, "")
        if isinstance(value, str):
            return value
        self.faults.append(f"{node.where}: {field_name} is {brief(value)}, expected text")
        return ""

    def _flag(self, node: Node, field_name: str, *, default: bool) -> bool:
        value = node.attributes.get(field_name, default)
        if isinstance(value, bool):
            return value
        self.faults.append(f"{node.where}: {field_name} is {brief(value)}, expected true or false")
        return default

    def _whole(self, owner: Node | Edge, field_name: str, least: int = 0) -> int | None:
        """A whole number, or None where it is left out or at fault."""
        if field_name not in owner.attributes:
            return None
        value = owner.attributes[field_name]
        if type(value) is int or (isinstance(value, Integral) and not isinstance(value, bool)):
            number = int(value)
            if least <= number <= MAX_BYTES:
                return number
            self.faults.append(
                f"{owner.where}: {field_name} is {brief(number)}, expected {least} to {MAX_BYTES}"
            )
            return None
        mend = ""
        if isinstance(value, float) and value.is_integer() and abs(value) <= MAX_BYTES:
            mend = f"; write {int(value)}"
        self.faults.append(
            f"{owner.where}: {field_name} is {brief(value)}, expected a whole number written as an "
            f"integer{mend}"
        )
        return None

    def _duration_ns(self, node: Node) -> int:
        given = [unit for unit in NS_PER_UNIT if unit in node.attributes]
        if len(given) != 1:
            other = next((s for s in _SYNONYMS["duration_us"] if s in node.attributes), None)
            hint = f"; if {other!r} is it, say its unit: duration_us, ..." if other else ""
            self.faults.append(
                f"{node.where} has {' and '.join(given)}; keep one"
                if given
                else f"{node.where}: the duration is missing; add one of "
                f"{', '.join(NS_PER_UNIT)}{hint}"
            )
            return 0
        (unit,) = given
        value = node.attributes[unit]
        if type(value) is int and 0 <= value * NS_PER_UNIT[unit] <= MAX_NS:
            return value * NS_PER_UNIT[unit]
        if isinstance(value, bool) or not isinstance(value, Real) or not math.isfinite(value):
            self.faults.append(f"{node.where}: {unit} is {brief(value)}, expected a finite number")
            return 0
        exact = Decimal(int(value)) if isinstance(value, Integral) else Decimal(repr(float(value)))
        nanoseconds = exact * NS_PER_UNIT[unit]
        if not 0 <= nanoseconds <= MAX_NS:
            self.faults.append(
                f"{node.where}: {unit} is {brief(value)}, expected 0 to "
                f"{MAX_NS / NS_PER_UNIT[unit]:.16g}"
            )
            return 0
        return round(nanoseconds)

    def _missing_size(self, attributes: Mapping[str, Any]) -> str:
        other = next((s for s in _SYNONYMS["size_bytes"] if s in attributes), None)
        return "size_bytes, the size of its output, is missing; " + (
            f"if {other!r} is it, in bytes, call it size_bytes" if other else "add it"
        )

    def _look_for_slips(self, owner: Node | Edge, known: frozenset[str]) -> None:
        """Attributes that are none of ours: a slip of the pen is a fault, others are counted."""
        if known.issuperset(owner.attributes):
            return
        for name in owner.attributes:
            if name in known:
                continue
            close = _slip(str(name)[:100], known)
            if close and close not in owner.attributes:
                self.faults.append(
                    f"{owner.where}: there is no attribute {brief(name)}; did you mean "
                    f"{brief(close)}?"
                )
            else:
                self.unused[str(name)[:_SHOWN]] += 1

    def _close(self, key: Hashable) -> str:
        many = len(self.nodes) > _MOST_TO_COMPARE
        if many or self.hints <= 0 or not isinstance(key, str) or len(key) > 100:
            return "; add it"
        self.hints -= 1
        known = [k for k in (*self.made, *self.values) if isinstance(k, str) and len(k) <= 100]
        close = difflib.get_close_matches(key, known, n=1)
        return f"; did you mean {brief(close[0])}?" if close else "; add it"

    def _notes(self) -> Iterator[str]:
        if self.unused:
            yield f"Attributes of the graph that are not used: {', '.join(sorted(self.unused))}."


@functools.lru_cache(maxsize=1000)
def _slip(name: str, known: frozenset[str]) -> str:
    """The attribute that a name is close to; none, for most."""
    return next(iter(difflib.get_close_matches(name, known, n=1, cutoff=0.8)), "")


def records_of(
    step: TrainingStep,
) -> tuple[list[tuple[str, dict[str, Any]]], list[tuple[str, str, dict[str, Any]]]]:
    """Nodes and edges that `step_of` reads as the same step: tensors are nodes of their own.

    Returns:
        Nodes as (id, attributes) and edges as (source, target, attributes).
    """
    taken = {op.name for op in step.operations}
    key_of: dict[Value, str] = {}
    nodes = [(op.name, _operation_attributes(op)) for op in step.operations]
    written = [value for op in step.operations for value in op.writes if value.version]
    for tensor in step.tensors:
        value = Value(tensor.name)
        key_of[value] = _free(tensor.name, taken)
        attributes = _tensor_attributes(tensor)
        if key_of[value] != tensor.name:
            attributes["name"] = tensor.name
        nodes.append((key_of[value], attributes))
    for value in written:
        key_of[value] = _free(str(value), taken)
        attributes = {"role": "tensor", "storage": value.tensor, "version": value.version}
        nodes.append((key_of[value], attributes))
    edges = []
    for op in step.operations:
        for position, value in enumerate(op.reads):
            edges.append((key_of[value], op.name, {"position": position}))
        for position, value in enumerate(op.writes):
            edges.append((op.name, key_of[value], {"position": position}))
    return nodes, edges


def _free(wanted: str, taken: set[str]) -> str:
    while wanted in taken:
        wanted = f"tensor {wanted}"
    taken.add(wanted)
    return wanted


def _operation_attributes(op: Operation) -> dict[str, Any]:
    attributes: dict[str, Any] = {
        "role": "operation",
        "phase": op.phase.value,
        "duration_ns": op.duration_ns,
    }
    if op.workspace_bytes:
        attributes["workspace_bytes"] = op.workspace_bytes
    if op.layer:
        attributes["layer"] = op.layer
    if not op.recomputable:
        attributes["recomputable"] = False
    if op.random:
        attributes["random"] = True
    if op.per_sample:
        attributes["per_sample"] = True
    return attributes


def _tensor_attributes(tensor: Tensor) -> dict[str, Any]:
    attributes: dict[str, Any] = {"role": "tensor", "size_bytes": tensor.size_bytes}
    if tensor.transfer_bytes != tensor.size_bytes:
        attributes["transfer_bytes"] = tensor.transfer_bytes
    if tensor.static:
        attributes["static"] = True
    if tensor.aliases:
        attributes["aliases"] = list(tensor.aliases)
    if tensor.samples:
        attributes["samples"] = tensor.samples
    return attributes


def texts(value: object) -> Iterable[str]:
    """The texts of a note or of several, as graphs carry them."""
    if isinstance(value, str):
        return (value,)
    if isinstance(value, list | tuple):
        return tuple(item for item in value if isinstance(item, str))
    return ()

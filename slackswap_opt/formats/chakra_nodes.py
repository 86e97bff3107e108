"""The nodes of an execution trace, in the spellings of PyTorch's observer and of Chakra's tools.

A node names the nodes it depends on and, in PyTorch's own traces, each tensor it touches as
`[tensor, storage, offset, elements, bytes per element, device]`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, NamedTuple, TypeGuard

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS

FAULTS_SHOWN = 50
_SHOWN_CYCLE = 20
_DEEPEST_LIST = 4
_TYPES = {"inputs": "input_types", "outputs": "output_types"}
"""Where the types of values are in old traces."""
_ONLY_INTEGERS = frozenset({int})
_LARGEST = 2**63
_NS_PER_US = 1000
_DIGITS = re.compile(r"[0-9]{1,20}")
_LABEL = "[pytorch|"
"""Begins the names of nodes for processes and threads; the first is its own parent."""
_TENSOR = "Tensor("
_ATTRIBUTES = frozenset({"scope", "is_cpu_op", "stream"})
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_DURATIONS = ("exclusive_dur", "dur", "duration_micros", "durationMicros", "duration_us", "runtime")
"""Where the spellings have a node's time, in microseconds."""


class Ref(NamedTuple):
    """A tensor that a node touches.

    Attributes:
        storage: number of the memory it is in.
        extent_bytes: where its last element ends.
        device: such as `cuda:0`; empty if not given.
    """

    storage: int
    extent_bytes: int
    device: str


@dataclass(eq=False, slots=True)
class TraceNode:
    """One node.

    Attributes:
        number: its id.
        name: as written.
        parents: ids of its control dependencies; the first is the node that called it.
        data: ids of its data dependencies.
        duration_ns: its time; None if it has none.
        on_device: whether it is a kernel or a copy on a device.
        stream: of a kernel.
        start_us: when it began, if given.
        reads: tensors among its inputs.
        writes: tensors among its outputs.
        scope: PyTorch's number for what kind of function it is, if given.
    """

    number: int
    name: str
    parents: tuple[int, ...]
    data: tuple[int, ...]
    duration_ns: int | None
    on_device: bool
    stream: str
    start_us: float | None
    reads: list[Ref] = field(default_factory=list)
    writes: list[Ref] = field(default_factory=list)
    scope: object = None


def nodes_of(document: Any) -> list[TraceNode]:
    """The nodes of a trace, checked, in the order of the file.

    Raises:
        InputError: with every fault: fields, repeated and unknown ids, cycles.
    """
    listed = None
    if isinstance(document, dict):
        listed = document.get("nodes", document.get("workload_graph"))
    if not isinstance(listed, list) or not listed:
        raise InputError(
            f"nodes is {shown(listed)}, expected a list of nodes with at least one; "
            "export the trace again"
        )
    return _Nodes(listed).checked()


class _Where(NamedTuple):
    """The place of a fault; made into text only for one."""

    number: int
    name: str

    def __str__(self) -> str:
        return f"node {self.number} ({shown(self.name)})"


class _Nodes:
    """What the nodes have said so far."""

    def __init__(self, listed: list[Any]) -> None:
        self.listed = listed
        self.faults: list[str] = []
        self.nodes: dict[int, TraceNode] = {}
        self.entries: dict[int, dict[str, Any]] = {}

    def checked(self) -> list[TraceNode]:
        for position, entry in enumerate(self.listed):
            self._add(position, entry)
        self.faults += self._dangling()
        if not self.faults:
            self.faults += self._cycles()
        if not any(node.reads or node.writes for node in self.nodes.values()):
            self.faults.append(
                "no node has tensors with storages (inputs and outputs with values), so no memory "
                "is known; use the trace of PyTorch's ExecutionTraceObserver, linked with a "
                "profiler trace"
            )
        if all(node.duration_ns is None for node in self.nodes.values()):
            self.faults.append(
                "no node has a duration; link the trace with the profiler trace of the same run "
                "(chakra_trace_link)"
            )
        if self.faults:
            more = len(self.faults) - FAULTS_SHOWN
            extra = [f"and {more} more faults"] if more > 0 else []
            raise InputError(*self.faults[:FAULTS_SHOWN], *extra)
        return list(self.nodes.values())

    def _add(self, position: int, entry: Any) -> None:
        if not isinstance(entry, dict):
            self.faults.append(f"nodes[{position}] is {shown(entry)}, expected an object")
            return
        number = _whole(_either(entry, "id", "Id"))
        name = _either(entry, "name", "Name")
        if number is None or not isinstance(name, str):
            self.faults.append(
                f"nodes[{position}]: id is {shown(_either(entry, 'id', 'Id'))} and name "
                f"{shown(name)}, expected a whole number and text"
            )
            return
        where = _Where(number, name)
        if number in self.nodes:
            self.faults.append(f"{where}: the id is that of another node too; ids must be unique")
            return
        attributes = _attributes(entry)
        category = entry.get("cat")
        cpu = entry.get("is_cpu_op", attributes.get("is_cpu_op"))
        stream = entry.get("stream", attributes.get("stream"))
        on_device = (
            (isinstance(category, str) and category.lower() in _DEVICE_CATEGORIES)
            or cpu is False
            or (stream is not None and cpu is not True and "cat" in entry)
        )
        start = entry.get("ts")
        parents = self._ids(where, entry, ("ctrl_deps", "ctrlDeps", "parent"), number, name)
        self.nodes[number] = TraceNode(
            number,
            name,
            parents,
            self._ids(where, entry, ("data_deps", "dataDeps"), None, name),
            self._duration(where, entry),
            on_device,
            str(stream),
            float(start) if _is_number(start) else None,
            self._refs(where, entry, "inputs", parents),
            self._refs(where, entry, "outputs", parents),
            attributes.get("scope"),
        )
        self.entries[number] = entry

    def _ids(
        self,
        where: _Where,
        entry: dict[str, Any],
        keys: tuple[str, ...],
        own: int | None,
        name: str,
    ) -> tuple[int, ...]:
        given = None
        for key in keys:
            if key in entry:
                given = entry[key]
                break
        if given is None:
            return ()
        ids: list[int] = []
        for value in given if isinstance(given, list) else (given,):
            number = _whole(value)
            if number is None:
                self.faults.append(f"{where}: {key} is {shown(given)}, expected ids of nodes")
                return ()
            ids.append(number)
        if name.startswith(_LABEL):
            ids = [number for number in ids if number not in (own, 0)]
        return tuple(ids)

    def _duration(self, where: _Where, entry: dict[str, Any]) -> int | None:
        for key in _DURATIONS:
            value: Any = entry.get(key)
            if value is not None:
                break
        else:
            return None
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)  # protobuf writes 64-bit integers as text
        if not _is_number(value) or not 0 <= value <= MAX_NS / _NS_PER_US:
            self.faults.append(
                f"{where}: {key} is {shown(entry[key])}, expected microseconds, 0 to "
                f"{MAX_NS // _NS_PER_US}"
            )
            return None
        exact = value if isinstance(value, int) else Fraction(value)
        return round(exact * _NS_PER_US)

    def _refs(
        self, where: _Where, entry: dict[str, Any], key: str, parents: tuple[int, ...]
    ) -> list[Ref]:
        given, of_types = entry.get(key), _TYPES[key]
        owner = self.entries.get(parents[0]) if parents else None
        if owner and owner.get(key) == given and owner.get(of_types) == entry.get(of_types):
            here = self.nodes[parents[0]]  # a kernel has those of its operator, as a rule
            return here.reads if key == "inputs" else here.writes
        if isinstance(given, dict):
            values, types = given.get("values"), given.get("types")
        else:  # before version 1.0.2
            values, types = given, entry.get(of_types)
        found: list[Ref] = []
        if isinstance(values, list) and isinstance(types, list):
            for value, kind in zip(values, types, strict=False):
                if isinstance(kind, str) and _TENSOR in kind:
                    self._add_tensors(where, key, value, found)
        return found

    def _add_tensors(
        self, where: _Where, key: str, value: Any, found: list[Ref], depth: int = 0
    ) -> None:
        """Add a tensor, or each tensor of a list."""
        if not isinstance(value, list) or not value or depth > _DEEPEST_LIST:
            return
        if isinstance(value[0], list):
            for inner in value:
                self._add_tensors(where, key, inner, found, depth + 1)
            return
        numbers = value[:5]
        whole = len(numbers) == 5 and _ONLY_INTEGERS.issuperset(map(type, numbers))
        if not whole or min(numbers) < 0 or max(numbers) > _LARGEST:
            self.faults.append(
                f"{where}: {key} has the tensor {str(value)[:60]}, expected [tensor, storage, "
                "offset, elements, bytes per element, device]"
            )
            return
        _, storage, offset, elements, item = numbers
        extent = (offset + elements) * item
        if extent > MAX_BYTES:
            self.faults.append(f"{where}: {key} has a tensor of {extent} bytes; too large")
            return
        if extent and elements:
            device = value[5] if len(value) > 5 and isinstance(value[5], str) else ""
            found.append(Ref(storage, extent, device))

    def _dangling(self) -> Iterator[str]:
        for node in self.nodes.values():
            for kind, ids in (("control", node.parents), ("data", node.data)):
                if ids and not self.nodes.keys() >= {*ids}:
                    unknown = sorted({number for number in ids if number not in self.nodes})
                    named = ", ".join(map(str, unknown[:10]))
                    yield (
                        f"node {node.number} ({shown(node.name)}): its {kind} dependencies name "
                        f"{named}, which no node defines; the trace is cut out of a larger one, "
                        "export all of it"
                    )

    def _cycles(self) -> Iterator[str]:
        if all(
            source < node.number
            for node in self.nodes.values()
            for source in (*node.parents, *node.data)
        ):
            return  # as tracers number nodes, each after those it depends on
        graph: nx.DiGraph[int] = nx.DiGraph()
        graph.add_nodes_from(self.nodes)
        graph.add_edges_from(
            (source, node.number)
            for node in self.nodes.values()
            for source in (*node.parents, *node.data)
        )
        if nx.is_directed_acyclic_graph(graph):
            return
        cycle = [edge[0] for edge in nx.find_cycle(graph)]
        named = [f"{number} ({shown(self.nodes[number].name)})" for number in cycle]
        path = " -> ".join([*named[:_SHOWN_CYCLE], named[0]])
        yield f"the nodes form a cycle: {path}; remove one dependency"


def _either(entry: dict[str, Any], key: str, other: str) -> Any:
    """What an entry has under the first of two spellings of a key that it knows."""
    return entry[key] if key in entry else entry.get(other)


def _whole(value: Any) -> int | None:
    """An id: a whole number, which protobuf writes as text."""
    if type(value) is int:
        return value if 0 <= value < 2**64 else None
    return int(value) if isinstance(value, str) and _DIGITS.fullmatch(value) else None


def _is_number(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and math.isfinite(value)


def _attributes(entry: dict[str, Any]) -> dict[str, Any]:
    """Those that are used: PyTorch's list of name, type, value; Chakra's of name and a typed value.

    In old traces they are plain keys.
    """
    found = {"scope": entry["scope"]} if "scope" in entry else {}
    listed = _either(entry, "attrs", "attr")
    for attribute in listed if isinstance(listed, list) else ():
        name = attribute.get("name") if isinstance(attribute, dict) else None
        if isinstance(name, str) and name in _ATTRIBUTES:
            values = [value for key, value in attribute.items() if key not in ("name", "type")]
            found[name] = values[0] if values else None
    return found

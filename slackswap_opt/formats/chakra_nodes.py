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
from typing import Any, TypeGuard

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS

FAULTS_SHOWN = 50
_SHOWN_CYCLE = 20
_DEEPEST_LIST = 4
_NS_PER_US = 1000
_LABEL = "[pytorch|"
"""Begins the names of nodes for processes and threads; the first is its own parent."""
_TENSOR = "Tensor("
_DEVICE_CATEGORIES = frozenset({"kernel", "gpu_memcpy", "gpu_memset"})
_DURATIONS = ("exclusive_dur", "dur", "duration_micros", "durationMicros", "duration_us", "runtime")
"""Where the spellings have a node's time, in microseconds."""


@dataclass(frozen=True, slots=True)
class Ref:
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
        attributes: PyTorch's, by name.
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
    attributes: dict[str, Any] = field(default_factory=dict)


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


@dataclass(frozen=True, slots=True)
class _Where:
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
        number = _whole(_first(entry, "id", "Id"))
        name = _first(entry, "name", "Name")
        if number is None or not isinstance(name, str):
            self.faults.append(
                f"nodes[{position}]: id is {shown(_first(entry, 'id', 'Id'))} and name "
                f"{shown(name)}, expected a whole number and text"
            )
            return
        where = _Where(number, name)
        if number in self.nodes:
            self.faults.append(f"{where}: the id is that of another node too; ids must be unique")
            return
        attributes = _attributes(entry)
        category = entry.get("cat")
        cpu = _first(entry, "is_cpu_op", default=attributes.get("is_cpu_op"))
        stream = _first(entry, "stream", default=attributes.get("stream"))
        on_device = (
            (isinstance(category, str) and category.lower() in _DEVICE_CATEGORIES)
            or cpu is False
            or (stream is not None and cpu is not True and "cat" in entry)
        )
        start = entry.get("ts")
        self.nodes[number] = TraceNode(
            number,
            name,
            self._ids(where, entry, ("ctrl_deps", "ctrlDeps", "parent"), own=number, name=name),
            self._ids(where, entry, ("data_deps", "dataDeps"), own=None, name=name),
            self._duration(where, entry),
            on_device,
            str(stream),
            float(start) if _is_number(start) else None,
            list(self._refs(where, entry, "inputs")),
            list(self._refs(where, entry, "outputs")),
            attributes,
        )

    def _ids(
        self,
        where: _Where,
        entry: dict[str, Any],
        keys: tuple[str, ...],
        own: int | None,
        name: str,
    ) -> tuple[int, ...]:
        key = next((key for key in keys if key in entry), "")
        given = entry.get(key)
        if given is None:
            return ()
        listed = given if isinstance(given, list) else [given]
        ids = [_whole(value) for value in listed]
        if any(number is None for number in ids):
            self.faults.append(f"{where}: {key} is {shown(given)}, expected ids of nodes")
            return ()
        root = name.startswith(_LABEL)
        return tuple(n for n in ids if n is not None and not (root and n in (own, 0)))

    def _duration(self, where: _Where, entry: dict[str, Any]) -> int | None:
        key = next((key for key in _DURATIONS if entry.get(key) is not None), None)
        if key is None:
            return None
        value: Any = entry[key]
        if isinstance(value, str) and re.fullmatch(r"[0-9]{1,18}", value):
            value = int(value)  # protobuf writes 64-bit integers as text
        if not _is_number(value) or not 0 <= value <= MAX_NS / _NS_PER_US:
            self.faults.append(
                f"{where}: {key} is {shown(entry[key])}, expected microseconds, 0 to "
                f"{MAX_NS // _NS_PER_US}"
            )
            return None
        return round(Fraction(value) * _NS_PER_US)

    def _refs(self, where: _Where, entry: dict[str, Any], key: str) -> Iterator[Ref]:
        given = entry.get(key)
        if isinstance(given, dict):
            values, types = given.get("values"), given.get("types")
        else:  # before version 1.0.2
            values, types = given, entry.get(f"{key.removesuffix('s')}_types")
        if not isinstance(values, list) or not isinstance(types, list):
            return
        for value, kind in zip(values, types, strict=False):
            if isinstance(kind, str) and _TENSOR in kind:
                yield from self._tensors(where, key, value)

    def _tensors(self, where: _Where, key: str, value: Any, depth: int = 0) -> Iterator[Ref]:
        """A tensor, or each tensor of a list."""
        if not isinstance(value, list) or not value or depth > _DEEPEST_LIST:
            return
        if isinstance(value[0], list):
            for inner in value:
                yield from self._tensors(where, key, inner, depth + 1)
            return
        numbers = value[:5]
        whole = len(numbers) == 5 and set(map(type, numbers)) == {int}
        if not whole or min(numbers) < 0 or max(numbers) > 2**63:
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
        device = value[5] if len(value) > 5 and isinstance(value[5], str) else ""
        if extent and elements:
            yield Ref(storage, extent, device)

    def _dangling(self) -> Iterator[str]:
        for node in self.nodes.values():
            for kind, ids in (("control", node.parents), ("data", node.data)):
                unknown = sorted({number for number in ids if number not in self.nodes})
                if unknown:
                    named = ", ".join(map(str, unknown[:10]))
                    yield (
                        f"node {node.number} ({shown(node.name)}): its {kind} dependencies name "
                        f"{named}, which no node defines; the trace is cut out of a larger one, "
                        "export all of it"
                    )

    def _cycles(self) -> Iterator[str]:
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


def _first(entry: dict[str, Any], *keys: str, default: Any = None) -> Any:
    return next((entry[key] for key in keys if key in entry), default)


def _whole(value: Any) -> int | None:
    """An id: a whole number, which protobuf writes as text."""
    if isinstance(value, str) and re.fullmatch(r"[0-9]{1,20}", value):
        return int(value)
    return value if type(value) is int and 0 <= value < 2**64 else None


def _is_number(value: Any) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def _attributes(entry: dict[str, Any]) -> dict[str, Any]:
    """PyTorch's list of name, type, value; Chakra's of name and a typed value; old plain keys."""
    found: dict[str, Any] = {
        key: entry[key] for key in ("seq_id", "scope", "fw_parent", "fw_tid") if key in entry
    }
    listed = _first(entry, "attrs", "attr")
    for attribute in listed if isinstance(listed, list) else ():
        if isinstance(attribute, dict) and isinstance(attribute.get("name"), str):
            values = [value for key, value in attribute.items() if key not in ("name", "type")]
            found[attribute["name"]] = values[0] if values else None
    return found

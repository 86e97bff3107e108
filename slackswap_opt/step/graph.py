"""The training step: a validated DAG of operations in one fixed execution order."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import chain
from operator import attrgetter
from typing import TYPE_CHECKING, Any

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.step.indexed import IndexedStep
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

if TYPE_CHECKING:
    from slackswap_opt.step.backward import Rules

MAX_NS = 2**53
"""Longest duration accepted (104 days): integers stay exact in every format and in floats."""
MAX_BYTES = 2**50
"""Largest tensor accepted (1 PiB), for the same reason."""


@dataclass(frozen=True)
class TrainingStep:
    """Operations in execution order, and the storages they pass.

    Build one with `TrainingStep.build`, which validates and orders; the constructor does neither.

    Attributes:
        name: what tables and files call it.
        operations: in execution order, which no planner changes.
        tensors: in order of their first write (static and unused ones last).
        notes: what a reader or builder assumed, one sentence each; shown by `inspect`.
    """

    name: str
    operations: tuple[Operation, ...]
    tensors: tuple[Tensor, ...]
    notes: tuple[str, ...] = ()

    @classmethod
    def build(
        cls,
        name: str,
        operations: Iterable[Operation],
        tensors: Iterable[Tensor],
        notes: Sequence[str] = (),
    ) -> TrainingStep:
        """Validate, resolve aliases and put the operations into a deterministic order.

        The order given is kept where it respects every dependency; otherwise operations run in
        the topological order that always takes the earliest given operation that is ready.

        Raises:
            InputError: with every fault found: duplicate or unknown names, sizes and durations
                out of range, values read but never written, versions written twice or out of
                order, numbers of samples that contradict each other, cycles (printed).
        """
        ops, storages = list(operations), list(tensors)
        _refuse_other_types(ops, storages)
        faults = list(_name_faults(ops, storages)) + list(_range_faults(ops, storages))
        if faults:
            raise InputError(*faults)
        ops = _resolve_aliases(ops, storages)
        by_name = {t.name: t for t in storages}
        runs = _runs_as_given(ops, by_name)
        faults = [] if runs else list(_value_faults(ops, by_name))
        faults = faults or list(_sample_faults(ops, by_name))
        if faults:
            raise InputError(*faults)
        ordered = ops if runs else _execution_order(ops)
        first_write: dict[str, int] = {}
        for position, op in enumerate(ordered):
            for value in op.writes:
                first_write.setdefault(value.tensor, position)
        never = len(ordered)
        storages.sort(key=lambda t: first_write.get(t.name, never))
        return cls(name, tuple(ordered), tuple(storages), tuple(notes))

    @classmethod
    def from_networkx(cls, graph: nx.Graph[Any], name: str | None = None) -> TrainingStep:
        """The step that a directed graph describes; see `slackswap_opt.step.networkx_io`.

        Raises:
            InputError: with every fault, by node and edge.
        """
        from slackswap_opt.step.networkx_io import from_networkx

        return from_networkx(graph, name)

    def to_networkx(self) -> nx.DiGraph[Any]:
        """The step as a graph of operations and tensors that `from_networkx` reads without loss."""
        from slackswap_opt.step.networkx_io import to_networkx

        return to_networkx(self)

    def with_backward(self, ratio: float = 2.0, rules: Rules | None = None) -> TrainingStep:
        """This forward-only step with a derived backward phase; see `slackswap_opt.step.backward`.

        Args:
            ratio: time of a backward operation by that of its forward operation.
            rules: by name of operation, a `LayerRule` or a type of layer such as "Conv2d"; or a
                function from operation to these.

        Raises:
            InputError: with every fault.
        """
        from slackswap_opt.step.backward import with_backward

        return with_backward(self, ratio, rules)

    @cached_property
    def graph(self) -> nx.DiGraph[Any]:
        """The step as a networkx DAG.

        Nodes are operation names with the attribute `operation`; an edge joins the writer of a
        value to each of its readers and carries `values` (a tuple of `Value`). An edge without
        values only orders a reader before the in-place write that ends what it reads.
        """
        return _dependency_graph(self.operations)

    @cached_property
    def index(self) -> IndexedStep:
        """The same step as integer indices and arrays, made once."""
        return IndexedStep.of(self.operations, self.tensors)

    def __repr__(self) -> str:
        return (
            f"TrainingStep({self.name!r}, {len(self.operations)} operations, "
            f"{len(self.tensors)} tensors)"
        )


def _refuse_other_types(ops: Sequence[object], tensors: Sequence[object]) -> None:
    """For those who build steps without a type checker."""
    if _types_hold(ops, tensors):
        return
    faults = [
        f"{tensor!r:.80} is no Tensor; write Tensor.of(name, bytes)"
        for tensor in tensors
        if not isinstance(tensor, Tensor)
    ]
    for op in ops:
        if not isinstance(op, Operation):
            faults.append(f"{op!r:.80} is no Operation; write Operation(name, phase, ns, ...)")
            continue
        faults.extend(
            f"operation {op.name!r}: {value!r:.80} is no Value; write Value(tensor)"
            for value in (*op.reads, *op.writes)
            if not isinstance(value, Value)
        )
        if not isinstance(op.phase, Phase):
            faults.append(f"operation {op.name!r}: phase is {op.phase!r:.80}, expected a Phase")
    if faults:
        raise InputError(*faults)


def _types_hold(ops: Sequence[Any], tensors: Sequence[object]) -> bool:
    """Whether all is of just the types it should be; those derived from them are looked at."""
    if not ({Tensor}.issuperset(map(type, tensors)) and {Operation}.issuperset(map(type, ops))):
        return False
    reads, writes, phases = (map(attrgetter(name), ops) for name in ("reads", "writes", "phase"))
    values = chain(chain.from_iterable(reads), chain.from_iterable(writes))
    return {Phase}.issuperset(map(type, phases)) and {Value}.issuperset(map(type, values))


def _name_faults(ops: Sequence[Operation], tensors: Sequence[Tensor]) -> Iterator[str]:
    if not ops:
        yield "the step has no operations; add at least one"
    for name, count in Counter([op.name for op in ops]).items():
        if count > 1:
            yield f"operation {name!r} is defined {count} times; give each a name of its own"
    names = Counter([t.name for t in tensors])
    names.update([alias for t in tensors for alias in t.aliases])
    for name, count in names.items():
        if count > 1:
            yield f"tensor or alias {name!r} is defined {count} times; names must be unique"
    if any(not op.name for op in ops) or "" in names:
        yield "an operation or a tensor has an empty name; name it"


def _range_faults(ops: Sequence[Operation], tensors: Sequence[Tensor]) -> Iterator[str]:
    kinds: tuple[tuple[str, Sequence[Any], dict[str, int]], ...] = (
        ("operation", ops, {"duration_ns": MAX_NS, "workspace_bytes": MAX_BYTES}),
        ("tensor", tensors, dict.fromkeys(("size_bytes", "transfer_bytes", "samples"), MAX_BYTES)),
    )
    for what, owners, limits in kinds:
        for field, limit in limits.items():
            for owner, number in zip(owners, map(attrgetter(field), owners), strict=True):
                if type(number) is int and 0 <= number <= limit:
                    continue
                if not isinstance(number, int) or isinstance(number, bool):
                    yield f"{what} {owner.name!r}: {field} is {number!r}, expected a whole number"
                elif not 0 <= number <= limit:
                    yield f"{what} {owner.name!r}: {field} is {number}, expected 0 to {limit}"


def _resolve_aliases(ops: Sequence[Operation], tensors: Sequence[Tensor]) -> list[Operation]:
    """Operations that name storages, each value once."""
    storage_of = {alias: t.name for t in tensors for alias in t.aliases}

    def storages(value: Value) -> Value:
        storage = storage_of.get(value.tensor)
        return value if storage is None else Value(storage, value.version)

    def resolved(values: tuple[Value, ...]) -> tuple[Value, ...]:
        return tuple(dict.fromkeys(map(storages, values) if storage_of else values))

    def with_storages(op: Operation) -> Operation:
        if not storage_of and len(op.reads) < 2 and len(op.writes) < 2:
            return op
        reads, writes = resolved(op.reads), resolved(op.writes)
        if reads == op.reads and writes == op.writes:
            return op
        return replace(op, reads=reads, writes=writes)

    return [with_storages(op) for op in ops]


def _runs_as_given(ops: Sequence[Operation], tensors: dict[str, Tensor]) -> bool:
    """Whether the order given respects every dependency, and no value has a fault.

    The one look that most steps need; what is wrong with the others is looked for after it.
    """
    static = {name for name, tensor in tensors.items() if tensor.static}
    current: dict[str, int] = {}
    for op in ops:
        for value in op.reads:
            if current.get(value.tensor) != value.version and value.tensor not in static:
                return False
        for value in op.writes:
            name, version = value.tensor, value.version
            if version != current.get(name, -1) + 1 or name not in tensors or name in static:
                return False
            if version and Value(name, version - 1) not in op.reads:
                return False
            current[name] = version
    return True


def _value_faults(ops: Sequence[Operation], tensors: dict[str, Tensor]) -> Iterator[str]:
    writer: dict[Value, Operation] = {}
    for op in ops:
        for value in op.writes:
            where = f"operation {op.name!r}"
            if value.tensor not in tensors:
                yield f"{where} writes {value.tensor!r}, which is not defined; add the tensor"
                continue
            if tensors[value.tensor].static:
                yield f"{where} writes the static tensor {value.tensor!r}; leave the write out"
            if value.version < 0:
                yield f"{where} writes {value}; versions start at 0"
            if value in writer:
                yield (
                    f"{where} writes {value}, which {writer[value].name!r} writes too; "
                    f"an overwrite in place makes the next version, {value.tensor}@N"
                )
            writer[value] = op
            if value.version > 0 and Value(value.tensor, value.version - 1) not in op.reads:
                yield (
                    f"{where} overwrites {value.tensor!r} in place; "
                    f"it must read {Value(value.tensor, value.version - 1)}"
                )
    for op in ops:
        for value in op.reads:
            if value.tensor not in tensors:
                yield (
                    f"operation {op.name!r} reads {value.tensor!r}, which is not defined; "
                    "add the tensor"
                )
            elif not tensors[value.tensor].static and value not in writer:
                yield (
                    f"operation {op.name!r} reads {value}, which no operation writes; "
                    "mark it static if it is a parameter or a batch input"
                )
            elif value in op.writes and not tensors[value.tensor].static:
                yield (
                    f"operation {op.name!r} reads {value} and writes it; "
                    "an in-place write makes version N+1"
                )


def _sample_faults(ops: Sequence[Operation], tensors: dict[str, Tensor]) -> Iterator[str]:
    for op in ops:
        if not op.per_sample:
            continue
        for value in op.writes:
            if not tensors[value.tensor].samples:
                yield (
                    f"operation {op.name!r} works per sample, but {value.tensor!r}, which it "
                    "writes, has no samples; say how many, or leave per_sample out"
                )
        counts = {v.tensor: tensors[v.tensor].samples for v in (*op.reads, *op.writes)}
        first: dict[int, str] = {}
        for name, count in counts.items():
            if count:
                first.setdefault(count, name)
        if len(first) > 1:
            found = ", ".join(f"{count} in {name!r}" for count, name in first.items())
            yield (
                f"operation {op.name!r} works per sample, but its tensors have different numbers "
                f"of samples ({found}); make them the same, or leave per_sample out"
            )


def _dependency_graph(ops: Sequence[Operation]) -> nx.DiGraph[Any]:
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from((op.name, {"operation": op}) for op in ops)
    writer = {value: op.name for op in ops for value in op.writes}
    readers: dict[Value, list[str]] = defaultdict(list)
    passed: dict[tuple[str, str], list[Value]] = defaultdict(list)
    for op in ops:
        for value in op.reads:
            readers[value].append(op.name)
            if value in writer:
                passed[writer[value], op.name].append(value)
    graph.add_edges_from((a, b, {"values": tuple(vs)}) for (a, b), vs in passed.items())
    for value, overwriter in writer.items():
        if value.version > 0:
            before = Value(value.tensor, value.version - 1)
            for reader in readers[before]:
                if reader != overwriter and not graph.has_edge(reader, overwriter):
                    graph.add_edge(reader, overwriter, values=())
    return graph


def _execution_order(ops: Sequence[Operation]) -> list[Operation]:
    """The topological order that always takes the earliest given operation that is ready."""
    graph = _dependency_graph(ops)
    given = {op.name: position for position, op in enumerate(ops)}
    try:
        names = list(nx.lexicographical_topological_sort(graph, key=given.__getitem__))
    except nx.NetworkXUnfeasible:
        edges = nx.find_cycle(graph)
        cycle = " -> ".join([edge[0] for edge in edges] + [edges[0][0]])
        raise InputError(f"the operations form a cycle: {cycle}; remove one dependency") from None
    return [ops[given[name]] for name in names]

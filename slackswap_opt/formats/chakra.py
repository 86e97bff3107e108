"""Execution traces: every operator with its tensors by storage, and kernels with their times.

PyTorch's ExecutionTraceObserver writes them; Chakra's tools link them with the kernels of a
profiler trace. Tensors of one storage are one tensor; a storage number that is used again for new
memory is a new one. docs/formats-traces.md has the rules.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import NamedTuple

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, trace_json
from slackswap_opt.formats.autodiff import Access, layers_of
from slackswap_opt.formats.chakra_nodes import Ref, TraceNode, nodes_of
from slackswap_opt.formats.naming import Names
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

NAME = "Chakra or PyTorch execution trace"

_BACKWARD_SCOPE = 1
"""PyTorch's number for the scope of autograd functions."""
_GRAPH = re.compile(rb'"workload_graph"\s*:')
_DEPENDENCIES = re.compile(rb'"(ctrl_deps|ctrlDeps|data_deps|dataDeps|op_schema)"\s*:')
_BACKWARD = re.compile(r"autograd::engine|Backward|AccumulateGrad")
_OPTIMIZER = re.compile(r"^Optimizer\.|^optimizer", re.IGNORECASE)
_ALLOCATES = re.compile(r"aten::(new_)?empty\w*")
_COPY = re.compile(r"HtoD|DtoH", re.IGNORECASE)
_COLLECTIVE = re.compile(
    r"c10d|nccl|all_?(to|2)_?all|all_?(reduce|gather)|reduce_?scatter", re.IGNORECASE
)
_RANDOM = re.compile(r"dropout|bernoulli|rand|normal_|uniform_|multinomial", re.IGNORECASE)
_STARTS_LAYER = re.compile(r"conv|linear|addmm|\bmm\b|matmul|embedding")


class _Kind(NamedTuple):
    """What the name of a node tells of it; the phase is None for most."""

    phase: Phase | None
    copy: bool
    collective: bool
    random: bool
    starts_layer: bool


@lru_cache(maxsize=4096)  # traces repeat a few names very often
def _kind(name: str) -> _Kind:
    phase = Phase.BACKWARD if _BACKWARD.search(name) else None
    return _Kind(
        Phase.OPTIMIZER if _OPTIMIZER.search(name) else phase,
        _COPY.search(name) is not None,
        _COLLECTIVE.search(name) is not None,
        _RANDOM.search(name) is not None,
        _STARTS_LAYER.search(name) is not None,
    )


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is an execution trace, sound or not."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not start.startswith(b"{"):
        return False
    graph = _GRAPH.search(start) or b'"nodes"' in start
    return bool(graph) and _DEPENDENCIES.search(start) is not None


def read(content: bytes, name: str) -> TrainingStep:
    """Read an execution trace with kernels, or of a host, as a training step.

    Raises:
        InputError: with every fault of the nodes, or why they are no training step.
    """
    return _Reader(nodes_of(trace_json.parse(files.decode(content)))).step(name)


@dataclass(eq=False, slots=True)
class _Unit:
    """Kernels in a row that one operator launched, or an operator of the host."""

    owner: TraceNode
    phase: Phase
    duration_ns: int
    reads: list[Ref]
    writes: list[Ref]


@dataclass(eq=False, slots=True)
class _Storage:
    """One stretch of memory, from its allocation until its number is used again.

    What the backward phase has written into it and the optimizer reads is a gradient.
    """

    name: str
    birth: int
    version: int = -1
    size_bytes: int = 0
    static: bool = False
    from_backward: bool = False
    to_optimizer: bool = False


class _Reader:
    """From nodes to operations."""

    def __init__(self, nodes: Sequence[TraceNode]) -> None:
        self.nodes = {node.number: node for node in nodes}
        self.device = [node for node in nodes if node.on_device and node.duration_ns is not None]
        self.notes: list[str] = []
        self.phases: dict[int, Phase | None] = {}
        self.names = Names()
        self.storages: list[_Storage] = []
        self.current: dict[int, _Storage] = {}
        self.allocations = self._allocations()
        self.reused = 0

    def step(self, name: str) -> TrainingStep:
        units = self._units()
        if not units:
            raise InputError("no operator with tensors takes time; link the trace with its kernels")
        if not any(unit.phase is Phase.BACKWARD for unit in units):
            raise InputError(
                "the trace has no backward operators (autograd functions, named ...Backward); "
                "trace a training step"
            )
        touched = [self._touched(unit) for unit in units]
        for storage in self.storages:
            if storage.to_optimizer and storage.from_backward:
                storage.static = True  # the gradient of a parameter
        operations = self._operations(units, touched)
        tensors = [
            Tensor.of(storage.name, storage.size_bytes, static=storage.static)
            for storage in self.storages
        ]
        return TrainingStep.build(name, operations, tensors, tuple(self._notes(units)))

    # Units in the order of the stream

    def _units(self) -> list[_Unit]:
        if not self.device:
            parents = {
                parent
                for node in self.nodes.values()
                if node.duration_ns is not None
                for parent in node.parents[:1]
            }
            leaves = [
                node
                for node in self.nodes.values()
                if node.duration_ns is not None and node.number not in parents
            ]
            self.notes.append(
                "The trace has no kernels of a device; the operators of the host that call no "
                "others, with their times, stand for them."
            )
            return [
                _Unit(node, self._phase(node), node.duration_ns or 0, node.reads, node.writes)
                for node in leaves
                if node.reads or node.writes
            ]
        return self._merged(self._stream())

    def _stream(self) -> list[TraceNode]:
        """The kernels of the stream that computes most, in the order in which they ran."""
        copies = [node for node in self.device if _kind(node.name).copy]
        kernels = [node for node in self.device if not _kind(node.name).copy]
        busy: Counter[str] = Counter()
        for node in kernels:
            busy[node.stream] += 1 + (node.duration_ns or 0)
        compute = max(busy, key=lambda stream: (busy[stream], stream), default="")
        chosen = [node for node in kernels if node.stream == compute]
        beside_ns = sum(node.duration_ns or 0 for node in kernels if node.stream != compute)
        copies_ns = sum(node.duration_ns or 0 for node in copies)
        if beside_ns:
            self.notes.append(
                f"Kernels on other streams ({beside_ns / 1e6:.2f} ms), such as communication, are "
                "taken to run beside the compute stream; they are left out."
            )
        if copies_ns:
            self.notes.append(
                f"Copies between host and device ({copies_ns / 1e6:.2f} ms) are left out."
            )
        if all(node.start_us is not None for node in chosen):
            chosen.sort(key=lambda node: (node.start_us or 0.0, node.number))
        else:
            self.notes.append(
                "Kernels have no times of their start; they run in the order of the file."
            )
        return chosen

    def _merged(self, kernels: Iterable[TraceNode]) -> list[_Unit]:
        units: list[_Unit] = []
        for kernel in kernels:
            owner = self.nodes[kernel.parents[0]] if kernel.parents else kernel
            if units and units[-1].owner is owner:
                units[-1].duration_ns += kernel.duration_ns or 0
                continue
            own = kernel if kernel.reads or kernel.writes else owner
            units.append(
                _Unit(
                    owner, self._phase(owner), kernel.duration_ns or 0,
                    self._on_device(own.reads), self._on_device(own.writes),
                )
            )  # fmt: skip
        return units

    def _on_device(self, refs: list[Ref]) -> list[Ref]:
        return [ref for ref in refs if not ref.device.startswith("cpu")]

    def _phase(self, node: TraceNode) -> Phase:
        """From the node and those that called it; forward if none of them says otherwise."""
        chain: list[TraceNode] = []
        found: Phase | None = None
        current: TraceNode | None = node
        while current is not None:
            if current.number in self.phases:
                found = self.phases[current.number]
                break
            chain.append(current)
            found = _kind(current.name).phase
            if found is None and current.scope == _BACKWARD_SCOPE:
                found = Phase.BACKWARD
            if found is not None:
                break
            current = self.nodes[current.parents[0]] if current.parents else None
        for passed in chain:
            self.phases[passed.number] = found
        return found or Phase.FORWARD

    # Storages

    def _allocations(self) -> dict[int, list[int]]:
        """Per storage, the ids of operators that only allocate it."""
        found: dict[int, list[int]] = defaultdict(list)
        for node in sorted(self.nodes.values(), key=lambda node: node.number):
            if _ALLOCATES.fullmatch(node.name):
                for ref in node.writes:
                    found[ref.storage].append(node.number)
        return found

    def _touched(self, unit: _Unit) -> tuple[list[Value], list[tuple[_Storage, int]]]:
        """The values that a unit reads, and the storages it writes with their new versions."""
        position = unit.owner.number
        inputs = dict.fromkeys([ref.storage for ref in unit.reads])
        outputs = dict.fromkeys([ref.storage for ref in unit.writes])
        optimizer, backward = unit.phase is Phase.OPTIMIZER, unit.phase is Phase.BACKWARD
        values: list[Value] = []
        for number in inputs:
            storage = self.current.get(number)
            fresh = self._allocated(number, position)
            if storage is not None and fresh <= storage.birth:
                storage.to_optimizer |= optimizer
                values.append(Value(storage.name, max(0, storage.version)))
            elif fresh >= 0 and number in outputs:
                self._allocate(number, position)  # filled here for the first time
            else:
                storage = self._allocate(number, position)
                storage.static = True  # nothing in the trace has written it
                storage.to_optimizer |= optimizer
                values.append(Value(storage.name))
        written: list[tuple[_Storage, int]] = []
        for number in outputs:
            storage = self.current.get(number)
            if storage is None or number not in inputs:
                self.reused += storage is not None
                storage = self._allocate(number, position)
            storage.version += not storage.static
            storage.from_backward |= backward
            written.append((storage, storage.version))
        for ref in (*unit.reads, *unit.writes):
            storage = self.current[ref.storage]
            if ref.extent_bytes > storage.size_bytes:
                storage.size_bytes = ref.extent_bytes
        return values, written

    def _allocated(self, number: int, position: int) -> int:
        """The latest operator before a position that only allocates a storage; -1 if none does."""
        earlier = self.allocations.get(number)
        before = bisect_right(earlier, position) if earlier else 0
        return earlier[before - 1] if earlier and before else -1

    def _allocate(self, number: int, position: int) -> _Storage:
        storage = _Storage(self.names.unique(f"storage{number}"), position)
        self.storages.append(storage)
        self.current[number] = storage
        return storage

    # Operations

    def _operations(
        self,
        units: Sequence[_Unit],
        touched: Sequence[tuple[list[Value], list[tuple[_Storage, int]]]],
    ) -> list[Operation]:
        static = {storage.name for storage in self.storages if storage.static}
        names = Names()
        labels = self._labels(units, touched)
        operations: list[Operation] = []
        for unit, (values, written), layer in zip(units, touched, labels, strict=True):
            called = unit.owner.name
            kind = _kind(called)
            operations.append(
                Operation(
                    names.unique(called.removeprefix("aten::")),
                    unit.phase,
                    unit.duration_ns,
                    tuple([Value(v.tensor) if v.tensor in static else v for v in values]),
                    tuple(_activations(written)),
                    layer=layer,
                    recomputable=not kind.collective,
                    random=kind.random,
                )
            )
        return operations

    def _labels(
        self,
        units: Sequence[_Unit],
        touched: Sequence[tuple[list[Value], list[tuple[_Storage, int]]]],
    ) -> list[str]:
        """The layer of each unit.

        Forward operations are grouped where a single tensor passes; a backward operation belongs
        to the latest layer that made something it reads.
        """
        forward = [
            Access(values, _activations(written), _kind(unit.owner.name).starts_layer)
            for unit, (values, written) in zip(units, touched, strict=True)
            if unit.phase is Phase.FORWARD
        ]
        found = iter(layers_of(forward))
        made: dict[str, str] = {}
        labels: list[str] = []
        for unit, (values, written) in zip(units, touched, strict=True):
            if unit.phase is Phase.FORWARD:
                layer = next(found)
                made.update({storage.name: layer for storage, _ in written})
            elif unit.phase is Phase.OPTIMIZER:
                layer = "optimizer"
            else:
                from_forward = [made[v.tensor] for v in values if v.tensor in made]
                layer = from_forward[-1] if from_forward else (labels[-1] if labels else "")
            labels.append(layer)
        return labels

    def _notes(self, units: Sequence[_Unit]) -> Iterator[str]:
        tensors = sum(len(unit.reads) + len(unit.writes) for unit in units)
        yield (
            f"{tensors} tensors of operators are {len(self.storages)} storages, by their numbers"
            + (f"; {self.reused} numbers were used again for new memory" if self.reused else "")
            + "."
        )
        yield from self.notes
        yield (
            "A storage that an operator has among both inputs and outputs is overwritten in place; "
            "one that nothing in the trace has written is static (parameters, the batch), and so "
            "is one that the backward phase writes and the optimizer reads (their gradients)."
        )
        yield "No workspace is known."


def _activations(written: Iterable[tuple[_Storage, int]]) -> list[Value]:
    """The values that are written, without static storages."""
    return [Value(storage.name, version) for storage, version in written if not storage.static]

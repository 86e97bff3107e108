"""Large tensors in parts along the batch (docs/parts.md).

A tensor is held as several storages of whole samples, and operations that work per sample run once
for each. The result is an ordinary step: what plans, bounds or plays steps needs to know nothing of
parts. What may be cut is what the step says (`Tensor.samples`, `Operation.per_sample`), never a
guess.

* *Cut tensors* are those of at least the smallest size, with two samples or more and not static,
  and everything that a cut operation writes beside them.
* *Cut operations* work per sample and read or write a tensor that is large enough. A part of one
  reads that part of each cut tensor and the whole of every other, and writes that part of what the
  operation writes.
* *Whole operations* read all parts of the cut tensors that they need, and write all parts of those
  that they make.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, groupby, pairwise

from slackswap_opt.errors import InputError
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Operation, Tensor, Value

MARK = "#"
"""Between a name and the number of a part: `logits#1/4`."""


@dataclass(frozen=True)
class Parts:
    """How a step is put in parts, but for what a machine adds.

    Attributes:
        count: number of parts, 2 or more.
        min_bytes: tensors below this size stay whole.
    """

    count: int
    min_bytes: int = 0

    def of(self, step: TrainingStep, launch_ns: int = 0) -> TrainingStep:
        """The step in parts; see `in_parts`."""
        return in_parts(step, self.count, self.min_bytes, launch_ns)


def in_parts(
    step: TrainingStep,
    parts: int,
    min_bytes: int = 0,
    launch_ns: int = 0,
    *,
    interleave: bool = True,
) -> TrainingStep:
    """The same step with large tensors, and the operations that may, in parts along the batch.

    Bytes, durations and workspaces of parts are in proportion to their samples and sum up exactly.
    Apart from launches the ideal step takes as long as before, and its peak is not higher. Parts
    are not divided further: they have no samples of their own.

    Args:
        step: the step; nothing of it is changed.
        parts: how many; a tensor with fewer samples has a part for each.
        min_bytes: smaller tensors stay whole, unless a cut operation writes them.
        launch_ns: time that every part after the first adds to an operation that takes any.
        interleave: run neighbours part by part (the first part of each, then the second of each)
            where the ideal step needs less memory so. Otherwise the parts of an operation run in
            a row, and each schedule of the step is one of the step in parts as well.

    Raises:
        InputError: if a number is out of range, or no tensor of the step may be in parts.
    """
    _check(parts, min_bytes, launch_ns)
    large = {t.name for t in step.tensors if _divisible(t) and t.size_bytes >= min_bytes}
    if not large:
        raise InputError(_why_none(step, min_bytes))
    cutter = _Cutter.of(step, large, parts, launch_ns)
    operations: list[Operation] = []
    for key, group in groupby(step.operations, key=cutter.run_of):
        run = list(group)
        if key is None or len(run) == 1 or not interleave:
            operations += chain.from_iterable(map(cutter.parts_of, run))
        else:
            operations += _leaner(run, cutter)
    tensors = list(chain.from_iterable(cutter.stored[t.name] for t in step.tensors))
    return TrainingStep.build(step.name, operations, tensors, [*step.notes, cutter.note(parts)])


def _check(parts: int, min_bytes: int, launch_ns: int) -> None:
    faults = [
        f"{name} is {value!r}, expected a whole number of {least} or more"
        for name, value, least in (
            ("parts", parts, 2),
            ("min_bytes", min_bytes, 0),
            ("launch_ns", launch_ns, 0),
        )
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    ]
    if faults:
        raise InputError(*faults)


def _divisible(tensor: Tensor) -> bool:
    return tensor.samples > 1 and not tensor.static and tensor.size_bytes > 0


def _why_none(step: TrainingStep, min_bytes: int) -> str:
    candidates = [t for t in step.tensors if _divisible(t)]
    if candidates:
        largest = max(candidates, key=lambda t: t.size_bytes)
        return (
            f"no tensor of {step.name!r} of at least {min_bytes} bytes may be in parts; the "
            f"largest that may is {largest.name!r} with {largest.size_bytes} bytes: ask for parts "
            "from that size on"
        )
    if any(t.samples == 1 for t in step.tensors):
        return (
            f"no tensor of {step.name!r} may be in parts: the batch has one sample; take a larger "
            "batch"
        )
    return (
        f"no tensor of {step.name!r} may be in parts: the step does not say which have samples. "
        'Workloads do; in a step file give tensors "samples" and operations "per_sample" '
        "(docs/parts.md)"
    )


def _cuts(samples: int, parts: int) -> list[int]:
    """The samples at which parts begin, and the end."""
    count = min(parts, samples)
    return [number * samples // count for number in range(count + 1)]


def _shares(total: int, cuts: Sequence[int]) -> list[int]:
    """A total in proportion to the samples of each part; the shares sum up to it."""
    ends = [total * cut // cuts[-1] for cut in cuts]
    return [after - before for before, after in pairwise(ends)]


@dataclass(frozen=True)
class _Cutter:
    """What is cut, and into what.

    Attributes:
        stored: by tensor, the storages that hold it: its parts, or itself.
        cut: tensors in parts.
        cuts_of: by cut operation, the samples at which its parts begin, and the end.
        launch_ns: of a part after the first.
        mark: between names and numbers.
        last_access: by tensor, its last reader or writer.
        origin: by storage, the tensor that it is or is a part of.
        sizes: bytes by storage; 0 for static ones, which no order changes.
    """

    stored: Mapping[str, list[Tensor]]
    cut: frozenset[str]
    cuts_of: Mapping[str, list[int]]
    launch_ns: int
    mark: str
    last_access: Mapping[str, str]
    origin: Mapping[str, str]
    sizes: Mapping[str, int]

    @classmethod
    def of(cls, step: TrainingStep, large: set[str], parts: int, launch_ns: int) -> _Cutter:
        samples = {tensor.name: tensor.samples for tensor in step.tensors}
        cuts_of: dict[str, list[int]] = {}
        cut = set(large)
        last_access: dict[str, str] = {}
        for op in step.operations:
            touched = [value.tensor for value in (*op.reads, *op.writes)]
            last_access.update(dict.fromkeys(touched, op.name))
            of_interest = next((name for name in touched if name in large), None)
            if op.per_sample and of_interest is not None:
                cuts_of[op.name] = _cuts(samples[of_interest], parts)
                cut.update(value.tensor for value in op.writes)
        mark = _free_mark(step)
        stored = {
            tensor.name: _tensor_parts(tensor, _cuts(tensor.samples, parts), mark)
            if tensor.name in cut
            else [tensor]
            for tensor in step.tensors
        }
        origin = {part.name: name for name, held in stored.items() for part in held}
        sizes = {
            part.name: 0 if part.static else part.size_bytes
            for held in stored.values()
            for part in held
        }
        return cls(stored, frozenset(cut), cuts_of, launch_ns, mark, last_access, origin, sizes)

    def run_of(self, op: Operation) -> object:
        """Equal for neighbours that could run part by part; None for those that never do."""
        cuts = self.cuts_of.get(op.name)
        return None if cuts is None else (op.phase, tuple(cuts))

    def parts_of(self, op: Operation) -> list[Operation]:
        """The operations in its place."""
        cuts = self.cuts_of.get(op.name)
        if cuts is None:
            touched = {value.tensor for value in (*op.reads, *op.writes)}
            if not touched & self.cut:
                return [op]
            return [
                replace(
                    op, reads=self._all(op.reads), writes=self._all(op.writes), per_sample=False
                )
            ]
        durations = _shares(op.duration_ns, cuts)
        workspaces = _shares(op.workspace_bytes, cuts)
        launch_ns = self.launch_ns if op.duration_ns else 0
        return [
            replace(
                op,
                name=_part_name(op.name, self.mark, number, len(durations)),
                duration_ns=durations[number] + (launch_ns if number else 0),
                workspace_bytes=workspaces[number],
                reads=self._part(op.reads, number),
                writes=self._part(op.writes, number),
                per_sample=False,
            )
            for number in range(len(durations))
        ]

    def _all(self, values: Sequence[Value]) -> tuple[Value, ...]:
        return tuple(
            Value(part.name, value.version)
            for value in values
            for part in self.stored[value.tensor]
        )

    def _part(self, values: Sequence[Value], number: int) -> tuple[Value, ...]:
        return tuple(
            Value(self.stored[value.tensor][number].name, value.version)
            if value.tensor in self.cut
            else value
            for value in values
        )

    def note(self, parts: int) -> str:
        """What was done, in a sentence."""
        return (
            f"In parts along the batch, at most {parts}: {_counted(len(self.cut), 'tensor')}, and "
            f"{_counted(len(self.cuts_of), 'operation')} run part by part"
            + (f"; each further part adds {self.launch_ns} ns." if self.launch_ns else ".")
        )


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _free_mark(step: TrainingStep) -> str:
    """A mark that no name of the step contains, so that names of parts are new."""
    names = [op.name for op in step.operations]
    names += [name for tensor in step.tensors for name in (tensor.name, *tensor.aliases)]
    mark = MARK
    while any(mark in name for name in names):
        mark += MARK
    return mark


def _part_name(name: str, mark: str, number: int, count: int) -> str:
    return f"{name}{mark}{number + 1}/{count}"


def _tensor_parts(tensor: Tensor, cuts: Sequence[int], mark: str) -> list[Tensor]:
    count = len(cuts) - 1
    sizes = _shares(tensor.size_bytes, cuts)
    moved = _shares(tensor.transfer_bytes, cuts)
    return [
        replace(
            tensor,
            name=_part_name(tensor.name, mark, number, count),
            size_bytes=sizes[number],
            transfer_bytes=moved[number],
            aliases=tuple(_part_name(a, mark, number, count) for a in tensor.aliases),
            samples=0,
        )
        for number in range(count)
    ]


# The order of neighbours


def _leaner(run: Sequence[Operation], cutter: _Cutter) -> list[Operation]:
    """The parts of neighbours, in a row or part by part: whichever needs less memory."""
    parts = [cutter.parts_of(op) for op in run]
    in_a_row = list(chain.from_iterable(parts))
    by_part = list(chain.from_iterable(zip(*parts, strict=True)))
    names = {op.name for op in run}
    peaks = [max(_memory(order, names, cutter)) for order in (in_a_row, by_part)]
    return by_part if peaks[1] < peaks[0] else in_a_row


def _memory(order: Sequence[Operation], run: set[str], cutter: _Cutter) -> Iterator[int]:
    """Bytes of all that a run touches, at each of its operations, where everything is kept.

    Args:
        order: the parts of the run's operations.
        run: names of the operations.
        cutter: says what is touched after the run as well, and stays.
    """
    sizes = cutter.sizes
    last: dict[str, int] = {}
    made: set[str] = set()
    for position, op in enumerate(order):
        last.update(dict.fromkeys((v.tensor for v in (*op.reads, *op.writes)), position))
        made.update(value.tensor for value in op.writes if value.version == 0)
    leaving: dict[int, int] = defaultdict(int)
    for name, position in last.items():
        if cutter.last_access[cutter.origin[name]] in run:
            leaving[position] += sizes[name]
    held = sum(sizes[name] for name in last if name not in made)
    for position, op in enumerate(order):
        held += sum(sizes[value.tensor] for value in op.writes if value.version == 0)
        yield held + op.workspace_bytes
        held -= leaving[position]

"""What a schedule asks of an allocator: every allocation and free in the order of the simulation.

The rules are those of `docs/problem.md`: an event allocates its outputs and workspace at its start,
a copy in its buffer at its start; frees take effect at the end of their event, or, while a copy out
still reads the tensor, when that copy completes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import IntEnum

from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Verdict
from slackswap_opt.step import TrainingStep


class Stream(IntEnum):
    """The streams of the machine."""

    COMPUTE = 0
    D2H = 1
    H2D = 2


@dataclass(frozen=True, slots=True)
class Allocate:
    """A request.

    Attributes:
        at_ns: when.
        key: names the memory in the free that gives it back.
        size_bytes: more than 0.
        stream: who asks.
        owner: the tensor's name, or whose workspace it is.
        operation: the operation that starts, or after whose predecessor the copy may start.
    """

    at_ns: int
    key: int
    size_bytes: int
    stream: Stream
    owner: str
    operation: str


@dataclass(frozen=True, slots=True)
class Free:
    """Memory is given back.

    Attributes:
        at_ns: when.
        key: of its allocation.
        after: the copy out that must have completed first, None for none.
    """

    at_ns: int
    key: int
    after: int | None = None


@dataclass(frozen=True, slots=True)
class Complete:
    """A copy out that a free waits for has completed.

    Attributes:
        at_ns: when.
        copy: its index.
    """

    at_ns: int
    copy: int


Request = Allocate | Free | Complete


def requests(step: TrainingStep, schedule: Schedule, verdict: Verdict) -> tuple[Request, ...]:
    """Every allocation and free of a simulated schedule, in order.

    Allocations of no bytes are left out. What is still there when the simulation ends stays.

    Args:
        step: what was run.
        schedule: the program.
        verdict: what the simulator said of it.

    Raises:
        ValueError: if the memory in use is not that of the verdict, which then belongs to
            another schedule.
    """
    line = verdict.timeline
    if (len(line.compute_start_ns), len(line.out_start_ns), len(line.in_start_ns)) != (
        len(schedule.compute), len(schedule.copies_out), len(schedule.copies_in),
    ):  # fmt: skip
        raise ValueError("the verdict is not one of this schedule: it has other events")
    walk = _Walk(step, schedule, verdict)
    found = tuple(walk.run())
    if walk.memory != list(zip(line.memory_ns.tolist(), line.memory_bytes.tolist(), strict=True)):
        raise ValueError("the verdict is not one of this schedule: their memory differs")
    return found


class _Where(IntEnum):
    ABSENT = 0
    COMING = 1
    THERE = 2
    LEAVING = 3


class _Queue:
    """One stream's events with their recorded times; -1 where one never happened."""

    def __init__(self, starts: list[int], ends: list[int]) -> None:
        self.starts, self.ends = starts, ends
        self.next = 0
        self.running = False

    def ends_at(self) -> int | None:
        """When what is running ends, None if nothing is or it never does."""
        return self.ends[self.next] if self.running and self.ends[self.next] >= 0 else None

    def starts_at(self, now: int) -> bool:
        return not self.running and self.next < len(self.starts) and self.starts[self.next] == now


class _Walk:
    """Goes through the recorded times in the simulator's order of one instant (rule 6)."""

    def __init__(self, step: TrainingStep, schedule: Schedule, verdict: Verdict) -> None:
        index, line = step.index, verdict.timeline
        self.step, self.schedule = step, schedule
        self.capacity = verdict.capacity_bytes
        self.reads, self.writes = index.reads, index.writes
        self.size: list[int] = index.size_bytes.tolist()
        self.workspace: list[int] = index.workspace_bytes.tolist()
        self.compute = _Queue(line.compute_start_ns.tolist(), line.compute_end_ns.tolist())
        self.out = _Queue(line.out_start_ns.tolist(), line.out_end_ns.tolist())
        self.into = _Queue(line.in_start_ns.tolist(), line.in_end_ns.tolist())
        self.where = [_Where.ABSENT] * index.tensors
        self.leaves_with: dict[int, int] = {}
        self.key: dict[int, int] = {}
        self.scratch: list[tuple[int, int]] = []
        self.keys = 0
        self.now = 0
        self.used = 0
        self.memory: list[tuple[int, int]] = []
        self.outs_of: dict[int, list[int]] = {}
        for number, copy in enumerate(schedule.copies_out):
            self.outs_of.setdefault(copy.tensor, []).append(number)

    def run(self) -> Iterator[Request]:
        while True:
            yield from self._instant()
            queues = (self.compute, self.out, self.into)
            ends = [end for queue in queues if (end := queue.ends_at()) is not None]
            if not ends:
                return
            self.now = min(ends)

    def _instant(self) -> Iterator[Request]:
        while True:
            due = [q for q in (self.compute, self.out, self.into) if q.ends_at() == self.now]
            if self.compute in due:
                yield from self._end_compute()
            if self.out in due:
                yield from self._end_out()
            if self.into in due:
                self.where[self.schedule.copies_in[self.into.next].tensor] = _Where.THERE
                self._ended(self.into)
            if due:
                continue
            if self.compute.starts_at(self.now) and self._compute_may_start():
                yield from self._start_compute()
            elif self.out.starts_at(self.now) and self._out_may_start():
                self.out.running = True
            elif self.into.starts_at(self.now) and self._in_may_start():
                yield from self._start_in()
            else:
                return

    def _ended(self, queue: _Queue) -> None:
        queue.running = False
        queue.next += 1

    # -- compute --------------------------------------------------------------------------

    def _compute_may_start(self) -> bool:
        """Whether the event starts now, and not after a copy of no duration at this instant."""
        op = self.schedule.compute[self.compute.next]
        inputs = all(self.where[tensor] is _Where.THERE for tensor, _ in self.reads[op])
        left = all(
            version > 0 or self.where[tensor] is not _Where.LEAVING
            for tensor, version in self.writes[op]
        )
        return inputs and left and self.used + self._needed(op) <= self.capacity

    def _needed(self, op: int) -> int:
        return self.workspace[op] + sum(
            self.size[tensor] for tensor, version in self.writes[op] if version == 0
        )

    def _start_compute(self) -> Iterator[Request]:
        op = self.schedule.compute[self.compute.next]
        name = self.step.operations[op].name
        for tensor, version in self.writes[op]:
            if version > 0:
                continue
            size = self.size[tensor]
            owner = self.step.tensors[tensor].name
            lasting = self.where[tensor] is _Where.ABSENT
            request = self._allocate(size, Stream.COMPUTE, owner, name)
            if lasting:
                self.where[tensor] = _Where.COMING
                self.key[tensor] = request.key
            else:
                self.scratch.append((request.key, size))
            if size:
                yield request
        if self.workspace[op]:
            request = self._allocate(
                self.workspace[op], Stream.COMPUTE, f"workspace of {name}", name
            )
            self.scratch.append((request.key, self.workspace[op]))
            yield request
        self._change(self._needed(op))
        self.compute.running = True

    def _end_compute(self) -> Iterator[Request]:
        event = self.compute.next
        op = self.schedule.compute[event]
        for tensor, version in self.writes[op]:
            if version == 0 and self.where[tensor] is _Where.COMING and self._is_output(tensor):
                self.where[tensor] = _Where.THERE
        freed = 0
        for key, size in reversed(self.scratch):
            freed += size
            if size:
                yield Free(self.now, key)
        self.scratch.clear()
        for tensor in self.schedule.frees[event]:
            copies = [
                number
                for number in self.outs_of.get(tensor, ())
                if number >= self.out.next and self.schedule.copies_out[number].after <= event
            ]
            last = max(copies, default=None)
            if last is None:
                self.where[tensor] = _Where.ABSENT
                freed += self.size[tensor]
            else:
                self.where[tensor] = _Where.LEAVING
                self.leaves_with[tensor] = last
            if self.size[tensor]:
                yield Free(self.now, self.key[tensor], last)
        self._change(-freed)
        self._ended(self.compute)

    def _is_output(self, tensor: int) -> bool:
        """Whether a tensor on its way is written here, and not copied in."""
        copy = self.schedule.copies_in[self.into.next] if self.into.running else None
        return copy is None or copy.tensor != tensor

    # -- copies ---------------------------------------------------------------------------

    def _end_out(self) -> Iterator[Request]:
        number = self.out.next
        tensor = self.schedule.copies_out[number].tensor
        if self.where[tensor] is _Where.LEAVING and self.leaves_with[tensor] == number:
            self.where[tensor] = _Where.ABSENT
            if self.size[tensor]:
                yield Complete(self.now, number)
            self._change(-self.size[tensor])
        self._ended(self.out)

    def _out_may_start(self) -> bool:
        return self.schedule.copies_out[self.out.next].after < self.compute.next

    def _in_may_start(self) -> bool:
        copy = self.schedule.copies_in[self.into.next]
        pending = any(
            number >= self.out.next and self.schedule.copies_out[number].after <= copy.after
            for number in self.outs_of[copy.tensor]
        )
        return (
            copy.after < self.compute.next
            and not pending
            and self.where[copy.tensor] is _Where.ABSENT
            and self.used + self.size[copy.tensor] <= self.capacity
        )

    def _start_in(self) -> Iterator[Allocate]:
        copy = self.schedule.copies_in[self.into.next]
        tensor, size = copy.tensor, self.size[copy.tensor]
        reader = self.schedule.compute[min(copy.after + 1, len(self.schedule.compute) - 1)]
        request = self._allocate(
            size, Stream.H2D, self.step.tensors[tensor].name, self.step.operations[reader].name
        )
        self.where[tensor] = _Where.COMING
        self.key[tensor] = request.key
        if size:
            yield request
        self._change(size)
        self.into.running = True

    # -- accounts -------------------------------------------------------------------------

    def _allocate(self, size: int, stream: Stream, owner: str, operation: str) -> Allocate:
        self.keys += 1
        return Allocate(self.now, self.keys - 1, size, stream, owner, operation)

    def _change(self, change_bytes: int) -> None:
        if change_bytes:
            self.used += change_bytes
            self.memory.append((self.now, self.used))

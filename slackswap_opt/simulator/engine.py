"""The referee: plays a schedule on three streams, in integer nanoseconds and integer bytes.

The rules are numbered in `docs/problem.md` and cited here. Nothing of the planners is used.
"""

from __future__ import annotations

from collections.abc import Sequence
from enum import IntEnum

import numpy as np

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import Machine
from slackswap_opt.machine.model import FULL_SPEED
from slackswap_opt.plan.schedule import Copy, Schedule
from slackswap_opt.simulator.lane import UNDISTURBED, Lane
from slackswap_opt.simulator.verdict import Cause, OutOfMemory, Stall, Timeline, Verdict
from slackswap_opt.step import TrainingStep

NEVER = -1


def simulate(
    step: TrainingStep, machine: Machine, schedule: Schedule, capacity_bytes: int
) -> Verdict:
    """Play a schedule at a capacity.

    Args:
        step: what is to be run.
        machine: gives the link's rates and latency and the host's limit; durations come from the
            step.
        schedule: the program.
        capacity_bytes: device memory for everything that is not static.

    Returns:
        The verdict, with the timeline as far as the schedule ran.

    Raises:
        ScheduleError: if the schedule breaks a rule of the step, whatever the capacity.
    """
    check_structure(step, schedule)
    return Player(step, schedule, Lane.of(step, machine, schedule, capacity_bytes)).play()


def check_structure(step: TrainingStep, schedule: Schedule) -> None:
    """Check what can be checked without a clock: indices, order, and triggers.

    Raises:
        ScheduleError: naming the first event that is wrong.
    """
    index = step.index
    if len(schedule.frees) != len(schedule.compute):
        raise ScheduleError(
            f"{len(schedule.frees)} lists of frees for {len(schedule.compute)} compute events"
        )
    done = 0
    for event, op in enumerate(schedule.compute):
        if op == done:
            done += 1
        elif not 0 <= op < done:
            raise ScheduleError(
                f"compute event {event} is operation {op}, but operation {done} has not run yet"
            )
        elif not index.recomputable[op]:
            raise ScheduleError(
                f"compute event {event} runs {step.operations[op].name!r} again, "
                "which may not run again"
            )
    if done != index.operations:
        raise ScheduleError(f"only {done} of {index.operations} operations are run")
    moved = [(f"free at event {e}", t) for e, ts in enumerate(schedule.frees) for t in ts]
    for kind, copies in (("copy out", schedule.copies_out), ("copy in", schedule.copies_in)):
        for number, copy in enumerate(copies):
            moved.append((f"{kind} {number}", copy.tensor))
            if not NEVER <= copy.after < len(schedule.compute):
                raise ScheduleError(f"{kind} {number} waits for compute event {copy.after}")
    for what, tensor in moved:
        if not 0 <= tensor < index.tensors or index.static[tensor]:
            raise ScheduleError(f"{what}: tensor {tensor} is unknown or static")
    first_out: dict[int, int] = {}
    for copy in schedule.copies_out:
        first_out[copy.tensor] = min(copy.after, first_out.get(copy.tensor, copy.after))
    for number, copy in enumerate(schedule.copies_in):
        if first_out.get(copy.tensor, len(schedule.compute)) > copy.after:
            name = step.tensors[copy.tensor].name
            raise ScheduleError(f"copy in {number} of {name!r} has no copy out before its trigger")


class _Where(IntEnum):
    ABSENT = 0
    INCOMING = 1
    WRITING = 2
    RESIDENT = 3
    LEAVING = 4


class _Engine:
    """One copy engine: a queue, and at most one copy in flight."""

    def __init__(self, copies: tuple[Copy, ...], work: Sequence[int], latency_ns: int) -> None:
        self.copies = copies
        self.work = work
        self.latency_ns = latency_ns
        self.next = 0
        self.busy = False
        self.end_ns = NEVER
        self.start = [NEVER] * len(copies)
        self.end = [NEVER] * len(copies)
        self._latency_left = 0
        self._work_left = 0

    def head(self) -> Copy | None:
        """The copy in flight, or the first one waiting."""
        return self.copies[self.next] if self.next < len(self.copies) else None

    def begin(self, now: int) -> None:
        self.busy = True
        self.start[self.next] = now
        self._latency_left = self.latency_ns
        self._work_left = self.work[self.next]

    def run_to_end_at(self, now: int, rate: int) -> None:
        """Set when the copy in flight ends if this rate lasts."""
        self.end_ns = now + self._latency_left - (-self._work_left // rate)

    def advance(self, elapsed_ns: int, rate: int) -> None:
        waited = min(elapsed_ns, self._latency_left)
        self._latency_left -= waited
        self._work_left = max(0, self._work_left - rate * (elapsed_ns - waited))

    def finish(self, now: int) -> Copy:
        copy = self.copies[self.next]
        self.end[self.next] = now
        self.next += 1
        self.busy = False
        return copy


class Player:
    """Plays one schedule in one lane, event by event."""

    def __init__(self, step: TrainingStep, schedule: Schedule, lane: Lane) -> None:
        index = step.index
        self.step, self.schedule, self.capacity = step, schedule, lane.capacity_bytes
        self.reads, self.writes = index.reads, index.writes
        self.duration = lane.duration_ns
        self.workspace: list[int] = index.workspace_bytes.tolist()
        self.size: list[int] = index.size_bytes.tolist()
        self.transfer: list[int] = index.transfer_bytes.tolist()
        self.rates, self.host = lane.rates, lane.host
        self.speeds = None if lane.speeds == UNDISTURBED else lane.speeds

        self.now = 0
        self.event = 0
        self.running = False
        self.compute_end = NEVER
        self.compute_left = 0
        self.scratch = 0
        self.starts = [NEVER] * len(schedule.compute)
        self.ends = [NEVER] * len(schedule.compute)
        self.out = _Engine(schedule.copies_out, lane.out_work, lane.latency_ns)
        self.into = _Engine(schedule.copies_in, lane.in_work, lane.latency_ns)

        self.where = [_Where.ABSENT] * index.tensors
        self.version = [NEVER] * index.tensors
        self.leaves_with = [NEVER] * index.tensors
        self.overwriting: set[int] = set()
        self.host_version: dict[int, int] = {}
        self.host_used = 0
        self.host_peak = 0
        self.used = 0
        self.memory_ns: list[int] = []
        self.memory_bytes: list[int] = []
        self.stalls: list[Stall] = []

        self.outs_of: dict[int, list[int]] = {}
        for number, copy in enumerate(schedule.copies_out):
            self.outs_of.setdefault(copy.tensor, []).append(number)
        self.last_in = {copy.tensor: number for number, copy in enumerate(schedule.copies_in)}

    # -- the clock ------------------------------------------------------------------------

    def play(self) -> Verdict:
        """From the start to the end or a standstill.

        Raises:
            ScheduleError: if the schedule breaks a rule.
        """
        events = len(self.schedule.compute)
        while True:
            self.settle()
            if self.event == events:
                return self.verdict()
            until = self.next_end()
            if until is None:
                return self.verdict()
            self.advance(until)

    def next_end(self) -> int | None:
        """When the next of what is under way ends; None where nothing is."""
        first = self.compute_end if self.running and self.compute_end != NEVER else None
        for engine in (self.out, self.into):
            if engine.busy and (first is None or engine.end_ns < first):
                first = engine.end_ns
        return first

    def settle(self) -> None:
        """Everything that happens at this instant (rule 6)."""
        while True:
            if self._end_all():
                continue
            if self.event == len(self.schedule.compute):
                return
            if not (self._start_compute() or self._start_out() or self._start_in()):
                return

    def _end_all(self) -> bool:
        ended = False
        if self.running and self.compute_end == self.now:
            self._end_compute()
            ended = True
        if self.out.busy and self.out.end_ns == self.now:
            self._end_out()
            ended = True
        if self.into.busy and self.into.end_ns == self.now:
            self._end_in()
            ended = True
        return ended

    def advance(self, until: int) -> None:
        """Let the time pass until an instant at or before the next end."""
        if not self.running and until > self.now:
            self._record_stall(until)
        elapsed = until - self.now
        if self.speeds is not None and self.running:
            self.compute_left = max(0, self.compute_left - elapsed * self._speed())
        if self.out.busy or self.into.busy:
            out_rate, in_rate = self.current_rates()
            if self.out.busy:
                self.out.advance(elapsed, out_rate)
            if self.into.busy:
                self.into.advance(elapsed, in_rate)
        self.now = until

    def current_rates(self) -> tuple[int, int]:
        """Rates of a copy out and of a copy in at this instant (rule 5)."""
        if self.out.busy and self.into.busy:
            return self.rates.d2h_duplex, self.rates.h2d_duplex
        return self.rates.d2h, self.rates.h2d

    def reschedule(self) -> None:
        """An engine started or stopped: all that is under way goes on at its new rate."""
        out_rate, in_rate = self.current_rates()
        if self.out.busy:
            self.out.run_to_end_at(self.now, out_rate)
        if self.into.busy:
            self.into.run_to_end_at(self.now, in_rate)
        if self.speeds is not None and self.running:
            self._run_compute_to_end()

    def _speed(self) -> int:
        """Of the compute stream, beside the copies under way (rule 10)."""
        assert self.speeds is not None
        return self.speeds[self.out.busy + self.into.busy]

    def _run_compute_to_end(self) -> None:
        speed = self._speed()
        if self.compute_left == 0:
            self.compute_end = self.now
        else:
            self.compute_end = self.now - (-self.compute_left // speed) if speed else NEVER

    # -- compute --------------------------------------------------------------------------

    def _missing_input(self) -> int | None:
        """The first value that the next event reads and that is not there (rule 1)."""
        op = self.schedule.compute[self.event]
        for tensor, version in self.reads[op]:
            where = self.where[tensor]
            if where is _Where.RESIDENT:
                if self.version[tensor] != version:
                    raise self._wrong(
                        f"reads version {version} of {self._name(tensor)}, "
                        f"which holds version {self.version[tensor]}"
                    )
            elif where is _Where.ABSENT and self.last_in.get(tensor, NEVER) < self.into.next:
                raise self._wrong(f"reads {self._name(tensor)}, which is not on the device")
            else:
                return tensor
        return None

    def _output_leaving(self) -> bool:
        for tensor, version in self.writes[self.schedule.compute[self.event]]:
            if version == 0 and self.where[tensor] is _Where.LEAVING:
                return True
        return False

    def _allocation(self) -> tuple[int, int]:
        """Bytes that the next event allocates, and how many of them are gone at its end."""
        op = self.schedule.compute[self.event]
        scratch = self.workspace[op]
        lasting = 0
        for tensor, version in self.writes[op]:
            if version > 0:
                continue
            if self.where[tensor] is _Where.ABSENT:
                lasting += self.size[tensor]
            else:
                scratch += self.size[tensor]
        return lasting + scratch, scratch

    def _start_compute(self) -> bool:
        if self.running or self._missing_input() is not None or self._output_leaving():
            return False
        allocated, scratch = self._allocation()
        if self.used + allocated > self.capacity:
            return False
        op = self.schedule.compute[self.event]
        for tensor, version in self.writes[op]:
            if version > 0:
                self._check_not_in_flight(tensor)
                self.overwriting.add(tensor)
            elif self.where[tensor] is _Where.ABSENT:
                self.where[tensor] = _Where.WRITING
        self._change_memory(allocated)
        self.scratch = scratch
        self.starts[self.event] = self.now
        self.running = True
        if self.speeds is None:
            self.compute_end = self.now + self.duration[self.event]
        else:
            self.compute_left = self.duration[self.event] * FULL_SPEED
            self._run_compute_to_end()
        return True

    def _end_compute(self) -> None:
        event, op = self.event, self.schedule.compute[self.event]
        self.ends[event] = self.now
        for tensor, version in self.writes[op]:
            if version > 0 or self.where[tensor] is _Where.WRITING:
                self.where[tensor] = _Where.RESIDENT
                self.version[tensor] = version
        self.overwriting.clear()
        self._change_memory(-self.scratch - self._free(event))
        self.running = False
        self.event += 1

    def _free(self, event: int) -> int:
        """Free what this event frees (rule 2); returns the bytes given back at once."""
        freed = 0
        for tensor in self.schedule.frees[event]:
            if self.where[tensor] is not _Where.RESIDENT:
                raise self._wrong(f"frees {self._name(tensor)}, which is not on the device")
            last = NEVER
            for number in self.outs_of.get(tensor, ()):
                if number >= self.out.next and self.schedule.copies_out[number].after <= event:
                    last = number
            if last == NEVER:
                self.where[tensor] = _Where.ABSENT
                freed += self.size[tensor]
            else:
                self.where[tensor] = _Where.LEAVING
                self.leaves_with[tensor] = last
        return freed

    def _check_not_in_flight(self, tensor: int) -> None:
        head = self.out.head()
        if self.out.busy and head is not None and head.tensor == tensor:
            raise self._wrong(f"overwrites {self._name(tensor)} while it is being copied out")

    # -- copies ---------------------------------------------------------------------------

    def _ready_out(self) -> Copy | None:
        """The copy out that may start if the host has room."""
        copy = self.out.head()
        return None if self.out.busy or copy is None or copy.after >= self.event else copy

    def _host_need(self, copy: Copy) -> int:
        if copy.tensor in self.host_version:
            return 0
        return self.host.buffer_bytes(self.transfer[copy.tensor])

    def _host_fits(self, copy: Copy) -> bool:
        limit = self.host.pinned_bytes
        return limit is None or self.host_used + self._host_need(copy) <= limit

    def _start_out(self) -> bool:
        copy = self._ready_out()
        if copy is None:
            return False
        tensor = copy.tensor
        if self.where[tensor] not in (_Where.RESIDENT, _Where.LEAVING):
            raise ScheduleError(
                f"copy out {self.out.next} of {self._name(tensor)} at {self.now} ns: "
                "it is not on the device"
            )
        if tensor in self.overwriting:
            raise ScheduleError(
                f"copy out {self.out.next} of {self._name(tensor)} at {self.now} ns: "
                "it is being overwritten"
            )
        if not self._host_fits(copy):
            return False
        self.host_used += self._host_need(copy)
        self.host_peak = max(self.host_peak, self.host_used)
        self.host_version[tensor] = self.version[tensor]
        self.out.begin(self.now)
        self.reschedule()
        return True

    def _end_out(self) -> None:
        number = self.out.next
        tensor = self.out.finish(self.now).tensor
        if self.where[tensor] is _Where.LEAVING and self.leaves_with[tensor] == number:
            self.where[tensor] = _Where.ABSENT
            self._change_memory(-self.size[tensor])
        self.reschedule()

    def _ready_in(self) -> Copy | None:
        """The copy in that may start if the device has room (rule 4)."""
        copy = self.into.head()
        if self.into.busy or copy is None or copy.after >= self.event:
            return None
        outs = self.schedule.copies_out
        pending = any(
            number >= self.out.next and outs[number].after <= copy.after
            for number in self.outs_of[copy.tensor]
        )
        if pending or self.where[copy.tensor] is _Where.LEAVING:
            return None
        return copy

    def _start_in(self) -> bool:
        copy = self._ready_in()
        if copy is None:
            return False
        tensor = copy.tensor
        if self.where[tensor] is not _Where.ABSENT:
            raise ScheduleError(
                f"copy in {self.into.next} of {self._name(tensor)} at {self.now} ns: "
                "it is on the device already"
            )
        if self.used + self.size[tensor] > self.capacity:
            return False
        self.where[tensor] = _Where.INCOMING
        self._change_memory(self.size[tensor])
        self.into.begin(self.now)
        self.reschedule()
        return True

    def _end_in(self) -> None:
        number = self.into.next
        tensor = self.into.finish(self.now).tensor
        self.where[tensor] = _Where.RESIDENT
        self.version[tensor] = self.host_version[tensor]
        if self.last_in[tensor] == number:
            del self.host_version[tensor]
            self.host_used -= self.host.buffer_bytes(self.transfer[tensor])
        self.reschedule()

    # -- accounts -------------------------------------------------------------------------

    def _change_memory(self, change_bytes: int) -> None:
        if change_bytes:
            self.used += change_bytes
            self.memory_ns.append(self.now)
            self.memory_bytes.append(self.used)

    def _record_stall(self, until: int) -> None:
        """Name the cause of the wait from now on (rule 7)."""
        missing = self._missing_input()
        if missing is not None:
            cause, tensor = Cause.SWAP_IN, missing
        elif (leaving := self.out.head()) is not None:
            cause, tensor = Cause.SWAP_OUT, leaving.tensor
        else:
            coming = self.into.head()
            assert coming is not None, "memory is missing and nothing moves: a standstill"
            cause, tensor = Cause.SWAP_IN, coming.tensor
        stall = Stall(self.event, self.now, until, cause, tensor)
        if self.stalls:
            last = self.stalls[-1]
            if (last.event, last.end_ns, last.cause, last.tensor) == (
                stall.event, stall.start_ns, cause, tensor,
            ):  # fmt: skip
                stall = Stall(stall.event, last.start_ns, until, cause, tensor)
                self.stalls.pop()
        self.stalls.append(stall)

    def _standstill(self) -> OutOfMemory:
        """Nothing is in flight and the step is unfinished (rule 8)."""
        missing_input = self._missing_input()
        missing_bytes = 0
        if missing_input is None:
            allocated, _ = self._allocation()
            missing_bytes = max(0, self.used + allocated - self.capacity)
        waiting: tuple[str, int] | None = None
        waiting_bytes = 0
        if not self._an_input_is_gone():
            if missing_input is not None and (copy := self._ready_in()) is not None:
                waiting = ("in", self.into.next)
                waiting_bytes = self.used + self.size[copy.tensor] - self.capacity
            elif (copy := self._ready_out()) is not None:
                waiting = ("out", self.out.next)
                pinned = self.host.pinned_bytes or 0
                waiting_bytes = self.host_used + self._host_need(copy) - pinned
        if missing_bytes == 0 and waiting is None:
            what = (
                f"waits for {self._name(missing_input)}"
                if missing_input is not None
                else "waits for the memory of an output that never leaves"
            )
            raise self._wrong(f"{what}, which cannot come: no copy that would bring it can start")
        resident = [t for t, where in enumerate(self.where) if where is not _Where.ABSENT]
        resident.sort(key=lambda t: (-self.size[t], t))
        return OutOfMemory(
            self.event, self.now, missing_bytes, waiting, waiting_bytes, tuple(resident)
        )

    def _an_input_is_gone(self) -> bool:
        """Whether the event reads a tensor that is not there and that no copy will bring."""
        op = self.schedule.compute[self.event]
        return any(
            self.where[tensor] is not _Where.RESIDENT
            and self.last_in.get(tensor, NEVER) < self.into.next
            for tensor, _ in self.reads[op]
        )

    def verdict(self) -> Verdict:
        """What became of the step: call it when it has ended or nothing is in flight.

        Raises:
            ScheduleError: if it is unfinished and no memory is what is missing.
        """
        finished = self.event == len(self.schedule.compute)
        out_of_memory = None if finished else self._standstill()

        def array(numbers: list[int]) -> np.ndarray[tuple[int], np.dtype[np.int64]]:
            return np.array(numbers, dtype=np.int64)

        timeline = Timeline(
            compute_start_ns=array(self.starts),
            compute_end_ns=array(self.ends),
            out_start_ns=array(self.out.start),
            out_end_ns=array(self.out.end),
            in_start_ns=array(self.into.start),
            in_end_ns=array(self.into.end),
            memory_ns=array(self.memory_ns),
            memory_bytes=array(self.memory_bytes),
            host_bytes=self.host_peak,
            stalls=tuple(self.stalls),
        )
        return Verdict(
            timeline=timeline,
            step_ns=self.now if out_of_memory is None else None,
            peak_bytes=int(timeline.memory_bytes.max(initial=0)),
            capacity_bytes=self.capacity,
            out_of_memory=out_of_memory,
        )

    def _name(self, tensor: int) -> str:
        return repr(self.step.tensors[tensor].name)

    def _wrong(self, what: str) -> ScheduleError:
        op = self.schedule.compute[self.event]
        return ScheduleError(
            f"compute event {self.event} ({self.step.operations[op].name!r}) {what}"
        )

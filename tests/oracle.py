"""A second referee, written from docs/problem.md alone, for clarity and not for speed.

It shares no code with the simulator's engine, so that the two are independent readings of the
contract. It keeps a clock; at each instant it applies what ends, then starts what can start, until
nothing more happens; then it moves the clock to the next end. Memory in use is summed up anew from
what is on the device after every change, so it cannot drift.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import Machine
from slackswap_opt.plan import START, Schedule
from slackswap_opt.simulator.verdict import Verdict
from slackswap_opt.step import TrainingStep

NEVER = -1


@dataclass(frozen=True)
class Stuck:
    """Nothing is in flight, and the step is not finished."""

    event: int
    at_ns: int
    missing_bytes: int
    waiting_copy: tuple[str, int] | None
    waiting_bytes: int
    resident: tuple[int, ...]


@dataclass
class Played:
    """What happened: (start, end) per event, and the rest of a verdict as plain data."""

    compute: list[tuple[int, int]]
    copies_out: list[tuple[int, int]]
    copies_in: list[tuple[int, int]]
    step_ns: int | None
    peak_bytes: int
    memory: list[tuple[int, int]]
    host_bytes: int
    stalls: list[tuple[int, int, int, str, int]]
    out_of_memory: Stuck | None

    @property
    def stall_ns(self) -> int:
        return sum(end - start for _, start, end, _, _ in self.stalls)


@dataclass(frozen=True)
class Numbers:
    """Durations of events and work (bytes x 1000) of copies that are not as the step says."""

    durations: list[int]
    work_out: list[int]
    work_in: list[int]


def play(
    step: TrainingStep,
    machine: Machine,
    schedule: Schedule,
    capacity_bytes: int,
    numbers: Numbers | None = None,
) -> Played:
    """Play a schedule at a capacity; ScheduleError where the contract says error."""
    check_form(step, schedule)
    return Referee(step, machine, schedule, capacity_bytes, numbers).run()


def plain(verdict: Verdict) -> Played:
    """The engine's verdict in the oracle's words."""
    line, oom = verdict.timeline, verdict.out_of_memory
    return Played(
        compute=_pairs(line.compute_start_ns, line.compute_end_ns),
        copies_out=_pairs(line.out_start_ns, line.out_end_ns),
        copies_in=_pairs(line.in_start_ns, line.in_end_ns),
        step_ns=verdict.step_ns,
        peak_bytes=verdict.peak_bytes,
        memory=_pairs(line.memory_ns, line.memory_bytes),
        host_bytes=line.host_bytes,
        stalls=[
            (s.event, s.start_ns, s.end_ns, str(s.cause), s.tensor) for s in line.stalls
        ],
        out_of_memory=oom
        and Stuck(
            oom.event,
            oom.at_ns,
            oom.missing_bytes,
            oom.waiting_copy,
            oom.waiting_bytes,
            oom.resident,
        ),
    )  # fmt: skip


def _pairs(first, second):
    return list(zip(first.tolist(), second.tolist(), strict=True))


def turning_points(memory: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The memory curve without what a reader may or may not split.

    At one instant only turning points and the last value are kept: whether an event that frees
    three tensors makes one change or three is a matter of taste, the shape is not.
    """
    kept: list[tuple[int, int]] = [(0, 0)]
    for instant, level in memory:
        if level == kept[-1][1]:
            continue
        if (
            len(kept) > 1
            and kept[-1][0] == instant
            and (kept[-1][1] > kept[-2][1]) == (level > kept[-1][1])
        ):
            kept.pop()
        kept.append((instant, level))
    return kept[1:]


# --- What can be said without playing ---------------------------------------------------------


def check_form(step: TrainingStep, schedule: Schedule) -> None:
    index, events = step.index, len(schedule.compute)
    if len(schedule.frees) != events:
        raise ScheduleError("one tuple of frees per compute event")
    if any(not 0 <= op < index.operations for op in schedule.compute):
        raise ScheduleError("no such operation")
    if list(dict.fromkeys(schedule.compute)) != list(range(index.operations)):
        raise ScheduleError("each operation runs first in step order")
    for op in schedule.reexecutions():
        if not index.recomputable[op]:
            raise ScheduleError(f"operation {op} may not run again")
    named = [t for freed in schedule.frees for t in freed]
    named += [c.tensor for c in schedule.copies_out + schedule.copies_in]
    for tensor in named:
        if not 0 <= tensor < index.tensors:
            raise ScheduleError(f"no tensor {tensor}")
        if index.static[tensor]:
            raise ScheduleError(f"tensor {tensor} is static")
    for copy in schedule.copies_out + schedule.copies_in:
        if not START <= copy.after < events:
            raise ScheduleError(f"no compute event {copy.after}")
    for back in schedule.copies_in:
        if not any(
            out.tensor == back.tensor and out.after <= back.after for out in schedule.copies_out
        ):
            raise ScheduleError(f"tensor {back.tensor} is copied in but never out before")


# --- Playing ----------------------------------------------------------------------------------


@dataclass
class Flight:
    """A copy that occupies its engine."""

    number: int
    tensor: int
    latency_ns: int
    work: int  # bytes x 1000 left to move

    @property
    def done(self) -> bool:
        return self.latency_ns == 0 and self.work <= 0

    def ends_in(self, rate: int) -> int:
        return self.latency_ns + -(-max(self.work, 0) // rate)

    def move(self, elapsed_ns: int, rate: int) -> None:
        waited = min(elapsed_ns, self.latency_ns)
        self.latency_ns -= waited
        self.work -= rate * (elapsed_ns - waited)


@dataclass
class Running:
    """A compute event that occupies its stream."""

    event: int
    work: int  # duration x 1,000,000 left to do
    fresh: list[int]  # storages whose memory this event brings
    temporary_bytes: int  # workspace and scratch, gone at its end


@dataclass
class Referee:
    step: TrainingStep
    machine: Machine
    schedule: Schedule
    capacity: int
    numbers: Numbers | None = None

    clock: int = 0
    present: dict[int, int] = field(default_factory=dict)  # readable tensor: its version
    leaving: dict[int, int] = field(default_factory=dict)  # freed, but a copy out is not complete
    leaves_after: dict[int, list[int]] = field(default_factory=dict)  # leaving: those copies out
    host_version: dict[int, int] = field(default_factory=dict)  # tensor with a buffer: its version

    running: Running | None = None
    flying_out: Flight | None = None
    flying_in: Flight | None = None
    next_event: int = 0
    next_out: int = 0
    next_in: int = 0

    memory: list[tuple[int, int]] = field(default_factory=list)
    peak: int = 0
    host_peak: int = 0
    stalls: list[tuple[int, int, int, str, int]] = field(default_factory=list)

    def __post_init__(self) -> None:
        index, program = self.step.index, self.schedule
        self.size = index.size_bytes.tolist()
        self.moved = index.transfer_bytes.tolist()
        self.duration = index.duration_ns.tolist()
        self.workspace = index.workspace_bytes.tolist()
        self.reads, self.writes = index.reads, index.writes
        self.events = [[NEVER, NEVER] for _ in program.compute]
        self.outs = [[NEVER, NEVER] for _ in program.copies_out]
        self.ins = [[NEVER, NEVER] for _ in program.copies_in]
        self.rates = self.machine.link.rates()
        if self.numbers is None:
            self.numbers = Numbers(
                [self.duration[op] for op in program.compute],
                [self.moved[copy.tensor] * 1000 for copy in program.copies_out],
                [self.moved[copy.tensor] * 1000 for copy in program.copies_in],
            )

    def run(self) -> Played:
        while True:
            self.settle()
            wait = self.until_next_end()
            if self.finished or wait is None:
                break
            self.note_stall(wait)
            self.advance(wait)
        return Played(
            compute=[tuple(e) for e in self.events],
            copies_out=[tuple(e) for e in self.outs],
            copies_in=[tuple(e) for e in self.ins],
            step_ns=self.events[-1][1] if self.finished else None,
            peak_bytes=self.peak,
            memory=self.memory,
            host_bytes=self.host_peak,
            stalls=self.stalls,
            out_of_memory=None if self.finished else self.stuck(),
        )

    # Time

    def settle(self) -> None:
        """Rule 6: of what can happen, the first in this order, until nothing can."""
        in_order = (self.apply_ends, self.start_compute, self.start_out, self.start_in)
        while not self.finished and any(happens() for happens in in_order):
            pass

    @property
    def finished(self) -> bool:
        """The step ends with its last compute event, and the play with it."""
        return self.events[-1][1] != NEVER

    def rate_out(self) -> int:
        return self.rates.d2h_duplex if self.flying_in else self.rates.d2h

    def rate_in(self) -> int:
        return self.rates.h2d_duplex if self.flying_out else self.rates.h2d

    def speed(self) -> int:
        """Millionths of its full speed that the compute stream has (rule 10)."""
        copies = (self.flying_out is not None) + (self.flying_in is not None)
        link = self.machine.link
        if copies == 0:
            return 1_000_000
        return round(1_000_000 * link.overlap / (1 + link.contention * copies))

    def until_next_end(self) -> int | None:
        waits = []
        if self.running and self.running.work <= 0:
            waits.append(0)
        elif self.running and self.speed() > 0:
            waits.append(-(-self.running.work // self.speed()))
        if self.flying_out:
            waits.append(self.flying_out.ends_in(self.rate_out()))
        if self.flying_in:
            waits.append(self.flying_in.ends_in(self.rate_in()))
        return min(waits, default=None)

    def advance(self, elapsed_ns: int) -> None:
        if self.running:
            self.running.work -= self.speed() * elapsed_ns
        if self.flying_out:
            self.flying_out.move(elapsed_ns, self.rate_out())
        if self.flying_in:
            self.flying_in.move(elapsed_ns, self.rate_in())
        self.clock += elapsed_ns

    # Memory

    def in_use(self) -> int:
        held = [*self.present, *self.leaving]
        temporary = 0
        if self.running:
            held += self.running.fresh
            temporary = self.running.temporary_bytes
        if self.flying_in:
            held.append(self.flying_in.tensor)
        return sum(self.size[t] for t in held) + temporary

    def note_memory(self) -> None:
        now = self.in_use()
        assert now <= self.capacity
        if now != (self.memory[-1][1] if self.memory else 0):
            self.memory.append((self.clock, now))
            self.peak = max(self.peak, now)

    def host_buffer(self, tensor: int) -> int:
        return self.machine.host.buffer_bytes(self.moved[tensor])

    def host_in_use(self) -> int:
        return sum(self.host_buffer(t) for t in self.host_version)

    # Ends

    def apply_ends(self) -> bool:
        """All ends that are due: compute with its frees, copy out, copy in."""
        happened = False
        if self.running and self.running.work <= 0:
            self.end_compute(self.running)
            happened = True
        if self.flying_out and self.flying_out.done:
            self.end_out(self.flying_out)
            happened = True
        if self.flying_in and self.flying_in.done:
            self.end_in(self.flying_in)
            happened = True
        return happened

    def end_out(self, copy: Flight) -> None:
        self.flying_out = None
        self.outs[copy.number][1] = self.clock
        tensor = copy.tensor
        if tensor in self.leaving and all(self.out_done(n) for n in self.leaves_after[tensor]):
            del self.leaving[tensor]
            self.note_memory()

    def end_in(self, copy: Flight) -> None:
        self.flying_in = None
        self.ins[copy.number][1] = self.clock
        self.present[copy.tensor] = self.host_version[copy.tensor]
        queue = self.schedule.copies_in
        if all(later.tensor != copy.tensor for later in queue[copy.number + 1 :]):
            del self.host_version[copy.tensor]

    def end_compute(self, running: Running) -> None:
        event = running.event
        self.running = None
        self.events[event][1] = self.clock
        for tensor, version in self.writes[self.schedule.compute[event]]:
            if version > 0 or tensor in running.fresh:
                self.present[tensor] = version
        for tensor in self.schedule.frees[event]:
            self.free(tensor, event)
        self.note_memory()

    def free(self, tensor: int, event: int) -> None:
        if tensor not in self.present:
            raise ScheduleError(f"event {event} frees tensor {tensor}, which is not on the device")
        pending = [
            number
            for number, copy in enumerate(self.schedule.copies_out)
            if copy.tensor == tensor and copy.after <= event and not self.out_done(number)
        ]
        version = self.present.pop(tensor)
        if pending:
            self.leaving[tensor] = version
            self.leaves_after[tensor] = pending

    def out_done(self, number: int) -> bool:
        return self.outs[number][1] != NEVER

    def ended(self, trigger: int) -> bool:
        return trigger == START or self.events[trigger][1] != NEVER

    # Starts

    def missing_inputs(self) -> list[int]:
        """Inputs of the next compute event that cannot be read now, in the order of reads."""
        op = self.schedule.compute[self.next_event]
        return [tensor for tensor, _ in self.reads[op] if tensor not in self.present]

    def allocation(self) -> tuple[list[int], int]:
        """What the next compute event allocates: storages it brings, and temporary bytes."""
        op = self.schedule.compute[self.next_event]
        fresh, temporary = [], self.workspace[op]
        for tensor, version in self.writes[op]:
            if version > 0:
                continue
            arriving = self.flying_in is not None and self.flying_in.tensor == tensor
            if tensor in self.present or arriving:
                temporary += self.size[tensor]
            else:
                fresh.append(tensor)
        return fresh, temporary

    def over_capacity(self) -> int:
        """Bytes by which the next compute event does not fit, 0 or less where it does."""
        fresh, temporary = self.allocation()
        needed = sum(self.size[t] for t in fresh) + temporary
        return self.in_use() + needed - self.capacity

    def start_compute(self) -> bool:
        event = self.next_event
        if self.running or event == len(self.events):
            return False
        op = self.schedule.compute[event]
        for tensor, version in self.reads[op]:
            if self.present.get(tensor, version) != version:
                raise ScheduleError(f"event {event} reads a lost version of tensor {tensor}")
        if self.missing_inputs():
            return False
        if any(version == 0 and tensor in self.leaving for tensor, version in self.writes[op]):
            return False
        if self.over_capacity() > 0:
            return False
        for tensor, version in self.writes[op]:
            if version > 0 and self.flying_out and self.flying_out.tensor == tensor:
                raise ScheduleError(f"event {event} overwrites tensor {tensor} during its copy")
        fresh, temporary = self.allocation()
        work = self.numbers.durations[event] * 1_000_000
        self.running = Running(event, work, fresh, temporary)
        self.events[event][0] = self.clock
        self.next_event += 1
        self.note_memory()
        return True

    def start_out(self) -> bool:
        number, queue = self.next_out, self.schedule.copies_out
        if self.flying_out or number == len(queue) or not self.ended(queue[number].after):
            return False
        tensor = queue[number].tensor
        if tensor in self.present:
            version = self.present[tensor]
        elif tensor in self.leaving:
            version = self.leaving[tensor]
        else:
            raise ScheduleError(f"copy out {number} of tensor {tensor}: not on the device")
        if self.running:
            op = self.schedule.compute[self.running.event]
            if any(t == tensor and v > 0 for t, v in self.writes[op]):
                raise ScheduleError(f"copy out {number} of tensor {tensor} during an overwrite")
        if self.host_short(number) > 0:
            return False
        self.host_version[tensor] = version
        self.host_peak = max(self.host_peak, self.host_in_use())
        self.flying_out = self.flight(number, tensor, self.numbers.work_out[number])
        self.outs[number][0] = self.clock
        self.next_out += 1
        return True

    def host_short(self, number: int) -> int:
        """Bytes of host memory that a copy out lacks, 0 or less where it fits."""
        limit, tensor = self.machine.host.pinned_bytes, self.schedule.copies_out[number].tensor
        if limit is None or tensor in self.host_version:
            return 0
        return self.host_in_use() + self.host_buffer(tensor) - limit

    def in_ready(self) -> bool:
        """Whether the next copy in lacks nothing but device memory."""
        number, queue = self.next_in, self.schedule.copies_in
        if self.flying_in or number == len(queue) or not self.ended(queue[number].after):
            return False
        copy = queue[number]
        for out_number, out in enumerate(self.schedule.copies_out):
            earlier = out.tensor == copy.tensor and out.after <= copy.after
            if earlier and not self.out_done(out_number):
                return False
        return copy.tensor not in self.leaving

    def start_in(self) -> bool:
        if not self.in_ready():
            return False
        number = self.next_in
        tensor = self.schedule.copies_in[number].tensor
        if tensor in self.present:
            raise ScheduleError(f"copy in {number} of tensor {tensor}: it is on the device")
        if self.running:
            op = self.schedule.compute[self.running.event]
            if any(t == tensor for t, _ in self.writes[op]):
                raise ScheduleError(f"copy in {number} of tensor {tensor}: it is being written")
        if self.in_use() + self.size[tensor] > self.capacity:
            return False
        self.flying_in = self.flight(number, tensor, self.numbers.work_in[number])
        self.ins[number][0] = self.clock
        self.next_in += 1
        self.note_memory()
        return True

    def flight(self, number: int, tensor: int, work: int) -> Flight:
        return Flight(number, tensor, self.machine.link.latency_ns, work)

    # Waiting

    def note_stall(self, wait: int) -> None:
        if self.running:
            return
        cause, tensor = self.why()
        now, then = self.clock, self.clock + wait
        if self.stalls:
            event, start, end, *same = self.stalls[-1]
            if (event, end, same) == (self.next_event, now, [cause, tensor]):
                self.stalls[-1] = (event, start, then, cause, tensor)
                return
        self.stalls.append((self.next_event, now, then, cause, tensor))

    def why(self) -> tuple[str, int]:
        missing = self.missing_inputs()
        if missing:
            return "swap-in", missing[0]
        if self.flying_out:
            return "swap-out", self.flying_out.tensor
        if self.next_out < len(self.outs):
            return "swap-out", self.schedule.copies_out[self.next_out].tensor
        if self.flying_in:
            return "swap-in", self.flying_in.tensor
        return "swap-in", self.schedule.copies_in[self.next_in].tensor

    def waiting_copies(self) -> dict[tuple[str, int], int]:
        """Copies that lack nothing but memory, and how much."""
        found = {}
        if self.next_out < len(self.outs) and self.ended(
            self.schedule.copies_out[self.next_out].after
        ):
            short = self.host_short(self.next_out)
            if short > 0:
                found["out", self.next_out] = short
        if self.in_ready():
            tensor = self.schedule.copies_in[self.next_in].tensor
            short = self.in_use() + self.size[tensor] - self.capacity
            if short > 0:
                found["in", self.next_in] = short
        return found

    def stuck(self) -> Stuck:
        queued = {copy.tensor for copy in self.schedule.copies_in[self.next_in :]}
        missing = self.missing_inputs()
        for tensor in missing:
            if tensor not in queued:
                raise ScheduleError(f"event {self.next_event} waits forever for tensor {tensor}")
        waiting = self.waiting_copies()
        if not waiting and (missing or self.over_capacity() <= 0):
            raise ScheduleError(f"event {self.next_event} and the queues wait for each other")
        order = ("in", "out") if missing else ("out",)
        reason = next((copy for side in order for copy in waiting if copy[0] == side), None)
        held = [*self.present, *self.leaving]
        return Stuck(
            event=self.next_event,
            at_ns=self.clock,
            missing_bytes=0 if missing else max(0, self.over_capacity()),
            waiting_copy=reason,
            waiting_bytes=waiting.get(reason, 0),
            resident=tuple(sorted(held, key=lambda t: (-self.size[t], t))),
        )

"""Other ways to simulate a schedule, for comparison: a recurrence, a heap loop and simpy.

They know the same rules as far as `benchmarks/simulator.py` needs them, and give the same step
times; each is written as one would plainly write it.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from dataclasses import dataclass
from typing import Any

from slackswap_opt.machine import LinkRates
from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Cause, Stall
from slackswap_opt.simulator.engine import Player
from slackswap_opt.simulator.lane import Lane
from slackswap_opt.simulator.program import Program
from slackswap_opt.step import TrainingStep

COMPUTE, OUT, IN = range(3)


@dataclass(frozen=True)
class Case:
    """One schedule as counts to wait for (see `slackswap_opt.simulator.program`) with numbers."""

    program: Program
    duration_ns: list[int]
    out_work: list[int]
    in_work: list[int]
    rates: LinkRates
    latency_ns: int
    capacity_bytes: int


def recurrence(case: Case, order: tuple[tuple[int, int, tuple[tuple[int, int], ...]], ...]) -> int:
    """Step time: the end of each event from the ends of those that it waits for, in order."""
    rates, latency = case.rates, case.latency_ns
    length = (
        case.duration_ns,
        [latency - (-work // rates.d2h) for work in case.out_work],
        [latency - (-work // rates.h2d) for work in case.in_work],
    )
    end = tuple([0] * len(lengths) for lengths in length)
    for kind, number, waits in order:
        start = 0
        for other, position in waits:
            start = max(start, end[other][position])
        end[kind][number] = start + length[kind][number]
    return end[COMPUTE][-1]


def heap_loop(case: Case) -> int:
    """Step time: ends in a heap; after each, whatever can start does. No memory, one rate."""
    program, rates = case.program, case.rates
    length = (
        case.duration_ns,
        [case.latency_ns - (-work // rates.d2h) for work in case.out_work],
        [case.latency_ns - (-work // rates.h2d) for work in case.in_work],
    )
    done, busy = [0, 0, 0], [False, False, False]
    heap: list[tuple[int, int]] = []
    now = 0

    def ready(kind: int) -> bool:
        number = done[kind]
        if busy[kind] or number == len(length[kind]):
            return False
        if kind == COMPUTE:
            return program.after_in[number] <= done[IN] and program.after_out[number] <= done[OUT]
        if kind == OUT:
            return program.out_after[number] <= done[COMPUTE]
        return (
            program.in_after[number] <= done[COMPUTE] and program.in_after_out[number] <= done[OUT]
        )

    while done[COMPUTE] < len(length[COMPUTE]):
        for kind in (COMPUTE, OUT, IN):
            if ready(kind):
                busy[kind] = True
                heapq.heappush(heap, (now + length[kind][done[kind]], kind))
        now, kind = heapq.heappop(heap)
        busy[kind] = False
        done[kind] += 1
        while heap and heap[0][0] == now:
            _, kind = heapq.heappop(heap)
            busy[kind] = False
            done[kind] += 1
    return now


def simpy_timing(case: Case) -> int:
    """Step time by simpy: three processes, an event per end. No memory, one rate."""
    import simpy

    program, rates = case.program, case.rates
    world = simpy.Environment()
    ended = [
        [world.event() for _ in queue] for queue in (case.duration_ns, case.out_work, case.in_work)
    ]

    def compute() -> Generator[Any, Any, None]:
        for number, duration in enumerate(case.duration_ns):
            if program.after_in[number]:
                yield ended[IN][program.after_in[number] - 1]
            yield world.timeout(duration)
            ended[COMPUTE][number].succeed()

    def copies(
        kind: int, work: list[int], rate: int, after: list[int], outs: list[int]
    ) -> Generator[Any, Any, None]:
        for number, amount in enumerate(work):
            yield ended[COMPUTE][after[number] - 1]
            if outs[number]:
                yield ended[OUT][outs[number] - 1]
            yield world.timeout(case.latency_ns - (-amount // rate))
            ended[kind][number].succeed()

    step = world.process(compute())
    none = [0] * len(case.out_work)
    world.process(copies(OUT, case.out_work, rates.d2h, program.out_after, none))
    world.process(copies(IN, case.in_work, rates.h2d, program.in_after, program.in_after_out))
    world.run(until=step)
    return int(world.now)


def _moved(
    world: Any, interrupt: type[Exception], latency: int, work: int, rate_now: Callable[[], int]
) -> Generator[Any, Any, None]:
    """Wait for a copy's latency and bytes; an interrupt says that the rate may be another."""
    while latency or work > 0:
        rate = rate_now()
        begun = world.now
        try:
            yield world.timeout(latency - (-work // rate))
            latency = work = 0
        except interrupt:
            elapsed = int(world.now - begun)
            waited = min(elapsed, latency)
            latency -= waited
            work -= rate * (elapsed - waited)


class SimpyPlayer(Player):
    """The same accounts as `simulate` has, tensor by tensor, with simpy to schedule events.

    Three processes start and end events by the methods of `Player`; simpy has the clock, wakes
    those that wait at every end, and interrupts a copy where the other engine starts or stops.
    At equal times simpy's order of events decides, so that step times may differ in the last
    digits.
    """

    def __init__(self, step: TrainingStep, schedule: Schedule, lane: Lane) -> None:
        import simpy

        super().__init__(step, schedule, lane)
        self.world = simpy.Environment()
        self.interrupt = simpy.Interrupt
        self.moving: dict[int, Any] = {}
        self.changed = self.world.event()

    def run(self) -> int:
        """The step time."""
        compute = self.world.process(self._compute_process())
        self.processes = {
            OUT: self.world.process(self._copy_process(OUT)),
            IN: self.world.process(self._copy_process(IN)),
        }
        self.world.run(until=compute)
        return self.now

    def reschedule(self) -> None:
        """An engine started or stopped: whatever moves looks at its rate again."""
        active = self.world.active_process
        for kind in self.moving:
            if self.processes[kind] is not active:
                self.processes[kind].interrupt()

    def _wake(self) -> None:
        waiting, self.changed = self.changed, self.world.event()
        waiting.succeed()

    def _compute_process(self) -> Generator[Any, Any, None]:
        while self.event < len(self.schedule.compute):
            self.now = int(self.world.now)
            if not self._start_compute():
                begun, missing = self.now, self._missing_input()
                yield self.changed
                self.now = int(self.world.now)
                if self.now > begun:
                    cause = Cause.SWAP_OUT if missing is None else Cause.SWAP_IN
                    self.stalls.append(Stall(self.event, begun, self.now, cause, missing or 0))
                continue
            yield self.world.timeout(self.duration[self.event])
            self.now = int(self.world.now)
            self._end_compute()
            self._wake()

    def _copy_process(self, kind: int) -> Generator[Any, Any, None]:
        engine = self.out if kind == OUT else self.into
        start = self._start_out if kind == OUT else self._start_in
        end = self._end_out if kind == OUT else self._end_in
        for work in engine.work:
            self.now = int(self.world.now)
            while not start():
                yield self.changed
                self.now = int(self.world.now)
            self.moving[kind] = True
            yield from _moved(
                self.world, self.interrupt, engine.latency_ns, work,
                lambda: self.current_rates()[kind - OUT],
            )  # fmt: skip
            del self.moving[kind]
            self.now = int(self.world.now)
            end()
            self._wake()


class SimpyWithCounts:
    """A leaner account with simpy: of counts and bytes that were worked out beforehand.

    It knows start and end of every event, the memory timeline, peaks and waits, and nothing of
    tensors: a schedule that is wrong would go unnoticed.
    """

    def __init__(self, case: Case) -> None:
        import simpy

        self.case, self.program = case, case.program
        self.world = simpy.Environment()
        self.interrupt = simpy.Interrupt
        self.done = [0, 0, 0]
        self.moving = [False, False, False]
        self.process: list[Any] = [None, None, None]
        self.used = 0
        self.peak = 0
        self.memory: list[tuple[int, int]] = []
        self.host_used = self.host_peak = 0
        self.starts: list[list[int]] = [[], [], []]
        self.ends: list[list[int]] = [[], [], []]
        self.stalls: list[tuple[int, int, int, str]] = []
        self.changed = self.world.event()

    def run(self) -> int:
        """The step time."""
        step = self.world.process(self._compute())
        self.process[OUT] = self.world.process(self._outs())
        self.process[IN] = self.world.process(self._ins())
        self.world.run(until=step)
        return int(self.world.now)

    def _change(self, amount: int) -> None:
        if amount:
            self.used += amount
            self.peak = max(self.peak, self.used)
            self.memory.append((int(self.world.now), self.used))

    def _end(self, kind: int, freed: int) -> None:
        self.done[kind] += 1
        self.ends[kind].append(int(self.world.now))
        self._change(-freed)
        waiting, self.changed = self.changed, self.world.event()
        waiting.succeed()

    def _compute(self) -> Generator[Any, Any, None]:
        program, done = self.program, self.done
        for number, duration in enumerate(self.case.duration_ns):
            while (
                program.after_in[number] > done[IN]
                or program.after_out[number] > done[OUT]
                or self.used + program.allocated[number] > self.case.capacity_bytes
            ):
                cause = "swap-in" if program.after_in[number] > done[IN] else "swap-out"
                begun = int(self.world.now)
                yield self.changed
                if self.world.now > begun:
                    self.stalls.append((number, begun, int(self.world.now), cause))
            self.starts[COMPUTE].append(int(self.world.now))
            self._change(program.allocated[number])
            yield self.world.timeout(duration)
            freed = program.released[number]
            for copy in program.leaving[number]:
                if copy < done[OUT]:
                    freed += program.out_bytes[copy]
            self._end(COMPUTE, freed)

    def _outs(self) -> Generator[Any, Any, None]:
        program, rates = self.program, self.case.rates
        for number, work in enumerate(self.case.out_work):
            while program.out_after[number] > self.done[COMPUTE]:
                yield self.changed
            self.host_used += program.out_buffer[number]
            self.host_peak = max(self.host_peak, self.host_used)
            yield from self._move(OUT, IN, work, rates.d2h, rates.d2h_duplex)
            freed_by = program.out_freed_by[number]
            leaves = freed_by is not None and freed_by <= self.done[COMPUTE]
            self._end(OUT, program.out_bytes[number] if leaves else 0)

    def _ins(self) -> Generator[Any, Any, None]:
        program, rates, done = self.program, self.case.rates, self.done
        for number, work in enumerate(self.case.in_work):
            while (
                program.in_after[number] > done[COMPUTE]
                or program.in_after_out[number] > done[OUT]
                or self.used + program.in_bytes[number] > self.case.capacity_bytes
            ):
                yield self.changed
            self._change(program.in_bytes[number])
            yield from self._move(IN, OUT, work, rates.h2d, rates.h2d_duplex)
            self.host_used -= program.in_buffer[number]
            self._end(IN, 0)

    def _move(
        self, kind: int, other: int, work: int, alone: int, duplex: int
    ) -> Generator[Any, Any, None]:
        """Bytes at the rate that the other engine allows; it interrupts when it starts or stops."""
        self.moving[kind] = True
        self.starts[kind].append(int(self.world.now))
        self._tell(other)
        yield from _moved(
            self.world, self.interrupt, self.case.latency_ns, work,
            lambda: duplex if self.moving[other] else alone,
        )  # fmt: skip
        self.moving[kind] = False
        self._tell(other)

    def _tell(self, other: int) -> None:
        if self.moving[other]:
            self.process[other].interrupt()

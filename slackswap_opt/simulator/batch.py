"""Many playings at once: schedules of one step, scenarios of one schedule, or both.

Every lane says exactly what `engine.simulate` says of it alone. Lanes with a regular schedule
(`program.py`) are played together by `lockstep.play`, however few they are; `engine.Player` plays
the others, and words what is wrong with a schedule.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.machine import Machine
from slackswap_opt.plan.schedule import Schedule
from slackswap_opt.simulator import lockstep
from slackswap_opt.simulator.engine import Player, check_structure
from slackswap_opt.simulator.lane import UNDISTURBED, WORK_PER_BYTE, Lane
from slackswap_opt.simulator.lanes import Inputs
from slackswap_opt.simulator.program import Program, regular_program
from slackswap_opt.simulator.record import NEVER, Record
from slackswap_opt.simulator.scenarios import Scenarios, checked, rates_of
from slackswap_opt.simulator.tables import FAR
from slackswap_opt.simulator.verdict import Verdict
from slackswap_opt.step import TrainingStep

Ints = NDArray[np.int64]

LONGEST_NS = 1 << 40
"""Events that last longer are not played together; work in finer units must fit 64 bits."""
MOST = 2.0**60
"""No sum of durations or of work in lanes that are played together reaches this."""


@dataclass(frozen=True)
class BatchVerdict(Record):
    """What the referee says of every lane.

    Attributes:
        errors: by lane, what is wrong with its schedule. The arrays say nothing of these lanes.
    """

    errors: Mapping[int, ScheduleError]
    _batch: _Batch

    @property
    def lanes(self) -> int:
        """B."""
        return len(self.step_ns)

    @property
    def fits(self) -> NDArray[np.bool_]:
        """(B,) whether the whole step ran within the capacity."""
        return np.asarray(self.step_ns != NEVER)

    @property
    def stall_ns(self) -> Ints:
        """(B,) time the compute stream waited, until the end or the standstill."""
        ended = self.compute_end_ns != NEVER
        worked = np.where(ended, self.compute_end_ns - self.compute_start_ns, 0).sum(axis=0)
        until = np.where(self.fits, self.step_ns, self.stuck_ns)
        return np.asarray(until - worked, dtype=np.int64)

    def memory(self, lane: int) -> tuple[Ints, Ints]:
        """The changes of memory in use of a lane, as in `Timeline`.

        Raises:
            InputError: if the batch was simulated without `timeline`.
        """
        if not self._batch.timeline:
            raise InputError("this batch was simulated without timeline=True")
        levels = self.memory_bytes[:, lane]
        change = (np.diff(levels, prepend=0) != 0) & (levels != NEVER)
        return self.memory_ns[change, lane], levels[change]

    def verdict(self, lane: int) -> Verdict:
        """All of one lane, with the cause of each stall and what is resident where it is stuck.

        The lane is played once more, by itself.

        Raises:
            ScheduleError: if its schedule is wrong.
        """
        if lane in self.errors:
            raise self.errors[lane]
        return self._batch.play_alone(lane)


def simulate_batch(
    step: TrainingStep,
    machine: Machine,
    schedules: Schedule | Sequence[Schedule],
    capacity_bytes: int | ArrayLike,
    scenarios: Scenarios | None = None,
    *,
    timeline: bool = False,
) -> BatchVerdict:
    """Play every lane.

    The number of lanes is that of the schedules, capacities and scenarios, where each may be one
    for all lanes.

    Args:
        step: what is to be run.
        machine: link and host, where the scenarios do not say otherwise.
        schedules: one for all lanes, or one per lane.
        capacity_bytes: one for all lanes, or (B,).
        scenarios: durations, work, rates and latencies per lane.
        timeline: whether to keep `memory_ns` and `memory_bytes`, at most two entries of 16 bytes a
            lane for each event.

    Raises:
        InputError: if the numbers of lanes differ or an array is not what it should be.
    """
    batch = _Batch.of(step, machine, schedules, capacity_bytes, scenarios or Scenarios(), timeline)
    return batch.play()


@dataclass(frozen=True)
class _Batch:
    step: TrainingStep
    machine: Machine
    schedules: tuple[Schedule, ...]
    which: Ints
    capacity: Ints
    scenarios: Scenarios
    timeline: bool

    @classmethod
    def of(
        cls,
        step: TrainingStep,
        machine: Machine,
        schedules: Schedule | Sequence[Schedule],
        capacity_bytes: int | ArrayLike,
        scenarios: Scenarios,
        timeline: bool,
    ) -> _Batch:
        capacity = np.array(np.minimum(np.asarray(capacity_bytes, dtype=object), FAR), np.int64)
        counts = {
            "schedules": None if isinstance(schedules, Schedule) else len(schedules),
            "capacities": None if capacity.ndim == 0 else len(capacity),
            "scenarios": scenarios.lanes(),
        }
        given = {name: count for name, count in counts.items() if count is not None}
        if len(set(given.values())) > 1:
            raise InputError(
                "a batch needs one number of lanes; got "
                + ", ".join(f"{count} {name}" for name, count in given.items())
            )
        lanes = next(iter(given.values()), 1)
        every = (schedules,) * lanes if isinstance(schedules, Schedule) else tuple(schedules)
        number: dict[int, int] = {}
        which = np.array([number.setdefault(id(s), len(number)) for s in every], dtype=np.int64)
        distinct = tuple({id(s): s for s in every}.values())
        events, outs, ins = _longest(distinct)
        scenarios = Scenarios(
            *(
                None if array is None else checked(name, array, (*rows, lanes), least)
                for name, array, rows, least in (
                    ("duration_ns", scenarios.duration_ns, (events,), 0),
                    ("out_work", scenarios.out_work, (outs,), 0),
                    ("in_work", scenarios.in_work, (ins,), 0),
                    ("rates", scenarios.rates, (4,), 1),
                    ("latency_ns", scenarios.latency_ns, (), 0),
                )
            )
        )
        capacity = np.broadcast_to(capacity, (lanes,))
        return cls(step, machine, distinct, which, capacity, scenarios, timeline)

    # -- one lane -------------------------------------------------------------------------

    def lane(self, number: int) -> Lane:
        """The numbers of one lane."""
        schedule, given = self.schedules[self.which[number]], self.scenarios
        base = Lane.of(self.step, self.machine, schedule, int(self.capacity[number]))

        def column(array: ArrayLike | None, otherwise: Sequence[int]) -> Sequence[int]:
            if array is None:
                return otherwise
            picked: list[int] = np.asarray(array)[: len(otherwise), number].tolist()
            return picked

        return replace(
            base,
            duration_ns=column(given.duration_ns, base.duration_ns),
            out_work=column(given.out_work, base.out_work),
            in_work=column(given.in_work, base.in_work),
            rates=base.rates
            if given.rates is None
            else rates_of(np.asarray(given.rates)[:, number]),
            latency_ns=base.latency_ns
            if given.latency_ns is None
            else int(np.asarray(given.latency_ns)[number]),
        )

    def play_alone(self, number: int) -> Verdict:
        schedule = self.schedules[self.which[number]]
        check_structure(self.step, schedule)
        return Player(self.step, schedule, self.lane(number)).play()

    # -- all lanes ------------------------------------------------------------------------

    def play(self) -> BatchVerdict:
        lanes = len(self.which)
        programs = self._programs()
        number = np.flatnonzero(np.isin(self.which, list(programs)))
        results = _Results(_longest(self.schedules), lanes)
        alone = np.ones(lanes, dtype=bool)
        if number.size:
            inputs = _pick(self._inputs(programs), number)
            together = np.flatnonzero(_can_play_together(self.step, inputs))
            number, inputs = number[together], _pick(inputs, together)
        if number.size:
            place = {schedule: at for at, schedule in enumerate(programs)}
            inputs = replace(
                inputs, which=np.array([place[int(w)] for w in inputs.which], dtype=np.int64)
            )
            record, wrong = lockstep.play(list(programs.values()), inputs, timeline=self.timeline)
            results.put(number, record)
            alone[number[~wrong]] = False
        for lane in np.flatnonzero(alone).tolist():
            results.put_alone(lane, self.play_alone)
        return results.verdict(self)

    def _programs(self) -> dict[int, Program]:
        """The regular ones among the schedules, by their number."""
        found = {}
        for number, schedule in enumerate(self.schedules):
            try:
                check_structure(self.step, schedule)
            except ScheduleError:
                continue
            program = regular_program(self.step, schedule, self.machine.host)
            if program is not None:
                found[number] = program
        return found

    def _inputs(self, programs: Mapping[int, Program]) -> Inputs:
        """The numbers of all lanes; those of lanes without a program mean nothing."""
        lanes, given, link = len(self.which), self.scenarios, self.machine.link
        events, outs, ins = _longest(self.schedules)
        duration = self.step.index.duration_ns
        work = self.step.index.transfer_bytes * WORK_PER_BYTE

        def table(array: ArrayLike | None, rows: int, queue: Callable[[Schedule], Ints]) -> Ints:
            if array is not None:
                return np.asarray(array)[:rows]
            per_schedule = np.ones((len(self.schedules), rows), dtype=np.int64)
            for number in programs:
                found = queue(self.schedules[number])
                per_schedule[number, : len(found)] = found
            return per_schedule.T.take(self.which, axis=1)

        rates, speeds = link.rates(), link.compute_speeds()
        limit = self.machine.host.pinned_bytes
        return Inputs(
            which=self.which,
            duration_ns=table(given.duration_ns, events, lambda s: duration[list(s.compute)]),
            out_work=table(given.out_work, outs, lambda s: work[[c.tensor for c in s.copies_out]]),
            in_work=table(given.in_work, ins, lambda s: work[[c.tensor for c in s.copies_in]]),
            rates=np.repeat(
                [[rates.d2h], [rates.h2d], [rates.d2h_duplex], [rates.h2d_duplex]], lanes, axis=1
            )
            if given.rates is None
            else np.asarray(given.rates),
            latency_ns=np.full(lanes, link.latency_ns)
            if given.latency_ns is None
            else np.asarray(given.latency_ns),
            speeds=None
            if speeds == UNDISTURBED
            else np.repeat(np.array(speeds)[:, None], lanes, axis=1),
            host_bytes=np.full(lanes, FAR if limit is None else limit),
            capacity_bytes=self.capacity,
        )


def _longest(schedules: Sequence[Schedule]) -> tuple[int, int, int]:
    """Most compute events, copies out and copies in."""
    return (
        max((len(s.compute) for s in schedules), default=0),
        max((len(s.copies_out) for s in schedules), default=0),
        max((len(s.copies_in) for s in schedules), default=0),
    )


def _can_play_together(step: TrainingStep, inputs: Inputs) -> NDArray[np.bool_]:
    """(B,) lanes in which nothing leaves 64 bits."""
    index = step.index
    held = int(index.size_bytes.sum()) + int(index.workspace_bytes.max(initial=0))
    possible = inputs.latency_ns >= 0
    if 2 * held >= FAR:
        return ~possible
    possible &= inputs.duration_ns.max(axis=0, initial=0) <= LONGEST_NS
    possible &= inputs.duration_ns.sum(axis=0, dtype=np.float64) < MOST
    for work in (inputs.out_work, inputs.in_work):
        possible &= work.sum(axis=0, dtype=np.float64) < MOST
    return possible


def _pick(inputs: Inputs, lanes: Ints) -> Inputs:
    """The numbers of some lanes."""
    if len(lanes) == len(inputs.which):
        return inputs
    arrays = {field.name: getattr(inputs, field.name) for field in fields(inputs)}
    picked = {name: array[..., lanes] for name, array in arrays.items() if array is not None}
    return replace(inputs, **picked)


_PER_EVENT = (
    "compute_start_ns", "compute_end_ns", "out_start_ns", "out_end_ns", "in_start_ns", "in_end_ns",
)  # fmt: skip
_PER_LANE = ("step_ns", "peak_bytes", "host_bytes", "stuck_event", "stuck_ns", "missing_bytes")
_MEMORY = ("memory_ns", "memory_bytes")


class _Results:
    """Records for all lanes, filled from lanes played together and lanes played alone."""

    def __init__(self, rows: tuple[int, int, int], lanes: int) -> None:
        self.rows, self.lanes = rows, lanes
        self.record: Record | None = None
        self.memory: list[tuple[Ints, Ints, Ints]] = []
        self.errors: dict[int, ScheduleError] = {}

    def put(self, lanes: Ints, record: Record) -> None:
        """Everything of lanes that were played together."""
        if len(lanes) == self.lanes:
            self.record = record
        else:
            ours = self._all_lanes()
            for name in _PER_EVENT + _PER_LANE:
                getattr(ours, name)[..., lanes] = getattr(record, name)
        self.memory.append((lanes, record.memory_ns, record.memory_bytes))

    def _all_lanes(self) -> Record:
        if self.record is None:
            self.record = Record.blank(*self.rows, 0, self.lanes)
        return self.record

    def put_alone(self, lane: int, play: Callable[[int], Verdict]) -> None:
        """Play one lane and take what the referee says of it."""
        ours = self._all_lanes()
        for name in _PER_EVENT + _PER_LANE:
            getattr(ours, name)[..., lane] = NEVER
        try:
            verdict = play(lane)
        except ScheduleError as error:
            self.errors[lane] = error
            return
        line, stop = verdict.timeline, verdict.out_of_memory
        for name in _PER_EVENT:
            array = getattr(line, name)
            getattr(ours, name)[: len(array), lane] = array
        numbers = (
            NEVER if verdict.step_ns is None else verdict.step_ns,
            verdict.peak_bytes,
            line.host_bytes,
            NEVER if stop is None else stop.event,
            NEVER if stop is None else stop.at_ns,
            0 if stop is None else stop.missing_bytes,
        )
        for name, number in zip(_PER_LANE, numbers, strict=True):
            getattr(ours, name)[lane] = number
        memory = line.memory_ns[:, None], line.memory_bytes[:, None]
        self.memory.append((np.array([lane]), *memory))

    def verdict(self, batch: _Batch) -> BatchVerdict:
        """The whole batch."""
        arrays = vars(self._all_lanes()) | dict(
            zip(_MEMORY, self._timeline(wanted=batch.timeline), strict=True)
        )
        return BatchVerdict(**arrays, errors=self.errors, _batch=batch)

    def _timeline(self, *, wanted: bool) -> tuple[Ints, Ints]:
        if wanted and len(self.memory) == 1 and len(self.memory[0][0]) == self.lanes:
            return self.memory[0][1:]
        most = max((len(ns) for _, ns, _ in self.memory), default=0) if wanted else 0
        memory_ns, memory_bytes = np.full((2, most, self.lanes), NEVER, dtype=np.int64)
        if wanted:
            for lanes, instants, levels in self.memory:
                memory_ns[: len(instants), lanes] = instants
                memory_bytes[: len(levels), lanes] = levels
                memory_bytes[len(levels) :, lanes] = NEVER
        return memory_ns, memory_bytes

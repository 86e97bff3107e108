"""From a solution of the time-indexed model to a complete schedule, and its copies timed better.

The model says in which stage each operation runs again, when each value is on the device, and in
which period each copy begins and ends. Here this becomes compute events, frees, two queues and
triggers. As the model's engines are fluid within a period, the order of the queues and the
triggers are then improved one at a time, with the referee as judge.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap_opt.errors import ScheduleError
from slackswap_opt.formulation.time_indexed import Copies, Key, StageModel
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.simulator import Verdict, simulate

TRIALS = 3000
"""Simulations that timing the copies of one schedule may take."""
WHOLE = 1 - 1e-6
"""What counts as a copy that is over."""


@dataclass
class Stay:
    """A value on the device without interruption.

    Attributes:
        created: event that writes it; for a copy in, the first event that may start after it.
        last: last event that reads it, or `created` if none does.
        trigger: for a copy in, the event that allows it; None if an event writes the value.
        since: period in which it is created.
        read: whether any event reads it.
    """

    created: int
    last: int
    since: int
    trigger: int | None = None
    read: bool = False


@dataclass(frozen=True)
class Return:
    """A copy in with the events between which its trigger may lie.

    Attributes:
        tensor: index in the step.
        trigger: event that allows it.
        earliest: first event that may.
        need: first event that reads the tensor.
    """

    tensor: int
    trigger: int
    earliest: int
    need: int


@dataclass(frozen=True)
class StagedProgram:
    """A schedule whose copies can still be timed.

    Attributes:
        compute: operation of each event.
        frees: tensors freed at the end of each event.
        outs: copies out in order.
        returns: copies in in order.
    """

    compute: tuple[int, ...]
    frees: tuple[tuple[int, ...], ...]
    outs: tuple[Copy, ...]
    returns: tuple[Return, ...]

    def schedule(self) -> Schedule:
        """As data for the referee."""
        copies_in = tuple(Copy(r.tensor, r.trigger) for r in self.returns)
        return Schedule(self.compute, self.frees, self.outs, copies_in)


@dataclass
class _Layout:
    """Where events are."""

    compute: list[int] = field(default_factory=list)
    original: list[int] = field(default_factory=list)
    gap: list[list[int]] = field(default_factory=list)


def program_of(sm: StageModel, values: Sequence[float]) -> StagedProgram:
    """The program that an integer solution of the model stands for."""
    sets = sm.sets
    at = _Layout()
    for k in range(sets.count):
        again = [i for i in sets.reruns[k] if values[sm.rerun[k, i]] > 0.5]
        at.gap.append(list(range(len(at.compute), len(at.compute) + len(again))))
        at.compute += again
        at.original.append(len(at.compute))
        at.compute.append(k)
    frees: list[list[int]] = [[] for _ in at.compute]
    outs: list[tuple[tuple[int, ...], Copy]] = []
    returns: list[tuple[tuple[int, ...], Return]] = []
    for x in range(len(sets.values)):
        stays = [s for s in _stays(sm, values, at, x) if s.trigger is None or s.read]
        for number, stay in enumerate(stays):
            over = sets.overwriter(x)
            if over is None or at.compute[stay.last] != over:
                frees[stay.last].append(sets.tensor[x])
            if stay.trigger is not None:
                earliest = stays[number - 1].last
                trigger = max(stay.trigger, earliest)
                found = Return(sets.tensor[x], trigger, earliest, stay.created)
                returns.append(((trigger, stay.since, stay.created, x), found))
        if any(stay.trigger is not None for stay in stays):
            over_in, source = _source(sm, values, x, stays)
            key = (over_in, source.last, source.created, x)
            outs.append((key, Copy(sets.tensor[x], source.created)))
    return StagedProgram(
        tuple(at.compute),
        tuple(map(tuple, frees)),
        tuple(copy for _, copy in sorted(outs, key=lambda pair: pair[0])),
        tuple(found for _, found in sorted(returns, key=lambda pair: pair[0])),
    )


def _stays(sm: StageModel, values: Sequence[float], at: _Layout, x: int) -> Iterator[Stay]:
    """The stays of a value, in order."""
    sets = sm.sets
    writer = sets.writer[x]
    current = Stay(at.original[writer], at.original[writer], 2 * writer + 1)
    alive = True

    def begins(event: int, period: int, trigger: int | None = None) -> Iterator[Stay]:
        nonlocal current, alive
        if not alive:
            yield current
            current, alive = Stay(event, event, period, trigger), True

    def is_read(event: int) -> None:
        if current.trigger is not None and not current.read:
            current.created = event
        current.last, current.read = event, True

    for k in range(writer + 1, sets.count):
        alive = alive and (k, x) in sm.begin and values[sm.begin[k, x]] > 0.5
        if _yes(values, sm.arrived, sm.gap(k, x)):
            yield from begins(at.original[k], 2 * k, _trigger(sm, values, at, 2 * k, x))
        for event in at.gap[k]:
            if at.compute[event] in sets.readers[x]:
                is_read(event)
            elif at.compute[event] == writer:
                yield from begins(event, 2 * k)
        alive = alive and sm.at_start(k, x).value(values)
        if k in sets.readers[x]:
            is_read(at.original[k])
        if sm.overlapped and _yes(values, sm.arrived, sm.run(k, x)):
            yield from begins(at.original[k] + 1, 2 * k + 1, _trigger(sm, values, at, 2 * k + 1, x))
    yield current


def _yes(values: Sequence[float], variables: Mapping[Key, int], key: Key) -> bool:
    return key in variables and values[variables[key]] > 0.5


def _trigger(sm: StageModel, values: Sequence[float], at: _Layout, period: int, x: int) -> int:
    """The last event before the period in which the copy in that ends in this one begins."""
    while sm.overlapped and _yes(values, sm.arriving, (period - 1, x)):
        period -= 1
    stage, running = divmod(period, 2)
    return at.original[stage] - 1 if running else at.original[stage - 1]


def _source(
    sm: StageModel, values: Sequence[float], x: int, stays: Sequence[Stay]
) -> tuple[int, Stay]:
    """The period in which the copy out is over, and the stay in which it is made."""
    if sm.sets.copies is Copies.ADDITIVE:
        over = min(2 * k for k in sm.sets.stages(x) if _yes(values, sm.paged_out, (k, x)))
    else:
        work = sm.sets.work(x, sm.sets.rates.d2h)
        over = min(
            p for (p, y), done in sm.out_done.items() if y == x and values[done] >= WHOLE * work
        )
    first = next(number for number, stay in enumerate(stays) if stay.trigger is not None)
    made = [stay for stay in stays[:first] if stay.since <= over]
    return over, made[-1]


# -- Timing ----------------------------------------------------------------------------------------

_Score = tuple[int, int]
"""0 and the step time if it fits, 1 and the events that did not run if not; 2 if it is invalid."""


def timed(
    problem: Problem, program: StagedProgram, stop_at_ns: int = 0
) -> tuple[Schedule, Verdict] | None:
    """The program with its copies timed as well as single changes can; None if it never fits.

    Args:
        problem: step, machine and budget.
        program: what to time.
        stop_at_ns: a step time that is good enough.
    """
    search = _Timing(problem, stop_at_ns)
    for start in (program, _late(program)):
        search.descend(start)
        if search.done():
            break
    return search.best


def _late(program: StagedProgram) -> StagedProgram:
    """The same with each copy in just before its need."""
    late = sorted(program.returns, key=lambda r: (r.need, r.tensor))
    returns = tuple(Return(r.tensor, r.need - 1, r.earliest, r.need) for r in late)
    return StagedProgram(program.compute, program.frees, program.outs, returns)


class _Timing:
    def __init__(self, problem: Problem, stop_at_ns: int) -> None:
        self.problem, self.stop_at_ns = problem, stop_at_ns
        self.trials = 0
        self.seen: dict[Schedule, _Score] = {}
        self.best: tuple[Schedule, Verdict] | None = None

    def done(self) -> bool:
        known = None if self.best is None else self.best[1].step_ns
        return self.trials >= TRIALS or (known is not None and known <= self.stop_at_ns)

    def score(self, program: StagedProgram) -> _Score:
        schedule = program.schedule()
        if schedule not in self.seen:
            self.seen[schedule] = self._play(schedule)
        return self.seen[schedule]

    def _play(self, schedule: Schedule) -> _Score:
        self.trials += 1
        problem = self.problem
        try:
            verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
        except ScheduleError:
            return 2, 0
        if verdict.step_ns is None:
            return 1, int((verdict.timeline.compute_end_ns < 0).sum())
        if self.best is None or verdict.step_ns < (self.best[1].step_ns or 0):
            self.best = schedule, verdict
        return 0, verdict.step_ns

    def descend(self, program: StagedProgram) -> None:
        """Take the first change that helps, until none does."""
        score = self.score(program)
        improved = True
        while improved and not self.done():
            improved = False
            for other in _changes(program):
                found = self.score(other)
                if found < score:
                    program, score, improved = other, found, True
                    break
                if self.done():
                    return


def _changes(program: StagedProgram) -> Iterator[StagedProgram]:
    """One trigger moved, or two neighbours of a queue exchanged."""
    returns, outs = program.returns, program.outs
    for number, back in enumerate(returns):
        for trigger in range(back.earliest, back.need):
            if trigger != back.trigger:
                moved = Return(back.tensor, trigger, back.earliest, back.need)
                changed = (*returns[:number], moved, *returns[number + 1 :])
                yield StagedProgram(program.compute, program.frees, outs, changed)
    for number in range(len(returns) - 1):
        first, second = returns[number : number + 2]
        if first.tensor != second.tensor:
            swapped = (*returns[:number], second, first, *returns[number + 2 :])
            yield StagedProgram(program.compute, program.frees, outs, swapped)
    for number in range(len(outs) - 1):
        swapped_outs = (*outs[:number], outs[number + 1], outs[number], *outs[number + 2 :])
        yield StagedProgram(program.compute, program.frees, swapped_outs, returns)

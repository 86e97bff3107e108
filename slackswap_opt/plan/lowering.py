"""From a program or a plan to a complete schedule.

Copies out follow the order in which their tensors are done with; copies in follow the order of
need, each as early as memory allows. Times come from a clock: the durations alone at first, then,
if the caller wants, the start times that a simulation of the first result gave.
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.plan.actions import Action, Plan
from slackswap_opt.plan.problem import Problem
from slackswap_opt.plan.program import Program, needs_after, program_of
from slackswap_opt.plan.schedule import Copy, Schedule


@dataclass(frozen=True)
class Clock:
    """Predicted times of compute events.

    Attributes:
        start_ns: (events,) when each starts.
        end_ns: (events,) when each ends.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @classmethod
    def without_stalls(cls, durations_ns: NDArray[np.int64]) -> Clock:
        """Back to back."""
        end = np.cumsum(durations_ns)
        return cls(end - durations_ns, end)


@dataclass(frozen=True, slots=True)
class _Stay:
    """One stretch of compute events for which a tensor is on the device, both ends included.

    Attributes:
        first: the event that allocates it or, if it is fetched, the first that needs it.
        last: the last event that touches it.
        fetched: whether it comes by a copy in.
    """

    first: int
    last: int
    fetched: bool = False


@dataclass(frozen=True, slots=True)
class _Trip:
    """The copy out of a tensor.

    Attributes:
        ready: event that writes its last version: from its end the copy may start.
        done: last event of the stay after which it is first fetched again.
        back: event by which it must be back for the first time.
    """

    ready: int
    done: int
    back: int


def lower(problem: Problem, plan: Plan, clock: Clock | None = None) -> Schedule:
    """A complete schedule that carries out a plan.

    Args:
        problem: step, machine and budget; the budget limits how early copies in start.
        plan: an action per activation.
        clock: predicted times of this plan's compute events; durations back to back if not given.

    Raises:
        UnbuildablePlanError: if a dropped tensor is needed and cannot be rebuilt.
    """
    return schedule_of(problem, program_of(problem, plan), clock)


def schedule_of(problem: Problem, program: Program, clock: Clock | None = None) -> Schedule:
    """A complete schedule of a program; the clock as for `lower`."""
    index = problem.step.index
    if clock is None or len(clock.start_ns) != len(program.compute):
        clock = Clock.without_stalls(index.duration_ns[list(program.compute)])
    stays = _stays(problem, program)
    trips = _trips(problem, program, stays)
    link = problem.machine.link
    rates = link.rates()

    def transfer_ns(tensor: int, rate: int) -> int:
        return link.copy_ns(int(index.transfer_bytes[tensor]), rate)

    outs, out_end = _queue_out(trips, clock, {t: transfer_ns(t, rates.d2h) for t in trips})
    memory = _memory(problem, program, stays, trips, clock, out_end)
    copies_in = _queue_in(
        problem, stays, clock, out_end, memory, {t: transfer_ns(t, rates.h2d) for t in trips}
    )
    return Schedule(program.compute, _frees(program, stays), tuple(outs), tuple(copies_in))


def without_idle_copies(problem: Problem, plan: Plan) -> tuple[Plan, Program]:
    """The plan in which what is rebuilt in time anyway is neither swapped nor kept; its program.

    A re-execution recreates every output of its block, so an output that is first needed after it
    need not be kept or fetched. Plans with nothing of the kind come back unchanged.

    Raises:
        UnbuildablePlanError: if a dropped tensor is needed and cannot be rebuilt.
    """
    program = program_of(problem, plan)
    touched = program.touched(problem)

    def wanted_between(tensor: int, event: int) -> bool:
        done = program.original[int(problem.liveness.last_forward[tensor])]
        return any(e < event for e in needs_after(problem, program, touched, tensor, done))

    anyway = {
        t: Action.RECOMPUTE
        for rerun in program.reruns
        for t in rerun.block.outputs
        if plan.of(t) in (Action.KEEP, Action.SWAP) and not wanted_between(t, rerun.first)
    }
    if not anyway:
        return plan, program
    plan = Plan({**plan.actions, **anyway})
    return plan, program_of(problem, plan)


def _stays(problem: Problem, program: Program) -> dict[int, list[_Stay]]:
    """Each tensor's stays: what a re-execution recreates in vain is gone at the end of it."""
    live = problem.liveness
    first_write: list[int] = live.first_write.tolist()
    last_write: list[int] = live.last_write.tolist()
    begins: dict[int, list[tuple[int, int, bool]]] = {}
    for rerun in program.reruns:
        for tensor in rerun.block.outputs:
            begins.setdefault(tensor, []).append((rerun.first, rerun.last, False))
    for tensor, event in program.fetches:
        begins.setdefault(tensor, []).append((event, event, True))
    stays: dict[int, list[_Stay]] = {}
    for tensor, touched in program.touched(problem).items():
        if first_write[tensor] < 0:
            continue
        written = program.original[first_write[tensor]]
        if tensor not in begins:
            stays[tensor] = [_Stay(written, touched[-1])]
            continue
        ready = program.original[last_write[tensor]]
        starts = [(written, ready, False), *sorted(begins[tensor])]
        ends = [*(first for first, _, _ in starts[1:]), len(program.compute)]
        stays[tensor] = [
            _Stay(first, max(last, touched[bisect_left(touched, end) - 1]), fetched)
            for (first, last, fetched), end in zip(starts, ends, strict=True)
        ]
    return stays


def _trips(
    problem: Problem, program: Program, stays: Mapping[int, Sequence[_Stay]]
) -> dict[int, _Trip]:
    trips = {}
    for tensor in sorted({tensor for tensor, _ in program.fetches}):
        number = next(n for n, stay in enumerate(stays[tensor]) if stay.fetched)
        ready = program.original[int(problem.liveness.last_write[tensor])]
        before, back = stays[tensor][number - 1], stays[tensor][number]
        trips[tensor] = _Trip(ready, before.last, back.first)
    return trips


def _frees(program: Program, stays: Mapping[int, Sequence[_Stay]]) -> tuple[tuple[int, ...], ...]:
    frees: list[list[int]] = [[] for _ in program.compute]
    for tensor, of_tensor in stays.items():
        for stay in of_tensor:
            frees[stay.last].append(tensor)
    return tuple(map(tuple, frees))


def _queue_out(
    trips: Mapping[int, _Trip], clock: Clock, transfer_ns: Mapping[int, int]
) -> tuple[list[Copy], dict[int, int]]:
    """Of the tensors ready to go, always the one that is done with first."""
    waiting = sorted(trips, key=lambda t: (trips[t].ready, t))
    ready: list[tuple[int, int]] = []
    queue: list[Copy] = []
    ends: dict[int, int] = {}
    now = position = 0
    while position < len(waiting) or ready:
        while position < len(waiting):
            tensor = waiting[position]
            available = int(clock.end_ns[trips[tensor].ready])
            if available > now and ready:
                break
            now = max(now, available)
            heapq.heappush(ready, (trips[tensor].done, tensor))
            position += 1
        _, tensor = heapq.heappop(ready)
        now += transfer_ns[tensor]
        ends[tensor] = now
        queue.append(Copy(tensor, trips[tensor].ready))
    return queue, ends


def _memory(
    problem: Problem,
    program: Program,
    stays: Mapping[int, Sequence[_Stay]],
    trips: Mapping[int, _Trip],
    clock: Clock,
    out_end: Mapping[int, int],
) -> NDArray[np.int64]:
    """(events,) bytes in use at each compute event, before any prefetch.

    A swapped tensor counts until its copy out is over, and again from its first need.
    """
    index = problem.step.index
    change = np.zeros(len(program.compute) + 1, dtype=np.int64)
    for tensor, of_tensor in stays.items():
        size, free = index.size_bytes[tensor], 0
        for number, stay in enumerate(of_tensor):
            last = stay.last
            if tensor in trips and number + 1 < len(of_tensor) and of_tensor[number + 1].fetched:
                covered = int(np.searchsorted(clock.start_ns, out_end[tensor], side="left")) - 1
                last = min(max(last, covered), of_tensor[number + 1].first - 1)
            first = max(stay.first, free) if stay.fetched else stay.first
            change[first] += size
            change[last + 1] -= size
            free = last + 1
    return np.cumsum(change[:-1]) + index.workspace_bytes[list(program.compute)]


def _queue_in(
    problem: Problem,
    stays: Mapping[int, Sequence[_Stay]],
    clock: Clock,
    out_end: Mapping[int, int],
    memory: NDArray[np.int64],
    transfer_ns: Mapping[int, int],
) -> list[Copy]:
    """In the order of need, each as early as memory and its own copy out allow."""
    needs = sorted(
        (stay.first, tensor, before.last)
        for tensor in out_end
        for before, stay in itertools.pairwise(stays[tensor])
        if stay.fetched
    )
    queue: list[Copy] = []
    now = 0
    for back, tensor, trigger in needs:
        size = int(problem.step.index.size_bytes[tensor])
        crowded = np.flatnonzero(memory[trigger + 1 : back] > problem.budget_bytes - size)
        if crowded.size:
            trigger += 1 + int(crowded[-1])
        begin = max(now, int(clock.end_ns[trigger]), out_end[tensor])
        ended = int(np.searchsorted(clock.end_ns, begin, side="right")) - 1
        trigger = max(trigger, min(ended, back - 1))
        memory[trigger + 1 : back] += size
        queue.append(Copy(tensor, trigger))
        now = begin + transfer_ns[tensor]
    return queue

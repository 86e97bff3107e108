"""Long steps: the boundary ILP at the cut of the bound."""

from __future__ import annotations

import itertools
import random
from collections.abc import Sequence

from slackswap_opt.formulation.cut_plan import CutPlanner, LearnedRow, narrow_tensors
from slackswap_opt.plan import Action, Problem
from slackswap_opt.planners.copies_search import follow
from slackswap_opt.planners.realize import Realized
from slackswap_opt.planners.search import (
    PATIENCE,
    Search,
    complete,
    round_relaxation,
    stretches,
)
from slackswap_opt.simulator import Cause, OutOfMemory, Stall

SPACINGS = (None, 16, 48, 8, 96)
"""Distances of narrow places, in operations, in the order in which they are tried; None: none."""
LESSONS = (5, 12)
"""Plans in a row that may run out of memory before the next distance is tried: few at first, as
what was learned serves them all, and then more."""
UNTAUGHT = 1
"""Where eviction on demand makes plans fit (`follow`), each distance is tried as it is first."""


def cut_search(search: Search, rounds: int | None = None, *, eager: bool = False) -> None:
    """Plan with the boundary ILP, with narrow places at one distance after another.

    Args:
        search: the state, which is updated.
        rounds: how many distances to try; all if not given.
        eager: whether plans that do not fit are followed from the beginning; on long steps, where
            this takes longer than to learn, from the second distance on.
    """
    problem = search.problem
    cut = search.bound.cut if search.bound.cut >= 0 else problem.liveness.peak_operation
    learned: list[LearnedRow] = []
    patience = (UNTAUGHT, *LESSONS) if eager and search.wide() else LESSONS
    tries = itertools.product(patience, SPACINGS)
    for number, (lessons, spacing) in enumerate(itertools.islice(tries, rounds)):
        narrow = narrow_tensors(problem, spacing) if spacing else set()
        known = [] if lessons == UNTAUGHT else learned
        follows = eager or number > 0
        _descend(search, cut, narrow, known, lessons, random.Random(number), follows=follows)
        if search.done():
            return


def _descend(
    search: Search,
    cut: int,
    narrow: set[int],
    learned: list[LearnedRow],
    lessons: int,
    chance: random.Random,
    *,
    follows: bool,
) -> None:
    """Solve, simulate, tighten; then open one neighbourhood after another."""
    idle = 0
    planner = CutPlanner(search.problem, cut, narrow, learned)
    values = round_relaxation(search, planner.model, planner.choices)
    while values is not None and idle < PATIENCE:
        before = search.best_ns
        plan = planner.plan(values)
        realized = search.judge(plan)
        if follows and search.wide() and (realized is None or not realized.verdict.fits):
            follow(search, plan)
        if search.done():
            return
        seen_ns = planner.step_ns(values) + search.tolerance_ns
        rows = _lessons(search.problem, realized, cut, seen_ns) if realized else []
        if rows:
            learned += rows
            lessons -= 1
            if not lessons:
                return
            planner = CutPlanner(search.problem, cut, narrow, learned)
            values = round_relaxation(search, planner.model, planner.choices)
            continue
        idle = 0 if search.best_ns != before else idle + 1
        values = _reopened(search, planner, values, chance)


def _reopened(
    search: Search, planner: CutPlanner, values: Sequence[float], chance: random.Random
) -> list[float] | None:
    """Decide a few stretches of the step anew, all else as it is; the values kept if it fails."""
    opened = stretches(list(planner.decisions), chance)
    fixed = {
        x: round(values[x])
        for t, variables in planner.decisions.items()
        if t not in opened
        for x in variables
    }
    return complete(search, planner.model, fixed) or list(values)


def _lessons(problem: Problem, realized: Realized, cut: int, seen_ns: float) -> list[LearnedRow]:
    """What a verdict says of memory at other operations than the cut.

    Args:
        problem: the problem.
        realized: a plan of the model.
        cut: where the model stands.
        seen_ns: the step time that it sees in the plan; it knows of stalls up to that.
    """
    verdict = realized.verdict
    if verdict.out_of_memory is not None:
        return _out_of_memory(problem, realized, verdict.out_of_memory)
    if verdict.step_ns is None or verdict.step_ns <= seen_ns:
        return []
    return [
        _stalled(problem, realized, stall)
        for stall in verdict.timeline.stalls
        if stall.cause is Cause.SWAP_OUT and _position(realized, stall.event) < cut
    ]


def _position(realized: Realized, event: int) -> int:
    """The operation of the step that a compute event is, or that it comes before."""
    compute = realized.schedule.compute
    position = max(compute[: event + 1])
    return position if compute[event] == position else position + 1


def _out_of_memory(problem: Problem, realized: Realized, verdict: OutOfMemory) -> list[LearnedRow]:
    """What was resident for later operations must become less by what is missing."""
    if verdict.missing_bytes == 0:
        return []
    position = _position(realized, verdict.event)
    live, size = problem.liveness, problem.step.index.size_bytes
    later = [
        t
        for t in verdict.resident
        if (live.saved[t] and live.first_later[t] > position)
        or (not live.saved[t] and live.activation[t] and live.last_forward[t] < position)
    ]
    kept = tuple(t for t in later if realized.plan.of(t) is Action.KEEP)
    rebuilt = tuple(t for t in later if realized.plan.of(t) in (Action.RECOMPUTE, Action.DROP))
    held = sum(int(size[t]) for t in kept + rebuilt)
    if not held:
        return []
    everyone = tuple(
        t
        for t in problem.blocks.evictable
        if (live.saved[t] and live.first_later[t] > position) or t in kept
    )
    return [LearnedRow(everyone, rebuilt, (), held - verdict.missing_bytes)]


def _stalled(problem: Problem, realized: Realized, stall: Stall) -> LearnedRow:
    """What is written by then for later must become less by what the link moved meanwhile."""
    position = _position(realized, stall.event)
    live, size = problem.liveness, problem.step.index.size_bytes
    everyone = tuple(
        t
        for t in problem.blocks.evictable
        if live.saved[t] and live.first_write[t] < position < live.first_later[t]
    )
    held = sum(int(size[t]) for t in everyone if realized.plan.of(t) in (Action.KEEP, Action.SWAP))
    moved = problem.machine.link.rates().d2h * (stall.end_ns - stall.start_ns) // 1000
    return LearnedRow(everyone, (), everyone, held - moved)

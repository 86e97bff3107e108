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
        row = _lesson(search.problem, realized) if realized else None
        if row is not None:
            learned.append(row)
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


def _lesson(problem: Problem, realized: Realized) -> LearnedRow | None:
    """What an out-of-memory verdict says of memory at the operation where it happened."""
    verdict = realized.verdict.out_of_memory
    if verdict is None or verdict.missing_bytes == 0:
        return None
    compute = realized.schedule.compute
    position = max(compute[: verdict.event + 1])
    if compute[verdict.event] != position:
        position += 1
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
        return None
    everyone = tuple(
        t
        for t in problem.blocks.evictable
        if (live.saved[t] and live.first_later[t] > position) or t in kept
    )
    return LearnedRow(everyone, rebuilt, held - verdict.missing_bytes)

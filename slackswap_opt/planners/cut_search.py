"""Long steps: the boundary ILP at the cut of the bound."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Sequence

from slackswap_opt.formulation.cut_plan import CutPlanner, LearnedRow, narrow_tensors
from slackswap_opt.planners.copies_search import follow
from slackswap_opt.planners.lessons import learned_from_memory, learned_from_stalls
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
STALLS = 12
"""Stalls that one descent learns from, at most."""
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
    """Solve, simulate, tighten; then open one neighbourhood after another.

    What was learned of memory that runs out holds for later descents, too. What was learned of
    stalls is for this one, and only as long as the model sees something better then: it says that
    the link will have moved no more by then, which another choice may belie.
    """
    problem = search.problem
    idle = 0
    stalls: list[LearnedRow] = []
    learn_stalls = True
    planner, values = _solved(search, cut, narrow, learned)
    while values is not None and idle < PATIENCE:
        before = search.best_ns
        plan = planner.plan(values)
        realized = search.judge(plan)
        if follows and search.wide() and (realized is None or not realized.verdict.fits):
            follow(search, plan)
        if search.done():
            return
        seen_ns = planner.step_ns(values) + search.tolerance_ns
        row = learned_from_memory(problem, realized) if realized else None
        if row is not None:
            learned.append(row)
            lessons -= 1
            if not lessons:
                return
            planner, values = _solved(search, cut, narrow, [*learned, *stalls])
            continue
        more = (
            learned_from_stalls(problem, realized, cut, seen_ns)
            if realized and learn_stalls
            else []
        )
        if more and len(stalls) < STALLS:
            stricter, changed = _solved(search, cut, narrow, [*learned, *stalls, *more])
            if changed is not None and stricter.step_ns(changed) < (search.best_ns or math.inf):
                stalls += more
                planner, values = stricter, changed
                continue
            learn_stalls = False
        idle = 0 if search.best_ns != before else idle + 1
        values = _reopened(search, planner, values, chance)


def _solved(
    search: Search, cut: int, narrow: set[int], learned: Sequence[LearnedRow]
) -> tuple[CutPlanner, list[float] | None]:
    """The model with what was learned, and a solution of it."""
    planner = CutPlanner(search.problem, cut, narrow, learned)
    return planner, round_relaxation(search, planner.model, planner.choices)


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

"""Short and medium steps: the compact ILP, and single changes that it rounds away."""

from __future__ import annotations

import random
from collections.abc import Sequence

from slackswap_opt.formulation.compact import CompactModel, compact_model
from slackswap_opt.formulation.neighbourhood import assignment, neighbourhood
from slackswap_opt.formulation.sets import HOPS, WORK, Sets, Tightening
from slackswap_opt.plan import Action, Plan
from slackswap_opt.planners.copies_search import follow
from slackswap_opt.planners.realize import Realized
from slackswap_opt.planners.search import (
    LESSONS,
    PATIENCE,
    SOLVE_S,
    Search,
    complete,
    round_relaxation,
    stretches,
)
from slackswap_opt.simulator import Cause

SHORT_NODES = 20_000
"""Branch-and-bound nodes for a whole short step."""


def compact_search(search: Search, *, whole: bool) -> None:
    """Plan with the compact ILP, tightened by what simulations show.

    With and without the rule that copies out are over at the turn: with it the model promises
    no more than whole copies can do, without it nothing is lost.

    Args:
        search: the state, which is updated.
        whole: whether to solve the model at once; otherwise its relaxation is rounded first, and
            then a few stretches at a time are decided anew.
    """
    for drained in (False, True):
        _solve_and_tighten(search, drained=drained, hops=HOPS, whole=whole)
        if search.done():
            return


def recompute_search(search: Search, hops: int, *, whole: bool) -> None:
    """The same where nothing may be swapped.

    Args:
        search: the state, which is updated.
        hops: how far downstream, in blocks, a need may lie that re-executes a block.
        whole: as `compact_search`.
    """
    _solve_and_tighten(search, drained=True, hops=hops, whole=whole)


def _solve_and_tighten(search: Search, *, drained: bool, hops: int, whole: bool) -> None:
    """Solve, simulate, learn; until there is nothing to learn or nothing improves."""
    tightening = Tightening()
    chance = random.Random(0)
    plan: Plan | None = None
    lessons = idle = 0
    while lessons < LESSONS and idle < PATIENCE and not search.done():
        known = plan or (search.best.plan if search.best else None)
        plans = [known] if known else []
        sets = Sets(search.problem, tightening, plans, drained=drained, hops=hops)
        cm = compact_model(sets)
        start = assignment(cm, sets, known) if known else None
        if whole:
            longest_s = SOLVE_S if search.problem.swaps else search.seconds_left()
            values = complete(search, cm.model, {}, start, SHORT_NODES, longest_s)
        elif plan is None:
            choices = (*cm.keep.values(), *cm.swap.values())
            values = round_relaxation(search, cm.model, choices, start)
        else:
            values = _reopened(search, cm, sets, plan, chance)
        if values is None:
            if plan is None:
                return
            idle += 1
            continue
        before = search.best_ns
        proposal = cm.plan(values)
        realized = search.judge(proposal)
        if realized is None:
            return
        if search.wide() and not realized.verdict.fits:
            follow(search, proposal)
        learned = _tightened(tightening, cm, sets, values, realized)
        if learned is not None:
            tightening, lessons = learned, lessons + 1
        elif whole:
            return
        if realized.verdict.fits:
            improved = search.best_ns != before
            idle = 0 if improved else idle + 1
            plan = proposal if plan is None or improved else plan


def _reopened(
    search: Search, cm: CompactModel, sets: Sets, plan: Plan, chance: random.Random
) -> list[float] | None:
    """Decide a few stretches of the step anew, all else as in the plan."""
    opened = stretches(sorted(cm.keep, key=lambda t: (sets.done[t], t)), chance)
    left = neighbourhood(cm, sets, plan, opened)
    fixed = {x: v for x, v in assignment(cm, sets, plan).items() if x not in left}
    return complete(search, cm.model, fixed)


def polish(search: Search) -> None:
    """Change one action at a time, as long as the referee likes it better.

    The models round a few things to the safe side; this takes back what single actions can.
    """
    size = search.problem.step.index.size_bytes
    tensors = [t for t in search.problem.blocks.evictable if size[t]]
    improved = True
    while improved and search.best is not None and search.best.plan is not None:
        improved = False
        for t in tensors:
            for action in (Action.KEEP, Action.SWAP, Action.RECOMPUTE):
                if search.done():
                    return
                plan = search.best.plan
                assert plan is not None
                before = search.best_ns
                if plan.of(t) is not action:
                    search.judge(Plan({**plan.actions, t: action}))
                improved |= search.best_ns != before


def _tightened(
    tightening: Tightening,
    cm: CompactModel,
    sets: Sets,
    values: Sequence[float],
    realized: Realized,
) -> Tightening | None:
    """Leave memory free where it ran out, or where a copy out had to be waited for."""
    compute = realized.schedule.compute
    verdict = realized.verdict.out_of_memory
    if verdict is not None:
        operation = max(compute[: verdict.event + 1])
        return tightening.with_reserve(operation, max(1, verdict.missing_bytes))
    waits = [s for s in realized.verdict.timeline.stalls if s.cause is Cause.SWAP_OUT]
    planned = sum(values[x] for x in cm.stall)
    if not waits or realized.verdict.stall_ns <= planned * 1.001 + 1:
        return None
    worst = max(waits, key=lambda s: s.end_ns - s.start_ns)
    operation = max(compute[: worst.event + 1])
    still_out = (worst.end_ns - worst.start_ns) * sets.rates.d2h // WORK
    return tightening.with_reserve(operation, max(1, sets.size[worst.tensor] - still_out))

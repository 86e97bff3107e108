"""The smallest budget: a proven lower limit, and the smallest one found feasible."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from slackswap_opt.plan import Action, Plan, PlanResult, Problem, Schedule, Status
from slackswap_opt.planners import HEURISTICS, Planner
from slackswap_opt.planners.realize import realize
from slackswap_opt.simulator import simulate
from slackswap_opt.step import TrainingStep, working_set_bytes

RESOLUTION = 1000
"""The search stops within this fraction (one over it) of the ideal peak."""
SLOW_ROUNDS = 3
"""How many budgets the searching heuristics are asked for."""
QUICK = ("recompute-all", "sqrt-n", "swap-all")
SLOW = ("greedy", "capuchin")


@dataclass(frozen=True)
class LowerLimit:
    """No schedule runs with less: one operation needs this much at once.

    Attributes:
        budget_bytes: inputs, outputs and workspace of that operation.
        operation: its name.
    """

    budget_bytes: int
    operation: str


@dataclass(frozen=True)
class Smallest:
    """The smallest budget for which a schedule was found.

    Attributes:
        budget_bytes: it; None if the search found nothing below the ideal peak, nor at it.
        planner: whose schedule.
        schedule: it, simulated to fit this budget.
        limit: what is proven.
    """

    budget_bytes: int | None
    planner: str | None
    schedule: Schedule | None
    limit: LowerLimit


def lower_limit(step: TrainingStep) -> LowerLimit:
    """The largest working set of an operation."""
    needed = working_set_bytes(step)
    operation = int(np.argmax(needed))
    return LowerLimit(int(needed[operation]), step.operations[operation].name)


def smallest_budget(problem: Problem, report: Callable[[str], None] | None = None) -> Smallest:
    """Search for the smallest budget with heuristics; the problem's own budget is not used.

    Bisects between what is proven and the ideal peak with quick policies, then tries the greedy
    planners a few times below what these reach. The peak of each schedule found becomes the new
    upper end, so that it is often much better than the budget asked for.
    """
    limit = lower_limit(problem.step)
    search = _Search(problem, limit, report or (lambda _: None))
    quick: list[Planner] = [HEURISTICS[name] for name in QUICK]
    search.bisect([*quick, leanest])
    search.bisect([HEURISTICS[name] for name in SLOW], rounds=SLOW_ROUNDS)
    best = search.best
    if best is None:
        return Smallest(None, None, None, limit)
    return Smallest(search.high, best.planner, best.schedule, limit)


def leanest(problem: Problem) -> PlanResult:
    """Recompute what stays inside of a layer, swap everything else."""
    index, live, blocks = problem.step.index, problem.liveness, problem.blocks
    ops = problem.step.operations

    def crosses(tensor: int) -> bool:
        touching = {*index.writers[tensor], *index.readers[tensor]}
        return len({ops[op].layer for op in touching if index.forward[op]}) > 1

    def action(tensor: int) -> Action:
        rebuildable = blocks.block_of[tensor] >= 0
        if rebuildable and (not live.saved[tensor] or not crosses(tensor)):
            return Action.RECOMPUTE
        return Action.SWAP

    plan = Plan({t: action(t) for t in blocks.evictable})
    realized = realize(problem, plan)
    if realized is None or not realized.verdict.fits:
        return PlanResult("leanest", Status.INFEASIBLE)
    return PlanResult("leanest", Status.FEASIBLE, realized.schedule, realized.step_ns, plan)


class _Search:
    """Between a budget that is too small and one for which a schedule is known."""

    def __init__(self, problem: Problem, limit: LowerLimit, report: Callable[[str], None]) -> None:
        self.problem = problem
        self.low = limit.budget_bytes - 1
        self.high = problem.liveness.ideal_peak_bytes
        self.floor = self.low
        self.finest = max(1, self.high // RESOLUTION)
        self.report = report
        self.best: PlanResult | None = None
        self._try(self.high, [HEURISTICS["keep-all"]])

    def bisect(self, planners: Sequence[Planner], rounds: int = 64) -> None:
        low = self.floor
        if not self._try(low + 1, planners):
            while self.high - low > self.finest and rounds > 0:
                middle = (low + self.high) // 2
                if not self._try(middle, planners):
                    low = middle
                rounds -= 1

    def _try(self, budget: int, planners: Sequence[Planner]) -> bool:
        self.report(f"{self.problem.step.name}: looking for a plan in {budget} bytes")
        found = False
        problem = self.problem.with_budget(budget)
        for planner in planners:
            result = planner(problem)
            if result.schedule is None:
                continue
            peak = simulate(problem.step, problem.machine, result.schedule, budget).peak_bytes
            at_peak = simulate(problem.step, problem.machine, result.schedule, peak)
            if at_peak.fits and (not found or peak < self.high):
                found, self.best, self.high = True, result, peak
        return found

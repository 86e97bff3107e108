"""The smallest memory for a given slowdown, with a proven limit beside it.

A slowdown of 5 % allows a step of 1.05 times the ideal one. Two bisections over the budget meet:
from below, budgets for which the bound proves that every schedule is slower (a bound for a budget
holds for each smaller one, so this is a limit); from above, budgets for which a schedule was found.
Between the two nothing is known.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from fractions import Fraction

from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.plan import Problem
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.study.attempt import Outcome, attempt
from slackswap_opt.study.judge import Judged, judge
from slackswap_opt.study.smallest import LowerLimit, lower_limit
from slackswap_opt.study.sweep import Report, Settings, silent

RESOLUTION = Fraction(1, 100)
"""Both bisections stop within this share of the ideal peak."""


@dataclass(frozen=True)
class FrontierPoint:
    """The smallest memory for one slowdown.

    Attributes:
        slowdown: the step may take (1 + slowdown) times the ideal one.
        target_ns: that time.
        budget_bytes: the smallest budget for which a schedule was found.
        judged: that schedule; its peak is the budget.
        planner: whose it is.
        limit_bytes: proven: with less, every schedule is slower, or there is none.
        limit_cut: name of the operation that the proof rests on: where the bound was found, or
            which one needs so much alone.
    """

    slowdown: Fraction
    target_ns: int
    budget_bytes: int
    judged: Judged
    planner: str
    limit_bytes: int
    limit_cut: str


@dataclass(frozen=True)
class Frontier:
    """Memory against slowdown.

    Attributes:
        problem: step and machine; its budget is the ideal peak.
        least: proven: nothing runs with less, however slow.
        points: by slowdown, in the order asked for.
    """

    problem: Problem
    least: LowerLimit
    points: tuple[FrontierPoint, ...]


def frontier(
    problem: Problem,
    slowdowns: Sequence[Fraction],
    planner: str = "ilp",
    settings: Settings | None = None,
    report: Report = silent,
    resolution: Fraction = RESOLUTION,
) -> Frontier:
    """Find the smallest memory for each slowdown.

    More slowdown never takes more memory: schedules found on the way are shared.

    Args:
        problem: step and machine; its own budget is not used.
        slowdowns: 0 or more, in any order.
        planner: who plans.
        settings: how planner and bound are run.
        report: told what is being worked on.
        resolution: where to stop, as a share of the ideal peak.

    Raises:
        InputError: for an unknown planner.
        InvalidPlanError, CertificateError, SolverUnavailableError: as
            `slackswap_opt.study.sweep.sweep`.
    """
    whole = problem.with_budget(max(1, problem.liveness.ideal_peak_bytes))
    search = _Search(whole, planner, settings or Settings(), report, resolution)
    points = {slowdown: search.point(slowdown) for slowdown in sorted(set(slowdowns))}
    return Frontier(whole, search.least, tuple(points[slowdown] for slowdown in slowdowns))


class _Search:
    """Bounds and schedules known so far."""

    def __init__(
        self,
        whole: Problem,
        planner: str,
        settings: Settings,
        report: Report,
        resolution: Fraction,
    ) -> None:
        self.whole, self.planner, self.settings, self.report = whole, planner, settings, report
        self.peak = whole.budget_bytes
        self.least = lower_limit(whole.step)
        self.finest = max(1, int(self.peak * resolution))
        self.bounds: dict[int, Bound] = {}
        self.known: list[Judged] = []
        self._know(judge(whole, HEURISTICS["keep-all"](whole), self.bound_at(self.peak)))

    def point(self, slowdown: Fraction) -> FrontierPoint:
        """The smallest memory for a slowdown."""
        target = int(self.whole.ideal_step_ns * (1 + slowdown))
        limit, cut = self._limit(target)
        low, best = limit - 1, self._best(target)
        while _peak(best) - low > self.finest:
            middle = (low + _peak(best)) // 2
            self.report(f"slowdown {float(slowdown):.4g}: {middle} bytes")
            found = attempt(
                self.whole.with_budget(middle), target, self.planner, self.settings, self.report,
                self.bound_at(middle),
            )  # fmt: skip
            if found.judged is not None:
                self._know(found.judged)
            if found.outcome is not Outcome.MET:
                low = middle
            best = self._best(target)
        return FrontierPoint(
            slowdown, target, _peak(best), best, best.result.planner, limit, cut
        )  # fmt: skip

    def _know(self, judged: Judged) -> None:
        """Keep a schedule, played again with no more memory than its peak."""
        peak = _peak(judged)
        limit = self.bounds[max(self.bounds)]  # of the largest budget, so true of any
        self.known.append(judge(self.whole.with_budget(peak), judged.result, limit))

    def bound_at(self, budget: int) -> Bound:
        """The bound at a budget, or one of a larger budget where that is the better limit."""
        if budget not in self.bounds:
            own = bound(self.whole.with_budget(budget), solver=self.settings.solver)
            above = [found for size, found in self.bounds.items() if size > budget]
            self.bounds[budget] = max([own, *above], key=lambda found: found.step_ns)
        return self.bounds[budget]

    def _limit(self, target: int) -> tuple[int, str]:
        """Proven: with less, no schedule takes at most `target`; and the operation why."""
        low, high = self.least.budget_bytes - 1, _peak(self._best(target))
        cut = self.least.operation
        for budget, found in self.bounds.items():  # of other slowdowns
            if found.step_ns <= target:
                high = min(high, budget)
            elif budget > low:
                low, cut = budget, self.whole.step.operations[found.cut].name
        while high - low > self.finest:
            middle = (low + high) // 2
            self.report(f"{self.whole.step.name}: bound at {middle} bytes")
            found = self.bound_at(middle)
            if found.step_ns > target:
                low, cut = middle, self.whole.step.operations[found.cut].name
            else:
                high = middle
        return low + 1, cut

    def _best(self, target: int) -> Judged:
        """The known schedule of the smallest peak that is fast enough."""
        enough = [j for j in self.known if j.step_ns is not None and j.step_ns <= target]
        return min(enough, key=_peak)


def _peak(judged: Judged) -> int:
    """Memory that a schedule needs to do exactly what it did."""
    assert judged.verdict is not None
    return judged.verdict.peak_bytes

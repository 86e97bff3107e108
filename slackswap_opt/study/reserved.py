"""Plans whose reserved memory fits: fragmentation included, in a model of the allocator.

Planners know bytes in use. What an allocator reserves for a schedule is known only once there is
one. So the planner is asked for less until what its schedule reserves is within the budget.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from slackswap_opt.allocator import Kind, Reserved, reserve
from slackswap_opt.plan import PlanResult, Problem, Status
from slackswap_opt.planners import Planner, ilp
from slackswap_opt.study.judge import Judged, judge
from slackswap_opt.study.sweep import Cell, Report, Settings, silent, sweep

ROUNDS = 8
"""How many budgets a planner is asked for at most to narrow down where its plans fit."""
SCANNED = 8
"""How many more where none did, from the whole budget down to the smallest with a plan."""
RESOLUTION = 100
"""The search ends within this fraction (one over it) of the budget."""


@dataclass(frozen=True)
class Fitted:
    """A planner's result under a limit of reserved memory.

    Attributes:
        cell: the problem with its budget, the bound, and the result; its `capacity_bytes` is the
            budget that the planner was given.
        reserved: what the schedule reserves; None where no schedule fits.
        tried: every budget that the planner was given, with the reserved peak of its schedule,
            None where it had none; in order.
    """

    cell: Cell
    reserved: Reserved | None
    tried: tuple[tuple[int, int | None], ...]

    @property
    def none_stays_within(self) -> bool:
        """Whether there were plans, but none that reserves no more than the budget."""
        return self.reserved is None and any(size is not None for _, size in self.tried)


def fit_reserved(
    problem: Problem,
    planners: Mapping[str, Planner],
    kind: Kind = Kind.CACHING,
    settings: Settings | None = None,
    report: Report = silent,
    *,
    own_pool: bool = False,
) -> Fitted:
    """Search for the fastest schedule that reserves no more than the budget.

    The planner is given the budget, then less by what was too much, by more each time, until a
    schedule fits; then budgets between the largest that fitted and the smallest that did not. If
    none fitted, it is given some more in between, largest first. What a schedule reserves does not
    always grow with its budget: the result is the best that was found, which proves nothing.

    Args:
        problem: its budget is what may be reserved.
        planners: one planner by its name.
        kind: which allocator.
        settings: how the planner is run.
        report: told what is being worked on.
        own_pool: as of `reserve`.

    Raises:
        ValueError: unless there is exactly one planner.
    """
    ((name, planner),) = planners.items()
    search = _Search(
        problem, name, planner, kind, settings or Settings(), report, own_pool=own_pool
    )
    return search.run()


class _Search:
    """The budgets tried so far, and the fastest schedule that stays within the whole one."""

    def __init__(
        self,
        problem: Problem,
        name: str,
        planner: Planner,
        kind: Kind,
        settings: Settings,
        report: Report,
        *,
        own_pool: bool,
    ) -> None:
        self.problem, self.name, self.planner, self.kind = problem, name, planner, kind
        self.settings, self.report, self.own_pool = settings, report, own_pool
        self.whole = problem.budget_bytes
        self.finest = max(1, self.whole // RESOLUTION)
        self.tried: dict[int, int | None] = {}
        self.best: tuple[Judged, Reserved] | None = None
        # The bound is that of the whole budget, which holds for each smaller one.
        self.first = self._solve(self.whole)
        self._note(self.whole, self.first.judged[name])

    def run(self) -> Fitted:
        """Narrow down where plans begin to fit; if none did, look in between."""
        self._narrow()
        if self.best is None:
            self._scan()
        return self._result()

    def _narrow(self) -> None:
        stride = 1
        while len(self.tried) < ROUNDS:
            fits = [b for b, size in self.tried.items() if size is None or size <= self.whole]
            low = max(fits, default=0)
            high = min((b for b in self.tried if b > low), default=low)
            if high - low <= self.finest:
                return
            if low:
                budget = self._between(low, high)
            else:
                budget = high - stride * max((self.tried[high] or 0) - self.whole, self.finest)
                stride *= 2
            if budget < 1:
                return
            self._try(budget)

    def _between(self, low: int, high: int) -> int:
        """Where a line through what was reserved meets the budget, away from both ends."""
        reserved, too_much = self.tried[low], self.tried[high]
        if reserved is None or too_much is None:
            return (low + high) // 2
        rise = max(1, too_much - reserved)
        meets = low + (high - low) * max(0, self.whole - reserved) // rise
        margin = self.finest // 2 + 1
        return max(low + margin, min(meets, high - margin))

    def _scan(self) -> None:
        planned = [budget for budget, size in self.tried.items() if size is not None]
        if planned:
            least = min(planned)
            for part in range(SCANNED, 0, -1):
                self._try(least + (self.whole - least) * part // (SCANNED + 1))
                if self.best is not None:
                    return

    def _try(self, budget: int) -> None:
        """Ask for a plan in a smaller budget; only the ILP needs its bound."""
        if budget in self.tried:
            return
        self.report(f"{self.problem.step.name}: {self.name} in {budget} bytes")
        if self.planner is ilp:
            judged = self._solve(budget).judged[self.name]
        else:
            problem = self.problem.with_budget(budget)
            judged = judge(problem, self.planner(problem).named(self.name), self.first.bound)
        self._note(budget, judged)

    def _solve(self, budget: int) -> Cell:
        planners = {self.name: self.planner}
        (cell,) = sweep(self.problem, [budget], planners, self.settings, self.report)
        return cell

    def _note(self, budget: int, judged: Judged) -> None:
        schedule, verdict = judged.result.schedule, judged.verdict
        if schedule is None or verdict is None:
            self.tried[budget] = None
            return
        held = reserve(self.problem.step, schedule, verdict, self.kind, own_pool=self.own_pool)
        self.tried[budget] = held.reserved_peak_bytes
        if held.reserved_peak_bytes <= self.whole and (
            self.best is None or _faster(judged, self.best[0])
        ):
            self.best = judged, held

    def _result(self) -> Fitted:
        tried = tuple(self.tried.items())
        if self.best is not None:
            found, held = self.best
            judged = judge(self.problem, found.result, self.first.bound, found.capacity_bytes)
            return Fitted(replace(self.first, judged={self.name: judged}), held, tried)
        sizes = [size for size in self.tried.values() if size is not None]
        if not sizes:
            return Fitted(self.first, None, tried)
        reason = (
            f"none of {len(sizes)} plans keeps what the {self.kind} allocator reserves within "
            f"{self.whole} bytes; the least was {min(sizes)}"
        )
        nothing = PlanResult(self.name, Status.INFEASIBLE, reason=reason)
        judged = Judged(nothing, self.whole, None)
        return Fitted(replace(self.first, judged={self.name: judged}), None, tried)


def _faster(one: Judged, other: Judged) -> bool:
    assert one.step_ns is not None
    assert other.step_ns is not None
    return one.step_ns < other.step_ns

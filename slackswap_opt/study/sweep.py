"""One step on one machine under several budgets.

A schedule found for a smaller budget is a candidate at each larger one: played at the smaller one's
capacity it does exactly the same, so a planner's step time never grows with the budget. In the same
way a bound for a larger budget holds for each smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace

from slackswap_opt.errors import ScheduleError
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.plan import PlanResult, Problem, Status
from slackswap_opt.planners import HEURISTICS, PLANNERS, IlpOptions, Planner, ilp
from slackswap_opt.simulator import simulate
from slackswap_opt.study.judge import Judged, judge
from slackswap_opt.study.smallest import lower_limit

Report = Callable[[str], None]
"""Told what is being worked on."""


def silent(message: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Settings:
    """How planners and bound are run.

    Attributes:
        gap: certified gap at which the ILP may stop and a plan counts as optimal.
        seconds: wall-clock limit of the ILP per problem.
        solver: "cbc" or "highs".
    """

    gap: float = 0.001
    seconds: float = 60.0
    solver: str = "cbc"


@dataclass(frozen=True)
class Cell:
    """One problem, solved by every planner asked for.

    Attributes:
        problem: step, machine and budget.
        bound: the limit that no schedule beats.
        settings: how it was run.
        judged: by planner, in the order asked for.
        proven_infeasible: no schedule at all fits the budget.
    """

    problem: Problem
    bound: Bound
    settings: Settings
    judged: Mapping[str, Judged]
    proven_infeasible: bool = False

    def status(self, judged: Judged) -> Status:
        """How a result counts once its gap is known."""
        if judged.step_ns is None:
            return Status.INFEASIBLE
        if judged.step_ns - self.bound.step_ns <= self.settings.gap * judged.step_ns:
            return Status.OPTIMAL
        return Status.FALLBACK if judged.result.status is Status.FALLBACK else Status.FEASIBLE


def sweep(
    problem: Problem,
    budgets: Sequence[int],
    planners: Mapping[str, Planner] = PLANNERS,
    settings: Settings | None = None,
    report: Report = silent,
) -> tuple[Cell, ...]:
    """Solve a problem under several budgets.

    Args:
        problem: step and machine; its own budget is not used.
        budgets: bytes, in any order.
        planners: by the name that results carry.
        settings: how to run them.
        report: told what is being worked on.

    Returns:
        One cell per budget, in the order given.

    Raises:
        InvalidPlanError: if a planner returns a schedule that is not what it says.
        CertificateError: if a schedule beats the bound.
        SolverUnavailableError: if the solver cannot be started.
    """
    settings = settings or Settings()
    ascending = sorted(set(budgets))
    limits = _bounds(problem, ascending, settings, report)
    cells: dict[int, Cell] = {}
    carried: dict[str, Judged] = {}
    for budget in ascending:
        at_budget = problem.with_budget(budget)
        cells[budget] = _cell(at_budget, limits[budget], planners, settings, carried, report)
        carried |= {name: judged for name, judged in cells[budget].judged.items() if judged.verdict}
    return tuple(cells[budget] for budget in budgets)


def _bounds(
    problem: Problem, ascending: Sequence[int], settings: Settings, report: Report
) -> dict[int, Bound]:
    """The bound of each budget; one of a larger budget where that is the better limit."""
    least = lower_limit(problem.step).budget_bytes
    found: dict[int, Bound] = {}
    above = Bound(problem.ideal_step_ns, -1, "", 0.0)
    for budget in reversed(ascending):
        if budget >= least:
            report(f"{problem.step.name}: bound")
            own = bound(problem.with_budget(budget), solver=settings.solver)
            above = own if own.step_ns >= above.step_ns else replace(above, seconds=own.seconds)
        found[budget] = above
    return found


def _cell(
    problem: Problem,
    limit: Bound,
    planners: Mapping[str, Planner],
    settings: Settings,
    carried: Mapping[str, Judged],
    report: Report,
) -> Cell:
    least = lower_limit(problem.step)
    if problem.budget_bytes < least.budget_bytes:
        reason = (
            f"proven: operation {least.operation!r} alone needs {least.budget_bytes} bytes, "
            f"more than the budget of {problem.budget_bytes}"
        )
        nothing = {
            name: Judged(
                PlanResult(name, Status.INFEASIBLE, reason=reason), problem.budget_bytes, None
            )
            for name in planners
        }
        return Cell(problem, limit, settings, nothing, proven_infeasible=True)

    found: dict[str, Judged] = {}
    for name, planner in planners.items():
        if planner is not ilp:
            report(f"{problem.step.name}: {name}")
            own = judge(problem, planner(problem).named(name), limit)
            found[name] = _or_carried(problem, own, carried.get(name))
    others = list(found.values())
    for name, planner in planners.items():
        if planner is ilp:
            others += _missing_starts(problem, limit, planners, report)
            report(f"{problem.step.name}: {name}")
            found[name] = _ilp(name, problem, limit, settings, others, carried.get(name))
    return Cell(problem, limit, settings, {name: found[name] for name in planners})


def _missing_starts(
    problem: Problem, limit: Bound, planners: Mapping[str, Planner], report: Report
) -> list[Judged]:
    """Results of the heuristics nobody asked for: the ILP is never worse than any of them."""
    results = []
    for name, planner in HEURISTICS.items():
        if planner not in planners.values():
            report(f"{problem.step.name}: {name}")
            results.append(judge(problem, planner(problem), limit))
    return results


def _ilp(
    name: str,
    problem: Problem,
    limit: Bound,
    settings: Settings,
    others: Sequence[Judged],
    carried: Judged | None,
) -> Judged:
    """The ILP, started from everything known, and the best of all if it does not improve on it."""
    before = [*others, carried] if carried else list(others)
    options = IlpOptions(
        settings.gap,
        settings.seconds,
        settings.solver,
        bound=limit,
        starts=tuple(j.result for j in before if _plays_alike(problem, j)),
    )
    own = judge(problem, ilp(problem, options).named(name), limit)
    seconds = own.result.planning_s + limit.seconds + sum(j.result.planning_s for j in others)
    best = _fastest([own, *before])
    result = replace(own.result, planning_s=seconds)
    if best is not own:
        result = replace(
            best.result.named(name),
            planning_s=seconds,
            time_limited=own.result.time_limited,
            status=Status.FALLBACK,
            solver=own.result.solver,
            reason=_origin(best, problem),
        )
    return replace(best, result=result)


def _or_carried(problem: Problem, own: Judged, carried: Judged | None) -> Judged:
    """A planner's result, or its faster one for a smaller budget."""
    if carried is None or _fastest([own, carried]) is own:
        return own
    result = replace(
        carried.result, planning_s=own.result.planning_s, reason=_origin(carried, problem)
    )
    return replace(carried, result=result)


def _origin(judged: Judged, problem: Problem) -> str:
    if judged.capacity_bytes == problem.budget_bytes:
        return f"the schedule of {judged.result.planner!r}, which the search did not improve on"
    return f"its schedule for a budget of {judged.capacity_bytes} bytes, which nothing beat"


def _fastest(candidates: Sequence[Judged]) -> Judged:
    """The fastest with a schedule, the first among equals; the first if none has one."""
    return min(candidates, key=lambda j: float("inf") if j.step_ns is None else j.step_ns)


def _plays_alike(problem: Problem, judged: Judged) -> bool:
    """Whether a schedule, played at this budget, takes the time it took at its own."""
    schedule = judged.result.schedule
    if schedule is None:
        return False
    if judged.capacity_bytes == problem.budget_bytes:
        return True
    try:
        verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
    except ScheduleError:
        return False
    return verdict.step_ns == judged.step_ns

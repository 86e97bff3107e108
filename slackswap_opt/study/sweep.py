"""One step on one machine under several budgets.

A schedule found for a smaller budget is a candidate at each larger one: played at the smaller one's
capacity it does exactly the same, so a planner's step time never grows with the budget. In the same
way a bound for a larger budget holds for each smaller one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, MutableMapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from slackswap_opt.errors import ScheduleError, SolverUnavailableError
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.plan import PlanResult, Problem, Status
from slackswap_opt.planners import (
    HEURISTICS,
    PLANNERS,
    IlpOptions,
    Planner,
    ReferenceOptions,
    ilp,
    reference,
)
from slackswap_opt.simulator import simulate
from slackswap_opt.study.judge import Judged, hold, judge
from slackswap_opt.study.smallest import LowerLimit, lower_limit

Report = Callable[[str], None]
"""Told what is being worked on."""


SLOW = ("greedy", "on-demand")
"""Heuristics that are tried last, because they take the longest on long steps."""
SEARCH = 0.5
"""Part of the time limit that is left to the ILP's search, however long the heuristics took."""


def silent(message: str) -> None:
    """Report to nobody."""


@dataclass(frozen=True)
class Settings:
    """How planners and bound are run.

    Attributes:
        gap: certified gap at which the ILP may stop and a plan counts as optimal.
        seconds: wall-clock limit of the ILP per problem, bound and heuristics included; and of the
            reference ILP.
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
        bound: the limit that no schedule beats, with what the ILP proved on the way.
        settings: how it was run.
        judged: by planner, in the order asked for.
        proven_infeasible: no schedule at all fits the budget.
        failed: what went wrong, by planner without a result; empty unless failures are recorded.
    """

    problem: Problem
    bound: Bound
    settings: Settings
    judged: Mapping[str, Judged]
    proven_infeasible: bool = False
    failed: Mapping[str, str] = field(default_factory=dict)

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
        SolverUnavailableError: if the solver cannot be started and the ILP is among the planners;
            the others do without, and the bound is the ideal step then.
    """
    settings = settings or Settings()
    ascending = sorted(set(budgets))
    try:
        limits = bounds_of(problem, ascending, settings, report)
    except SolverUnavailableError:
        if ilp in planners.values():
            raise
        limits = dict.fromkeys(ascending, Bound(problem.ideal_step_ns, -1, "", 0.0))
    cells: dict[int, Cell] = {}
    carried: dict[str, Judged] = {}
    for budget in ascending:
        at_budget = problem.with_budget(budget)
        cells[budget] = solve_cell(at_budget, limits[budget], planners, settings, carried, report)
        carried |= fitting(cells[budget])
    above: Bound | None = None
    for budget in reversed(ascending):
        cells[budget] = _under(above, cells[budget])
        above = cells[budget].bound
    return tuple(cells[budget] for budget in budgets)


def _under(above: Bound | None, cell: Cell) -> Cell:
    """The cell with the bound of a larger budget, if that one was bettered meanwhile."""
    if above is None or above.step_ns <= cell.bound.step_ns:
        return cell
    for judged in cell.judged.values():
        hold(cell.problem, judged, above)
    return replace(cell, bound=above)


def bounds_of(
    problem: Problem, budgets: Sequence[int], settings: Settings, report: Report = silent
) -> dict[int, Bound]:
    """The bound of each budget; one of a larger budget where that is the better limit."""
    least = lower_limit(problem.step).budget_bytes
    found: dict[int, Bound] = {}
    above = Bound(problem.ideal_step_ns, -1, "", 0.0)
    for budget in sorted(set(budgets), reverse=True):
        if budget >= least:
            report(f"{problem.step.name}: bound")
            own = bound(problem.with_budget(budget), solver=settings.solver)
            above = own if own.step_ns >= above.step_ns else replace(above, seconds=own.seconds)
        found[budget] = above
    return found


def fitting(cell: Cell) -> dict[str, Judged]:
    """What a cell hands on to larger budgets: results with a schedule, by planner."""
    return {name: judged for name, judged in cell.judged.items() if judged.verdict}


def solve_cell(
    problem: Problem,
    limit: Bound,
    planners: Mapping[str, Planner],
    settings: Settings,
    carried: Mapping[str, Judged],
    report: Report = silent,
    *,
    record_failures: bool = False,
) -> Cell:
    """One budget of a sweep.

    Args:
        problem: step, machine and budget.
        limit: its bound.
        planners: by the name that results carry.
        settings: how to run them.
        carried: by planner, its result for the next smaller budget, judged.
        report: told what is being worked on.
        record_failures: whether a planner that raises is noted in `Cell.failed` and the others go
            on; otherwise what it raises is passed on.

    Raises:
        InvalidPlanError, CertificateError, SolverUnavailableError: as `sweep`.
    """
    least = lower_limit(problem.step)
    if problem.budget_bytes < least.budget_bytes:
        nothing = {
            name: Judged(
                PlanResult(name, Status.INFEASIBLE, reason=_too_little(problem, least)),
                problem.budget_bytes,
                None,
            )
            for name in planners
        }
        return Cell(problem, limit, settings, nothing, proven_infeasible=True)

    failed: dict[str, str] = {}
    recorded = failed if record_failures else None
    found: dict[str, Judged] = {}
    for name, planner in planners.items():
        if planner is not ilp:
            report(f"{problem.step.name}: {name}")
            with _noting(name, recorded):
                own = judge(problem, _planned(planner, problem, settings).named(name), limit)
                found[name] = _or_carried(problem, own, carried.get(name))
                limit = _bettered(limit, own.result)
    others = list(found.values())
    for name, planner in planners.items():
        if planner is ilp:
            with _noting(name, recorded):
                before = [*others, carried[name]] if name in carried else others
                others += _missing_starts(problem, limit, planners, before, report)
                report(f"{problem.step.name}: {name}")
                found[name] = _ilp(name, problem, limit, settings, others, carried.get(name))
                limit = _bettered(limit, found[name].result)
    solved = {name: hold(problem, found[name], limit) for name in planners if name in found}
    return Cell(problem, limit, settings, solved, failed=failed)


def _bettered(limit: Bound, result: PlanResult) -> Bound:
    """The bound, or what a planner has proven since."""
    if result.proven_ns is None or result.proven_ns <= limit.step_ns:
        return limit
    return replace(limit, step_ns=result.proven_ns)


def _planned(planner: Planner, problem: Problem, settings: Settings) -> PlanResult:
    """What a planner other than the ILP says; the reference is told of the settings, too."""
    if planner is reference:
        return reference(problem, ReferenceOptions(settings.seconds, settings.solver))
    return planner(problem)


@contextmanager
def _noting(name: str, failed: MutableMapping[str, str] | None) -> Iterator[None]:
    """Note an error under a name; without a place for it, let it pass."""
    try:
        yield
    except Exception as error:
        if failed is None:
            raise
        failed[name] = described(error)


def described(error: BaseException) -> str:
    """An error in one line."""
    text = " ".join(str(error).split())
    return f"{type(error).__name__}: {text}" if text else type(error).__name__


def _too_little(problem: Problem, least: LowerLimit) -> str:
    if problem.budget_bytes < 1:
        return (
            f"proven: static memory and reserve exceed the device by {-problem.budget_bytes} "
            "bytes, nothing is left to plan with"
        )
    return (
        f"proven: operation {least.operation!r} alone needs {least.budget_bytes} bytes, "
        f"more than the budget of {problem.budget_bytes}"
    )


def _missing_starts(
    problem: Problem,
    limit: Bound,
    planners: Mapping[str, Planner],
    known: Sequence[Judged],
    report: Report,
) -> list[Judged]:
    """Results of the heuristics nobody asked for: the ILP is never worse than any of them.

    Once one of all is as fast as the bound, none of the others can be faster, and they do not run.
    """
    results: list[Judged] = []
    for name in sorted(HEURISTICS, key=lambda name: name in SLOW):
        if any(judged.step_ns == limit.step_ns for judged in (*known, *results)):
            break
        if HEURISTICS[name] not in planners.values():
            report(f"{problem.step.name}: {name}")
            results.append(judge(problem, HEURISTICS[name](problem), limit))
    return results


def _ilp(
    name: str,
    problem: Problem,
    limit: Bound,
    settings: Settings,
    others: Sequence[Judged],
    carried: Judged | None,
) -> Judged:
    """The ILP, started from everything known, and the best of all if it does not improve on it.

    Its time limit is one for the bound and the heuristics, too, but leaves it `SEARCH` at least.
    """
    before = [*others, carried] if carried else list(others)
    known = [j for j in others if j.result.planner in HEURISTICS]
    spent = limit.seconds + sum(j.result.planning_s for j in known)
    options = IlpOptions(
        settings.gap,
        max(settings.seconds - spent, SEARCH * settings.seconds),
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
            proven_ns=own.result.proven_ns,
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

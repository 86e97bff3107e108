"""One question to a planner: is there a schedule within this budget and this time?

Searches ask it many times, so it stops as soon as the answer is known: at a proof that there is
none, at the first heuristic whose schedule is good enough, and in the ILP at the first good enough
one.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from enum import StrEnum

from slackswap_opt.errors import InputError
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.plan import Problem
from slackswap_opt.planners import HEURISTICS, PLANNERS, IlpOptions, ilp
from slackswap_opt.study.judge import Judged, judge
from slackswap_opt.study.smallest import lower_limit
from slackswap_opt.study.sweep import Report, Settings, silent


class Outcome(StrEnum):
    """What is known of a question."""

    MET = "met"
    """A schedule was found, simulated to be within budget and time."""
    TOO_LITTLE = "too-little-memory"
    """Proven: one operation alone needs more than the budget."""
    TOO_SLOW = "too-slow"
    """Proven: every schedule within the budget takes longer."""
    MISSED = "missed"
    """The planner found none; whether there is one is open."""

    @property
    def proven(self) -> bool:
        """Whether it is proven that there is none."""
        return self in (Outcome.TOO_LITTLE, Outcome.TOO_SLOW)


@dataclass(frozen=True)
class Attempt:
    """A question and its answer.

    Attributes:
        problem: step, machine and budget.
        target_ns: the step may take as long.
        outcome: what is known.
        bound: of the problem; None where no schedule fits it.
        judged: the fastest schedule found, whether it meets the target or not.
        planner: whose schedule.
    """

    problem: Problem
    target_ns: int
    outcome: Outcome
    bound: Bound | None
    judged: Judged | None = None
    planner: str | None = None


def attempt(
    problem: Problem,
    target_ns: int,
    planner: str,
    settings: Settings,
    report: Report = silent,
    limit: Bound | None = None,
) -> Attempt:
    """Look for a schedule within the problem's budget that takes at most `target_ns`.

    Args:
        problem: step, machine and budget.
        target_ns: the longest step time that will do.
        planner: who looks; for the ILP every heuristic is asked first.
        settings: how planner and bound are run.
        report: told what is being worked on.
        limit: the problem's bound, if it is known already.

    Raises:
        InputError: for an unknown planner.
        InvalidPlanError, CertificateError, SolverUnavailableError: as
            `slackswap_opt.study.sweep.sweep`.
    """
    if planner not in PLANNERS:
        raise InputError(f"unknown planner {planner!r}; available: {', '.join(PLANNERS)}")
    if problem.budget_bytes < lower_limit(problem.step).budget_bytes:
        return Attempt(problem, target_ns, Outcome.TOO_LITTLE, None)
    if limit is None:
        report(f"{problem.step.name}: bound")
        limit = bound(problem, solver=settings.solver)
    if limit.step_ns > target_ns:
        return Attempt(problem, target_ns, Outcome.TOO_SLOW, limit)
    best: Judged | None = None
    proven_ns = limit.step_ns
    for judged in _answers(problem, target_ns, planner, settings, limit, report):
        proven_ns = max(proven_ns, judged.result.proven_ns or 0)
        if judged.step_ns is None:
            continue
        if best is None or best.step_ns is None or judged.step_ns < best.step_ns:
            best = judged
        if judged.step_ns <= target_ns:
            return Attempt(
                problem, target_ns, Outcome.MET, limit, judged, judged.result.planner
            )  # fmt: skip
    name = None if best is None else best.result.planner
    outcome = Outcome.TOO_SLOW if proven_ns > target_ns else Outcome.MISSED
    return Attempt(problem, target_ns, outcome, replace(limit, step_ns=proven_ns), best, name)


def _answers(
    problem: Problem, target_ns: int, planner: str, settings: Settings, limit: Bound, report: Report
) -> Iterator[Judged]:
    """Results in the order in which they are cheap, each judged."""
    name = problem.step.name
    if planner != "ilp":
        report(f"{name}: {planner}")
        yield judge(problem, PLANNERS[planner](problem), limit)
        return
    starts = []
    for heuristic, plan in HEURISTICS.items():
        report(f"{name}: {heuristic}")
        judged = judge(problem, plan(problem), limit)
        yield judged
        starts.append(judged.result)
    report(f"{name}: ilp")
    enough = (target_ns - limit.step_ns) / target_ns if target_ns else 0.0
    options = IlpOptions(
        max(settings.gap, enough), settings.seconds, settings.solver, bound=limit,
        starts=tuple(result for result in starts if result.schedule is not None),
    )  # fmt: skip
    yield judge(problem, ilp(problem, options), limit)

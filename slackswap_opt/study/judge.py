"""Every result is played again before it is believed."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.errors import CertificateError, ScheduleError, SlackSwapError
from slackswap_opt.formulation.bound import Bound
from slackswap_opt.plan import PlanResult, Problem
from slackswap_opt.simulator import Verdict, simulate


class InvalidPlanError(SlackSwapError):
    """A planner or a file offers a schedule that the referee does not accept as told."""


@dataclass(frozen=True)
class Judged:
    """A planner's result and what the referee says of it.

    Attributes:
        result: the result, its step time confirmed.
        capacity_bytes: capacity at which it was played: the budget, or a smaller one.
        verdict: a simulation that fits; None where there is no schedule.
    """

    result: PlanResult
    capacity_bytes: int
    verdict: Verdict | None

    @property
    def step_ns(self) -> int | None:
        """Simulated step time; None where there is no schedule."""
        return None if self.verdict is None else self.verdict.step_ns


def judge(
    problem: Problem, result: PlanResult, limit: Bound, capacity_bytes: int | None = None
) -> Judged:
    """Play a result's schedule afresh and hold it against the bound.

    Args:
        problem: what was asked.
        result: what the planner answered.
        limit: the bound of this problem.
        capacity_bytes: capacity to play it at, the budget if not given.

    Raises:
        InvalidPlanError: if the schedule is wrong, does not fit, or is not as fast as claimed.
        CertificateError: if it is faster than the bound.
    """
    capacity = problem.budget_bytes if capacity_bytes is None else capacity_bytes
    if result.schedule is None:
        return Judged(result, capacity, None)
    who = f"the schedule of {result.planner!r} for {problem.step.name!r}"
    try:
        verdict = simulate(problem.step, problem.machine, result.schedule, capacity)
    except ScheduleError as error:
        raise InvalidPlanError(f"{who} is invalid: {error}") from None
    if verdict.step_ns is None:
        raise InvalidPlanError(f"{who} runs out of memory at {capacity} bytes")
    if verdict.peak_bytes > problem.budget_bytes:
        raise InvalidPlanError(
            f"{who} peaks at {verdict.peak_bytes} bytes, above the budget of {problem.budget_bytes}"
        )
    if verdict.step_ns != result.step_ns:
        raise InvalidPlanError(
            f"{who} takes {verdict.step_ns} ns in the simulator, not {result.step_ns} ns"
        )
    return hold(problem, Judged(result, capacity, verdict), limit)


def hold(problem: Problem, judged: Judged, limit: Bound) -> Judged:
    """Hold a judged schedule against a bound.

    Raises:
        CertificateError: if it is faster than the bound.
    """
    if judged.step_ns is not None and judged.step_ns < limit.step_ns:
        raise CertificateError(
            f"the schedule of {judged.result.planner!r} for {problem.step.name!r} takes "
            f"{judged.step_ns} ns, less than the bound of {limit.step_ns} ns; "
            "one of the two is wrong: please report this as a defect of slackswap-opt"
        )
    return judged

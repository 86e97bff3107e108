"""Carry out a plan: lower it, let the referee play it, and time its copies by what happened."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.plan import (
    Clock,
    Plan,
    Problem,
    Schedule,
    UnbuildablePlanError,
    lower,
    without_idle_copies,
)
from slackswap_opt.simulator import Verdict, simulate

ROUNDS = 3
"""Lowerings per plan: from durations alone, then from the times the simulation gave."""


@dataclass(frozen=True)
class Realized:
    """A plan with the best schedule found for it.

    Attributes:
        plan: the actions.
        schedule: the program.
        verdict: what the referee says of it; it may not fit.
    """

    plan: Plan
    schedule: Schedule
    verdict: Verdict

    @property
    def step_ns(self) -> int:
        """Simulated step time; raises if the schedule does not fit."""
        if self.verdict.step_ns is None:
            raise ValueError("the schedule does not fit")
        return self.verdict.step_ns


def realize(problem: Problem, plan: Plan, rounds: int = ROUNDS) -> Realized | None:
    """Lower and simulate a plan; None if it drops what cannot be rebuilt.

    The result may not fit the budget: see its verdict.
    """
    best: Realized | None = None
    clock: Clock | None = None
    try:
        plan = without_idle_copies(problem, plan)
    except UnbuildablePlanError:
        return None
    for _ in range(rounds):
        schedule = lower(problem, plan, clock)
        if best is not None and schedule == best.schedule:
            break
        verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
        candidate = Realized(plan, schedule, verdict)
        best = candidate if best is None else better(candidate, best)
        if verdict.step_ns is None or not verdict.timeline.stalls:
            break
        clock = Clock(verdict.timeline.compute_start_ns, verdict.timeline.compute_end_ns)
    return best


def better(first: Realized, second: Realized) -> Realized:
    """The one that fits, the faster one, or the second."""
    if first.verdict.step_ns is None:
        return second
    if second.verdict.step_ns is None or first.verdict.step_ns < second.verdict.step_ns:
        return first
    return second

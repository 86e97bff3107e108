"""Carry out a plan: lower it, let the referee play it, and time its copies by what happened."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.plan import (
    Action,
    Clock,
    Plan,
    PlanResult,
    Problem,
    Program,
    Schedule,
    Status,
    UnbuildablePlanError,
    actions_of,
    schedule_of,
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
        program: what runs and what is fetched.
        schedule: the program with its copies and frees.
        verdict: what the referee says of it; it may not fit.
    """

    plan: Plan
    program: Program
    schedule: Schedule
    verdict: Verdict

    @property
    def step_ns(self) -> int:
        """Simulated step time; raises if the schedule does not fit."""
        if self.verdict.step_ns is None:
            raise ValueError("the schedule does not fit")
        return self.verdict.step_ns

    def result(self, planner: str) -> PlanResult:
        """As the answer of a planner; raises if the schedule does not fit."""
        return PlanResult(planner, Status.FEASIBLE, self.schedule, self.step_ns, self.plan)


def realize(problem: Problem, plan: Plan, rounds: int = ROUNDS) -> Realized | None:
    """Lower and simulate a plan; None if it drops what cannot be rebuilt, or swaps and must not.

    The result may not fit the budget: see its verdict.
    """
    if not problem.swaps and Action.SWAP in plan.actions.values():
        return None
    try:
        plan, program = without_idle_copies(problem, plan)
    except UnbuildablePlanError:
        return None
    return _played(problem, program, plan, rounds)


def realize_program(problem: Problem, program: Program, rounds: int = ROUNDS) -> Realized:
    """Lower and simulate a program; its plan is what the schedule amounts to."""
    return _played(problem, program, None, rounds)


def _played(problem: Problem, program: Program, plan: Plan | None, rounds: int) -> Realized:
    best: Realized | None = None
    clock: Clock | None = None
    for _ in range(rounds):
        schedule = schedule_of(problem, program, clock)
        if best is not None and schedule == best.schedule:
            break
        verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
        summary = plan or Plan(actions_of(problem.step, schedule, problem.liveness))
        candidate = Realized(summary, program, schedule, verdict)
        best = candidate if best is None else better(candidate, best)
        if verdict.step_ns is None or not verdict.timeline.stalls:
            break
        clock = Clock(verdict.timeline.compute_start_ns, verdict.timeline.compute_end_ns)
    assert best is not None
    return best


def better(first: Realized, second: Realized) -> Realized:
    """The one that fits, the faster one, or the second."""
    if first.verdict.step_ns is None:
        return second
    if second.verdict.step_ns is None or first.verdict.step_ns < second.verdict.step_ns:
        return first
    return second

"""What a planner returns: a schedule that fits with its simulation, or why there is none."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum

from slackswap_opt.plan.actions import Plan
from slackswap_opt.plan.schedule import Schedule


class Status(StrEnum):
    """How a planner's run ended."""

    OPTIMAL = "optimal-within-gap"
    """A schedule whose certified gap is within the tolerance asked for."""
    FEASIBLE = "feasible"
    """A schedule that fits; how good it is, the certified gap says."""
    FALLBACK = "fallback"
    """The ILP gave nothing better (it failed, or found nothing in time): a heuristic's schedule."""
    INFEASIBLE = "infeasible"
    """No schedule: this planner has none that fits the budget; the reason says what is proven."""


@dataclass(frozen=True)
class PlanResult:
    """A planner's answer.

    Attributes:
        planner: its name.
        status: how it ended.
        schedule: the program, already simulated to fit; None where nothing fits.
        step_ns: simulated step time of the schedule; None without one.
        plan: the actions it carries out; None without a schedule.
        reason: one sentence on how the result came about or why there is none.
        solver: name and version of the solver whose answer it rests on, if any.
        planning_s: wall time spent.
        time_limited: whether a wall-clock limit ended the search, so that another run may differ.
        proven_ns: a verified lower limit on the step time of every schedule, where the planner
            worked on one.
    """

    planner: str
    status: Status
    schedule: Schedule | None = None
    step_ns: int | None = None
    plan: Plan | None = None
    reason: str = ""
    solver: str | None = None
    planning_s: float = 0.0
    time_limited: bool = False
    proven_ns: int | None = None

    def named(self, planner: str) -> PlanResult:
        """The same result under another planner's name."""
        return replace(self, planner=planner)

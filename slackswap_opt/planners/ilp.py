"""The ILP planner (being built)."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.formulation.bound import Bound
from slackswap_opt.plan import PlanResult, Problem
from slackswap_opt.planners.greedy import greedy


@dataclass(frozen=True)
class IlpOptions:
    """How the ILP planner searches.

    Attributes:
        gap: stop once (simulated step - bound) / simulated step is at most this.
        seconds: wall-clock limit for the whole search.
        solver: "cbc" or "highs".
        bound: the problem's bound, if it is known already.
        starts: results of other planners for this problem, never to be worse than.
    """

    gap: float = 0.001
    seconds: float = 60.0
    solver: str = "cbc"
    bound: Bound | None = None
    starts: tuple[PlanResult, ...] = ()


def ilp(problem: Problem, options: IlpOptions | None = None) -> PlanResult:
    """Plan with the compact ILP."""
    return greedy(problem).named("ilp")

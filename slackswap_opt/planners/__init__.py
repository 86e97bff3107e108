"""Planners: any callable from a problem to a result."""

from collections.abc import Callable, Mapping

from slackswap_opt.plan import PlanResult, Problem
from slackswap_opt.planners.baselines import keep_all, recompute_all, selective, sqrt_n, swap_all
from slackswap_opt.planners.greedy import capuchin, greedy
from slackswap_opt.planners.ilp import ilp
from slackswap_opt.planners.on_demand import on_demand
from slackswap_opt.planners.reference import (
    ReferenceOptions,
    ReferencePlan,
    reference,
    reference_plan,
)
from slackswap_opt.planners.search import IlpOptions

Planner = Callable[[Problem], PlanResult]

HEURISTICS: Mapping[str, Planner] = {
    "keep-all": keep_all,
    "recompute-all": recompute_all,
    "sqrt-n": sqrt_n,
    "selective": selective,
    "swap-all": swap_all,
    "greedy": greedy,
    "capuchin": capuchin,
    "on-demand": on_demand,
}
"""Every planner without a solver, by name, in the order in which tables show them."""

PLANNERS: Mapping[str, Planner] = {**HEURISTICS, "ilp": ilp}
"""Every planner that runs unless others are named, by name."""

ON_REQUEST: Mapping[str, Planner] = {"reference": reference}
"""Planners that run only if they are named: for small steps."""

__all__ = [
    "HEURISTICS",
    "ON_REQUEST",
    "PLANNERS",
    "IlpOptions",
    "Planner",
    "ReferenceOptions",
    "ReferencePlan",
    "capuchin",
    "greedy",
    "ilp",
    "on_demand",
    "reference",
    "reference_plan",
]

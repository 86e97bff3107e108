"""Planners: any callable from a problem to a result."""

from collections.abc import Callable, Mapping

from slackswap_opt.plan import PlanResult, Problem
from slackswap_opt.planners.baselines import keep_all, recompute_all, selective, sqrt_n, swap_all
from slackswap_opt.planners.greedy import capuchin, greedy
from slackswap_opt.planners.ilp import ilp
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
}
"""Every planner without a solver, by name, in the order in which tables show them."""

PLANNERS: Mapping[str, Planner] = {**HEURISTICS, "ilp": ilp}
"""Every planner, by name."""

__all__ = ["HEURISTICS", "PLANNERS", "IlpOptions", "Planner", "capuchin", "greedy", "ilp"]

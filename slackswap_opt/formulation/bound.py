"""The bound of a problem: the best of the boundary bounds at a few cuts, each verified."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackswap_opt.formulation._pulp import Limits, solve
from slackswap_opt.formulation.boundary import boundary_model, longest_overhead_ns
from slackswap_opt.formulation.linear import certified_minimum
from slackswap_opt.plan.problem import Problem


@dataclass(frozen=True)
class Bound:
    """A verified lower limit on the step time.

    Attributes:
        step_ns: no schedule in this operation order, under this budget and link, is faster.
        cut: the operation at whose start the limit was found; -1 where it is the ideal step.
        solver: name and version of the solver whose multipliers were verified.
        seconds: wall time.
    """

    step_ns: int
    cut: int
    solver: str
    seconds: float


def bound(problem: Problem, *, solver: str = "cbc", cuts: int = 3, seconds: float = 60.0) -> Bound:
    """A lower limit on the step time of every schedule.

    Args:
        problem: step, machine and budget.
        solver: where the multipliers come from; the limit does not depend on trusting it.
        cuts: how many positions to try.
        seconds: limit on each of them.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    began = time.perf_counter()
    ideal = problem.ideal_step_ns
    best, where, name = ideal, -1, ""
    if problem.budget_bytes < problem.liveness.ideal_peak_bytes:
        for cut in _promising_cuts(problem, cuts):
            model = boundary_model(problem, cut).model
            answer = solve(model, Limits(seconds), solver, relax=True)
            name = answer.solver
            if answer.duals is None:
                continue
            overhead = certified_minimum(model, answer.duals)
            limit = ideal + min(overhead, longest_overhead_ns(problem))
            if limit > best:
                best, where = limit, cut
    return Bound(best, where, name, time.perf_counter() - began)


def _promising_cuts(problem: Problem, count: int) -> Sequence[int]:
    """The turn from forward to later phases, the ideal peak, and peaks on either side of them."""
    live, index = problem.liveness, problem.step.index
    later = np.flatnonzero(~index.forward)
    cuts = [int(later[0])] if later.size else []
    cuts.append(live.peak_operation)
    over = np.flatnonzero(live.memory_bytes > problem.budget_bytes)
    cuts += [int(op) for op in over[np.argsort(-live.memory_bytes[over], kind="stable")]]
    return list(dict.fromkeys(cuts))[:count]

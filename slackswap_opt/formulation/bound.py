"""The bound of a problem: the best of the boundary bounds at a few cuts, each verified.

`bound` takes the relaxations, which is a matter of moments. `Prover` goes on from there by
branching on what is kept, swapped and rebuilt at the cut.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from slackswap_opt.formulation._pulp import Limits, relaxation, solve
from slackswap_opt.formulation.boundary import CutModel, boundary_model, longest_overhead_ns
from slackswap_opt.formulation.branching import Branching
from slackswap_opt.formulation.linear import certified_minimum
from slackswap_opt.plan.problem import Problem

NODES = 2000
"""Relaxations that branching solves at most, unless told otherwise."""
PATIENCE = 40
"""Relaxations between two looks at whether what is enough is within reach."""


@dataclass(frozen=True)
class Bound:
    """A verified lower limit on the step time.

    Attributes:
        step_ns: no schedule in this operation order, under this budget and link, is faster.
        cut: the operation at whose start the limit was found; -1 where it is the ideal step.
        solver: name and version of the solver whose multipliers were verified.
        seconds: wall time.
        nodes: relaxations that were solved while branching; 0 where that was not tried.
        timed_out: whether the clock ended the branching, so that another run may prove more or
            less.
    """

    step_ns: int
    cut: int
    solver: str
    seconds: float
    nodes: int = 0
    timed_out: bool = False


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


class Prover:
    """Branches on the integers of the cut model behind a bound, as long as one likes.

    Attributes:
        bound: the best limit so far.
        complaints: why the solver failed.
    """

    def __init__(self, problem: Problem, limit: Bound, solver: str = "cbc") -> None:
        """Begin with a bound.

        Args:
            problem: step, machine and budget.
            limit: what `bound` found; its cut is the one that is branched on.
            solver: where multipliers come from; the limit does not depend on trusting it.
        """
        self.bound = limit
        self.complaints: list[str] = []
        self._problem, self._solver = problem, solver
        self._cut_model: CutModel | None = None
        self._branching: Branching | None = None

    def run(self, enough_ns: int | None = None, seconds: float = 10.0, nodes: int = NODES) -> Bound:
        """Go on.

        Args:
            enough_ns: a step time that needs no better limit, as there is a schedule that near;
                branching ends early where that is out of reach.
            seconds: when to stop.
            nodes: relaxations to solve in all, a limit that does not depend on the clock.

        Raises:
            SolverUnavailableError: if the solver cannot be started.
        """
        if self.bound.cut < 0:
            return self.bound
        began = time.perf_counter()
        ideal, most = self._problem.ideal_step_ns, longest_overhead_ns(self._problem)
        if self._cut_model is None or self._branching is None:
            self._cut_model = boundary_model(self._problem, self.bound.cut, integer=True)
            weights = _weights(self._problem, self._cut_model)
            self._branching = Branching(self._cut_model.model, weights)
        tree = self._branching
        with relaxation(self._cut_model.model, self._solver, seconds) as opened:
            tree.run(
                opened,
                enough=min(most, most if enough_ns is None else enough_ns - ideal),
                nodes=nodes,
                deadline=began + seconds,
                patient=None if enough_ns is None else PATIENCE,
            )
            name = opened.solver or self.bound.solver
            self.complaints += opened.complaints
        least = most if tree.minimum is None else min(tree.minimum, most)
        self.bound = Bound(
            max(self.bound.step_ns, ideal + least), self.bound.cut, name,
            self.bound.seconds + time.perf_counter() - began, tree.solved, tree.timed_out,
        )  # fmt: skip
        return self.bound


def _weights(problem: Problem, cut_model: CutModel) -> dict[int, int]:
    """Variables to branch on, by the bytes that they decide about."""
    size = problem.step.index.size_bytes
    weights = {x: int(size[t]) for t, x in cut_model.keep.items()}
    for variables in (cut_model.swap, cut_model.rebuild):
        weights |= {x: int(size[t]) for (t, _), x in variables.items()}
    whole = cut_model.model.variables
    return {x: weight for x, weight in weights.items() if weight and whole[x].upper == 1}


def _promising_cuts(problem: Problem, count: int) -> Sequence[int]:
    """The turn from forward to later phases, the ideal peak, and peaks on either side of them."""
    live, index = problem.liveness, problem.step.index
    later = np.flatnonzero(~index.forward)
    cuts = [int(later[0])] if later.size else []
    cuts.append(live.peak_operation)
    over = np.flatnonzero(live.memory_bytes > problem.budget_bytes)
    cuts += [int(op) for op in over[np.argsort(-live.memory_bytes[over], kind="stable")]]
    return list(dict.fromkeys(cuts))[:count]

"""The bound of a problem: the best of the boundary bounds at a few cuts, each verified.

`bound` takes the relaxations at the most promising cuts, which is a matter of moments. `Prover`
goes on from there: it looks for a better cut all over the step, and branches on what is kept,
swapped and rebuilt at the best one.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from slackswap_opt.formulation._pulp import Limits, relaxation, solve
from slackswap_opt.formulation.boundary import CutModel, boundary_model, longest_overhead_ns
from slackswap_opt.formulation.branching import Branching
from slackswap_opt.formulation.linear import certified_minimum
from slackswap_opt.plan.problem import Problem
from slackswap_opt.step import working_set_bytes

NODES = 2000
"""Relaxations that a prover solves at most, unless told otherwise."""
PATIENCE = 40
"""Relaxations between two looks at whether what is enough is within reach."""
CUTS = 20
"""Cuts of which one is chosen to branch on, at most."""


@dataclass(frozen=True)
class Bound:
    """A verified lower limit on the step time.

    Attributes:
        step_ns: no schedule in this operation order, under this budget and link, is faster.
        cut: the operation at whose start the limit was found; -1 where it is the ideal step.
        solver: name and version of the solver whose multipliers were verified.
        seconds: wall time.
        nodes: relaxations that a prover solved, at other cuts and while branching; 0 without one.
        timed_out: whether the clock ended the prover, so that another run may prove more or
            less.
    """

    step_ns: int
    cut: int
    solver: str
    seconds: float
    nodes: int = 0
    timed_out: bool = False


def bound(problem: Problem, *, solver: str = "cbc", cuts: int = 2, seconds: float = 60.0) -> Bound:
    """A lower limit on the step time of every schedule.

    Args:
        problem: step, machine and budget.
        solver: where the multipliers come from; the limit does not depend on trusting it.
        cuts: at how many positions to look for a limit.
        seconds: limit on each of them.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    began = time.perf_counter()
    ideal = problem.ideal_step_ns
    best, where, name, found = ideal, -1, "", 0
    if problem.budget_bytes < problem.liveness.ideal_peak_bytes:
        for cut in _promising_cuts(problem, cuts + 1):
            if found == cuts:
                break
            model = boundary_model(problem, cut).model
            answer = solve(model, Limits(seconds), solver, relax=True)
            name = answer.solver
            if answer.duals is None:
                continue
            found += 1
            overhead = certified_minimum(model, answer.duals)
            limit = ideal + min(overhead, longest_overhead_ns(problem))
            if limit > best:
                best, where = limit, cut
    return Bound(best, where, name, time.perf_counter() - began)


class Prover:
    """Chooses a cut and branches on the integers of its model, as long as one likes.

    Attributes:
        bound: the best limit so far.
        complaints: why the solver failed.
    """

    def __init__(self, problem: Problem, limit: Bound, solver: str = "cbc") -> None:
        """Begin with a bound.

        Args:
            problem: step, machine and budget.
            limit: what `bound` found.
            solver: where multipliers come from; the limit does not depend on trusting it.
        """
        self.bound = limit
        self.complaints: list[str] = []
        self._problem, self._solver = problem, solver
        self._tried: dict[int, int] = {}
        self._tree: _Tree | None = None

    def run(self, enough_ns: int | None = None, seconds: float = 10.0, nodes: int = NODES) -> Bound:
        """Go on.

        Args:
            enough_ns: a step time that needs no better limit, as there is a schedule that near;
                the work ends early where that is out of reach.
            seconds: when to stop.
            nodes: relaxations to solve in all, a limit that does not depend on the clock.

        Raises:
            SolverUnavailableError: if the solver cannot be started.
        """
        if self._problem.budget_bytes >= self._problem.liveness.ideal_peak_bytes:
            return self.bound
        began = time.perf_counter()
        ideal, most = self._problem.ideal_step_ns, longest_overhead_ns(self._problem)
        enough = most if enough_ns is None else min(most, enough_ns - ideal)
        if self._tree is None:
            self._seek(enough, nodes, began + seconds)
            if not self._tried:
                return self.bound
            if max(self._tried.values()) < enough and len(self._tried) < nodes:
                self._tree = _Tree.at(self._problem, self._best_cut())
        if self._tree is not None:
            patient = None if enough_ns is None else PATIENCE
            self._branch(self._tree, enough, nodes, began + seconds, patient)
        self.bound = replace(self.bound, seconds=self.bound.seconds + time.perf_counter() - began)
        return self.bound

    def _seek(self, enough: int, nodes: int, deadline: float) -> None:
        """Try one cut after another, until none of those near the best one is better."""
        first = self.bound.cut if self.bound.cut >= 0 else self._problem.liveness.peak_operation
        while len(self._tried) < min(CUTS, nodes):
            cut = _next_cut(self._problem, self._tried) if self._tried else first
            left = deadline - time.perf_counter()
            if cut is None or max(self._tried.values(), default=0) >= enough or left <= 0:
                self.bound = replace(self.bound, timed_out=self.bound.timed_out or left <= 0)
                return
            model = boundary_model(self._problem, cut).model
            answer = solve(model, Limits(left), self._solver, relax=True)
            self._tried[cut] = certified_minimum(model, answer.duals) if answer.duals else 0
            if answer.duals is None:
                self.complaints.append(answer.note)
            self._found(self._tried[cut], cut, answer.solver, timed_out=answer.timed_out)

    def _best_cut(self) -> int:
        memory = self._problem.liveness.memory_bytes
        return max(self._tried, key=lambda cut: (self._tried[cut], memory[cut], -cut))

    def _branch(
        self, tree: _Tree, enough: int, nodes: int, deadline: float, patient: int | None
    ) -> None:
        branching, model = tree.branching, tree.cut_model.model
        left = max(0.0, deadline - time.perf_counter())
        with relaxation(model, self._solver, left) as opened:
            branching.run(
                opened, enough=enough, nodes=nodes - len(self._tried), deadline=deadline,
                patient=patient,
            )  # fmt: skip
            name = opened.solver or self.bound.solver
            self.complaints += opened.complaints
        most = longest_overhead_ns(self._problem)
        least = most if branching.minimum is None else branching.minimum
        self._found(least, tree.cut, name, timed_out=branching.timed_out)

    def _found(self, overhead_ns: int, cut: int, solver: str, *, timed_out: bool) -> None:
        """Take a limit, if it is a better one."""
        limit = min(overhead_ns, longest_overhead_ns(self._problem)) + self._problem.ideal_step_ns
        solved = len(self._tried) + (self._tree.branching.solved if self._tree else 0)
        better = limit > self.bound.step_ns
        self.bound = replace(
            self.bound,
            step_ns=max(limit, self.bound.step_ns),
            cut=cut if better else self.bound.cut,
            solver=solver if better or not self.bound.solver else self.bound.solver,
            nodes=solved,
            timed_out=timed_out,
        )


@dataclass(frozen=True)
class _Tree:
    """What grows at a cut."""

    cut: int
    cut_model: CutModel
    branching: Branching

    @classmethod
    def at(cls, problem: Problem, cut: int) -> _Tree:
        cut_model = boundary_model(problem, cut, integer=True)
        return cls(cut, cut_model, Branching(cut_model.model, _weights(problem, cut_model)))


def _next_cut(problem: Problem, tried: Mapping[int, int]) -> int | None:
    """Where to look next, among the operations for which memory is short.

    At any other one the ideal step is a point of the model. Overheads change slowly along the step,
    but for some ups and downs within a layer: between two cuts that were tried, more can be hoped
    for the farther apart they are (Piyavskii's rule, with the steepest slope seen so far). Of the
    operations in the middle, the one that holds and needs most is tried.
    """
    held = problem.liveness.memory_bytes
    short = np.flatnonzero(held > problem.budget_bytes)
    known = {int(np.searchsorted(short, cut)): value for cut, value in tried.items()}
    for end in (0, len(short) - 1):
        if end not in known:
            return int(short[end])
    pairs = list(itertools.pairwise(sorted(known)))
    slope = max((Fraction(abs(known[a] - known[b]), b - a) for a, b in pairs), default=Fraction(0))
    hopes = [((known[a] + known[b] + slope * (b - a)) / 2, b - a, a) for a, b in pairs if b - a > 1]
    if not hopes:
        return None
    _, width, begin = max(hopes)
    margin = width // 4
    middle = short[begin + 1 + margin : max(begin + 2 + margin, begin + width - margin)]
    score = held[middle] + working_set_bytes(problem.step)[middle]
    return int(middle[int(score.argmax())])


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

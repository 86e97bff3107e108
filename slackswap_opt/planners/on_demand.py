"""Eviction on demand without copies: feasible where one action per tensor is not."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from slackswap_opt.plan import PlanResult, Problem, Program, Status
from slackswap_opt.planners.eviction import Taste, run_on_demand
from slackswap_opt.planners.realize import realize_program

TASTES = tuple(Taste(1.0, b) for b in (0.5, 1.0, 0.25, 0.75, 0.0, 2.0))
"""What is tried."""
QUICK = 2
"""How many of them the planner tries."""
FACTORS = (0.1, 0.3, 0.6, 1.6, 3.0, 10.0)
"""Changes of a weight."""
LENGTHS = (1, 1, 2, 4, 8, 20)
"""Consecutive tensors whose weights change together."""


def on_demand(problem: Problem) -> PlanResult:
    """The best of a few tastes; nothing is swapped."""
    began = time.perf_counter()
    found = best_taste(problem, TASTES[:QUICK])
    if found is None:
        reason = "evicting what can be rebuilt did not make room for every operation"
        result = PlanResult("on-demand", Status.INFEASIBLE, reason=reason)
    else:
        result = realize_program(problem, found[1]).result("on-demand")
    return replace(result, planning_s=time.perf_counter() - began)


def best_taste(problem: Problem, tastes: Iterable[Taste]) -> tuple[Taste, Program] | None:
    """The taste whose program is the fastest, with its program; None if none fits."""
    found = [(taste, run) for taste in tastes if (run := run_on_demand(problem, taste))]
    return min(found, key=lambda pair: rerun_ns(pair[1]), default=None)


def refined(
    problem: Problem, taste: Taste, program: Program, go_on: Callable[[int], bool], seed: int = 0
) -> Program:
    """Change weights of a few tensors at a time, and keep what makes the program faster.

    Args:
        problem: the problem.
        taste: where to start.
        program: its program.
        go_on: asked before each trial, with its number.
        seed: of the choice of changes.
    """
    chance = random.Random(seed)
    tensors = problem.blocks.evictable
    trial = 0
    while go_on(trial):
        trial += 1
        changed = reweighted(taste, tensors, chance)
        candidate = run_on_demand(problem, changed)
        if candidate is not None and rerun_ns(candidate) <= rerun_ns(program):
            taste, program = changed, candidate
    return program


def reweighted(taste: Taste, tensors: Sequence[int], chance: random.Random) -> Taste:
    """A taste with other weights of a few consecutive tensors."""
    weights = dict(taste.weights)
    for t in stretch(tensors, chance):
        weights[t] = weights.get(t, 1.0) * chance.choice(FACTORS)
    return replace(taste, weights=weights)


def stretch(tensors: Sequence[int], chance: random.Random) -> Sequence[int]:
    """A few consecutive tensors."""
    begin = chance.randrange(len(tensors))
    return tensors[begin : begin + chance.choice(LENGTHS)]


def rerun_ns(program: Program) -> int:
    """Time of all re-executions."""
    return sum(rerun.block.duration_ns for rerun in program.reruns)

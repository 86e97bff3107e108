"""Eviction on demand where some tensors are swapped, and the search for which ones."""

from __future__ import annotations

import time
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.formulation.bound import bound
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Action, Plan, Problem
from slackswap_opt.planners import IlpOptions, on_demand
from slackswap_opt.planners.copies_search import evict_with_copies, follow
from slackswap_opt.planners.eviction import Taste, run_on_demand
from slackswap_opt.planners.on_demand import TASTES, rerun_ns
from slackswap_opt.planners.realize import realize, realize_program
from slackswap_opt.planners.search import Search
from slackswap_opt.simulator import simulate
from slackswap_opt.workloads import build_step, load_workload
from tests.hand import machine_of, step_of
from tests.test_brute_force import problems
from tests.test_windowed import RELAXED, SOLVER, chain


def search_for(problem: Problem, seconds: float = 60.0) -> Search:
    limit = bound(problem, solver=SOLVER)
    return Search(problem, IlpOptions(solver=SOLVER), limit, time.perf_counter() + seconds)


def tight_chain(layers: int = 12, budget: int = 5, rate: int = 1) -> Problem:
    """A chain whose tensors take as long to copy as an operation takes, at rate 1."""
    return Problem(chain(layers), machine_of(rate), budget)


@settings(RELAXED, max_examples=150)
@given(problems(8), st.data())
def test_what_is_found_can_be_played_and_takes_its_reruns_at_least(problem: Problem, data):
    saved = [t for t in problem.blocks.evictable if problem.liveness.saved[t]]
    taste = Taste(
        distance=data.draw(st.sampled_from((0.0, 0.5, 1.0))),
        swapped=frozenset(data.draw(st.sets(st.sampled_from(saved))) if saved else ()),
        price=data.draw(st.sampled_from((0.0, 0.1, 1.0))),
        early_ns=data.draw(st.sampled_from((0, 1000, 10**6))),
    )
    program = run_on_demand(problem, taste)
    assert run_on_demand(problem, taste) == program
    if program is None:
        return
    assert {tensor for tensor, _ in program.fetches} <= taste.swapped
    verdict = realize_program(problem, program).verdict
    assert verdict.fits
    assert verdict.step_ns is not None
    assert verdict.step_ns >= problem.ideal_step_ns + rerun_ns(program)


@settings(RELAXED, max_examples=60)
@given(problems(8))
def test_nothing_is_fetched_where_nothing_must_go(problem: Problem):
    roomy = problem.with_budget(problem.liveness.ideal_peak_bytes)
    program = run_on_demand(roomy, Taste(swapped=frozenset(roomy.blocks.evictable)))
    assert program is not None
    assert not program.fetches
    assert not program.reruns


def test_a_tensor_that_is_swapped_comes_back_in_time():
    problem = tight_chain(rate=4)
    taste = Taste(swapped=frozenset(problem.blocks.evictable))
    program = run_on_demand(problem, taste)
    assert program is not None
    assert program.fetches
    realized = realize_program(problem, program)
    assert realized.step_ns == problem.ideal_step_ns
    assert on_demand(problem).step_ns > problem.ideal_step_ns


def test_a_plan_that_runs_out_of_memory_is_carried_out_on_demand():
    problem = tight_chain()
    first = set(problem.blocks.evictable[2:5])
    plan = Plan({t: Action.SWAP if t in first else Action.KEEP for t in problem.blocks.evictable})
    realized = realize(problem, plan)
    assert realized is not None
    assert not realized.verdict.fits
    search = search_for(problem)
    follow(search, plan)
    assert search.best_ns is not None
    assert search.by_solver
    assert search.taste is not None
    assert search.taste.swapped == first


@pytest.mark.parametrize("layers", [12, 20])
def test_copies_and_reruns_together_are_faster_than_reruns_alone(layers: int):
    problem = tight_chain(layers)
    alone = [run_on_demand(problem, taste) for taste in TASTES]
    fastest = problem.ideal_step_ns + min(rerun_ns(program) for program in alone if program)
    once, twice = search_for(problem), search_for(problem)
    evict_with_copies(once)
    evict_with_copies(twice)
    assert once.best_ns is not None
    assert once.best_ns < fastest
    assert once.best_ns == once.taste_ns == twice.best_ns
    assert once.best is not None
    assert twice.best is not None
    assert once.best.schedule == twice.best.schedule


@pytest.mark.parametrize("share", [40, 60])
def test_what_cannot_run_again_is_kept_while_something_is_rebuilt_from_it(share: int):
    """The all-reduces of a sharded transformer: layers on either side of them are rebuilt."""
    machine = load_machine("a100-80gb-pcie4")
    step = build_step(load_workload("gpt3-175b", layers=6), machine)
    problem = Problem.at(step, machine, f"{share}%")
    result = on_demand(problem)
    assert result.schedule is not None
    assert simulate(step, machine, result.schedule, problem.budget_bytes).fits
    assert not {op for op in result.schedule.compute if not step.operations[op].recomputable} & {
        op for op, times in Counter(result.schedule.compute).items() if times > 1
    }


@pytest.mark.parametrize(("budget", "reruns"), [(10, 0), (9, None)])
def test_what_is_still_to_be_written_in_place_is_not_evicted(budget: int, reruns: int | None):
    """Its block would rebuild the last version, and the in-place operation reads the first."""
    step = step_of(
        ("f0", 5, "", "x"),
        ("f1", 1, "x", "y"),
        ("f2", 5, "x", "z", 2),
        ("f3", 1, "y z", "y@1"),
        ("b0", 1, "y@1 z", "g"),
        x=0, y=4, z=4, g=0,
    )  # fmt: skip
    problem = Problem(step, machine_of(), budget)
    for swapped in (frozenset[int](), frozenset(problem.blocks.evictable)):
        program = run_on_demand(problem, Taste(swapped=swapped))
        assert (None if program is None else len(program.reruns)) == reruns


def test_the_search_ends_with_its_time():
    search = search_for(tight_chain(20), seconds=0.0)
    evict_with_copies(search)
    assert search.time_limited

"""Planners without a solver, and what every planner owes whoever asks it."""

from __future__ import annotations

from functools import partial

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackswap_opt.plan import Action, Problem, Status
from slackswap_opt.planners import HEURISTICS, PLANNERS, IlpOptions, ilp
from slackswap_opt.simulator import simulate
from slackswap_opt.step import TrainingStep, working_set_bytes
from tests import hand
from tests.brute_force import best_schedule
from tests.hand import machine_of
from tests.strategies import machines, training_steps

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
step_of = partial(hand.step_of, layered=True)
each_heuristic = pytest.mark.parametrize("name", HEURISTICS)


@st.composite
def problems(draw: st.DrawFn, max_activations: int = 8) -> Problem:
    step, machine = draw(training_steps(max_activations)), draw(machines())
    problem = Problem(step, machine, 0)
    least, most = int(working_set_bytes(step).max()), problem.liveness.ideal_peak_bytes
    return problem.with_budget(draw(st.integers(max(0, least - 2), most + 1)))


def check(problem: Problem, name: str) -> None:
    result = HEURISTICS[name](problem)
    assert result.planner == name
    assert result.solver is None
    assert not result.time_limited
    if result.schedule is None:
        assert result.status is Status.INFEASIBLE
        assert result.reason
        assert result.step_ns is None
        assert result.plan is None
        return
    assert result.status is Status.FEASIBLE
    assert result.plan is not None
    verdict = simulate(problem.step, problem.machine, result.schedule, problem.budget_bytes)
    assert verdict.fits
    assert verdict.step_ns == result.step_ns >= problem.ideal_step_ns
    assert verdict.peak_bytes <= problem.budget_bytes
    index = problem.step.index
    assert all(index.recomputable[op] for op in result.schedule.reexecutions())
    for tensor, action in result.plan.actions.items():
        if action is Action.RECOMPUTE:
            assert problem.blocks.block_of[tensor] >= 0


@each_heuristic
@settings(RELAXED, max_examples=25)
@given(problem=problems())
def test_no_plan_that_does_not_fit(name, problem: Problem):
    check(problem, name)


@pytest.mark.slow
@each_heuristic
@settings(RELAXED, max_examples=300)
@given(problem=problems(12))
def test_no_plan_that_does_not_fit_in_thousands(name, problem: Problem):
    check(problem, name)


@each_heuristic
@settings(RELAXED, max_examples=12)
@given(problem=problems())
def test_planning_twice_gives_the_same(name, problem: Problem):
    first, second = HEURISTICS[name](problem), HEURISTICS[name](problem)
    assert first.schedule == second.schedule
    assert first.step_ns == second.step_ns
    assert first.plan == second.plan


@pytest.mark.parametrize("name", ["greedy", "capuchin", "keep-all", "ilp"])
@settings(RELAXED, max_examples=20)
@given(step=training_steps(), machine=machines(), more=st.integers(0, 3))
def test_with_the_ideal_peak_nothing_is_lost(name, step: TrainingStep, machine, more: int):
    problem = Problem(step, machine, 0)
    problem = problem.with_budget(problem.liveness.ideal_peak_bytes + more)
    assert PLANNERS[name](problem).step_ns == problem.ideal_step_ns


@pytest.mark.parametrize("name", ["greedy", "capuchin"])
def test_a_percent_less_costs_at_most_the_cheapest_tensor(name):
    rows = [(f"f{k}", 1000, f"a{k - 1}" if k else "", f"a{k}") for k in range(20)]
    rows += [(f"b{k}", 2000, f"a{k}", "") for k in reversed(range(20))]
    problem = Problem(step_of(*rows, **{f"a{k}": 50 for k in range(20)}), machine_of(), 990)
    assert problem.liveness.ideal_peak_bytes == 1000
    assert PLANNERS[name](problem).step_ns <= problem.ideal_step_ns + 1000


KNAPSACK = step_of(
    *((f"f{k}", 1000, "", f"t{k}") for k in range(3)),
    ("bx", 1000, "", "", 20),
    *((f"b{k}", 1000, f"t{k}", "") for k in range(3)),
    t0=10, t1=10, t2=10,
)  # fmt: skip
"""Three equal tensors, and room for one of them while bx runs; copies take 10 us."""


@pytest.mark.parametrize("name", ["greedy", "capuchin", "ilp"])
def test_no_more_is_kept_than_fits(name):
    problem = Problem(KNAPSACK, machine_of(), 30)
    result = PLANNERS[name](problem)
    assert result.step_ns == problem.ideal_step_ns + 2000 == best_schedule(problem)[0]
    assert len(result.schedule.reexecutions()) == 2
    verdict = simulate(KNAPSACK, problem.machine, result.schedule, 30)
    assert verdict.peak_bytes <= 30


LOGITS = step_of(
    ("embed", 100, "", "x"), ("lm_head", 1000, "x", "logits"),
    ("bloss", 500, "logits", "dlogits"), ("bhead", 900, "dlogits x", "dx"),
    x=10, logits=100, dlogits=100, dx=10,
)  # fmt: skip
"""The logits and their gradient are needed at once, whatever is planned."""


@pytest.mark.parametrize("name", PLANNERS)
def test_less_than_one_operation_needs_is_infeasible(name):
    problem = Problem(LOGITS, machine_of(), 199)
    result = PLANNERS[name](problem)
    assert result.status is Status.INFEASIBLE
    assert result.schedule is None
    assert result.step_ns is None
    assert result.reason
    assert best_schedule(problem) is None


@pytest.mark.parametrize("name", ["greedy", "capuchin", "swap-all", "ilp"])
def test_just_enough_for_the_logits_is_feasible(name):
    problem = Problem(LOGITS, machine_of(), 200)
    result = PLANNERS[name](problem)
    assert result.step_ns is not None
    assert result.step_ns >= best_schedule(problem)[0]


@pytest.mark.parametrize("name", PLANNERS)
def test_what_may_not_run_again_never_does(name):
    """A dropout whose mask is not saved is the cheapest and the biggest, and stays untouched."""
    step = step_of(
        ("f0", 5000, "", "a"), ("DROPOUT", 1, "a", "d"), ("f2", 5000, "d", "c"),
        ("b2", 5000, "c d", "g"), ("b0", 5000, "a g", ""),
        a=4, d=100, c=4, g=4,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 0)
    for budget in range(104, 116):
        result = PLANNERS[name](problem.with_budget(budget))
        if result.schedule is not None:
            assert 1 not in result.schedule.reexecutions()


def test_the_ilp_is_never_worse_than_where_it_starts():
    problem = Problem(KNAPSACK, machine_of(), 30)
    starts = tuple(planner(problem) for planner in HEURISTICS.values())
    result = ilp(problem, IlpOptions(seconds=5, starts=starts))
    assert result.step_ns <= min(s.step_ns for s in starts if s.step_ns is not None)

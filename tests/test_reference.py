"""The time-indexed reference ILP: against hand calculations, brute force and the simulator."""

from __future__ import annotations

import sys
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from slackswap_opt.cli.inputs import planners_of
from slackswap_opt.errors import InputError
from slackswap_opt.formulation import _pulp
from slackswap_opt.formulation._pulp import Answer, Limits, Outcome, solve
from slackswap_opt.formulation.bound import bound
from slackswap_opt.formulation.time_indexed import Copies, stage_model
from slackswap_opt.machine import Host, Link
from slackswap_opt.plan import Action, Plan, Problem, Status
from slackswap_opt.planners import (
    HEURISTICS,
    ON_REQUEST,
    PLANNERS,
    IlpOptions,
    ReferenceOptions,
    greedy,
    ilp,
    reference,
    reference_plan,
)
from slackswap_opt.planners.realize import realize
from slackswap_opt.simulator import simulate
from slackswap_opt.step import working_set_bytes
from slackswap_opt.study import compare
from tests.brute_force import TooManyError, best_schedule
from tests.hand import CHAIN, CHAIN_BY_HAND, machine_of, step_of
from tests.strategies import MB_PER_S, training_steps
from tests.test_brute_force import problems

REPEATED = settings(
    deadline=None, database=None, phases=[Phase.generate],
    suppress_health_check=list(HealthCheck),
)  # fmt: skip


def played(problem: Problem, schedule):
    return simulate(problem.step, problem.machine, schedule, problem.budget_bytes)


def small(problem: Problem) -> bool:
    return problem.step.index.operations**2 <= 25 * 25


def chain(layers: int):
    """Forward operations of 1 us, backward ones of 2 us that need the output of their own layer."""
    rows = [(f"f{k}", 1000, f"a{k - 1}" if k else "", f"a{k}") for k in range(layers)]
    rows += [
        (f"b{k}", 2000, f"a{k} g{k + 1}" if k + 1 < layers else f"a{k}", f"g{k}")
        for k in reversed(range(layers))
    ]
    sizes = {f"a{k}": 8 for k in range(layers)} | {f"g{k}": 1 for k in reversed(range(layers))}
    return step_of(*rows, **sizes)


# --- By hand ----------------------------------------------------------------------------------


@pytest.mark.parametrize(("budget", "rate", "step_ns"), CHAIN_BY_HAND)
def test_a_chain_by_hand(budget, rate, step_ns):
    problem = Problem(CHAIN, machine_of(rate), budget)
    result = reference(problem)
    assert result.status is Status.OPTIMAL
    assert result.step_ns == step_ns == played(problem, result.schedule).step_ns


def test_an_operation_runs_again_as_often_as_it_must():
    """Two activations fit: f0 to f3 run again for b3 and b2, then f0 and f1 for b1 and b0."""
    problem = Problem(chain(6), machine_of(), 18, swaps=False)
    found = reference_plan(problem)
    assert found.proven
    assert found.model_ns == found.step_ns == problem.ideal_step_ns + 6000
    assert sorted(found.schedule.reexecutions()) == [0, 0, 1, 1, 2, 3]
    assert played(problem, found.schedule).peak_bytes <= 18


def test_a_skip_is_dropped_and_rebuilt_before_the_backward_phase():
    """While big runs there is no room for s, which f3 reads in the forward phase."""
    step = step_of(
        ("f0", 1000, "", "s"), ("f1", 1000, "", "x", 12), ("f3", 1000, "s x", "y"),
        ("b3", 1000, "y", ""),
        s=8, x=4, y=4,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 16, swaps=False)
    assert greedy(problem).schedule is None
    found = reference_plan(problem)
    assert found.schedule.compute == (0, 1, 0, 2, 3)
    assert found.step_ns == problem.ideal_step_ns + 1000


def test_a_backward_operation_runs_again():
    """g is large, cheap to make, and wanted on either side of an operation that needs the room."""
    step = step_of(
        ("f0", 1000, "", "a"), ("b0", 100, "a", "g"), ("b1", 1000, "g", "h"),
        ("b2", 1000, "h", "i", 20), ("b3", 1000, "g i", ""),
        a=2, g=16, h=2, i=2,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 28, swaps=False)
    found = reference_plan(problem)
    assert found.schedule.compute == (0, 1, 2, 3, 1, 4)
    assert found.step_ns == problem.ideal_step_ns + 100


def test_a_tensor_leaves_twice_if_that_hides_more():
    """x gives way to two big operations and is read between them; it can only be copied."""
    step = step_of(
        ("FX", 1000, "", "x"), ("f1", 1000, "", "p"), ("f2", 2000, "p", "q", 10),
        ("f3", 2000, "q x", "r"), ("f4", 2000, "r", "s", 10), ("b4", 2000, "s", "u"),
        ("b0", 1000, "x u", ""),
        x=8, p=1, q=1, r=1, s=1, u=1,
    )  # fmt: skip
    problem = Problem(step, machine_of(8), 13)
    found = reference_plan(problem)
    assert found.proven
    assert found.equal
    assert [copy.tensor for copy in found.schedule.copies_in] == [0, 0]
    assert [copy.tensor for copy in found.schedule.copies_out] == [0]
    assert found.step_ns == problem.ideal_step_ns + 1000


def test_an_operation_in_place_runs_again_with_what_it_overwrites():
    step = step_of(
        ("f0", 1000, "", "a"), ("f1", 500, "a", "a@1"), ("f2", 1000, "a@1", "c"),
        ("f3", 1000, "c", "d", 12), ("b3", 1000, "c d", "g"), ("b1", 1000, "a@1 g", ""),
        a=8, c=2, d=2, g=2,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 17, swaps=False)
    found = reference_plan(problem)
    assert sorted(found.schedule.reexecutions()) == [0, 1]
    assert found.step_ns == problem.ideal_step_ns + 1500 == played(problem, found.schedule).step_ns


def test_the_host_may_be_too_small_for_a_copy():
    problem = Problem(CHAIN, machine_of(8), 24)
    assert reference(problem).schedule.copies_in
    tight = replace(problem, machine=replace(problem.machine, host=Host(pinned_bytes=7)))
    result = reference(tight)
    assert not result.schedule.copies_in
    assert result.step_ns == best_schedule(tight)[0] > problem.ideal_step_ns


# --- Additive copies --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("rate", "cost_ns"),
    [
        (100, 10_000 - 1000 + 160),  # 80 ns out, 80 ns back
        (8, 10_000),  # a copy and back cost 2000 ns, running f0 again 1000 ns
    ],
)
def test_additive_copies_cost_their_time_and_never_overlap(rate, cost_ns):
    problem = Problem(CHAIN, machine_of(rate), 24)
    found = reference_plan(problem, ReferenceOptions(additive=True))
    assert found.copies is Copies.ADDITIVE
    assert found.proven
    assert found.model_ns == cost_ns
    assert found.step_ns == played(problem, found.schedule).step_ns <= cost_ns


def test_additive_copies_differ_by_direction():
    link = Link(40 * MB_PER_S, 80 * MB_PER_S, 40 * MB_PER_S, 80 * MB_PER_S)
    problem = Problem(CHAIN, replace(machine_of(), link=link), 24)
    found = reference_plan(problem, ReferenceOptions(additive=True))
    assert found.model_ns == problem.ideal_step_ns + 200 + 100


@settings(deadline=None, max_examples=6, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(4))
def test_overlap_only_helps(problem: Problem):
    """The simulator plays an additive plan no slower than it costs, if nothing slows down."""
    assume(small(problem))
    link = problem.machine.link
    even = Link(
        link.d2h_bytes_per_s, link.h2d_bytes_per_s, link.d2h_bytes_per_s, link.h2d_bytes_per_s,
        link.latency_ns,
    )  # fmt: skip
    problem = replace(problem, machine=replace(problem.machine, link=even, host=Host()))
    found = reference_plan(problem, ReferenceOptions(seconds=20, additive=True))
    if found.outcome is Outcome.OPTIMAL:
        assert found.step_ns is not None
        assert found.step_ns <= found.model_ns


# --- Against brute force ----------------------------------------------------------------------


def compared(count: int, max_activations: int, number: int, capsys) -> None:
    """The model is a limit for what brute force finds, and its schedules are as good."""
    seen = equal = 0

    @seed(number)
    @settings(REPEATED, max_examples=count)
    @given(problems(max_activations))
    def check(problem: Problem) -> None:
        nonlocal seen, equal
        if not small(problem):
            return
        found = reference_plan(problem, ReferenceOptions(seconds=30))
        if found.time_limited:
            return
        known = (found.step_ns, found.schedule) if found.schedule else None
        try:
            best = best_schedule(problem, known, 20_000)
        except TooManyError:
            return
        seen += 1
        if best is None:
            assert found.schedule is None
            return
        assert found.outcome is Outcome.OPTIMAL, f"no optimum of {problem}"
        assert found.model_ns <= best[0], f"{found.model_ns} is above {best[0]} in {problem}"
        equal += found.step_ns is not None and found.step_ns <= best[0]

    check()
    with capsys.disabled():
        sys.stdout.write(f"\nthe reference equals brute force in {equal} of {seen} problems\n")
    assert equal >= 0.85 * seen


def test_the_reference_is_as_good_as_brute_force(capsys):
    compared(8, 4, 3, capsys)


@pytest.mark.slow
def test_the_reference_is_as_good_as_brute_force_on_bigger_steps(capsys):
    compared(50, 5, 4, capsys)


@settings(deadline=None, max_examples=8, suppress_health_check=[HealthCheck.too_slow])
@given(step=training_steps(5), share=st.sampled_from((0, 0, 2, 5)))
def test_without_copies_the_model_is_the_simulation(step, share):
    problem = Problem(step, machine_of(), 0, swaps=False)
    least, most = int(working_set_bytes(step).max()), problem.liveness.ideal_peak_bytes
    problem = problem.with_budget(least + (most - least) * share // 10)
    assume(small(problem))
    found = reference_plan(problem, ReferenceOptions(seconds=20))
    if found.outcome is Outcome.INFEASIBLE:
        assert greedy(problem).schedule is None
        return
    index = step.index
    again = sum(int(index.duration_ns[op]) for op in found.schedule.reexecutions())
    assert found.model_ns == found.step_ns == problem.ideal_step_ns + again
    assert played(problem, found.schedule).peak_bytes <= problem.budget_bytes
    assert bound(problem).step_ns <= found.step_ns


# --- The planner ------------------------------------------------------------------------------


def test_it_runs_only_when_named():
    assert ON_REQUEST["reference"] is reference
    assert "reference" not in PLANNERS
    assert "reference" not in planners_of([])
    assert planners_of(["greedy,reference"]) == {"greedy": greedy, "reference": reference}


def test_a_comparison_shows_it_beside_the_others():
    problem = Problem(CHAIN, machine_of(8), 20)
    rows = compare([problem, replace(problem, swaps=False)], planners_of(["greedy,reference"]))
    assert [row.planner for row in rows] == ["greedy", "reference"] * 2
    best = [row.step_s for row in rows if row.planner == "reference"]
    assert best == [best_schedule(problem)[0] / 1e9, (problem.ideal_step_ns + 1000) / 1e9]


@settings(deadline=None, max_examples=4, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(4))
def test_it_is_never_worse_than_a_heuristic(problem: Problem):
    assume(small(problem))
    result = reference(problem, ReferenceOptions(seconds=20))
    for name in ("greedy", "capuchin", "recompute-all"):
        other = HEURISTICS[name](problem)
        if other.step_ns is not None:
            assert result.step_ns is not None
            assert result.step_ns <= other.step_ns
    if result.schedule is not None:
        assert played(problem, result.schedule).step_ns == result.step_ns


@pytest.mark.parametrize(
    ("layers", "swaps", "words"),
    [(13, True, "26 stages x 26 operations = 676, and at most 625"), (21, False, "42 x 42")],
)
def test_large_steps_are_refused_with_their_size(layers, swaps, words):
    problem = Problem(chain(layers), machine_of(), 50, swaps=swaps)
    with pytest.raises(InputError) as refusal:
        reference(problem)
    count = 2 * layers
    assert f"{count} stages x {count} operations = {count * count}" in str(refusal.value)
    assert "use the planner ilp" in str(refusal.value)


def test_a_budget_that_no_schedule_meets_is_infeasible_by_both_solvers():
    problem = Problem(chain(4), machine_of(), 16, swaps=False)
    assert problem.budget_bytes >= int(working_set_bytes(problem.step).max())
    found = reference_plan(problem)
    assert found.outcome is Outcome.INFEASIBLE
    assert found.proven
    assert all(name in found.solver for name in ("CBC", "HiGHS"))
    result = reference(problem)
    assert result.status is Status.INFEASIBLE
    assert result.schedule is None


def test_infeasible_is_not_proven_if_the_solvers_disagree(monkeypatch):
    problem = Problem(chain(3), machine_of(), 18, swaps=False)

    def liar(model, limits, solver="cbc", start=None, *, relax=False):
        if solver == "cbc":
            return Answer(Outcome.INFEASIBLE, None, None, "CBC 0", 0.0)
        return solve(model, limits, solver, start, relax=relax)

    monkeypatch.setattr(sys.modules["slackswap_opt.planners.reference"], "solve", liar)
    found = reference_plan(problem)
    assert not found.proven
    result = reference(problem)
    assert "not proven" in result.reason or result.status is not Status.INFEASIBLE


def test_without_an_answer_of_the_solver_a_heuristic_steps_in(monkeypatch):
    def silent(model, limits, solver="cbc", start=None, *, relax=False):
        if relax:
            return solve(model, limits, solver, start, relax=relax)
        return Answer(Outcome.NOTHING, None, None, "CBC 0", 1.0, timed_out=True)

    monkeypatch.setattr(sys.modules["slackswap_opt.planners.reference"], "solve", silent)
    problem = Problem(CHAIN, machine_of(1), 20)
    result = reference(problem)
    assert result.status in (Status.FALLBACK, Status.OPTIMAL)
    assert result.step_ns == min(
        planner(problem).step_ns or 10**9 for planner in HEURISTICS.values()
    )
    assert result.time_limited


def test_planning_twice_gives_the_same():
    problem = Problem(CHAIN, machine_of(8), 20)
    first, second = reference(problem), reference(problem)
    assert first.schedule == second.schedule
    assert first.plan == second.plan


def test_both_solvers_find_the_same_optimum():
    problem = Problem(CHAIN, machine_of(8), 20)
    for copies in Copies:
        model = stage_model(problem, copies).model
        optima = set()
        for solver in _pulp.available_solvers():
            answer = solve(model, Limits(20.0), solver)
            assert answer.outcome is Outcome.OPTIMAL
            optima.add(round(sum(c * answer.values[x] for x, c in model.objective.items())))
        assert len(optima) == 1


# --- Recomputation only -----------------------------------------------------------------------


def test_without_swaps_nothing_is_copied_and_the_bound_is_higher():
    """With a fast link a0 is copied for nothing; without swaps f0 runs again."""
    free = Problem(CHAIN, machine_of(8), 24)
    bare = replace(free, swaps=False)
    assert bound(free).step_ns == free.ideal_step_ns
    assert bound(bare).step_ns > bare.ideal_step_ns
    for planner in (greedy, HEURISTICS["capuchin"], ilp, reference):
        assert planner(free).step_ns == free.ideal_step_ns
        result = planner(bare)
        assert result.step_ns == free.ideal_step_ns + 1000
        assert not result.schedule.copies_in
        assert not result.schedule.copies_out
    assert HEURISTICS["swap-all"](bare).schedule is None
    assert realize(bare, Plan({0: Action.SWAP})) is None
    assert not bare.with_budget(20).swaps


@settings(deadline=None, max_examples=5, suppress_health_check=[HealthCheck.too_slow])
@given(problem=problems(5))
def test_no_planner_swaps_where_it_must_not(problem: Problem):
    bare = replace(problem, swaps=False)
    limit = bound(bare).step_ns
    results = [planner(bare) for planner in HEURISTICS.values()]
    results.append(ilp(bare, IlpOptions(seconds=2)))
    for result in results:
        if result.schedule is not None:
            assert not result.schedule.copies_in
            assert result.step_ns >= limit >= bound(problem).step_ns

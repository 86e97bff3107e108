"""Branching on the bound's integers: every leaf is proven, and nothing beats what they prove."""

from __future__ import annotations

import itertools
import sys
import time
from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt import read_step
from slackswap_opt.errors import CertificateError
from slackswap_opt.formats import graph_path
from slackswap_opt.formulation._pulp import Relaxation, Relaxed, available_solvers, relaxation
from slackswap_opt.formulation.bound import Prover, bound
from slackswap_opt.formulation.branching import Branching
from slackswap_opt.formulation.linear import LinearModel, certainly_empty, certified_minimum
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import HEURISTICS, IlpOptions
from slackswap_opt.planners.search import Search
from slackswap_opt.study import Settings
from slackswap_opt.study.chain import Solved, _proven, _under
from slackswap_opt.study.compare import rows_of
from slackswap_opt.study.sweep import sweep
from tests.solver_models import eviction
from tests.strategies import Program, programs
from tests.test_bound import RELAXED, SOLVER, no_faster, nothing_beats, problems

ALL = 1 << 60
"""A limit that is never enough, and more nodes than there are."""


def binaries(model: LinearModel) -> dict[int, int]:
    return {x: 1 for x, v in enumerate(model.variables) if v.integer and v.upper == 1}


def branched(model: LinearModel, opened: Relaxation, nodes: int = ALL, enough: int = ALL):
    tree = Branching(model, binaries(model))
    tree.run(opened, enough=enough, nodes=nodes, deadline=time.perf_counter() + 300)
    return tree


# --- Any model --------------------------------------------------------------------------------


@pytest.mark.parametrize("solver", available_solvers())
@pytest.mark.parametrize("seed", range(4))
def test_the_limit_is_the_least_objective_of_a_whole_point(solver: str, seed: int):
    model, least = eviction(seed, 6)
    with relaxation(model, solver, 60) as opened:
        tree = branched(model, opened)
    assert tree.minimum is not None
    assert least - 2 <= tree.minimum <= least
    assert not tree.timed_out


def test_it_goes_on_where_it_stopped():
    model, least = eviction(1, 8)
    whole = Branching(model, binaries(model))
    parts = Branching(model, binaries(model))
    deadline = time.perf_counter() + 300
    limits = []
    for nodes in (1, 5, 9, ALL):
        with relaxation(model, SOLVER, 60) as opened:
            parts.run(opened, enough=ALL, nodes=nodes, deadline=deadline)
        limits.append(parts.minimum)
    with relaxation(model, SOLVER, 60) as opened:
        whole.run(opened, enough=ALL, nodes=ALL, deadline=deadline)
    assert limits == sorted(limits)
    assert limits[0] < limits[-1] == whole.minimum <= least


def test_it_stops_at_what_is_enough():
    model, least = eviction(3, 12)
    with relaxation(model, SOLVER, 60) as opened:
        root = branched(model, opened, nodes=1)
        some = branched(model, opened, enough=root.minimum + 1)
        all_of_it = branched(model, opened)
    assert root.minimum < some.minimum <= least
    assert some.solved < all_of_it.solved


@pytest.mark.parametrize("solver", available_solvers())
def test_a_model_without_points_is_proven_to_have_none(solver: str):
    """Half of each would do, but halves are no points."""
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_least([(2, x), (2, y)], 1, "some")
    model.at_most([(2, x), (2, y)], 1, "not all")
    with relaxation(model, solver, 60) as opened:
        assert branched(model, opened).minimum is None


@pytest.mark.parametrize("solver", available_solvers())
def test_the_proof_that_a_node_is_empty_survives_large_bounds(solver: str):
    model = LinearModel()
    x, y = model.binary(), model.binary()
    waiting = model.variable(10**13, unit=1000, cost=1)
    model.at_most([(3 * 2**30, x), (2 * 2**30, y)], 4 * 2**30, "memory")
    model.at_least([(25_000, waiting), (7 * 10**12, x)], 7 * 10**12, "copies")
    model.at_least([(1, x), (1, y)], 1, "state")
    both = {x: 1, y: 1}
    with relaxation(model, solver, 60) as opened:
        found = opened.solve(both, 10.0)
        assert found.values is None
        assert found.duals is not None
        assert certainly_empty(model, found.duals, both)
        assert branched(model, opened).minimum == 0


class Liar:
    """Says what it is told to say."""

    solver = "liar"

    def __init__(self, answers: Sequence[Relaxed]) -> None:
        self.answers = itertools.cycle(answers)
        self.complaints: list[str] = []

    def solve(self, *_: object) -> Relaxed:
        return next(self.answers)

    def trials(self, *_: object) -> Sequence[float]:
        return ()


@RELAXED
@given(st.data())
def test_no_answer_whatsoever_raises_the_limit_above_a_point(data):
    model, least = eviction(data.draw(st.integers(0, 5)), 3)
    number = st.one_of(st.floats(0, 1e6), st.sampled_from((0.0, 1e30, -1.0, float("nan"))))
    row = st.lists(number, min_size=len(model.rows), max_size=len(model.rows))
    value = st.sampled_from((0.0, 0.3, 0.5, 1.0, float("nan")))
    point = st.lists(value, min_size=len(model.variables), max_size=len(model.variables))
    answer = st.builds(Relaxed, st.none() | point.map(tuple), st.none() | row.map(tuple))
    liar = Liar(data.draw(st.lists(answer, min_size=1, max_size=5)))
    tree = branched(model, liar, nodes=data.draw(st.integers(1, 60)))
    assert tree.minimum is not None
    assert tree.minimum <= least


@RELAXED
@given(st.data())
def test_a_limit_with_fixed_values_is_one_for_the_points_that_have_them(data):
    model, _ = eviction(data.draw(st.integers(0, 5)), 2)
    choices = binaries(model)
    fixed = data.draw(st.dictionaries(st.sampled_from(sorted(choices)), st.integers(0, 1)))
    duals = [data.draw(st.floats(0, 1e5)) for _ in model.rows]
    limit = certified_minimum(model, duals, fixed)
    for point in itertools.product((0, 1), repeat=len(model.variables)):
        if all(point[x] == v for x, v in fixed.items()) and model.violated(point) is None:
            assert limit <= sum(cost * point[x] for x, cost in model.objective.items())


# --- The bound --------------------------------------------------------------------------------


def proven(problem: Problem, solver: str = SOLVER) -> int:
    limit = bound(problem, solver=solver)
    better = Prover(problem, limit, solver).run(seconds=60.0, nodes=200)
    assert better.step_ns >= limit.step_ns
    assert (better.nodes > 0) == (problem.budget_bytes < problem.liveness.ideal_peak_bytes)
    return better.step_ns


@settings(RELAXED, max_examples=30)
@given(programs())
def test_no_schedule_that_fits_is_faster(program: Program):
    no_faster(program, proven)


@pytest.mark.slow
@settings(RELAXED, max_examples=150)
@given(programs(max_activations=8))
def test_of_hundreds_of_schedules_none_is_faster(program: Program):
    no_faster(program, proven)


@settings(RELAXED, max_examples=25)
@given(problems(4))
def test_neither_brute_force_nor_heuristics_beat_it(problem: Problem):
    nothing_beats(problem, proven(problem), 3000)


@pytest.mark.slow
@settings(RELAXED, max_examples=40)
@given(problems(6))
def test_brute_force_does_not_beat_it_on_larger_steps(problem: Problem):
    nothing_beats(problem, proven(problem), 30_000)


@pytest.fixture(scope="module")
def unet() -> Problem:
    whole = Problem(read_step(graph_path("unet")), load_machine("a100-80gb-pcie4"), 1)
    return whole.with_budget(whole.liveness.ideal_peak_bytes * 6 // 10)


@pytest.mark.parametrize("solver", available_solvers())
def test_a_few_large_tensors_cannot_be_split_as_the_relaxation_does(unet: Problem, solver: str):
    """They are what relaxations miss most: a tenth of the overhead here."""
    limit = bound(unet, solver=solver)
    better = Prover(unet, limit, solver).run(seconds=60.0, nodes=30)
    overhead, more = limit.step_ns - unet.ideal_step_ns, better.step_ns - limit.step_ns
    assert more > 0.08 * overhead
    assert better.nodes >= 30
    assert better.cut == limit.cut


def test_it_ends_early_where_a_schedule_is_near(unet: Problem):
    limit = bound(unet, solver=SOLVER)
    better = Prover(unet, limit, SOLVER).run(enough_ns=limit.step_ns + 1, seconds=60.0)
    assert limit.step_ns < better.step_ns
    assert better.nodes < 30


def test_an_ideal_step_needs_no_proof(unet: Problem):
    ample = unet.with_budget(unet.liveness.ideal_peak_bytes)
    limit = bound(ample, solver=SOLVER)
    assert Prover(ample, limit, SOLVER).run() is limit


def test_a_search_betters_the_bound_of_its_plan(unet: Problem):
    limit = bound(unet, solver=SOLVER)
    search = Search(unet, IlpOptions(solver=SOLVER), limit, time.perf_counter() + 60)
    search.start([HEURISTICS["on-demand"](unet)])
    wide = search.gap
    search.prove(30)
    result = search.result(0.0)
    assert search.gap < wide
    assert result.proven_ns == search.bound.step_ns > limit.step_ns
    assert result.step_ns is not None
    assert result.proven_ns <= result.step_ns


def test_what_the_ilp_proves_is_the_bound_of_every_row(monkeypatch, unet: Problem):
    limit = bound(unet, solver=SOLVER)
    better = Prover(unet, limit, SOLVER).run(seconds=60.0, nodes=20).step_ns

    def planner(problem: Problem, options: IlpOptions):
        return replace(HEURISTICS["on-demand"](problem), proven_ns=better)

    monkeypatch.setattr(sys.modules["slackswap_opt.study.sweep"], "ilp", planner)
    planners = {"greedy": HEURISTICS["greedy"], "ilp": planner}
    (cell,) = sweep(unet, [unet.budget_bytes], planners, Settings(solver=SOLVER))
    assert limit.step_ns < cell.bound.step_ns == better
    assert {row.bound_step_s for row in rows_of(cell)} == {better / 1e9}

    def wrong(problem: Problem, options: IlpOptions):
        return replace(HEURISTICS["on-demand"](problem), proven_ns=10 * limit.step_ns)

    monkeypatch.setattr(sys.modules["slackswap_opt.study.sweep"], "ilp", wrong)
    with pytest.raises(CertificateError, match="less than the bound"):
        sweep(unet, [unet.budget_bytes], {**planners, "ilp": wrong}, Settings(solver=SOLVER))


def test_what_is_proven_at_a_budget_is_proven_at_smaller_ones(monkeypatch, unet: Problem):
    larger = unet.budget_bytes + 2**20
    limit = bound(unet.with_budget(larger), solver=SOLVER)
    better = HEURISTICS["on-demand"](unet.with_budget(larger)).step_ns
    assert better is not None
    assert better > limit.step_ns

    def planner(problem: Problem, options: IlpOptions):
        found = HEURISTICS["on-demand"](problem)
        return replace(found, proven_ns=better if problem.budget_bytes == larger else None)

    monkeypatch.setattr(sys.modules["slackswap_opt.study.sweep"], "ilp", planner)
    budgets = [larger, unet.budget_bytes]
    cells = sweep(unet, budgets, {"ilp": planner}, Settings(solver=SOLVER))
    assert [cell.bound.step_ns for cell in cells] == [better, better]


def test_rows_of_a_sweep_are_under_the_bounds_of_larger_budgets():
    def solved(size: int, step_s: float | None, bound_s: float) -> Solved:
        row = {
            "step_s": step_s,
            "bound_step_s": bound_s,
            "certified_gap": 0.5,
            "status": "feasible",
        }
        return Solved(size, {"ilp": row}, {}, {})

    cells = {10: solved(10, None, 1.0), 20: solved(20, 4.0, 2.0), 30: solved(30, 4.0, 3.9992)}
    assert _proven(cells) == {10: 3.9992, 20: 3.9992, 30: 3.9992}
    row = _under(3.9992, cells[20].rows["ilp"], 0.001)
    assert row["bound_step_s"] == 3.9992
    assert row["certified_gap"] == pytest.approx(0.0002)
    assert row["status"] == "optimal-within-gap"
    assert _under(3.9992, cells[10].rows["ilp"], 0.001)["certified_gap"] == 0.5
    assert _under(1.0, cells[20].rows["ilp"], 0.001) is cells[20].rows["ilp"]

"""The ILP planner as a whole, on a short transformer and on steps with nothing to gain."""

import dataclasses
import sys
import time

import pytest

from slackswap_opt.errors import ScheduleError
from slackswap_opt.formulation._pulp import Limits, available_solvers, solve
from slackswap_opt.formulation.bound import bound
from slackswap_opt.formulation.cut_plan import CutPlanner, LearnedRow
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import PlanResult, Problem, Status
from slackswap_opt.planners import HEURISTICS, IlpOptions, ilp
from slackswap_opt.planners.cut_search import cut_search
from slackswap_opt.planners.lessons import learned_from_memory
from slackswap_opt.planners.realize import realize
from slackswap_opt.planners.search import Search
from slackswap_opt.simulator import simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, in_parts
from slackswap_opt.workloads import build_step, load_workload
from tests.hand import values

PATIENT = 900.0
"""Seconds for what is to end by its gap, and does so within a few where nothing else runs."""


@pytest.fixture(scope="module")
def transformer() -> Problem:
    machine = load_machine("a100-80gb-pcie4")
    step = build_step(load_workload("bert-large", layers=4), machine)
    whole = Problem(step, machine, 1)
    return whole.with_budget(whole.liveness.ideal_peak_bytes * 4 // 10)


@pytest.fixture(scope="module")
def starts(transformer: Problem) -> tuple[PlanResult, ...]:
    return tuple(planner(transformer) for planner in HEURISTICS.values())


def test_it_is_certified_and_beats_every_heuristic(transformer, starts):
    limit = bound(transformer)
    result = ilp(transformer, IlpOptions(gap=0.01, seconds=PATIENT, bound=limit, starts=starts))
    assert result.schedule is not None
    assert result.status is Status.OPTIMAL
    verdict = simulate(
        transformer.step, transformer.machine, result.schedule, transformer.budget_bytes
    )
    assert verdict.step_ns == result.step_ns
    assert limit.step_ns <= verdict.step_ns <= limit.step_ns * 1.0102
    assert all(verdict.step_ns <= r.step_ns for r in starts if r.step_ns is not None)
    assert "CBC" in (result.solver or "")
    assert result.reason == "certified within the gap asked for"


@pytest.mark.skipif("highs" not in available_solvers(), reason="HiGHS is not installed")
def test_with_highs_it_is_certified_within_half_a_percent(transformer, starts):
    options = IlpOptions(gap=0.005, seconds=PATIENT, solver="highs", starts=starts)
    result = ilp(transformer, options)
    assert result.status is Status.OPTIMAL
    assert "HiGHS" in (result.solver or "")
    assert result.step_ns <= bound(transformer).step_ns * 1.0051


def test_the_same_input_gives_the_same_plan(transformer, starts):
    options = IlpOptions(gap=0.01, seconds=PATIENT, starts=starts)
    first, second = (ilp(transformer, options) for _ in range(2))
    assert not first.time_limited
    assert first.schedule == second.schedule
    assert first.status is second.status


def test_a_heuristic_within_the_gap_is_kept_and_named(transformer):
    ample = transformer.with_budget(transformer.liveness.ideal_peak_bytes)
    result = ilp(ample)
    assert result.step_ns == ample.ideal_step_ns
    assert result.status is Status.OPTIMAL


def test_a_budget_below_one_operation_is_proven_infeasible(transformer):
    result = ilp(transformer.with_budget(1))
    assert result.status is Status.INFEASIBLE
    assert result.schedule is None
    assert "no schedule exists" in result.reason


def test_without_time_the_best_heuristic_is_returned_and_labelled(transformer, starts):
    best = min(r.step_ns for r in starts if r.step_ns is not None)
    options = IlpOptions(gap=0.0, seconds=1e-3, starts=starts)
    result = ilp(transformer, options)
    assert result.step_ns == best
    assert result.status is Status.FALLBACK
    assert result.time_limited


def test_a_proposal_that_is_no_schedule_ends_the_search_and_is_told(
    transformer, starts, monkeypatch
):
    def mistaken(search, decisions):
        raise ScheduleError("compute event 7 frees 'x', which is not on the device")

    monkeypatch.setattr(sys.modules["slackswap_opt.planners.ilp"], "_with_swaps", mistaken)
    with pytest.warns(RuntimeWarning, match=r"a bug of this package .* frees 'x'"):
        result = ilp(transformer, IlpOptions(gap=0.0, starts=starts, seconds=1.0))
    assert result.step_ns == min(r.step_ns for r in starts if r.step_ns is not None)
    assert result.status is Status.FALLBACK
    assert "a proposal is no schedule" in result.reason


def test_a_solver_that_claims_nonsense_changes_no_plan(transformer, starts, monkeypatch):
    def nonsense(model, limits, solver="cbc", start=None, *, relax=False):
        answer = honest(model, limits, solver, start, relax=relax)
        if answer.values is None:
            return answer
        return dataclasses.replace(answer, values=tuple(0.0 for _ in answer.values))

    import slackswap_opt.planners.search as search

    honest = search.solve
    monkeypatch.setattr(search, "solve", nonsense)
    limit = bound(transformer)
    result = ilp(transformer, IlpOptions(gap=0.0, seconds=3, bound=limit, starts=starts))
    assert result.schedule is not None
    assert result.step_ns >= limit.step_ns
    verdict = simulate(
        transformer.step, transformer.machine, result.schedule, transformer.budget_bytes
    )
    assert verdict.step_ns == result.step_ns


def small_language_model() -> TrainingStep:
    """One block and a head. At 60 % it pays to rebuild `h` twice, not `e`."""
    rows = (
        ("embed", Phase.FORWARD, 60, "", "e"),
        ("up", Phase.FORWARD, 620, "e", "h"),
        ("gelu", Phase.FORWARD, 190, "h", "g"),
        ("down", Phase.FORWARD, 620, "g", "o"),
        ("head", Phase.FORWARD, 1500, "o", "logits"),
        ("head.backward", Phase.BACKWARD, 2900, "logits o", "do"),
        ("down.backward", Phase.BACKWARD, 1250, "do g", "dg"),
        ("gelu.backward", Phase.BACKWARD, 280, "dg h", "dg@1"),
        ("up.backward", Phase.BACKWARD, 1250, "dg@1 e", "de"),
        ("sgd", Phase.OPTIMIZER, 100, "de", ""),
    )
    mib = {"e": 32, "h": 128, "g": 128, "o": 32, "logits": 256, "do": 32, "dg": 128, "de": 32}
    return TrainingStep.build(
        "small-lm",
        [
            Operation(name, phase, 1000 * us, values(reads), values(writes))
            for name, phase, us, reads, writes in rows
        ],
        [Tensor.of(name, size << 20) for name, size in mib.items()],
    )


@pytest.mark.parametrize("solver", available_solvers())
def test_a_small_step_is_planned_at_every_stage(solver: str):
    whole = Problem(small_language_model(), load_machine("a100-80gb-pcie4"), 1)
    problem = whole.with_budget(whole.liveness.ideal_peak_bytes * 6 // 10)
    assert all(r.step_ns is None or r.step_ns > 10_200_000 for r in heuristic_results(problem))
    result = ilp(problem, IlpOptions(solver=solver))
    assert result.step_ns == 10_200_000
    assert "proven by" in result.reason


def heuristic_results(problem: Problem) -> list[PlanResult]:
    return [planner(problem) for planner in HEURISTICS.values()]


def test_what_needs_too_much_is_named():
    whole = Problem(small_language_model(), load_machine("a100-80gb-pcie4"), 2**28)
    assert ilp(whole).reason == (
        "no schedule exists: operation 'head.backward' alone needs 335544320 bytes, "
        "more than the budget of 268435456"
    )


@pytest.fixture(scope="module")
def sharded() -> Problem:
    """All-reduces cannot run again, and what they write is not saved."""
    step = build_step(load_workload("gpt3-175b", layers=4), load_machine("a100-80gb-pcie4"))
    return Problem.at(step, load_machine("a100-80gb-pcie4"), "50%")


@pytest.mark.parametrize("operation", ["head.loss.cross_entropy.backward", "head.logits.backward"])
def test_what_the_boundary_ilp_proposes_can_be_carried_out(sharded, operation):
    """Even what only an operation before the cut reads, and nothing can rebuild."""
    cut = next(n for n, op in enumerate(sharded.step.operations) if op.name == operation)
    planner = CutPlanner(sharded, cut)
    answer = solve(planner.model, Limits(PATIENT, gap_ns=10**6))
    assert answer.values is not None
    assert realize(sharded, planner.plan(answer.values)) is not None


def test_stalls_that_the_boundary_ilp_did_not_see_are_learned():
    """At first the last layers are still on their way out when the logits want room."""
    machine = load_machine("a100-80gb-pcie4")
    step = build_step(load_workload("gpt3-175b", layers=24), machine)
    problem = Problem.at(step, machine, "50%")
    search = Search(problem, IlpOptions(), bound(problem), time.perf_counter() + PATIENT)
    cut_search(search, rounds=1)
    assert search.by_solver
    assert search.gap <= 0.001
    assert search.best is not None
    verdict = simulate(step, machine, search.best.schedule, problem.budget_bytes)
    assert verdict.step_ns == search.best_ns


def test_what_is_learned_excludes_the_plan_that_taught_it():
    """In parts, the logits crowd the end of the forward phase, where the cut does not stand."""
    machine = load_machine("a100-80gb-pcie4")
    whole = build_step(load_workload("gpt2-xl", layers=12), machine)
    step = in_parts(whole, 4, 2**28)
    problem = Problem.at(step, machine, "20%")
    cut = bound(problem).cut
    learned: list[LearnedRow] = []
    for _ in range(4):
        planner = CutPlanner(problem, cut, (), learned)
        answer = solve(planner.model, Limits(PATIENT, gap_ns=10**6))
        if answer.values is None:
            break
        realized = realize(problem, planner.plan(answer.values))
        row = learned_from_memory(problem, realized)
        if row is None:
            break
        learned.append(row)
        stricter = CutPlanner(problem, cut, (), learned).model.rows[-1]
        assert stricter.family == "learned"
        held = sum(c * round(answer.values[x]) for c, x in stricter.terms)
        assert held < stricter.lower
    assert learned

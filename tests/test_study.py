"""Studies: figures from simulations, monotone sweeps, verified results."""

from __future__ import annotations

import importlib
from dataclasses import replace
from itertools import pairwise

import pytest

from slackswap_opt.errors import CertificateError
from slackswap_opt.formats import read_step
from slackswap_opt.formulation.bound import Bound
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Action, PlanResult, Problem, Schedule, Status
from slackswap_opt.planners import HEURISTICS, PLANNERS
from slackswap_opt.resources import models_dir
from slackswap_opt.simulator import simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from slackswap_opt.study import (
    InvalidPlanError,
    Settings,
    account,
    actions_of,
    compare,
    inspect,
    judge,
    lower_limit,
    smallest_budget,
    sweep,
)
from slackswap_opt.workloads import build_step, load_workload

QUICK = Settings(gap=0.05, seconds=2.0)


def whole(step: TrainingStep) -> Problem:
    problem = Problem(step, load_machine(), 1)
    return problem.with_budget(problem.liveness.ideal_peak_bytes)


@pytest.fixture(scope="module")
def unet() -> Problem:
    return whole(read_step(models_dir() / "graphs" / "unet.json"))


@pytest.fixture(scope="module")
def bert() -> Problem:
    machine = load_machine()
    return whole(build_step(load_workload("bert-large", layers=2, batch=8), machine))


def at(problem: Problem, *percents: int) -> list[Problem]:
    peak = problem.liveness.ideal_peak_bytes
    return [problem.with_budget(peak * percent // 100) for percent in percents]


@pytest.mark.parametrize("name", ["unet", "bert"])
def test_overhead_never_grows_with_the_budget(name, request):
    problem = request.getfixturevalue(name)
    percents = (100, 60, 75, 65, 90, 120)
    rows = compare(at(problem, *percents), settings=QUICK)
    assert len(rows) == len(percents) * len(PLANNERS)
    by_planner = {planner: [row for row in rows if row.planner == planner] for planner in PLANNERS}
    for found in by_planner.values():
        ordered = sorted(found, key=lambda row: row.budget_bytes)
        for smaller, larger in pairwise(ordered):
            assert smaller.bound_step_s >= larger.bound_step_s
            if smaller.step_s is not None:
                assert larger.step_s is not None
                assert larger.step_s <= smaller.step_s
    for row in rows:
        if row.step_s is None:
            continue
        assert row.peak_bytes <= row.budget_bytes
        assert row.certified_gap >= 0
        assert row.step_s >= row.bound_step_s >= row.ideal_step_s
        (ilp,) = (r for r in by_planner["ilp"] if r.budget_bytes == row.budget_bytes)
        assert ilp.step_s is not None
        assert ilp.step_s <= row.step_s


def test_nothing_is_lost_with_all_the_memory(bert):
    rows = compare(at(bert, 100, 150), settings=QUICK)
    for row in rows:
        if row.planner in ("keep-all", "greedy", "ilp"):
            assert row.throughput_retained == 1.0
            assert row.stall_s == row.recompute_s == row.certified_gap == 0
            assert row.status == "optimal-within-gap"


def test_the_ilp_starts_from_every_heuristic_even_if_nobody_asked(unet, monkeypatch):
    module = importlib.import_module("slackswap_opt.study.sweep")
    seen = []

    def nothing(problem, options):
        seen.append(options)
        return PlanResult("ilp", Status.INFEASIBLE, reason="stub")

    monkeypatch.setattr(module, "ilp", nothing)
    (cell,) = sweep(unet, [at(unet, 70)[0].budget_bytes], {"ilp": nothing}, QUICK)
    (options,) = seen
    assert options.bound == cell.bound
    fitting = [p(at(unet, 70)[0]) for p in HEURISTICS.values()]
    best = min(r.step_ns for r in fitting if r.step_ns is not None)
    assert len(options.starts) == sum(r.step_ns is not None for r in fitting)
    judged = cell.judged["ilp"]
    assert judged.step_ns == best
    assert judged.result.planner == "ilp"
    assert cell.status(judged) in (Status.FALLBACK, Status.OPTIMAL)


def test_heuristics_do_not_run_once_one_is_proven_to_be_the_best(unet, monkeypatch):
    module = importlib.import_module("slackswap_opt.study.sweep")
    ran = []

    def noted(name, planner):
        def plan(problem):
            ran.append(name)
            return planner(problem)

        return plan

    watched = {name: noted(name, planner) for name, planner in HEURISTICS.items()}
    monkeypatch.setattr(module, "HEURISTICS", watched)
    peak = unet.liveness.ideal_peak_bytes
    (ample,) = compare([unet], {"ilp": PLANNERS["ilp"]}, QUICK)
    assert (ample.step_s, ran) == (ample.ideal_step_s, ["keep-all"])
    ran.clear()
    compare([unet.with_budget(peak * 6 // 10)], {"ilp": PLANNERS["ilp"]}, QUICK)
    assert set(ran) == set(HEURISTICS)


@pytest.mark.parametrize(("limit", "left"), [(100.0, 60.0), (50.0, 25.0)])
def test_the_time_limit_of_the_ilp_is_one_for_its_heuristics_too(unet, monkeypatch, limit, left):
    """Half of it remains for the search, whatever they took."""
    asked = []

    def noted(problem, options):
        asked.append(options.seconds)
        return PlanResult("ilp", Status.INFEASIBLE, reason="stub")

    def slow(problem):
        return replace(HEURISTICS["greedy"](problem), planning_s=40.0)

    monkeypatch.setattr(importlib.import_module("slackswap_opt.study.sweep"), "ilp", noted)
    budget = at(unet, 70)[0].budget_bytes
    sweep(unet, [budget], {"greedy": slow, "ilp": noted}, Settings(seconds=limit))
    assert asked == [pytest.approx(left, abs=5.0)]


def test_a_faster_schedule_for_a_smaller_budget_is_carried(unet):
    small, large = (p.budget_bytes for p in at(unet, 70, 90))

    def stubborn(problem):
        name = "recompute-all" if problem.budget_bytes == small else "swap-all"
        return HEURISTICS[name](problem)

    cells = sweep(unet, [large, small], {"stubborn": stubborn}, QUICK)
    assert cells[0].judged["stubborn"].step_ns == cells[1].judged["stubborn"].step_ns
    assert cells[0].judged["stubborn"].capacity_bytes == small
    assert str(small) in cells[0].judged["stubborn"].result.reason


def test_a_budget_below_the_working_set_is_proven_infeasible(unet):
    least = lower_limit(unet.step)
    (row,) = compare([unet.with_budget(least.budget_bytes - 1)], {"greedy": PLANNERS["greedy"]})
    assert row.status == "infeasible"
    assert row.reason.startswith("proven:")
    assert least.operation in row.reason
    assert (row.step_s, row.peak_bytes, row.certified_gap) == (None, None, None)


def test_lies_are_not_believed(unet):
    limit = Bound(unet.ideal_step_ns, -1, "", 0.0)
    honest = HEURISTICS["recompute-all"](unet)
    assert judge(unet, honest, limit).step_ns == honest.step_ns
    with pytest.raises(InvalidPlanError, match="in the simulator"):
        judge(unet, replace(honest, step_ns=1), limit)
    with pytest.raises(InvalidPlanError, match="out of memory"):
        judge(unet.with_budget(1), honest, limit)
    with pytest.raises(InvalidPlanError, match="invalid"):
        judge(unet, replace(honest, schedule=Schedule((0,), ((),))), limit)
    with pytest.raises(CertificateError, match="defect"):
        judge(unet, honest, replace(limit, step_ns=honest.step_ns + 1))


def test_the_account_adds_up(bert):
    saved = int(bert.step.index.size_bytes[bert.liveness.saved].sum())
    for name in ("keep-all", "recompute-all", "swap-all", "greedy"):
        schedule = HEURISTICS[name](bert).schedule
        sums = account(bert.step, schedule)
        total = sums.total
        assert total.kept_bytes + total.swapped_bytes + total.recomputed_bytes == saved
        for field in ("kept_bytes", "swapped_bytes", "recomputed_bytes"):
            parts = sum(getattr(share, field) for share in sums.by_layer_kind.values())
            assert parts == getattr(total, field)
    assert "layer.*" in sums.by_layer_kind


def test_actions_are_read_from_the_schedule(unet):
    for name, action in (("swap-all", Action.SWAP), ("keep-all", Action.KEEP)):
        result = HEURISTICS[name](unet)
        actions = actions_of(unet.step, result.schedule)
        saved = [t for t in unet.blocks.evictable if unet.liveness.saved[t]]
        assert {actions[t] for t in saved} == {action}
    plan = HEURISTICS["recompute-all"](unet)
    actions = actions_of(unet.step, plan.schedule)
    for tensor, action in plan.plan.actions.items():
        assert actions[tensor] in (action, Action.DROP)


@pytest.mark.parametrize("name", ["unet", "bert"])
def test_the_smallest_budget_is_one_that_works(name, request):
    problem = request.getfixturevalue(name)
    smallest = smallest_budget(problem)
    assert smallest.limit == lower_limit(problem.step)
    assert smallest.limit.budget_bytes <= smallest.budget_bytes
    assert smallest.budget_bytes < problem.liveness.ideal_peak_bytes
    verdict = simulate(problem.step, problem.machine, smallest.schedule, smallest.budget_bytes)
    assert verdict.fits


def test_a_step_without_activations():
    w = Tensor.of("w", 5, static=True)
    step = TrainingStep.build("s", [Operation("a", Phase.FORWARD, 7, reads=(Value("w"),))], [w])
    rows = compare([Problem(step, load_machine(), 10)], settings=QUICK)
    assert {row.throughput_retained for row in rows} == {1.0}
    assert inspect(Problem(step, load_machine(), 10)).saved_bytes == 0


def test_inspection(unet):
    facts = inspect(unet)
    assert facts.operations == 44
    assert sum(phase.operations for phase in facts.phases) == 44
    assert sum(phase.duration_ns for phase in facts.phases) == facts.ideal_step_ns
    assert sum(layer.saved_bytes for layer in facts.layers) == facts.saved_bytes
    assert facts.slack_bytes <= facts.movable_bytes <= facts.saved_bytes
    sizes = [tensor.size_bytes for tensor in facts.largest]
    assert sizes == sorted(sizes, reverse=True)

"""Programs that run operations again any number of times."""

from __future__ import annotations

import time

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slackswap_opt.formulation._pulp import Limits, Outcome, available_solvers, solve
from slackswap_opt.formulation.bound import bound
from slackswap_opt.formulation.windowed import known_values, windowed_model
from slackswap_opt.formulation.windows import Windows, slots_of
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import (
    Action,
    Plan,
    Problem,
    UnbuildablePlanError,
    actions_of,
    program_in,
    program_of,
    schedule_of,
)
from slackswap_opt.planners import IlpOptions, ilp, on_demand
from slackswap_opt.planners.eviction import run_on_demand
from slackswap_opt.planners.on_demand import TASTES, best_taste, refined, rerun_ns
from slackswap_opt.planners.search import Search
from slackswap_opt.planners.windowed_search import windowed_search
from slackswap_opt.simulator import simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.test_brute_force import problems

RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
SOLVER = available_solvers()[-1]
US = 1000


def chain(layers: int) -> TrainingStep:
    """Forward f0..fn, backward bn..b0; each takes 1 us and writes 1 byte; b_i reads a_i, a_i-1."""
    operations = [
        Operation(f"f{i}", Phase.FORWARD, US, (Value(f"a{i - 1}"),) if i else (), (Value(f"a{i}"),))
        for i in range(layers)
    ]
    for i in reversed(range(layers)):
        reads = [Value(f"a{i}")] + ([Value(f"a{i - 1}")] if i else [])
        reads += [Value(f"g{i + 1}")] if i + 1 < layers else []
        operations.append(Operation(f"b{i}", Phase.BACKWARD, US, tuple(reads), (Value(f"g{i}"),)))
    names = [f"{letter}{i}" for letter in "ag" for i in range(layers)]
    return TrainingStep.build(f"chain of {layers}", operations, [Tensor.of(n, 1) for n in names])


def unet(depth: int) -> TrainingStep:
    """Encoder, decoder with long skips, and their backward operations."""
    operations, tensors = [], []

    def add(name: str, phase: Phase, reads: list[str], writes: str, us: int = 1) -> None:
        values = tuple(Value(read) for read in reads)
        operations.append(Operation(name, phase, us * US, values, (Value(writes),)))
        tensors.append(Tensor.of(writes, 4 if "big" in name else 1))

    for i in range(depth):
        add(f"big{i}", Phase.FORWARD, [f"e{i - 1}"] if i else [], f"s{i}")
        add(f"down{i}", Phase.FORWARD, [f"s{i}"], f"e{i}")
    last = f"e{depth - 1}"
    for i in reversed(range(depth)):
        add(f"up{i}", Phase.FORWARD, [last, f"s{i}"], f"u{i}", us=3)
        last = f"u{i}"
    gradient = None
    for i in range(depth):
        add(f"b_up{i}", Phase.BACKWARD, [f"u{i}", *([gradient] if gradient else [])], f"gu{i}")
        gradient = f"gu{i}"
    for i in reversed(range(depth)):
        add(f"b_down{i}", Phase.BACKWARD, [f"s{i}", f"e{i}", gradient], f"ge{i}")
        gradient = f"ge{i}"
    return TrainingStep.build("unet", operations, tensors)


def recompute_only(step: TrainingStep, budget_bytes: int) -> Problem:
    return Problem(step, load_machine(), budget_bytes, swaps=False)


# --- Programs ---------------------------------------------------------------------------------


@settings(RELAXED, max_examples=100)
@given(problems(8), st.randoms(use_true_random=False))
def test_a_schedule_gives_back_the_program_it_was_made_of(problem: Problem, chance):
    plan = Plan({t: chance.choice(list(Action)) for t in problem.blocks.evictable})
    try:
        program = program_of(problem, plan)
    except UnbuildablePlanError:
        assume(False)
    found = program_in(problem, schedule_of(problem, program))
    assert found is not None
    assert found.compute == program.compute
    assert found.reruns == program.reruns
    assert [tensor for tensor, _ in found.fetches] == [tensor for tensor, _ in program.fetches]


def test_a_schedule_that_runs_part_of_a_block_again_has_no_program():
    step = TrainingStep.build(
        "in place",
        [
            Operation("f0", Phase.FORWARD, US, (), (Value("a"),)),
            Operation("f1", Phase.FORWARD, US, (Value("a"),), (Value("a", 1),)),
            Operation("b1", Phase.BACKWARD, US, (Value("a", 1),), ()),
        ],
        [Tensor.of("a", 1)],
    )
    problem = recompute_only(step, 2)
    whole = program_of(problem, Plan({0: Action.RECOMPUTE}))
    assert [len(rerun.block.operations) for rerun in whole.reruns] == [2]
    schedule = schedule_of(problem, whole)
    assert program_in(problem, schedule) == whole
    part = type(schedule)((0, 1, 1, 2), ((), (), (), (0,)))
    assert program_in(problem, part) is None


# --- Eviction on demand -----------------------------------------------------------------------


@settings(RELAXED, max_examples=60)
@given(problems(8))
def test_what_eviction_on_demand_finds_fits(problem: Problem):
    for taste in TASTES[:3]:
        program = run_on_demand(problem, taste)
        if program is None:
            continue
        schedule = schedule_of(problem, program)
        verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
        assert verdict.fits
        assert verdict.step_ns == problem.ideal_step_ns + rerun_ns(program)


@pytest.mark.parametrize("layers", [8, 16])
def test_a_deep_chain_fits_in_four_tensors_if_operations_run_again_and_again(layers: int):
    problem = recompute_only(chain(layers), 4)
    result = on_demand(problem)
    assert result.schedule is not None
    assert max(result.schedule.compute.count(op) for op in range(layers)) > 2


def test_refining_a_taste_never_makes_it_worse_and_repeats():
    problem = recompute_only(chain(12), 5)
    taste, program = best_taste(problem, TASTES)
    once, twice = (refined(problem, taste, program, lambda trial: trial < 60) for _ in range(2))
    assert rerun_ns(once) <= rerun_ns(program)
    assert once == twice


def test_a_budget_below_the_largest_operation_is_refused_with_a_reason():
    result = on_demand(recompute_only(chain(4), 2))
    assert result.schedule is None
    assert "room" in result.reason


@pytest.mark.parametrize("step", [unet(3), unet(4), chain(12)], ids=["unet 3", "unet 4", "chain"])
def test_a_program_found_on_demand_is_a_point_of_the_model(step: TrainingStep):
    """Also where it rebuilds long chains in one slot, and gives up what they no longer need."""
    peak = recompute_only(step, 1).liveness.ideal_peak_bytes
    found = 0
    for budget in range(peak // 3, peak):
        problem = recompute_only(step, budget)
        for taste in TASTES:
            program = run_on_demand(problem, taste)
            if program is None:
                continue
            slots = slots_of(problem, program)
            windows = Windows(problem, 2, also=slots)
            wm = windowed_model(windows)
            known = known_values(wm, windows, program)
            values = [known.get(x, 0) for x in range(len(wm.model.variables))]
            again = sum(known[x] for own in wm.rerun.values() for x in own.values())
            assert again == len(set(slots))
            if wm.program(windows, values).compute == program.compute:
                assert wm.model.violated(values) is None
                found += again
    assert found > 0


# --- The windowed ILP -------------------------------------------------------------------------


def solved(problem: Problem, hops: int = 12):
    windows = Windows(problem, hops)
    wm = windowed_model(windows)
    return windows, wm, solve(wm.model, Limits(20.0), SOLVER)


@settings(RELAXED, max_examples=25)
@given(problems(6))
def test_without_copies_its_programs_cost_what_it_says_and_fit(problem: Problem):
    problem = Problem(problem.step, problem.machine, problem.budget_bytes, swaps=False)
    windows, wm, answer = solved(problem)
    if answer.outcome is not Outcome.OPTIMAL:
        return
    values = [
        round(x) if v.integer else x for x, v in zip(answer.values, wm.model.variables, strict=True)
    ]
    program = wm.program(windows, values)
    schedule = schedule_of(problem, program)
    verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
    assert verdict.fits
    cost = sum(c * values[x] for x, c in wm.model.objective.items())
    assert verdict.step_ns == problem.ideal_step_ns + cost
    assert verdict.step_ns >= bound(problem, solver=SOLVER).step_ns


@settings(RELAXED, max_examples=25)
@given(problems(6))
def test_a_program_of_the_model_is_a_point_of_it(problem: Problem):
    """What a solution's program stands for satisfies every row that has no queue in it."""
    problem = Problem(problem.step, problem.machine, problem.budget_bytes, swaps=False)
    windows, wm, answer = solved(problem)
    if answer.outcome is not Outcome.OPTIMAL:
        return
    known = known_values(wm, windows, wm.program(windows, answer.values))
    assert set(known) == set(range(len(wm.model.variables)))
    assert wm.model.violated([known[x] for x in range(len(wm.model.variables))]) is None


def test_a_long_skip_is_dropped_and_rebuilt_in_the_forward_phase():
    """No room for all skips at the turn: a plan with one action per tensor must stall or fail."""
    step = unet(4)
    tight = recompute_only(step, 13)
    windows = Windows(tight, hops=12, far=2)
    wm = windowed_model(windows)
    answer = solve(wm.model, Limits(60.0), SOLVER)
    assert answer.outcome is Outcome.OPTIMAL
    program = wm.program(windows, answer.values)
    schedule = schedule_of(tight, program)
    verdict = simulate(step, tight.machine, schedule, tight.budget_bytes)
    assert verdict.fits
    turn = schedule.compute.index(
        next(i for i, op in enumerate(step.operations) if op.phase is Phase.BACKWARD)
    )
    early = [
        op for event, op in enumerate(schedule.compute[:turn]) if op in schedule.compute[:event]
    ]
    assert early


def test_the_search_runs_an_operation_more_than_once_where_that_is_best():
    problem = recompute_only(chain(8), 4)
    search = Search(
        problem, IlpOptions(gap=0.0, seconds=30.0, solver=SOLVER),
        bound(problem, solver=SOLVER), time.perf_counter() + 30.0,
    )  # fmt: skip
    windowed_search(search)
    assert search.best is not None
    assert search.best.schedule is not None
    counts = [search.best.schedule.compute.count(op) for op in range(8)]
    assert max(counts) > 2


@settings(RELAXED, max_examples=15)
@given(problems(5))
def test_the_planner_honours_a_ban_on_swaps(problem: Problem):
    problem = Problem(problem.step, problem.machine, problem.budget_bytes, swaps=False)
    result = ilp(problem, IlpOptions(gap=0.0, seconds=10.0, solver=SOLVER))
    if result.schedule is not None:
        assert not result.schedule.copies_in
        assert Action.SWAP not in actions_of(problem.step, result.schedule).values()

"""Budgets, blocks, and plans becoming schedules that the referee accepts."""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError
from slackswap_opt.machine import Host, Machine
from slackswap_opt.plan import (
    Action,
    Block,
    Clock,
    Plan,
    Problem,
    UnbuildablePlanError,
    lower,
    parse_budget,
    program_of,
    program_with,
    schedule_of,
)
from slackswap_opt.simulator import simulate
from slackswap_opt.step import TrainingStep, working_set_bytes
from tests.hand import CHAIN, machine_of, step_of
from tests.strategies import machines, training_steps

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
AMPLE = 10**9


# --- Budgets ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("50%", 500), ("100%", 1000), ("12.5%", 125), ("200%", 2000), (" 75 % ", 750),
        ("0.5", 500), (".5", 500), ("1", 1000), ("1.0", 1000), ("1.5", 1500), ("0.0999", 99),
        ("2", 2), ("640", 640), ("1B", 1), ("640 B", 640), ("0640", 640),
        ("3KB", 3000), ("3KiB", 3072), ("2MB", 2 * 10**6), ("2mib", 2 * 2**20),
        ("20GB", 20 * 10**9), ("20GiB", 20 * 2**30), ("0.5gib", 2**29), ("1.5 TB", 1500 * 10**9),
        ("1TiB", 2**40), ("33.3%", 333),
    ],
)  # fmt: skip
def test_budgets_are_understood(text, size):
    assert parse_budget(text, 1000) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        " ",
        "%",
        "GiB",
        "-5",
        "-50%",
        "5 XB",
        "1e9",
        "nan",
        "inf",
        "50%%",
        "1,5",
        "5G iB",
        "0x10",
    ],
)
def test_what_is_no_budget_is_refused(text):
    with pytest.raises(InputError, match="write it like 50%"):
        parse_budget(text, 1000)


@pytest.mark.parametrize("text", ["0", "0%", "0.0", "0GiB", "0.0001", "0.4B", "0.01%"])
def test_a_budget_of_no_bytes_is_refused(text):
    with pytest.raises(InputError, match="comes to no bytes"):
        parse_budget(text, 1000)


def test_fractions_are_exact():
    assert parse_budget("70%", 10**15 + 10) == 7 * 10**14 + 7
    assert parse_budget("0.1", 2**50) == 2**50 // 10


def test_a_problem_by_a_budget_in_words():
    whole = Problem(CHAIN, machine_of(), 10**9)
    peak = whole.liveness.ideal_peak_bytes
    assert Problem.at(CHAIN, machine_of(), "50%") == whole.with_budget(peak // 2)
    assert Problem.at(CHAIN, machine_of(), "17B", swaps=False) == replace(
        whole, budget_bytes=17, swaps=False
    )
    with pytest.raises(InputError, match="not understood"):
        Problem.at(CHAIN, machine_of(), "half")


def test_another_budget_shares_what_does_not_depend_on_it():
    problem = Problem(CHAIN, machine_of(), 20)
    blocks, live = problem.blocks, problem.liveness
    other = problem.with_budget(10)
    assert other.budget_bytes == 10
    assert other.blocks is blocks
    assert other.liveness is live
    assert other == Problem(CHAIN, problem.machine, 10)


# --- Blocks -----------------------------------------------------------------------------------


def blocks_of(step: TrainingStep):
    return Problem(step, machine_of(), 1).blocks


def test_a_chain_has_one_block_per_operation():
    found = blocks_of(CHAIN)
    assert found.blocks == (
        Block((0,), (), (0,), 1000, 0),
        Block((1,), (0,), (1,), 1000, 0),
        Block((2,), (1,), (2,), 1000, 0),
    )
    assert found.evictable == (0, 1, 2)
    assert found.block_of[:3] == (0, 1, 2)
    assert set(found.block_of[3:]) == {-1}


def test_operations_in_place_run_again_together():
    step = step_of(
        ("f0", 100, "", "x"), ("f1", 200, "x", "y", 7), ("f2", 300, "y", "y@1", 5),
        ("f3", 400, "y@1", "y@2"), ("b3", 1, "y@2", ""), ("b0", 1, "x", ""),
        x=4, y=8,
    )  # fmt: skip
    found = blocks_of(step)
    assert found.blocks == (Block((0,), (), (0,), 100, 0), Block((1, 2, 3), (0,), (1,), 900, 7))
    assert found.evictable == (0, 1)


def test_one_operation_may_have_several_outputs():
    step = step_of(("f0", 5, "", "x y"), ("b0", 1, "x y", ""), x=1, y=2)
    found = blocks_of(step)
    assert found.blocks == (Block((0,), (), (0, 1), 5, 0),)
    assert found.block_of == (0, 0)


def test_what_may_not_run_again_has_no_block():
    step = step_of(
        ("f0", 5, "", "x"), ("F1", 5, "x", "y"), ("f2", 5, "y", "z"), ("b0", 1, "x y z", ""),
        x=1, y=1, z=1,
    )  # fmt: skip
    found = blocks_of(step)
    assert found.block_of == (0, -1, 1)
    assert found.evictable == (0, 1, 2)


def test_one_part_that_may_not_run_again_spoils_the_chain():
    step = step_of(("f0", 5, "", "x"), ("F1", 5, "x", "x@1"), ("b0", 1, "x@1", ""), x=1)
    assert blocks_of(step).block_of == (-1,)


def test_several_outputs_of_which_one_is_overwritten_have_no_block():
    step = step_of(
        ("f0", 5, "", "x y"), ("f1", 5, "x", "x@1"), ("b0", 1, "x@1 y", ""), x=1, y=1
    )  # fmt: skip
    assert blocks_of(step).blocks == ()


def test_a_reader_of_an_overwritten_version_has_no_block():
    step = step_of(
        ("f0", 5, "", "x"), ("f1", 5, "x", "z"), ("f2", 5, "x", "x@1"), ("b0", 1, "x@1 z", ""),
        x=1, z=1,
    )  # fmt: skip
    found = blocks_of(step)
    assert found.block_of[1] == -1  # f1 reads x, of which only x@1 is left
    assert found.block_of[0] == 0


def test_what_the_backward_phase_overwrites_stays():
    step = step_of(("f0", 5, "", "x"), ("b0", 5, "x", "x@1"), ("b1", 5, "x@1", ""), x=1)
    found = blocks_of(step)
    assert found.evictable == ()
    assert found.blocks == ()


def test_gradients_are_not_evictable():
    assert set(blocks_of(CHAIN).evictable).isdisjoint({3, 4, 5})


# --- Lowering ---------------------------------------------------------------------------------


@st.composite
def assigned(draw: st.DrawFn, max_activations: int = 8) -> tuple[Problem, Plan]:
    """Any problem with any action for each evictable tensor (or none)."""
    step, machine = draw(training_steps(max_activations)), draw(machines())
    problem = Problem(step, replace(machine, host=Host()), 0)
    least, most = int(working_set_bytes(step).max()), problem.liveness.ideal_peak_bytes
    problem = problem.with_budget(draw(st.integers(least, most)))
    actions = {}
    for tensor in problem.blocks.evictable:
        action = draw(st.sampled_from((*Action, Action.SWAP, Action.RECOMPUTE, None)))
        if action in (Action.RECOMPUTE, Action.DROP) and problem.blocks.block_of[tensor] < 0:
            action = draw(st.sampled_from((Action.KEEP, Action.SWAP)))
        if action is not None:
            actions[tensor] = action
    return problem, Plan(actions)


def lowers_to_a_valid_schedule(problem: Problem, plan: Plan) -> None:
    index, live = problem.step.index, problem.liveness
    clock = None
    for _ in range(3):
        schedule = lower(problem, plan, clock)
        verdict = simulate(problem.step, problem.machine, schedule, AMPLE)
        assert verdict.fits
        assert verdict.timeline.memory_bytes[-1:].tolist() in ([], [0])  # nothing is left over
        simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
        clock = Clock(verdict.timeline.compute_start_ns, verdict.timeline.compute_end_ns)
    again = schedule.reexecutions()
    assert len(set(again)) == len(again)
    outs = [copy.tensor for copy in schedule.copies_out]
    assert sorted(outs) == sorted(copy.tensor for copy in schedule.copies_in)
    assert len(set(outs)) == len(outs)
    read_again = {t for op in again for t, _ in index.reads[op]}
    for tensor in problem.blocks.evictable:
        needed = bool(live.saved[tensor]) or tensor in read_again
        action = plan.of(tensor)
        writers = set(index.writers[tensor])
        if live.saved[tensor]:
            assert (tensor in outs) == (action is Action.SWAP)
            if action in (Action.RECOMPUTE, Action.DROP):
                assert writers <= set(again)
        if tensor in outs:
            assert action is Action.SWAP
            assert needed
    assert all(t in problem.blocks.evictable for t in outs)


@settings(RELAXED, max_examples=120)
@given(assigned())
def test_any_plan_lowers_to_a_schedule_that_the_referee_accepts(case):
    lowers_to_a_valid_schedule(*case)


@pytest.mark.slow
@settings(RELAXED, max_examples=3_000)
@given(assigned(12))
def test_thousands_of_plans_lower_to_schedules_that_the_referee_accepts(case):
    lowers_to_a_valid_schedule(*case)


@settings(RELAXED, max_examples=120)
@given(assigned(), st.data())
def test_a_tensor_may_be_fetched_again_and_again_even_if_nothing_needs_it_there(case, data):
    problem, plan = case
    program = program_of(problem, plan)
    assume(program.fetches)
    numbers = {block.operations: n for n, block in enumerate(problem.blocks.blocks)}
    reruns: dict[int, list[int]] = {}
    for rerun in program.reruns:
        op = bisect_left(program.original, rerun.last)
        reruns.setdefault(op, []).append(numbers[rerun.block.operations])
    fetches = [(bisect_left(program.original, event), tensor) for tensor, event in program.fetches]
    assert set(program_with(problem, reruns, fetches).fetches) == set(program.fetches)
    for _, tensor in tuple(fetches):
        begin = int(problem.liveness.last_forward[tensor]) + 1
        ops = st.integers(begin, problem.step.index.operations - 1)
        fetches += [(op, tensor) for op in data.draw(st.lists(ops, max_size=4))]
    again = program_with(problem, reruns, fetches)
    schedule = schedule_of(problem, again)
    assert len(schedule.copies_in) == len(again.fetches) <= len(set(fetches))
    assert simulate(problem.step, problem.machine, schedule, AMPLE).fits


@settings(RELAXED, max_examples=40)
@given(training_steps(), machines())
def test_keeping_everything_lowers_to_the_ideal_step(step: TrainingStep, machine: Machine):
    problem = Problem(step, machine, 1)
    schedule = lower(problem, Plan({}))
    peak = problem.liveness.ideal_peak_bytes
    verdict = simulate(step, machine, schedule, peak)
    assert verdict.step_ns == problem.ideal_step_ns
    assert verdict.peak_bytes == peak
    assert schedule.compute == tuple(range(step.index.operations))
    assert schedule.copies_out == schedule.copies_in == ()


def peak_of(actions: dict[int, Action], budget: int = 20, rate: int = 8) -> tuple[int, int]:
    problem = Problem(CHAIN, machine_of(rate), budget)
    schedule = lower(problem, Plan(actions))
    verdict = simulate(CHAIN, problem.machine, schedule, AMPLE)
    return verdict.peak_bytes, verdict.step_ns


KEEP, SWAP, AGAIN = Action.KEEP, Action.SWAP, Action.RECOMPUTE


@pytest.mark.parametrize(
    ("actions", "peak", "step_ns"),
    [
        ({}, 28, 9000),  # at b2: a0 a1 a2 g2
        ({0: AGAIN}, 20, 10_000),  # at b2: a1 a2 g2
        ({1: AGAIN}, 24, 10_000),  # at b1: a0 a1 g2 g1
        ({0: AGAIN, 1: AGAIN}, 24, 11_000),  # the same: a0 stays for b0 once it is there
        ({0: SWAP}, 20, 10_000),  # out during f1; back after b1, which leaves no room
        ({0: SWAP, 1: AGAIN}, 24, 10_000),  # a0 is back before f1 runs again
    ],
)
def test_peaks_by_hand(actions, peak, step_ns):
    assert peak_of(actions) == (peak, step_ns)


def test_a_swap_is_one_copy_out_and_one_back():
    problem = Problem(CHAIN, machine_of(8), 24)
    schedule = lower(problem, Plan({0: SWAP}))
    assert [c.tensor for c in schedule.copies_out] == [0]
    assert [c.tensor for c in schedule.copies_in] == [0]
    assert schedule.copies_out[0].after == 0
    assert 2 <= schedule.copies_in[0].after <= 3  # in time for b0, and not before f2
    assert schedule.reexecutions() == ()


def test_a_chain_of_rebuilds_runs_in_order():
    schedule = lower(Problem(CHAIN, machine_of(), 20), Plan({0: AGAIN, 1: AGAIN}))
    assert schedule.reexecutions() == (0, 1)
    assert schedule.compute == (0, 1, 2, 3, 0, 1, 4, 5)


def test_what_nothing_needs_is_dropped_whatever_its_action():
    step = step_of(
        ("f0", 10, "", "u"), ("f1", 10, "u", "v"), ("b0", 10, "v", "g"), u=4, v=4, g=1
    )  # fmt: skip
    problem = Problem(step, machine_of(), 100)
    schedules = {lower(problem, Plan({0: action})) for action in Action}
    assert len(schedules) == 1
    assert 0 in schedules.pop().frees[1]


@pytest.mark.parametrize("action", [Action.RECOMPUTE, Action.DROP])
def test_what_cannot_be_rebuilt_cannot_be_dropped(action):
    step = step_of(("F0", 10, "", "u"), ("b0", 10, "u", ""), u=4)
    with pytest.raises(UnbuildablePlanError, match="'u' is dropped, needed again"):
        lower(Problem(step, machine_of(), 100), Plan({0: action}))


def test_nor_can_what_its_rebuild_reads():
    step = step_of(
        ("F0", 10, "", "u"), ("f1", 10, "u", "v"), ("b0", 10, "v", ""), u=4, v=4
    )  # fmt: skip
    problem = Problem(step, machine_of(), 100)
    with pytest.raises(UnbuildablePlanError, match="'u'"):
        lower(problem, Plan({0: Action.DROP, 1: Action.RECOMPUTE}))
    kept = lower(problem, Plan({0: Action.KEEP, 1: Action.RECOMPUTE}))
    assert kept.reexecutions() == (1,)
    swapped = lower(problem, Plan({0: Action.SWAP, 1: Action.RECOMPUTE}))
    assert [c.tensor for c in swapped.copies_in] == [0]
    assert lower(problem, Plan({0: Action.DROP})).reexecutions() == ()


def test_a_second_output_that_is_swapped_leaves_no_trace_of_the_rebuild():
    step = step_of(
        ("f0", 1000, "", "x y"), ("f1", 9000, "x y", "z"), ("b0", 1000, "x z", ""),
        ("b1", 9000, "", ""), ("b2", 1000, "y", ""), x=4, y=4, z=1,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 12)
    schedule = lower(problem, Plan({0: AGAIN, 1: SWAP}))
    verdict = simulate(step, problem.machine, schedule, 9)
    assert verdict.step_ns == 22_000
    assert verdict.peak_bytes == 9

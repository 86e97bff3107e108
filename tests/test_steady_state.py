"""Steps in a row, micro-batches, devices on one link, and other traffic on it."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings

from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.machine import Machine
from slackswap_opt.plan import Copy, Schedule
from slackswap_opt.simulator import simulate
from slackswap_opt.simulator.shared import Device, Traffic, simulate_shared
from slackswap_opt.step import Phase, liveness
from slackswap_opt.study.steady_state import repeat, steady_state
from tests.hand import machine_of, step_of
from tests.oracle import plain, play
from tests.strategies import Program, keep_all, programs
from tests.test_simulator import AMPLE, forward_backward, op

LAYERS = 4
CHAIN = forward_backward(LAYERS, 2000, 3, 1)


def swapping() -> Schedule:
    """The first activation of the chain goes out after its last forward reader and comes back."""
    kept = keep_all(CHAIN)
    frees = [list(freed) for freed in kept.frees]
    frees[1].append(0)
    return Schedule(kept.compute, tuple(map(tuple, frees)), (Copy(0, 0),), (Copy(0, 4),))


def test_one_repetition_is_the_schedule_itself():
    whole = repeat(CHAIN, swapping())
    assert (whole.step, whole.schedule) == (CHAIN, swapping())
    assert whole.last_events == (2 * LAYERS - 1,)


@settings(deadline=None, max_examples=60)
@given(programs())
def test_repetitions_of_right_programs_are_right_programs(program: Program):
    step, machine, schedule, _ = program
    try:
        alone = simulate(step, machine, schedule, AMPLE)
        whole = repeat(step, schedule, steps=3)
    except (ScheduleError, InputError):
        return
    if not alone.fits:
        return
    played = plain(simulate(whole.step, machine, whole.schedule, AMPLE))
    assert played == play(whole.step, machine, whole.schedule, AMPLE)
    assert played.step_ns is None or played.step_ns >= 3 * sum(
        end - start for start, end in plain(alone).compute
    ) * (machine.link.overlap == 1 and machine.link.contention == 0)


def test_keeping_everything_takes_the_same_time_in_every_step():
    peak = liveness(CHAIN).ideal_peak_bytes
    found = steady_state(CHAIN, machine_of(), keep_all(CHAIN), peak, steps=5)
    assert found.fits
    assert found.step_times_ns() == (16000,) * 5
    assert found.verdicts[0].peak_bytes == peak


def test_copies_that_outlast_a_step_delay_the_next_one():
    # x takes 9000 ns out and is not needed again; a step takes 4000 ns.
    step = step_of(op("a", 2000, "", "x"), op("b", 2000, "x", "y"), x=9, y=1)
    schedule = Schedule((0, 1), ((), (0, 1)), (Copy(0, 0),))
    assert simulate(step, machine_of(), schedule, 10).step_ns == 4000
    found = steady_state(step, machine_of(), schedule, 10, steps=3)
    assert found.step_times_ns() == (4000, 11000, 11000)
    roomy = steady_state(step, machine_of(), schedule, 19, steps=3)
    assert roomy.step_times_ns()[1] == 4000, "room for two copies of x hides one of them"


def test_what_a_schedule_leaves_behind_is_freed_between_steps():
    step = step_of(op("a", 10, "", "x"), op("b", 10, "x", "y"), x=4, y=2)
    found = steady_state(step, machine_of(), Schedule((0, 1), ((), ())), 6, steps=3)
    assert found.fits
    assert found.verdicts[0].peak_bytes == 6


def test_micro_batches_run_the_optimizer_once():
    step = step_of(
        op("f", 100, "", "x"),
        replace(op("b", 200, "x", "g"), phase=Phase.BACKWARD),
        replace(op("o", 50, "g", ""), phase=Phase.OPTIMIZER),
        x=4, g=2,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2), ((), (0,), (1,)))
    whole = repeat(step, schedule, steps=2, micro_batches=3)
    names = [whole.step.operations[o].name for o in whole.schedule.compute]
    assert names[:7] == ["f#1.1", "b#1.1", "f#1.2", "b#1.2", "f#1.3", "b#1.3", "o#1.3"]
    found = steady_state(step, machine_of(), schedule, 6, steps=2, micro_batches=3)
    assert found.step_times_ns() == (950, 950)
    assert found.verdicts[0].peak_bytes == 6, "the gradient of each micro-batch is freed"


def test_a_repetition_that_copies_in_for_nobody_is_refused():
    step = step_of(op("a", 10, "", "x"), op("b", 10, "", "y"), x=4, y=2)
    schedule = Schedule((0, 1), ((0,), ()), (Copy(0, 0),), (Copy(0, 0),))
    with pytest.raises(InputError, match="copies 'x' in and does not read it"):
        repeat(step, schedule, steps=2)
    with pytest.raises(InputError, match="at least one"):
        repeat(step, schedule, steps=0)


# --- One link ---------------------------------------------------------------------------------


@settings(deadline=None, max_examples=60)
@given(programs())
def test_a_device_alone_on_the_link_is_the_simulator(program: Program):
    step, machine, schedule, capacity = program
    try:
        alone = simulate(*program)
    except ScheduleError:
        return
    (shared,) = simulate_shared(machine, [Device(step, schedule, capacity, 1234)])
    assert plain(shared) == plain(alone)


def halved(machine: Machine, devices: int) -> Machine:
    return replace(machine, link=replace(machine.link, shared_by=devices))


def test_devices_in_phase_share_evenly():
    machine = machine_of(rate=6)
    devices = [Device(CHAIN, swapping(), AMPLE)] * 3
    together = simulate_shared(machine, devices)
    alone = simulate(CHAIN, halved(machine, 3), swapping(), AMPLE)
    assert [plain(verdict) for verdict in together] == [plain(alone)] * 3


def test_devices_out_of_phase_do_not_disturb_each_other():
    machine = machine_of(rate=1)
    alone = simulate(CHAIN, machine, swapping(), AMPLE)
    assert alone.step_ns is not None
    far = [Device(CHAIN, swapping(), AMPLE, offset) for offset in (0, alone.step_ns)]
    assert [v.step_ns for v in simulate_shared(machine, far)] == [alone.step_ns] * 2


def test_a_copy_slows_down_while_another_device_copies():
    step = step_of(op("a", 10, "", "x"), op("b", 20000, "x"), x=4)
    schedule = Schedule((0, 1), ((), ()), (Copy(0, 0),))
    devices = [Device(step, schedule, AMPLE), Device(step, schedule, AMPLE, 1000)]
    first, second = (plain(v) for v in simulate_shared(machine_of(rate=2), devices))
    # 4000 units alone would take 2000 ns: 1000 ns alone, 1000 units left at half the rate.
    assert first.copies_out == [(10, 3010)]
    assert second.copies_out == [(10, 3010)]


def test_traffic_takes_its_part_while_it_lasts():
    step = step_of(op("a", 10, "", "x"), op("b", 20000, "x"), x=4)
    schedule = Schedule((0, 1), ((), ()), (Copy(0, 0),))
    device = [Device(step, schedule, AMPLE)]
    (all_along,) = simulate_shared(machine_of(rate=4), device, [Traffic(3, 0)])
    assert plain(all_along).copies_out == [(10, 4010)]
    (once,) = simulate_shared(machine_of(rate=4), device, [Traffic(3, 0, 510, 1010)])
    assert plain(once).copies_out == [(10, 510 + 500 + 375)]
    (too_much,) = simulate_shared(machine_of(rate=4), device, [Traffic(9, 9)])
    assert plain(too_much).copies_out == [(10, 4010)], "one byte per microsecond is always left"
    with pytest.raises(InputError):
        Traffic(-1, 0)


def test_traffic_the_other_way_makes_the_link_duplex():
    machine = machine_of(rate=4)
    machine = replace(machine, link=replace(machine.link, d2h_duplex_bytes_per_s=2e6))
    step = step_of(op("a", 10, "", "x"), op("b", 20000, "x"), x=4)
    device = [Device(step, Schedule((0, 1), ((), ()), (Copy(0, 0),)), AMPLE)]
    (played,) = simulate_shared(machine, device, [Traffic(0, 1)])
    assert plain(played).copies_out == [(10, 2010)]


def test_devices_that_run_out_of_memory_do_not_hold_the_others_up():
    devices = [Device(CHAIN, swapping(), 3), Device(CHAIN, swapping(), AMPLE)]
    small, large = simulate_shared(machine_of(), devices)
    assert small.out_of_memory is not None
    assert large.fits


def test_steady_state_of_two_devices_is_at_least_that_of_one():
    alone = steady_state(CHAIN, machine_of(), swapping(), 10, steps=4)
    both = steady_state(CHAIN, machine_of(), swapping(), 10, steps=4, offsets_ns=(0, 900))
    assert both.fits
    assert alone.step_ends_ns[0][-1] <= min(ends[-1] for ends in both.step_ends_ns)
    with pytest.raises(InputError, match="at least one device"):
        steady_state(CHAIN, machine_of(), swapping(), 10, offsets_ns=())

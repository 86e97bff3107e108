"""The referee against closed forms and hand calculations, with the oracle checked beside it.

Unless a test says otherwise the link moves one byte per microsecond, so that a tensor of n bytes
takes n x 1000 ns.
"""

from __future__ import annotations

import pytest

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import Host, Link, Machine
from slackswap_opt.plan import START, Copy, Schedule
from slackswap_opt.simulator import simulate, simulate_batch
from slackswap_opt.step import (
    Operation,
    Phase,
    Tensor,
    TrainingStep,
    ideal_step_ns,
    liveness,
)
from tests.hand import machine_of, step_of, values
from tests.oracle import Stuck, plain, play
from tests.strategies import DEVICE, MB_PER_S, keep_all
from tests.test_simulator_batch import LANES, arrays_of, told

AMPLE = 10**6


@pytest.fixture(params=["engine", "oracle", "batch"])
def referee(request):
    """Plays (step, machine, schedule, capacity); the answer is plain data in any case."""
    if request.param == "oracle":
        return play
    if request.param == "batch":
        return in_a_batch
    return lambda *program: plain(simulate(*program))


def in_a_batch(step, machine, schedule, capacity):
    """One lane among others of the same program, whose arrays say what its verdict says."""
    found = simulate_batch(step, machine, schedule, [capacity] * LANES, timeline=True)
    if 3 in found.errors:
        raise found.errors[3]
    played = plain(found.verdict(3))
    assert arrays_of(found, 3, schedule) == told(played)
    return played


def op(name, duration_ns, reads="", writes="", workspace=0, *, recomputable=True):
    return Operation(
        name, Phase.FORWARD, duration_ns, values(reads), values(writes), workspace,
        recomputable=recomputable,
    )  # fmt: skip


def duplex_machine(alone: int, out_duplex: int, in_duplex: int, latency_ns: int = 0) -> Machine:
    rates = (alone, alone, out_duplex, in_duplex)
    return Machine("hand", DEVICE, Link(*(rate * MB_PER_S for rate in rates), latency_ns))


def forward_chain(layers: int, duration_ns: int, size: int) -> TrainingStep:
    """f0 -> a0 -> f1 -> a1 -> ...; with nothing after it."""
    operations = [
        op(f"f{k}", duration_ns, f"a{k - 1}" if k else "", f"a{k}") for k in range(layers)
    ]
    return step_of(*operations, **{f"a{k}": size for k in range(layers)})


def swapping_forward(layers: int) -> Schedule:
    """Each activation leaves as soon as it has been read; the last one stays."""
    return Schedule(
        compute=tuple(range(layers)),
        frees=((), *((k - 1,) for k in range(1, layers))),
        copies_out=tuple(Copy(k, k) for k in range(layers - 1)),
    )


def forward_backward(layers: int, duration_ns: int, size: int, gradient: int) -> TrainingStep:
    """A chain and its backward operations: b_k reads a_k and the gradient of what follows it."""
    operations = [
        op(f"f{k}", duration_ns, f"a{k - 1}" if k else "", f"a{k}") for k in range(layers)
    ]
    sizes = {f"a{k}": size for k in range(layers)}
    for k in reversed(range(layers)):
        reads = f"a{k}" if k == layers - 1 else f"a{k} g{k + 1}"
        operations.append(op(f"b{k}", duration_ns, reads, f"g{k}"))
        sizes[f"g{k}"] = gradient
    return step_of(*operations, **sizes)


# --- Closed forms -----------------------------------------------------------------------------


def test_keep_all_takes_the_sum_of_durations_and_the_ideal_peak(referee):
    step = forward_backward(6, 700, 9, 4)
    played = referee(step, machine_of(), keep_all(step), AMPLE)
    assert played.step_ns == 12 * 700 == ideal_step_ns(step)
    assert played.peak_bytes == 6 * 9 + 4 + 0 == liveness(step).ideal_peak_bytes
    assert played.stalls == []
    assert played.compute == [(700 * k, 700 * (k + 1)) for k in range(12)]
    assert played.memory[-1] == (12 * 700, 0)


def test_keep_all_fits_exactly_at_its_peak_and_not_below(referee):
    step = forward_backward(4, 100, 10, 3)
    assert referee(step, machine_of(), keep_all(step), 43).step_ns == 800
    short = referee(step, machine_of(), keep_all(step), 42)
    assert short.out_of_memory == Stuck(4, 400, 1, None, 0, (0, 1, 2, 3))


def test_a_chain_whose_copies_hide_has_no_stall_at_two_layers_of_memory(referee):
    layers, duration, size, gradient = 6, 5000, 5, 2
    step = forward_backward(layers, duration, size, gradient)
    last = layers - 1
    frees: list[tuple[int, ...]] = [()] + [(k - 1,) for k in range(1, layers)]
    for position, k in enumerate(reversed(range(layers))):
        mine = (k,) if k == last else (k, layers + position - 1)
        frees.append(mine)
    schedule = Schedule(
        compute=tuple(range(2 * layers)),
        frees=tuple(frees),
        copies_out=tuple(Copy(k, k) for k in range(last)),
        # a_k arrives while b_(k+1) runs, that is after the event before b_(k+1)
        copies_in=tuple(Copy(k, 2 * layers - 3 - k) for k in reversed(range(last))),
    )
    played = referee(step, machine_of(rate=1), schedule, 2 * size + 2 * gradient)
    assert played.stalls == []
    assert played.step_ns == ideal_step_ns(step)
    assert played.peak_bytes == 2 * size + 2 * gradient
    assert liveness(step).ideal_peak_bytes > 2 * played.peak_bytes
    assert played.host_bytes == last * size


@pytest.mark.parametrize(("layers", "duration_ns", "size"), [(3, 1000, 4), (9, 700, 3)])
def test_a_chain_whose_copies_cannot_hide_stalls_by_the_formula(referee, layers, duration_ns, size):
    copy = size * 1000
    step = forward_chain(layers, duration_ns, size)
    played = referee(step, machine_of(), swapping_forward(layers), 2 * size)
    assert played.stalls == [
        (k, 2 * duration_ns + (k - 2) * copy, duration_ns + (k - 1) * copy, "swap-out", k - 2)
        for k in range(2, layers)
    ]
    assert played.stall_ns == (layers - 2) * (copy - duration_ns)
    assert played.step_ns == layers * duration_ns + played.stall_ns


def test_a_saturated_engine_sets_the_step(referee):
    step = forward_chain(8, 0, 5)
    played = referee(step, machine_of(), swapping_forward(8), 10)
    assert played.step_ns == 6 * 5000, "all copies but the last, which nobody waits for"
    assert played.copies_out[:6] == [(5000 * k, 5000 * (k + 1)) for k in range(6)]
    assert played.copies_out[6] == (-1, -1), "the step has ended"


def test_a_recomputed_chain_adds_exactly_its_durations(referee):
    step = forward_backward(3, 400, 6, 1)
    schedule = Schedule(
        compute=(0, 1, 2, 3, 0, 1, 4, 0, 5),
        frees=((), (0,), (1,), (2,), (), (0,), (1, 3), (), (0, 4, 5)),
    )
    played = referee(step, machine_of(), schedule, 14)
    assert played.step_ns == ideal_step_ns(step) + 3 * 400
    assert played.stalls == []
    assert played.peak_bytes == 13, "a0, a1 and g2"


# --- Link -------------------------------------------------------------------------------------


def duplex_step(y: int) -> TrainingStep:
    return step_of(
        op("a", 1000, "", "x"),
        op("b", 10000, "", "y"),
        op("c", 1500, "", "z"),
        op("d", 100, "x", "out"),
        x=10, y=y, z=1, out=1,
    )  # fmt: skip


DUPLEX_SCHEDULE = Schedule(
    (0, 1, 2, 3), ((0,), (), (), ()), (Copy(0, 0), Copy(1, 1)), (Copy(0, 2),)
)


def test_rates_change_in_the_middle_of_both_copies(referee):
    # y: 6 of 30 bytes alone until 12500, 24 at 3 B/us until 20500.
    # x: 8 bytes at 1 B/us until 20500, 2 at 4 B/us.
    played = referee(duplex_step(30), duplex_machine(4, 3, 1), DUPLEX_SCHEDULE, AMPLE)
    assert played.copies_out == [(1000, 3500), (11000, 20500)]
    assert played.copies_in == [(12500, 21000)]
    assert played.stalls == [(3, 12500, 21000, "swap-in", 0)]


def test_a_copy_ends_at_the_first_whole_nanosecond(referee):
    # y: 25000 units left at 12500, 3 per ns: 8333.3 ns. x: 8334 of 10000 units by then; 1666 left
    # at 4 per ns: 416.5 ns.
    played = referee(duplex_step(31), duplex_machine(4, 3, 1), DUPLEX_SCHEDULE, AMPLE)
    assert played.copies_out[1] == (11000, 20834)
    assert played.copies_in == [(12500, 21251)]
    assert played.step_ns == 21351


def test_latency_occupies_the_engine_before_each_copy(referee):
    step = step_of(op("a", 0, "", "x y"), op("b", 20000, "", "z"), x=2, y=3, z=1)
    schedule = Schedule((0, 1), ((0, 1), ()), (Copy(0, 0), Copy(1, 0)))
    played = referee(step, machine_of(latency_ns=700), schedule, AMPLE)
    assert played.copies_out == [(0, 2700), (2700, 6400)]


def test_an_engine_in_its_latency_slows_the_other(referee):
    # x moves no bytes. y: latency until 3000, 4 bytes until 4000, 2 of them until 5000 while x is
    # in its latency, and the other 4 until 6000.
    step = TrainingStep.build(
        "hand",
        [
            op("a", 0, "", "x"),
            op("b", 2000, "", "y"),
            op("c", 2000, "", "z"),
            op("d", 9000, "x", ""),
        ],
        [Tensor("x", 5, 0), Tensor.of("y", 10), Tensor.of("z", 1)],
    )
    played = referee(step, duplex_machine(4, 2, 2, 1000), DUPLEX_SCHEDULE, AMPLE)
    assert played.copies_out == [(0, 1000), (2000, 6000)]
    assert played.copies_in == [(4000, 5000)]


def test_transfer_bytes_set_the_time_and_size_bytes_the_memory(referee):
    step = TrainingStep.build(
        "hand", [op("a", 10, "", "x"), op("b", 9000, "", "")], [Tensor("x", 50, 7)]
    )
    played = referee(step, machine_of(), Schedule((0, 1), ((0,), ()), (Copy(0, 0),)), AMPLE)
    assert played.copies_out == [(10, 7010)]
    assert played.memory == [(0, 50), (7010, 0)]
    assert played.host_bytes == 7


# --- Memory -----------------------------------------------------------------------------------


def test_memory_is_released_whole_when_the_copy_completes(referee):
    step = step_of(op("a", 1000, "", "x"), op("b", 1000, "x", "y"), op("c", 1, "y"), x=8, y=5)
    schedule = Schedule((0, 1, 2), ((), (0,), (1,)), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, AMPLE)
    # The step ends before the copy does: the memory of x is never given back.
    assert played.memory == [(0, 8), (1000, 13), (2001, 8)]
    slow = step_of(op("a", 1000, "", "x"), op("b", 1000, "x", "y"), op("c", 9999, "y"), x=8, y=5)
    played = referee(slow, machine_of(), schedule, AMPLE)
    assert played.memory == [(0, 8), (1000, 13), (9000, 5), (11999, 0)]


def test_a_free_before_the_trigger_of_a_copy_does_not_wait_for_it(referee):
    step = step_of(
        op("a", 10, "", "x"), op("b", 10, "", "y"), op("c", 9000, "", "z"),
        x=4, y=4, z=4,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2), ((0,), (), ()), (Copy(0, 1),))
    with pytest.raises(ScheduleError):
        referee(step, machine_of(), schedule, AMPLE)


def test_workspace_is_held_only_while_the_event_runs(referee):
    step = step_of(op("a", 10, "", "x", 7), op("b", 10, "x", "", 3), x=4)
    played = referee(step, machine_of(), Schedule((0, 1), ((), (0,))), 11)
    assert played.memory == [(0, 11), (10, 4), (10, 7), (20, 0)]
    assert referee(step, machine_of(), Schedule((0, 1), ((), (0,))), 10).step_ns is None


def test_admission_waits_for_the_copy_out_in_flight(referee):
    step = step_of(op("a", 1000, "", "w x"), op("b", 500, "", "y"), w=2, x=6, y=5)
    schedule = Schedule((0, 1), ((0, 1), ()), (Copy(0, 0), Copy(1, 0)))
    played = referee(step, machine_of(), schedule, 8)
    # w goes at 3000, which is not enough; x goes at 9000.
    assert played.stalls == [(1, 1000, 3000, "swap-out", 0), (1, 3000, 9000, "swap-out", 1)]
    assert played.compute[1] == (9000, 9500)


def test_memory_that_a_copy_in_holds_is_named_where_no_copy_out_is_pending(referee):
    # x returns too early, and z does not fit beside it: out of memory, once nothing is in flight.
    step = step_of(
        op("a", 0, "", "x"), op("b", 6000, "", "w"), op("c", 1000, "", "z"), op("d", 1, "x"),
        x=5, w=4, z=6,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3), ((0,), (), (), ()), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, 10)
    assert played.copies_in == [(5000, 10000)]
    assert played.stalls == [(2, 6000, 10000, "swap-in", 0)]
    assert played.out_of_memory == Stuck(2, 10000, 5, None, 0, (0, 1))


def test_a_prefetch_waits_until_its_whole_buffer_fits(referee):
    step = step_of(
        op("a", 0, "", "x"), op("b", 4000, "", "y"), op("c", 3000, "y", "z"), op("d", 10, "x z"),
        x=4, y=3, z=2,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3), ((0,), (), (1,), (0, 2)), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, 7)
    # x is out at 4000 and could return at once beside y, but c starts at that instant and comes
    # first; y goes at 7000.
    assert played.copies_out == [(0, 4000)]
    assert played.copies_in == [(7000, 11000)]
    assert played.stalls == [(3, 7000, 11000, "swap-in", 0)]
    assert played.memory == [
        (0, 4), (0, 7), (4000, 3), (4000, 5), (7000, 2), (7000, 6), (11010, 0),
    ]  # fmt: skip


def test_a_leaving_tensor_cannot_be_read_until_it_has_come_back(referee):
    step = step_of(op("a", 100, "", "x"), op("b", 100, "x", "y"), x=3, y=1)
    schedule = Schedule((0, 1), ((0,), (0, 1)), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.copies_out == [(100, 3100)]
    assert played.copies_in == [(3100, 6100)]
    assert played.stalls == [(1, 100, 6100, "swap-in", 0)]


def test_an_event_that_writes_a_leaving_storage_waits_until_it_has_left(referee):
    step = step_of(op("a", 100, "", "x"), op("b", 100, "x", "y"), x=3, y=1)
    schedule = Schedule((0, 0, 1), ((0,), (), (0, 1)), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.stalls == [(1, 100, 3100, "swap-out", 0)]
    assert played.compute == [(0, 100), (3100, 3200), (3200, 3300)]


def test_a_tensor_leaves_after_the_last_of_its_copies(referee):
    step = step_of(op("a", 100, "", "x"), op("b", 9000, "", "y"), x=3, y=1)
    schedule = Schedule((0, 1), ((0,), (1,)), (Copy(0, 0), Copy(0, 0)))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.copies_out == [(100, 3100), (3100, 6100)]
    assert played.memory == [(0, 3), (100, 4), (6100, 1), (9100, 0)]
    assert played.host_bytes == 3, "the second copy overwrites the buffer of the first"


def test_reexecution_beside_a_kept_output_holds_a_scratch_copy_of_it(referee):
    step = step_of(
        op("a", 10, "", "x y", 1), op("b", 10, "x y", "z"), op("c", 10, "x y z"),
        x=4, y=5, z=2,
    )  # fmt: skip
    schedule = Schedule((0, 1, 0, 2), ((), (1,), (), (0, 1, 2)))
    played = referee(step, machine_of(), schedule, 16)
    assert played.memory == [
        (0, 10), (10, 9), (10, 11), (20, 6), (20, 16), (30, 11), (40, 0),
    ]  # fmt: skip
    assert played.peak_bytes == 4 + 2 + (4 + 5 + 1)
    assert referee(step, machine_of(), schedule, 15).out_of_memory == Stuck(
        2, 20, 1, None, 0, (0, 2)
    )


def test_a_storage_that_is_just_being_copied_in_is_rewritten_as_scratch(referee):
    step = step_of(
        op("a", 10, "", "x y"), op("b", 3000, "", "z"), op("c", 10, "x y"),
        x=2, y=5, z=1,
    )  # fmt: skip
    schedule = Schedule((0, 1, 0, 2), ((0, 1), (), (), (0, 1)), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.copies_in == [(2010, 4010)]
    assert played.compute[2:] == [(3010, 3020), (4010, 4020)]
    assert played.memory == [
        (0, 7), (10, 2), (10, 3), (2010, 1), (2010, 3), (3010, 10), (3020, 8), (4020, 1),
    ]  # fmt: skip
    assert played.stalls == [(3, 3020, 4010, "swap-in", 0)]


# --- Host -------------------------------------------------------------------------------------


HOST_STEP = step_of(
    op("a", 0, "", "x y"), op("b", 8000, "", "z"), op("c", 10000, "x"), op("d", 10, "y"),
    x=3, y=3, z=1,
)  # fmt: skip
HOST_SCHEDULE = Schedule(
    (0, 1, 2, 3),
    ((0, 1), (), (), ()),
    (Copy(0, 0), Copy(1, 0)),
    (Copy(0, 0), Copy(1, 0)),
)


@pytest.mark.parametrize(
    ("pinned", "power_of_two", "second_out", "host"),
    [
        (None, False, 3000, 6),
        (6, False, 3000, 6),
        (5, False, 6000, 3),
        (8, True, 3000, 8),
        (7, True, 6000, 4),
        (None, True, 3000, 8),
    ],
)
def test_a_copy_out_waits_for_its_host_buffer(referee, pinned, power_of_two, second_out, host):
    machine = machine_of(pinned_bytes=pinned, power_of_two=power_of_two)
    played = referee(HOST_STEP, machine, HOST_SCHEDULE, AMPLE)
    assert played.copies_out == [(0, 3000), (second_out, second_out + 3000)]
    assert played.copies_in[0] == (3000, 6000)
    assert played.host_bytes == host


def test_the_host_buffer_goes_with_the_last_copy_in(referee):
    step = step_of(
        op("a", 0, "", "x y"), op("b", 7000, "", ""), op("c", 10, "x"), op("d", 10, "x y"),
        x=2, y=2,
    )  # fmt: skip
    schedule = Schedule(
        (0, 1, 2, 3),
        ((0,), (), (0, 1), ()),
        (Copy(0, 0), Copy(1, 2)),
        (Copy(0, 0), Copy(0, 2), Copy(1, 2)),
    )
    played = referee(step, machine_of(pinned_bytes=2), schedule, AMPLE)
    assert played.copies_in[:2] == [(2000, 4000), (7010, 9010)]
    assert played.copies_out[1] == (9010, 11010), "x may be wanted again until 9010"
    assert played.copies_in[2] == (11010, 13010)


def test_powers_of_two():
    host = Host(round_to_power_of_two=True)
    sizes = [0, 1, 2, 3, 4, 5, 8, 9, 2**40 + 1]
    assert [host.buffer_bytes(n) for n in sizes] == [0, 1, 2, 4, 4, 8, 8, 16, 2**41]


# --- Out of memory ----------------------------------------------------------------------------


def test_the_verdict_names_event_missing_bytes_and_residents_largest_first(referee):
    step = step_of(
        op("a", 10, "", "x y"), op("b", 20, "x", "z", 6), op("c", 5, "y z"),
        x=3, y=9, z=4,
    )  # fmt: skip
    played = referee(step, machine_of(), Schedule((0, 1, 2), ((), (), ())), 15)
    assert played.out_of_memory == Stuck(1, 10, 3 + 9 + 4 + 6 - 15, None, 0, (1, 0))
    assert played.step_ns is None
    assert played.compute == [(0, 10), (-1, -1), (-1, -1)]
    assert played.peak_bytes == 12
    assert played.stalls == [], "time does not pass once nothing is in flight"


def test_a_copy_in_that_never_fits_is_named(referee):
    step = step_of(op("a", 0, "", "x"), op("b", 4000, "", "y"), op("c", 10, "x y"), x=4, y=3)
    schedule = Schedule((0, 1, 2), ((0,), (), ()), (Copy(0, 0),), (Copy(0, 1),))
    played = referee(step, machine_of(), schedule, 7)
    assert played.step_ns == 8010
    short = step_of(op("a", 0, "", "x"), op("b", 4000, "", "y"), op("c", 10, "x y"), x=4, y=4)
    played = referee(short, machine_of(), schedule, 7)
    assert played.out_of_memory == Stuck(2, 8000, 0, ("in", 0), 1, (1,))


def test_a_copy_out_that_never_fits_in_the_host_is_named(referee):
    step = step_of(op("a", 10, "", "x"), op("b", 10, "", "y"), x=4, y=3)
    schedule = Schedule((0, 1), ((0,), ()), (Copy(0, 0),))
    played = referee(step, machine_of(pinned_bytes=1), schedule, 5)
    assert played.out_of_memory == Stuck(1, 10, 2, ("out", 0), 3, (0,))


def test_a_waiting_copy_that_the_event_does_not_need_is_not_why(referee):
    # c lacks memory of its own; that x cannot return either is no reason.
    step = step_of(
        op("a", 0, "", "x"), op("b", 5000, "", "y"), op("c", 1, "", "z"), op("d", 1, "x"),
        x=5, y=7, z=6,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3), ((0,), (), (), ()), (Copy(0, 0),), (Copy(0, 1),))
    played = referee(step, machine_of(), schedule, 11)
    assert played.out_of_memory == Stuck(2, 10000, 2, None, 0, (1,))


def test_an_input_that_is_leaving_for_good_is_an_error_even_if_the_host_is_full(referee):
    step = step_of(op("a", 10, "", "x"), op("b", 10, "x"), x=2)
    schedule = Schedule((0, 1), ((0,), ()), (Copy(0, 0),))
    with pytest.raises(ScheduleError):
        referee(step, machine_of(pinned_bytes=1), schedule, AMPLE)


def test_an_operation_that_never_fits_stops_at_time_zero(referee):
    step = step_of(op("a", 10, "", "x"), x=4)
    played = referee(step, machine_of(), Schedule((0,), ((),)), 3)
    assert played.out_of_memory == Stuck(0, 0, 1, None, 0, ())
    assert (played.peak_bytes, played.memory) == (0, [])


# --- Zero durations and ties ------------------------------------------------------------------


def test_zero_durations_pass_in_one_instant_and_their_peaks_count(referee):
    step = step_of(op("a", 0, "", "x", 9), op("b", 0, "x", "y"), op("c", 0, "y"), x=4, y=3)
    played = referee(step, machine_of(), Schedule((0, 1, 2), ((), (0,), (1,))), AMPLE)
    assert played.step_ns == 0
    assert played.memory == [(0, 13), (0, 4), (0, 7), (0, 3), (0, 0)]
    assert played.peak_bytes == 13


def test_an_empty_copy_takes_no_time(referee):
    step = step_of(op("a", 10, "", "x"), op("b", 10, "x", "y"), x=0, y=1)
    schedule = Schedule((0, 1), ((0,), ()), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.copies_out == played.copies_in == [(10, 10)]
    assert played.stalls == []
    assert played.step_ns == 20


def test_ends_and_frees_come_before_starts_at_one_instant(referee):
    # At 4000 b ends and frees x, whose copy ends at the same instant: c fits exactly then.
    step = step_of(
        op("a", 0, "", "x"), op("b", 4000, "x", "y"), op("c", 10, "", "z"),
        x=4, y=1, z=4,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2), ((), (0,), ()), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, 5)
    assert played.stalls == []
    assert played.memory == [(0, 4), (0, 5), (4000, 1), (4000, 5)]


def test_compute_takes_memory_before_a_copy_in_that_could_start_at_the_same_instant(referee):
    step = step_of(
        op("a", 0, "", "x"), op("b", 4000, "", ""), op("c", 500, "", "y"), op("d", 10, "x"),
        x=4, y=3,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3), ((0,), (), (1,), ()), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, 6)
    assert played.compute[2] == (4000, 4500)
    assert played.copies_in == [(4500, 8500)]


def test_zero_duration_events_run_on_before_a_copy_starts(referee):
    # b and c end at 3000, when x is out; d takes the memory that its return needs.
    step = step_of(
        op("a", 0, "", "x"), op("b", 3000, "", ""), op("c", 0, "", ""), op("d", 50, "", "y"),
        op("e", 10, "x"), x=3, y=2,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3, 4), ((0,), (), (), (1,), ()), (Copy(0, 0),), (Copy(0, 0),))
    played = referee(step, machine_of(), schedule, 4)
    assert played.compute[3] == (3000, 3050)
    assert played.copies_in == [(3050, 6050)]


def test_a_trigger_allows_its_copy_at_the_instant_of_its_end(referee):
    step = step_of(op("a", 7, "", "x"), op("b", 9000, "x"), x=1)
    played = referee(step, machine_of(), Schedule((0, 1), ((), ()), (Copy(0, 0),)), AMPLE)
    assert played.copies_out == [(7, 1007)]


def test_ends_at_the_instant_of_the_last_end_still_count(referee):
    step = step_of(op("a", 0, "", "x"), op("b", 4000, "", "y"), x=4, y=1)
    schedule = Schedule((0, 1), ((0,), ()), (Copy(0, 0), Copy(1, 1)))
    played = referee(step, machine_of(), schedule, AMPLE)
    assert played.copies_out == [(0, 4000), (-1, -1)], "nothing starts after the last end"
    assert played.memory == [(0, 4), (0, 5), (4000, 1)]


# --- Versions ---------------------------------------------------------------------------------


IN_PLACE = step_of(
    op("a", 10, "", "x"), op("r", 10, "x", "y"), op("w", 3000, "x", "x@1"), op("b", 10, "x@1 y"),
    x=2, y=1,
)  # fmt: skip


def test_an_overwrite_in_place_allocates_nothing(referee):
    played = referee(IN_PLACE, machine_of(), keep_all(IN_PLACE), 3)
    assert played.memory == [(0, 2), (10, 3), (3030, 0)]


def test_reading_an_overwritten_version_is_an_error(referee):
    schedule = Schedule((0, 1, 2, 1, 3), ((), (1,), (), (), ()))
    with pytest.raises(ScheduleError):
        referee(IN_PLACE, machine_of(), schedule, AMPLE)


def test_reexecuting_an_overwrite_without_its_producer_is_an_error(referee):
    with pytest.raises(ScheduleError):
        referee(IN_PLACE, machine_of(), Schedule((0, 1, 2, 2, 3), ((),) * 5), AMPLE)


def test_producer_and_overwrite_reexecuted_together_restore_the_version(referee):
    schedule = Schedule((0, 1, 2, 0, 2, 3), ((), (), (0,), (), (), (0, 1)))
    played = referee(IN_PLACE, machine_of(), schedule, 3)
    assert played.step_ns == 10 + 10 + 3000 + 10 + 3000 + 10


def test_a_reexecuted_producer_beside_its_overwritten_storage_is_scratch(referee):
    schedule = Schedule((0, 1, 2, 0, 3), ((), (), (), (), (0, 1)))
    played = referee(IN_PLACE, machine_of(), schedule, AMPLE)
    assert played.peak_bytes == 2 + 1 + 2
    assert played.step_ns == 3040, "x stays at version 1, which b reads"


def test_the_host_brings_back_the_version_that_was_copied(referee):
    after = Schedule((0, 1, 2, 3), ((), (), (0,), ()), (Copy(0, 2),), (Copy(0, 2),))
    assert referee(IN_PLACE, machine_of(), after, AMPLE).step_ns == 3020 + 4000 + 10
    before = Schedule((0, 1, 2, 3), ((), (), (0,), ()), (Copy(0, 0),), (Copy(0, 2),))
    patient = step_of(
        op("a", 10, "", "x"), op("r", 2000, "x", "y"), *IN_PLACE.operations[2:], x=2, y=1
    )
    with pytest.raises(ScheduleError):  # version 0 comes back, b reads version 1
        referee(patient, machine_of(), before, AMPLE)


def test_overwriting_a_tensor_in_the_middle_of_its_copy_is_an_error(referee):
    schedule = Schedule((0, 1, 2, 3), ((),) * 4, (Copy(0, 0),))
    with pytest.raises(ScheduleError):  # the copy takes until 2010, the overwrite starts at 20
        referee(IN_PLACE, machine_of(), schedule, AMPLE)


def test_copying_a_tensor_in_the_middle_of_its_overwrite_is_an_error(referee):
    # y keeps the engine busy until 1020, x is overwritten from 20 to 3020.
    schedule = Schedule((0, 1, 2, 3), ((),) * 4, (Copy(1, 1), Copy(0, 1)))
    with pytest.raises(ScheduleError):
        referee(IN_PLACE, machine_of(), schedule, AMPLE)


# --- Wrong schedules --------------------------------------------------------------------------


PAIR = step_of(
    op("a", 10, "", "x"), op("b", 10, "x", "y", recomputable=False), op("c", 10, "x y"), x=2, y=1
)
IN_ORDER, NO_FREES = (0, 1, 2), ((), (), ())


@pytest.mark.parametrize(
    "schedule",
    [
        pytest.param(Schedule((0, 1), ((), ())), id="an operation never runs"),
        pytest.param(Schedule((1, 0, 2), NO_FREES), id="out of step order"),
        pytest.param(Schedule((0, 1, 3), NO_FREES), id="no such operation"),
        pytest.param(Schedule((0, 1, 1, 2), ((),) * 4), id="may not run again"),
        pytest.param(Schedule(IN_ORDER, ((), ())), id="frees of another length"),
        pytest.param(Schedule(IN_ORDER, ((), (5,), ())), id="frees no such tensor"),
        pytest.param(Schedule(IN_ORDER, ((), (), (0, 0))), id="frees twice"),
        pytest.param(Schedule(IN_ORDER, ((1,), (), ())), id="frees what is not there"),
        pytest.param(Schedule(IN_ORDER, ((0,), (), ())), id="frees what is read later"),
        pytest.param(Schedule(IN_ORDER, ((), (0,), ())), id="frees what is read again"),
        pytest.param(Schedule(IN_ORDER, NO_FREES, (Copy(7, 0),)), id="copies no such tensor"),
        pytest.param(Schedule(IN_ORDER, NO_FREES, (Copy(0, 3),)), id="no such trigger"),
        pytest.param(Schedule(IN_ORDER, NO_FREES, (Copy(0, -2),)), id="trigger before START"),
        pytest.param(Schedule(IN_ORDER, NO_FREES, (Copy(1, 0),)), id="copies what is not there"),
        pytest.param(
            Schedule(IN_ORDER, NO_FREES, (Copy(0, START),)), id="copies at START"
        ),
        pytest.param(Schedule(IN_ORDER, NO_FREES, (), (Copy(0, 1),)), id="copies in, never out"),
        pytest.param(
            Schedule(IN_ORDER, ((), (0,), ()), (Copy(0, 1),), (Copy(0, 0),)),
            id="copies in before it goes out",
        ),
        pytest.param(
            Schedule((0, 1, 2), ((0,), (), ()), (Copy(0, 0),)), id="goes out and never returns"
        ),
        pytest.param(
            Schedule((0, 1, 2), ((0,), (), ()), (Copy(0, 0),), (Copy(0, 1),)),
            id="returns only after the event that waits for it",
        ),
    ],
)  # fmt: skip
def test_wrong_schedules_are_refused(referee, schedule):
    with pytest.raises(ScheduleError):
        referee(PAIR, machine_of(), schedule, AMPLE)


def test_copying_in_what_is_on_the_device_is_an_error(referee):
    step = step_of(op("a", 10, "", "x"), op("b", 5000, "x"), x=2)
    schedule = Schedule((0, 1), ((), ()), (Copy(0, 0),), (Copy(0, 0),))
    with pytest.raises(ScheduleError):
        referee(step, machine_of(), schedule, AMPLE)


def test_copying_in_what_is_being_written_is_an_error(referee):
    step = step_of(op("a", 3000, "", "x"), op("b", 10, "x"), x=1)
    schedule = Schedule((0, 0, 1), ((0,), (), ()), (Copy(0, 0),), (Copy(0, 0),))
    with pytest.raises(ScheduleError):
        referee(step, machine_of(), schedule, AMPLE)


def test_static_tensors_can_be_neither_freed_nor_copied(referee):
    step = TrainingStep.build(
        "hand",
        [op("a", 10, "weights", "x")],
        [Tensor.of("x", 2), Tensor.of("weights", 99, static=True)],
    )
    assert referee(step, machine_of(), Schedule((0,), ((0,),)), 2).step_ns == 10
    for schedule in (Schedule((0,), ((1,),)), Schedule((0,), ((),), (Copy(1, START),))):
        with pytest.raises(ScheduleError):
            referee(step, machine_of(), schedule, AMPLE)

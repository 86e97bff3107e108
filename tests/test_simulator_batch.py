"""Batches of lanes against the oracle, lane by lane; the fixed-order pass against the engine."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.plan import Problem, Schedule, parse_budget
from slackswap_opt.planners import HEURISTICS, greedy
from slackswap_opt.planners.baselines import recompute_all
from slackswap_opt.simulator import (
    BatchVerdict,
    FixedOrder,
    Scenarios,
    Verdict,
    simulate,
    simulate_batch,
)
from slackswap_opt.simulator.engine import Player, check_structure
from slackswap_opt.simulator.program import regular_program
from slackswap_opt.step import TrainingStep, working_set_bytes
from slackswap_opt.workloads import build_step, load_workload
from tests.oracle import Numbers, Played, plain, play
from tests.strategies import MB_PER_S, machines, schedules, training_steps

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
LANES = 20


@dataclass(frozen=True)
class Batch:
    """Everything that `simulate_batch` takes, and what the oracle needs to play one lane."""

    step: TrainingStep
    machine: Machine
    programs: list[Schedule]
    capacity: np.ndarray
    scenarios: Scenarios

    def simulate(self) -> BatchVerdict:
        return simulate_batch(
            self.step, self.machine, self.programs, self.capacity, self.scenarios, timeline=True
        )

    def expected(self, lane: int) -> Played:
        program, given = self.programs[lane], self.scenarios
        numbers = None
        if given.duration_ns is not None:
            numbers = Numbers(
                given.duration_ns[: len(program.compute), lane].tolist(),
                given.out_work[: len(program.copies_out), lane].tolist(),
                given.in_work[: len(program.copies_in), lane].tolist(),
            )
        machine = self.machine
        if given.rates is not None:
            rates = [int(rate) * MB_PER_S for rate in given.rates[:, lane]]
            link = replace(
                machine.link,
                d2h_bytes_per_s=rates[0], h2d_bytes_per_s=rates[1],
                d2h_duplex_bytes_per_s=rates[2], h2d_duplex_bytes_per_s=rates[3],
                latency_ns=int(given.latency_ns[lane]),
            )  # fmt: skip
            machine = replace(machine, link=link)
        return play(self.step, machine, program, int(self.capacity[lane]), numbers)


@st.composite
def batches(draw: st.DrawFn, max_activations: int = 6, lanes: int = LANES) -> Batch:
    """One to three schedules of a step in lanes of different capacities, times and links."""
    step = draw(training_steps(max_activations))
    machine = draw(machines())
    distinct = [draw(schedules(step)) for _ in range(draw(st.sampled_from((1, 1, 2, 3))))]
    programs = [distinct[lane % len(distinct)] for lane in range(lanes)]
    dice = np.random.default_rng(draw(st.integers(0, 2**32)))
    least = int(working_set_bytes(step).max())
    peaks = []
    for program in distinct:
        try:
            peaks.append(play(step, machine, program, 10**9).peak_bytes)
        except ScheduleError:
            peaks.append(2 * least)
    high = np.array([peaks[lane % len(distinct)] for lane in range(lanes)])
    low = np.minimum(high, least)
    capacity = low + dice.integers(0, high - low + 2)
    capacity[0], capacity[-1] = high[0], max(0, low[-1] - 1)
    scenarios = Scenarios()
    if draw(st.booleans()):
        scenarios = Scenarios(
            _numbers(dice, 2500, max(len(p.compute) for p in distinct), lanes),
            _numbers(dice, 25, max(len(p.copies_out) for p in distinct), lanes) * 1000 // 3,
            _numbers(dice, 25, max(len(p.copies_in) for p in distinct), lanes) * 1000 // 3,
        )
    if draw(st.booleans()):
        alone = dice.integers(1, 41, (2, lanes))
        duplex = np.maximum(1, alone * dice.integers(0, 11, (2, lanes)) // 10)
        latency = dice.choice([0, 0, 1, 300], lanes)
        scenarios = replace(scenarios, rates=np.vstack((alone, duplex)), latency_ns=latency)
    return Batch(step, machine, programs, capacity, scenarios)


def _numbers(dice: np.random.Generator, most: int, rows: int, lanes: int) -> np.ndarray:
    """Some are 0, and some of the others are equal, so that there are ties."""
    fine = dice.integers(0, most, (rows, lanes))
    coarse = most // 5 * dice.integers(0, 5, (rows, lanes))
    return np.where(dice.random((rows, lanes)) < 0.3, coarse, fine)


def agree(batch: Batch) -> int:
    """Every lane is what the oracle says of it; returns how many lanes have no error."""
    found = batch.simulate()
    right = 0
    for lane in range(found.lanes):
        try:
            expected = batch.expected(lane)
        except ScheduleError:
            assert lane in found.errors
            with pytest.raises(ScheduleError):
                found.verdict(lane)
            continue
        right += 1
        assert lane not in found.errors
        assert plain(found.verdict(lane)) == expected
        assert arrays_of(found, lane, batch.programs[lane]) == told(expected)
    return right


def arrays_of(found: BatchVerdict, lane: int, program: Schedule) -> tuple[object, ...]:
    """What the arrays of a batch say of one lane."""

    def times(start: np.ndarray, end: np.ndarray, count: int) -> list[tuple[int, int]]:
        assert (start[count:, lane] == -1).all()
        assert (end[count:, lane] == -1).all()
        return list(zip(start[:count, lane].tolist(), end[:count, lane].tolist(), strict=True))

    instants, levels = found.memory(lane)
    return (
        times(found.compute_start_ns, found.compute_end_ns, len(program.compute)),
        times(found.out_start_ns, found.out_end_ns, len(program.copies_out)),
        times(found.in_start_ns, found.in_end_ns, len(program.copies_in)),
        int(found.step_ns[lane]) if found.fits[lane] else None,
        int(found.peak_bytes[lane]),
        list(zip(instants.tolist(), levels.tolist(), strict=True)),
        int(found.host_bytes[lane]),
        int(found.stall_ns[lane]),
        (int(found.stuck_event[lane]), int(found.stuck_ns[lane]), int(found.missing_bytes[lane])),
    )  # fmt: skip


def told(expected: Played) -> tuple[object, ...]:
    """The same of the oracle."""
    stuck = expected.out_of_memory
    return (
        expected.compute,
        expected.copies_out,
        expected.copies_in,
        expected.step_ns,
        expected.peak_bytes,
        expected.memory,
        expected.host_bytes,
        expected.stall_ns,
        (stuck.event, stuck.at_ns, stuck.missing_bytes) if stuck else (-1, -1, 0),
    )


@settings(RELAXED, max_examples=60)
@given(batches())
def test_every_lane_is_what_the_oracle_says(batch: Batch):
    agree(batch)


@settings(RELAXED, max_examples=60)
@given(batches(lanes=1))
def test_a_batch_of_one_is_what_the_oracle_says(batch: Batch):
    agree(batch)


@settings(RELAXED, max_examples=30)
@given(batches(lanes=1))
def test_what_is_regular_is_never_played_alone(batch: Batch):
    (schedule,) = batch.programs
    found = batch.simulate()
    try:
        check_structure(batch.step, schedule)
    except ScheduleError:
        return
    if regular_program(batch.step, schedule, batch.machine.host) is None or found.errors:
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Player, "play", _not_to_be_called)
        again = batch.simulate()
    assert arrays_of(again, 0, schedule) == arrays_of(found, 0, schedule)


def _not_to_be_called(player: Player) -> Verdict:
    raise AssertionError("this lane was played by itself")


@pytest.mark.slow
@settings(RELAXED, max_examples=1_000)
@given(batches(max_activations=8))
def test_every_lane_of_many_batches_is_what_the_oracle_says(batch: Batch):
    """20,000 lanes; nine in ten have a right schedule, and eight in ten are played together."""
    agree(batch)


# --- What a batch is --------------------------------------------------------------------------


def small(layers: int = 8, budget: str = "70%") -> tuple[Problem, Schedule]:
    """A shipped workload of a few layers under a budget that makes copies wait for memory."""
    machine = load_machine()
    step = build_step(load_workload("gpt2-xl", layers=layers), machine)
    problem = Problem(step, machine, 1)
    problem = problem.with_budget(parse_budget(budget, problem.liveness.ideal_peak_bytes))
    schedule = greedy(problem).schedule
    assert schedule is not None
    return problem, schedule


def jittered(problem: Problem, schedule: Schedule, lanes: int) -> Scenarios:
    dice = np.random.default_rng(7)
    duration = problem.step.index.duration_ns[list(schedule.compute)]
    factor = 1 + 0.1 * dice.standard_normal((len(duration), lanes))
    return Scenarios(duration_ns=np.rint(duration[:, None] * factor).astype(np.int64))


def test_a_lane_of_a_batch_is_what_the_engine_says_alone():
    problem, schedule = small()
    capacity = problem.budget_bytes * np.arange(81, 121) // 100
    found = simulate_batch(problem.step, problem.machine, schedule, capacity, timeline=True)
    assert found.lanes == 40
    assert 0 < found.fits.sum() < 40
    for lane in range(40):
        verdict = simulate(problem.step, problem.machine, schedule, int(capacity[lane]))
        assert plain(found.verdict(lane)) == plain(verdict)
        assert arrays_of(found, lane, schedule) == told(plain(verdict))


def test_what_planners_lower_is_regular():
    problem, _ = small()
    for name, planner in HEURISTICS.items():
        schedule = planner(problem).schedule
        if schedule is not None:
            program = regular_program(problem.step, schedule, problem.machine.host)
            assert program is not None, name


def test_a_batch_of_one_and_the_same_lane_among_many_agree():
    problem, schedule = small()
    many = jittered(problem, schedule, 64)
    one = Scenarios(duration_ns=many.duration_ns[:, 5:6])
    program = (problem.step, problem.machine, schedule, problem.budget_bytes)
    alone = simulate_batch(*program, one, timeline=True)
    among = simulate_batch(*program, many, timeline=True)
    assert alone.lanes == 1
    assert arrays_of(alone, 0, schedule) == arrays_of(among, 5, schedule)
    assert plain(alone.verdict(0)) == plain(among.verdict(5))


def test_schedules_of_one_step_may_differ_in_length():
    problem, schedule = small()
    longest = recompute_all(problem).schedule
    assert longest is not None
    assert len(longest.compute) > len(schedule.compute)
    both = [schedule, longest] * 10
    found = simulate_batch(problem.step, problem.machine, both, problem.budget_bytes)
    for lane, each in enumerate(both[:2]):
        alone = simulate(problem.step, problem.machine, each, problem.budget_bytes)
        assert found.step_ns[lane] == alone.step_ns
        assert (found.compute_end_ns[len(each.compute) :, lane] == -1).all()
    assert not found.memory_ns.size
    with pytest.raises(InputError, match="timeline"):
        found.memory(0)


def test_wrong_schedules_are_wrong_in_their_lane_only():
    problem, schedule = small()
    twice = replace(schedule, frees=(*schedule.frees[:-1], (*schedule.frees[-1], 0, 0)))
    found = simulate_batch(
        problem.step, problem.machine, [schedule] * 19 + [twice], problem.budget_bytes
    )
    assert list(found.errors) == [19]
    assert found.step_ns[19] == -1
    assert found.fits[:19].all()
    with pytest.raises(ScheduleError):
        found.verdict(19)


def test_a_batch_says_what_is_wrong_with_its_arrays():
    problem, schedule = small(layers=2, budget="90%")
    program = (problem.step, problem.machine)
    events = len(schedule.compute)
    with pytest.raises(InputError, match="3 schedules, 2 capacities"):
        simulate_batch(*program, [schedule] * 3, [10, 20])
    wrong = {
        "expected whole numbers": np.ones((events, 3)),
        "expected \\(": np.ones((events - 1, 3), dtype=np.int64),
        "expected 0 to": -np.ones((events, 3), dtype=np.int64),
    }
    for message, durations in wrong.items():
        with pytest.raises(InputError, match=message):
            simulate_batch(*program, schedule, 10, Scenarios(duration_ns=durations))
    lanes = Scenarios(duration_ns=np.ones((events, 3), dtype=np.int64), latency_ns=[1, 2])
    with pytest.raises(InputError, match="different numbers of lanes"):
        simulate_batch(*program, schedule, 10, lanes)


# --- Fixed order ------------------------------------------------------------------------------


@settings(RELAXED, max_examples=60)
@given(batches())
def test_the_fixed_order_pass_is_the_engine_without_limits(batch: Batch):
    link = replace(
        batch.machine.link,
        d2h_duplex_bytes_per_s=batch.machine.link.d2h_bytes_per_s,
        h2d_duplex_bytes_per_s=batch.machine.link.h2d_bytes_per_s,
        overlap=1.0,
        contention=0.0,
    )
    machine, schedule = Machine("free", batch.machine.device, link), batch.programs[0]
    given = replace(batch.scenarios, rates=None)
    try:
        times = FixedOrder(batch.step, machine, schedule).times(given)
    except ScheduleError:
        return
    found = simulate_batch(batch.step, machine, [schedule] * LANES, 10**9, given)
    assert not found.errors
    rows = len(schedule.compute)
    assert (times.step_ns == found.step_ns).all()
    assert (times.stall_ns == found.stall_ns).all()
    assert (times.compute_end_ns == found.compute_end_ns[:rows]).all()
    for end, other in (
        (times.out_end_ns, found.out_end_ns), (times.in_end_ns, found.in_end_ns)
    ):  # fmt: skip
        ended = other[: len(end)] >= 0
        assert (np.broadcast_to(end, ended.shape)[ended] == other[: len(end)][ended]).all()


def test_the_fixed_order_pass_refuses_what_depends_on_time():
    problem, schedule = small(layers=2, budget="90%")
    twice = replace(schedule, frees=(*schedule.frees[:-1], (*schedule.frees[-1], 0, 0)))
    with pytest.raises(ScheduleError, match="depends on time"):
        FixedOrder(problem.step, problem.machine, twice)

"""The engine against the oracle, and laws that hold for every program."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine.model import FULL_SPEED
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.step import TrainingStep, ideal_step_ns, liveness
from tests.oracle import Played, plain, play
from tests.strategies import Program, keep_all, machines, programs, training_steps

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
QUICK = settings(RELAXED, max_examples=150)


def agree(program: Program) -> None:
    """Engine and oracle say the same, to the nanosecond, byte and cause."""
    try:
        expected = play(*program)
    except ScheduleError:
        with pytest.raises(ScheduleError):
            simulate(*program)
        return
    assert plain(simulate(*program)) == expected


@QUICK
@given(programs())
def test_engine_and_oracle_agree(program: Program):
    agree(program)


def verdict_of(program: Program) -> Verdict | None:
    try:
        return simulate(*program)
    except ScheduleError:
        return None


@QUICK
@given(programs())
def test_laws_of_every_verdict(program: Program):
    verdict = verdict_of(program)
    if verdict is None:
        return
    played, durations = plain(verdict), program.step.index.duration_ns
    assert verdict.capacity_bytes == program.capacity
    assert verdict.fits == (verdict.step_ns is not None)
    assert verdict.peak_bytes <= program.capacity
    assert verdict.peak_bytes == max((level for _, level in played.memory), default=0)
    assert all(level >= 0 for _, level in played.memory)
    limit = program.machine.host.pinned_bytes
    assert limit is None or played.host_bytes <= limit
    queues = (
        (played.compute, [START_LESS] * len(played.compute)),
        (played.copies_out, [copy.after for copy in program.schedule.copies_out]),
        (played.copies_in, [copy.after for copy in program.schedule.copies_in]),
    )
    for events, triggers in queues:
        in_order(events)
        for (start, _), trigger in zip(events, triggers, strict=True):
            if start >= 0 and trigger >= 0:
                assert 0 <= played.compute[trigger][1] <= start
    undisturbed = program.machine.link.compute_speeds() == (FULL_SPEED,) * 3
    for op, (start, end) in zip(program.schedule.compute, played.compute, strict=True):
        assert end < 0 or end - start >= durations[op]
        assert end < 0 or end - start == durations[op] or not undisturbed
    stalls_fill_the_gaps(played)
    if verdict.fits:
        work = sum(end - start for start, end in played.compute)
        assert verdict.stall_ns + work == verdict.step_ns


START_LESS = -1


def in_order(events: list[tuple[int, int]]) -> None:
    clock = 0
    for position, (start, end) in enumerate(events):
        if start < 0:
            assert all(later == (-1, -1) for later in events[position:])
            return
        assert start >= clock
        if end < 0:
            assert all(later == (-1, -1) for later in events[position + 1 :])
            return
        assert end >= start
        clock = end


def stalls_fill_the_gaps(played: Played) -> None:
    """Each idle nanosecond of the compute stream has exactly one cause, merged where equal."""
    last = played.out_of_memory.at_ns if played.out_of_memory else played.step_ns
    edges = [0] + [edge for event in played.compute if event[1] >= 0 for edge in event] + [last]
    gaps = [(a, b) for a, b in zip(edges[::2], edges[1::2], strict=True) if b > a]
    merged: list[tuple[int, int]] = []
    for before, (event, start, end, cause, tensor) in zip(
        [None, *played.stalls], played.stalls, strict=False
    ):
        assert start < end
        assert before is None or before[2] < start or (event, cause, tensor) != (
            before[0], *before[3:],
        )  # fmt: skip
        if merged and merged[-1][1] == start and before is not None and before[0] == event:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((start, end))
    assert merged == gaps


@QUICK
@given(training_steps(), machines())
def test_keeping_everything_is_the_ideal_step(step: TrainingStep, machine):
    peak = liveness(step).ideal_peak_bytes
    verdict = simulate(step, machine, keep_all(step), peak)
    assert verdict.step_ns == ideal_step_ns(step)
    assert verdict.peak_bytes == peak
    assert verdict.stall_ns == 0


@QUICK
@given(training_steps(), machines(), st.integers(1, 30))
def test_keeping_everything_fits_from_the_ideal_peak_on(step: TrainingStep, machine, more: int):
    peak, schedule = liveness(step).ideal_peak_bytes, keep_all(step)
    assert simulate(step, machine, schedule, peak + more).fits
    if peak:
        short = simulate(step, machine, schedule, max(0, peak - more)).out_of_memory
        assert short is not None
        assert short.missing_bytes > 0


@QUICK
@given(programs())
def test_playing_twice_gives_the_same(program: Program):
    first, second = verdict_of(program), verdict_of(program)
    if first is not None and second is not None:
        assert plain(first) == plain(second)
    else:
        assert first is second is None

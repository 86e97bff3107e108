"""Schedules under noise, and plans with a margin that was shown to suffice."""

from __future__ import annotations

import math

import numpy as np
import pytest

from benchmarks import robustness as bench
from slackswap_opt.errors import InputError
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.planners import greedy
from slackswap_opt.simulator import Scenarios, simulate_batch
from slackswap_opt.study import Settings, sweep
from slackswap_opt.study.robustness import (
    Noise,
    lower_limit,
    robustness,
    scenarios,
    with_margin,
)
from tests.hand import machine_of, step_of
from tests.test_simulator import AMPLE, op
from tests.test_simulator_batch import small


def tables(drawn: Scenarios) -> tuple[np.ndarray, ...]:
    return drawn.duration_ns, drawn.out_work, drawn.in_work


@pytest.fixture(scope="module")
def planned() -> tuple[Problem, Schedule]:
    return small()


def test_no_noise_is_the_plan_itself(planned):
    problem, schedule = planned
    found = robustness(problem, schedule, Noise(0, 0, trials=20))
    assert set(found.step_ns.tolist()) == {found.planned_ns}
    assert (found.fits, found.out_of_memory, found.deviation_ns) == (1, 0, 0)
    assert found.percentile_ns(1) == found.percentile_ns(99) == found.planned_ns


def test_noise_is_independent_positive_and_of_the_deviation_asked_for(planned):
    problem, schedule = planned
    drawn = scenarios(problem, schedule, Noise(0.2, 0.5, trials=4000))
    exact = problem.step.index.duration_ns[list(schedule.compute)][:, None]
    factor = np.asarray(drawn.duration_ns) / exact
    assert factor.min() > 0
    assert factor.mean() == pytest.approx(1, abs=0.001)
    assert factor.std(axis=1).mean() == pytest.approx(0.2, rel=0.02)
    correlation = np.corrcoef(factor[:20])[~np.eye(20, dtype=bool)]
    assert abs(correlation).max() < 0.08
    assert (np.asarray(drawn.out_work).std(axis=1) > 0).all()


def test_seeds_repeat_and_link_noise_leaves_durations_alone(planned):
    problem, schedule = planned
    base = scenarios(problem, schedule, Noise(0.05, 0, 30, seed=3))
    again = scenarios(problem, schedule, Noise(0.05, 0.3, 50, seed=3))
    other = scenarios(problem, schedule, Noise(0.05, 0, 30, seed=4))
    assert (base.duration_ns == np.asarray(again.duration_ns)[:, :30]).all()
    assert (base.out_work != np.asarray(again.out_work)[:, :30]).any()
    assert (base.duration_ns != other.duration_ns).any()


def test_a_distribution_is_that_of_single_trials(planned):
    problem, schedule = planned
    noise = Noise(0.1, 0.2, trials=12, seed=1)
    found = robustness(problem, schedule, noise)
    drawn = scenarios(problem, schedule, noise)
    lanes = [
        simulate_batch(
            problem.step, problem.machine, schedule, problem.budget_bytes,
            Scenarios(*(np.asarray(t)[:, [trial]] for t in tables(drawn))),
        )
        for trial in range(12)
    ]  # fmt: skip
    assert found.step_ns.tolist() == sorted(int(lane.step_ns[0]) for lane in lanes)
    assert found.mean_ns == pytest.approx(found.step_ns.mean())
    assert found.percentile_ns(50) == found.step_ns[5]
    assert found.percentile_ns(100) == found.step_ns[-1]
    assert found.peak_bytes <= problem.budget_bytes


def test_running_out_of_memory_is_counted_and_named():
    # x is out 4000 ns after a. If b has ended before, c takes the room that x needs, and x returns
    # after c; if b ends later, x is back first, and c never finds room beside it.
    step = step_of(
        op("a", 1000, "", "x"), op("b", 3900, "", ""), op("c", 1000, "", "y", 3),
        op("d", 10, "x y"), x=4, y=1,
    )  # fmt: skip
    schedule = Schedule((0, 1, 2, 3), ((0,), (), (), ()), (Copy(0, 0),), (Copy(0, 0),))
    problem = Problem(step, machine_of(), 6)
    found = robustness(problem, schedule, Noise(0.2, 0, trials=400))
    assert found.planned_ns is not None
    assert 0.2 < found.out_of_memory < 0.7
    assert found.fits_at_least < found.fits < 1
    worst = found.fragile[0]
    assert (worst.operation, worst.failed) == ("c", pytest.approx(found.out_of_memory))
    hopeless = robustness(problem, schedule, Noise(0.2, 0, trials=20), capacity_bytes=3)
    assert (hopeless.fits, hopeless.percentile_ns(50), hopeless.planned_ns) == (0, None, None)
    assert math.isnan(hopeless.mean_ns)


def test_waits_are_named_by_the_operation_before_which_they_are():
    step = step_of(op("a", 1000, "", "x"), op("b", 8200, "", "y"), op("c", 10, "x y"), x=4, y=1)
    schedule = Schedule((0, 1, 2), ((0,), (), ()), (Copy(0, 0),), (Copy(0, 0),))
    problem = Problem(step, machine_of(), AMPLE)
    found = robustness(problem, schedule, Noise(0.1, 0, trials=500))
    (fragile,) = found.fragile
    assert (fragile.operation, fragile.event, fragile.planned_wait_ns) == ("c", 2, 0)
    assert 0.2 < fragile.waited < 0.6, "x is back 200 ns before b ends, if there is no noise"
    assert fragile.added_wait_ns > 50
    assert fragile.failed == 0


def test_the_table_of_the_page_is_made_of_trials(monkeypatch, tmp_path, planned):
    problem, _ = planned
    page = tmp_path / "simulator.md"
    page.write_text(bench.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(bench, "PAGE", page)
    (cell,) = sweep(problem, [problem.budget_bytes], {"greedy": greedy}, Settings(), print)
    monkeypatch.setattr(bench, "planned", lambda *_: cell)
    bench.main(["--workloads", "small", "--planner", "greedy", "--trials", "20", "--write"])
    section = page.read_text(encoding="utf-8").partition("<!-- noise -->\n")[2]
    section = section.partition("<!-- /noise -->")[0]
    assert "planner greedy" in section
    assert "20 trials with 5% noise" in section
    found = robustness(problem, cell.judged["greedy"].result.schedule, Noise(0.05, 0, 20))
    (row,) = (line for line in section.splitlines() if line.startswith("| small |"))
    assert f"| {found.mean_ns / 1e6:.2f} |" in row
    assert row.endswith("| 86.08% |"), "0.05 ** (1 / 20), rounded down"


# --- Probabilities ----------------------------------------------------------------------------


def test_the_limit_on_a_probability_is_the_exact_one():
    assert lower_limit(0, 10) == 0
    assert lower_limit(1000, 1000) == pytest.approx(0.05 ** (1 / 1000))
    assert lower_limit(1, 1) == pytest.approx(0.05)
    # With p at the limit, 18 of 20 or more come up in one case in twenty.
    p = lower_limit(18, 20)
    chance = sum(math.comb(20, k) * p**k * (1 - p) ** (20 - k) for k in (18, 19, 20))
    assert chance == pytest.approx(0.05)
    limits = [lower_limit(k, 50) for k in range(51)]
    assert limits == sorted(limits)


def test_noise_refuses_what_it_cannot_draw():
    with pytest.raises(InputError, match="jitter is -1"):
        Noise(-1)
    with pytest.raises(InputError) as caught:
        Noise(0.1, 5, trials=0, seed=-1)
    assert len(caught.value.faults) == 3


# --- Margins ----------------------------------------------------------------------------------


def test_a_margin_is_shown_to_suffice_by_trials_that_did_not_choose_it(planned):
    problem, _ = planned

    def plan(smaller: Problem) -> Schedule | None:
        return greedy(smaller).schedule

    noise = Noise(0.05, 0.1, trials=100, seed=10)
    found = with_margin(problem, plan, noise, 0.95)
    assert found is not None
    attempts = [margin for margin, _ in found.tried]
    assert found.robustness.noise.seed == 10 + 2 * attempts.index(found.margin) + 1
    assert found.robustness.fits_at_least >= 0.95
    assert found.planned_bytes == int(problem.budget_bytes * (1 - found.margin))
    schedule = plan(problem.with_budget(found.planned_bytes))
    assert schedule is not None
    again = robustness(problem, schedule, found.robustness.noise)
    assert (again.step_ns == found.robustness.step_ns).all()


def obliging(problem: Problem, schedule: Schedule, above: float):
    """A planner whose plans fit only for budgets below a part of the problem's."""
    count = problem.step.index.operations
    never_fits = Schedule(tuple(range(count)), ((),) * count)

    def plan(smaller: Problem) -> Schedule | None:
        return never_fits if smaller.budget_bytes > above * problem.budget_bytes else schedule

    return plan


def test_margins_grow_until_the_plan_fits_and_are_then_refined(planned):
    problem, schedule = planned
    plan = obliging(problem, schedule, above=0.875)
    found = with_margin(problem, plan, Noise(0.01, 0, 100), 0.9, margins=(0.0, 0.05, 0.5))
    assert found is not None
    tried = [(margin, fits) for margin, fits in found.tried]
    assert tried[:3] == [(0.0, 0.0), (0.05, 0.0), (0.5, 1.0)]
    assert [fits for _, fits in tried[3:]] == [1.0, 1.0, 0.0, 1.0], "halved four times"
    assert 0.125 <= found.margin < 0.16
    assert found.margin == min(margin for margin, fits in tried if fits == 1.0)


def test_without_need_nothing_is_left_free(planned):
    problem, schedule = planned
    found = with_margin(
        problem, obliging(problem, schedule, above=2), Noise(0.01, 0, 100), 0.9, (0.0, 0.5)
    )
    assert found is not None
    assert (found.margin, found.tried) == (0.0, ((0.0, 1.0),))


def test_there_may_be_no_margin_that_suffices(planned):
    problem, _ = planned
    assert with_margin(problem, lambda _: None, Noise(0.01, 0, 100), 0.9, (0.0, 0.5)) is None


def test_too_few_trials_show_nothing(planned):
    problem, schedule = planned
    with pytest.raises(InputError, match="give at least 299"):
        with_margin(problem, lambda _: schedule, Noise(0.05, 0, trials=100), 0.99)
    with pytest.raises(InputError, match="confidence is 1"):
        with_margin(problem, lambda _: schedule, Noise(0.05, 0), 1.0)

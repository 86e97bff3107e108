"""The brute force against hand calculations, and the ILP planner against the brute force."""

from __future__ import annotations

import sys
from dataclasses import dataclass

import pytest
from hypothesis import HealthCheck, Phase, assume, given, seed, settings
from hypothesis import strategies as st

from slackswap_opt.plan import PlanResult, Problem
from slackswap_opt.planners import IlpOptions, greedy, ilp
from slackswap_opt.simulator import simulate
from slackswap_opt.step import working_set_bytes
from tests.brute_force import TooManyError, best_schedule
from tests.hand import CHAIN, CHAIN_BY_HAND, machine_of
from tests.strategies import machines, training_steps

RELAXED = settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])


@st.composite
def problems(draw: st.DrawFn, max_activations: int) -> Problem:
    """Budgets below the ideal peak, more often tight than not."""
    step, machine = draw(training_steps(max_activations)), draw(machines())
    problem = Problem(step, machine, 0)
    least, most = int(working_set_bytes(step).max()), problem.liveness.ideal_peak_bytes
    assume(most > least and problem.ideal_step_ns > 0)
    share = draw(st.sampled_from((0, 0, 1, 2, 3, 5, 8)))
    return problem.with_budget(least + (most - least) * share // 10)


# --- The brute force itself -------------------------------------------------------------------


@pytest.mark.parametrize(
    ("budget", "rate", "step_ns"),
    [*CHAIN_BY_HAND, (15, 8, None)],  # f1 does not fit in 15
)
def test_a_chain_by_hand(budget, rate, step_ns):
    problem = Problem(CHAIN, machine_of(rate), budget)
    best = best_schedule(problem)
    if step_ns is None:
        assert best is None
        return
    assert best[0] == step_ns
    verdict = simulate(CHAIN, problem.machine, best[1], budget)
    assert verdict.step_ns == step_ns


def test_an_incumbent_is_only_replaced_by_a_faster_schedule():
    problem = Problem(CHAIN, machine_of(), 20)
    best = best_schedule(problem)
    assert best_schedule(problem, incumbent=best) is best
    worse = (best[0] + 1, best[1])
    assert best_schedule(problem, incumbent=worse)[0] == best[0]


def test_the_search_gives_up_at_its_limit():
    with pytest.raises(TooManyError):
        best_schedule(Problem(CHAIN, machine_of(), 20), limit=1)


@settings(RELAXED, max_examples=30)
@given(problems(4))
def test_the_best_schedule_fits_and_no_heuristic_beats_it(problem: Problem):
    try:
        best = best_schedule(problem, limit=5000)
    except TooManyError:
        return
    result = greedy(problem)
    if best is None:
        assert result.schedule is None
        return
    verdict = simulate(problem.step, problem.machine, best[1], problem.budget_bytes)
    assert verdict.step_ns == best[0] >= problem.ideal_step_ns
    assert result.step_ns is None or result.step_ns >= best[0]


# --- The ILP planner --------------------------------------------------------------------------


@dataclass
class Case:
    """One problem, the ILP's result and the best that exists."""

    problem: Problem
    result: PlanResult
    best_ns: int | None

    @property
    def equal(self) -> bool:
        return self.result.step_ns == self.best_ns

    @property
    def excess_ns(self) -> int:
        return (self.result.step_ns or 0) - (self.best_ns or 0)

    @property
    def allowed_ns(self) -> int:
        """Time to move the largest tensor once."""
        index, link = self.problem.step.index, self.problem.machine.link
        return link.latency_ns + int(index.transfer_bytes.max()) * 1000 // link.rates().slowest()


def sample(count: int, max_activations: int, limit: int) -> list[Case]:
    """The same problems every time; those that are too big for the brute force are left out."""
    cases: list[Case] = []

    @seed(20)
    @settings(
        max_examples=count, deadline=None, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    @given(problems(max_activations))
    def collect(problem: Problem) -> None:
        result = ilp(problem, IlpOptions(gap=0, seconds=30))
        known = None
        if result.schedule is not None and result.step_ns is not None:
            known = (result.step_ns, result.schedule)
        try:
            best = best_schedule(problem, known, limit)
        except TooManyError:
            return
        cases.append(Case(problem, result, None if best is None else best[0]))

    collect()
    return cases


def near_the_best(cases: list[Case], least_equal: float, capsys) -> None:
    """The ILP finds a plan wherever there is one, and most often the best one."""
    hard = [c for c in cases if c.best_ns is not None and c.best_ns > c.problem.ideal_step_ns]
    equal = sum(case.equal for case in cases)
    with capsys.disabled():
        sys.stdout.write(
            f"\nILP equals brute force in {equal} of {len(cases)} problems; "
            f"of {len(hard)} with a loss in {sum(c.equal for c in hard)}\n"
        )
    missed = [c for c in cases if c.best_ns is not None and c.result.step_ns is None]
    assert not missed, f"no plan found for {missed[0].problem}"
    far = [c for c in cases if c.best_ns is not None and c.excess_ns > c.allowed_ns]
    assert not far, f"{far[0].excess_ns} ns above the best of {far[0].problem}"
    assert sum(c.equal for c in hard) >= least_equal * len(hard)


def test_the_ilp_is_as_good_as_brute_force(capsys):
    cases = sample(40, 5, 20_000)
    near_the_best(cases, 0.8, capsys)


@pytest.mark.slow
def test_the_ilp_is_as_good_as_brute_force_on_bigger_steps(capsys):
    cases = sample(80, 8, 20_000)
    near_the_best(cases, 0.8, capsys)


@pytest.mark.slow
def test_the_ilp_is_as_good_as_brute_force_on_ten_activations(capsys):
    cases = sample(20, 10, 20_000)
    near_the_best(cases, 0.8, capsys)

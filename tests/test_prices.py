"""Prices: what the bound says of one more byte, held against the bound with one more byte."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slackswap_opt.formulation import _pulp
from slackswap_opt.formulation._pulp import Answer, Limits, Outcome, solve
from slackswap_opt.formulation.boundary import boundary_model
from slackswap_opt.formulation.linear import certified_minimum
from slackswap_opt.formulation.prices import Binding, Prices, Resource, prices
from slackswap_opt.machine import Host, Link, Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value, working_set_bytes
from slackswap_opt.workloads import build_step, load_workload
from tests.strategies import DEVICE, MB_PER_S, machines, training_steps

SOLVERS = _pulp.available_solvers()
SOLVER = SOLVERS[-1]
each_solver = pytest.mark.parametrize("solver", SOLVERS)
MIB = 2**20
about = pytest.approx


def limit(problem: Problem, cut: int) -> int:
    """The verified overhead at a cut."""
    model = boundary_model(problem, cut).model
    answer = solve(model, Limits(60), SOLVER, relax=True)
    assert answer.duals is not None
    return certified_minimum(model, answer.duals)


def priced(problem: Problem, cut: int, solver: str = SOLVER) -> Prices:
    found = prices(problem, cut, solver=solver)
    assert found is not None
    return found


def operation(name: str, duration: int, reads: str, writes: str, workspace: int = 0) -> Operation:
    return Operation(
        name,
        Phase.BACKWARD if name.startswith("b") else Phase.FORWARD,
        duration,
        tuple(map(Value, reads.split())),
        tuple(map(Value, writes.split())),
        workspace,
        recomputable=name.islower(),
    )


def hand(first: str = "F0", *, latency_ns: int = 0, host: Host | None = None) -> Problem:
    """The second operation needs all the memory there is, so the 8 bytes of a must be away."""
    operations = [
        operation(first, 1000, "", "a"),
        operation("f1", 3000, "", "", 10),
        operation("b0", 1000, "a", ""),
    ]
    step = TrainingStep.build("hand", operations, [Tensor.of("a", 8)])
    link = Link.symmetric(MB_PER_S, latency_ns)
    return Problem(step, Machine("hand", DEVICE, link, host or Host()), 10)


# --- By hand ----------------------------------------------------------------------------------


@each_solver
def test_a_tensor_that_must_be_swapped(solver):
    """8 us to the host, none hidden; 8 us back, 3 hidden. A byte that stays saves 1 us each way."""
    found = priced(hand(), 1, solver)
    assert found.step_ns == about(5000 + 8000 + 5000, abs=2)
    assert found.device_ns_per_byte == about(2000)
    assert found.host_ns_per_byte == 0
    # At 1 byte/us, d (8000 / R) / dR = -8000 in each direction.
    assert found.out_ns_per_rate == about(8000)
    assert found.in_ns_per_rate == about(8000)
    assert found.binding == (
        Binding(Resource.DEVICE, 1, about(2000)),
        Binding(Resource.OUT, 0, about(1)),
        Binding(Resource.IN, 2, about(1)),
    )
    (tensor,) = found.tensors
    assert tensor.swap_ns == about(16_000)
    assert tensor.keep_ns == about(16_000)  # what a byte is worth, at the margin
    assert tensor.link_ns == about(16_000)
    assert tensor.recompute_ns is None
    assert (tensor.kept, tensor.swapped, tensor.recomputed) == (about(0), about(1), about(0))


def test_a_tensor_that_is_rebuilt_for_less():
    found = priced(hand("f0"), 1)
    (tensor,) = found.tensors
    assert tensor.recompute_ns == about(1000)
    assert tensor.recomputed == about(1)
    assert tensor.swap_ns >= 1000 - 1e-3
    assert found.device_ns_per_byte == about(125)  # 1000 ns by 8 bytes


def test_the_latency_is_not_proportional_to_the_rate():
    found = priced(hand(latency_ns=500), 1)
    (tensor,) = found.tensors
    assert tensor.swap_ns == about(17_000)
    assert tensor.link_ns == about(16_000)
    assert found.out_ns_per_rate == about(8000)


def test_host_memory_that_binds():
    """5 of 8 bytes may go; the others are rebuilt."""
    found = priced(hand("f0", host=Host(pinned_bytes=5)), 1)
    free = priced(hand("f0"), 1)
    assert found.host_ns_per_byte == 0 == free.host_ns_per_byte  # rebuilding is cheaper anyway
    slow = hand("f0", host=Host(pinned_bytes=5))
    ops = list(slow.step.operations)
    ops[0] = replace(ops[0], duration_ns=40_000)
    dear = replace(slow, step=TrainingStep.build("hand", ops, list(slow.step.tensors)))
    found = priced(dear, 1)
    # A byte more on the host saves 5000 ns of rebuilding, and costs 1000 ns each way.
    assert found.host_ns_per_byte > 0
    assert found.binding[-1].resource is Resource.HOST
    more = replace(dear, machine=replace(dear.machine, host=Host(pinned_bytes=6)))
    assert limit(dear, 1) - limit(more, 1) == about(found.host_ns_per_byte, rel=1e-3)


def test_nothing_has_a_price_where_all_fits():
    problem = hand().with_budget(1000)
    found = priced(problem, 1)
    assert found.step_ns == problem.ideal_step_ns
    assert found.binding == ()
    assert (found.device_ns_per_byte, found.out_ns_per_rate, found.in_ns_per_rate) == (0, 0, 0)


@pytest.mark.parametrize("outcome", [Outcome.FAILED, Outcome.INFEASIBLE, Outcome.NOTHING])
def test_without_an_optimum_there_are_no_prices(monkeypatch, outcome):
    monkeypatch.setattr(
        "slackswap_opt.formulation.prices.solve",
        lambda *_, **__: Answer(outcome, None, None, "liar 1.0", 0.0),
    )
    assert prices(hand(), 1) is None


# --- Against the bound itself -----------------------------------------------------------------


@settings(
    deadline=None,
    max_examples=15,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much],
)
@given(training_steps(), machines(), st.data())
def test_memory_never_saves_more_nor_costs_less_than_its_price(step, machine, data):
    """The bound is convex in the budget, and a price is a slope under it."""
    problem = Problem(step, machine, 1)
    peak = problem.liveness.ideal_peak_bytes
    least = int(working_set_bytes(step).max()) + 3
    problem = problem.with_budget(data.draw(st.integers(least, max(least, peak))))
    cut = data.draw(st.integers(0, step.index.operations - 1))
    found = prices(problem, cut, solver=SOLVER)
    assume(found is not None)
    base = limit(problem, cut)
    slack = 2 + 1e-5 * abs(base)
    for change in (-3, -1, 1, 5):
        other = limit(problem.with_budget(problem.budget_bytes + change), cut)
        assert other >= base - found.device_ns_per_byte * change - slack


MACHINE = load_machine("a100-80gb-pcie4")


@pytest.fixture(scope="module")
def bert() -> Problem:
    problem = Problem(build_step(load_workload("bert-large", layers=2), MACHINE), MACHINE, 1)
    return problem.with_budget(problem.liveness.ideal_peak_bytes // 2)


def turn(problem: Problem) -> int:
    return int((~problem.step.index.forward).argmax())


def on(problem: Problem, **changes: object) -> Problem:
    """The problem with another link or host."""
    return replace(problem, machine=replace(problem.machine, **changes))  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.3, 0.5])
def test_a_real_workload_by_finite_differences(bert, share):
    problem = bert.with_budget(int(bert.liveness.ideal_peak_bytes * share))
    cut = turn(problem)
    found, base = priced(problem, cut), limit(problem, cut)
    assert found.step_ns == about(problem.ideal_step_ns + base, abs=2)

    def between(slope: float, less: float, more: float) -> None:
        assert min(less, more) * (1 - 1e-3) - 1 <= slope <= max(less, more) * (1 + 1e-3) + 1

    step = MIB
    between(
        found.device_ns_per_byte * step,
        limit(problem.with_budget(problem.budget_bytes - step), cut) - base,
        base - limit(problem.with_budget(problem.budget_bytes + step), cut),
    )
    link = problem.machine.link
    for direction, slope in (("d2h", found.out_ns_per_rate), ("h2d", found.in_ns_per_rate)):
        by = 10  # bytes/us of 25,000
        changed = []
        for sign in (-1, 1):
            name = f"{direction}_bytes_per_s"
            rate = getattr(link, name) + sign * by * MB_PER_S * link.shared_by
            loaded = {f"{direction}_duplex_bytes_per_s": rate / 2}
            changed.append(limit(on(problem, link=replace(link, **{name: rate}, **loaded)), cut))
        between(slope * by, changed[0] - base, base - changed[1])
    assert found.out_ns_per_rate + found.in_ns_per_rate > 0


def test_a_host_limit_by_finite_differences(bert):
    cut, step = turn(bert), 8 * MIB

    def hosted(size: int) -> Problem:
        return on(bert, host=Host(pinned_bytes=size))

    problem = hosted(40 * MIB)
    found, base = priced(problem, cut), limit(problem, cut)
    assert found.host_ns_per_byte > 0
    less, more = limit(hosted(32 * MIB), cut) - base, base - limit(hosted(48 * MIB), cut)
    assert more * (1 - 1e-3) - 1 <= found.host_ns_per_byte * step <= less * (1 + 1e-3) + 1


@each_solver
def test_the_relaxed_optimum_goes_the_cheapest_way(bert, solver):
    found = priced(bert, turn(bert), solver)
    assert len(found.tensors) > 20
    for price in found.tensors:
        assert price.swap_ns is not None
        near = 1 + 1e-4 * price.keep_ns
        if price.kept > 0.01:
            assert price.keep_ns <= price.swap_ns + near
        if price.swapped > 0.01:
            assert price.swap_ns <= price.keep_ns + near
        if price.recompute_ns is not None and price.kept + price.swapped > 0.01:
            assert price.recompute_ns >= min(price.keep_ns, price.swap_ns) - near


def test_two_runs_give_the_same_prices(bert):
    first, second = (replace(priced(bert, turn(bert)), seconds=0.0) for _ in range(2))
    assert first == second

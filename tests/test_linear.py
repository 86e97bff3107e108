"""Exact linear models and the limit that any multipliers prove."""

from __future__ import annotations

import itertools
import random
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.formulation import _pulp
from slackswap_opt.formulation.linear import LinearModel, certified_minimum, reduced_costs

QUICK = settings(deadline=None, max_examples=100)


@st.composite
def models(draw: st.DrawFn, columns: int = 5) -> LinearModel:
    """Small models with integer data; feasible or not."""
    model = LinearModel(constant=draw(st.integers(-20, 20)))
    for _ in range(draw(st.integers(1, columns))):
        model.variable(
            draw(st.integers(0, 3)), integer=True, cost=draw(st.integers(-9, 9)),
            unit=draw(st.sampled_from((1, 1000))),
        )  # fmt: skip
    variables = st.integers(0, len(model.variables) - 1)
    for _ in range(draw(st.integers(0, 5))):
        terms = draw(st.lists(st.tuples(st.integers(-9, 9), variables), max_size=4))
        add = draw(st.sampled_from((model.at_least, model.at_least, model.at_most, model.equal)))
        add(terms, draw(st.integers(-9, 9)), "random")
    return model


def points(model: LinearModel):
    """Every whole point within the bounds that satisfies every row, with its objective."""
    for point in itertools.product(*(range(v.upper + 1) for v in model.variables)):
        if model.violated(point) is None:
            yield point, model.constant + sum(c * point[x] for x, c in model.objective.items())


def test_terms_of_one_variable_are_merged():
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_least([(2, x), (3, y), (-1, x), (-3, y)], 1, "sum")
    (row,) = model.rows
    assert row.terms == ((1, x),)
    assert row.lower == 1


def test_rows_that_always_hold_are_left_out():
    model = LinearModel()
    x, y = model.variable(10), model.variable(5)
    model.at_least([(1, x), (-2, y)], -10, "slack")
    assert model.rows == []
    model.at_least([(1, x), (-2, y)], -9, "binding")
    assert len(model.rows) == 1


def test_a_row_that_never_holds_stays():
    model = LinearModel()
    model.at_least([], 1, "impossible")
    assert model.violated([]) is model.rows[0]


def test_fixing_is_exact():
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.fix(x, 0)
    model.fix(y, 1)
    assert model.variables[x].upper == 0
    assert model.violated([0, 0]).family == "fixed"
    assert model.violated([0, 1]) is None


def test_violations_are_found_in_exact_arithmetic():
    model = LinearModel()
    x = model.variable(10**18)
    model.at_least([(3, x)], 10**18, "exact")
    assert model.violated([Fraction(10**18, 3)]) is None
    assert model.violated([Fraction(10**18 - 1, 3)]) is model.rows[0]
    assert model.violated([(10**18 - 1) // 3]).family == "exact"


@QUICK
@given(models())
def test_a_two_sided_row_holds_where_both_sides_do(model: LinearModel):
    for point, _ in itertools.islice(points(model), 50):
        for row in model.rows:
            assert sum(c * point[x] for c, x in row.terms) >= row.lower


WILD = st.one_of(
    st.floats(0, 100), st.floats(), st.sampled_from((0.0, 1.0, float("nan"), float("inf"), -1e300))
)


@QUICK
@given(models(), st.data())
def test_no_multipliers_prove_more_than_the_minimum(model: LinearModel, data):
    duals = [data.draw(WILD) for _ in model.rows]
    limit = certified_minimum(model, duals)
    assert all(limit <= objective for _, objective in points(model))


@QUICK
@given(models())
def test_without_multipliers_the_limit_is_what_the_bounds_say(model: LinearModel):
    least = sum(min(0, c) * model.variables[x].upper for x, c in model.objective.items())
    assert certified_minimum(model, [0.0] * len(model.rows)) == model.constant + least


def knapsack(seed: int, count: int) -> LinearModel:
    """Keep, swap or recompute, in nanoseconds and bytes of the size that training steps have."""
    rng = random.Random(seed)
    model = LinearModel()
    keep, swap = [], []
    rerun = [model.binary(integer=False) for _ in range(count)]
    sizes = [rng.randint(1, 64) * 2**20 + rng.randint(0, 999) for _ in range(count)]
    for y in rerun:
        model.objective[y] = rng.randint(1000, 8_000_000)
    for y in rerun:
        keep.append(model.binary())
        swap.append(model.binary())
        model.at_least([(1, y), (1, keep[-1]), (1, swap[-1])], 1, "state")
    model.at_most(zip(sizes, keep, strict=True), sum(sizes) * 2 // 5, "memory")
    model.at_most(zip(sizes, swap, strict=True), sum(sizes) // 4, "link")
    return model


@pytest.mark.parametrize("solver", _pulp.available_solvers())
@pytest.mark.parametrize("seed", range(4))
def test_the_solvers_multipliers_prove_the_minimum_of_the_relaxation(seed, solver):
    model = knapsack(seed, 40)
    answer = _pulp.solve(model, _pulp.Limits(20), solver, relax=True)
    assert answer.outcome is _pulp.Outcome.OPTIMAL
    minimum = model.constant + sum(c * answer.values[x] for x, c in model.objective.items())
    limit = certified_minimum(model, answer.duals)
    assert limit <= minimum * (1 + 1e-9) + 1
    assert limit >= minimum * (1 - 1e-6) - 1


@pytest.mark.parametrize("solver", _pulp.available_solvers())
def test_reduced_costs_vanish_where_the_solution_is_between_bounds(solver):
    model = knapsack(7, 25)
    answer = _pulp.solve(model, _pulp.Limits(20), solver, relax=True)
    reduced = reduced_costs(model, answer.duals)
    for x, value in enumerate(answer.values):
        if 1e-6 < value < 1 - 1e-6:
            assert reduced.get(x, 0.0) == pytest.approx(0, abs=1)

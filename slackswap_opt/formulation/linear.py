"""A linear model in exact integers, independent of any solver.

Models are stated in nanoseconds and bytes with integer coefficients, so that a plan can be checked
row by row and a bound recomputed without rounding. Units tell the solver layer how to scale.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from math import ldexp

Terms = Iterable[tuple[int, int]]
"""Pairs of a coefficient and a variable."""

MICROSECOND = 1000


def grain(whole: int) -> int:
    """A unit for sums of parts of a whole: a 4096th, so that the solver sees numbers near 1.

    It follows the data: with a fixed unit such as 1 MiB, bytes of small steps would fall below
    the solver's tolerances.
    """
    return max(1, whole >> 12)


@dataclass(frozen=True, slots=True)
class Variable:
    """0 <= x <= upper.

    Attributes:
        upper: largest value, an integer.
        integer: whether it must be whole.
        unit: the solver sees x / unit, so that its numbers stay near 1.
    """

    upper: int
    integer: bool
    unit: int


@dataclass(frozen=True, slots=True)
class Row:
    """lower <= sum of coefficient * variable; a two-sided row is two rows.

    Attributes:
        terms: (coefficient, variable), each variable once.
        lower: right-hand side.
        family: the constraint family, for messages.
    """

    terms: tuple[tuple[int, int], ...]
    lower: int
    family: str


@dataclass
class LinearModel:
    """Minimize an integer objective over rows `terms >= lower`."""

    variables: list[Variable] = field(default_factory=list)
    rows: list[Row] = field(default_factory=list)
    objective: dict[int, int] = field(default_factory=dict)
    constant: int = 0

    def variable(self, upper: int, *, unit: int = 1, integer: bool = False, cost: int = 0) -> int:
        """A new variable between 0 and `upper`; returns its number."""
        self.variables.append(Variable(upper, integer, unit))
        number = len(self.variables) - 1
        if cost:
            self.objective[number] = cost
        return number

    def binary(self, *, integer: bool = True) -> int:
        """A new 0-1 variable (relaxed to [0, 1] if not `integer`)."""
        return self.variable(1, integer=integer)

    def at_least(self, terms: Terms, lower: int, family: str) -> None:
        """Add the row sum(terms) >= lower; rows that always hold are left out."""
        merged: dict[int, int] = {}
        for coefficient, variable in terms:
            merged[variable] = merged.get(variable, 0) + coefficient
        kept = tuple((c, x) for x, c in merged.items() if c)
        if sum(min(0, c) * self.variables[x].upper for c, x in kept) >= lower:
            return
        self.rows.append(Row(kept, lower, family))

    def at_most(self, terms: Terms, upper: int, family: str) -> None:
        """Add the row sum(terms) <= upper."""
        self.at_least(((-c, x) for c, x in terms), -upper, family)

    def equal(self, terms: Terms, value: int, family: str) -> None:
        """Add both rows of sum(terms) = value."""
        pairs = list(terms)
        self.at_least(pairs, value, family)
        self.at_most(pairs, value, family)

    def fix(self, variable: int, value: int) -> None:
        """Fix a variable at one of its bounds."""
        old = self.variables[variable]
        if value == 0:
            self.variables[variable] = Variable(0, old.integer, old.unit)
        else:
            self.at_least([(1, variable)], value, "fixed")

    def scale(self, row: Row) -> float:
        """The power of two at or below the row's largest coefficient, in the solver's units."""
        largest = max((abs(c) * self.variables[x].unit for c, x in row.terms), default=1)
        return float(1 << (largest.bit_length() - 1))

    def violated(self, values: Sequence[int | Fraction]) -> Row | None:
        """The first row that the values break, in exact arithmetic."""
        for row in self.rows:
            if sum(c * values[x] for c, x in row.terms) < row.lower:
                return row
        return None


@dataclass(frozen=True)
class Restriction:
    """A model with some variables fixed and everything that follows taken out.

    Attributes:
        model: over the variables that are left.
        variables: the original number of each variable that is left.
        contradiction: a row that the fixed values break whatever the others do, if there is one.
    """

    model: LinearModel
    variables: tuple[int, ...]
    contradiction: Row | None


def restrict(model: LinearModel, fixed: Mapping[int, int]) -> Restriction:
    """Substitute fixed values; rows that always hold and variables that are in none go."""
    upper = [v.upper for v in model.variables]
    rows: list[tuple[list[tuple[int, int]], Row]] = []
    contradiction = None
    for row in model.rows:
        left: list[tuple[int, int]] = []
        known = lowest = highest = 0
        for coefficient, x in row.terms:
            value = fixed.get(x)
            if value is not None:
                known += coefficient * value
            elif upper[x]:
                left.append((coefficient, x))
                if coefficient < 0:
                    lowest += coefficient * upper[x]
                else:
                    highest += coefficient * upper[x]
        if known + lowest >= row.lower:
            continue
        if known + highest < row.lower:
            contradiction = contradiction or row
        rows.append((left, Row((), row.lower - known, row.family)))
    smaller = LinearModel(constant=model.constant)
    numbers: dict[int, int] = {}
    for left, row in rows:
        for _, x in left:
            if x not in numbers:
                old = model.variables[x]
                numbers[x] = smaller.variable(old.upper, unit=old.unit, integer=old.integer)
        terms = tuple((c, numbers[x]) for c, x in left)
        smaller.rows.append(Row(terms, row.lower, row.family))
    for x, cost in model.objective.items():
        if x in fixed:
            smaller.constant += cost * fixed[x]
        elif x in numbers:
            smaller.objective[numbers[x]] = cost
    return Restriction(smaller, tuple(numbers), contradiction)


def certified_minimum(
    model: LinearModel, duals: Sequence[float], fixed: Mapping[int, int] | None = None
) -> int:
    """A proven lower limit on the model's minimum, from any row multipliers at all.

    With y >= 0, every x within its bounds that satisfies the rows A x >= b has
    c x >= b y + (c - A'y) x >= b y + sum over j of the least (c - A'y)_j x_j within the bounds
    (weak duality with bounded variables). It is evaluated in integers: multipliers are first
    rounded to a multiple of 2^-60, which only weakens the limit. How the multipliers were found
    does not matter for its validity.

    Args:
        model: the model; integrality is ignored.
        duals: one multiplier per row, in objective units per row unit; negative ones and ones that
            are not finite count as 0.
        fixed: the limit is one for the points with these values.

    Returns:
        The limit, rounded down.
    """
    weights = [int(ldexp(y, _DIGITS)) if 0.0 < y < _LARGE else 0 for y in duals]
    total = model.constant << _DIGITS
    reduced: dict[int, int] = {x: c << _DIGITS for x, c in model.objective.items()}
    for row, weight in zip(model.rows, weights, strict=True):
        if not weight:
            continue
        total += row.lower * weight
        for coefficient, variable in row.terms:
            reduced[variable] = reduced.get(variable, 0) - coefficient * weight
    known = fixed or {}
    for x, cost in reduced.items():
        if x in known:
            total += cost * known[x]
        elif cost < 0:
            total += cost * model.variables[x].upper
    return total >> _DIGITS


def certainly_empty(
    model: LinearModel, ray: Sequence[float], fixed: Mapping[int, int] | None = None
) -> bool:
    """Whether these multipliers prove that the rows have no point at all (Farkas).

    Without an objective the minimum over any points is 0. Multipliers are tried with fewer and
    fewer digits: what is noise in them would be multiplied by the largest bounds.

    Args:
        model: the model; integrality is ignored.
        ray: one multiplier per row.
        fixed: whether there is no point with these values.
    """
    nothing = LinearModel(model.variables, model.rows)
    scales = [model.scale(row) for row in model.rows]
    scaled = [y * s if 0.0 < y < _LARGE else 0.0 for y, s in zip(ray, scales, strict=True)]
    largest = max(scaled, default=0.0)
    if not largest:
        return False
    for digits in _RAY_DIGITS:
        rounded = (round(ldexp(y / largest, digits)) for y in scaled)
        duals = [ldexp(y, -digits) / s for y, s in zip(rounded, scales, strict=True)]
        if certified_minimum(nothing, [_UNIT * y for y in duals], fixed) > 0:
            return True
    return False


_RAY_DIGITS = (40, 20, 10, 5)
_UNIT = float(1 << 60)
"""Rays may be scaled at will: rows with large coefficients have tiny multipliers."""
_DIGITS = 60
"""Multipliers are rounded to this many binary digits after the point."""
_LARGE = 1e250
"""Multipliers from here on are no numbers to count with."""


def reduced_costs(model: LinearModel, duals: Sequence[float]) -> Mapping[int, float]:
    """Objective change per unit of each variable at these multipliers (floating point)."""
    reduced: dict[int, float] = {x: float(c) for x, c in model.objective.items()}
    for row, dual in zip(model.rows, duals, strict=True):
        if dual > 0:
            for coefficient, variable in row.terms:
                reduced[variable] = reduced.get(variable, 0.0) - coefficient * dual
    return reduced

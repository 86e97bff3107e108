"""Prices: what the relaxed boundary model at one cut pays for memory and for the link.

With optimal multipliers y >= 0 of the rows A x >= b, the bound changes with a parameter p of the
problem by (envelope theorem, at the optimal point x)

    d bound / d p  =  dc/dp x + sum over rows of y (db/dp - dA/dp x)

Budget and host limit are in right-hand sides only, where the bound is convex in p: it never falls
by more than the price says, whatever is added, and never rises by less, whatever is taken away.
The link's rates are in coefficients too, where the price is the slope at the present rate.

The same multipliers weigh the three ways of a value (t, v) over the cut (rows as in `boundary`):

    keep       m_t times the price of a byte of device memory
    swap       w_t times the multipliers of the rows (5) and (6) that its copies fall into, and
               h_t times the price of a byte of host memory
    recompute  d_o of its writer o, less what o's time is worth to copies in (6), and the cheapest
               way of each value that o reads and that nothing after the cut needs by itself

Recomputing is weighed alone: what several re-executions have in common is counted for each.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from enum import StrEnum
from functools import cached_property

from slackswap_opt.formulation._pulp import Limits, Outcome, solve
from slackswap_opt.formulation.boundary import (
    CutModel,
    Value,
    boundary_model,
    longest_overhead_ns,
)
from slackswap_opt.formulation.linear import Row, certified_minimum
from slackswap_opt.plan.problem import Problem

NOTHING = 1e-9
"""Prices below this, in ns per byte or per byte/us, count as zero: they are a solver's rounding."""
NO_TIME = 1e-6
"""The same for prices of an engine's time, in ns per ns."""


class Resource(StrEnum):
    """What can be scarce."""

    DEVICE = "device memory"
    OUT = "link to the host"
    IN = "link to the device"
    HOST = "host memory"


@dataclass(frozen=True)
class Binding:
    """A constraint that binds, and what easing it is worth.

    Attributes:
        resource: what is scarce.
        operation: for memory, the operation at whose start it is; for the link to the host, the
            operation after which what has to leave before the cut is written (the copies of all
            that is written from there on share the time up to the cut); for the link to the
            device, the operation before which copies must be back, None for the end of the step.
        price: ns of overhead per byte of memory, or per ns of the engine's time.
    """

    resource: Resource
    operation: int | None
    price: float


@dataclass(frozen=True)
class TensorPrice:
    """The three ways of a tensor over the cut, in ns of overhead at the prices; None: no such way.

    Attributes:
        tensor: its index.
        keep_ns: device memory at its price.
        swap_ns: both copies at the link's price, and host memory at its price.
        recompute_ns: re-execution, with what that reads, as if nothing else were re-executed.
        link_ns: the part of `swap_ns` that is for moving bytes: latency and host memory apart. It
            is inversely proportional to the link's rate, as long as a ns of link time costs the
            same.
        kept, swapped, recomputed: shares in the relaxed optimum.
    """

    tensor: int
    keep_ns: float
    swap_ns: float | None
    recompute_ns: float | None
    link_ns: float
    kept: float
    swapped: float
    recomputed: float


@dataclass(frozen=True)
class Prices:
    """Prices at one cut; all of them are of the bound's relaxation, and local.

    Attributes:
        cut: the operation at whose start the model stands.
        step_ns: the verified limit that these multipliers prove.
        solver: name and version of the solver that the multipliers come from.
        seconds: wall time.
        device_ns_per_byte: what one more byte of budget saves.
        host_ns_per_byte: what one more byte of host memory saves; 0 without a limit.
        out_ns_per_rate: what one more byte/us to the host saves.
        in_ns_per_rate: what one more byte/us to the device saves.
        binding: constraints with a price, the dearest first within a resource.
        tensors: those in transit over the cut, by index.
    """

    cut: int
    step_ns: int
    solver: str
    seconds: float
    device_ns_per_byte: float
    host_ns_per_byte: float
    out_ns_per_rate: float
    in_ns_per_rate: float
    binding: tuple[Binding, ...]
    tensors: tuple[TensorPrice, ...]


def prices(
    problem: Problem, cut: int, *, solver: str = "cbc", seconds: float = 60.0
) -> Prices | None:
    """Prices at the start of an operation; None if the solver finds no optimum.

    Args:
        problem: step, machine and budget.
        cut: the operation, usually the one where the bound was found.
        solver: where the multipliers come from.
        seconds: limit of the solve.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    began = time.perf_counter()
    cut_model = boundary_model(problem, cut)
    answer = solve(cut_model.model, Limits(seconds), solver, relax=True)
    if answer.outcome is not Outcome.OPTIMAL or answer.values is None or answer.duals is None:
        return None
    duals = [max(0.0, y) for y in answer.duals]
    overhead = min(certified_minimum(cut_model.model, duals), longest_overhead_ns(problem))
    priced = _Priced(problem, cut, cut_model, duals, answer.values)
    return Prices(
        cut=cut,
        step_ns=problem.ideal_step_ns + max(0, overhead),
        solver=answer.solver,
        seconds=time.perf_counter() - began,
        device_ns_per_byte=_clean(priced.of_family("memory")),
        host_ns_per_byte=_clean(priced.of_family("host")),
        out_ns_per_rate=_clean(priced.per_rate("copies out")),
        in_ns_per_rate=_clean(priced.per_rate("copies in")),
        binding=tuple(priced.binding()),
        tensors=tuple(priced.tensors()),
    )


def _clean(price: float) -> float:
    return price if price > NOTHING else 0.0


class _Priced:
    """The model with multipliers and an optimal point, and what they say of its parts."""

    def __init__(
        self,
        problem: Problem,
        cut: int,
        cut_model: CutModel,
        duals: Sequence[float],
        values: Sequence[float],
    ) -> None:
        self.problem, self.cut, self.cut_model = problem, cut, cut_model
        self.rows = list(zip(cut_model.model.rows, duals, strict=True))
        self.values = values
        self.latency = problem.machine.link.latency_ns
        rates = problem.machine.link.rates()
        self.rate = {"copies out": rates.d2h, "copies in": rates.h2d}
        self.value_of = {x: value for value, x in cut_model.swap.items()}
        self.total_row = {
            next(x for c, x in row.terms if c == 1): (row, dual)
            for row, dual in self.rows
            if row.family == "running total"
        }
        self.costs: dict[int, float] = defaultdict(float, cut_model.model.objective)
        for row, dual in self.rows:
            if dual and row.family not in ("state", "inputs", "rebuild"):
                for coefficient, x in row.terms:
                    self.costs[x] -= coefficient * dual

    def of_family(self, family: str) -> float:
        """Sum of the multipliers of a family: the slope in a right-hand side that they share."""
        return sum(dual for row, dual in self.rows if row.family == family)

    def per_rate(self, family: str) -> float:
        """What one more byte/us of a direction saves.

        In its rows all but the total is proportional to the rate. In a running total, the work of
        a copy grows with the rate by its latency.
        """
        saved = 0.0
        for row, dual in self.rows:
            if row.family == family and dual:
                time = sum(c * self.values[x] for c, x in row.terms if x not in self.total_row)
                saved += dual * (time - row.lower) / self.rate[family]
        for row, dual in self._totals(family):
            swapped = sum(self.values[x] for _, x in row.terms if x in self.value_of)
            saved -= dual * self.latency * swapped
        return saved

    def _totals(self, family: str) -> Iterator[tuple[Row, float]]:
        """The running totals of a direction: those that its rows end in, and those before them."""
        seen: set[int] = set()
        for row, _ in self.rows:
            if row.family != family:
                continue
            ahead = [x for _, x in row.terms if x in self.total_row]
            while ahead and ahead[0] not in seen:
                seen.add(ahead[0])
                total, dual = self.total_row[ahead[0]]
                yield total, dual
                ahead = [x for c, x in total.terms if c == -1 and x in self.total_row]

    def binding(self) -> Iterator[Binding]:
        """Constraints with a price."""
        if price := _clean(self.of_family("memory")):
            yield Binding(Resource.DEVICE, self.cut, price)
        for family, resource in (("copies out", Resource.OUT), ("copies in", Resource.IN)):
            found = [
                Binding(resource, self._position(row, resource), dual * self.rate[family])
                for row, dual in self.rows
                if row.family == family and dual * self.rate[family] > NO_TIME
            ]
            yield from sorted(found, key=lambda binding: -binding.price)
        if price := _clean(self.of_family("host")):
            yield Binding(Resource.HOST, None, price)

    def _position(self, row: Row, resource: Resource) -> int | None:
        """The operation that a row about copies is named after."""
        total = next(x for _, x in row.terms if x in self.total_row)
        last = next(x for _, x in self.total_row[total][0].terms if x in self.value_of)
        tensor, version = self.value_of[last]
        index = self.problem.step.index
        if resource is Resource.OUT:
            return index.writers[tensor][version]
        if self.transit.get(tensor) != version:
            return None
        return next(op for op in index.readers[tensor] if op > self.cut)

    @cached_property
    def transit(self) -> dict[int, int]:
        """Version by tensor that a later operation needs."""
        model = self.cut_model
        tensor_of = {x: t for t, x in model.keep.items()}
        found = {}
        for row, _ in self.rows:
            if row.family == "state":
                (tensor,) = (tensor_of[x] for _, x in row.terms if x in tensor_of)
                (version,) = (self.value_of[x][1] for _, x in row.terms if x in self.value_of)
                found[tensor] = version
        return found

    def tensors(self) -> Iterator[TensorPrice]:
        """The ways of each tensor in transit."""
        model = self.cut_model
        moving: dict[int, float] = defaultdict(float)
        for family, rate in self.rate.items():
            for row, dual in self._totals(family):
                for coefficient, x in row.terms:
                    if x in self.value_of:
                        moving[x] -= dual * (coefficient + self.latency * rate)
        for tensor, version in sorted(self.transit.items()):
            value = tensor, version
            shares = (model.keep[tensor], model.swap[value], model.rebuild.get(value))
            kept, swapped, recomputed = (
                0.0 if x is None else max(0.0, self.values[x]) for x in shares
            )
            yield TensorPrice(
                tensor,
                self._keep(value),
                self._swap(value),
                self.again.get(value),
                max(0.0, moving[model.swap[value]]),
                kept,
                swapped,
                recomputed,
            )

    def _keep(self, value: Value) -> float:
        return max(0.0, self.costs[self.cut_model.keep[value[0]]])

    def _swap(self, value: Value) -> float | None:
        x = self.cut_model.swap[value]
        return max(0.0, self.costs[x]) if self.cut_model.model.variables[x].upper else None

    @cached_property
    def again(self) -> dict[Value, float]:
        """Cost of recomputing each value that can be, those it needs before it."""
        writers, found = self.problem.step.index.writers, dict[Value, float]()
        for value in sorted(self.cut_model.rebuild, key=lambda value: writers[value[0]][value[1]]):
            writer = writers[value[0]][value[1]]
            cost = max(0.0, float(self.costs[self.cut_model.rerun[writer]]))
            for read in self.problem.step.index.reads[writer]:
                if read in self.cut_model.swap and self.transit.get(read[0]) != read[1]:
                    ways = (self._keep(read), self._swap(read), found.get(read))
                    cost += min(way for way in ways if way is not None)
            found[value] = cost
        return found

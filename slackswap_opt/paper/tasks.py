"""The units of work: each is plain data with a `run`, and its result is plain JSON values.

They run in processes of their own in any order, so none uses another's result.
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Protocol

from slackswap_opt.formulation.bound import bound
from slackswap_opt.formulation.prices import prices
from slackswap_opt.machine.model import BYTES_PER_US
from slackswap_opt.paper.case import GB, Case
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import Cell, Settings, lower_limit, rows_of, smallest_budget, sweep
from slackswap_opt.study.compare import Row, ratio
from slackswap_opt.workloads import load_workload

GIB = 2**30
NS_PER_MS = 10**6


class Task(Protocol):
    """A piece of work; a frozen dataclass whose fields are the key of its result."""

    @property
    def case(self) -> Case:
        """The step and the machine."""

    @property
    def effort(self) -> float:
        """Rough seconds: the longest are started first."""

    def run(self) -> Any:
        """Compute the result."""


@dataclass(frozen=True)
class Solve:
    """Planners at several budgets of one case: one point per budget and planner.

    Attributes:
        case: the step and the machine.
        percents: budgets in percent of the ideal peak.
        planners: their names.
        seconds: limit of the ILP at each budget.
        gap: certified gap at which it stops.
    """

    case: Case
    percents: tuple[float, ...]
    planners: tuple[str, ...]
    seconds: float
    gap: float

    @property
    def effort(self) -> float:
        """At most the limit at each budget."""
        return len(self.percents) * self.seconds

    def run(self) -> list[dict[str, Any]]:
        """Fields of `slackswap_opt.figures.Point`, by name."""
        return [
            point
            for cell in _cells(self.case, self.percents, self.planners, self.seconds, self.gap)
            for point in points_of(self.case, cell)
        ]


@dataclass(frozen=True)
class Smallest:
    """The smallest budget of a case: what is proven, and what was found.

    Attributes:
        case: the step and the machine.
    """

    case: Case

    @property
    def effort(self) -> float:
        """Some seconds for a large step."""
        return 20.0

    def run(self) -> list[dict[str, Any]]:
        """Fields of `slackswap_opt.figures.Limits`, by name."""
        problem = self.case.problem()
        peak = problem.liveness.ideal_peak_bytes
        found = smallest_budget(problem)
        return [
            {
                "workload": problem.step.name,
                "machine": problem.machine.name,
                "proven_fraction": lower_limit(problem.step).budget_bytes / peak,
                "found_fraction": None if found.budget_bytes is None else found.budget_bytes / peak,
                "planner": found.planner,
            }
        ]


@dataclass(frozen=True)
class Priced:
    """Prices of memory and link along the budget of one case.

    Attributes:
        case: the step and the machine.
        percents: budgets in percent of the ideal peak; those that are proven infeasible are left
            out.
    """

    case: Case
    percents: tuple[float, ...]

    @property
    def effort(self) -> float:
        """A few linear programs at each budget."""
        return 3.0 * len(self.percents)

    def run(self) -> list[dict[str, Any]]:
        """Fields of `slackswap_opt.figures.Price`, by name."""
        problem = self.case.problem()
        peak = problem.liveness.ideal_peak_bytes
        least = lower_limit(problem.step).budget_bytes
        budgets = [int(percent * peak / 100) for percent in self.percents]
        return [_price(problem.with_budget(size)) for size in budgets if size >= least]


def _price(problem: Problem) -> dict[str, Any]:
    """Prices at the cut that gives the bound; nothing costs anything where the step is ideal."""
    limit = bound(problem)
    found = prices(problem, limit.cut) if limit.cut >= 0 else None
    per_byte, per_rate = 0.0, 0.0
    if found is not None:
        per_byte = found.device_ns_per_byte
        per_rate = found.out_ns_per_rate + found.in_ns_per_rate
    return {
        "workload": problem.step.name,
        "machine": problem.machine.name,
        "budget_fraction": problem.budget_bytes / problem.liveness.ideal_peak_bytes,
        "budget_bytes": problem.budget_bytes,
        "ms_per_gib": per_byte * GIB / NS_PER_MS,
        "ms_per_gb_per_s": per_rate * (GB / BYTES_PER_US) / NS_PER_MS,
    }


def _cells(
    case: Case,
    percents: tuple[float, ...],
    planners: tuple[str, ...],
    seconds: float,
    gap: float,
) -> tuple[Cell, ...]:
    problem = case.problem()
    peak = problem.liveness.ideal_peak_bytes
    budgets = [int(percent * peak / 100) for percent in percents]
    chosen = {name: PLANNERS[name] for name in planners}
    return sweep(problem, budgets, chosen, Settings(gap=gap, seconds=seconds))


def points_of(case: Case, cell: Cell) -> list[dict[str, Any]]:
    """A point per planner of a cell."""
    shape = _shape(case)
    return [
        {**shape, **_values(cell, row), "proven_infeasible": cell.proven_infeasible}
        for row in rows_of(cell)
    ]


def _shape(case: Case) -> dict[str, Any]:
    machine = case.place()
    shape: dict[str, Any] = {"layers": None, "batch": None, "sequence": None}
    if not case.is_file:
        workload = load_workload(
            case.workload, layers=case.layers, batch=case.batch, sequence=case.sequence
        )
        shape = {
            "layers": workload.architecture.layers,
            "batch": workload.training.batch,
            "sequence": workload.training.sequence,
        }
    return {
        **shape,
        "link_gb_per_s": machine.link.d2h_bytes_per_s / machine.link.shared_by / GB,
        "attained_flops": machine.device.attained_flops,
    }


_KEPT = (
    "workload", "machine", "planner", "status", "budget_bytes", "budget_fraction", "peak_bytes",
    "ideal_peak_bytes", "ideal_step_s", "step_s", "throughput_retained", "certified_gap",
    "stall_s", "recompute_s", "kept_bytes", "swapped_bytes", "recomputed_bytes", "planning_s",
    "time_limited",
)  # fmt: skip


def _values(cell: Cell, row: Row) -> dict[str, Any]:
    fields = asdict(row)
    bound = ratio(cell.problem.ideal_step_ns, cell.bound.step_ns)
    return {**{name: fields[name] for name in _KEPT}, "bound_retained": bound}

"""What figures about many problems draw: one point per problem and planner."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

PROVEN = "optimal-within-gap"
"""The status of a plan whose certified gap is within what was asked for."""
FAILED = "failed"
"""The status of a row of a sweep that has no answer."""


@dataclass(frozen=True)
class Point:
    """One planner on one problem. Fields that a simulation would fill are None without a plan.

    Attributes:
        workload: name of the step.
        layers: its number of layers; None for a step from a file, as are the next two.
        batch: sequences per device.
        sequence: tokens per sequence.
        machine: its name.
        link_gb_per_s: device-to-host rate, GB/s, while nothing moves the other way.
        attained_flops: fraction of the arithmetic peak that large kernels reach.
        planner: its name.
        status: "optimal-within-gap", "feasible", "fallback" or "infeasible".
        budget_bytes: device memory for everything that is not static.
        budget_fraction: the same as a fraction of the ideal peak.
        peak_bytes: largest memory in use.
        ideal_peak_bytes: peak of the step without a limit.
        ideal_step_s: time of the step without a limit, seconds.
        step_s: simulated step time, seconds.
        throughput_retained: ideal step / simulated step.
        bound_retained: ideal step / bound: what no schedule exceeds.
        certified_gap: (step - bound) / step.
        stall_s: time that compute waited, seconds.
        recompute_s: time of re-executions, seconds.
        kept_bytes: saved activations that stay on the device.
        swapped_bytes: saved activations that come back by a copy.
        recomputed_bytes: saved activations that are rebuilt.
        planning_s: wall time of the planner, seconds.
        time_limited: whether the clock ended the search.
        proven_infeasible: no schedule at all fits the budget.
    """

    workload: str
    machine: str
    planner: str
    status: str
    budget_fraction: float
    throughput_retained: float | None
    bound_retained: float
    certified_gap: float | None = None
    layers: int | None = None
    batch: int | None = None
    sequence: int | None = None
    link_gb_per_s: float = 0.0
    attained_flops: float = 0.0
    budget_bytes: int = 0
    peak_bytes: int | None = None
    ideal_peak_bytes: int = 0
    ideal_step_s: float = 0.0
    step_s: float | None = None
    stall_s: float | None = None
    recompute_s: float | None = None
    kept_bytes: int | None = None
    swapped_bytes: int | None = None
    recomputed_bytes: int | None = None
    planning_s: float = 0.0
    time_limited: bool = False
    proven_infeasible: bool = False

    @property
    def proven(self) -> bool:
        """Whether the certified gap is within what was asked for."""
        return self.status == PROVEN


@dataclass(frozen=True)
class Limits:
    """The smallest budgets of a step, as fractions of the ideal peak.

    Attributes:
        workload: name of the step.
        machine: its name.
        proven_fraction: no schedule runs with less.
        found_fraction: the smallest for which a schedule is known; None if there is none.
        planner: whose schedule that is.
    """

    workload: str
    machine: str
    proven_fraction: float
    found_fraction: float | None
    planner: str | None


def points_of(rows: Iterable[Mapping[str, Any]]) -> list[Point]:
    """Rows of a comparison or a sweep as points.

    Args:
        rows: fields of `slackswap_opt.Row` or `slackswap_opt.study.SweepRow` by name, as
            `dataclasses.asdict` or the JSON documents give them; further fields are passed over.

    Returns:
        A point per row that has an answer; rows with the status "failed" are left out.
    """
    known = {field.name for field in fields(Point)}
    points = []
    for row in rows:
        if row["status"] == FAILED:
            continue
        values = {name: row[name] for name in known & row.keys() if row[name] is not None}
        bound_s = row["bound_step_s"]
        values["bound_retained"] = row["ideal_step_s"] / bound_s if bound_s else 1.0
        values.setdefault("throughput_retained", None)
        values["proven_infeasible"] = row.get("reason", "").startswith("proven:")
        points.append(Point(**values))
    return points


def of(points: Iterable[Point], planner: str) -> list[Point]:
    """The points of one planner."""
    return [point for point in points if point.planner == planner]


def planners_in(points: Iterable[Point]) -> list[str]:
    """Names of planners, in order of appearance."""
    return list(dict.fromkeys(point.planner for point in points))


def workloads_in(points: Iterable[Point]) -> list[str]:
    """Names of workloads, in order of appearance."""
    return list(dict.fromkeys(point.workload for point in points))


def at_workload(points: Iterable[Point], workload: str) -> list[Point]:
    """The points of one workload."""
    return [point for point in points if point.workload == workload]


def shape_of(points: Sequence[Point]) -> str:
    """Layers, batch and sequence length for a title; empty where the step is from a file."""
    some = points[0]
    if some.layers is None:
        return ""
    return f"{some.layers} layers, {some.batch} × {some.sequence} tokens"

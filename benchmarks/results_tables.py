"""What results say: tables for the terminal and the pages, and the sentences between them."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command import table_lines
from slackswap_opt.machine import Machine
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import Cell, Row, lower_limit

PROFILE = "graphs/pipedream_resnet50.txt"
"""A measured profile, in the folder that SLACKSWAP_DATA names."""
MEASURED = {Path(PROFILE).stem: "ResNet-50, measured"}
"""Profiles of real runs, by the name of their file, and what tables call them."""
BEST = "ilp"
COLUMNS = ("recompute-all", "sqrt-n", "swap-all", "capuchin", "greedy", "on-demand", BEST)
"""Planners in the README, where all would be too many."""
NONE = "-"
"""What a cell says where there is no plan."""
OTHERS = tuple(name for name in PLANNERS if name != BEST)
TIGHT = 20
"""Budgets up to this many percent are told with what limits the plan."""
PROVEN = 0.001
"""Certified gap up to which the bound is said to be reached."""


@dataclass(frozen=True)
class Result:
    """Every planner on one workload at one budget.

    Attributes:
        workload: name for tables.
        percent: budget in percent of the ideal peak.
        cell: problem, bound and each planner's judged result.
        rows: by planner, the figures.
    """

    workload: str
    percent: int
    cell: Cell
    rows: Mapping[str, Row]

    @property
    def reachable(self) -> float:
        """Ideal step / bound: what no schedule exceeds."""
        return self.cell.problem.ideal_step_ns / self.cell.bound.step_ns

    @property
    def where(self) -> str:
        """What sentences call it."""
        return f"{self.workload} at {self.percent} %"

    def retained(self, planner: str) -> float | None:
        """Ideal step / simulated step; None where the planner has no schedule that fits."""
        return self.rows[planner].throughput_retained

    def above(self, planners: Sequence[str]) -> float | None:
        """Points that the ILP retains more than the best of some planners; None without both."""
        others = [value for name in planners if (value := self.retained(name)) is not None]
        own = self.retained(BEST)
        return None if own is None or not others else 100 * (own - max(others))


def table(found: Sequence[Result]) -> str:
    """All results as text, a line per workload and budget."""
    head = f"{'workload':20}{'budget':>7}" + "".join(f"{name:>14}" for name in PLANNERS)
    lines = [head + f"{'bound':>8}{'ilp gap':>9}{'ilp s':>7}"]
    for result in found:
        best = result.rows[BEST]
        lines.append(
            f"{result.workload:20}{result.percent:5d} %"
            + "".join(f"{_percent(result.retained(name)):>14}" for name in PLANNERS)
            + f"{_percent(result.reachable):>8}{_percent(best.certified_gap):>9}"
            + f"{best.planning_s:7.1f}{' (stopped by time)' if best.time_limited else ''}"
        )
    return "\n".join(lines)


def shown_table(found: Sequence[Result]) -> str:
    """The README's table: one budget, some planners."""
    heads = ["workload", *map(_title, COLUMNS), "bound", "ilp gap"]
    rows = []
    for result in found:
        gap = _percent(result.rows[BEST].certified_gap)
        gap += "" if gap == NONE else " %"
        values = [_value(result, name) for name in COLUMNS]
        rows.append([result.workload, *values, _percent(result.reachable), gap])
    return "\n".join(table_lines(heads, rows))


def full_table(found: Sequence[Result]) -> str:
    """The table of docs/results.md: every budget and planner."""
    heads = ["step", "budget %", *map(_title, PLANNERS), "bound", "gap"]
    rows = []
    for result in found:
        best = result.rows[BEST]
        gap = _percent(best.certified_gap) + (" *" if best.time_limited else "")
        values = [_value(result, name) for name in PLANNERS]
        rows.append([result.workload, result.percent, *values, _percent(result.reachable), gap])
    return "\n".join(table_lines(heads, rows))


def origin(found: Sequence[Result], machine: Machine, seconds: float) -> str:
    """When, where and within what limits the results were computed."""
    solvers = dict.fromkeys(r.rows[BEST].solver for r in found if r.rows[BEST].solver)
    return (
        f"Computed on {datetime.now(UTC).date().isoformat()} for the machine `{machine.name}`; the "
        f"ILP with {' and '.join(map(str, solvers)) or 'no solver'} on {os.cpu_count()} cores, at "
        f"most {seconds:g} seconds a problem."
    )


def reading(found: Sequence[Result]) -> str:
    """What docs/results.md says of the table: every number there that is not in a row."""
    lines = [_advantage(f"above `{name}`", found, (name,)) for name in ("greedy", "on-demand")]
    lines.append(_advantage("above the best of all others", found, OTHERS))
    measured = [r for r in found if r.workload in MEASURED.values()]
    shipped = [r for r in found if r not in measured]
    lines += [
        f"* The certified gap is at most {_largest_gap(some)}, on the {what}."
        for some, what in ((shipped, "shipped workloads"), (measured, "measured profile"))
        if some
    ]
    alone = [r.where for r in found if r.retained(BEST) is not None and r.above(OTHERS) is None]
    lines.append(f"* Problems for which only the ILP has a plan: {', '.join(alone) or 'none'}.")
    ended = sum(result.rows[BEST].time_limited for result in found)
    lines.append(f"* The clock ended the search in {ended} of {len(found)} problems.")
    percents = list(dict.fromkeys(result.percent for result in found))
    lines += ["", "Points that *ilp* is above the best of the other planners:", ""]
    by_place = {(r.workload, r.percent): r.above(OTHERS) for r in found}
    rows = []
    for name in dict.fromkeys(result.workload for result in found):
        values = [by_place.get((name, percent)) for percent in percents]
        rows.append([name, *("-" if v is None else f"{v:.2f}" for v in values)])
    heads = ["step", *(f"{percent} %" for percent in percents)]
    return "\n".join([*lines, *table_lines(heads, rows)])


def limits(found: Sequence[Result]) -> str:
    """What keeps plans from more at tight budgets: the bound, or what is open beside it."""
    rows = [
        [result.workload, result.percent, _percent(result.rows[BEST].certified_gap), _limit(result)]
        for result in found
        if result.percent <= TIGHT
    ]
    return "\n".join(table_lines(("step", "budget %", "gap", "what limits it"), rows))


def _limit(result: Result) -> str:
    least, row = lower_limit(result.cell.problem.step), result.rows[BEST]
    if result.cell.problem.budget_bytes < least.budget_bytes:
        percent = 100 * least.budget_bytes / result.cell.problem.liveness.ideal_peak_bytes
        return f"nothing fits: {least.operation} alone needs {percent:.2f} % of the peak"
    if row.certified_gap is None:
        return "open: no plan was found, and none is proven impossible"
    cut = result.cell.bound.cut
    if cut < 0:
        return "nothing: all is hidden" if row.certified_gap <= PROVEN else "open: plan or bound"
    where = f"memory at {result.cell.problem.step.operations[cut].name}"
    if row.certified_gap <= PROVEN:
        return f"the bound, reached within {100 * PROVEN:g} %: {where}"
    return f"open: the plan or the bound, which is that of {where}"


def _advantage(what: str, found: Sequence[Result], planners: Sequence[str]) -> str:
    known = [(gain, r.where) for r in found if (gain := r.above(planners)) is not None]
    if not known:
        return f"* The ILP is never {what}: there is no plan to compare with."
    most, where = max(known, key=lambda pair: pair[0])
    return f"* The ILP is up to {most:.2f} points {what} ({where})."


def _largest_gap(found: Sequence[Result]) -> str:
    known = [(g, r.where) for r in found if (g := r.rows[BEST].certified_gap) is not None]
    if not known:
        return "unknown"
    most, where = max(known, key=lambda pair: pair[0])
    return f"{_percent(most)} % of the step ({where})"


def _title(planner: str) -> str:
    return f"**{planner}**" if planner == BEST else planner


def _value(result: Result, planner: str) -> str:
    value = _percent(result.retained(planner))
    return f"**{value}**" if planner == BEST and value != NONE else value


def _percent(value: float | None) -> str:
    return NONE if value is None else f"{100 * value:.2f}"

"""Planners side by side: one row per problem and planner, every figure simulated."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS, Planner
from slackswap_opt.study.account import account
from slackswap_opt.study.sweep import Cell, Report, Settings, silent, sweep

NS_PER_S = 10**9


@dataclass(frozen=True)
class Row:
    """One planner's answer to one problem; the fields are those of `slackswap.compare/1`.

    What a simulation would give is None where there is no schedule.

    Attributes:
        workload: name of the step.
        machine: its name.
        planner: its name.
        status: "optimal-within-gap", "feasible", "fallback" or "infeasible".
        budget_bytes: device memory for everything that is not static.
        budget_fraction: the same as a fraction of the ideal peak.
        peak_bytes: largest memory in use.
        ideal_peak_bytes: peak of the step without a limit.
        ideal_step_s: time of the step without a limit.
        step_s: simulated step time.
        throughput_retained: ideal step / simulated step.
        bound_step_s: no schedule is faster.
        certified_gap: (step - bound) / step.
        stall_s: time the compute stream waited.
        recompute_s: time of re-executions.
        kept_bytes: saved activations that stay on the device.
        swapped_bytes: saved activations that come back by a copy.
        recomputed_bytes: saved activations that are rebuilt.
        planning_s: wall time of the planner; the ILP's includes bound and heuristics.
        solver: name and version of the solver, if one was used.
        reason: how the result came about, or why there is none.
        bound_cut: operation at whose start the bound was found; None where it is the ideal step.
        time_limited: whether a wall-clock limit ended the search.
        swaps: whether tensors might be copied to the host.
    """

    workload: str
    machine: str
    planner: str
    status: str
    budget_bytes: int
    budget_fraction: float
    peak_bytes: int | None
    ideal_peak_bytes: int
    ideal_step_s: float
    step_s: float | None
    throughput_retained: float | None
    bound_step_s: float
    certified_gap: float | None
    stall_s: float | None
    recompute_s: float | None
    kept_bytes: int | None
    swapped_bytes: int | None
    recomputed_bytes: int | None
    planning_s: float
    solver: str | None
    reason: str = ""
    bound_cut: str | None = None
    time_limited: bool = False
    swaps: bool = True


def compare(
    problems: Iterable[Problem],
    planners: Mapping[str, Planner] = PLANNERS,
    settings: Settings | None = None,
    report: Report = silent,
) -> tuple[Row, ...]:
    """Solve problems with several planners.

    Problems that share step and machine are one sweep: no planner's step time grows with the
    budget among them.

    Args:
        problems: what to solve.
        planners: by the name that rows carry.
        settings: how to run them.
        report: told what is being worked on.

    Returns:
        For each problem in the order given, one row per planner in the order given.

    Raises:
        InvalidPlanError: if a planner returns a schedule that is not what it says.
        CertificateError: if a schedule beats the bound.
        SolverUnavailableError: if the solver cannot be started.
    """
    given = list(problems)
    cells: dict[int, Cell] = {}
    for group in _sharing(given):
        budgets = [given[position].budget_bytes for position in group]
        found = sweep(given[group[0]], budgets, planners, settings, report)
        cells.update(zip(group, found, strict=True))
    return tuple(row for position in range(len(given)) for row in rows_of(cells[position]))


def rows_of(cell: Cell) -> tuple[Row, ...]:
    """A row per planner, in the cell's order."""
    return tuple(_row(cell, planner) for planner in cell.judged)


def _sharing(problems: list[Problem]) -> list[list[int]]:
    """Positions of problems of the same step and machine."""
    groups: list[list[int]] = []
    for position, problem in enumerate(problems):
        for group in groups:
            first = problems[group[0]]
            same = first.machine == problem.machine and first.swaps == problem.swaps
            if first.step is problem.step and same:
                group.append(position)
                break
        else:
            groups.append([position])
    return groups


def _row(cell: Cell, planner: str) -> Row:
    problem, limit, judged = cell.problem, cell.bound, cell.judged[planner]
    step, result, verdict = problem.step, judged.result, judged.verdict
    peak, ideal = problem.liveness.ideal_peak_bytes, problem.ideal_step_ns
    step_ns = judged.step_ns
    sums = account(step, result.schedule) if result.schedule is not None else None
    return Row(
        workload=step.name,
        machine=problem.machine.name,
        planner=planner,
        status=cell.status(judged).value,
        budget_bytes=problem.budget_bytes,
        budget_fraction=problem.budget_bytes / peak if peak else 1.0,
        peak_bytes=None if verdict is None else verdict.peak_bytes,
        ideal_peak_bytes=peak,
        ideal_step_s=ideal / NS_PER_S,
        step_s=None if step_ns is None else step_ns / NS_PER_S,
        throughput_retained=None if step_ns is None else ratio(ideal, step_ns),
        bound_step_s=limit.step_ns / NS_PER_S,
        certified_gap=None if step_ns is None else gap(step_ns, limit.step_ns),
        stall_s=None if verdict is None else verdict.stall_ns / NS_PER_S,
        recompute_s=None if sums is None else sums.recompute_ns / NS_PER_S,
        kept_bytes=None if sums is None else sums.total.kept_bytes,
        swapped_bytes=None if sums is None else sums.total.swapped_bytes,
        recomputed_bytes=None if sums is None else sums.total.recomputed_bytes,
        planning_s=result.planning_s,
        solver=result.solver,
        reason=result.reason,
        bound_cut=step.operations[limit.cut].name if limit.cut >= 0 else None,
        time_limited=result.time_limited,
        swaps=cell.problem.swaps,
    )


def ratio(part: int, whole: int) -> float:
    """`part / whole`, 1 for a step that takes no time at all."""
    return part / whole if whole else 1.0


def gap(step_ns: int, bound_ns: int) -> float:
    """(step - bound) / step, 0 for a step that takes no time at all."""
    return (step_ns - bound_ns) / step_ns if step_ns else 0.0

"""`slackswap sweep`: one step under many budgets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from slackswap_opt.study import Row

PERCENTS = (100, 90, 80, 70, 60, 50, 40, 30, 20)


def sweep(
    target: options.Target,
    budget: options.Budgets = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    planners: options.Planners = None,
    gap: options.Gap = "0.1%",
    time_limit: options.TimeLimit = 60.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Compare planners over many budgets.

    Throughput retained by budget and planner; no planner gets slower with more memory. --json
    prints the document of `compare`.
    """
    from slackswap_opt.cli import show
    from slackswap_opt.cli.compare import document, solve

    budgets = budget or [f"{percent}%" for percent in PERCENTS]
    _, per_budget = solve(
        [target], budgets, machine, planners or [],
        (gap, time_limit, solver), (batch, sequence, layers),
    )  # fmt: skip
    if json:
        show.print_json(document(row for rows in per_budget for row in rows))
    else:
        _print(per_budget)
    return Exit.DONE


def _print(per_budget: Sequence[Sequence[Row]]) -> None:
    from slackswap_opt.cli import show

    some = per_budget[0][0]
    unit, scale = show.unit_of(some.ideal_peak_bytes)
    rows = []
    for row in per_budget:
        first = row[0]
        rows.append(
            [
                f"{first.budget_fraction * 100:.4g} %",
                show.in_unit(first.budget_bytes, scale),
                *(show.percent_down(r.throughput_retained) for r in row),
                "no plan fits"
                if all(r.reason.startswith("proven:") for r in row)
                else "<= " + show.percent_up(first.ideal_step_s / first.bound_step_s)
                if first.bound_step_s
                else "-",
            ]
        )
    show.print_table(
        f"{some.workload} on {some.machine}: throughput retained; the ideal peak is "
        f"{show.memory(some.ideal_peak_bytes)}",
        [
            show.Column("budget"),
            show.Column(unit, 2),
            *(show.Column(r.planner, 0 if r.planner in ("ilp", "greedy") else 1)
              for r in per_budget[0]),
            show.Column("best possible"),
        ],
        rows,
    )  # fmt: skip

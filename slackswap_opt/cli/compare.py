"""`slackswap compare`: planners side by side."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from slackswap_opt.plan import Problem
    from slackswap_opt.study import Row

PUBLISHED = ("bert-large", "gpt2-xl", "llama-7b")


def compare(
    targets: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[WORKLOAD|FILE]...",
            help=f"Shipped workloads, workload .toml files or step files. "
            f"(default: {' '.join(PUBLISHED)})",
            show_default=False,
        ),
    ] = None,
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
    """Compare planners side by side.

    Throughput retained, overhead, certified gap, memory and more: every figure is simulated. The
    first row is the bound, which no plan beats.
    """
    from slackswap_opt.cli import show

    problems, per_problem = solve(
        targets or PUBLISHED, budget or ["50%"], machine, planners or [],
        (gap, time_limit, solver), (batch, sequence, layers),
    )  # fmt: skip
    if json:
        show.print_json(document(row for rows in per_problem for row in rows))
    else:
        for number, rows in enumerate(per_problem):
            print_comparison(rows, first=number == 0)
    return exit_code(problems, per_problem)


def solve(
    targets: Sequence[str],
    budgets: Sequence[str],
    machine: str,
    planners: Sequence[str],
    settings: tuple[str, float, str],
    shape: tuple[int | None, int | None, int | None],
) -> tuple[list[Problem], list[Sequence[Row]]]:
    """Every problem that the user means, and its rows."""
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import compare as compare_problems

    how = inputs.settings_of(*settings)
    chosen = inputs.planners_of(planners)
    where = load_machine(machine)
    problems = []
    for target in targets:
        step = inputs.step_of(target, where, inputs.Overrides(*shape))
        whole = inputs.unlimited(step, where)
        problems += [inputs.with_budget(whole, text) for text in budgets]
    with show.progress() as report:
        rows = compare_problems(problems, chosen, how, report)
    return problems, [rows[n : n + len(chosen)] for n in range(0, len(rows), len(chosen))]


def document(rows: Iterable[Row]) -> dict[str, object]:
    """The JSON document `slackswap.compare/1`."""
    import dataclasses

    return {"schema": "slackswap.compare/1", "rows": [dataclasses.asdict(row) for row in rows]}


def print_comparison(rows: Sequence[Row], *, first: bool = True) -> None:
    """One problem's table: the bound on top, then a row per planner, then the reasons."""
    from slackswap_opt.cli import show

    some = rows[0]
    unit, scale = show.unit_of(some.ideal_peak_bytes)
    title = (
        f"{some.workload} on {some.machine}: {show.memory(some.budget_bytes)} of "
        f"{show.memory(some.ideal_peak_bytes)} ({some.budget_fraction * 100:.4g} % of the "
        f"ideal peak), ideal step {show.milliseconds(some.ideal_step_s)} ms"
    )
    columns = [
        show.Column("planner", left=True),
        show.Column("retained"),
        show.Column("overhead ms"),
        show.Column("gap"),
        show.Column(f"peak {unit}", 1),
        show.Column("stall ms", 4),
        show.Column("recompute ms", 4),
        show.Column(f"kept {unit}", 3),
        show.Column(f"swapped {unit}", 3),
        show.Column(f"recomputed {unit}", 3),
        show.Column("planning s", 2),
        show.Column("status", left=True),
    ]
    ideal, limit = some.ideal_step_s, some.bound_step_s
    nothing = all(row.reason.startswith("proven:") for row in rows)
    best = ["best possible", "<= " + show.percent_up(ideal / limit if limit else 1.0),
            ">= " + show.milliseconds(limit - ideal), *["-"] * 8, "bound"]  # fmt: skip
    if nothing:
        best[1:3] = ["-", "-"]
    table = [best]
    for row in rows:
        overhead = None if row.step_s is None else row.step_s - ideal
        table.append(
            [
                row.planner,
                show.percent_down(row.throughput_retained),
                show.milliseconds(overhead),
                show.percent_up(row.certified_gap),
                show.in_unit(row.peak_bytes, scale),
                show.milliseconds(row.stall_s),
                show.milliseconds(row.recompute_s),
                show.in_unit(row.kept_bytes, scale),
                show.in_unit(row.swapped_bytes, scale),
                show.in_unit(row.recomputed_bytes, scale),
                show.number(row.planning_s),
                row.status + (", time limit" if row.time_limited else ""),
            ]
        )
    if not first:
        show.print_lines("")
    show.print_table(title, columns, table)
    if nothing:
        show.print_lines(f"no plan fits: {rows[0].reason}")
        return
    show.print_lines(*(f"{row.planner}: {row.reason}" for row in rows if row.reason))


def exit_code(problems: Sequence[Problem], per_problem: Sequence[Sequence[Row]]) -> Exit:
    """From the ILP's rows or, where it was not asked, the best of the others."""
    from slackswap_opt.study import lower_limit

    code = Exit.DONE
    for problem, rows in zip(problems, per_problem, strict=True):
        deciding = [row for row in rows if row.planner == "ilp"] or rows
        if any(row.step_s is not None for row in deciding):
            continue
        if problem.budget_bytes < lower_limit(problem.step).budget_bytes:
            return Exit.NOTHING_FITS
        code = Exit.NOTHING_FOUND
    return code

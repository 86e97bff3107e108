"""`slackswap sweep`: one step under many budgets, or a whole grid."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from rich.console import Console

    from slackswap_opt.cli.compare import Solved
    from slackswap_opt.study import SweepResult, SweepRow, SweepSpec
    from slackswap_opt.study.grid import Progress

MOST_FAILURES = 10
"""Reasons of failures that are printed; all of them are in the output."""


def sweep(
    target: Annotated[
        str,
        typer.Argument(
            metavar="SPEC.toml|WORKLOAD|FILE",
            help="A specification of a grid, or one workload or step file.",
            show_default=False,
        ),
    ],
    budget: options.Budgets = None,
    device_memory: options.DeviceMemories = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    machine: Annotated[
        str | None,
        typer.Option(
            "--machine",
            "-m",
            metavar="NAME|TOML",
            help=f"Where the step runs. (default: {options.DEFAULT_MACHINE})",
            show_default=False,
        ),
    ] = None,
    planners: options.Planners = None,
    gap: Annotated[
        str | None,
        typer.Option("--gap", help="Certified gap at which the ILP stops. (default: 0.1%)"),
    ] = None,
    time_limit: Annotated[
        float | None,
        typer.Option(
            "--time-limit", metavar="SECONDS", help="For the ILP, per budget. (default: 60)"
        ),
    ] = None,
    solver: Annotated[
        str | None,
        typer.Option("--solver", metavar="cbc|highs", help="LP and ILP solver. (default: cbc)"),
    ] = None,
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    parts: options.Parts = None,
    parts_above: options.PartsAbove = None,
    no_swaps: options.NoSwaps = False,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output",
            "-o",
            help="Results: .csv, .json or .parquet. A journal beside it makes the sweep resumable.",
        ),
    ] = None,
    jobs: Annotated[
        int, typer.Option("--jobs", "-j", help="Processes on this machine.", min=1)
    ] = 1,
    cluster: Annotated[
        str | None,
        typer.Option(
            "--cluster",
            metavar="ADDRESS",
            help="A Dask scheduler to run on, like tcp://host:8786.",
            show_default=False,
        ),
    ] = None,
    retry_failed: Annotated[
        bool, typer.Option("--retry-failed", help="Try failures of an earlier run again.")
    ] = False,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Compare planners over many budgets, or over a grid.

    Throughput retained by budget and planner; no planner gets slower with more memory. A
    specification spans workloads, machines, budgets and more; with -o the results are written, and
    the same command after a kill goes on where it was.
    """
    from slackswap_opt.cli import show
    from slackswap_opt.cli.compare import document, solve
    from slackswap_opt.study.spec import DEFAULT_BUDGETS, is_spec

    given = {
        "budgets": budget, "device_memory": device_memory, "reserve": reserve,
        "static_memory": static_memory, "machines": machine and [machine],
        "planners": planners, "gap": gap, "time_limit": time_limit, "solver": solver,
        "batch": batch and [batch], "sequence": sequence and [sequence],
        "layers": layers and [layers], "parts": parts, "parts_above": parts_above,
        "swaps": False if no_swaps else None,
    }  # fmt: skip
    fields = {name: value for name, value in given.items() if value is not None}
    grid = is_spec(target)
    if grid or output is not None or cluster is not None or jobs > 1:
        return _run_grid(
            _specification(target, fields, grid=grid), output, jobs, cluster,
            retry_failed=retry_failed, force=force, json=json,
        )  # fmt: skip
    from slackswap_opt.cli import inputs

    in_parts = inputs.parts_of(parts, parts_above)
    memory = inputs.memory_of(
        budget or [], device_memory or [], reserve, static_memory, default=DEFAULT_BUDGETS
    )
    solved = solve(
        [target], memory, machine or options.DEFAULT_MACHINE, planners or [],
        (gap or "0.1%", 60.0 if time_limit is None else time_limit, solver or "cbc"),
        (batch, sequence, layers), in_parts, swaps=not no_swaps,
    )  # fmt: skip
    if json:
        show.print_json(document(solved))
    else:
        _print(solved)
    return Exit.DONE


def _print(solved: Sequence[Solved]) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.cli.device_memory import line

    some = solved[0].rows[0]
    unit, scale = show.unit_of(some.ideal_peak_bytes)
    rows = []
    for one in solved:
        first = one.rows[0]
        rows.append(
            [
                f"{first.budget_fraction * 100:.4g} %",
                show.in_unit(first.budget_bytes, scale),
                *(show.percent_down(r.throughput_retained) for r in one.rows),
                "no plan fits"
                if all(r.reason.startswith("proven:") for r in one.rows)
                else "<= " + show.percent_up(first.ideal_step_s / first.bound_step_s)
                if first.bound_step_s
                else "-",
            ]
        )
    show.print_table(
        f"{some.workload} on {some.machine}: throughput retained; the ideal peak is "
        f"{show.memory(some.ideal_peak_bytes)}{show.only(some.swaps)}",
        [
            show.Column("budget"),
            show.Column(unit, 2),
            *(show.Column(r.planner, 0 if r.planner in ("ilp", "greedy") else 1)
              for r in solved[0].rows),
            show.Column("best possible"),
        ],
        rows,
    )  # fmt: skip
    show.print_lines(*(f"device memory: {line(one.memory)}" for one in solved if one.memory))


# Grids


def _specification(target: str, fields: dict[str, Any], *, grid: bool) -> SweepSpec:
    from slackswap_opt.cli import inputs
    from slackswap_opt.errors import InputError
    from slackswap_opt.study import read_spec, spec_of

    if grid:
        if fields:
            raise InputError(
                f"{', '.join(fields)}: with a specification these are fields of the file, not "
                "options",
                where=target,
            )
        return read_spec(target)
    if "planners" in fields:
        fields = {**fields, "planners": list(inputs.planners_of(fields["planners"]))}
    inputs.parts_of(fields.get("parts"), fields.get("parts_above"))
    inputs.memory_of(
        fields.get("budgets", []),
        fields.get("device_memory", []),
        fields.get("reserve"),
        fields.get("static_memory"),
        default=[],
    )
    return spec_of({"workloads": [target], **fields})


def _run_grid(
    spec: SweepSpec,
    output: Path | None,
    jobs: int,
    cluster: str | None,
    *,
    retry_failed: bool,
    force: bool,
    json: bool,
) -> Exit:
    from slackswap_opt.cli import show
    from slackswap_opt.cli.plan import refuse_early
    from slackswap_opt.study import chains_of, pool_of, run_sweep, write_rows
    from slackswap_opt.study.results import document, kind_of

    journal = None
    if output is not None:
        refuse_early(output, force=force)
        kind_of(output)
        journal = output.with_name(output.name + ".journal")
    chains = chains_of(spec)
    try:
        with pool_of(jobs, cluster) as pool, bar() as progress:
            result = run_sweep(chains, pool, journal, progress, retry_failed=retry_failed)
    except KeyboardInterrupt:
        if journal is not None:
            typer.echo(f"interrupted; the same command goes on from {journal}", err=True)
        raise
    if output is not None:
        write_rows(output, result.rows, force=force)
    if json:
        show.print_json(document(result.rows))
    else:
        _print_grid(result, output)
    return Exit.NOTHING_FOUND if len(result.failed) == len(result.rows) else Exit.DONE


@contextmanager
def bar(console: Console | None = None) -> Iterator[Progress]:
    """A progress bar with an estimate of the time left, on stderr if that is a terminal."""
    from rich.console import Console as RichConsole
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    from slackswap_opt.cli.streams import plain

    to = console or RichConsole(stderr=True, highlight=False, markup=False, emoji=False)
    if not to.is_terminal or to.is_dumb_terminal:
        yield lambda *_: None
        return
    columns = (
        MofNCompleteColumn(), TextColumn("rows"), BarColumn(), TimeElapsedColumn(),
        TextColumn("left about"), TimeRemainingColumn(),
        TextColumn("{task.description}", markup=False),
    )  # fmt: skip
    with Progress(*columns, console=to, transient=True) as progress:
        task = progress.add_task("", total=None)
        known: list[int] = []

        def told(done: int, total: int, what: str) -> None:
            if not known:
                known.append(done)  # what a journal held says nothing of the speed
            progress.update(
                task, completed=done - known[0], total=total - known[0], description=plain(what)
            )

        yield told


def _print_grid(result: SweepResult, output: Path | None) -> None:
    from slackswap_opt.cli import show

    planners = list(dict.fromkeys(row.planner for row in result.rows))
    by_place: dict[tuple[Any, ...], list[SweepRow]] = {}
    for row in result.rows:
        place = (
            row.workload, row.machine, row.batch, row.sequence, row.layers,
            row.link_gb_per_s, row.attained_flops, row.budget,
        )  # fmt: skip
        by_place.setdefault(place, []).append(row)
    heads = (
        "workload", "machine", "batch", "sequence", "layers", "link GB/s", "attained", "budget",
    )  # fmt: skip
    varying = [
        n for n in range(len(heads)) if n in (0, 7) or len({place[n] for place in by_place}) > 1
    ]
    show.print_table(
        f"Throughput retained{show.only(result.rows[0].swaps)}",
        [
            *(show.Column(heads[n], left=n < 2) for n in varying),
            *(show.Column(p, 0 if p in ("ilp", "greedy") else 1) for p in planners),
            show.Column("best possible"),
        ],
        [
            [
                *(_text(place[n]) for n in varying),
                *(
                    row.status if row.status == "failed" else
                    show.percent_down(row.throughput_retained)
                    for row in rows
                ),
                _best_possible(rows),
            ]
            for place, rows in by_place.items()
        ],
    )  # fmt: skip
    failed = result.failed
    show.print_lines(
        f"{show.count(len(result.rows), 'row')}: {result.computed} computed, {result.reused} taken "
        f"from the journal, {len(failed)} failed"
        + (f"; written to {output}" if output is not None else "")
    )
    reasons = list(dict.fromkeys(f"{row.workload}, {row.planner}: {row.reason}" for row in failed))
    show.print_lines(*(f"failed: {reason}" for reason in reasons[:MOST_FAILURES]))
    if len(reasons) > MOST_FAILURES:
        show.print_lines(f"and {len(reasons) - MOST_FAILURES} more failures")


def _text(value: object) -> str:
    if value is None:
        return "-"
    return f"{value:g}" if isinstance(value, float) else str(value)


def _best_possible(rows: Sequence[SweepRow]) -> str:
    from slackswap_opt.cli import show

    if all(row.reason.startswith("proven:") for row in rows):
        return "no plan fits"
    known = next((row for row in rows if row.bound_step_s and row.ideal_step_s), None)
    if known is None or known.bound_step_s is None or known.ideal_step_s is None:
        return "-"
    return "<= " + show.percent_up(known.ideal_step_s / known.bound_step_s)

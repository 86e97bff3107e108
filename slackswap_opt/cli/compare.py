"""`slackswap compare`: planners side by side."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit, complain

if TYPE_CHECKING:
    from collections.abc import Sequence

    from slackswap_opt.cli.inputs import Memory
    from slackswap_opt.plan import Problem
    from slackswap_opt.step import Parts
    from slackswap_opt.study import DeviceMemory, Row

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
    device_memory: options.DeviceMemories = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    planners: options.Planners = None,
    gap: options.Gap = "0.1%",
    time_limit: options.TimeLimit = 60.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    parts: options.Parts = None,
    parts_above: options.PartsAbove = None,
    no_swaps: options.NoSwaps = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Compare planners side by side.

    Throughput retained, overhead, certified gap, memory and more: every figure is simulated. The
    first row is the bound, which no plan beats.
    """
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.errors import SolverUnavailableError
    from slackswap_opt.planners import HEURISTICS

    memory = inputs.memory_of(
        budget or [], device_memory or [], reserve, static_memory, default=["50%"]
    )
    in_parts = inputs.parts_of(parts, parts_above)

    def run(chosen: list[str]) -> list[Solved]:
        return solve(
            targets or PUBLISHED, memory, machine, chosen, (gap, time_limit, solver),
            (batch, sequence, layers), in_parts, swaps=not no_swaps,
        )  # fmt: skip

    missing = ""
    try:
        solved = run(planners or [])
    except SolverUnavailableError as error:
        asked = inputs.planners_of(planners or [])
        others = [name for name, planner in asked.items() if planner in HEURISTICS.values()]
        if not others:
            raise
        left = ", ".join(name for name in asked if name not in others)
        missing = f"no solver: {error}\nwithout: {left}; the bound is the ideal step"
        solved = run([",".join(others)])
    if json:
        show.print_json(document(solved))
    else:
        for number, one in enumerate(solved):
            print_comparison(one, first=number == 0)
    if missing:
        complain(missing)
        return Exit.NO_SOLVER
    return exit_code(solved)


@dataclass(frozen=True)
class Solved:
    """A problem, what its budget was derived from, and a row per planner."""

    problem: Problem
    memory: DeviceMemory | None
    rows: Sequence[Row]


def solve(
    targets: Sequence[str],
    memory: Memory,
    machine: str,
    planners: Sequence[str],
    settings: tuple[str, float, str],
    shape: tuple[int | None, int | None, int | None],
    parts: Parts | None = None,
    *,
    swaps: bool = True,
) -> list[Solved]:
    """Every problem that the user means, and its rows."""
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import compare as compare_problems

    how = inputs.settings_of(*settings)
    chosen = inputs.planners_of(planners)
    where = load_machine(machine)
    problems: list[tuple[Problem, DeviceMemory | None]] = []
    for target in targets:
        source = inputs.source_of(target, inputs.Overrides(*shape))
        problems += memory.problems(source, where, parts, swaps=swaps)
    with show.progress() as report:
        rows = compare_problems([problem for problem, _ in problems], chosen, how, report)
    count = len(chosen)
    return [
        Solved(problem, divided, rows[n * count : (n + 1) * count])
        for n, (problem, divided) in enumerate(problems)
    ]


def document(solved: Sequence[Solved]) -> dict[str, object]:
    """The JSON document `slackswap.compare/1`."""
    import dataclasses

    from slackswap_opt.cli.device_memory import entry

    rows = [dataclasses.asdict(row) for one in solved for row in one.rows]
    divided = [
        {"workload": one.rows[0].workload, **entry(one.memory)} for one in solved if one.memory
    ]
    extra = {"device_memory": divided} if divided else {}
    return {"schema": "slackswap.compare/1", "rows": rows, **extra}


def print_comparison(solved: Solved, *, first: bool = True) -> None:
    """One problem's table: the bound on top, then a row per planner, then the reasons."""
    from slackswap_opt.cli import show
    from slackswap_opt.cli.device_memory import line

    rows = solved.rows
    some = rows[0]
    unit, scale = show.unit_of(some.ideal_peak_bytes)
    title = (
        f"{some.workload} on {some.machine}: {show.memory(some.budget_bytes)} of "
        f"{show.memory(some.ideal_peak_bytes)} ({some.budget_fraction * 100:.4g} % of the "
        f"ideal peak), ideal step {show.milliseconds(some.ideal_step_s)} ms{show.only(some.swaps)}"
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
    if solved.memory is not None:
        show.print_lines(f"device memory: {line(solved.memory)}")
    if nothing:
        show.print_lines(f"no plan fits: {rows[0].reason}")
        return
    show.print_lines(*(f"{row.planner}: {row.reason}" for row in rows if row.reason))


def exit_code(solved: Sequence[Solved]) -> Exit:
    """From the ILP's rows or, where it was not asked, the best of the others."""
    from slackswap_opt.study import lower_limit

    code = Exit.DONE
    for one in solved:
        problem = one.problem
        deciding = [row for row in one.rows if row.planner == "ilp"] or one.rows
        if any(row.step_s is not None for row in deciding):
            continue
        if problem.budget_bytes < lower_limit(problem.step).budget_bytes:
            return Exit.NOTHING_FITS
        code = Exit.NOTHING_FOUND
    return code

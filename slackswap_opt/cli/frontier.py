"""`slackswap frontier`: the smallest memory for a given slowdown."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from slackswap_opt.study import Frontier

SLOWDOWNS = ("0%", "1%", "2%", "5%", "10%", "20%")


def frontier(
    target: options.Target,
    slowdown: Annotated[
        list[str] | None,
        typer.Option(
            "--slowdown",
            "-s",
            help="How much longer than the ideal step it may take; may be given again. "
            f"(default: {' '.join(SLOWDOWNS)})",
            show_default=False,
        ),
    ] = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    planner: options.PlannerName = "ilp",
    resolution: Annotated[
        str, typer.Option("--resolution", help="Share of the ideal peak at which it stops.")
    ] = "1%",
    time_limit: Annotated[
        float, typer.Option("--time-limit", metavar="SECONDS", help="For the ILP, per budget.")
    ] = 15.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    no_swaps: options.NoSwaps = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Find the smallest memory for a slowdown.

    For each slowdown the smallest budget for which a schedule was found, and beside it the budget
    below which none exists: proven.
    """
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.errors import InputError
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import frontier as search

    settings = inputs.settings_of("0", time_limit, solver)
    name = inputs.planner_of(planner)
    slowdowns = [
        inputs.share_of("--slowdown", text, most=None) for text in slowdown or SLOWDOWNS
    ]  # fmt: skip
    finest = inputs.share_of("--resolution", resolution)
    if finest == 0:
        raise InputError("--resolution is 0; give a share above 0, like 1%")
    where = load_machine(machine)
    step = inputs.step_of(target, where, inputs.Overrides(batch, sequence, layers))
    whole = inputs.unlimited(step, where, swaps=not no_swaps)
    with show.progress() as report:
        found = search(whole, slowdowns, name, settings, report, finest)
    if json:
        show.print_json(_document(found, name))
    else:
        _print(found, name)
    return Exit.DONE


def _document(found: Frontier, planner: str) -> dict[str, object]:
    from slackswap_opt.study.compare import NS_PER_S, ratio

    problem, peak = found.problem, found.problem.budget_bytes
    ideal = problem.ideal_step_ns
    return {
        "schema": "slackswap.frontier/1",
        "workload": problem.step.name,
        "machine": problem.machine.name,
        "planner": planner,
        "swaps": problem.swaps,
        "ideal_peak_bytes": problem.liveness.ideal_peak_bytes,
        "ideal_step_s": ideal / NS_PER_S,
        "least_bytes": found.least.budget_bytes,
        "least_operation": found.least.operation,
        "points": [
            {
                "slowdown": float(point.slowdown),
                "budget_bytes": point.budget_bytes,
                "budget_fraction": ratio(point.budget_bytes, peak),
                "limit_bytes": point.limit_bytes,
                "limit_fraction": ratio(point.limit_bytes, peak),
                "limit_operation": point.limit_cut,
                "step_s": (point.judged.step_ns or 0) / NS_PER_S,
                "throughput_retained": ratio(ideal, point.judged.step_ns or 0),
                "planner": point.planner,
            }
            for point in found.points
        ],
    }


def _print(found: Frontier, planner: str) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.study.compare import NS_PER_S, ratio

    problem, peak = found.problem, found.problem.budget_bytes
    unit, scale = show.unit_of(peak)
    ideal = problem.ideal_step_ns
    show.print_table(
        f"{problem.step.name} on {problem.machine.name}, by {planner}: the smallest memory found, "
        f"of an ideal peak of {show.memory(peak)}{show.only(problem.swaps)}",
        [
            show.Column("slowdown"),
            show.Column(unit),
            show.Column("of the peak"),
            show.Column(f"proven: not below {unit}"),
            show.Column("step ms", 1),
            show.Column("retained", 1),
            show.Column("schedule of", 1, left=True),
            show.Column("proof at", 2, left=True),
        ],
        [
            [
                f"{float(point.slowdown) * 100:.4g} %",
                show.in_unit(point.budget_bytes, scale),
                show.percent_up(ratio(point.budget_bytes, peak)),
                show.in_unit(point.limit_bytes, scale),
                show.milliseconds((point.judged.step_ns or 0) / NS_PER_S),
                show.percent_down(ratio(ideal, point.judged.step_ns or 0)),
                point.planner,
                point.limit_cut,
            ]
            for point in found.points
        ],
    )
    show.print_lines(
        f"however slow, nothing runs with less than {show.memory(found.least.budget_bytes)}, which "
        f"{found.least.operation} needs at once"
    )

"""`slackswap machines`: one workload on many machines."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from slackswap_opt.cli.compare import Solved
    from slackswap_opt.cli.inputs import Source
    from slackswap_opt.machine import Machine


def machines(
    target: options.Target,
    machine: Annotated[
        list[str] | None,
        typer.Option(
            "--machine",
            "-m",
            metavar="NAME|TOML",
            help="A machine; may be given again. (default: all in the catalogue)",
            show_default=False,
        ),
    ] = None,
    budget: Annotated[
        str | None,
        typer.Option(
            "--budget",
            "-b",
            help="Activation memory: 50%, 0.5, 20GiB, 20GB or bytes. (default: what each "
            "machine's memory leaves)",
            show_default=False,
        ),
    ] = None,
    device_memory: options.DeviceMemory = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    planner: options.PlannerName = "ilp",
    gap: options.Gap = "0.1%",
    time_limit: options.TimeLimit = 60.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Compare machines in one table.

    Each with the budget that its memory leaves, or with the same budget: how fast the step is, and
    what is lost to memory. A step from a file takes the durations in the file on every machine.
    """
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.cli.compare import solve
    from slackswap_opt.machine import load_machine, machine_names

    name = inputs.planner_of(planner)
    devices = [] if budget else [device_memory or "100%"]
    if budget and device_memory:
        devices = [device_memory]  # for the message that both are given
    memory = inputs.memory_of(
        [budget] if budget else [], devices, reserve, static_memory, default=[]
    )
    names = list(dict.fromkeys(machine or machine_names()))
    shape = (batch, sequence, layers)
    source = inputs.source_of(target, inputs.Overrides(*shape))
    found = [
        (
            load_machine(one),
            solve([target], memory, one, [name], (gap, time_limit, solver), shape)[0],
        )
        for one in names
    ]
    if json:
        show.print_json(_document(found))
    else:
        _print(found, source)
    rows = [solved.rows[0] for _, solved in found]
    if any(row.step_s is not None for row in rows):
        return Exit.DONE
    proven = all(row.reason.startswith("proven:") for row in rows)
    return Exit.NOTHING_FITS if proven else Exit.NOTHING_FOUND


def _document(found: list[tuple[Machine, Solved]]) -> dict[str, object]:
    import dataclasses

    from slackswap_opt.cli.device_memory import entry

    return {
        "schema": "slackswap.machines/1",
        "rows": [
            {
                **dataclasses.asdict(solved.rows[0]),
                "machine_memory_bytes": machine.device.memory_bytes,
                "d2h_bytes_per_s": machine.link.d2h_bytes_per_s,
                "h2d_bytes_per_s": machine.link.h2d_bytes_per_s,
                "device_memory": None if solved.memory is None else entry(solved.memory),
            }
            for machine, solved in found
        ],
    }


def _print(found: list[tuple[Machine, Solved]], source: Source) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.workloads import Workload

    some = found[0][1].rows[0]
    sequences = source.training.batch if isinstance(source, Workload) else None
    rows = []
    for machine, solved in found:
        (row,) = solved.rows
        speed = None if not row.step_s or sequences is None else sequences / row.step_s
        proven = row.reason.startswith("proven:")
        rows.append(
            [
                machine.name,
                show.in_unit(machine.device.memory_bytes, 2**30),
                f"{machine.link.d2h_bytes_per_s / 1e9:g}",
                show.in_unit(row.budget_bytes, 2**30),
                show.milliseconds(row.ideal_step_s),
                show.milliseconds(row.step_s),
                "-" if speed is None else show.number(speed),
                show.percent_down(row.throughput_retained),
                "no plan fits"
                if proven
                else "<= " + show.percent_up(row.ideal_step_s / (row.bound_step_s or 1)),
                show.percent_up(row.certified_gap),
                "does not fit" if proven else row.status,
            ]
        )
    show.print_table(
        f"{some.workload}, by {some.planner}; its ideal peak is "
        f"{show.memory(some.ideal_peak_bytes)}"
        + ("" if sequences is None else f" for {show.count(sequences, 'sequence')}"),
        [
            show.Column("machine", left=True),
            show.Column("memory GiB", 2),
            show.Column("link GB/s", 2),
            show.Column("budget GiB"),
            show.Column("ideal ms", 1),
            show.Column("step ms"),
            show.Column("sequences/s"),
            show.Column("retained"),
            show.Column("best possible", 1),
            show.Column("gap", 1),
            show.Column("status", left=True),
        ],
        rows,
    )
    static = found[0][1].memory
    if static is not None:
        show.print_lines(
            f"static memory on each: {show.memory(static.static.total_bytes)} "
            f"({static.static.source})"
        )

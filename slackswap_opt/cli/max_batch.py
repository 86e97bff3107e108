"""`slackswap max-batch`: the largest batch that a device trains fast enough."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit, complain

if TYPE_CHECKING:
    from slackswap_opt.study import MaxBatch
    from slackswap_opt.study.max_batch import Trial
    from slackswap_opt.workloads import Workload

_WORDS = {
    "met": "found",
    "too-little-memory": "impossible: too little memory",
    "too-slow": "impossible: every schedule is slower",
    "missed": "none found",
}


def max_batch(
    target: Annotated[
        str,
        typer.Argument(
            metavar="WORKLOAD", help="A shipped workload or a workload's .toml.", show_default=False
        ),
    ],
    min_throughput: Annotated[
        str,
        typer.Option(
            "--min-throughput", "-t", help="Share of the ideal throughput of the same batch."
        ),
    ] = "95%",
    device_memory: options.DeviceMemory = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    planner: options.PlannerName = "ilp",
    gap: options.Gap = "0.1%",
    time_limit: options.TimeLimit = 60.0,
    solver: options.Solver = "cbc",
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    output: options.Output = None,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Find the largest batch that trains fast enough.

    Static memory and a reserve are taken from the device's memory; the rest is the budget. With
    -o, writes the plan file of the largest batch.
    """
    from slackswap_opt import __version__
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.cli.plan import refuse_early
    from slackswap_opt.errors import InputError
    from slackswap_opt.machine import load_machine
    from slackswap_opt.plan.files import dumps, write_plan
    from slackswap_opt.study import max_batch as search
    from slackswap_opt.study import plan_file
    from slackswap_opt.workloads import Workload

    settings = inputs.settings_of(gap, time_limit, solver)
    share = inputs.share_of("--min-throughput", min_throughput)
    if share == 0:
        raise InputError("--min-throughput is 0; give a share above 0, like 95%")
    name = inputs.planner_of(planner)
    memory = inputs.memory_of([], [device_memory or "100%"], reserve, static_memory, default=[])
    where = load_machine(machine)
    to_stdout = output is not None and str(output) == "-"
    if output is not None and not to_stdout:
        refuse_early(output, force=force)
    source = inputs.source_of(target, inputs.Overrides(sequence=sequence, layers=layers))
    if not isinstance(source, Workload):
        raise InputError(
            "a step has one fixed batch; give a workload (see `slackswap models`)", where=target
        )
    with show.progress() as report:
        found = search(
            source, where,
            lambda step, changed: memory.divided(changed, step, where, memory.texts[0]),
            share, name, settings, report,
        )  # fmt: skip
    plan = None
    if output is not None and found.cell is not None:
        plan = plan_file(found.cell, name, f"slackswap-opt {__version__}")
    if to_stdout:
        if plan is not None:
            show.print_text(dumps(plan))
    else:
        if output is not None and plan is not None:
            write_plan(plan, output, force=force)
        if json:
            show.print_json(_document(found, source))
        else:
            _print(found, source)
            if plan is not None:
                show.print_lines(f"plan written to {output}")
    if found.batch is not None:
        return Exit.DONE
    if found.first_impossible == 1:
        complain("not even one sequence fits the device; this is proven")
        return Exit.NOTHING_FITS
    complain(f"no batch was found that retains {float(share):.4g} of the ideal throughput")
    return Exit.NOTHING_FOUND


def _document(found: MaxBatch, workload: Workload) -> dict[str, object]:
    import dataclasses

    from slackswap_opt.cli.device_memory import entry
    from slackswap_opt.study import rows_of

    row = None if found.cell is None else rows_of(found.cell)[0]
    best = next((t for t in found.trials if t.batch == found.batch), None)
    speed = (
        None if row is None or not row.step_s or found.batch is None else found.batch / row.step_s
    )
    return {
        "schema": "slackswap.max-batch/1",
        "workload": found.workload,
        "machine": found.machine,
        "planner": found.planner,
        "min_throughput": float(found.min_throughput),
        "batch": found.batch,
        "unplanned_batch": found.unplanned,
        "first_impossible_batch": found.first_impossible,
        "sequences_per_s": speed,
        "tokens_per_s": None if speed is None else speed * workload.training.sequence,
        "device_memory": None if best is None else entry(best.memory),
        "plan": None if row is None else dataclasses.asdict(row),
        "tried": [
            {
                "batch": trial.batch,
                "outcome": trial.outcome.value,
                "budget_bytes": trial.memory.budget_bytes,
                "ideal_peak_bytes": trial.ideal_peak_bytes,
                "throughput_retained": trial.retained,
                "best_throughput_retained": trial.best_possible,
            }
            for trial in found.trials
        ],
    }


def _print(found: MaxBatch, workload: Workload) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.cli.device_memory import line
    from slackswap_opt.study import rows_of

    impossible = found.first_impossible
    facts = {
        "question": f"{found.workload} on {found.machine}, by {found.planner}, at least "
        f"{show.percent_down(float(found.min_throughput))} of the ideal throughput of the same "
        "batch",
        "largest batch": "none found" if found.batch is None else str(found.batch),
        "without a plan": f"{found.unplanned}, keeping everything",
        "proven": "nothing"
        if impossible is None
        else f"no batch of {impossible} or more fits, however it is planned",
    }
    if found.cell is not None and found.memory is not None and found.batch is not None:
        (row,) = rows_of(found.cell)
        step_s = row.step_s or 0.0
        speed = found.batch / step_s if step_s else 0.0
        facts |= {
            "throughput": f"{show.percent_down(row.throughput_retained)} retained: "
            f"{show.number(speed)} sequences/s, "
            f"{show.number(speed * workload.training.sequence)} tokens/s",
            "certified gap": f"{show.percent_up(row.certified_gap)} ({row.status})",
            "peak": f"{show.memory(row.peak_bytes or 0)} of a budget of "
            f"{show.memory(row.budget_bytes)}; {show.memory(row.ideal_peak_bytes)} without a plan",
            "device memory": line(found.memory),
        }
    show.print_facts(facts)
    show.print_lines("")
    show.print_table(
        "Batches tried; of others nothing is known but what is proven above",
        [
            show.Column("batch"),
            show.Column("budget GiB"),
            show.Column("ideal peak GiB"),
            show.Column("retained"),
            show.Column("best possible"),
            show.Column("answer", left=True),
        ],
        [_trial(trial) for trial in found.trials],
    )


def _trial(trial: Trial) -> list[str]:
    from slackswap_opt.cli import show

    best = trial.best_possible
    return [
        str(trial.batch),
        show.in_unit(trial.memory.budget_bytes, 2**30),
        show.in_unit(trial.ideal_peak_bytes, 2**30),
        show.percent_down(trial.retained),
        "-" if best is None else "<= " + show.percent_up(best),
        _WORDS[trial.outcome.value],
    ]

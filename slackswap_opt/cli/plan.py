"""`slackswap plan`: make a plan and write it to a file."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackswap_opt.cli import options, scenarios
from slackswap_opt.cli.guard import Exit, complain

if TYPE_CHECKING:
    from pathlib import Path

    from slackswap_opt.study import Cell, DeviceMemory, Row, Smallest
    from slackswap_opt.study.account import Account


def plan(
    target: options.Target,
    budget: options.Budget = None,
    device_memory: options.DeviceMemory = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    planner: options.PlannerName = "ilp",
    gap: options.Gap = "0.1%",
    time_limit: options.TimeLimit = 60.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    parts: options.Parts = None,
    parts_above: options.PartsAbove = None,
    no_swaps: options.NoSwaps = False,
    allocator: options.Allocator = None,
    confidence: scenarios.Confidence = None,
    jitter: scenarios.Jitter = None,
    link_jitter: scenarios.LinkJitter = None,
    trials: scenarios.Trials = 1000,
    seed: scenarios.Seed = 0,
    output: options.Output = None,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Plan one step under a budget.

    With -o, writes a self-contained plan file. Where no plan is found, says the smallest budget
    for which one is, and what is proven. With --allocator, what PyTorch's allocator reserves for
    the plan stays within the budget, fragmentation included. With --confidence it is made for less
    than the budget, so that it fits under noise as well.
    """
    from slackswap_opt import __version__
    from slackswap_opt.cli import inputs, reserved, show
    from slackswap_opt.machine import load_machine
    from slackswap_opt.plan import files
    from slackswap_opt.study import account, plan_file, rows_of, smallest_budget, sweep
    from slackswap_opt.study.reserved import fit_reserved

    kind = None if allocator is None else reserved.kind_of(allocator)
    asked = scenarios.confidence_of(
        confidence, jitter, link_jitter, trials, seed, taken=kind is not None
    )
    settings = inputs.settings_of(gap, time_limit, solver)
    memory = inputs.memory_one(budget, device_memory, reserve, static_memory)
    name = inputs.planner_of(planner)
    chosen = inputs.planners_of([planner])
    in_parts = inputs.parts_of(parts, parts_above)
    where = load_machine(machine)
    to_stdout = output is not None and str(output) == "-"
    if output is not None and not to_stdout:
        refuse_early(output, force=force)
    source = inputs.source_of(target, inputs.Overrides(batch, sequence, layers))
    ((problem, divided),) = memory.problems(source, where, in_parts, swaps=not no_swaps)
    step = problem.step
    with show.progress() as report:
        fitted = margin = None
        if asked is not None:
            found = scenarios.plan_with_margin(problem, name, chosen[name], settings, asked, report)
            if found is None:
                complain(scenarios.no_margin(problem, asked))
                return Exit.NOTHING_FOUND
            cell, margin = found
        elif kind is None:
            (cell,) = sweep(problem, [problem.budget_bytes], chosen, settings, report)
        else:
            fitted = fit_reserved(problem, chosen, kind, settings, report)
            cell = fitted.cell
        judged, (row,) = cell.judged[name], rows_of(cell)
        if fitted is not None and fitted.none_stays_within:
            complain(row.reason)
            return Exit.NOTHING_FOUND
        smallest = None if judged.verdict else smallest_budget(problem, report)
    if smallest is not None:
        if json and not to_stdout:
            show.print_json({**_document(row, divided), "smallest": _smallest_entry(smallest)})
        complain(_why_none(cell, row, smallest, divided))
        return Exit.NOTHING_FITS if cell.proven_infeasible else Exit.NOTHING_FOUND
    assert judged.result.schedule is not None
    text = files.dumps(plan_file(cell, name, f"slackswap-opt {__version__}"))
    if to_stdout:
        show.print_text(text)
        return Exit.DONE
    if output is not None:
        from slackswap_opt.formats import write_text

        write_text(output, text, force=force)
    if json:
        extra = reserved.entry_of(fitted) if fitted is not None else {}
        if margin is not None:
            extra |= scenarios.margin_entry(margin)
        show.print_json({**_document(row, divided), **extra})
    else:
        _print_summary(row, account(step, judged.result.schedule), cell, divided)
        if fitted is not None:
            show.print_lines("", reserved.line_of(fitted))
        if margin is not None:
            scenarios.print_margin(margin)
        if output is not None:
            show.print_lines(f"written to {output}")
    return Exit.DONE


def refuse_early(output: Path, *, force: bool) -> None:
    """Before a minute of planning, not after it."""
    from slackswap_opt.errors import InputError

    if output.is_dir():
        raise InputError("this is a folder; name a file in it", where=str(output))
    if output.is_file() and not force:
        raise InputError("the file exists; overwrite it with --force", where=str(output))
    if not output.parent.is_dir():
        raise InputError(
            f"the folder {str(output.parent)!r} does not exist; create it", where=str(output)
        )


def _document(row: Row, divided: DeviceMemory | None) -> dict[str, object]:
    import dataclasses

    from slackswap_opt.cli.device_memory import entry

    extra = {"device_memory": entry(divided)} if divided else {}
    return {"schema": "slackswap.plan-summary/1", **dataclasses.asdict(row), **extra}


def _smallest_entry(smallest: Smallest) -> dict[str, object]:
    return {
        "budget_bytes": smallest.budget_bytes,
        "planner": smallest.planner,
        "limit_bytes": smallest.limit.budget_bytes,
        "limit_operation": smallest.limit.operation,
    }


def _why_none(cell: Cell, row: Row, smallest: Smallest, divided: DeviceMemory | None) -> str:
    from slackswap_opt.cli import show
    from slackswap_opt.cli.device_memory import line

    problem, limit = cell.problem, smallest.limit
    peak = problem.liveness.ideal_peak_bytes

    def share(size: int) -> str:
        return f"{size} bytes ({show.memory(size)}, {size / peak:.2%} of the ideal peak)"

    lines = [
        f"no plan fits a budget of {share(problem.budget_bytes)}; this is proven"
        if cell.proven_infeasible
        else f"{row.planner} found no plan for a budget of {share(problem.budget_bytes)}; "
        "none found, which does not prove that there is none"
    ]
    if divided is not None:
        lines.append(f"device memory: {line(divided)}")
    if row.reason and not cell.proven_infeasible:
        lines.append(f"why: {row.reason}")
    lines.append(
        "smallest budget found feasible: "
        + (
            f"{share(smallest.budget_bytes)}, by {smallest.planner}"
            if smallest.budget_bytes is not None
            else "none"
        )
    )
    lines.append(
        f"proven: nothing runs with less than {share(limit.budget_bytes)}, "
        f"which operation {limit.operation!r} needs at once"
    )
    return "\n".join(lines)


def _print_summary(row: Row, sums: Account, cell: Cell, divided: DeviceMemory | None) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.cli.device_memory import line

    ideal = row.ideal_step_s
    step_s = row.step_s or 0.0
    show.print_facts(
        {
            "plan": f"{row.workload} on {row.machine}, by {row.planner} ({row.status})",
            "budget": f"{show.memory(row.budget_bytes)}, "
            f"{round(row.budget_fraction * 100, 2):.9g} % of the ideal peak of "
            f"{show.memory(row.ideal_peak_bytes)}{show.only(row.swaps)}",
            "throughput": f"{show.percent_down(row.throughput_retained)} retained: "
            f"{show.milliseconds(step_s)} ms a step, {show.milliseconds(ideal)} ms ideal",
            "overhead": f"{show.milliseconds(step_s - ideal)} ms: "
            f"{show.milliseconds(row.recompute_s)} ms recomputing, "
            f"{show.milliseconds(row.stall_s)} ms waiting",
            "certified gap": f"{show.percent_up(row.certified_gap)}: no plan takes less than "
            f"{show.milliseconds(row.bound_step_s)} ms "
            f"({'cut at ' + row.bound_cut if row.bound_cut else 'the ideal step'})",
            "peak": show.memory(row.peak_bytes or 0),
            "planned in": f"{show.number(row.planning_s)} s"
            + (f", {row.solver}" if row.solver else "")
            + (", stopped by its time limit" if row.time_limited else ""),
        }
    )
    if divided is not None:
        show.print_lines(f"device memory: {line(divided)}")
    if row.reason:
        show.print_lines(f"{row.planner}: {row.reason}")
    unit, scale = show.unit_of(cell.problem.liveness.ideal_peak_bytes)
    shares = {**sums.by_layer_kind, "all layers": sums.total}
    show.print_lines("")
    show.print_table(
        "Saved activations, by layer",
        [
            show.Column("layer", left=True),
            show.Column(f"kept {unit}"),
            show.Column(f"swapped {unit}"),
            show.Column(f"recomputed {unit}"),
        ],
        [
            [
                kind,
                *(
                    show.in_unit(size, scale)
                    for size in (share.kept_bytes, share.swapped_bytes, share.recomputed_bytes)
                ),
            ]
            for kind, share in shares.items()
        ],
    )

"""Planned, simulated and reserved memory of plans, in a model of PyTorch's allocator.

    python -m benchmarks.allocator [--workloads gpt2-xl] [--budget 50] [--planner ilp] [--write]

For each workload one plan under the budget, with what the allocator reserves for it; then plans
that keep what is reserved within the same budget, and what that costs. The run fails if a reserved
peak is below the simulated one, or a plan that was fitted reserves more than the budget.

Where SLACKSWAP_DATA names a folder that has it, the recorded history of a training step (a memory
snapshot) is played by the model, too. `--write` puts the tables into docs/allocator.md.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import DATA, ROOT, failed, parser_of, rewrite, table_lines
from slackswap_opt.allocator import HistoryReplay, Kind, Reserved, replay_history, reserve
from slackswap_opt.formats.files import read_bytes
from slackswap_opt.formats.memory_snapshot import Snapshot, read_snapshot, summary
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import Cell, Settings, sweep
from slackswap_opt.study.reserved import Fitted, fit_reserved
from slackswap_opt.workloads import build_step, load_workload

WORKLOADS = ("bert-large", "gpt2-xl", "llama-7b")
PAGE = ROOT / "docs/allocator.md"
GIB = 2**30
MIB = 2**20
REAL = (Kind.CACHING, Kind.EXPANDABLE)
SNAPSHOT = "traces/10_cs336_gpt2medium_ctx512_memory_snapshot.pickle"
"""Of the table "recorded", in the folder of data that is not part of the project."""


@dataclass(frozen=True)
class Result:
    """One workload.

    Attributes:
        workload: its name.
        planner: who planned.
        cell: the plan that ignores fragmentation.
        held: what it reserves, by allocator.
        own_pool: the same where copies in have a pool of their own.
        fitted: the plan that keeps what is reserved within the budget, by allocator.
    """

    workload: str
    planner: str
    cell: Cell
    held: dict[Kind, Reserved]
    own_pool: dict[Kind, Reserved]
    fitted: dict[Kind, Fitted]


def report(message: str) -> None:
    """Progress, beside the results."""
    print(f"  {message}", file=sys.stderr)


def planned(
    workload: str, machine: Machine, percent: int, planner: str, settings: Settings
) -> Cell:
    """A shipped workload, planned for a budget in percent of its ideal peak."""
    problem = Problem(build_step(load_workload(workload), machine), machine, 1)
    problem = problem.with_budget(percent * problem.liveness.ideal_peak_bytes // 100)
    planners = {planner: PLANNERS[planner]}
    (cell,) = sweep(problem, [problem.budget_bytes], planners, settings, report)
    if cell.judged[planner].verdict is None:
        raise SystemExit(f"{planner} has no plan for {workload} at {percent} %")
    return cell


def measure(
    workload: str, machine: Machine, percent: int, planner: str, settings: Settings
) -> Result:
    """Plan, reserve, and plan again for each allocator."""
    cell = planned(workload, machine, percent, planner, settings)
    problem, judged = cell.problem, cell.judged[planner]
    schedule, verdict = judged.result.schedule, judged.verdict
    assert schedule is not None
    assert verdict is not None
    planners = {planner: PLANNERS[planner]}
    return Result(
        workload,
        planner,
        cell,
        {kind: reserve(problem.step, schedule, verdict, kind) for kind in Kind},
        {kind: reserve(problem.step, schedule, verdict, kind, own_pool=True) for kind in REAL},
        {kind: fit_reserved(problem, planners, kind, settings, report) for kind in REAL},
    )


def faults(found: Sequence[Result]) -> Iterator[str]:
    """What results must never show, one sentence each."""
    for result in found:
        budget = result.cell.problem.budget_bytes
        for kind, held in result.held.items():
            if held.requested_peak_bytes > held.reserved_peak_bytes:
                yield f"{result.workload}: {kind} reserves less than is in use"
        for kind, fitted in result.fitted.items():
            if fitted.reserved is None:
                yield f"{result.workload}: no plan stays within the budget with {kind}"
            elif fitted.reserved.reserved_peak_bytes > budget:
                yield f"{result.workload}: {kind} reserves more than the budget"


def reserved_table(found: Sequence[Result]) -> str:
    """What plans reserve, in Markdown."""
    heads = (
        "workload", "planned (budget)", "simulated peak", "caching", "expandable",
        "caching, own pool", "expandable, own pool",
    )  # fmt: skip
    rows = []
    for result in found:
        judged = result.cell.judged[result.planner]
        assert judged.verdict is not None
        cells = [_gib(result.cell.problem.budget_bytes), _gib(judged.verdict.peak_bytes)]
        for held in (result.held, result.own_pool):
            cells += [f"{_gib(held[k].reserved_peak_bytes)} ({_share(held[k])})" for k in REAL]
        rows.append((result.workload, *cells))
    return "\n".join(table_lines(heads, rows))


def fitted_table(found: Sequence[Result]) -> str:
    """What staying within the budget costs, in Markdown."""
    heads = (
        "workload", "retained, ideal", "retained, caching", "planned for", "reserved",
        "retained, expandable", "planned for", "reserved",
    )  # fmt: skip
    rows = []
    for result in found:
        cells = [_retained(result.cell, result.planner)]
        for kind in REAL:
            fitted = result.fitted[kind]
            assert fitted.reserved is not None
            planned = fitted.cell.judged[result.planner].capacity_bytes
            cells += [
                _retained(fitted.cell, result.planner),
                _gib(planned),
                _gib(fitted.reserved.reserved_peak_bytes),
            ]
        rows.append((result.workload, *cells))
    return "\n".join(table_lines(heads, rows))


def snapshot_there() -> Snapshot | None:
    """The recorded snapshot, where there is one."""
    folder = os.environ.get(DATA)
    path = Path(folder) / SNAPSHOT if folder else None
    if path is None or not path.is_file():
        return None
    return read_snapshot(read_bytes(path), path.name)


def recorded_table(snapshot: Snapshot, replay: HistoryReplay) -> str:
    """A recorded history and the model's, in Markdown."""
    facts = summary(snapshot)
    exact = sum(
        ours.requested == theirs.requested
        for ours, theirs in zip(replay.model, replay.recorded, strict=True)
    )
    end, there = replay.recorded[-1].reserved, replay.model[-1].reserved
    rows = (
        ("events", f"{replay.events:,}", f"{replay.events:,} played"),
        ("allocated bytes after each event", "", f"the same after {exact:,}"),
        (
            "addresses of allocations",
            f"{replay.allocations:,}",
            f"{replay.same_address:,} the same, {100 * replay.address_share:.2f} %",
        ),
        (
            "segments allocated on the way",
            _segments(replay, replay.segments_recorded),
            "the same, for the same requests"
            if replay.segments_agree
            else _segments(replay, replay.segments),
        ),
        (
            "bytes reserved at the end",
            f"{end:,} in {facts.segments:,} segments",
            "the same" if end == there else f"{there:,}",
        ),
        (
            "blocks in use at the end",
            f"{facts.live_blocks:,}",
            "the same addresses and sizes" if replay.end_agrees else "others",
        ),
    )
    lines = ["| | recorded | model |", "|---|---|---|"]
    return "\n".join(lines + [f"| {' | '.join(row)} |" for row in rows])


def _segments(replay: HistoryReplay, events: Sequence[int]) -> str:
    """By event, with sizes."""
    if not events:
        return "none"
    reserved = [replay.start.reserved, *(use.reserved for use in replay.model)]
    return ", ".join(
        f"{(reserved[event + 1] - reserved[event]) / MIB:,.0f} MiB at event {event:,}"
        for event in events
    )


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _share(held: Reserved) -> str:
    return f"{100 * held.fragmentation:.1f} %"


def _retained(cell: Cell, planner: str) -> str:
    step_ns = cell.judged[planner].step_ns
    assert step_ns is not None
    return f"{100 * cell.problem.ideal_step_ns / step_ns:.2f}"


def plan_options(parser: argparse.ArgumentParser) -> None:
    """Which plans are made."""
    parser.add_argument("--workloads", default=",".join(WORKLOADS))
    parser.add_argument("--budget", type=int, default=50, help="percent of the ideal peak")
    parser.add_argument("--planner", default="ilp", choices=sorted(PLANNERS))


def main() -> int:
    """Run, check, print, write."""
    parser = parser_of(__doc__, seconds=60.0, machine=True, write="update docs/allocator.md")
    plan_options(parser)
    asked = parser.parse_args()
    machine, settings = load_machine(asked.machine), Settings(seconds=asked.seconds)
    found = [
        measure(name, machine, asked.budget, asked.planner, settings)
        for name in asked.workloads.split(",")
    ]
    if failed(faults(found)):
        return 1
    about = f"GiB at {asked.budget} % of the ideal peak, planner {asked.planner}, {machine.name}."
    tables = {
        "reserved": f"{about}\n\n{reserved_table(found)}",
        "fitted": f"{about}\n\n{fitted_table(found)}",
    }
    snapshot = snapshot_there()
    if snapshot is not None:
        tables["recorded"] = recorded_table(snapshot, replay_history(snapshot))
    print("\n\n".join(tables.values()))
    if asked.write:
        for name, table in tables.items():
            rewrite(PAGE, name, table)
    return 0


if __name__ == "__main__":
    sys.exit(main())

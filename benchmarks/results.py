"""Throughput retained by every planner, workload and budget, with certified gaps.

    python -m benchmarks.results [--workloads gpt2-xl,llama-7b] [--budgets 50,30] [--json] [--write]

The run fails, and prints no table, if a schedule is faster than the proven bound, if a planner
beats the ILP, if a planner gets slower with more memory, or if the ILP loses anything at 100 %.

Where SLACKSWAP_DATA names a folder that has it, PipeDream's measured profile of ResNet-50 is among
the steps. `--write` puts the results at 50 % into README.md, and all of them, with what they say,
into docs/results.md.
"""

from __future__ import annotations

import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path

from benchmarks.command import DATA, ROOT, failed, parser_of, rewrite
from benchmarks.results_tables import (
    BEST,
    MEASURED,
    PROFILE,
    Result,
    full_table,
    limits,
    origin,
    reading,
    shown_table,
    table,
)
from slackswap_opt.formats import read_step
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import TrainingStep
from slackswap_opt.study import Settings, rows_of, sweep
from slackswap_opt.workloads import build_step, load_workload

WORKLOADS = ("bert-large", "bert-large-eager", "gpt2-xl", "llama-7b")
BUDGETS = (100, 80, 60, 50, 40, 30, 20, 10)
SHOWN = 50
"""The budget, in percent of the ideal peak, of the README's table."""


def load(name: str, machine: Machine) -> TrainingStep:
    """The step of a shipped workload, or of a file (any name with a suffix)."""
    return read_step(name) if Path(name).suffix else build_step(load_workload(name), machine)


def results(
    workload: str, step: TrainingStep, machine: Machine, percents: Sequence[int], seconds: float
) -> list[Result]:
    """Every planner at every budget."""

    def report(message: str) -> None:
        print(f"  {message}", file=sys.stderr)

    problem = Problem(step, machine, 1)
    peak = problem.liveness.ideal_peak_bytes
    budgets = [percent * peak // 100 for percent in percents]
    cells = sweep(problem, budgets, PLANNERS, Settings(seconds=seconds), report)
    return [
        Result(workload, percent, cell, {row.planner: row for row in rows_of(cell)})
        for percent, cell in zip(percents, cells, strict=True)
    ]


def faults(found: Sequence[Result]) -> Iterator[str]:
    """What results must never show, one sentence each."""
    for result in found:
        for planner, row in result.rows.items():
            where = f"{result.workload} at {result.percent} %, {planner}"
            value = row.throughput_retained
            if (row.certified_gap or 0) < 0:
                yield f"{where}: faster than the proven bound"
            if (value or 0) > (result.retained(BEST) or 0):
                yield f"{where}: better than the ILP"
            if planner == BEST and result.percent >= 100 and value != 1:
                yield f"{where}: loses throughput without a limit"
            for other in found:
                smaller = other.workload == result.workload and other.percent < result.percent
                if smaller and (other.retained(planner) or 0) > (value or 0):
                    yield f"{where}: slower than at {other.percent} %"


def main() -> int:
    """Run, check, print, write."""
    parser = parser_of(
        __doc__, seconds=60.0, machine=True, json=True, write="update README.md and its page"
    )
    data = os.environ.get(DATA)
    default = [*WORKLOADS, *([str(Path(data) / PROFILE)] if data else [])]
    parser.add_argument("--workloads", default=",".join(default), help="names or files")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="percent")
    asked = parser.parse_args()
    machine = load_machine(asked.machine)
    percents = [int(text) for text in asked.budgets.split(",")]
    if asked.write and SHOWN not in percents:
        parser.error(f"--write needs {SHOWN} among the budgets")
    if asked.write and data is None and asked.workloads == ",".join(WORKLOADS):
        parser.error(f"--write needs the folder of profiles: set {DATA}, or name --workloads")
    found = [
        result
        for name in asked.workloads.split(",")
        for result in results(
            MEASURED.get(Path(name).stem, Path(name).stem),
            load(name, machine),
            machine,
            percents,
            asked.seconds,
        )
    ]
    if failed(faults(found)):
        return 1
    if asked.json:
        rows = [dataclasses.asdict(row) for result in found for row in result.rows.values()]
        print(json.dumps({"schema": "slackswap.compare/1", "rows": rows}, indent=1))
    else:
        print(table(found))
    if asked.write:
        shown = [result for result in found if result.percent == SHOWN]
        rewrite(ROOT / "README.md", "results", shown_table(shown))
        page = ROOT / "docs/results.md"
        rewrite(page, "results", f"{origin(found, machine, asked.seconds)}\n\n{full_table(found)}")
        rewrite(page, "reading", reading(found))
        rewrite(page, "limits", limits(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())

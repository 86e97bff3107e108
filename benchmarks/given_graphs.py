"""Graphs, profiles, models and traces of others, planned at half of their memory.

    python -m benchmarks.given_graphs DIR... [--batch 32] [--seconds 60] [--write]

Every file in the folders is read and planned at 50 % of its ideal peak by the greedy and by the
ILP; where a single operation needs more than that, or no schedule is found, at the smallest budget
found. The reason why a file is no training step is below the table. `--batch` is for models (ONNX)
alone. `--write` puts the table into docs/formats.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import ROOT, parser_of, rewrite
from slackswap_opt.errors import InputError
from slackswap_opt.formats import format_of, read_step
from slackswap_opt.formats.registry import priced_on_machine
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import Settings, compare
from slackswap_opt.study.compare import Row
from slackswap_opt.study.smallest import lower_limit, smallest_budget

HALF = 2
"""The budget is the ideal peak over this."""
NO_FILE = (".md", ".py")
"""Endings of files that only describe others."""
LONGEST_REASON = 170
HEAD = (
    "| file | format | operations | saved MiB | ideal peak MiB | budget | greedy | ILP | bound "
    "| ILP gap | planning |\n|---|---|---:|---:|---:|---:|---:|---:|---:|---:|---:|"
)


@dataclass(frozen=True)
class Outcome:
    """What became of one file.

    Attributes:
        file: its name, with the batch where one was given.
        format: what it is; empty if not recognized.
        reason: why it was refused, or why the budget is not half of the peak.
        problem: what was solved; None for a file that was refused.
        rows: a row per planner.
        seconds: of reading.
    """

    file: str
    format: str
    reason: str = ""
    problem: Problem | None = None
    rows: dict[str, Row] | None = None
    seconds: float = 0.0


def outcome(path: Path, machine: Machine, batch: int, seconds: float) -> Outcome:
    """Read and plan one file."""
    known = format_of(path).partition(",")[0].partition(" (")[0]
    priced = priced_on_machine(path)
    name = f"{path.name}@batch={batch}" if priced else path.name
    begin = time.monotonic()
    try:
        step = read_step(path, machine=machine, batch=batch if priced else None)
    except InputError as error:
        return Outcome(name, known, "; ".join(error.faults))
    reading = time.monotonic() - begin
    whole = Problem(step, machine, 1)
    peak = whole.liveness.ideal_peak_bytes
    budget, reason = max(1, peak // HALF), ""
    limit = lower_limit(step)
    if limit.budget_bytes <= budget:
        rows = planned(whole.with_budget(budget), seconds)
        if any(row.step_s is not None for row in rows.values()):
            return Outcome(name, known, "", whole.with_budget(budget), rows, reading)
        reason = "no schedule was found at 50 %"
    else:
        reason = (
            f"{limit.operation!r} alone needs {limit.budget_bytes:,} bytes, "
            f"{limit.budget_bytes / peak:.2%} of the peak"
        )
    smallest = smallest_budget(whole).budget_bytes
    if smallest is None:
        return Outcome(name, known, reason, whole, None, reading)
    problem = whole.with_budget(smallest)
    reason += f"; the smallest budget found is {smallest:,} bytes"
    return Outcome(name, known, reason, problem, planned(problem, seconds), reading)


def planned(problem: Problem, seconds: float) -> dict[str, Row]:
    """Greedy's and the ILP's answers."""
    planners = {name: PLANNERS[name] for name in ("greedy", "ilp")}
    rows = compare([problem], planners, Settings(seconds=seconds))
    return {row.planner: row for row in rows}


def lines(found: Sequence[Outcome], seconds: float) -> Iterator[str]:
    """The table, and a sentence for each file that is not planned at half of its peak."""
    yield f"The ILP had at most {seconds:g} s for a file.\n"
    yield HEAD
    for result in found:
        yield f"| {' | '.join(cells(result))} |"
    others = [result for result in found if result.reason]
    if others:
        yield ""
    for result in others:
        cut = result.reason[:LONGEST_REASON].rstrip()
        dots = "..." if len(result.reason) > LONGEST_REASON else "."
        yield f"* `{result.file}`: {cut.removesuffix('.')}{dots}"


def cells(result: Outcome) -> Iterator[str]:
    """One row."""
    yield f"`{result.file}`"
    yield result.format or "-"
    problem, rows = result.problem, result.rows
    if problem is None:
        yield from ("-",) * 8
        yield "refused, see below"
        return
    saved = int(problem.step.index.size_bytes[problem.liveness.saved].sum())
    peak = problem.liveness.ideal_peak_bytes
    yield f"{len(problem.step.operations):,}"
    yield f"{saved / 2**20:,.1f}"
    yield f"{peak / 2**20:,.1f}"
    if rows is None:
        yield from ("-",) * 5
        yield "no schedule found"
        return
    greedy, ilp = rows["greedy"], rows["ilp"]
    yield f"{problem.budget_bytes / peak:.2%}"
    for row in (greedy, ilp):
        value = row.throughput_retained
        yield "-" if value is None else f"{value:.2%}"
    yield f"{ilp.ideal_step_s / ilp.bound_step_s:.2%}" if ilp.bound_step_s else "100.00%"
    yield "-" if ilp.certified_gap is None else f"{ilp.certified_gap:.2%}"
    yield f"{ilp.planning_s:.1f} s"


def files_of(folders: Sequence[Path]) -> Iterator[Path]:
    """The files of folders, or files themselves, in order."""
    for folder in folders:
        listed = sorted(folder.iterdir()) if folder.is_dir() else [folder]
        yield from (path for path in listed if path.is_file() and path.suffix not in NO_FILE)


def main() -> int:
    """Read, plan, print, write."""
    parser = parser_of(__doc__, seconds=60.0, machine=True, write="update docs/formats.md")
    parser.add_argument("folders", nargs="+", type=Path, metavar="DIR", help="folders or files")
    parser.add_argument("--batch", type=int, default=32, help="of models")
    asked = parser.parse_args()
    machine = load_machine(asked.machine)
    found = []
    for path in files_of(asked.folders):
        print(f"  {path.name}", file=sys.stderr, flush=True)
        found.append(outcome(path, machine, asked.batch, asked.seconds))
    text = "\n".join(lines(found, asked.seconds))
    print(text)
    if asked.write:
        rewrite(ROOT / "docs" / "formats.md", "planned", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

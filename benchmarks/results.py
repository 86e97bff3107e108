"""Throughput retained by every planner, workload and budget, with certified gaps.

    python -m benchmarks.results [--workloads gpt2-xl,llama-7b] [--budgets 50,30] [--json] [--write]

The run fails, and prints no table, if a schedule is faster than the proven bound, if a planner
beats the ILP, if a planner gets slower with more memory, or if the ILP loses anything at 100 %.

`--write` puts the results at 50 % into README.md and draws docs/images/overview.png.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import comparison, save, timeline
from slackswap_opt.formats import read_step
from slackswap_opt.machine import DEFAULT_MACHINE, Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.simulator import simulate
from slackswap_opt.step import TrainingStep
from slackswap_opt.study import Cell, Row, Settings, rows_of, sweep
from slackswap_opt.workloads import build_step, load_workload

ROOT = Path(__file__).resolve().parent.parent
DATA = "SLACKSWAP_DATA"
"""Environment variable that names a folder of profiles that are not part of the project."""
PROFILE = "graphs/pipedream_resnet50.txt"
WORKLOADS = ("bert-large", "bert-large-eager", "gpt2-xl", "llama-7b")
BUDGETS = (100, 80, 60, 50, 40, 30, 20)
SHOWN = 50
"""The budget, in percent of the ideal peak, of the README's table and picture."""
PICTURED = "gpt2-xl"
"""The workload whose timeline the picture shows."""
COLUMNS = ("recompute-all", "sqrt-n", "swap-all", "capuchin", "greedy", "ilp")
"""Planners in the README, where all would be too many."""


@dataclass(frozen=True)
class Result:
    """Every planner on one workload at one budget.

    Attributes:
        workload: name for tables.
        percent: budget in percent of the ideal peak.
        cell: problem, bound and each planner's judged result.
        rows: by planner, the figures.
    """

    workload: str
    percent: int
    cell: Cell
    rows: Mapping[str, Row]

    @property
    def reachable(self) -> float:
        """Ideal step / bound: what no schedule exceeds."""
        return self.cell.problem.ideal_step_ns / self.cell.bound.step_ns

    def retained(self, planner: str) -> float | None:
        """Ideal step / simulated step; None where the planner has no schedule that fits."""
        return self.rows[planner].throughput_retained


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
            if (value or 0) > (result.retained("ilp") or 0):
                yield f"{where}: better than the ILP"
            if planner == "ilp" and result.percent >= 100 and value != 1:
                yield f"{where}: loses throughput without a limit"
            for other in found:
                smaller = other.workload == result.workload and other.percent < result.percent
                if smaller and (other.retained(planner) or 0) > (value or 0):
                    yield f"{where}: slower than at {other.percent} %"


def table(found: Sequence[Result]) -> str:
    """All results as text, a line per workload and budget."""
    head = f"{'workload':20}{'budget':>7}" + "".join(f"{name:>14}" for name in PLANNERS)
    lines = [head + f"{'bound':>8}{'ilp gap':>9}{'ilp s':>7}"]
    for result in found:
        best = result.rows["ilp"]
        lines.append(
            f"{result.workload:20}{result.percent:5d} %"
            + "".join(f"{_percent(result.retained(name)):>14}" for name in PLANNERS)
            + f"{_percent(result.reachable):>8}{_percent(best.certified_gap):>9}"
            + f"{best.planning_s:7.1f}{' (stopped by time)' if best.time_limited else ''}"
        )
    return "\n".join(lines)


def markdown(found: Sequence[Result]) -> str:
    """The README's table."""
    titles = ["workload", *(f"**{n}**" if n == "ilp" else n for n in COLUMNS), "bound", "ilp gap"]
    lines = [_line(titles), "|" + "---|" * len(titles)]
    for result in found:
        values = {name: _percent(result.retained(name)) for name in COLUMNS}
        values["ilp"] = f"**{values['ilp']}**"
        ends = (_percent(result.reachable), f"{_percent(result.rows['ilp'].certified_gap)} %")
        lines.append(_line([result.workload, *values.values(), *ends]))
    return "\n".join(lines)


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def overview(found: Sequence[Result]) -> Figure:
    """The README's picture: who retains how much, and what an ILP plan looks like."""
    figure = Figure(figsize=(13.5, 4.6), layout="constrained")
    parts = figure.subfigures(1, 2, width_ratios=(1, 1.08), wspace=0.03, squeeze=False)
    left, right = parts[0]
    shipped = [result for result in found if result.workload in WORKLOADS]
    left.suptitle(f"Training in {SHOWN} % of the activation memory", fontsize="large")
    comparison(
        {r.workload: {name: r.retained(name) for name in COLUMNS} for r in shipped},
        {r.workload: r.reachable for r in shipped},
        left.subplots(),
    )
    right.suptitle(f"{PICTURED}: the plan of the ILP, as simulated", fontsize="large")
    streams, memory = right.subplots(2, 1, sharex=True, height_ratios=(1, 1.6))
    _draw_plan(next(r for r in shipped if r.workload == PICTURED).cell, streams, memory)
    return figure


def _draw_plan(cell: Cell, streams: Axes, memory: Axes) -> None:
    problem, best = cell.problem, cell.judged["ilp"]
    peak = problem.liveness.ideal_peak_bytes
    kept = PLANNERS["keep-all"](problem.with_budget(peak))
    if best.result.schedule is None or best.verdict is None or kept.schedule is None:
        raise ValueError(f"{problem.step.name} has no plan to draw")
    unlimited = simulate(problem.step, problem.machine, kept.schedule, peak)
    timeline(
        problem.step, best.result.schedule, best.verdict, (streams, memory), unlimited=unlimited
    )


def rewrite(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a file."""
    content = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = content.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path} has no section {name!r}")
    path.write_text(before + begin + text + "\n" + end + after, encoding="utf-8")


def main() -> int:
    """Run, check, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    data = os.environ.get(DATA)
    default = [*WORKLOADS, *([str(Path(data) / PROFILE)] if data else [])]
    parser.add_argument("--workloads", default=",".join(default), help="names or files")
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="percent")
    parser.add_argument("--machine", default=DEFAULT_MACHINE)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the ILP, each")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", action="store_true", help="update README.md and its picture")
    asked = parser.parse_args()
    machine = load_machine(asked.machine)
    percents = [int(text) for text in asked.budgets.split(",")]
    if asked.write and SHOWN not in percents:
        parser.error(f"--write needs {SHOWN} among the budgets")
    found = [
        result
        for name in asked.workloads.split(",")
        for result in results(
            Path(name).stem, load(name, machine), machine, percents, asked.seconds
        )
    ]
    wrong = list(faults(found))
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if asked.json:
        rows = [dataclasses.asdict(row) for result in found for row in result.rows.values()]
        print(json.dumps({"schema": "slackswap.compare/1", "rows": rows}, indent=1))
    else:
        print(table(found))
    if asked.write:
        shown = [result for result in found if result.percent == SHOWN]
        rewrite(ROOT / "README.md", "results", markdown(shown))
        save(overview(shown), ROOT / "docs/images/overview.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

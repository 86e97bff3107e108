"""Three workloads at half of their memory: peaks planned, simulated and reserved, and noise.

    python -m benchmarks.robustness [--planner ilp] [--jitter 0.05] [--link-jitter 0.1] [--write]

*Planned* is the budget, *simulated* the peak of the plan in the simulator, *reserved* what a model
of PyTorch's caching allocator (and of its expandable segments) reserves for it. Step times are
those of the plan without noise and in the trials.

`--write` puts the table into docs/simulator.md, `--json` prints it as data.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from benchmarks.allocator import plan_options, planned
from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from slackswap_opt.allocator import Kind, reserve
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.study import Cell, Settings
from slackswap_opt.study.robustness import CONFIDENCE, Noise, robustness

PAGE = ROOT / "docs/simulator.md"
GIB = 2**30


@dataclass(frozen=True)
class Row:
    """One workload; bytes, nanoseconds, and shares of the trials."""

    workload: str
    planner: str
    planned_bytes: int
    simulated_bytes: int
    reserved_bytes: int
    reserved_expandable_bytes: int
    step_ns: int
    mean_ns: float
    p50_ns: int | None
    p95_ns: int | None
    p99_ns: int | None
    out_of_memory: float
    fits_at_least: float


def row_of(workload: str, planner: str, cell: Cell, noise: Noise) -> Row:
    """One plan, played in every way."""
    problem, judged = cell.problem, cell.judged[planner]
    schedule, verdict = judged.result.schedule, judged.verdict
    assert schedule is not None
    assert verdict is not None
    found = robustness(problem, schedule, noise)
    reserved = {
        kind: reserve(problem.step, schedule, verdict, kind).reserved_peak_bytes
        for kind in (Kind.CACHING, Kind.EXPANDABLE)
    }
    return Row(
        workload,
        planner,
        problem.budget_bytes,
        verdict.peak_bytes,
        reserved[Kind.CACHING],
        reserved[Kind.EXPANDABLE],
        verdict.step_ns or 0,
        found.mean_ns,
        *(found.percentile_ns(percent) for percent in (50, 95, 99)),
        found.out_of_memory,
        found.fits_at_least,
    )


def table(rows: Sequence[Row]) -> str:
    """Peaks and step times, in Markdown."""
    heads = (
        "workload", "planned GiB", "simulated", "reserved, caching", "reserved, expandable",
        "step ms", "mean", "50 %", "95 %", "99 %", "out of memory", "fits, at least",
    )  # fmt: skip
    lines = []
    for row in rows:
        sizes = (
            row.planned_bytes, row.simulated_bytes, row.reserved_bytes,
            row.reserved_expandable_bytes,
        )  # fmt: skip
        times = (row.step_ns, row.mean_ns, row.p50_ns, row.p95_ns, row.p99_ns)
        cells = [_gib(size) for size in sizes] + [_ms(ns) for ns in times]
        cells += [f"{row.out_of_memory:.2%}", _percent_down(row.fits_at_least)]
        lines.append([row.workload, *cells])
    return "\n".join(table_lines(heads, lines))


def _ms(ns: float | None) -> str:
    return "-" if ns is None else f"{ns / 1e6:.2f}"


def _gib(size: int) -> str:
    return f"{size / GIB:.2f}"


def _percent_down(share: float) -> str:
    """Never more than it is."""
    return f"{int(share * 10_000) / 100:.2f}%"


def about(planner: str, percent: int, noise: Noise, machine: Machine) -> str:
    """What the table rests on, in one paragraph."""
    link = f" and {noise.link_jitter:.0%} on copies" if noise.link_jitter else ""
    return (
        f"At {percent} % of the ideal peak, planner {planner}, {machine.name}; {noise.trials:,} "
        f"trials with {noise.jitter:.0%} noise on durations{link}. The last column is the exact "
        f"lower limit on the probability of fitting, at {CONFIDENCE:.0%} confidence."
    )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure, print, write."""
    parser = parser_of(
        __doc__, seconds=60.0, machine=True, json=True, write="update docs/simulator.md"
    )
    plan_options(parser)
    parser.add_argument("--jitter", type=float, default=0.05)
    parser.add_argument("--link-jitter", type=float, default=0.0)
    parser.add_argument("--trials", type=int, default=1000)
    given = parser.parse_args(arguments)
    machine, settings = load_machine(given.machine), Settings(seconds=given.seconds)
    noise = Noise(given.jitter, given.link_jitter, given.trials)
    rows = [
        row_of(
            name,
            given.planner,
            planned(name, machine, given.budget, given.planner, settings),
            noise,
        )
        for name in given.workloads.split(",")
    ]
    shown = f"{about(given.planner, given.budget, noise, machine)}\n\n{table(rows)}"
    if given.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    else:
        print(shown)
    if given.write:
        rewrite(PAGE, "noise", shown)


if __name__ == "__main__":
    main()

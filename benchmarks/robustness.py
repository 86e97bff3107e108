"""Three workloads at half of their memory: peaks planned, simulated and reserved, and noise.

    python -m benchmarks.robustness [--planner greedy] [--jitter 0.05] [--link-jitter 0.1] [--json]

*Planned* is the budget, *simulated* the peak of the plan in the simulator, *reserved* what a model
of PyTorch's caching allocator (and of its expandable segments) reserves for it. Step times are
those of the plan without noise and in the trials.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass

from slackswap_opt.allocator import Kind, reserve
from slackswap_opt.machine import DEFAULT_MACHINE, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.simulator import simulate
from slackswap_opt.study.robustness import Noise, robustness
from slackswap_opt.workloads import build_step, load_workload

WORKLOADS = ("bert-large", "gpt2-xl", "llama-7b")
BUDGET = 2
"""One over the part of the ideal peak."""
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


def measure(workload: str, planner: str, noise: Noise) -> Row:
    """Plan one workload, and play the plan in every way.

    Raises:
        SystemExit: if the planner finds no plan.
    """
    machine = load_machine(DEFAULT_MACHINE)
    step = build_step(load_workload(workload), machine)
    problem = Problem(step, machine, 1)
    problem = problem.with_budget(problem.liveness.ideal_peak_bytes // BUDGET)
    schedule = PLANNERS[planner](problem).schedule
    if schedule is None:
        raise SystemExit(f"{planner} finds no plan for {workload}")
    verdict = simulate(step, machine, schedule, problem.budget_bytes)
    found = robustness(problem, schedule, noise)
    reserved = {
        kind: reserve(step, schedule, verdict, kind).reserved_peak_bytes
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


def _print(rows: Sequence[Row]) -> None:
    def ms(ns: float | None) -> str:
        return "-" if ns is None else f"{ns / 1e6:.2f}"

    print(
        "| workload | planned GiB | simulated | reserved, caching | reserved, expandable "
        "| step ms | mean | 50 % | 95 % | 99 % | out of memory | fits, at least |"
    )
    print("|" + "---|" * 12)
    for row in rows:
        sizes = (
            row.planned_bytes, row.simulated_bytes, row.reserved_bytes,
            row.reserved_expandable_bytes,
        )  # fmt: skip
        times = (row.step_ns, row.mean_ns, row.p50_ns, row.p95_ns, row.p99_ns)
        print(
            f"| {row.workload} | "
            + " | ".join([f"{size / GIB:.2f}" for size in sizes] + [ms(ns) for ns in times])
            + f" | {row.out_of_memory:.2%} | {row.fits_at_least:.2%} |"
        )


def main(arguments: Sequence[str] | None = None) -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--planner", default="greedy", choices=sorted(PLANNERS))
    parser.add_argument("--jitter", type=float, default=0.05)
    parser.add_argument("--link-jitter", type=float, default=0.0)
    parser.add_argument("--trials", type=int, default=1000)
    parser.add_argument("--json", action="store_true", help="print rows as JSON")
    given = parser.parse_args(arguments)
    noise = Noise(given.jitter, given.link_jitter, given.trials)
    rows = [measure(workload, given.planner, noise) for workload in WORKLOADS]
    if given.json:
        json.dump([asdict(row) for row in rows], sys.stdout, indent=1)
        print()
    else:
        _print(rows)


if __name__ == "__main__":
    main()

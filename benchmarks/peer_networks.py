"""Recomputation on networks like the peers', made here (`benchmarks/peers_networks.py`).

    python -m benchmarks.peer_networks [NETWORK]... [--budget SHARE] [--time-limit S]
                                       [--solver cbc|highs] [--write]

For each network and budget, a share of the peak without a limit: what the best heuristic and the
ILP planner take beyond the step without a limit, the certified gap, and what the peers' own rule
says of the plan (`benchmarks/peers_replay.py`). The exit status is 1 if a plan fails that check or
is worse than a heuristic's. `--write` updates docs/peers.md.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from benchmarks.peers_instances import SIZE, Case, Instance, problem_of, units
from benchmarks.peers_networks import NETWORKS
from benchmarks.peers_replay import ReplayError, replay
from slackswap_opt import IlpOptions, Problem, bound, ilp
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.step import working_set_bytes

BUDGETS = ("80%", "60%", "50%", "40%", "30%")
PAGE = ROOT / "docs/peers.md"


@dataclass(frozen=True)
class Row:
    """One network at one budget; times in the instance's units, None where there is no plan.

    Attributes:
        network: its name.
        operations: how many it has.
        budget: as a share of the peak without a limit.
        ideal: the step without a limit.
        bound: no plan takes less; None where an operation alone needs more than the budget.
        heuristic: the best heuristic's step.
        ours: the ILP planner's step.
        repeats: most executions of one operation.
        seconds: wall time of planning.
        fault: what is wrong with the plan.
    """

    network: str
    operations: int
    budget: str
    ideal: Fraction
    bound: Fraction | None
    heuristic: Fraction | None
    ours: Fraction | None
    repeats: int
    seconds: float
    fault: str = ""


def case_of(instance: Instance, share: str) -> tuple[Case, Problem]:
    """An instance under a share of its peak, in whole units of size."""
    whole = Case(instance.name, "recompute", Fraction(1), None, False, None)
    peak = problem_of(instance, whole).liveness.ideal_peak_bytes
    budget = Fraction(int(Fraction(share.rstrip("%")) * peak / 100) // SIZE)
    case = Case(instance.name, "recompute", budget, None, False, None)
    return case, problem_of(instance, case)


def solve(name: str, instance: Instance, share: str, seconds: float, solver: str) -> Row:
    """Plan one network under one budget, and check the plan."""
    case, problem = case_of(instance, share)
    began = time.perf_counter()
    limit = bound(problem, solver=solver)
    starts = tuple(plan(problem) for plan in HEURISTICS.values())
    options = IlpOptions(gap=0.0, seconds=seconds, solver=solver, bound=limit, starts=starts)
    result = ilp(problem, options)
    took = time.perf_counter() - began
    steps = [start.step_ns for start in starts if start.step_ns is not None]
    heuristic = units(min(steps)) if steps else None
    ours = None if result.step_ns is None else units(result.step_ns)
    fault, repeats = "", 0
    if result.schedule is not None:
        try:
            found = replay(instance, case, result.schedule)
        except ReplayError as error:
            fault = f"the plan is invalid: {error}"
        else:
            repeats = max(found.runs)
            if found.cost != ours or found.peak > case.budget:
                fault = "the replay costs or needs more than the planner says"
    if heuristic is not None and (ours is None or ours > heuristic):
        fault = "a heuristic is better"
    ideal = units(problem.ideal_step_ns)
    fits = problem.budget_bytes >= int(working_set_bytes(problem.step).max())
    lowest = units(limit.step_ns) if fits else None
    return Row(
        name, len(instance.ops), share, ideal, lowest, heuristic, ours, repeats, took, fault
    )  # fmt: skip


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/peers.md."""
    heads = (
        "network", "operations", "budget", "bound", "best heuristic", "ILP", "gap", "most runs",
    )  # fmt: skip
    return "\n".join(table_lines(heads, map(_cells, rows)))


def _cells(row: Row) -> Iterator[str]:
    yield row.network
    yield str(row.operations)
    yield row.budget
    yield "nothing fits" if row.bound is None else _over(row.bound, row.ideal)
    yield _over(row.heuristic, row.ideal)
    yield _over(row.ours, row.ideal)
    both = row.bound is not None and row.ours is not None
    yield f"{float(1 - row.bound / row.ours):.2%}" if both else "-"
    yield str(row.repeats)


def _over(step: Fraction | None, ideal: Fraction) -> str:
    return "none" if step is None else f"+{float(step / ideal - 1):.2%}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, write."""
    parser = parser_of(__doc__, write="update docs/peers.md")
    parser.add_argument("networks", metavar="NETWORK", nargs="*", help=", ".join(NETWORKS))
    shares = ", ".join(BUDGETS).replace("%", "%%")
    parser.add_argument("--budget", action="append", help=f"a share; {shares}")
    parser.add_argument("--time-limit", type=float, default=60.0, help="seconds for each case")
    parser.add_argument("--solver", default="cbc", choices=("cbc", "highs"))
    asked = parser.parse_args(arguments)
    unknown = [name for name in asked.networks if name not in NETWORKS]
    if unknown:
        parser.error(f"unknown network {unknown[0]!r}; choose from {', '.join(NETWORKS)}")
    rows = []
    for name in asked.networks or NETWORKS:
        instance = NETWORKS[name]()
        for share in asked.budget or BUDGETS:
            rows.append(solve(name, instance, share, asked.time_limit, asked.solver))
            row = rows[-1]
            fault = f"  FAULT: {row.fault}" if row.fault else ""
            print("  ".join(f"{cell:>14}" for cell in _cells(row)), f"{row.seconds:7.1f} s{fault}",
                  flush=True)  # fmt: skip
    if asked.write:
        rewrite(PAGE, "networks", markdown(rows))
    return 1 if any(row.fault for row in rows) else 0


if __name__ == "__main__":
    sys.exit(main())

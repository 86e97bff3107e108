"""What the ILP gains over the best greedy: workloads and measured graphs, budgets and links.

    python -m benchmarks.gains [--write] [--json] [--seconds 8] [--jobs 2] [--journal FILE]

Each cell is one problem: a step on one machine with its link replaced, at one budget. Every planner
runs; the best of the greedy ones is compared with the ILP. The sweep keeps what is finished in the
journal, and the same command goes on from it. Where `SLACKSWAP_DATA` names a folder of profiles
that are not part of the project (see `benchmarks.grids`), these are among the graphs.

The run fails, and writes nothing, if a greedy plan is faster than the ILP's or a problem fails.
`--write` updates docs/gains.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass

from benchmarks.command import ROOT, failed, names_in, parser_of, rewrite, table_lines
from benchmarks.grids import GREEDY, add_grid_options, asked_rows, asked_sources, chain_of
from slackswap_opt.machine import load_machine
from slackswap_opt.study import Settings, SweepRow
from slackswap_opt.study.results import FAILED

PAGE = ROOT / "docs/gains.md"
WORKLOADS = ("bert-large", "gpt2-xl", "llama-7b")
LINKS: Mapping[str, float] = {
    "PCIe 3.0, shared": 6,
    "PCIe 4.0": 25,
    "PCIe 5.0": 50,
    "NVLink-C2C": 450,
}
"""Names to 10^9 bytes a second from the device to the host."""
BUDGETS = (80, 50, 30, 20)
GAIN = 0.1
"""Points of throughput from which on one is called better than the other."""
PROVEN = 0.001


@dataclass(frozen=True)
class Cell:
    """One problem.

    Attributes:
        step: name of the step.
        kind: of what the step is from.
        link: name of the link.
        budget: in percent of the ideal peak.
        ilp: throughput retained, percent; None without a plan.
        greedy: the best greedy plan's; None without one.
        rule: whose that is; empty without one.
        reachable: no plan retains more, percent.
        gap: certified gap of the ILP's plan, percent of its step; None without a plan.
        proven_infeasible: it is proven that nothing fits.
        time_limited: whether the clock ended the ILP.
        limit: what keeps a plan from more.
    """

    step: str
    kind: str
    link: str
    budget: int
    ilp: float | None
    greedy: float | None
    rule: str
    reachable: float
    gap: float | None
    proven_infeasible: bool
    time_limited: bool
    limit: str

    @property
    def gain(self) -> float | None:
        """Points that the ILP retains more; None where one of the two has no plan."""
        return None if self.ilp is None or self.greedy is None else self.ilp - self.greedy


def cells_of(
    rows: Sequence[SweepRow], kinds: Mapping[str, str], links: Iterable[str]
) -> list[Cell]:
    """The cells of a sweep's rows, in their order.

    Args:
        rows: of chains in the order of `links` within each step.
        kinds: of the steps, by name.
        links: names of the links in their order.
    """
    places: dict[tuple[str, float, str], dict[str, SweepRow]] = {}
    for row in rows:
        place = (row.workload, row.link_gb_per_s, row.budget)
        places.setdefault(place, {})[row.planner] = row
    named = list(links)
    rates: dict[str, list[float]] = {}
    for step, rate, _ in places:
        if rate not in rates.setdefault(step, []):
            rates[step].append(rate)
    return [
        _cell(kinds[step], named[rates[step].index(rate)], planners)
        for (step, rate, _), planners in places.items()
    ]


def _cell(kind: str, link: str, rows: Mapping[str, SweepRow]) -> Cell:
    ilp = rows["ilp"]
    fitting = [rows[name] for name in GREEDY if rows[name].throughput_retained is not None]
    best = max(fitting, key=lambda row: row.throughput_retained or 0.0, default=None)
    bound, ideal = ilp.bound_step_s or 1.0, ilp.ideal_step_s or 1.0
    return Cell(
        ilp.workload,
        kind,
        link,
        int(ilp.budget.rstrip("%")),
        _percent(ilp.throughput_retained),
        _percent(best.throughput_retained) if best else None,
        best.planner if best else "",
        100 * ideal / bound,
        _percent(ilp.certified_gap),
        ilp.reason.startswith("proven:"),
        bool(ilp.time_limited),
        _limit(ilp),
    )


def _percent(value: float | None) -> float | None:
    return None if value is None else 100 * value


def _limit(row: SweepRow) -> str:
    """What keeps the ILP's plan from more, as far as it is known."""
    if row.reason.startswith("proven:"):
        return "one operation needs more"
    if row.step_s is None:
        return "open: no plan was found"
    if row.certified_gap is not None and row.certified_gap > PROVEN:
        what = "the clock ended the search" if row.time_limited else "plan or bound"
        return f"open: {what}"
    if row.throughput_retained is not None and row.throughput_retained > 1 - PROVEN / 10:
        return "nothing: all is hidden"
    return f"memory at {row.bound_cut}" if row.bound_cut else "nothing: all is hidden"


def faults(rows: Iterable[SweepRow], cells: Iterable[Cell]) -> Iterator[str]:
    """What results must never show, one sentence each."""
    for row in rows:
        if row.status == FAILED:
            yield f"{row.workload} at {row.budget}, {row.planner}: failed: {row.reason}"
    for cell in cells:
        where = f"{cell.step} at {cell.budget} % with {cell.link}"
        if cell.greedy is not None and (cell.ilp is None or cell.ilp < cell.greedy):
            yield f"{where}: {cell.rule} is better than the ILP"


# Printing


def table(cells: Sequence[Cell]) -> str:
    """A row per cell."""
    heads = ("step", "link", "budget %", "ilp", "best greedy", "gain", "bound", "gap %", "limit")
    rows = [
        (
            cell.step,
            cell.link,
            cell.budget,
            _shown(cell.ilp),
            "-" if cell.greedy is None else f"{cell.greedy:.2f} {cell.rule}",
            _shown(cell.gain),
            "-" if cell.proven_infeasible else f"{cell.reachable:.2f}",
            _shown(cell.gap) + (" *" if cell.time_limited else ""),
            cell.limit,
        )
        for cell in cells
    ]
    return "\n".join(table_lines(heads, rows))


def _shown(value: float | None) -> str:
    return "-" if value is None else f"{value:.2f}"


def summary(cells: Sequence[Cell]) -> str:
    """Where the ILP wins, by how much, and where it does not: worked out from the cells."""
    possible = [cell for cell in cells if not cell.proven_infeasible]
    both = [cell for cell in possible if cell.gain is not None]
    wins = [cell for cell in both if (cell.gain or 0.0) >= GAIN]
    even = [cell for cell in both if (cell.gain or 0.0) < GAIN]
    alone = [cell for cell in possible if cell.greedy is None and cell.ilp is not None]
    neither = [cell for cell in possible if cell.greedy is None and cell.ilp is None]
    closed = [cell for cell in even if cell.gap is not None and cell.gap <= 100 * PROVEN]
    lines = [
        f"* {_problems(len(cells))}; for {len(cells) - len(possible)} of them it is proven that "
        "nothing fits.",
        f"* The ILP is at least {GAIN:g} points better than the best greedy on {len(wins)} of the "
        f"{len(both)} on which both find a plan{_most(wins)}.",
        f"* On {len(alone)} more it alone finds a plan{_examples(alone)}; on {len(neither)} "
        f"nobody does{_examples(neither)}.",
        f"* On the other {len(even)} the best greedy is as good within {GAIN:g} points; on "
        f"{len(closed)} of them it is proven that no plan gains more than {PROVEN:.1%} of the "
        "step, so that there is nothing left for an ILP.",
    ]
    return "\n".join([*lines, "", _division("budget", both, lambda c: f"{c.budget} %"), "",
                      _division("link", both, lambda c: c.link), "",
                      _division("step", both, lambda c: c.step)])  # fmt: skip


def _problems(count: int) -> str:
    return f"{count} problem{'' if count == 1 else 's'}"


def _most(cells: Sequence[Cell]) -> str:
    if not cells:
        return ""
    best = max(cells, key=lambda cell: cell.gain or 0.0)
    gains = sorted(cell.gain or 0.0 for cell in cells)
    return (
        f", by {gains[len(gains) // 2]:.1f} points in the middle of them and by {gains[-1]:.1f} at "
        f"most ({best.step} at {best.budget} % with {best.link})"
    )


def _examples(cells: Sequence[Cell]) -> str:
    found = list(dict.fromkeys(f"{cell.step} at {cell.budget} %" for cell in cells))
    more = f" and {len(found) - 3} others" if len(found) > 3 else ""
    return f" ({', '.join(found[:3])}{more})" if found else ""


def _division(name: str, cells: Sequence[Cell], of: Callable[[Cell], str]) -> str:
    """How the gains are distributed over the values of something."""
    groups: dict[str, list[Cell]] = {}
    for cell in cells:
        groups.setdefault(of(cell), []).append(cell)
    heads = (name, "problems", "ilp better", "mean gain", "largest gain", "proven")
    rows = []
    for value, group in groups.items():
        gains = [cell.gain or 0.0 for cell in group]
        proven = sum(cell.gap is not None and cell.gap <= 100 * PROVEN for cell in group)
        better, mean = sum(gain >= GAIN for gain in gains), sum(gains) / len(gains)
        rows.append((value, len(group), better, f"{mean:.2f}", f"{max(gains):.2f}", proven))
    return "\n".join(table_lines(heads, rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, check, print, write."""
    parser = parser_of(__doc__, seconds=8.0, machine=True, json=True, write="update docs/gains.md")
    add_grid_options(parser, WORKLOADS)
    parser.add_argument("--budgets", default=",".join(map(str, BUDGETS)), help="percent")
    parser.add_argument("--links", default=",".join(f"{rate:g}" for rate in LINKS.values()),
                        help="which of the links, by GB/s")  # fmt: skip
    asked = parser.parse_args(arguments)
    machine = load_machine(asked.machine)
    wanted = [float(text) for text in asked.links.split(",")]
    links = {name: rate for name, rate in LINKS.items() if rate in wanted}
    if len(links) != len(wanted):
        parser.error(f"--links: choose from {', '.join(f'{r:g}' for r in LINKS.values())}")
    found = asked_sources(asked, machine)
    budgets = [f"{text}%" for text in names_in(asked.budgets)]
    settings = Settings(seconds=asked.seconds)
    chains = [
        chain_of(source, machine, rate, budgets, settings)
        for source in found
        for rate in links.values()
    ]
    rows = asked_rows(asked, "gains", chains)
    cells = cells_of(rows, {source.name: source.kind for source in found}, links)
    if failed(faults(rows, cells)):
        return 1
    together = "one problem" if asked.jobs == 1 else f"{asked.jobs} problems"
    given = f"The ILP had {asked.seconds:g} seconds a problem, {together} at a time."
    text = f"{given}\n\n{summary(cells)}\n\n{table(cells)}"
    if asked.json:
        print(json.dumps({"schema": "slackswap.gains/1", "cells": [asdict(c) for c in cells]}))
    else:
        print(text)
    if asked.write:
        rewrite(PAGE, "gains", text)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""Overhead over forty budgets: more memory never makes a plan slower.

    python -m benchmarks.monotone [--write] [--json] [--seconds 3] [--jobs 2] [--journal FILE]

For every shipped workload (with all its layers unless `--layers` says otherwise), every shipped
graph and every measured profile that there is (see `benchmarks.grids`): budgets evenly spaced from
the smallest that is not proven to be too small up to the peak of the step without a limit. The run
fails if, as the budget grows, the step of any planner gets longer, a plan that was found is lost,
or the bound rises; or if the ILP loses anything with the full peak.

`--write` updates the curves in docs/gains.md.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

from benchmarks.command import failed, parser_of, rewrite, table_lines
from benchmarks.gains import PAGE
from benchmarks.grids import Source, add_grid_options, asked_rows, asked_sources, chain_of
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.step import TrainingStep, liveness
from slackswap_opt.study import Settings, SweepRow, lower_limit
from slackswap_opt.study.chain import Chain
from slackswap_opt.study.results import FAILED
from slackswap_opt.workloads import build_step, with_changes, workload_names
from slackswap_opt.workloads.describe import Workload

BUDGETS = 40
GAP = 0.005
"""Certified gap at which the ILP stops: what is checked does not depend on it."""
MARKS = "▁▂▃▄▅▆▇█"
"""Heights of a curve in text, from no overhead to the largest one shown."""
QUARTERS = 5
"""Columns of the table: the smallest budget, the largest, and evenly between."""


@dataclass(frozen=True)
class Curve:
    """One planner on one step.

    Attributes:
        step: name of the step.
        planner: its name.
        budget_bytes: ascending.
        step_s: by budget; None without a plan.
        ideal_step_s: of the step without a limit.
        bound_step_s: by budget.
        time_limited: number of budgets at which the clock ended the ILP.
    """

    step: str
    planner: str
    budget_bytes: tuple[int, ...]
    step_s: tuple[float | None, ...]
    ideal_step_s: float
    bound_step_s: tuple[float, ...]
    time_limited: int

    def overheads(self) -> list[float | None]:
        """In percent of the ideal step, by budget."""
        ideal = self.ideal_step_s
        return [
            None if step is None else 100 * (step / ideal - 1) if ideal else 0.0
            for step in self.step_s
        ]

    def faults(self) -> Iterator[str]:
        """Where it is not monotone, one sentence each."""
        where = f"{self.step}, {self.planner}"
        pairs = list(zip(self.budget_bytes, self.step_s, self.bound_step_s, strict=True))
        for (less, before, bound), (more, after, next_bound) in pairwise(pairs):
            if before is not None and (after is None or after > before):
                yield f"{where}: slower at {more} bytes than at {less}"
            if next_bound > bound:
                yield f"{where}: the bound at {more} bytes is above that at {less}"
        if self.planner == "ilp" and self.step_s[-1] != self.ideal_step_s:
            yield f"{where}: it loses time at the full peak"

    def drawn(self) -> str:
        """The overhead as a line of text, the smallest budget on the left."""
        most = max((o for o in self.overheads() if o is not None), default=0.0)

        def mark(overhead: float | None) -> str:
            if overhead is None:
                return "·"
            return MARKS[min(len(MARKS) - 1, int(len(MARKS) * overhead / most)) if most else 0]

        return "".join(map(mark, self.overheads()))


def budgets_of(step: TrainingStep, count: int) -> list[int]:
    """Bytes, evenly spaced from the smallest budget that may do to the peak without a limit."""
    least, peak = lower_limit(step).budget_bytes, liveness(step).ideal_peak_bytes
    return [least + n * (peak - least) // (count - 1) for n in range(count)]


def chain_over(source: Source, machine: Machine, count: int, settings: Settings) -> Chain:
    """All budgets of a step."""
    step = source.step
    if isinstance(step, Workload):
        step = build_step(step, machine)
    texts = [str(size) for size in budgets_of(step, count)]
    return chain_of(source, machine, None, list(dict.fromkeys(texts)), settings)


def curves_of(rows: Sequence[SweepRow]) -> list[Curve]:
    """A curve per step and planner.

    Raises:
        ValueError: if a row failed.
    """
    failed = [row for row in rows if row.status == FAILED]
    if failed:
        raise ValueError("\n".join(f"{r.workload}, {r.planner}: {r.reason}" for r in failed))
    grouped: dict[tuple[str, str], list[SweepRow]] = {}
    for row in rows:
        grouped.setdefault((row.workload, row.planner), []).append(row)
    return [
        Curve(
            step,
            planner,
            tuple(row.budget_bytes or 0 for row in found),
            tuple(row.step_s for row in found),
            found[0].ideal_step_s or 0.0,
            tuple(row.bound_step_s or 0.0 for row in found),
            sum(bool(row.time_limited) for row in found),
        )
        for (step, planner), found in grouped.items()
    ]


def markdown(curves: Sequence[Curve]) -> str:
    """The ILP's curves, and what was checked."""
    budgets = sum(len(curve.budget_bytes) for curve in curves)
    shown = [curve for curve in curves if curve.planner == "ilp"]
    share = [f"% at {n}/{QUARTERS - 1}" for n in range(QUARTERS)]
    heads = ("step", "smallest GiB", "peak GiB", "overhead over the budgets", *share)
    rows = []
    for curve in shown:
        last = len(curve.budget_bytes) - 1
        overheads = curve.overheads()
        at = [overheads[n * last // (QUARTERS - 1)] for n in range(QUARTERS)]
        cells = (
            curve.step,
            f"{curve.budget_bytes[0] / 2**30:.3g}",
            f"{curve.budget_bytes[-1] / 2**30:.3g}",
            f"`{curve.drawn()}`",
            *("-" if o is None else f"{o:.2f}" for o in at),
        )
        rows.append(cells)
    lines = table_lines(heads, rows)
    wrong = [fault for curve in curves for fault in curve.faults()]
    planners = list(dict.fromkeys(curve.planner for curve in curves))
    if wrong:
        return "\n".join([*lines, "", *(f"Not monotone: {fault}." for fault in wrong)])
    lines += [
        "",
        f"No step got longer with more memory on any of {len(shown)} steps, for each of the "
        f"planners {', '.join(planners)} ({budgets} problems). The clock ended the ILP on "
        f"{sum(curve.time_limited for curve in shown)} of "
        f"{sum(len(curve.budget_bytes) for curve in shown)}.",
    ]
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, check, print, write."""
    parser = parser_of(__doc__, seconds=3.0, machine=True, json=True, write="update docs/gains.md")
    add_grid_options(parser, workload_names())
    parser.add_argument("--layers", type=int, help="of the workloads (default: as they are)")
    parser.add_argument("--budgets", type=int, default=BUDGETS, help="how many")
    asked = parser.parse_args(arguments)
    if asked.budgets < 2:
        parser.error(f"--budgets is {asked.budgets}; give 2 or more")
    machine = load_machine(asked.machine)
    found = [shortened(source, asked.layers) for source in asked_sources(asked, machine)]
    settings = Settings(GAP, asked.seconds)
    chains = [chain_over(source, machine, asked.budgets, settings) for source in found]
    curves = curves_of(asked_rows(asked, "monotone", chains))
    if asked.json:
        entries = [
            {"step": curve.step, "planner": curve.planner, "budget_bytes": curve.budget_bytes,
             "step_s": curve.step_s, "ideal_step_s": curve.ideal_step_s}
            for curve in curves
        ]  # fmt: skip
        print(json.dumps({"schema": "slackswap.monotone/1", "curves": entries}))
    else:
        print(markdown(curves))
    if failed(fault for curve in curves for fault in curve.faults()):
        return 1
    if asked.write:
        rewrite(PAGE, "monotone", markdown(curves))
    return 0


def shortened(source: Source, layers: int | None) -> Source:
    """A workload with so many layers, or with all; a step as it is."""
    if layers is None or not isinstance(source.step, Workload):
        return source
    name = f"{source.name}, {layers} layer{'' if layers == 1 else 's'}"
    return Source(name, source.kind, with_changes(source.step, layers=layers))


if __name__ == "__main__":
    sys.exit(main())

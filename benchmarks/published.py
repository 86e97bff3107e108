"""Our planners and bound beside the published values of SlackSwap (arXiv 2610.13003).

    python -m benchmarks.published [--write]

The publication models an A100 with PCIe 4.0 at half of the activation memory, and gives neither
batch and sequence lengths nor the fraction of its peak rate that the device attains. The fraction
decides how much transfer time hides under compute, so everything is computed over a range of it
on the machine `plain-a100`.

`--write` draws docs/images/published.png and updates docs/published.md.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace

from benchmarks.command import ROOT, failed, parser_of, rewrite, table_lines
from benchmarks.results import faults, results
from benchmarks.results_tables import Result
from slackswap_opt.figures import Panel, published, save
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.workloads import build_step, load_workload

MACHINE = "plain-a100"
FRACTIONS = (0.4, 0.5, 0.55, 0.6, 0.7, 0.8)
SHOWN = ("greedy", "ilp")
PERCENT = 50
BEYOND = "out of reach of any plan"


@dataclass(frozen=True)
class Claim:
    """A published value and the workload that stands for it.

    Attributes:
        title: what tables call it.
        workload: name of the workload.
        retained: published throughput relative to ideal.
    """

    title: str
    workload: str
    retained: float


CLAIMS = (
    Claim("BERT-Large, fused attention", "bert-large", 0.963),
    Claim("BERT-Large, stored scores", "bert-large-eager", 0.963),
    Claim("GPT-2 XL", "gpt2-xl", 0.976),
    Claim("Llama-7B", "llama-7b", 0.996),
)


def attaining(machine: Machine, fraction: float) -> Machine:
    """The machine with another attained fraction of its arithmetic peak."""
    return replace(machine, device=replace(machine.device, attained_flops=fraction))


def measured(claim: Claim, fractions: Sequence[float], seconds: float) -> list[Result]:
    """Every planner on a claim's workload, one result per fraction."""
    found: list[Result] = []
    for fraction in fractions:
        machine = attaining(load_machine(MACHINE), fraction)
        step = build_step(load_workload(claim.workload), machine)
        found += results(claim.workload, step, machine, [PERCENT], seconds)
    return found


def panel(claim: Claim, found: Sequence[Result]) -> Panel:
    """What the figure draws of a claim."""
    lines = {name: [result.retained(name) for result in found] for name in SHOWN}
    return Panel(claim.title, claim.retained, lines, [result.reachable for result in found])


def markdown(fractions: Sequence[float], rows: Sequence[tuple[Claim, Sequence[Result]]]) -> str:
    """The table of docs/published.md, and from where on no plan reaches what is published."""
    sentences = []
    for claim, found in rows:
        pairs = zip(fractions, found, strict=True)
        beyond = [f"{fraction:g}" for fraction, result in pairs if place(claim, result) == BEYOND]
        where = f"at {', '.join(beyond)}" if beyond else "nowhere"
        sentences.append(f"* {claim.title}: the bound is below the published value {where}.")
    heads = ("workload", "published", "attained", "greedy", "ilp", "bound", "published is")
    cells = [
        (
            claim.title,
            f"{100 * claim.retained:.1f}",
            f"{fraction:g}",
            *(_percent(result.retained(name)) for name in SHOWN),
            _percent(result.reachable),
            place(claim, result),
        )
        for claim, found in rows
        for fraction, result in zip(fractions, found, strict=True)
    ]
    return "\n".join([*sentences, "", *table_lines(heads, cells)])


def place(claim: Claim, result: Result) -> str:
    """Where a published value lies, allowing for its rounding to a tenth of a percent."""
    if claim.retained - 0.0005 > result.reachable:
        return BEYOND
    if claim.retained - 0.0005 > (result.retained("ilp") or 0):
        return "between our plan and the bound"
    return "reached"


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{100 * value:.2f}"


def main() -> int:
    """Run, check, print, write."""
    parser = parser_of(__doc__, seconds=60.0, write="update the page and its figure")
    parser.add_argument("--fractions", default=",".join(map(str, FRACTIONS)))
    asked = parser.parse_args()
    fractions = [float(text) for text in asked.fractions.split(",")]
    rows = [(claim, measured(claim, fractions, asked.seconds)) for claim in CLAIMS]
    if failed(fault for _, found in rows for result in found for fault in faults([result])):
        return 1
    text = markdown(fractions, rows)
    print(text)
    if asked.write:
        rewrite(ROOT / "docs/published.md", "published", text)
        panels = [panel(claim, found) for claim, found in rows]
        save(published(fractions, panels), ROOT / "docs/images/published.png")
    return 0


if __name__ == "__main__":
    sys.exit(main())

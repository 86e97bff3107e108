"""Large tensors in parts: the smallest memory, and the overhead at equal budgets in bytes.

    python -m benchmarks.parts [--workloads gpt2-xl,llama-7b] [--parts 2,4] [--above 256MiB]
                               [--budgets 50,20,10] [--planners greedy,ilp] [--seconds 60]
                               [--json] [--write]

Budgets are percentages of the ideal peak of the whole step, and the same bytes for every number of
parts. Overheads are against the ideal whole step, so that what parts cost in launches counts. The
run fails, and prints no table, if the ideal step in parts needs more memory than the whole one, or
is shorter. `--write` updates docs/parts.md.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass

from benchmarks.results import ROOT, rewrite
from slackswap_opt.machine import DEFAULT_MACHINE, Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import Parts, TrainingStep
from slackswap_opt.study import Settings, rows_of, smallest_budget, sweep
from slackswap_opt.study.quantities import PARTS_ABOVE, parse_bytes
from slackswap_opt.workloads import build_step, load_workload

PAGE = ROOT / "docs" / "parts.md"
WORKLOADS = "gpt2-xl,llama-7b"
GIB = 2**30
NS_PER_S = 10**9


@dataclass(frozen=True)
class Answer:
    """One planner at one budget.

    Attributes:
        percent: of the ideal peak of the whole step.
        budget_bytes: the same in bytes.
        planner: its name.
        step_s: simulated step; None if it finds no plan.
        bound_step_s: no schedule of this step is faster.
        time_limited: whether the clock ended the search.
    """

    percent: float
    budget_bytes: int
    planner: str
    step_s: float | None
    bound_step_s: float
    time_limited: bool


@dataclass(frozen=True)
class Case:
    """One workload in one number of parts.

    Attributes:
        workload: its name.
        parts: how many, 1 for the whole step.
        operations: of the step.
        ideal_peak_bytes: without a limit.
        ideal_step_ns: without a limit, launches of parts included.
        least_bytes: a proven limit: no schedule runs with less.
        found_bytes: the smallest budget with a schedule; None if there is none.
        answers: planners at budgets.
    """

    workload: str
    parts: int
    operations: int
    ideal_peak_bytes: int
    ideal_step_ns: int
    least_bytes: int
    found_bytes: int | None
    answers: tuple[Answer, ...]


def measure(
    workload: str,
    counts: Sequence[int],
    above: int,
    percents: Sequence[float],
    planners: Sequence[str],
    seconds: float,
    machine: Machine,
    report: Callable[[str], None] = lambda _: None,
) -> list[Case]:
    """One workload whole, and in each number of parts."""
    step = build_step(load_workload(workload), machine)
    peak = Problem(step, machine, 1).liveness.ideal_peak_bytes
    budgets = [int(percent * peak / 100) for percent in percents]
    launch_ns = machine.device.launch_ns
    steps = {1: step, **{count: Parts(count, above).of(step, launch_ns) for count in counts}}
    return [
        _case(workload, count, made, machine, dict(zip(percents, budgets, strict=True)),
              planners, seconds, report)
        for count, made in steps.items()
    ]  # fmt: skip


def _case(
    workload: str,
    count: int,
    step: TrainingStep,
    machine: Machine,
    budgets: dict[float, int],
    planners: Sequence[str],
    seconds: float,
    report: Callable[[str], None],
) -> Case:
    problem = Problem(step, machine, 1)
    chosen = {name: PLANNERS[name] for name in planners}
    cells = sweep(problem, list(budgets.values()), chosen, Settings(seconds=seconds), report)
    smallest = smallest_budget(problem, report)
    answers = tuple(
        Answer(percent, size, row.planner, row.step_s, row.bound_step_s, row.time_limited)
        for (percent, size), cell in zip(budgets.items(), cells, strict=True)
        for row in rows_of(cell)
    )
    return Case(
        workload, count, len(step.operations), problem.liveness.ideal_peak_bytes,
        problem.ideal_step_ns, smallest.limit.budget_bytes, smallest.budget_bytes, answers,
    )  # fmt: skip


def faults(cases: Sequence[Case]) -> Iterator[str]:
    """What results must never show."""
    whole = {case.workload: case for case in cases if case.parts == 1}
    for case in cases:
        before = whole[case.workload]
        where = f"{case.workload} in {case.parts} parts"
        if case.ideal_peak_bytes > before.ideal_peak_bytes:
            yield f"{where}: the ideal step needs more memory than the whole one"
        if case.ideal_step_ns < before.ideal_step_ns:
            yield f"{where}: the ideal step is shorter than the whole one"


def sizes_table(cases: Sequence[Case]) -> str:
    """How small the step gets."""
    lines = [
        "| workload | parts | operations | ideal peak GiB | ideal step ms | proven least GiB "
        "| smallest found GiB | of the whole step's peak |",
        "|---|" + "---:|" * 7,
    ]
    whole = {case.workload: case.ideal_peak_bytes for case in cases if case.parts == 1}
    for case in cases:
        found = case.found_bytes
        cells = [
            case.workload,
            "whole" if case.parts == 1 else str(case.parts),
            f"{case.operations:,}",
            f"{case.ideal_peak_bytes / GIB:.2f}",
            f"{case.ideal_step_ns / 1e6:.2f}",
            f"{case.least_bytes / GIB:.2f}",
            "-" if found is None else f"{found / GIB:.2f}",
            "-" if found is None else f"{100 * found / whole[case.workload]:.1f} %",
        ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines)


def overheads_table(cases: Sequence[Case]) -> str:
    """Milliseconds over the ideal whole step: each planner and the bound, by number of parts."""
    planners = list(dict.fromkeys(answer.planner for case in cases for answer in case.answers))
    counts = list(dict.fromkeys(case.parts for case in cases))
    names = ["whole" if count == 1 else f"{count} parts" for count in counts]
    heads = [f"{planner}, {name}" for planner in [*planners, "bound"] for name in names]
    lines = [
        "| workload | budget | GiB | " + " | ".join(heads) + " |",
        "|---|" + "---:|" * (2 + len(heads)),
    ]
    for workload in dict.fromkeys(case.workload for case in cases):
        own = {case.parts: case for case in cases if case.workload == workload}
        ideal_s = own[1].ideal_step_ns / NS_PER_S
        for percent in dict.fromkeys(answer.percent for answer in own[1].answers):
            answers = {
                (answer.planner, count): answer
                for count, case in own.items()
                for answer in case.answers
                if answer.percent == percent
            }
            cells = [_overhead(answers[p, count], ideal_s) for p in planners for count in counts]
            for count in counts:
                some = answers[planners[0], count]
                fits = some.budget_bytes >= own[count].least_bytes
                cells.append(f"{1e3 * (some.bound_step_s - ideal_s):.2f}" if fits else "no plan")
            size = answers[planners[0], 1].budget_bytes
            lines.append(
                f"| {workload} | {percent:g} % | {size / GIB:.2f} | " + " | ".join(cells) + " |"
            )
    return "\n".join(lines)


def _overhead(answer: Answer, ideal_s: float) -> str:
    if answer.step_s is None:
        return "-"
    return f"{1e3 * (answer.step_s - ideal_s):.2f}" + ("*" if answer.time_limited else "")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure, check, print, write."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--workloads", default=WORKLOADS)
    parser.add_argument("--parts", default="2,4", help="numbers of parts")
    parser.add_argument("--above", default=PARTS_ABOVE, help="smaller tensors stay whole")
    parser.add_argument("--budgets", default="50,20,10", help="percent of the whole step's peak")
    parser.add_argument("--planners", default="greedy,ilp")
    parser.add_argument("--machine", default=DEFAULT_MACHINE)
    parser.add_argument("--seconds", type=float, default=60.0, help="limit of the ILP, each")
    parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", action="store_true", help="update docs/parts.md")
    asked = parser.parse_args(arguments)
    cases: list[Case] = []
    for workload in asked.workloads.split(","):
        cases += measure(
            workload,
            [int(text) for text in asked.parts.split(",")],
            parse_bytes(asked.above, "--above"),
            [float(text) for text in asked.budgets.split(",")],
            asked.planners.split(","),
            asked.seconds,
            load_machine(asked.machine),
            lambda message: print(f"  {message}", file=sys.stderr),
        )
    wrong = list(faults(cases))
    if wrong:
        print("\n".join(wrong), file=sys.stderr)
        return 1
    if asked.json:
        print(json.dumps([asdict(case) for case in cases], indent=1))
    else:
        print(f"{sizes_table(cases)}\n\n{overheads_table(cases)}")
    if asked.write:
        rewrite(PAGE, "sizes", sizes_table(cases))
        limit = f"The ILP had {asked.seconds:g} s for each budget."
        rewrite(PAGE, "overheads", f"{overheads_table(cases)}\n\n{limit}")
    return 0


if __name__ == "__main__":
    sys.exit(main())

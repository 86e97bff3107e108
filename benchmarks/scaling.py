"""Planning time, memory and certified gap over the number of layers.

    python -m benchmarks.scaling [--write] [--json] [--budget 50%]
                                 [--cases gpt3-175b:12,24 llama3-405b:126]

Each case is the command `slackswap compare WORKLOAD --layers N --budget 50% --planners ilp` in a
fresh process, from its start to the printed row: wall time, processor time of it and its solvers,
and the largest sum of their resident memory, looked at every 20 ms (where /proc does not tell, the
largest single process). Processor time says more where a machine is shared.

The slope is that of the line through log(seconds) over log(layers), by least squares: 1 is linear.
The run ends with exit code 1 if a case finds no plan or misses what is asked for.

`--write` draws docs/images/scaling.png and updates docs/scaling.md.
"""

from __future__ import annotations

import json
import math
import resource
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from itertools import cycle
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure
from matplotlib.ticker import LogLocator, NullLocator

from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from slackswap_opt.figures import save, style
from slackswap_opt.figures.scaling import over_layers
from slackswap_opt.machine import load_machine
from slackswap_opt.workloads import build_step, load_workload, with_changes

CASES = ("llama3-405b:12,24,48,96,126", "gpt3-175b:12,24,48,96,126")
"""A line is fitted to each workload."""
BUDGET = "50%"
PAGE = ROOT / "docs/scaling.md"
PICTURE = ROOT / "docs/images/scaling.png"
LONG = 96
"""Layers from which what is asked for holds."""
MOST_SECONDS, MOST_GAP, MOST_GIB, MOST_SLOPE = 60.0, 0.002, 2.0, 1.2
"""What is asked for."""
COLOURS = (style.BLUE, style.VERMILION, style.PURPLE)
LOOK_S = 0.02
SECONDS = 55.0
"""Limit of the ILP with its bound and heuristics: the rest of a minute is for the start."""


@dataclass(frozen=True)
class Row:
    """One case.

    Attributes:
        workload: its name.
        layers: how many.
        operations: of its step.
        seconds: wall time from the start of the command to its row.
        cpu_s: processor time of the process and all that it started.
        peak_mib: resident memory of them together, at its largest.
        planning_s: the part of the wall time that the planner says it took.
        status: of the plan.
        retained: ideal step / simulated step; None without a plan.
        gap: certified gap; None without a plan.
        time_limited: whether the clock ended the search.
    """

    workload: str
    layers: int
    operations: int
    seconds: float
    cpu_s: float
    peak_mib: float
    planning_s: float
    status: str
    retained: float | None
    gap: float | None
    time_limited: bool


# Measuring


def measured(workload: str, layers: int, budget: str, limit_s: float, machine: str) -> Row:
    """Run one case in a process of its own.

    Raises:
        SystemExit: with what the command printed, if it failed.
    """
    step = build_step(with_changes(load_workload(workload), layers=layers), load_machine(machine))
    command = [
        sys.executable, "-m", "slackswap_opt", "compare", workload, "--layers", str(layers),
        "--budget", budget, "--planners", "ilp", "--machine", machine,
        "--time-limit", str(limit_s), "--json",
    ]  # fmt: skip
    cpu, began = _cpu_of_children(), time.perf_counter()
    with subprocess.Popen(
        command, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE
    ) as process:
        watch = MemoryWatch(process.pid)
        printed, complaints = process.communicate()
        seconds = time.perf_counter() - began
        peak = watch.stop()
    try:
        row = json.loads(printed)["rows"][0]
    except (ValueError, LookupError):
        raise SystemExit(f"{' '.join(command)}\n{complaints}") from None
    return Row(
        workload,
        layers,
        len(step.operations),
        seconds,
        _cpu_of_children() - cpu,
        (peak or _largest_child()) / 2**20,
        row["planning_s"],
        row["status"],
        row["throughput_retained"],
        row["certified_gap"],
        row["time_limited"],
    )


class MemoryWatch:
    """The largest resident memory of a process and its descendants together, until stopped."""

    def __init__(self, pid: int) -> None:
        self._pid, self._peak = pid, 0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """Bytes; 0 where the system does not tell."""
        self._ended.set()
        self._thread.join()
        return self._peak

    def _look(self) -> None:
        while True:
            self._peak = max(self._peak, resident_bytes(self._pid))
            if self._ended.wait(LOOK_S):
                return


def resident_bytes(pid: int) -> int:
    """Resident memory of a process and its descendants; pages that they share count for each."""
    children: dict[int, list[int]] = {}
    pages: dict[int, int] = {}
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it has ended
        number = int(path.parent.name)
        children.setdefault(int(fields[1]), []).append(number)
        pages[number] = int(fields[21])
    total, stack = 0, [pid]
    while stack:
        number = stack.pop()
        total += pages.get(number, 0)
        stack += children.get(number, ())
    return total * resource.getpagesize()


def _cpu_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def _largest_child() -> int:
    unit = 1 if sys.platform == "darwin" else 1024
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_maxrss * unit


# What it comes to


def slope(sizes: Sequence[float], values: Sequence[float]) -> float:
    """Of the line through the logarithms, by least squares.

    Raises:
        ValueError: for fewer than two different sizes.
    """
    x, y = [math.log(size) for size in sizes], [math.log(value) for value in values]
    if len(set(x)) < 2:
        raise ValueError("a slope needs two different sizes")
    mean_x, mean_y = sum(x) / len(x), sum(y) / len(y)
    across = sum((a - mean_x) * (b - mean_y) for a, b in zip(x, y, strict=True))
    return across / sum((a - mean_x) ** 2 for a in x)


def by_workload(rows: Sequence[Row]) -> dict[str, list[Row]]:
    """The rows of each workload, in the order in which they first appear."""
    found: dict[str, list[Row]] = {}
    for row in rows:
        found.setdefault(row.workload, []).append(row)
    return found


def slopes(rows: Sequence[Row]) -> dict[str, dict[str, float]]:
    """By workload of several sizes, slopes of wall and processor time."""
    return {
        workload: {
            "seconds": slope([row.layers for row in line], [row.seconds for row in line]),
            "cpu_s": slope([row.layers for row in line], [row.cpu_s for row in line]),
        }
        for workload, line in by_workload(rows).items()
        if len({row.layers for row in line}) > 1
    }


def missed(rows: Sequence[Row]) -> Iterator[str]:
    """What is asked for and does not hold, one sentence each."""
    for row in rows:
        where = f"{row.workload} with {row.layers} layers"
        if row.gap is None:
            yield f"{where}: no plan"
        if row.layers < LONG:
            continue
        if row.seconds > MOST_SECONDS:
            yield f"{where}: {row.seconds:.1f} s, asked for at most {MOST_SECONDS:g} s"
        if row.gap is not None and row.gap > MOST_GAP:
            yield f"{where}: a gap of {row.gap:.2%}, asked for at most {MOST_GAP:.1%}"
        if row.peak_mib > MOST_GIB * 1024:
            yield f"{where}: {row.peak_mib:.0f} MiB, asked for at most {MOST_GIB:g} GiB"
    for workload, found in slopes(rows).items():
        if found["seconds"] > MOST_SLOPE:
            yield (
                f"{workload}: a slope of {found['seconds']:.2f}, asked for at most {MOST_SLOPE:g}"
            )


def markdown(rows: Sequence[Row]) -> str:
    """The table of docs/scaling.md and what it comes to."""
    heads = (
        "workload", "layers", "operations", "wall s", "processor s", "peak MiB", "retained %",
        "gap %",
    )  # fmt: skip
    cells = [
        (
            row.workload,
            row.layers,
            row.operations,
            f"{row.seconds:.1f}" + (" *" if row.time_limited else ""),
            f"{row.cpu_s:.1f}",
            f"{row.peak_mib:.0f}",
            "-" if row.retained is None else f"{100 * row.retained:.2f}",
            "-" if row.gap is None else f"{100 * row.gap:.3f}",
        )
        for row in rows
    ]
    lines = [*table_lines(heads, cells), ""]
    lines_of = by_workload(rows)
    lines += [
        f"From {lines_of[workload][0].layers} to {lines_of[workload][-1].layers} layers of "
        f"{workload} planning time grows with a log-log slope of {found['seconds']:.2f}, "
        f"processor time with {found['cpu_s']:.2f}."
        for workload, found in slopes(rows).items()
    ]
    wrong = list(missed(rows))
    lines += [f"Not as asked for: {sentence}." for sentence in wrong]
    if not wrong and any(row.layers >= LONG for row in rows):
        lines.append(
            f"From {LONG} layers on every plan took at most {MOST_SECONDS:g} s and {MOST_GIB:g} "
            f"GiB, and its certified gap is at most {MOST_GAP:.1%} of the step."
        )
    return "\n".join(lines)


def picture(rows: Sequence[Row]) -> Figure:
    """Time with its lines, gap and memory over the layers, one curve per workload.

    A hollow marker is a search that the clock ended.
    """
    found = slopes(rows)
    with style.paper():
        figure = style.new_figure(style.TWO_COLUMNS, 2.1)
        times, gaps, memory = figure.subplots(1, 3)
        fits = []
        for (workload, line), colour in zip(
            by_workload(rows).items(), cycle(COLOURS), strict=False
        ):
            layers = [row.layers for row in line]
            ended = [row.layers for row in line if row.time_limited]
            for axes, values in (
                (times, [row.seconds for row in line]),
                (gaps, [100 * (row.gap or 0) for row in line]),
                (memory, [row.peak_mib for row in line]),
            ):
                axes.plot(layers, values, color=colour, marker="o", label=workload)
                shown = dict(zip(layers, values, strict=True))
                axes.plot(
                    ended, [shown[n] for n in ended], linestyle="", color=colour, marker="o",
                    markerfacecolor="white",
                )  # fmt: skip
            if workload in found:
                power = found[workload]["seconds"]
                at = math.exp(sum(map(math.log, layers)) / len(layers))
                level = math.exp(sum(math.log(row.seconds) for row in line) / len(line))
                fit = [level * (n / at) ** power for n in layers]
                fits += times.plot(
                    layers, fit, color=colour, linestyle=":", marker="", label=f"slope {power:.2f}"
                )
        for axes in (times, gaps, memory):
            over_layers(axes, {row.layers for row in rows})
        times.set_yscale("log")
        times.set_ylabel("planning time, s")
        times.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
        times.yaxis.set_major_formatter("{x:g}")
        times.yaxis.set_minor_locator(NullLocator())
        gaps.set_ylabel("certified gap, % of the step")
        memory.set_ylabel("memory of the planner, MiB")
        gaps.set_ylim(bottom=0)
        memory.set_ylim(bottom=0)
        if fits:
            times.legend(frameon=False, loc="best", handles=fits)
        memory.legend(frameon=False, loc="lower right")
    return figure


def document(rows: Sequence[Row]) -> dict[str, Any]:
    """The JSON document `slackswap.scaling/1`."""
    return {
        "schema": "slackswap.scaling/1",
        "rows": [asdict(row) for row in rows],
        "slopes": slopes(rows),
        "missed": list(missed(rows)),
    }


def cases_of(texts: Sequence[str]) -> list[tuple[str, int]]:
    """Workloads and layers from texts like `llama3-405b:12,24`.

    Raises:
        ValueError: for a text of another form.
    """
    found = []
    for text in texts:
        name, colon, numbers = text.partition(":")
        if not colon or not all(n.isdigit() and int(n) > 0 for n in numbers.split(",")):
            raise ValueError(f"{text!r} is not understood; write it like llama3-405b:12,24")
        found += [(name, int(number)) for number in numbers.split(",")]
    return found


def main(arguments: Sequence[str] | None = None) -> int:
    """Run, print, draw, write."""
    parser = parser_of(
        __doc__, seconds=SECONDS, machine=True, json=True, write="update the page and its picture"
    )
    parser.add_argument("--cases", nargs="+", default=list(CASES), metavar="WORKLOAD:LAYERS")
    parser.add_argument("--budget", default=BUDGET)
    asked = parser.parse_args(arguments)
    if asked.write and asked.budget != BUDGET:
        parser.error(f"--write is for a budget of {BUDGET}, which the page speaks of")
    try:
        cases = cases_of(asked.cases)
    except ValueError as error:
        parser.error(str(error))
    rows = []
    for workload, layers in cases:
        rows.append(measured(workload, layers, asked.budget, asked.seconds, asked.machine))
        print(f"  {workload}, {layers} layers: {rows[-1].seconds:.1f} s", file=sys.stderr)
    print(json.dumps(document(rows), indent=1) if asked.json else markdown(rows))
    if asked.write:
        rewrite(PAGE, "scaling", markdown(rows))
        save(picture(rows), PICTURE)
    return 1 if any(missed(rows)) else 0


if __name__ == "__main__":
    sys.exit(main())

"""A picture of a simulated schedule in text: three streams, the waits and the memory in use.

It needs no colour: every stream has marks of its own, explained by the legend under the picture.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Cause, Verdict
from slackswap_opt.step import Phase, TrainingStep

NARROWEST, WIDEST, PIPED = 40, 200, 80
"""Columns drawn at least, at most, and where the output is not a terminal."""
ROWS = 8
"""Rows from no memory to the budget."""
_LABEL = 8
_WAIT_IN, _WAIT_OUT = "i", "o"


@dataclass(frozen=True)
class Marks:
    """Characters to draw with.

    Attributes:
        forward: compute in the forward phase.
        backward: in the backward phase.
        optimizer: in the optimizer.
        again: an operation that runs again.
        levels: from nothing to all of a cell.
        line: the budget.
        side: left edge of the picture.
    """

    forward: str
    backward: str
    optimizer: str
    again: str
    levels: str
    line: str
    side: str

    def all(self) -> str:
        """Every character, to find out whether an encoding has them."""
        return "".join(vars(self).values())


BLOCKS = Marks("░", "▒", "▓", "×", " ▁▂▃▄▅▆▇█", "─", "│")
ASCII = Marks("f", "b", "u", "r", " .:#", "-", "|")


def marks_for(encoding: str | None) -> Marks:
    """Unicode blocks where the encoding has them, ASCII elsewhere."""
    try:
        BLOCKS.all().encode(encoding or "ascii")
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


def terminal_width() -> int:
    """Columns of the terminal that standard output is; `PIPED` where it is none."""
    return shutil.get_terminal_size((PIPED, 24)).columns if sys.stdout.isatty() else PIPED


def draw(
    step: TrainingStep, schedule: Schedule, verdict: Verdict, width: int, marks: Marks
) -> list[str]:
    """The picture as lines of at most `width` columns.

    Args:
        step: what was run.
        schedule: the program.
        verdict: its simulation; the line is drawn at the capacity it was played at.
        width: columns; brought to within 40 and 200.
        marks: characters to draw with.
    """
    width = min(max(width, NARROWEST), WIDEST)
    grid = _Grid(verdict.step_ns or 1, width - _LABEL - 1)
    line = verdict.timeline
    rows = [
        ("compute", _compute(step, schedule, verdict, grid, marks)),
        ("re-runs", _again(schedule, verdict, grid, marks)),
        ("waits", _waits(verdict, grid)),
        ("D2H", _busy(grid, line.out_start_ns, line.out_end_ns, marks)),
        ("H2D", _busy(grid, line.in_start_ns, line.in_end_ns, marks)),
        ("", ""),
        *_memory(verdict, grid, marks),
    ]
    drawn = [f"{label:>{_LABEL - 1}} {marks.side}{cells}".rstrip() for label, cells in rows]
    drawn.append(" " * (_LABEL + 1) + _axis(grid))
    return drawn + _legend(schedule, verdict, width, marks)


@dataclass(frozen=True)
class _Grid:
    """Columns of equal time."""

    span_ns: int
    columns: int

    def edges(self) -> NDArray[np.float64]:
        """(columns + 1,) limits of the columns, in nanoseconds."""
        return np.linspace(0, self.span_ns, self.columns + 1)

    def cover(self, spans: Iterable[tuple[int, int]]) -> NDArray[np.float64]:
        """(columns,) the share of each column that spans which do not overlap cover."""
        edges, covered = self.edges(), np.zeros(self.columns)
        for start, end in spans:
            first = min(int(np.searchsorted(edges, start, "right")) - 1, self.columns - 1)
            last = min(int(np.searchsorted(edges, end, "left")), self.columns)
            left = np.maximum(edges[first:last], start)
            right = np.minimum(edges[first + 1 : last + 1], end)
            covered[first:last] += np.maximum(right - left, 0)
        return covered * self.columns / self.span_ns

    def highest(self, at_ns: NDArray[np.int64], values: NDArray[np.int64]) -> NDArray[np.int64]:
        """(columns,) the highest value within each column; each value lasts until the next one."""
        edges = self.edges()
        found = np.zeros(self.columns, dtype=np.int64)
        for column in range(self.columns):
            first = int(np.searchsorted(at_ns, edges[column], "right")) - 1
            last = int(np.searchsorted(at_ns, edges[column + 1], "left"))
            if column == self.columns - 1:
                last = len(at_ns)
            found[column] = values[max(first, 0) : last].max(initial=0)
        return found


def _compute(
    step: TrainingStep, schedule: Schedule, verdict: Verdict, grid: _Grid, marks: Marks
) -> str:
    """What takes most of each column; blank where that is waiting."""
    line = verdict.timeline
    of_phase = {
        Phase.FORWARD: marks.forward,
        Phase.BACKWARD: marks.backward,
        Phase.OPTIMIZER: marks.optimizer,
    }
    spans: dict[str, list[tuple[int, int]]] = {mark: [] for mark in of_phase.values()}
    spans[marks.again] = []
    seen: set[int] = set()
    for event, op in enumerate(schedule.compute):
        mark = marks.again if op in seen else of_phase[step.operations[op].phase]
        seen.add(op)
        spans[mark].append((int(line.compute_start_ns[event]), int(line.compute_end_ns[event])))
    shares = np.array([grid.cover(found) for found in spans.values()])
    waiting = 1 - shares.sum(axis=0)
    choice = np.vstack([shares, waiting]).argmax(axis=0)
    letters = [*spans, " "]
    return "".join(letters[c] for c in choice)


def _again(schedule: Schedule, verdict: Verdict, grid: _Grid, marks: Marks) -> str:
    """How much of each column re-executions take."""
    line = verdict.timeline
    seen: set[int] = set()
    events = []
    for event, op in enumerate(schedule.compute):
        if op in seen:
            events.append(event)
        seen.add(op)
    return _busy(grid, line.compute_start_ns[events], line.compute_end_ns[events], marks)


def _waits(verdict: Verdict, grid: _Grid) -> str:
    """A mark wherever the compute stream waits at all, of the cause that takes longer."""
    shares = {
        cause: grid.cover((s.start_ns, s.end_ns) for s in verdict.timeline.stalls
                          if s.cause is cause)
        for cause in Cause
    }  # fmt: skip
    into, out = shares[Cause.SWAP_IN], shares[Cause.SWAP_OUT]
    return "".join(
        " " if not a and not b else _WAIT_IN if a >= b else _WAIT_OUT
        for a, b in zip(into, out, strict=True)
    )


def _busy(grid: _Grid, starts: NDArray[np.int64], ends: NDArray[np.int64], marks: Marks) -> str:
    """How much of each column the engine is busy."""
    spans = [
        (start, min(end, grid.span_ns) if end >= 0 else grid.span_ns)
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True)
        if start >= 0
    ]
    return "".join(_level(share, marks) for share in grid.cover(spans))


def _level(share: float, marks: Marks) -> str:
    """A mark for a share of a cell: none only for nothing, the highest only for all but all."""
    top = len(marks.levels) - 1
    if share <= 0:
        return marks.levels[0]
    return marks.levels[min(top, max(1, int(share * top + 1e-9)))]


def _memory(verdict: Verdict, grid: _Grid, marks: Marks) -> list[tuple[str, str]]:
    """Bars of the most memory in use in each column, and the line of the budget."""
    line = verdict.timeline
    used = grid.highest(line.memory_ns, line.memory_bytes)
    budget, peak = verdict.capacity_bytes, verdict.peak_bytes
    unit = max(budget / ROWS, peak / (2 * ROWS), 1.0)
    limit = max(1, round(budget / unit))
    top = max(limit, -int(-peak // unit))
    rows = []
    for row in range(top, 0, -1):
        if row == limit:
            rows.append(("budget", _budget_line(used > budget, marks)))
        cells = "".join(_level(size / unit - (row - 1), marks) for size in used)
        rows.append(("memory" if row == (limit + 1) // 2 else "", cells))
    return rows


def _budget_line(above: NDArray[np.bool_], marks: Marks) -> str:
    return "".join(marks.levels[-1] if over else marks.line for over in above)


def _axis(grid: _Grid) -> str:
    """Times at the ends and, where there is room, in the middle."""
    end, middle = _time(grid.span_ns), _time(grid.span_ns // 2)
    cells = list("0".ljust(grid.columns))
    cells[grid.columns - len(end) :] = end
    start = grid.columns // 2 - len(middle) // 2
    if start + len(middle) + 2 < grid.columns - len(end):
        cells[start : start + len(middle)] = middle
    return "".join(cells)


def _time(ns: int) -> str:
    for unit, scale in (("s", 10**9), ("ms", 10**6), ("us", 10**3)):
        if ns >= scale:
            return f"{ns / scale:.4g} {unit}"
    return f"{ns} ns"


def _legend(schedule: Schedule, verdict: Verdict, width: int, marks: Marks) -> list[str]:
    from slackswap_opt.cli import show

    waits = verdict.timeline.stalls
    entries = [
        f"{marks.forward} forward",
        f"{marks.backward} backward",
        f"{marks.optimizer} optimizer",
        f"{marks.again} re-run ({len(schedule.reexecutions())})",
        f"{_WAIT_IN} waits for a swap-in",
        f"{_WAIT_OUT} waits for a swap-out ({show.count(len(waits), 'wait')}, "
        f"{show.milliseconds(verdict.stall_ns / 1e9)} ms)",
        f"re-runs, D2H, H2D: share of the time, {marks.levels[1]} to {marks.levels[-1]}",
        f"{marks.line * 2} budget {show.memory(verdict.capacity_bytes)}",
        f"peak {show.memory(verdict.peak_bytes)}",
    ]
    return ["", *_wrapped(entries, width)]


def _wrapped(entries: Sequence[str], width: int) -> list[str]:
    """Entries joined, broken between them where possible."""
    lines: list[str] = []
    for entry in entries:
        if lines and len(lines[-1]) + len(entry) + 3 <= width:
            lines[-1] += f"   {entry}"
        else:
            lines += textwrap.wrap(entry, width)
    return lines

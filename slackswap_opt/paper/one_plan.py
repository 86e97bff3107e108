"""The figures of one problem in full: one task gives the rows of all of them."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from slackswap_opt import figures
from slackswap_opt.figures import (
    Decision,
    Figure,
    Memory,
    Peak,
    Point,
    Resident,
    Span,
    Spread,
)
from slackswap_opt.figures.points import of
from slackswap_opt.paper.case import Case
from slackswap_opt.paper.detail import KEPT_ALL, Detail
from slackswap_opt.paper.entry import (
    BEST,
    PAIR,
    PaperFigure,
    Results,
    Tables,
    machines_of,
    steps_of,
)
from slackswap_opt.paper.grid import Grid
from slackswap_opt.paper.tasks import Task

JITTERED = ("greedy", "capuchin", BEST)
Found = Mapping[str, list[dict[str, Any]]]
"""What `Detail` gives: plain rows by table."""


def _needs(grid: Grid, _: tuple[str, ...]) -> tuple[Task, ...]:
    case = Case(grid.pictured, layers=grid.pictured_layers)
    return (Detail(case, grid.shown, 2 * grid.seconds, grid.gap, grid.jitters, grid.trials),)


def _about(grid: Grid, tables: Tables) -> str:
    points = tables["points"]
    budget = points[0].budget_bytes / 2**30
    return (
        f"{steps_of(points)}; {machines_of(points)}; budget {grid.shown:g} % of the ideal peak, "
        f"{budget:.2f} GiB; {_certificate(points)}"
    )


def _certificate(points: Sequence[Point]) -> str:
    (best,) = of(points, BEST)
    if best.certified_gap is None:
        return "the ILP has no plan"
    ended = ", ended by the clock" if best.time_limited else ""
    return f"certified gap of the ILP's plan {100 * best.certified_gap:.3f} %{ended}"


def _rows(
    kind: type[Any], found: Sequence[Mapping[str, Any]], planners: Collection[str] | None = None
) -> list[Any]:
    """Rows of a figure, of some planners or of all."""
    return [kind(**row) for row in found if planners is None or row["planner"] in planners]


def _figure(
    name: str,
    title: str,
    caption: str,
    tables: Callable[[Found], Tables],
    draw: Callable[[Tables], Figure],
    about: Callable[[Grid, Tables], str] = _about,
) -> PaperFigure:
    """An entry whose tables are the given ones and the points of all planners."""

    def with_points(tasks: Sequence[Task], results: Results) -> Tables:
        (task,) = tasks
        found = results[task]
        return {**tables(found), "points": _rows(Point, found["points"])}

    return PaperFigure(name, title, _needs, with_points, draw, caption, about)


def _one_table(
    name: str,
    title: str,
    caption: str,
    rows: Callable[[Found], list[Any]],
    draw: Callable[[list[Any]], Figure],
    about: Callable[[Grid, Tables], str] = _about,
) -> PaperFigure:
    """An entry that is drawn from one table, which has its name."""
    return _figure(
        name,
        title,
        caption,
        lambda found: {name: rows(found)},
        lambda tables: draw(tables[name]),
        about,
    )


DECISIONS = _one_table(
    "decisions",
    "What greedy and ILP do with each saved activation",
    "A row per kind of tensor (with its size), a column per layer.",
    lambda found: _rows(Decision, found["actions"], PAIR),
    figures.decisions,
)

TIMELINE = _figure(
    "timeline",
    "One step by the ILP's plan, as simulated",
    "Compute with re-executions and waits, copies to the "
    "host and back, and the memory under the budget. The dashed line is the step without a limit.",
    lambda found: {
        "timeline": [
            Span(row["lane"], row["kind"], row["start_ms"], row["end_ms"])
            for row in found["spans"]
            if row["planner"] == BEST
        ],
        "memory": _rows(Memory, found["memory"], (BEST, KEPT_ALL)),
    },
    lambda tables: figures.step_timeline(
        tables["timeline"],
        [row for row in tables["memory"] if row.planner == BEST],
        [row for row in tables["memory"] if row.planner == KEPT_ALL],
    ),
)

MEMORY = _one_table(
    "memory",
    "Memory over the step, for each planner",
    "Each planner that has a schedule, on its step's own time; the "
    "dashed line keeps everything. Keep-all does not fit and is shown without the limit; planners "
    "without a plan at this budget are not shown.",
    lambda found: _rows(Memory, found["memory"]),
    figures.memory,
)

PEAKS = _one_table(
    "peaks",
    "Where the bytes are when memory is at its largest",
    "By kind of tensor, at the instant at which each planner's memory first reaches its peak.",
    lambda found: _rows(Resident, found["peaks"]),
    figures.peaks,
)

RESERVED = _one_table(
    "reserved",
    "Reserved against ideal peak",
    "The largest memory in use, without fragmentation, and what a model of PyTorch's caching "
    "allocator reserves for it over two steps, with segments of a fixed size and with expandable "
    "ones. A bar above the line does not fit the budget; keep-all is shown without it.",
    lambda found: _rows(Peak, found["reserved"]),
    figures.reserved,
)

JITTER = _one_table(
    "jitter",
    "Step time under jitter",
    "Every duration and every copy is multiplied by a factor of its own, lognormal with mean 1; "
    "markers are medians, bars the range from 5 to 95 %. Where trials run out of memory (OOM), "
    "their share is written.",
    lambda found: _rows(Spread, found["spreads"], JITTERED),
    figures.jitter,
    lambda grid, tables: f"{_about(grid, tables)}; {grid.trials} trials of each amount",
)

"""What the catalogue's entries are, and what they have in common."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from slackswap_opt.figures import Figure, Point
from slackswap_opt.figures.points import at_workload, workloads_in
from slackswap_opt.paper.grid import Grid
from slackswap_opt.paper.tasks import Solve, Task

BEST = "ilp"
PAIR = ("greedy", BEST)
Results = Mapping[Task, Any]
"""What each task gave, as plain JSON values."""
Tables = dict[str, list[Any]]
"""Rows by table; a figure's first table has its name."""


@dataclass(frozen=True)
class PaperFigure:
    """One figure.

    Attributes:
        name: of its files.
        title: what lists and captions call it.
        needs: the tasks whose results it shows, for a grid and further step files.
        tables: its rows, from the results of those tasks.
        draw: the figure, from its rows.
        caption: how to read it, without workload, machine and date.
        about: workload, machine and budget of its rows.
    """

    name: str
    title: str
    needs: Callable[[Grid, tuple[str, ...]], tuple[Task, ...]]
    tables: Callable[[Sequence[Task], Results], Tables]
    draw: Callable[[Tables], Figure]
    caption: str
    about: Callable[[Grid, Tables], str]


def points_in(tasks: Sequence[Task], results: Results) -> list[Point]:
    """The points of all tasks that solve problems."""
    return [Point(**row) for task in tasks if isinstance(task, Solve) for row in results[task]]


def steps_of(points: Sequence[Point]) -> str:
    """The steps of some points, with their shapes, in words."""
    told = []
    for name in workloads_in(points):
        some = at_workload(points, name)[0]
        shape = f" ({some.layers} layers, {some.batch} x {some.sequence})" if some.layers else ""
        told.append(name + shape)
    return ", ".join(told)


def machines_of(points: Sequence[Point]) -> str:
    """The machines of some points."""
    return ", ".join(dict.fromkeys(point.machine for point in points))


def range_of(values: Sequence[float]) -> str:
    """The smallest and the largest of some numbers."""
    return f"{min(values):g} to {max(values):g}"

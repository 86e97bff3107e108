"""Throughput retained over the activation budget, a panel per workload."""

from __future__ import annotations

from collections.abc import Sequence

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from slackswap_opt.figures import style
from slackswap_opt.figures.points import (
    Limits,
    Point,
    at_workload,
    of,
    planners_in,
    shape_of,
    workloads_in,
)

LOWEST = 68.0
"""Percent retained at the bottom of a panel; what is below is told in words."""


def budgets(
    points: Sequence[Point], limits: Sequence[Limits] = (), axes: Sequence[Axes] | None = None
) -> Figure:
    """A line per planner under the region that no schedule reaches, a panel per workload.

    ILP points are filled where the certified gap is within the one asked for, else hollow. A
    cross at the bottom says that a planner has no plan for a budget.

    Args:
        points: every planner at every budget.
        limits: smallest budgets: what is proven, and what was found.
        axes: one per workload; a figure of their own by default.
    """
    workloads = workloads_in(points)
    own = axes is None
    if axes is None:
        made = style.new_figure(style.TWO_COLUMNS, 2.45)
        axes = list(made.subplots(1, len(workloads), squeeze=False, sharey=True)[0])
    smallest = {limit.workload: limit for limit in limits}
    for ax, workload in zip(axes, workloads, strict=True):
        _panel(ax, at_workload(points, workload), smallest.get(workload))
    axes[0].set_ylabel("throughput retained, % of ideal")
    figure = style.figure_of(axes[0])
    handles = _keys(points, limits)
    if own:
        figure.legend(handles=handles, loc="outside lower center", ncols=5, frameon=False)
    else:
        axes[-1].legend(handles=handles, frameon=False)
    return figure


def budget(points: Sequence[Point], limit: Limits | None = None, ax: Axes | None = None) -> Figure:
    """The panel of one workload.

    Args:
        points: every planner at every budget, of one workload.
        limit: its smallest budgets.
        ax: where to draw; a figure of its own by default.
    """
    own = ax is None
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 3.2).add_subplot()
    _panel(ax, points, limit)
    ax.set_ylabel("throughput retained, % of ideal")
    handles = _keys(points, [limit] if limit else [])
    if own:
        figure = style.figure_of(ax)
        figure.legend(handles=handles, loc="outside lower center", ncols=2, frameon=False)
    else:
        ax.legend(handles=handles, frameon=False)
    return style.figure_of(ax)


def _panel(ax: Axes, points: Sequence[Point], limit: Limits | None) -> None:
    ceiling = 100.6
    by_budget = sorted({(100 * p.budget_fraction, 100 * p.bound_retained) for p in points})
    ax.fill_between(
        [x for x, _ in by_budget], [y for _, y in by_budget], ceiling, color=style.LIGHT,
        linewidth=0, zorder=0,
    )  # fmt: skip
    crosses = 0
    hidden = []
    for planner in planners_in(points):
        mine = sorted(of(points, planner), key=lambda p: p.budget_fraction)
        values = [p for p in mine if p.throughput_retained is not None]
        shown = [p for p in values if _percent(p) >= LOWEST]
        if values and not shown:
            best = max(values, key=_percent)
            hidden.append(f"{planner} {_percent(best):.0f} %")
        _line(ax, planner, shown)
        missing = [100 * p.budget_fraction for p in mine if p.throughput_retained is None]
        missing = [x for x in missing if not _impossible(x, limit)]
        if missing:
            crosses += 1
            ax.plot(
                missing, [LOWEST + 0.2 + 0.95 * crosses] * len(missing), linestyle="",
                marker="x", markersize=2.6, markeredgewidth=0.8,
                color=style.colours_of([planner])[planner],
            )  # fmt: skip
    if limit is not None:
        _mark_limits(ax, limit)
    if hidden:
        ax.text(
            0.98, 0.02 + 0.035 * crosses, "below: " + ", ".join(hidden), transform=ax.transAxes,
            ha="right", va="bottom", fontsize="x-small", color=style.GREY,
        )  # fmt: skip
    ax.set_title(f"{points[0].workload}\n{shape_of(points)}")
    ax.set_xlabel("budget, % of ideal peak")
    ax.set_xlim(0, 103)
    ax.set_xticks(range(0, 101, 20))
    ax.set_ylim(LOWEST, ceiling)
    style.plain(ax)


def _impossible(percent: float, limit: Limits | None) -> bool:
    return limit is not None and percent < 100 * limit.proven_fraction


def _line(ax: Axes, planner: str, points: Sequence[Point]) -> None:
    colour = style.colours_of([planner])[planner]
    front = planner == "ilp"
    x = [100 * p.budget_fraction for p in points]
    y = [_percent(p) for p in points]
    ax.plot(
        x, y, color=colour, linewidth=1.6 if front else 0.9, zorder=5 if front else 3,
        marker="" if front else style.marker_of(planner), markeredgewidth=0.4,
        markersize=2.8,
    )  # fmt: skip
    if front:
        for point in points:
            ax.plot(
                100 * point.budget_fraction, _percent(point), marker="o", markersize=3.6,
                color=colour, markerfacecolor=colour if point.proven else "white", zorder=6,
            )  # fmt: skip


def _mark_limits(ax: Axes, limit: Limits) -> None:
    proven = 100 * limit.proven_fraction
    ax.axvspan(0, proven, facecolor=style.LIGHT, edgecolor=style.GREY, hatch="xxxx", linewidth=0)
    if limit.found_fraction is not None:
        found = 100 * limit.found_fraction
        ax.axvline(found, color=style.BLACK, linewidth=0.7, linestyle=(0, (2, 2)))


def _keys(points: Sequence[Point], limits: Sequence[Limits]) -> list[Artist]:
    colours = style.colours_of(planners_in(points))
    keys: list[Artist] = [
        Line2D([], [], color=colours[name], marker=style.marker_of(name), label=name,
               linewidth=1.6 if name == "ilp" else 0.9)
        for name in planners_in(points)
    ]  # fmt: skip
    if any(p.planner == "ilp" and not p.proven and p.throughput_retained for p in points):
        keys.append(
            Line2D([], [], color=style.BLUE, marker="o", markerfacecolor="white",
                   label="ilp, gap above the target")
        )  # fmt: skip
    keys.append(Patch(facecolor=style.LIGHT, label="proven out of reach"))
    if limits:
        keys.append(
            Patch(facecolor=style.LIGHT, edgecolor=style.GREY, hatch="xxxx", linewidth=0,
                  label="proven infeasible")
        )  # fmt: skip
        keys.append(
            Line2D([], [], color=style.BLACK, linewidth=0.7, linestyle=(0, (2, 2)),
                   label="smallest budget found")
        )  # fmt: skip
    if any(p.throughput_retained is None for p in points):
        keys.append(
            Line2D([], [], color=style.BLACK, marker="x", linestyle="", label="planner has no plan")
        )
    return keys


def _percent(point: Point) -> float:
    return 100 * (point.throughput_retained or 0.0)

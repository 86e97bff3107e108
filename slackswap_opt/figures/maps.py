"""Maps over budget and link rate: what the ILP gains, and what its plans are made of."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch, Rectangle
from numpy.typing import NDArray

from slackswap_opt.figures import style
from slackswap_opt.figures.points import Point, at_workload, of, shape_of, workloads_in

PAYS = 0.01
"""An action counts where it is taken for at least this share of the saved bytes."""
REGIONS = (
    ("keep everything", "#F2F2F2", ""),
    ("swap only", style.GREEN, "////"),
    ("swap and recompute", "#BFE3F5", "xxxx"),
    ("recompute only", style.ORANGE, "...."),
)


def gains(points: Sequence[Point], axes: Sequence[Axes] | None = None) -> Figure:
    """How much faster the ILP's plan is than the greedy's, over budgets and link rates.

    A number is the share of the greedy's step time that the ILP saves, in percent. Dots mark cells
    whose certified gap is above the target; where one of the two has no plan, the cell says so.

    Args:
        points: "greedy" and "ilp" of one or more workloads at every budget and link rate.
        axes: one per workload; a figure of their own by default.
    """
    workloads = workloads_in(points)
    axes = _axes(axes, len(workloads), 2.3)
    values = {name: _gain(at_workload(points, name)) for name in workloads}
    gained = [v for grid in values.values() for v in grid.values() if v is not None]
    highest = max(gained, default=1.0)
    mesh = None
    for ax, name in zip(axes, workloads, strict=True):
        here = at_workload(points, name)
        links, fractions = _sides(here)
        table = _table(links, fractions, values[name])
        mesh = ax.pcolormesh(
            np.arange(len(links) + 1), np.arange(len(fractions) + 1), table, cmap="Blues",
            vmin=0, vmax=max(highest, 0.1), edgecolors="white", linewidth=0.8,
        )  # fmt: skip
        _cells(ax, here, links, fractions, values[name], highest)
        _frame(ax, here, links, fractions)
    if mesh is not None:
        bar = style.figure_of(axes[0]).colorbar(mesh, ax=list(axes), pad=0.01, aspect=30)
        bar.set_label("step time saved by the ILP, %")
        bar.outline.set_visible(False)
    return style.figure_of(axes[0])


def phases(points: Sequence[Point], axes: Sequence[Axes] | None = None) -> Figure:
    """What the ILP's plans are made of: where swapping and where recomputing stops paying.

    Args:
        points: "ilp" of one or more workloads at every budget and link rate.
        axes: one per workload; a figure of their own by default.
    """
    workloads = workloads_in(points)
    own = axes is None
    axes = _axes(axes, len(workloads), 2.5)
    unproven = False
    for ax, name in zip(axes, workloads, strict=True):
        here = of(at_workload(points, name), "ilp")
        links, fractions = _sides(here)
        at = {_key(point): point for point in here}
        for y, fraction in enumerate(fractions):
            for x, link in enumerate(links):
                point = at.get((link, fraction))
                _region(ax, x, y, point)
                unproven |= point is not None and point.step_s is not None and not point.proven
        _boundaries(ax, links, fractions, at)
        _frame(ax, here, links, fractions)
    keys: list[Patch | Line2D] = [
        Patch(facecolor=colour, hatch=hatch, edgecolor=style.GREY, linewidth=0.3, label=label)
        for label, colour, hatch in REGIONS
    ]
    if unproven:
        keys.append(
            Line2D([], [], linestyle="", marker="o", markersize=2.5, color=style.BLACK,
                   label="gap above the target")
        )  # fmt: skip
    figure = style.figure_of(axes[0])
    if own:
        columns = 2 if len(workloads) == 1 else 5
        figure.legend(handles=keys, loc="outside lower center", ncols=columns, frameon=False)
    else:
        axes[-1].legend(
            handles=keys, frameon=False, loc="upper center", bbox_to_anchor=(0.5, -0.25), ncols=2
        )
    return figure


def shares(point: Point) -> tuple[float, float]:
    """Swapped and recomputed bytes as shares of all saved bytes."""
    swapped, recomputed = point.swapped_bytes or 0, point.recomputed_bytes or 0
    saved = swapped + recomputed + (point.kept_bytes or 0)
    return (swapped / saved, recomputed / saved) if saved else (0.0, 0.0)


def region_of(point: Point) -> int:
    """The index in `REGIONS` of what a plan does."""
    swapped, recomputed = shares(point)
    return ((0, 3), (1, 2))[swapped >= PAYS][recomputed >= PAYS]


def _axes(axes: Sequence[Axes] | None, count: int, height: float) -> list[Axes]:
    if axes is not None:
        return list(axes)
    width = style.ONE_COLUMN if count == 1 else style.TWO_COLUMNS
    rows = -(-count // 3)
    made = style.new_figure(width, height * rows)
    drawn = list(made.subplots(rows, min(count, 3), squeeze=False).flat)
    for ax in drawn[count:]:
        ax.remove()
    return drawn[:count]


def _key(point: Point) -> tuple[float, float]:
    return round(point.link_gb_per_s, 6), round(point.budget_fraction, 3)


def _sides(points: Sequence[Point]) -> tuple[list[float], list[float]]:
    keys = [_key(point) for point in points]
    return sorted({link for link, _ in keys}), sorted({fraction for _, fraction in keys})


def _gain(points: Sequence[Point]) -> dict[tuple[float, float], float | None]:
    best = {_key(p): p.step_s for p in of(points, "ilp")}
    found: dict[tuple[float, float], float | None] = {}
    for point in of(points, "greedy"):
        own, other = point.step_s, best.get(_key(point))
        found[_key(point)] = 100 * (own - other) / own if own and other is not None else None
    return found


def _table(
    links: Sequence[float],
    fractions: Sequence[float],
    values: Mapping[tuple[float, float], float | None],
) -> NDArray[np.float64]:
    found = [[values.get((link, fraction)) for link in links] for fraction in fractions]
    return np.array([[np.nan if v is None else v for v in row] for row in found], dtype=float)


def _cells(
    ax: Axes,
    points: Sequence[Point],
    links: Sequence[float],
    fractions: Sequence[float],
    values: dict[tuple[float, float], float | None],
    highest: float,
) -> None:
    best = {_key(p): p for p in of(points, "ilp")}
    for y, fraction in enumerate(fractions):
        for x, link in enumerate(links):
            key = (link, fraction)
            value, mine = values.get(key), best.get(key)
            if value is None:
                _nothing(ax, x, y, mine)
            else:
                ink = "white" if value > 0.6 * highest else style.BLACK
                ax.text(x + 0.5, y + 0.5, f"{value:.1f}", ha="center", va="center", color=ink,
                        fontsize="small")  # fmt: skip
            if mine is not None and mine.step_s is not None and not mine.proven:
                ink = "white" if (value or 0) > 0.6 * highest else style.BLACK
                ax.plot(x + 0.86, y + 0.82, marker="o", markersize=1.6, color=ink)


def _nothing(ax: Axes, x: int, y: int, best: Point | None) -> None:
    """A cell for which the greedy or both have no plan."""
    some = best is not None and best.step_s is not None
    proven = best is not None and best.proven_infeasible
    ax.add_patch(
        Rectangle(
            (x, y), 1, 1, facecolor="white" if some else style.LIGHT, edgecolor=style.GREY,
            hatch="xxxx" if proven else "////", linewidth=0,
        )
    )  # fmt: skip
    ax.text(
        x + 0.5, y + 0.5, "ILP\nonly" if some else "no\nplan", ha="center", va="center",
        fontsize="x-small", linespacing=0.9,
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.5},
    )  # fmt: skip


def _region(ax: Axes, x: int, y: int, point: Point | None) -> None:
    if point is None or point.step_s is None:
        _nothing(ax, x, y, point)
        return
    _, colour, hatch = REGIONS[region_of(point)]
    ax.add_patch(
        Rectangle((x, y), 1, 1, facecolor=colour, hatch=hatch, edgecolor=style.GREY, linewidth=0.3)
    )
    ax.text(
        x + 0.5, y + 0.5, f"{100 * (point.throughput_retained or 0):.0f}", ha="center",
        va="center", fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.6, "alpha": 0.85},
    )  # fmt: skip
    if not point.proven:
        ax.plot(x + 0.86, y + 0.82, marker="o", markersize=1.6, color=style.BLACK)


def _boundaries(
    ax: Axes,
    links: Sequence[float],
    fractions: Sequence[float],
    at: dict[tuple[float, float], Point],
) -> None:
    """A line between cells of different regions."""
    for y, fraction in enumerate(fractions):
        for x, link in enumerate(links):
            own = _region_at(at, link, fraction)
            if x + 1 < len(links) and _differ(own, _region_at(at, links[x + 1], fraction)):
                ax.plot((x + 1, x + 1), (y, y + 1), color=style.BLACK, linewidth=1.4)
            if y + 1 < len(fractions) and _differ(own, _region_at(at, link, fractions[y + 1])):
                ax.plot((x, x + 1), (y + 1, y + 1), color=style.BLACK, linewidth=1.4)


def _differ(one: int | None, other: int | None) -> bool:
    return one is not None and other is not None and one != other


def _region_at(at: dict[tuple[float, float], Point], link: float, fraction: float) -> int | None:
    point = at.get((link, fraction))
    return None if point is None or point.step_s is None else region_of(point)


def _frame(
    ax: Axes, points: Sequence[Point], links: Sequence[float], fractions: Sequence[float]
) -> None:
    ax.set_xlim(0, len(links))
    ax.set_ylim(0, len(fractions))
    ax.set_xticks(np.arange(len(links)) + 0.5, [f"{link:g}" for link in links])
    ax.set_yticks(np.arange(len(fractions)) + 0.5, [f"{100 * f:g}" for f in fractions])
    ax.tick_params(length=0)
    ax.spines[:].set_visible(False)
    ax.set_xlabel("link rate, GB/s each way")
    if ax.get_subplotspec() is None or ax.get_subplotspec().is_first_col():  # type: ignore[union-attr]
        ax.set_ylabel("budget, % of ideal peak")
    shape = shape_of(points)
    ax.set_title(f"{points[0].workload}" + (f"\n{shape}" if shape else ""))

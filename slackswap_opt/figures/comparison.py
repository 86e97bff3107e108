"""Throughput retained by each planner on several workloads."""

from __future__ import annotations

from collections.abc import Mapping

from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from slackswap_opt.figures.style import BLACK, GREY, colours_of, figure_of, new_figure, plain

GROUP_WIDTH = 0.84
"""Share of a workload's place on the axis that its bars take."""


def comparison(
    retained: Mapping[str, Mapping[str, float | None]],
    bounds: Mapping[str, float],
    ax: Axes | None = None,
) -> Figure:
    """Bars of throughput retained, with the proven bound of each workload as a line.

    Args:
        retained: by workload, then by planner: ideal step / simulated step, 0 to 1; None where
            the planner has no schedule that fits.
        bounds: by workload: ideal step / bound, the most that any schedule can retain.
        ax: where to draw; a figure of its own by default.
    """
    planners = list(dict.fromkeys(name for row in retained.values() for name in row))
    if ax is None:
        ax = new_figure(2.2 + 1.5 * len(retained), 3.8).add_subplot()
    width = GROUP_WIDTH / max(1, len(planners))
    colours = colours_of(planners)
    for number, planner in enumerate(planners):
        shift = (number + 0.5) * width - GROUP_WIDTH / 2
        for group, row in enumerate(retained.values()):
            at = group + shift
            value = row.get(planner)
            _bar(ax, at, 0.92 * width, value, colours[planner])
    for group, workload in enumerate(retained):
        if workload in bounds:
            ends = (group - GROUP_WIDTH / 2 - 0.03, group + GROUP_WIDTH / 2 + 0.03)
            limit = 100 * bounds[workload]
            ax.plot(ends, (limit, limit), color=BLACK, linewidth=1.4)
    ax.axhline(100, color=GREY, linewidth=0.8, linestyle=(0, (4, 3)), zorder=0)
    ax.set_xticks(range(len(retained)), list(retained))
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(0, 108)
    ax.set_yticks(range(0, 101, 20))
    ax.set_ylabel("throughput retained, % of ideal")
    keys: list[Artist] = [Patch(color=colours[name], label=name) for name in planners]
    keys.append(Line2D([], [], color=BLACK, linewidth=1.4, label="proven limit of any plan"))
    if any(value is None for row in retained.values() for value in row.values()):
        keys.append(Line2D([], [], color=BLACK, marker="x", linestyle="", label="does not fit"))
    ax.legend(
        handles=keys, loc="upper center", bbox_to_anchor=(0.5, -0.09), ncols=4, frameon=False,
        fontsize="small", columnspacing=1.2, handlelength=1.4,
    )  # fmt: skip
    plain(ax)
    return figure_of(ax)


def _bar(ax: Axes, at: float, width: float, value: float | None, colour: str) -> None:
    """One bar with its number; a cross on the axis where there is none."""
    if value is None:
        ax.plot(at, 3, marker="x", color=BLACK, markersize=5)
        return
    ax.bar(at, 100 * value, width, color=colour)
    inside = value > 0.15
    ax.annotate(
        f"{100 * value:.1f}",
        (at, 100 * value),
        xytext=(0, -3 if inside else 2),
        textcoords="offset points",
        ha="center",
        va="top" if inside else "bottom",
        rotation=90,
        fontsize="x-small",
        color=_ink(colour) if inside else BLACK,
    )


def _ink(colour: str) -> str:
    """Black or white, whichever is read on the colour."""
    red, green, blue = (int(colour[i : i + 2], 16) for i in (1, 3, 5))
    return BLACK if 0.299 * red + 0.587 * green + 0.114 * blue > 128 else "#FFFFFF"

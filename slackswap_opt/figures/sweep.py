"""Throughput retained over the budget, for one workload."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures.style import LIGHT, colours_of, figure_of, new_figure, plain


def sweep(
    budgets: Sequence[float],
    retained: Mapping[str, Sequence[float | None]],
    bounds: Sequence[float],
    ax: Axes | None = None,
) -> Figure:
    """A line per planner, below the region that no schedule reaches.

    Args:
        budgets: fractions of the ideal peak, ascending or descending.
        retained: by planner, one value per budget; None where nothing fits.
        bounds: per budget, the most that any schedule can retain.
        ax: where to draw; a figure of its own by default.
    """
    if ax is None:
        ax = new_figure(5.5, 3.8).add_subplot()
    percent = [100 * budget for budget in budgets]
    limit = [100 * bound for bound in bounds]
    ax.fill_between(percent, limit, 101, color=LIGHT, linewidth=0, label="proven out of reach")
    colours = colours_of(retained)
    for planner, values in retained.items():
        line = [float("nan") if value is None else 100 * value for value in values]
        front = planner == "ilp"
        ax.plot(
            percent, line, color=colours[planner], label=planner, marker="o", markersize=3.5,
            linewidth=2.2 if front else 1.3, zorder=4 if front else 3,
        )  # fmt: skip
    ax.set_xlabel("budget, % of the ideal peak")
    ax.set_ylabel("throughput retained, % of ideal")
    ax.set_ylim(top=101)
    ax.legend(frameon=False, fontsize="small")
    plain(ax)
    return figure_of(ax)

"""Prices of memory along the budget: what one more GiB would save."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style

_COLOURS = (style.ORANGE, style.BLUE, style.GREEN, style.PURPLE, style.SKY, style.VERMILION)
_MARKERS = ("s", "o", "^", "D", "v", "P")
_DASHES = ("-", (0, (4, 1.5)), (0, (1.2, 1.2)), (0, (4, 1, 1, 1)), "-", "-")


@dataclass(frozen=True)
class Price:
    """What memory is worth at one budget.

    Attributes:
        workload: name of the step.
        machine: its name.
        budget_fraction: the budget, as a fraction of the ideal peak.
        budget_bytes: the same in bytes.
        ms_per_gib: by how much one more GiB lowers the bound, ms a step, from the verified dual
            multipliers.
        ms_per_gb_per_s: the same for one more GB/s of the link; None where it is not known.
    """

    workload: str
    machine: str
    budget_fraction: float
    budget_bytes: int
    ms_per_gib: float
    ms_per_gb_per_s: float | None = None


def prices(rows: Sequence[Price], ax: Axes | None = None) -> Figure:
    """A line per workload: the price of a GiB over the budget.

    Args:
        rows: prices of one or more workloads at several budgets.
        ax: where to draw; a figure of its own by default.
    """
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 2.2).add_subplot()
    for number, workload in enumerate(dict.fromkeys(row.workload for row in rows)):
        mine = sorted(
            (row for row in rows if row.workload == workload), key=lambda row: row.budget_fraction
        )
        look = number % len(_COLOURS)
        ax.plot(
            [100 * row.budget_fraction for row in mine], [row.ms_per_gib for row in mine],
            color=_COLOURS[look], marker=_MARKERS[look], markersize=2.6, linestyle=_DASHES[look],
            label=workload,
        )  # fmt: skip
    ax.set_xlabel("budget, % of ideal peak")
    ax.set_ylabel("price of memory, ms per GiB")
    ax.set_xlim(0, 103)
    ax.set_ylim(bottom=0)
    ax.legend(frameon=False, loc="upper right")
    style.plain(ax)
    return style.figure_of(ax)

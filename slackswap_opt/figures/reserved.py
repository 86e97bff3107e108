"""Peak memory in use beside what an allocator reserves for it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style

GIB = 2**30
LOOKS = {
    "in use": (style.BLUE, ""),
    "expandable": (style.SKY, "////"),
    "caching": (style.ORANGE, "...."),
}
"""By what is measured: colour and hatch."""


@dataclass(frozen=True)
class Peak:
    """The largest memory of one plan, by one measure.

    Attributes:
        planner: whose plan.
        measure: "in use" (no fragmentation), or an allocator: "caching", "expandable".
        bytes: the peak; None where the allocator was not modelled.
        budget_bytes: the budget of the plan.
    """

    planner: str
    measure: str
    bytes: int | None
    budget_bytes: int


def reserved(rows: Sequence[Peak], ax: Axes | None = None) -> Figure:
    """Bars per planner: in use, and reserved by each allocator, with the budget as a line.

    Args:
        rows: one per planner and measure.
        ax: where to draw; a figure of its own by default.
    """
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 2.3).add_subplot()
    planners = list(dict.fromkeys(row.planner for row in rows))
    measures = [name for name in LOOKS if any(row.measure == name for row in rows)]
    width = 0.8 / max(1, len(measures))
    for place, measure in enumerate(measures):
        colour, hatch = LOOKS[measure]
        label = measure if measure == "in use" else f"reserved, {measure}"
        for row in rows:
            if row.measure != measure or row.bytes is None:
                continue
            at = planners.index(row.planner) + (place + 0.5) * width - 0.4
            size = row.bytes / GIB
            ax.bar(at, size, 0.92 * width, facecolor=colour, hatch=hatch, edgecolor="#333333",
                   linewidth=0.4, label=label)  # fmt: skip
            ax.annotate(f"{size:.1f}", (at, size), xytext=(0, 1.5), textcoords="offset points",
                        ha="center", va="bottom", fontsize="x-small", rotation=90)  # fmt: skip
    budget = rows[0].budget_bytes / GIB
    ax.axhline(budget, color=style.VERMILION, linewidth=1.1, zorder=0, label="budget")
    ax.set_xticks(range(len(planners)), planners, rotation=20, ha="right", rotation_mode="anchor")
    ax.tick_params(axis="x", length=0)
    ax.set_ylabel("peak memory, GiB")
    highest = max([budget, *(row.bytes / GIB for row in rows if row.bytes is not None)])
    ax.set_ylim(0, 1.14 * highest)
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    ax.legend(once.values(), once.keys(), loc="lower center", bbox_to_anchor=(0.45, 1.0), ncols=2,
              frameon=False)  # fmt: skip
    style.plain(ax)
    return style.figure_of(ax)

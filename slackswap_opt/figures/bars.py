"""Published values beside ours, at one budget."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style
from slackswap_opt.figures.points import Point, at_workload, of, workloads_in

PUBLISHED: Mapping[str, float] = {"bert-large": 0.963, "gpt2-xl": 0.976, "llama-7b": 0.996}
"""Throughput retained at half of the activation memory, SlackSwap (arXiv 2610.13003)."""
_WIDTH = 0.26
_PLANNERS = ("greedy", "ilp")


def bars(
    points: Sequence[Point],
    published: Mapping[str, float] = PUBLISHED,
    ax: Axes | None = None,
) -> Figure:
    """Per workload: the published value, our greedy, our ILP, and the bound as a line.

    Args:
        points: "greedy" and "ilp" at one budget, on several workloads.
        published: throughput retained, 0 to 1, by workload.
        ax: where to draw; a figure of its own by default.
    """
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 2.3).add_subplot()
    workloads = workloads_in(points)
    lowest = min(
        100 * value
        for value in [
            *(p.throughput_retained for p in points if p.throughput_retained is not None),
            *(published[name] for name in workloads if name in published),
        ]
    )
    bottom = max(0.0, lowest - 4.0)
    for group, workload in enumerate(workloads):
        here = at_workload(points, workload)
        if workload in published:
            value = 100 * published[workload]
            _bar(ax, group - _WIDTH, value, bottom, "white", "////", "published")
        for place, planner in enumerate(_PLANNERS):
            for point in of(here, planner):
                own = point.throughput_retained
                look = style.PLANNER_COLOURS[planner], style.PLANNER_HATCHES[planner]
                at = group + place * _WIDTH
                if own is None:
                    ax.plot(at, bottom + 0.3, marker="x", color=style.BLACK)
                else:
                    mark = "" if planner != "ilp" or point.proven else "°"
                    _bar(ax, at, 100 * own, bottom, *look, planner, mark)
        limit = 100 * here[0].bound_retained
        ends = (group - 1.55 * _WIDTH, group + 1.55 * _WIDTH)
        ax.plot(ends, (limit, limit), color=style.VERMILION, linewidth=1.2, label="bound")
    ax.set_xticks(range(len(workloads)), workloads)
    ax.tick_params(axis="x", length=0)
    ax.set_ylim(bottom, 101)
    ax.set_ylabel("throughput retained, % of ideal")
    ax.plot(
        [0, 0], [0.012, 0.03], transform=ax.transAxes, clip_on=False, linestyle="",
        marker=[(-1, -0.5), (1, 0.5)], markersize=5, markeredgecolor=style.BLACK,
        markeredgewidth=0.7,
    )  # fmt: skip
    handles, labels = ax.get_legend_handles_labels()
    once = dict(zip(labels, handles, strict=True))
    order = [name for name in ("published", *_PLANNERS, "bound") if name in once]
    names = {"bound": "proven limit of any plan", "greedy": "our greedy", "ilp": "our ILP"}
    ax.legend(
        [once[name] for name in order], [names.get(name, name) for name in order],
        loc="upper center", bbox_to_anchor=(0.45, -0.1), ncols=2, frameon=False,
    )  # fmt: skip
    style.plain(ax)
    return style.figure_of(ax)


def _bar(
    ax: Axes,
    at: float,
    value: float,
    bottom: float,
    colour: str,
    hatch: str,
    label: str,
    mark: str = "",
) -> None:
    ax.bar(
        at, value - bottom, 0.9 * _WIDTH, bottom=bottom, facecolor=colour, hatch=hatch,
        edgecolor=style.BLACK, linewidth=0.5, label=label,
    )  # fmt: skip
    ax.annotate(
        f"{value:.1f}{mark}", (at, bottom), xytext=(0, 3), textcoords="offset points",
        ha="center", va="bottom", rotation=90, fontsize="small",
        bbox={"facecolor": "white", "edgecolor": "none", "pad": 0.8},
    )  # fmt: skip

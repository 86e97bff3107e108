"""How the result depends on link, batch, sequence length and attained arithmetic rate."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch

from slackswap_opt.figures import style
from slackswap_opt.figures.maps import shares
from slackswap_opt.figures.points import Point, of

AXES: dict[str, tuple[str, Callable[[Point], float], bool]] = {
    "link": ("link rate, GB/s each way", lambda p: p.link_gb_per_s, True),
    "batch": ("batch, sequences", lambda p: float(p.batch or 0), True),
    "sequence": ("sequence, tokens", lambda p: float(p.sequence or 0), True),
    "attained": ("attained share of peak FLOP/s", lambda p: p.attained_flops, False),
}
"""What is varied: label, value of a point, and whether the axis is logarithmic."""
_PLANNERS = ("greedy", "ilp")


def sensitivity(
    series: dict[str, Sequence[Point]], axes: Sequence[tuple[Axes, Axes]] | None = None
) -> Figure:
    """Throughput retained above, what the ILP's plan is made of below, over each quantity.

    ILP points are filled where the certified gap is within the one asked for, else hollow.

    Args:
        series: by quantity (a key of `AXES`): "greedy" and "ilp" at several of its values.
        axes: per quantity, axes for throughput and for shares; a figure of its own by default.
    """
    own = axes is None
    if axes is None:
        made = style.new_figure(style.TWO_COLUMNS, 3.0)
        grid = made.subplots(
            2, len(series), squeeze=False, sharex="col", sharey="row", height_ratios=(1.4, 1)
        )
        axes = list(zip(grid[0], grid[1], strict=True))
    lowest = min(100 * (p.throughput_retained or 1) for points in series.values() for p in points)
    for (upper, lower), (name, points) in zip(axes, series.items(), strict=True):
        label, value, logarithmic = AXES[name]
        _throughput(upper, points, value)
        _shares(lower, of(points, "ilp"), value)
        upper.set_ylim(lowest - 2, 101)
        lower.set_ylim(0, 100)
        lower.set_xlabel(label)
        if logarithmic:
            for ax in (upper, lower):
                ax.set_xscale("log")
                ticks = sorted({value(p) for p in points})
                ax.set_xticks(_spread(ticks), [f"{t:g}" for t in _spread(ticks)])
                ax.set_xticks([], minor=True)
    axes[0][0].set_ylabel("throughput retained,\n% of ideal")
    axes[0][1].set_ylabel("saved bytes, %")
    figure = style.figure_of(axes[0][0])
    handles = _keys(any(not p.proven for points in series.values() for p in of(points, "ilp")))
    if own:
        figure.legend(handles=handles, loc="outside lower center", ncols=4, frameon=False,
                      columnspacing=1.0)  # fmt: skip
    return figure


def _throughput(ax: Axes, points: Sequence[Point], value: Callable[[Point], float]) -> None:
    limits = sorted({(value(p), 100 * p.bound_retained) for p in points})
    ax.fill_between(
        [x for x, _ in limits], [y for _, y in limits], 101, color=style.LIGHT, linewidth=0
    )
    for planner in _PLANNERS:
        mine = sorted(of(points, planner), key=value)
        shown = [p for p in mine if p.throughput_retained is not None]
        colour = style.PLANNER_COLOURS[planner]
        x = [value(p) for p in shown]
        y = [100 * (p.throughput_retained or 0) for p in shown]
        ax.plot(x, y, color=colour, marker=style.PLANNER_MARKERS[planner], markersize=3,
                clip_on=False, zorder=4)  # fmt: skip
        marks = [(p, 100 * (p.throughput_retained or 0)) for p in shown if not p.proven]
        if planner == "ilp" and marks:
            ax.plot(
                [value(p) for p, _ in marks], [y for _, y in marks], linestyle="", marker="o",
                markersize=3, color=colour, markerfacecolor="white", clip_on=False, zorder=5,
            )  # fmt: skip
        gone = [value(p) for p in mine if p.throughput_retained is None]
        if gone:
            ax.plot(gone, [0.03] * len(gone), linestyle="", marker="x", color=colour,
                    clip_on=False, transform=ax.get_xaxis_transform())  # fmt: skip
    style.plain(ax)


def _shares(ax: Axes, points: Sequence[Point], value: Callable[[Point], float]) -> None:
    shown = sorted((p for p in points if p.step_s is not None), key=value)
    x = [value(p) for p in shown]
    swapped = [100 * shares(p)[0] for p in shown]
    both = [100 * sum(shares(p)) for p in shown]
    for low, high, action in (
        ([0.0] * len(x), swapped, "swap"),
        (swapped, both, "recompute"),
        (both, [100.0] * len(x), "keep"),
    ):
        colour, hatch = style.ACTION_LOOKS[action]
        ax.fill_between(x, low, high, facecolor=colour, hatch=hatch, edgecolor="#555555",
                        linewidth=0.3)  # fmt: skip
    if len(x) > 1:
        ax.set_xlim(min(x), max(x))
    style.plain(ax)


def _spread(ticks: Sequence[float]) -> list[float]:
    """Ticks that are far enough apart on a logarithmic axis to be read."""
    kept: list[float] = []
    apart = (max(ticks) / min(ticks)) ** (1 / 6) if ticks and min(ticks) > 0 else 1.0
    for tick in ticks:
        if not kept or tick >= kept[-1] * apart * 0.999:
            kept.append(tick)
    return kept


def _keys(unproven: bool) -> list[Line2D | Patch]:
    keys: list[Line2D | Patch] = [
        Line2D([], [], color=style.PLANNER_COLOURS[name], marker=style.PLANNER_MARKERS[name],
               label=name)
        for name in _PLANNERS
    ]  # fmt: skip
    if unproven:
        keys.append(
            Line2D([], [], color=style.BLUE, marker="o", markerfacecolor="white",
                   label="gap above the target")
        )  # fmt: skip
    keys.append(Patch(facecolor=style.LIGHT, label="proven out of reach"))
    for action in ("swap", "recompute", "keep"):
        colour, hatch = style.ACTION_LOOKS[action]
        keys.append(Patch(facecolor=colour, hatch=hatch, edgecolor="#555555", linewidth=0.3,
                          label=action))  # fmt: skip
    return keys

"""Planning time and certified gap over the size of the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style
from slackswap_opt.figures.points import Point, of, planners_in


def scaling(points: Sequence[Point], axes: tuple[Axes, Axes] | None = None) -> Figure:
    """Seconds of planning on the left, certified gap on the right, over the number of layers.

    A hollow marker is a search that the clock ended.

    Args:
        points: planners at several numbers of layers.
        axes: for time and for gap; a figure of its own by default.
    """
    if axes is None:
        made = style.new_figure(style.TWO_COLUMNS, 2.1)
        left, right = made.subplots(1, 2)
    else:
        left, right = axes
    for planner in planners_in(points):
        mine = sorted(of(points, planner), key=lambda p: p.layers or 0)
        shown = [p for p in mine if p.step_s is not None]
        x = [float(p.layers or 0) for p in shown]
        _line(left, planner, x, [p.planning_s for p in shown], shown)
        _line(right, planner, x, [100 * (p.certified_gap or 0) for p in shown], shown)
    for ax in (left, right):
        over_layers(ax, {p.layers or 0 for p in points})
    left.set_yscale("log")
    left.set_ylabel("planning time, s")
    right.set_ylabel("certified gap, % of the step")
    right.set_ylim(bottom=0)
    right.legend(frameon=False, loc="best")
    return style.figure_of(left)


def over_layers(ax: Axes, layers: Iterable[int]) -> None:
    """A horizontal axis for numbers of layers, with a tick at each."""
    ticks = sorted(set(layers))
    ax.set_xscale("log", base=2)
    ax.set_xticks(ticks, [str(t) for t in ticks])
    ax.set_xticks([], minor=True)
    ax.set_xlabel("layers")
    style.plain(ax)


def _line(
    ax: Axes, planner: str, x: Sequence[float], y: Sequence[float], points: Sequence[Point]
) -> None:
    colour = style.colours_of([planner])[planner]
    ax.plot(x, y, color=colour, marker=style.marker_of(planner), label=planner)
    ended = [n for n, point in enumerate(points) if point.time_limited]
    ax.plot(
        [x[n] for n in ended], [y[n] for n in ended], linestyle="", color=colour,
        marker=style.marker_of(planner), markerfacecolor="white",
        label=f"{planner}, ended by the clock" if ended else None,
    )  # fmt: skip

"""Planners and the bound against published values, over an uncertain machine parameter."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures.style import (
    LIGHT,
    VERMILION,
    colours_of,
    figure_of,
    new_figure,
    plain,
)


@dataclass(frozen=True)
class Panel:
    """One workload: everything in throughput retained, 0 to 1.

    Attributes:
        title: what the panel is called.
        published: the published value.
        retained: by planner, one value per fraction; None where nothing fits.
        bounds: per fraction, the most that any schedule can retain.
    """

    title: str
    published: float
    retained: Mapping[str, Sequence[float | None]]
    bounds: Sequence[float]


def published(
    fractions: Sequence[float], panels: Sequence[Panel], axes: Sequence[Axes] | None = None
) -> Figure:
    """A panel per workload, with the published value as a line across.

    Args:
        fractions: attained fractions of the arithmetic peak.
        panels: the workloads.
        axes: one per panel; a figure of their own by default.
    """
    own = axes is None
    if axes is None:
        made = new_figure(3.4 * len(panels), 3.6)
        axes = list(made.subplots(1, len(panels), squeeze=False)[0])
    for ax, panel in zip(axes, panels, strict=True):
        _draw(ax, fractions, panel)
    axes[0].set_ylabel("throughput retained, % of ideal")
    figure = figure_of(axes[0])
    if own:
        handles, labels = axes[0].get_legend_handles_labels()
        figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    else:
        axes[0].legend(frameon=False, fontsize="small", loc="lower left")
    return figure


def _draw(ax: Axes, fractions: Sequence[float], panel: Panel) -> None:
    limit = [100 * bound for bound in panel.bounds]
    ax.fill_between(fractions, limit, 100.5, color=LIGHT, linewidth=0, label="proven out of reach")
    colours = colours_of(panel.retained)
    for planner, values in panel.retained.items():
        line = [float("nan") if value is None else 100 * value for value in values]
        ax.plot(fractions, line, color=colours[planner], label=planner, marker="o", markersize=3.5)
    ax.axhline(100 * panel.published, color=VERMILION, linestyle="--", label="published")
    ax.set_title(panel.title, fontsize="medium")
    ax.set_xlabel("attained fraction of peak FLOP rate")
    ax.set_ylim(top=100.5)
    plain(ax)

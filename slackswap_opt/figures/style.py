"""What all figures share: colours, axes, saving.

Colours are those of M. Okabe and K. Ito, "Color Universal Design", 2008, which readers with
any common colour vision tell apart. A planner or a kind of work has the same one in every figure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

BLACK, GREY, LIGHT = "#000000", "#767676", "#D9D9D9"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

PLANNER_COLOURS: Mapping[str, str] = {
    "keep-all": BLACK,
    "recompute-all": GREY,
    "sqrt-n": PURPLE,
    "selective": YELLOW,
    "swap-all": GREEN,
    "greedy": ORANGE,
    "capuchin": SKY,
    "ilp": BLUE,
}
OTHER_COLOURS = (VERMILION, LIGHT)
"""For planners that are not in the table, in turn."""


def colours_of(planners: Iterable[str]) -> dict[str, str]:
    """A colour per planner."""
    others = [name for name in planners if name not in PLANNER_COLOURS]
    extra = {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}
    return {**PLANNER_COLOURS, **extra}


def new_figure(width: float, height: float) -> Figure:
    """An empty figure in inches, outside of pyplot: no window, no global state."""
    return Figure(figsize=(width, height), layout="constrained")


def figure_of(ax: Axes) -> Figure:
    """The whole figure that axes belong to."""
    figure = ax.figure
    while isinstance(figure, SubFigure):
        figure = figure.figure
    return figure


def plain(ax: Axes) -> None:
    """Axes without the frame's upper and right side."""
    ax.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, path: str | Path, *, dpi: int = 160) -> None:
    """Write a figure; the suffix gives the format, and equal figures give equal files.

    Text in PDF files stays text (TrueType), so that it can be searched and edited.
    """
    dates = {".pdf": {"CreationDate": None}, ".svg": {"Date": None}, ".png": {"Software": None}}
    with mpl.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "slackswap"}):
        figure.savefig(path, dpi=dpi, metadata=dates.get(Path(path).suffix.lower()))

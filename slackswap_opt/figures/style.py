"""What all figures share: sizes, type, colours, markers, hatches, saving.

Colours are those of M. Okabe and K. Ito, "Color Universal Design", 2008, which readers with
any common colour vision tell apart. A planner or a kind of work has the same one in every figure,
and each planner has a marker, so that no figure depends on colour alone.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure, SubFigure

BLACK, GREY, LIGHT = "#000000", "#767676", "#D9D9D9"
ORANGE, SKY, GREEN, YELLOW = "#E69F00", "#56B4E9", "#009E73", "#F0E442"
OLIVE = "#A69B00"
"""Their yellow, dark enough for thin lines on white."""
BLUE, VERMILION, PURPLE = "#0072B2", "#D55E00", "#CC79A7"

ONE_COLUMN, TWO_COLUMNS = 3.33, 7.0
"""Widths in inches of a figure in one column of a paper, and across both."""
FORMATS = ("pdf", "png", "svg")

PLANNER_COLOURS: Mapping[str, str] = {
    "keep-all": BLACK,
    "recompute-all": GREY,
    "sqrt-n": PURPLE,
    "selective": OLIVE,
    "swap-all": GREEN,
    "greedy": ORANGE,
    "capuchin": SKY,
    "on-demand": VERMILION,
    "ilp": BLUE,
}
OTHER_COLOURS = ("#7F3C00", LIGHT)
"""For planners that are not in the table, in turn."""
PLANNER_MARKERS: Mapping[str, str] = {
    "keep-all": "*",
    "recompute-all": "s",
    "sqrt-n": "v",
    "selective": "P",
    "swap-all": "X",
    "greedy": "^",
    "capuchin": "D",
    "on-demand": "<",
    "ilp": "o",
}
PLANNER_HATCHES: Mapping[str, str] = {
    "recompute-all": "....",
    "sqrt-n": "xxxx",
    "swap-all": "++++",
    "greedy": "\\\\\\\\",
    "capuchin": "----",
    "ilp": "",
}
ACTION_LOOKS: Mapping[str, tuple[str, str]] = {
    "keep": ("#F2F2F2", ""),
    "swap": (GREEN, "////"),
    "recompute": (ORANGE, "...."),
    "drop": ("#FFFFFF", ""),
}
"""Colour and hatch of each action."""

_PAPER: Any = {
    "font.family": "DejaVu Sans",
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "axes.linewidth": 0.6,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "xtick.major.width": 0.6,
    "ytick.major.width": 0.6,
    "xtick.minor.width": 0.4,
    "ytick.minor.width": 0.4,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "xtick.minor.size": 1.5,
    "ytick.minor.size": 1.5,
    "legend.fontsize": 6.5,
    "legend.handlelength": 1.8,
    "legend.columnspacing": 1.2,
    "legend.handletextpad": 0.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.2,
    "hatch.linewidth": 0.5,
    "figure.constrained_layout.h_pad": 0.03,
    "figure.constrained_layout.w_pad": 0.03,
}


@contextmanager
def paper() -> Iterator[None]:
    """Type and lines for figures at their printed size; draw inside of it."""
    with mpl.rc_context(_PAPER):
        yield


def colours_of(planners: Iterable[str]) -> dict[str, str]:
    """A colour per planner."""
    others = [name for name in planners if name not in PLANNER_COLOURS]
    extra = {name: OTHER_COLOURS[i % len(OTHER_COLOURS)] for i, name in enumerate(others)}
    return {**PLANNER_COLOURS, **extra}


def marker_of(planner: str) -> str:
    """The marker of a planner."""
    return PLANNER_MARKERS.get(planner, "h")


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
    Path(path).write_bytes(rendered(figure, Path(path).suffix.lower().lstrip("."), dpi=dpi))


def rendered(figure: Figure, kind: str, *, dpi: int = 300) -> bytes:
    """The content of a figure's file, without dates or versions.

    Args:
        figure: what to render.
        kind: `pdf`, `svg`, `png`, or another format that matplotlib knows.
        dpi: of formats made of pixels.
    """
    dates = {"pdf": {"CreationDate": None}, "svg": {"Date": None}, "png": {"Software": None}}
    into = io.BytesIO()
    with mpl.rc_context({"pdf.fonttype": 42, "ps.fonttype": 42, "svg.hashsalt": "slackswap"}):
        figure.savefig(into, format=kind, dpi=dpi, metadata=dates.get(kind))
    return into.getvalue()

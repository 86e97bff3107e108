"""Memory over time for all planners, and what it holds at its largest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style
from slackswap_opt.figures.spans import Memory

GIB = 2**30
KEPT_ALL = "keep-all"
KINDS_SHOWN = 6
"""Kinds of activations with a colour of their own; the rest are one."""
_LOOKS = (
    (style.BLUE, ""),
    (style.SKY, "////"),
    (style.GREEN, "...."),
    (style.YELLOW, "\\\\\\\\"),
    (style.ORANGE, "xxxx"),
    (style.PURPLE, "----"),
)
_OTHER, _GRADIENTS, _WORKSPACE = "other activations", "gradients", "workspace"
_FIXED = {
    _OTHER: ("#F2F2F2", ""),
    _GRADIENTS: (style.VERMILION, "++++"),
    _WORKSPACE: (style.BLACK, ""),
}


@dataclass(frozen=True)
class Resident:
    """Bytes of one kind when a planner's memory is at its largest.

    Attributes:
        planner: whose schedule.
        fits: whether it fits the budget.
        group: "activations", "gradients" or "workspace".
        kind: name of the tensors within their layers.
        bytes: their sum.
    """

    planner: str
    fits: bool
    group: str
    kind: str
    bytes: int


def memory(rows: Sequence[Memory], axes: Sequence[Axes] | None = None) -> Figure:
    """A small panel per planner: memory over its own step, under the budget line.

    The dashed line is the step with everything kept. Planners whose schedule does not fit are
    hatched.

    Args:
        rows: memory of each planner over time; "keep-all" is drawn behind each.
        axes: one per planner; a figure of their own by default.
    """
    planners = list(dict.fromkeys(row.planner for row in rows))
    if axes is None:
        lines = -(-len(planners) // 4)
        made = style.new_figure(style.TWO_COLUMNS, 0.35 + 1.2 * lines)
        grid = made.subplots(lines, min(4, len(planners)), squeeze=False, sharex=True, sharey=True)
        axes = list(grid.flat)
        for ax in axes[len(planners) :]:
            ax.remove()
        axes = axes[: len(planners)]
    kept = [row for row in rows if row.planner == KEPT_ALL]
    for number, (ax, planner) in enumerate(zip(axes, planners, strict=True)):
        _panel(ax, [row for row in rows if row.planner == planner], kept)
        if number % 4 == 0:
            ax.set_ylabel("memory, GiB")
        if number + 4 >= len(planners):
            ax.set_xlabel("% of the step's time")
            ax.tick_params(axis="x", labelbottom=True)
        if number == 1 and kept:
            ax.text(36, 0.87 * _top(kept[0]), "all kept", color=style.GREY, fontsize="small")
    return style.figure_of(axes[0])


def _panel(ax: Axes, rows: Sequence[Memory], kept: Sequence[Memory]) -> None:
    some, end = rows[0], rows[-1].end_ms
    budget = some.budget_bytes / GIB
    if kept and some.planner != KEPT_ALL:
        x, y = _curve(kept)
        ax.plot(x, y, color=style.GREY, linewidth=0.7, linestyle=(0, (3, 2)))
    x, y = _curve(rows)
    colour = style.colours_of([some.planner])[some.planner]
    ax.fill_between(
        x, y, step="post", facecolor=colour, alpha=0.35 if some.fits else 0.25, linewidth=0
    )
    ax.step(x, y, where="post", color=colour, linewidth=0.9)
    ax.axhline(budget, color=style.VERMILION, linewidth=1.0)
    said = f"{end:.0f} ms" if some.fits else f"{end:.0f} ms, does not fit"
    ax.set_title(f"{some.planner}: {said}", fontsize="medium", pad=2)
    if some.planner == KEPT_ALL:
        ax.text(
            99, budget * 1.03, "budget", color=style.VERMILION, fontsize="small", ha="right",
            va="bottom",
        )  # fmt: skip
    ax.set_xlim(0, 100)
    ax.set_ylim(0, _top(some))
    style.plain(ax)


def _top(row: Memory) -> float:
    return 1.06 * row.ideal_peak_bytes / GIB


def _curve(rows: Sequence[Memory]) -> tuple[list[float], list[float]]:
    """Percent of the step's time, and GiB."""
    end = rows[-1].end_ms or 1.0
    times = [100 * row.start_ms / end for row in rows] + [100.0]
    sizes = [row.bytes / GIB for row in rows]
    return times, [*sizes, sizes[-1]]


def peaks(
    rows: Sequence[Resident], planners: Sequence[str] | None = None, ax: Axes | None = None
) -> Figure:
    """What each planner holds when its memory is at its largest.

    Args:
        rows: bytes by kind; the first planner's largest kinds get a look of their own.
        planners: which, from the top; all by default.
        ax: where to draw; a figure of its own by default.
    """
    wanted = list(planners or dict.fromkeys(row.planner for row in rows))
    shown = [name for name in wanted if any(row.planner == name for row in rows)]
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 1.15 + 0.22 * len(shown)).add_subplot()
    looks = _looks([row for row in rows if row.planner == shown[0]])
    widest = 0.0
    for y, planner in enumerate(shown):
        sums = Counter[str]()
        for row in rows:
            if row.planner == planner:
                sums[_name(row, looks)] += row.bytes
        left = 0.0
        for name, (colour, hatch) in looks.items():
            width = sums[name] / GIB
            ax.barh(
                y, width, left=left, height=0.7, facecolor=colour, hatch=hatch,
                edgecolor="#333333", linewidth=0.3, label=name if y == 0 else None,
            )  # fmt: skip
            left += width
        fits = next(row.fits for row in rows if row.planner == planner)
        ax.text(
            left, y, f" {left:.1f}" + ("" if fits else ", does not fit"), va="center",
            fontsize="small",
        )  # fmt: skip
        widest = max(widest, left * (1.12 if fits else 1.45))
    ax.set_yticks(range(len(shown)), shown)
    ax.tick_params(axis="y", length=0)
    ax.set_ylim(len(shown) - 0.4, -0.6)
    ax.set_xlim(0, widest)
    ax.set_xlabel("memory at its largest, GiB")
    ax.legend(
        loc="upper center", bbox_to_anchor=(0.42, -0.3 * 5 / (len(shown) + 2)), ncols=3,
        frameon=False, columnspacing=0.9, handlelength=1.4,
    )  # fmt: skip
    style.plain(ax)
    return style.figure_of(ax)


def _looks(rows: Sequence[Resident]) -> dict[str, tuple[str, str]]:
    largest = sorted(
        (row for row in rows if row.group == "activations"), key=lambda row: -row.bytes
    )
    own = [row.kind for row in largest[:KINDS_SHOWN]]
    return dict(zip(own, _LOOKS, strict=False)) | _FIXED


def _name(row: Resident, looks: dict[str, tuple[str, str]]) -> str:
    if row.group == "activations":
        return row.kind if row.kind in looks else _OTHER
    return _GRADIENTS if row.group == "gradients" else _WORKSPACE

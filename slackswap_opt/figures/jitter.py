"""How step times spread when durations and the link do not keep to what was planned."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure

from slackswap_opt.figures import style

_WORDS: Any = {"rotation": 90, "ha": "center", "va": "bottom", "fontsize": "x-small"}


@dataclass(frozen=True)
class Spread:
    """Step times of one plan under one amount of jitter.

    Attributes:
        planner: whose plan.
        jitter_percent: standard deviation of each duration and copy, in percent of it.
        trials: how many simulations.
        ideal_step_ms: the step without a limit and without jitter.
        median_ms: step time that half of the trials that finished do not exceed; None if none did.
        low_ms: the same for 5 %.
        high_ms: the same for 95 %.
        out_of_memory: share of the trials that ran out of memory.
    """

    planner: str
    jitter_percent: float
    trials: int
    ideal_step_ms: float
    median_ms: float | None
    low_ms: float | None
    high_ms: float | None
    out_of_memory: float


def jitter(rows: Sequence[Spread], ax: Axes | None = None) -> Figure:
    """Per amount of jitter and planner: median, and the range of the middle 90 %.

    Where trials ran out of memory, their share is written above.

    Args:
        rows: one per planner and amount.
        ax: where to draw; a figure of its own by default.
    """
    if ax is None:
        ax = style.new_figure(style.ONE_COLUMN, 2.3).add_subplot()
    amounts = sorted({row.jitter_percent for row in rows})
    planners = list(dict.fromkeys(row.planner for row in rows))
    step = 0.7 / max(1, len(planners))
    for number, planner in enumerate(planners):
        colour = style.colours_of([planner])[planner]
        mine = sorted((r for r in rows if r.planner == planner), key=lambda r: r.jitter_percent)
        x = [amounts.index(r.jitter_percent) + (number + 0.5) * step - 0.35 for r in mine]
        y = [_percent(r, r.median_ms) for r in mine]
        low = [a - _percent(r, r.low_ms) for a, r in zip(y, mine, strict=True)]
        high = [_percent(r, r.high_ms) - a for a, r in zip(y, mine, strict=True)]
        ax.errorbar(
            x, y, yerr=(low, high), color=colour, marker=style.marker_of(planner), markersize=3,
            linestyle="", linewidth=0.9, capsize=1.6, label=planner,
        )  # fmt: skip
        tops = [_percent(r, r.high_ms) for r in mine]
        for at, top, row in zip(x, tops, mine, strict=True):
            if row.out_of_memory:
                share = f"{100 * row.out_of_memory:.0f} % OOM"
                if row.median_ms is None:
                    ax.text(at, 0.02, share, transform=ax.get_xaxis_transform(), **_WORDS)
                else:
                    ax.annotate(
                        share, (at, top), xytext=(0, 2), textcoords="offset points", **_WORDS
                    )
    ax.set_xticks(range(len(amounts)), [f"{a:g}" for a in amounts])
    ax.set_xlabel("jitter: standard deviation, % of each duration and copy")
    ax.set_ylabel("step time, % above ideal")
    ax.margins(y=0.15 if any(row.out_of_memory for row in rows) else 0.05)
    ax.set_xlim(-0.5, len(amounts) - 0.5)
    ax.legend(frameon=False, ncols=len(planners), loc="lower center", bbox_to_anchor=(0.45, 1.0),
              handletextpad=0.2, columnspacing=0.8)  # fmt: skip
    style.plain(ax)
    return style.figure_of(ax)


def _percent(row: Spread, ms: float | None) -> float:
    """Percent above ideal; not a number where no trial finished, so that nothing is drawn."""
    return float("nan") if ms is None else 100 * (ms / row.ideal_step_ms - 1)

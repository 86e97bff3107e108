"""The three streams of a simulated step, and the memory it takes."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from slackswap_opt.figures import style
from slackswap_opt.figures.spans import (
    AGAIN,
    IN,
    KINDS,
    LANES,
    OUT,
    WAITING,
    Memory,
    Span,
    spans_of,
)
from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Verdict
from slackswap_opt.step import Phase, TrainingStep

COLOURS = {
    Phase.FORWARD.value: style.BLUE,
    Phase.BACKWARD.value: style.SKY,
    Phase.OPTIMIZER.value: style.GREY,
    AGAIN: style.ORANGE,
    WAITING: style.VERMILION,
    OUT: style.GREEN,
    IN: style.PURPLE,
}
HATCHES = {AGAIN: "....", WAITING: "xxxx"}
"""Kinds that share the compute lane with others and must not depend on colour."""
GIB = 2**30


def timeline(
    step: TrainingStep,
    schedule: Schedule,
    verdict: Verdict,
    axes: tuple[Axes, Axes] | None = None,
    *,
    unlimited: Verdict | None = None,
    between_ms: tuple[float, float] | None = None,
) -> Figure:
    """Compute and copy streams above, memory in use and the budget below.

    Args:
        step: the step that was planned.
        schedule: the program that was played.
        verdict: what the simulator said of it.
        axes: axes for streams and for memory; a figure of its own by default.
        unlimited: the step with everything kept, whose memory is drawn for comparison.
        between_ms: the part of the step to show; all of it by default.
    """
    streams, memory = axes or _own_axes(8.0, 4.4, 1.5)
    _draw_streams(streams, spans_of(step, schedule, verdict.timeline))
    kept = None if unlimited is None else _curve(unlimited)
    _draw_memory(memory, _curve(verdict), kept, verdict.capacity_bytes / GIB)
    end_ms = _ms(max(verdict.step_ns or 0, int(verdict.timeline.memory_ns.max(initial=0))))
    for ax in (streams, memory):
        ax.set_xlim(between_ms or (0, end_ms))
    return style.figure_of(streams)


def step_timeline(
    spans: Sequence[Span],
    memory: Sequence[Memory],
    kept: Sequence[Memory] = (),
    axes: tuple[Axes, Axes] | None = None,
) -> Figure:
    """The same from rows, across both columns of a paper.

    Args:
        spans: work of the schedule.
        memory: memory of the schedule over time.
        kept: memory with everything kept, for comparison.
        axes: axes for streams and for memory; a figure of its own by default.
    """
    streams, below = axes or _own_axes(style.TWO_COLUMNS, 2.9, 1.45)
    _draw_streams(streams, spans)
    _draw_memory(
        below,
        _steps(memory),
        _steps(kept) if kept else None,
        memory[0].budget_bytes / GIB,
    )
    end = max([row.end_ms for row in memory] + [span.end_ms for span in spans])
    for ax in (streams, below):
        ax.set_xlim(0, end)
    return style.figure_of(streams)


def _own_axes(width: float, height: float, ratio: float) -> tuple[Axes, Axes]:
    made = style.new_figure(width, height)
    streams, memory = made.subplots(2, 1, sharex=True, height_ratios=(1, ratio))
    return streams, memory


def _draw_streams(ax: Axes, spans: Iterable[Span]) -> None:
    by_kind: dict[tuple[str, str], list[Span]] = {}
    for span in spans:
        by_kind.setdefault((span.kind, span.lane), []).append(span)
    for (kind, lane), found in by_kind.items():
        bars = [(span.start_ms, span.end_ms - span.start_ms) for span in found]
        at = LANES.index(lane)
        ax.broken_barh(
            bars, (at - 0.4, 0.8), facecolors=COLOURS[kind], linewidth=0,
            hatch=HATCHES.get(kind), edgecolor=style.BLACK,
        )  # fmt: skip
    shown = [kind for kind in KINDS if any(kind == found for found, _ in by_kind)]
    ax.set_yticks(range(len(LANES)), list(LANES))
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelbottom=False)
    ax.set_ylim(-0.6, len(LANES) - 0.4)
    ax.legend(
        handles=[
            Patch(facecolor=COLOURS[k], hatch=HATCHES.get(k), edgecolor=style.BLACK, linewidth=0,
                  label=k)
            for k in shown
        ],
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(shown), frameon=False,
        fontsize="small", handlelength=1.2, handletextpad=0.4, columnspacing=1.0,
    )  # fmt: skip
    style.plain(ax)


_Curve = tuple[Sequence[float], Sequence[float]]


def _draw_memory(ax: Axes, used: _Curve, kept: _Curve | None, budget_gib: float) -> None:
    if kept is not None:
        x, y = kept
        ax.step(
            x, y, where="post", color=style.GREY, linewidth=1.0, linestyle="--", label="all kept"
        )
    times, sizes = used
    ax.fill_between(times, sizes, step="post", color=style.BLUE, alpha=0.25, linewidth=0)
    ax.step(times, sizes, where="post", color=style.BLUE, linewidth=1.0, label="in use")
    ax.axhline(budget_gib, color=style.VERMILION, linewidth=1.4, label="budget")
    highest = max([budget_gib, *sizes, *(kept[1] if kept is not None else ())])
    ax.set_ylim(0, 1.2 * highest)
    ax.set_ylabel("memory, GiB")
    ax.set_xlabel("time, ms")
    ax.legend(frameon=False, fontsize="small", loc="upper right", ncols=3, borderaxespad=0.1)
    style.plain(ax)


def _curve(verdict: Verdict) -> _Curve:
    played = verdict.timeline
    sizes: Sequence[float] = np.asarray(played.memory_bytes / GIB).tolist()
    return [_ms(t) for t in played.memory_ns.tolist()], sizes


def _steps(memory: Sequence[Memory]) -> _Curve:
    """A corner where each part begins, and the end of the last one."""
    times = [row.start_ms for row in memory] + [memory[-1].end_ms]
    sizes = [row.bytes / GIB for row in memory] + [memory[-1].bytes / GIB]
    return times, sizes


def _ms(ns: int) -> float:
    return ns / 1e6

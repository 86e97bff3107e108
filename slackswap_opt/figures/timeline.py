"""The three streams of a simulated step, and the memory it takes."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Patch

from slackswap_opt.figures import style
from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Timeline, Verdict
from slackswap_opt.step import Phase, TrainingStep

COLOURS = {
    Phase.FORWARD.value: style.BLUE,
    Phase.BACKWARD.value: style.SKY,
    Phase.OPTIMIZER.value: style.GREY,
    "re-executed": style.ORANGE,
    "waiting": style.VERMILION,
    "copy out": style.GREEN,
    "copy in": style.PURPLE,
}
LANES = ("copy in", "copy out", "compute")
"""From the bottom to the top."""
GIB = 2**30
Span = tuple[int, int]


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
    if axes is None:
        made = style.new_figure(8.0, 4.4)
        streams, memory = made.subplots(2, 1, sharex=True, height_ratios=(1, 1.5))
    else:
        streams, memory = axes
    _draw_streams(streams, step, schedule, verdict.timeline)
    _draw_memory(memory, verdict, unlimited)
    end_ms = _ms(max(verdict.step_ns or 0, int(verdict.timeline.memory_ns.max(initial=0))))
    for ax in (streams, memory):
        ax.set_xlim(between_ms or (0, end_ms))
    return style.figure_of(streams)


def _draw_streams(ax: Axes, step: TrainingStep, schedule: Schedule, played: Timeline) -> None:
    shown: dict[str, None] = {}
    for kind, lane, spans in _work(step, schedule, played):
        if spans:
            shown[kind] = None
            bars = [(_ms(start), _ms(end - start)) for start, end in _joined(spans)]
            at = LANES.index(lane)
            ax.broken_barh(bars, (at - 0.4, 0.8), facecolors=COLOURS[kind], linewidth=0)
    ax.set_yticks(range(len(LANES)), list(LANES))
    ax.tick_params(axis="y", length=0)
    ax.tick_params(axis="x", labelbottom=False)
    ax.set_ylim(-0.6, len(LANES) - 0.4)
    ax.legend(
        handles=[Patch(color=COLOURS[k], label=k) for k in COLOURS if k in shown],
        loc="lower center", bbox_to_anchor=(0.5, 1.0), ncols=len(shown), frameon=False,
        fontsize="small", handlelength=1.0, handletextpad=0.4, columnspacing=1.0,
    )  # fmt: skip
    style.plain(ax)


def _work(
    step: TrainingStep, schedule: Schedule, played: Timeline
) -> Iterator[tuple[str, str, list[Span]]]:
    """Kind of work, lane and the spans of it that took place."""
    kinds: dict[str, list[Span]] = {kind: [] for kind in COLOURS}
    seen: set[int] = set()
    starts, ends = played.compute_start_ns.tolist(), played.compute_end_ns.tolist()
    for op, start, end in zip(schedule.compute, starts, ends, strict=True):
        kind = "re-executed" if op in seen else step.operations[op].phase.value
        seen.add(op)
        if end > start >= 0:
            kinds[kind].append((start, end))
    kinds["waiting"] = [(stall.start_ns, stall.end_ns) for stall in played.stalls]
    last = max(ends, default=0)
    for kind, begun, done in (
        ("copy out", played.out_start_ns, played.out_end_ns),
        ("copy in", played.in_start_ns, played.in_end_ns),
    ):
        pairs = zip(begun.tolist(), done.tolist(), strict=True)
        kinds[kind] = [(start, end if end >= 0 else last) for start, end in pairs if start >= 0]
    for kind, spans in kinds.items():
        yield kind, kind if kind in LANES else "compute", spans


def _joined(spans: Iterable[Span]) -> Iterator[Span]:
    """Spans that touch, drawn as one."""
    current: Span | None = None
    for start, end in sorted(spans):
        if current is not None and start <= current[1]:
            current = (current[0], max(end, current[1]))
            continue
        if current is not None:
            yield current
        current = (start, end)
    if current is not None:
        yield current


def _draw_memory(ax: Axes, verdict: Verdict, unlimited: Verdict | None) -> None:
    if unlimited is not None:
        times, sizes = _curve(unlimited)
        ax.plot(times, sizes, color=style.GREY, linewidth=1.0, linestyle="--", label="all kept")
    times, sizes = _curve(verdict)
    ax.fill_between(times, sizes, step="post", color=style.BLUE, alpha=0.25, linewidth=0)
    ax.step(times, sizes, where="post", color=style.BLUE, linewidth=1.0, label="in use")
    budget = verdict.capacity_bytes / GIB
    ax.axhline(budget, color=style.VERMILION, linewidth=1.4, label="budget")
    ax.set_ylim(bottom=0)
    ax.set_ylabel("memory, GiB")
    ax.set_xlabel("time, ms")
    ax.legend(frameon=False, fontsize="small", loc="upper right")
    style.plain(ax)


def _curve(verdict: Verdict) -> tuple[Sequence[float], Sequence[float]]:
    played = verdict.timeline
    sizes: Sequence[float] = np.asarray(played.memory_bytes / GIB).tolist()
    return [_ms(t) for t in played.memory_ns.tolist()], sizes


def _ms(ns: int) -> float:
    return ns / 1e6

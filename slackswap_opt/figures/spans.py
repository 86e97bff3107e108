"""What happens when in a simulated step, as rows: spans of work, and memory over time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Timeline
from slackswap_opt.step import Phase, TrainingStep

COMPUTE, OUT, IN = "compute", "copy out", "copy in"
AGAIN, WAITING = "re-executed", "waiting"
KINDS = (Phase.FORWARD.value, Phase.BACKWARD.value, Phase.OPTIMIZER.value, AGAIN, WAITING, OUT, IN)
"""Kinds of work, in the order of keys."""
LANES = (IN, OUT, COMPUTE)
"""From the bottom to the top."""


@dataclass(frozen=True)
class Span:
    """Work of one kind without a break.

    Attributes:
        lane: "compute", "copy out" or "copy in".
        kind: one of `KINDS`.
        start_ms: when it began.
        end_ms: when it ended.
    """

    lane: str
    kind: str
    start_ms: float
    end_ms: float


@dataclass(frozen=True)
class Memory:
    """The largest memory in use in a part of the step.

    Attributes:
        planner: whose schedule.
        fits: whether it fits the budget; one that does not is played without it.
        start_ms: where the part begins.
        end_ms: where it ends.
        bytes: the largest memory in it.
        budget_bytes: the budget.
        ideal_peak_bytes: the peak without a limit.
    """

    planner: str
    fits: bool
    start_ms: float
    end_ms: float
    bytes: int
    budget_bytes: int
    ideal_peak_bytes: int


def spans_of(step: TrainingStep, schedule: Schedule, played: Timeline) -> list[Span]:
    """All work of a simulated schedule; what touches is one span."""
    return [
        Span(lane, kind, start / 1e6, end / 1e6)
        for kind, lane, spans in _work(step, schedule, played)
        for start, end in _joined(spans)
    ]


def _work(
    step: TrainingStep, schedule: Schedule, played: Timeline
) -> Iterator[tuple[str, str, list[tuple[int, int]]]]:
    """Kind of work, lane and the spans of it that took place, in nanoseconds."""
    kinds: dict[str, list[tuple[int, int]]] = {kind: [] for kind in KINDS}
    seen: set[int] = set()
    starts, ends = played.compute_start_ns.tolist(), played.compute_end_ns.tolist()
    for op, start, end in zip(schedule.compute, starts, ends, strict=True):
        kind = AGAIN if op in seen else step.operations[op].phase.value
        seen.add(op)
        if end > start >= 0:
            kinds[kind].append((start, end))
    kinds[WAITING] = [(stall.start_ns, stall.end_ns) for stall in played.stalls]
    last = max(ends, default=0)
    for kind, begun, done in (
        (OUT, played.out_start_ns, played.out_end_ns),
        (IN, played.in_start_ns, played.in_end_ns),
    ):
        pairs = zip(begun.tolist(), done.tolist(), strict=True)
        kinds[kind] = [(start, end if end >= 0 else last) for start, end in pairs if start >= 0]
    for kind, spans in kinds.items():
        yield kind, kind if kind in LANES else COMPUTE, spans


def _joined(spans: Iterable[tuple[int, int]]) -> Iterator[tuple[int, int]]:
    """Spans that touch, as one."""
    current: tuple[int, int] | None = None
    for start, end in sorted(spans):
        if current is not None and start <= current[1]:
            current = (current[0], max(current[1], end))
            continue
        if current is not None:
            yield current
        current = (start, end)
    if current is not None:
        yield current

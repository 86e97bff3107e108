"""A simulated schedule played through an allocator: the reserved peak, and what it is made of."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.allocator.blocks import Block
from slackswap_opt.allocator.caching import CachingAllocator
from slackswap_opt.allocator.report import Fragmentation, fragmentation
from slackswap_opt.allocator.requests import Allocate, Complete, Free, Request, Stream, requests
from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Verdict
from slackswap_opt.step import TrainingStep


class Kind(StrEnum):
    """Which allocator."""

    IDEAL = "ideal"
    """Every byte can be used for anything: reserved is what is asked for."""
    CACHING = "caching"
    """PyTorch's, with segments of a fixed size."""
    EXPANDABLE = "expandable"
    """PyTorch's with `expandable_segments:True`."""


@dataclass(frozen=True)
class Refused:
    """The request for which memory ran out, after cached blocks were given back.

    Attributes:
        at_ns: when, in the step.
        owner: the tensor, or whose workspace.
        operation: at the start of which operation, or before which a copy in.
        size_bytes: what was asked for.
        reserved_bytes: what was reserved then.
        requested_bytes: what was in use then.
    """

    at_ns: int
    owner: str
    operation: str
    size_bytes: int
    reserved_bytes: int
    requested_bytes: int


@dataclass(frozen=True)
class Reserved:
    """A schedule in an allocator.

    Attributes:
        kind: which one.
        capacity_bytes: most it may reserve; None for no limit.
        steps: how often the step was played in a row, the cache kept between.
        requested_peak_bytes: most bytes asked for at once: the simulated peak.
        reserved_peak_bytes: most memory that was reserved.
        peak_ns: when that was first so, in its step.
        peak_step: in which step, from 0.
        at_peak: what it was made of then; None for the ideal allocator.
        flushes: how often cached blocks were given back for want of memory; each one waits for
            the device.
        refused: the request that ended it; None if all were served.
        reserved_ns: (M,) int64, instants of the last step played at which reserved memory
            changed, its start included.
        reserved_bytes: (M,) int64, reserved memory from then on.
    """

    kind: Kind
    capacity_bytes: int | None
    steps: int
    requested_peak_bytes: int
    reserved_peak_bytes: int
    peak_ns: int
    peak_step: int
    at_peak: Fragmentation | None
    flushes: int
    refused: Refused | None
    reserved_ns: NDArray[np.int64]
    reserved_bytes: NDArray[np.int64]

    @property
    def fits(self) -> bool:
        """Whether every request was served."""
        return self.refused is None

    @property
    def fragmentation(self) -> float:
        """(reserved peak - requested peak) / reserved peak."""
        if not self.reserved_peak_bytes:
            return 0.0
        return 1 - self.requested_peak_bytes / self.reserved_peak_bytes


def reserve(
    step: TrainingStep,
    schedule: Schedule,
    verdict: Verdict,
    kind: Kind = Kind.CACHING,
    *,
    capacity_bytes: int | None = None,
    steps: int = 1,
    own_pool: bool = False,
) -> Reserved:
    """Play a simulated schedule through an allocator.

    The times are those of the verdict: fragmentation changes none of them.

    Args:
        step: what was run.
        schedule: the program.
        verdict: what the simulator said of it.
        kind: which allocator.
        capacity_bytes: most it may reserve; None for no limit.
        steps: how often the step is played in a row; from the second on it begins with a cache.
        own_pool: whether buffers of copies in come from a pool of the copy stream, as they do
            where they are allocated on it, instead of the compute stream's.

    Raises:
        ValueError: if the verdict is not one of this schedule.
    """
    found = requests(step, schedule, verdict)
    if kind is Kind.IDEAL:
        return _ideal(found, capacity_bytes, steps)
    play = _Play(found, kind, capacity_bytes, steps, own_pool=own_pool)
    play.run()
    again = _Play(found, kind, capacity_bytes, steps, own_pool=own_pool)
    again.run(stop_after=play.peak_at)
    return Reserved(
        kind=kind,
        capacity_bytes=capacity_bytes,
        steps=steps,
        requested_peak_bytes=play.requested_peak,
        reserved_peak_bytes=play.reserved_peak,
        peak_ns=play.peak_ns,
        peak_step=play.peak_step,
        at_peak=fragmentation(again.allocator.segments()),
        flushes=play.allocator.flushes,
        refused=play.refused,
        reserved_ns=np.array([ns for ns, _ in play.line], dtype=np.int64),
        reserved_bytes=np.array([size for _, size in play.line], dtype=np.int64),
    )


class _Play:
    """One run through the requests."""

    def __init__(
        self,
        found: tuple[Request, ...],
        kind: Kind,
        capacity_bytes: int | None,
        steps: int,
        *,
        own_pool: bool,
    ) -> None:
        self.requests, self.steps, self.own_pool = found, steps, own_pool
        self.allocator = CachingAllocator(
            expandable=kind is Kind.EXPANDABLE, capacity_bytes=capacity_bytes
        )
        self.blocks: dict[int, Block] = {}
        self.refused: Refused | None = None
        self.requested_peak = self.reserved_peak = 0
        self.peak_ns = self.peak_step = self.peak_at = 0
        self.line: list[tuple[int, int]] = []

    def run(self, stop_after: int | None = None) -> None:
        for number, (turn, request) in enumerate(self._in_turn()):
            if isinstance(request, Allocate):
                self._allocate(turn, request, number)
            elif isinstance(request, Free):
                after = [] if request.after is None else [(turn, request.after)]
                self.allocator.free(self.blocks.pop(request.key), after)
            else:
                self.allocator.complete((turn, request.copy))
            if self.refused is not None or number == stop_after:
                return

    def _in_turn(self) -> Iterator[tuple[int, Request]]:
        """The requests of every step; at the end of each, what is left is given back."""
        for turn in range(self.steps):
            self.line = [(0, self.allocator.usage().reserved)]
            for request in self.requests:
                yield turn, request
            for key in list(self.blocks):
                yield turn, Free(0, key)
            for request in self.requests:
                if isinstance(request, Free) and request.after is not None:
                    yield turn, Complete(0, request.after)

    def _allocate(self, turn: int, request: Allocate, number: int) -> None:
        stream = Stream.H2D if self.own_pool and request.stream is Stream.H2D else Stream.COMPUTE
        block = self.allocator.allocate(request.size_bytes, stream, request.owner)
        use = self.allocator.usage()
        if use.reserved != self.line[-1][1]:
            self.line.append((request.at_ns, use.reserved))
        if block is None:
            self.refused = Refused(
                request.at_ns, request.owner, request.operation, request.size_bytes,
                use.reserved, use.requested,
            )  # fmt: skip
            return
        self.blocks[request.key] = block
        self.requested_peak = max(self.requested_peak, use.requested)
        if use.reserved > self.reserved_peak:
            self.reserved_peak = use.reserved
            self.peak_ns, self.peak_step, self.peak_at = request.at_ns, turn, number


def _ideal(found: tuple[Request, ...], capacity_bytes: int | None, steps: int) -> Reserved:
    """One step like any other: nothing is cached, and nothing is lost."""
    size: dict[int, int] = {}
    leaving: dict[int, list[int]] = {}
    used = peak = peak_ns = 0
    line = [(0, 0)]
    refused: Refused | None = None
    for request in found:
        if isinstance(request, Allocate):
            if capacity_bytes is not None and used + request.size_bytes > capacity_bytes:
                refused = Refused(
                    request.at_ns, request.owner, request.operation, request.size_bytes, used, used
                )
                break
            size[request.key] = request.size_bytes
            used += request.size_bytes
            if used > peak:
                peak, peak_ns = used, request.at_ns
        elif isinstance(request, Complete):
            used -= sum(size.pop(key) for key in leaving.pop(request.copy))
        elif request.after is None:
            used -= size.pop(request.key)
        else:
            leaving.setdefault(request.after, []).append(request.key)
        line.append((request.at_ns, used))
    return Reserved(
        kind=Kind.IDEAL,
        capacity_bytes=capacity_bytes,
        steps=steps,
        requested_peak_bytes=peak,
        reserved_peak_bytes=peak,
        peak_ns=peak_ns,
        peak_step=0,
        at_peak=None,
        flushes=0,
        refused=refused,
        reserved_ns=np.array([ns for ns, _ in line], dtype=np.int64),
        reserved_bytes=np.array([total for _, total in line], dtype=np.int64),
    )

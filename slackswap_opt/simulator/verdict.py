"""What the referee says of a schedule."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray


class Cause(StrEnum):
    """Why the compute stream waited."""

    SWAP_IN = "swap-in"
    """An input is on its way from the host, or queued behind what is."""
    SWAP_OUT = "swap-out"
    """Memory is missing that a copy out will free."""


@dataclass(frozen=True, slots=True)
class Stall:
    """An interval in which the compute stream waited for one cause.

    Attributes:
        event: index of the compute event that waited.
        start_ns: when the wait for this cause began.
        end_ns: when it ended.
        cause: what was waited for.
        tensor: the tensor that was missing, or whose copy out was under way.
    """

    event: int
    start_ns: int
    end_ns: int
    cause: Cause
    tensor: int


@dataclass(frozen=True)
class Timeline:
    """Start and end of every event, in nanoseconds, -1 where it never happened.

    Attributes:
        compute_start_ns: (events,) int64.
        compute_end_ns: (events,) int64.
        out_start_ns: (copies out,) int64.
        out_end_ns: (copies out,) int64.
        in_start_ns: (copies in,) int64.
        in_end_ns: (copies in,) int64.
        memory_ns: (M,) int64, the instants at which the memory in use changes.
        memory_bytes: (M,) int64, bytes in use from that instant on (of several changes at one
            instant, each intermediate value is listed, in the order in which it happened).
        host_bytes: largest pinned memory in use.
        stalls: every wait of the compute stream, in order.
    """

    compute_start_ns: NDArray[np.int64]
    compute_end_ns: NDArray[np.int64]
    out_start_ns: NDArray[np.int64]
    out_end_ns: NDArray[np.int64]
    in_start_ns: NDArray[np.int64]
    in_end_ns: NDArray[np.int64]
    memory_ns: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    host_bytes: int
    stalls: tuple[Stall, ...]


@dataclass(frozen=True, slots=True)
class OutOfMemory:
    """Nothing is in flight, and the step is not finished.

    Attributes:
        event: the compute event that cannot start.
        at_ns: when everything stopped.
        missing_bytes: how much more capacity it would have needed (0 where an input is missing
            because a copy cannot start).
        waiting_copy: index and direction ("out", "in") of a copy that cannot start for want of
            device or host memory, if one is why.
        waiting_bytes: how much more memory that copy would have needed.
        resident: tensors on the device, largest first.
    """

    event: int
    at_ns: int
    missing_bytes: int
    waiting_copy: tuple[str, int] | None
    waiting_bytes: int
    resident: tuple[int, ...]


@dataclass(frozen=True)
class Verdict:
    """The result of playing a schedule at a capacity.

    Attributes:
        timeline: every event; complete only if the step finished.
        step_ns: end of the last compute event, None if the step did not finish.
        peak_bytes: largest memory in use at any instant.
        capacity_bytes: the capacity it was played at.
        out_of_memory: why the step did not finish, None if it did.
    """

    timeline: Timeline
    step_ns: int | None
    peak_bytes: int
    capacity_bytes: int
    out_of_memory: OutOfMemory | None

    @property
    def fits(self) -> bool:
        """Whether the whole step ran within the capacity."""
        return self.out_of_memory is None

    @property
    def stall_ns(self) -> int:
        """Time the compute stream waited."""
        return sum(stall.end_ns - stall.start_ns for stall in self.timeline.stalls)

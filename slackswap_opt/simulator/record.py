"""What happened in every lane of a batch."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Ints = NDArray[np.int64]

NEVER = -1
"""Stands where something did not happen."""


@dataclass(frozen=True)
class Record:
    """What happened in every lane. B lanes; -1 where something never happened.

    Attributes:
        compute_start_ns: (E, B), E the events of the longest schedule.
        compute_end_ns: (E, B).
        out_start_ns: (O, B).
        out_end_ns: (O, B).
        in_start_ns: (I, B).
        in_end_ns: (I, B).
        step_ns: (B,) end of the last compute event, -1 where the step did not finish.
        peak_bytes: (B,) largest memory in use.
        host_bytes: (B,) largest pinned memory in use.
        stuck_event: (B,) compute event that could not start, -1 where the step finished.
        stuck_ns: (B,) when that was.
        missing_bytes: (B,) by how much that event did not fit; 0 where it waited for a copy that
            could not start.
        memory_ns: (M, B) instants at which memory in use may change; no rows unless asked for.
        memory_bytes: (M, B) bytes in use from then on, -1 after a lane's last change. An entry
            that repeats the one before it is no change.
    """

    compute_start_ns: Ints
    compute_end_ns: Ints
    out_start_ns: Ints
    out_end_ns: Ints
    in_start_ns: Ints
    in_end_ns: Ints
    step_ns: Ints
    peak_bytes: Ints
    host_bytes: Ints
    stuck_event: Ints
    stuck_ns: Ints
    missing_bytes: Ints
    memory_ns: Ints
    memory_bytes: Ints

    @classmethod
    def blank(cls, events: int, outs: int, ins: int, changes: int, lanes: int) -> Record:
        """Nothing has happened yet in any lane.

        Args:
            events: E.
            outs: O.
            ins: I.
            changes: M.
            lanes: B.
        """

        def never(rows: int) -> Ints:
            return np.full((rows, lanes), NEVER, dtype=np.int64)

        step, stuck_event, stuck_ns = never(3)
        peak, host, missing = np.zeros((3, lanes), dtype=np.int64)
        return cls(
            never(events), never(events), never(outs), never(outs), never(ins), never(ins),
            step, peak, host, stuck_event, stuck_ns, missing, never(changes), never(changes),
        )  # fmt: skip

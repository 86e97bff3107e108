"""Programs of several schedules as arrays, for lanes that are played together.

All lanes play compute event k at the same time, each by its own clock, so what an event needs is a
row with a column for each program. How far the copies are differs between lanes; what they need
lies in long arrays, the programs one after the other. Each queue has a last entry there that never
becomes ready.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.simulator.program import Program

Ints = NDArray[np.int64]

FAR = 1 << 62
"""Later than any instant, more than any number of bytes or events."""


@dataclass(frozen=True)
class Tables:
    """P programs; positions of copies are those in the long arrays.

    Attributes:
        events: (P,) compute events of each.
        first_out: (P,) position of its first copy out.
        first_in: (P,) position of its first copy in.
        last_out: (P,) position behind its last copy out.
        last_in: (P,) position behind its last copy in.
        after_in: by compute event, (P,) position that the queue of copies in must have reached;
            None where no program waits for more than an earlier event of it did.
        after_out: the same of copies out.
        allocated: by compute event, (P,) bytes.
        released: by compute event, (P,) bytes; None where there are none.
        leaving: by compute event, pairs of (P,) positions of copies out and bytes that leave with
            the later of the two ends.
        out_after: compute events that must have ended before the copy.
        out_freed_by: compute events that must have ended for its tensor to leave with the copy.
        out_bytes: device bytes of its tensor.
        out_buffer: new host bytes.
        in_after: compute events that must have ended before the copy.
        in_after_out: position that the queue of copies out must have reached.
        in_bytes: device bytes of its buffer.
        in_buffer: host bytes that its end gives back.
    """

    events: Ints
    first_out: Ints
    first_in: Ints
    last_out: Ints
    last_in: Ints
    after_in: list[Ints | None]
    after_out: list[Ints | None]
    allocated: list[Ints]
    released: list[Ints | None]
    leaving: list[list[tuple[Ints, Ints]]]
    out_after: Ints
    out_freed_by: Ints
    out_bytes: Ints
    out_buffer: Ints
    in_after: Ints
    in_after_out: Ints
    in_bytes: Ints
    in_buffer: Ints

    @classmethod
    def of(cls, programs: Sequence[Program]) -> Tables:
        """The programs' numbers, in their order."""
        first_out = _firsts([p.out_after for p in programs])
        first_in = _firsts([p.in_after for p in programs])
        out_bytes = _joined([p.out_bytes for p in programs], 0)
        return cls(
            events=_lengths([p.allocated for p in programs]),
            first_out=first_out,
            first_in=first_in,
            last_out=first_out + _lengths([p.out_after for p in programs]),
            last_in=first_in + _lengths([p.in_after for p in programs]),
            after_in=_waits([p.after_in for p in programs], first_in),
            after_out=_waits([p.after_out for p in programs], first_out),
            allocated=list(_rows([p.allocated for p in programs])),
            released=[
                row if row.any() else None for row in _rows([p.released for p in programs])
            ],
            leaving=_leaving(programs, first_out, out_bytes),
            out_after=_joined([p.out_after for p in programs], FAR),
            out_freed_by=_joined(
                [[FAR if e is None else e for e in p.out_freed_by] for p in programs], FAR
            ),
            out_bytes=out_bytes,
            out_buffer=_joined([p.out_buffer for p in programs], 0),
            in_after=_joined([p.in_after for p in programs], FAR),
            in_after_out=_joined([p.in_after_out for p in programs], FAR, first_out),
            in_bytes=_joined([p.in_bytes for p in programs], 0),
            in_buffer=_joined([p.in_buffer for p in programs], 0),
        )  # fmt: skip


def _lengths(queues: list[list[int]]) -> Ints:
    return np.array([len(queue) for queue in queues], dtype=np.int64)


def _firsts(queues: list[list[int]]) -> Ints:
    """Position of each queue's first entry where all have one more entry at the end."""
    behind = np.cumsum(_lengths(queues) + 1)
    return behind - _lengths(queues) - 1


def _joined(queues: list[list[int]], last: int, base: Ints | None = None) -> Ints:
    parts = []
    for number, queue in enumerate(queues):
        values = np.array([*queue, last], dtype=np.int64)
        if base is not None:
            values[:-1] += base[number]
        parts.append(values)
    return np.concatenate(parts)


def _rows(queues: list[list[int]]) -> Ints:
    """(events of the longest, P), 0 behind the end of the others."""
    rows = np.zeros((max(map(len, queues)), len(queues)), dtype=np.int64)
    for column, queue in enumerate(queues):
        rows[: len(queue), column] = queue
    return rows


def _waits(queues: list[list[int]], first: Ints) -> list[Ints | None]:
    """Positions to wait for, where they are new."""
    counts = _rows(queues)
    latest = np.maximum.accumulate(counts, axis=0)
    before = np.vstack((np.zeros((1, len(queues)), dtype=np.int64), latest[:-1]))
    new = np.any(counts > before, axis=1).tolist()
    return [row if is_new else None for row, is_new in zip(counts + first, new, strict=True)]


def _leaving(
    programs: Sequence[Program], first_out: Ints, out_bytes: Ints
) -> list[list[tuple[Ints, Ints]]]:
    found: list[list[tuple[Ints, Ints]]] = []
    for event in range(max(len(p.allocated) for p in programs)):
        each = [p.leaving[event] if event < len(p.leaving) else [] for p in programs]
        ranks = []
        for rank in range(max(map(len, each))):
            number, size = np.zeros((2, len(programs)), dtype=np.int64)
            for column, numbers in enumerate(each):
                if rank < len(numbers):
                    number[column] = first_out[column] + numbers[rank]
                    size[column] = out_bytes[number[column]]
            ranks.append((number, size))
        found.append(ranks)
    return found

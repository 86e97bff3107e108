"""A schedule: the complete program of a step, as data.

It lists compute events in order, copies out and copies in in the order of their engines, and
what is freed when. It decides nothing; the simulator plays it.
"""

from __future__ import annotations

from dataclasses import dataclass

START = -1
"""Trigger of a copy that may start at time 0."""


@dataclass(frozen=True, slots=True)
class Copy:
    """One transfer of one tensor.

    Attributes:
        tensor: index in the step.
        after: index of the compute event whose end allows the copy to start (`START` for none).
    """

    tensor: int
    after: int


@dataclass(frozen=True, slots=True)
class Schedule:
    """A complete program for the three streams.

    Attributes:
        compute: operation index of each compute event, in order. The first event of an operation
            is the operation itself, further ones are re-executions.
        frees: per compute event, the tensors whose device memory is given up at its end. Where a
            copy out of the tensor with a trigger at or before this event is not complete yet, the
            memory is freed when that copy completes, and the tensor cannot be read meanwhile.
        copies_out: device-to-host queue.
        copies_in: host-to-device queue.
    """

    compute: tuple[int, ...]
    frees: tuple[tuple[int, ...], ...]
    copies_out: tuple[Copy, ...] = ()
    copies_in: tuple[Copy, ...] = ()

    def reexecutions(self) -> tuple[int, ...]:
        """The operations that run again, in order, with repetitions."""
        seen: set[int] = set()
        again = []
        for op in self.compute:
            if op in seen:
                again.append(op)
            seen.add(op)
        return tuple(again)

"""Scenarios: one schedule, or several, under other durations, link rates and latencies."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackswap_opt.errors import InputError
from slackswap_opt.machine import LinkRates

Ints = NDArray[np.int64]

LARGEST = 1 << 53
"""Nothing in a scenario may be larger, so that no product or sum leaves 64 bits."""


@dataclass(frozen=True)
class Scenarios:
    """What differs between the lanes of a batch; what is None is as the step and machine say.

    The last axis of each array is the lane. Rows beyond the events of a lane's schedule are not
    read.

    Attributes:
        duration_ns: (events, B) of each compute event, so that a re-execution may differ from the
            first execution.
        out_work: (copies out, B) bytes x 1000 that the link must move.
        in_work: (copies in, B) the same.
        rates: (4, B) bytes per microsecond: d2h, h2d, d2h duplex, h2d duplex.
        latency_ns: (B,).
    """

    duration_ns: ArrayLike | None = None
    out_work: ArrayLike | None = None
    in_work: ArrayLike | None = None
    rates: ArrayLike | None = None
    latency_ns: ArrayLike | None = None

    def lanes(self) -> int | None:
        """Number of lanes; None if nothing differs."""
        counts = {np.shape(array)[-1] for array in vars(self).values() if array is not None}
        if len(counts) > 1:
            raise InputError(f"scenarios: arrays for different numbers of lanes, {sorted(counts)}")
        return counts.pop() if counts else None


def checked(name: str, given: ArrayLike, shape: tuple[int, ...], least: int) -> Ints:
    """Whole numbers from `least` to `LARGEST` in at least this shape.

    Raises:
        InputError: naming the array.
    """
    array = np.asarray(given)
    if array.dtype.kind not in "iu":
        raise InputError(f"scenarios: {name} holds {array.dtype}, expected whole numbers")
    if array.ndim != len(shape) or array.shape[-1] != shape[-1] or array.shape[0] < shape[0]:
        raise InputError(f"scenarios: {name} has the shape {array.shape}, expected {shape}")
    if array.size and not least <= array.min() <= array.max() <= LARGEST:
        raise InputError(
            f"scenarios: {name} goes from {array.min()} to {array.max()}, "
            f"expected {least} to {LARGEST}"
        )
    return np.ascontiguousarray(array, dtype=np.int64)


def rates_of(column: Ints) -> LinkRates:
    """One lane's rates."""
    d2h, h2d, d2h_duplex, h2d_duplex = (int(rate) for rate in column)
    return LinkRates(d2h, h2d, d2h_duplex, h2d_duplex)

"""The numbers that a schedule is played with: durations, work, rates and limits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackswap_opt.machine import Host, LinkRates, Machine
from slackswap_opt.machine.model import FULL_SPEED
from slackswap_opt.plan.schedule import Schedule
from slackswap_opt.step import TrainingStep

WORK_PER_BYTE = 1000
"""Work of one byte in units that shrink by a rate in bytes per microsecond each nanosecond."""

UNDISTURBED = (FULL_SPEED, FULL_SPEED, FULL_SPEED)
"""Speeds of a compute stream that copies do not slow down."""


@dataclass(frozen=True, slots=True)
class Lane:
    """One playing of one schedule.

    Attributes:
        duration_ns: of each compute event.
        out_work: bytes x `WORK_PER_BYTE` of each copy out.
        in_work: the same of each copy in.
        rates: the link's.
        latency_ns: time that a copy occupies its engine before its bytes move.
        speeds: of the compute stream beside 0, 1 and 2 copies; see `Link.compute_speeds`.
        host: its limit and how buffers are rounded.
        capacity_bytes: device memory for everything that is not static.
    """

    duration_ns: Sequence[int]
    out_work: Sequence[int]
    in_work: Sequence[int]
    rates: LinkRates
    latency_ns: int
    speeds: tuple[int, int, int]
    host: Host
    capacity_bytes: int

    @classmethod
    def of(
        cls, step: TrainingStep, machine: Machine, schedule: Schedule, capacity_bytes: int
    ) -> Lane:
        """What step and machine say."""
        duration: list[int] = step.index.duration_ns.tolist()
        transfer: list[int] = step.index.transfer_bytes.tolist()
        return cls(
            duration_ns=[duration[op] for op in schedule.compute],
            out_work=[transfer[copy.tensor] * WORK_PER_BYTE for copy in schedule.copies_out],
            in_work=[transfer[copy.tensor] * WORK_PER_BYTE for copy in schedule.copies_in],
            rates=machine.link.rates(),
            latency_ns=machine.link.latency_ns,
            speeds=machine.link.compute_speeds(),
            host=machine.host,
            capacity_bytes=capacity_bytes,
        )

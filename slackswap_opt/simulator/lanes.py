"""The state of lanes that are played together: arrays with one number per lane."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.machine.model import FULL_SPEED
from slackswap_opt.simulator.tables import FAR, Tables

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]


@dataclass(frozen=True)
class Inputs:
    """The numbers of every lane; `Lane` explains them.

    Attributes:
        which: (B,) the program that each lane plays.
        duration_ns: (E, B), E the events of the longest program.
        out_work: (O, B).
        in_work: (I, B).
        rates: (4, B) d2h, h2d, d2h duplex, h2d duplex.
        latency_ns: (B,).
        speeds: (3, B), None where copies slow no compute stream down.
        host_bytes: (B,) the host's limit, `FAR` for none.
        capacity_bytes: (B,).
    """

    which: Ints
    duration_ns: Ints
    out_work: Ints
    in_work: Ints
    rates: Ints
    latency_ns: Ints
    speeds: Ints | None
    host_bytes: Ints
    capacity_bytes: Ints


class _PerLane:
    """Fields are arrays with one number per lane, or groups of such arrays."""

    def keep(self, which: Flags) -> None:
        """Forget the other lanes."""
        for name, value in vars(self).items():
            if isinstance(value, _PerLane):
                value.keep(which)
            else:
                setattr(self, name, np.compress(which, value))


@dataclass
class Engine(_PerLane):
    """A copy engine in every lane.

    Attributes:
        head: position in the tables of the copy in flight, or of the first one waiting.
        place: where its numbers are in flat tables shaped (copy, lane).
        needs: compute events that must have ended for it to start; `FAR` while it is in flight.
        end: when the copy in flight ends; `FAR` if there is none.
        since: when `left` was noted, or when the copy's latency ends.
        left: work left at that instant.
        shared: whether it moves at the duplex rate.
        alone_rate: while the other engine is idle.
        duplex_rate: while it is not.
    """

    head: Ints
    place: Ints
    needs: Ints
    end: Ints
    since: Ints
    left: Ints
    shared: Flags
    alone_rate: Ints
    duplex_rate: Ints

    @classmethod
    def idle(cls, head: Ints, after: Ints, rates: tuple[Ints, Ints]) -> Engine:
        """Nothing has started.

        Args:
            head: (B,) first positions.
            after: what the copies at all positions need.
            rates: alone and duplex.
        """
        lanes = len(head)
        return cls(
            head=head,
            place=np.arange(lanes, dtype=np.int64),
            needs=after[head],
            end=np.full(lanes, FAR, dtype=np.int64),
            since=np.zeros(lanes, dtype=np.int64),
            left=np.zeros(lanes, dtype=np.int64),
            shared=np.zeros(lanes, dtype=bool),
            alone_rate=rates[0],
            duplex_rate=rates[1],
        )

    def change_rate(self, at: Ints, now: Ints, duplex: Flags) -> None:
        """Copies under way go on at the other rate from now on (rule 5).

        Args:
            at: the lanes.
            now: the instant in each.
            duplex: whether the new rate is the duplex one.
        """
        alone_rate, duplex_rate = self.alone_rate[at], self.duplex_rate[at]
        old = np.where(duplex, alone_rate, duplex_rate)
        new = np.where(duplex, duplex_rate, alone_rate)
        since = self.since[at]
        left = np.maximum(self.left[at] - old * np.maximum(now - since, 0), 0)
        self.since[at] = since = np.maximum(since, now)
        self.left[at] = left
        self.end[at] = since + ceil_divide(left, new)
        self.shared[at] = duplex


@dataclass
class Stretched(_PerLane):
    """The running compute event where copies slow it down (rule 10).

    Attributes:
        since: when `left` was noted.
        left: work left at that instant, in nanoseconds x `FULL_SPEED`.
        speed: since then.
        beside_one: speed beside one copy.
        beside_two: speed beside two.
    """

    since: Ints
    left: Ints
    speed: Ints
    beside_one: Ints
    beside_two: Ints

    def begin(self, now: Ints, duration_ns: Ints) -> None:
        """The event starts, in all lanes."""
        self.since = now.copy()
        self.left = duration_ns * FULL_SPEED
        self.speed = np.full(len(now), FULL_SPEED, dtype=np.int64)

    def ends(self, now: Ints, copies: Ints) -> Ints:
        """When it ends, beside so many copies from now on; `FAR` where they stop it."""
        left = np.maximum(self.left - self.speed * (now - self.since), 0)
        speed = np.where(
            copies == 0, FULL_SPEED, np.where(copies == 1, self.beside_one, self.beside_two)
        )
        self.since, self.left, self.speed = now.copy(), left, speed
        end = np.where(speed > 0, now + ceil_divide(left, np.maximum(speed, 1)), FAR)
        return np.where(left == 0, now, end)


@dataclass
class Lanes(_PerLane):
    """The lanes that are still of interest.

    Attributes:
        lane: number among all lanes.
        which: the program that it plays.
        now: its clock.
        used: device bytes in use.
        peak: the most so far.
        host: pinned bytes in use.
        host_peak: the most so far.
        compute_end: of the event that runs.
        log_place: of the next change of memory.
        latency: of each copy.
        capacity: device bytes.
        host_limit: pinned bytes.
        out: the engine of copies out.
        into: the engine of copies in.
        stretched: the running event; without lanes where copies slow nothing down.
    """

    lane: Ints
    which: Ints
    now: Ints
    used: Ints
    peak: Ints
    host: Ints
    host_peak: Ints
    compute_end: Ints
    log_place: Ints
    latency: Ints
    capacity: Ints
    host_limit: Ints
    out: Engine
    into: Engine
    stretched: Stretched

    @classmethod
    def at_start(cls, tables: Tables, inputs: Inputs) -> Lanes:
        """Before anything happens."""
        which = inputs.which
        lane = np.arange(len(which), dtype=np.int64)
        out_alone, in_alone, out_duplex, in_duplex = inputs.rates
        now, used, peak, host, host_peak, compute_end, since, left = np.zeros(
            (8, len(which)), dtype=np.int64
        )
        full = np.full(len(which), FULL_SPEED, dtype=np.int64)
        one, two = (full, full) if inputs.speeds is None else inputs.speeds[1:]
        return cls(
            lane, which, now, used, peak, host, host_peak, compute_end, lane.copy(),
            inputs.latency_ns, inputs.capacity_bytes, inputs.host_bytes,
            Engine.idle(tables.first_out[which], tables.out_after, (out_alone, out_duplex)),
            Engine.idle(tables.first_in[which], tables.in_after, (in_alone, in_duplex)),
            Stretched(since, left, full, one, two),
        )  # fmt: skip


def ceil_divide(number: Ints, by: Ints) -> Ints:
    """Rounded up."""
    return -(-number // by)

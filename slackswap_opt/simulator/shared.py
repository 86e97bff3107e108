"""Several devices on one link or switch, and other traffic on it.

Every device plays its own schedule by the rules of `engine.Player`; what they share is the rate of
each direction. A direction has its duplex rate while anything moves the other way on any device,
and its rate alone otherwise. Traffic takes its part off first; what is left is divided evenly among
the copies under way in that direction, rounded down to whole bytes per microsecond, at least one.

Devices do not wait for each other; memory and host are each device's own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from slackswap_opt.errors import InputError
from slackswap_opt.machine import LinkRates, Machine
from slackswap_opt.plan.schedule import Schedule
from slackswap_opt.simulator.engine import Player, check_structure
from slackswap_opt.simulator.lane import Lane
from slackswap_opt.simulator.verdict import Verdict
from slackswap_opt.step import TrainingStep

FOREVER = 1 << 62


@dataclass(frozen=True, slots=True)
class Traffic:
    """Bytes that something else moves over the link, during an interval.

    Attributes:
        d2h: bytes per microsecond from devices to the host.
        h2d: bytes per microsecond from the host to devices.
        start_ns: from when.
        end_ns: until when.
    """

    d2h: int
    h2d: int
    start_ns: int = 0
    end_ns: int = FOREVER

    def __post_init__(self) -> None:
        if self.d2h < 0 or self.h2d < 0 or not 0 <= self.start_ns <= self.end_ns:
            raise InputError(
                f"traffic: {self} needs rates of 0 or more in an interval that starts at 0 or later"
            )


@dataclass(frozen=True)
class Device:
    """What one device plays.

    Attributes:
        step: what is to be run.
        schedule: the program.
        capacity_bytes: memory for everything that is not static.
        offset_ns: when it starts; its verdict counts from there.
    """

    step: TrainingStep
    schedule: Schedule
    capacity_bytes: int
    offset_ns: int = 0


@dataclass
class _Link:
    """Who moves what in which direction at this instant."""

    rates: LinkRates
    traffic: Sequence[Traffic]
    players: list[_Sharing] = field(default_factory=list)
    now: int = 0

    def rates_now(self) -> tuple[int, int]:
        """What one copy out and one copy in get."""
        out = sum(player.out.busy for player in self.players)
        into = sum(player.into.busy for player in self.players)
        there = [t for t in self.traffic if t.start_ns <= self.now < t.end_ns]
        d2h, h2d = sum(t.d2h for t in there), sum(t.h2d for t in there)
        whole_out = self.rates.d2h_duplex if into or h2d else self.rates.d2h
        whole_in = self.rates.h2d_duplex if out or d2h else self.rates.h2d
        return (
            max(1, (whole_out - d2h) // max(out, 1)),
            max(1, (whole_in - h2d) // max(into, 1)),
        )


class _Sharing(Player):
    """A player whose rates depend on what all the others do."""

    def __init__(self, device: Device, lane: Lane, link: _Link) -> None:
        super().__init__(device.step, device.schedule, lane)
        self.offset_ns = device.offset_ns
        self.link = link

    def current_rates(self) -> tuple[int, int]:
        return self.link.rates_now()

    @property
    def finished(self) -> bool:
        return self.event == len(self.schedule.compute)


def simulate_shared(
    machine: Machine, devices: Sequence[Device], traffic: Sequence[Traffic] = ()
) -> tuple[Verdict, ...]:
    """Play all devices on one link, each until its program ends.

    Args:
        machine: its link is what all devices share: its rates divided by `shared_by`.
        devices: what they play.
        traffic: what else moves, in the time of the link.

    Returns:
        A verdict for each device, in its own time.

    Raises:
        ScheduleError: if a schedule is wrong.
    """
    link = _Link(machine.link.rates(), traffic)
    waiting = []
    for device in devices:
        check_structure(device.step, device.schedule)
        lane = Lane.of(device.step, machine, device.schedule, device.capacity_bytes)
        waiting.append(_Sharing(device, lane, link))
    everyone = list(waiting)
    while True:
        for player in [p for p in waiting if p.offset_ns <= link.now]:
            waiting.remove(player)
            link.players.append(player)
        for player in link.players:
            player.settle()
        link.players = [p for p in link.players if not p.finished]
        for player in link.players:
            player.reschedule()
        until = _next_instant(link, waiting)
        if until is None:
            return tuple(player.verdict() for player in everyone)
        for player in link.players:
            if player.next_end() is not None:
                player.advance(until - player.offset_ns)
        link.now = until


def _next_instant(link: _Link, waiting: Sequence[_Sharing]) -> int | None:
    """When something ends or begins next; None when nothing does any more."""
    ends = [
        player.offset_ns + end for player in link.players if (end := player.next_end()) is not None
    ]
    starts = [player.offset_ns for player in waiting]
    if not ends and not starts:
        return None
    changes = [
        edge for t in link.traffic for edge in (t.start_ns, t.end_ns) if link.now < edge < FOREVER
    ]
    return min(ends + starts + (changes if ends else []))

"""What each event of a schedule waits for, found without a clock.

Whether a tensor is on the device, at which version, and what a buffer or a free amounts to
depends on the order of events, which depends on time. In a *regular* schedule it does not:
each rule of `docs/problem.md` comes down to counts of ended events. An event then waits until so
many copies out, copies in or compute events have ended, and until so many bytes are free. Nothing
can go wrong in it but a standstill.

A schedule is regular if, in the order of its compute events:

* each read and each free finds its tensor on the device at the right version, where a tensor that
  is being copied in counts once an event has read it;
* a copy out is triggered while its tensor is there, and no overwrite in place follows the trigger
  before the tensor is freed;
* a copy in is triggered while its tensor is not there, and the tensor is read before it is
  produced again, freed or copied;
* no copy has the trigger `START`.

What a planner lowers is regular. The others are played one by one by `engine.Player`, which takes
nothing for granted.
"""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.machine import Host
from slackswap_opt.plan.schedule import START, Copy, Schedule
from slackswap_opt.step import TrainingStep

_ABSENT, _ARRIVING, _HERE = range(3)


@dataclass(frozen=True)
class Program:
    """A regular schedule as counts to wait for and bytes to account.

    A count of k means that the first k events of that queue have ended.

    Attributes:
        after_out: per compute event, copies out that it waits for.
        after_in: per compute event, copies in that it waits for.
        allocated: per compute event, bytes it allocates at its start.
        released: per compute event, bytes that are surely free again at its end.
        leaving: per compute event, the copies out whose tensors it frees; the bytes go with the
            later of the two ends.
        out_after: per copy out, compute events that it waits for.
        out_freed_by: per copy out, compute events that must have ended for its tensor to leave with
            it; `None` where its tensor stays.
        out_bytes: per copy out, device bytes of its tensor.
        out_buffer: per copy out, new host bytes.
        in_after: per copy in, compute events that it waits for.
        in_after_out: per copy in, copies out that it waits for.
        in_bytes: per copy in, device bytes of its buffer.
        in_buffer: per copy in, host bytes given back at its end.
    """

    after_out: list[int]
    after_in: list[int]
    allocated: list[int]
    released: list[int]
    leaving: list[list[int]]
    out_after: list[int]
    out_freed_by: list[int | None]
    out_bytes: list[int]
    out_buffer: list[int]
    in_after: list[int]
    in_after_out: list[int]
    in_bytes: list[int]
    in_buffer: list[int]


def regular_program(step: TrainingStep, schedule: Schedule, host: Host) -> Program | None:
    """The program of a schedule that passes `engine.check_structure`; None if not regular."""
    if any(copy.after == START for copy in (*schedule.copies_out, *schedule.copies_in)):
        return None
    walk = _Walk(step, schedule)
    for event in range(len(schedule.compute)):
        if not (
            walk.run(event)
            and walk.trigger_outs(event)
            and walk.free(event)
            and walk.trigger_ins(event)
        ):
            return None
    sizes: list[int] = step.index.size_bytes.tolist()
    buffers = [host.buffer_bytes(moved) for moved in step.index.transfer_bytes.tolist()]
    out_buffer, in_buffer = _buffers(schedule, buffers)
    return Program(
        walk.after_out,
        walk.after_in,
        walk.allocated,
        walk.released,
        walk.leaving,
        [copy.after + 1 for copy in schedule.copies_out],
        walk.out_freed_by,
        [sizes[copy.tensor] for copy in schedule.copies_out],
        out_buffer,
        [copy.after + 1 for copy in schedule.copies_in],
        walk.in_after_out,
        [sizes[copy.tensor] for copy in schedule.copies_in],
        in_buffer,
    )


def _buffers(schedule: Schedule, buffers: list[int]) -> tuple[list[int], list[int]]:
    """Host bytes taken by each copy out and given back by each copy in.

    The last copy in of a tensor gives its buffer back. Of the copies out before it (by trigger),
    the first in the queue takes the buffer; of those after it, again the first.
    """
    last_in = {copy.tensor: number for number, copy in enumerate(schedule.copies_in)}
    taken: set[tuple[int, bool]] = set()
    out_buffer = []
    for copy in schedule.copies_out:
        last = last_in.get(copy.tensor)
        before = last is not None and copy.after <= schedule.copies_in[last].after
        key = (copy.tensor, before)
        out_buffer.append(0 if key in taken else buffers[copy.tensor])
        taken.add(key)
    in_buffer = [
        buffers[copy.tensor] if last_in[copy.tensor] == number else 0
        for number, copy in enumerate(schedule.copies_in)
    ]
    return out_buffer, in_buffer


def _by_trigger(copies: tuple[Copy, ...], events: int) -> list[list[int]]:
    found: list[list[int]] = [[] for _ in range(events)]
    for number, copy in enumerate(copies):
        found[copy.after].append(number)
    return found


class _Walk:
    """Follows every tensor through the compute events in order.

    Each method returns whether the schedule is regular so far.
    """

    def __init__(self, step: TrainingStep, schedule: Schedule) -> None:
        index, events = step.index, len(schedule.compute)
        self.schedule = schedule
        self.reads, self.writes = index.reads, index.writes
        self.size: list[int] = index.size_bytes.tolist()
        self.workspace: list[int] = index.workspace_bytes.tolist()
        self.outs = _by_trigger(schedule.copies_out, events)
        self.ins = _by_trigger(schedule.copies_in, events)

        self.where = [_ABSENT] * index.tensors
        self.version = [0] * index.tensors
        self.host_version = [0] * index.tensors
        self.arrival = [0] * index.tensors
        self.last_out = [-1] * index.tensors  # of the tensor's present stay on the device
        self.any_out = [-1] * index.tensors

        self.after_out, self.after_in = [0] * events, [0] * events
        self.allocated, self.released = [0] * events, [0] * events
        self.leaving: list[list[int]] = [[] for _ in range(events)]
        self.out_freed_by: list[int | None] = [None] * len(schedule.copies_out)
        self.in_after_out = [0] * len(schedule.copies_in)

    def run(self, event: int) -> bool:
        op = self.schedule.compute[event]
        for tensor, version in self.reads[op]:
            if self.where[tensor] == _ARRIVING:
                self.after_in[event] = max(self.after_in[event], self.arrival[tensor] + 1)
                self.where[tensor] = _HERE
            if self.where[tensor] != _HERE or self.version[tensor] != version:
                return False
        lasting, scratch = 0, self.workspace[op]
        for tensor, version in self.writes[op]:
            if version > 0:
                if self.where[tensor] != _HERE or self.last_out[tensor] >= 0:
                    return False
                self.version[tensor] = version
            elif self.where[tensor] == _HERE:
                scratch += self.size[tensor]
            elif self.where[tensor] == _ABSENT:
                lasting += self.size[tensor]
                self.after_out[event] = max(self.after_out[event], self.any_out[tensor] + 1)
                self._arrives(tensor, _HERE, 0)
            else:
                return False
        self.allocated[event] = lasting + scratch
        self.released[event] = scratch
        return True

    def _arrives(self, tensor: int, where: int, version: int) -> None:
        self.where[tensor] = where
        self.version[tensor] = version
        self.last_out[tensor] = -1

    def trigger_outs(self, event: int) -> bool:
        for number in self.outs[event]:
            tensor = self.schedule.copies_out[number].tensor
            if self.where[tensor] != _HERE:
                return False
            self.last_out[tensor] = max(self.last_out[tensor], number)
            if number > self.any_out[tensor]:
                self.any_out[tensor] = number
                self.host_version[tensor] = self.version[tensor]
        return True

    def free(self, event: int) -> bool:
        for tensor in self.schedule.frees[event]:
            if self.where[tensor] != _HERE:
                return False
            self.where[tensor] = _ABSENT
            last = self.last_out[tensor]
            if last < 0:
                self.released[event] += self.size[tensor]
            else:
                self.leaving[event].append(last)
                self.out_freed_by[last] = event + 1
        return True

    def trigger_ins(self, event: int) -> bool:
        for number in self.ins[event]:
            tensor = self.schedule.copies_in[number].tensor
            if self.where[tensor] != _ABSENT:
                return False
            self.in_after_out[number] = self.any_out[tensor] + 1
            self.arrival[tensor] = number
            self._arrives(tensor, _ARRIVING, self.host_version[tensor])
        return True

"""Times of a schedule's events where their order is fixed.

If memory never makes anything wait and neither copies nor compute slow each other down, each event
starts with the last end of what it waits for: the event before it on its stream, its trigger, the
copies of its inputs. One pass over the events in topological order then gives all lanes at once.

It says what a schedule takes at a capacity that it never reaches, on a link whose directions do not
share anything: exactly what `simulate_batch` says there, some ten times faster.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import Machine
from slackswap_opt.plan.schedule import Schedule
from slackswap_opt.simulator.engine import check_structure
from slackswap_opt.simulator.lane import WORK_PER_BYTE
from slackswap_opt.simulator.program import Program, regular_program
from slackswap_opt.simulator.scenarios import Scenarios, checked
from slackswap_opt.step import TrainingStep

Ints = NDArray[np.int64]


@dataclass(frozen=True)
class Times:
    """Ends and lengths of all events; B lanes.

    Attributes:
        compute_end_ns: (E, B).
        out_end_ns: (O, B).
        in_end_ns: (I, B).
        duration_ns: (E, B).
        out_ns: (O, B) how long each copy out takes.
        in_ns: (I, B) how long each copy in takes.
    """

    compute_end_ns: Ints
    out_end_ns: Ints
    in_end_ns: Ints
    duration_ns: Ints
    out_ns: Ints
    in_ns: Ints

    @property
    def step_ns(self) -> Ints:
        """(B,) end of the last compute event."""
        return np.asarray(self.compute_end_ns[-1])

    @property
    def stall_ns(self) -> Ints:
        """(B,) time the compute stream waited."""
        return np.asarray(self.step_ns - self.duration_ns.sum(axis=0), dtype=np.int64)


class FixedOrder:
    """A schedule made ready for passes over many lanes.

    Args:
        step: what is to be run.
        machine: its link's rates alone count.
        schedule: the program.

    Raises:
        ScheduleError: if the schedule is wrong, or what its events wait for depends on time.
    """

    def __init__(self, step: TrainingStep, machine: Machine, schedule: Schedule) -> None:
        check_structure(step, schedule)
        program = regular_program(step, schedule, machine.host)
        if program is None:
            raise ScheduleError("the order of events of this schedule depends on time")
        self.order = tuple(_topological(program))
        if len(self.order) < len(program.allocated) + len(program.out_after) + len(
            program.in_after
        ):
            raise ScheduleError("the schedule has events that wait for each other")
        self.program, self.link = program, machine.link
        index = step.index
        self.duration_ns: Ints = index.duration_ns[list(schedule.compute)]
        work = index.transfer_bytes * WORK_PER_BYTE
        self.out_work: Ints = work[[copy.tensor for copy in schedule.copies_out]]
        self.in_work: Ints = work[[copy.tensor for copy in schedule.copies_in]]

    def times(self, scenarios: Scenarios | None = None) -> Times:
        """One pass.

        Args:
            scenarios: durations, work, rates (the duplex ones are not used) and latencies per lane.

        Raises:
            InputError: if an array is not what it should be.
        """
        given = scenarios or Scenarios()
        lanes = given.lanes() or 1

        def table(name: str, array: ArrayLike | None, otherwise: Ints) -> Ints:
            if array is None:
                return np.repeat(otherwise[:, None], lanes, axis=1)
            return checked(name, array, (len(otherwise), lanes), 0)[: len(otherwise)]

        duration = table("duration_ns", given.duration_ns, self.duration_ns)
        out_work = table("out_work", given.out_work, self.out_work)
        in_work = table("in_work", given.in_work, self.in_work)
        rates = self.link.rates()
        latency = (
            self.link.latency_ns
            if given.latency_ns is None
            else checked("latency_ns", given.latency_ns, (lanes,), 0)
        )
        out_rate, in_rate = (
            (rates.d2h, rates.h2d)
            if given.rates is None
            else checked("rates", given.rates, (4, lanes), 1)[:2]
        )
        out_ns = latency - (-out_work // out_rate)
        in_ns = latency - (-in_work // in_rate)
        ends = self._pass(duration, out_ns, in_ns)
        return Times(*ends, duration, out_ns, in_ns)

    def _pass(self, duration: Ints, out_ns: Ints, in_ns: Ints) -> tuple[Ints, Ints, Ints]:
        compute_end, out_end, in_end = map(np.empty_like, (duration, out_ns, in_ns))
        rows = tuple(map(list, (compute_end, out_end, in_end)))
        lengths = tuple(map(list, (duration, out_ns, in_ns)))
        add, maximum = np.add, np.maximum
        for kind, number, waits in self.order:
            end, length = rows[kind][number], lengths[kind][number]
            if not waits:
                end[:] = length
                continue
            (first, position), *others = waits
            start = rows[first][position]
            for other, position in others:
                start = maximum(start, rows[other][position], out=end)
            add(start, length, out=end)
        return compute_end, out_end, in_end


COMPUTE, OUT, IN = range(3)
Waits = tuple[tuple[int, int], ...]


def _topological(program: Program) -> Iterator[tuple[int, int, Waits]]:
    """Each event after all that it waits for: its kind, its number and the events it waits for.

    What an event before it on the same stream has waited for already is left out.
    """
    outs = ins = 0
    events = len(program.allocated)
    waited_in = waited_out = 0
    for event in range(events + 1):
        while True:
            if outs < len(program.out_after) and program.out_after[outs] <= event:
                yield OUT, outs, _after((OUT, outs), (COMPUTE, program.out_after[outs]))
                outs += 1
            elif (
                ins < len(program.in_after)
                and program.in_after[ins] <= event
                and program.in_after_out[ins] <= outs
            ):
                yield IN, ins, _after(
                    (IN, ins), (COMPUTE, program.in_after[ins]), (OUT, program.in_after_out[ins])
                )  # fmt: skip
                ins += 1
            else:
                break
        if event == events or program.after_in[event] > ins or program.after_out[event] > outs:
            return
        needed_in, needed_out = program.after_in[event], program.after_out[event]
        yield COMPUTE, event, _after(
            (COMPUTE, event),
            (IN, needed_in if needed_in > waited_in else 0),
            (OUT, needed_out if needed_out > waited_out else 0),
        )  # fmt: skip
        waited_in, waited_out = max(waited_in, needed_in), max(waited_out, needed_out)


def _after(*counts: tuple[int, int]) -> Waits:
    """The last event of each queue whose first `count` events must have ended."""
    return tuple((kind, count - 1) for kind, count in counts if count > 0)

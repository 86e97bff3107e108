"""Many lanes at once: each pass of one loop takes every lane to its own next instant.

The rules are those of `engine.Player`, in the form that `program.Program` gives them. A lane has a
clock of its own; a pass applies what ends there (compute, copy out, copy in), then what starts
(compute, copy out, copy in), each as a few array operations over the lanes that it concerns.

Tie rule: where a compute event of no duration has started, no copy starts in that pass; the next
one, at the same instant, begins with the ends that have come due.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.machine.model import FULL_SPEED
from slackswap_opt.simulator.program import Program

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

NEVER = -1
FAR = 1 << 62
"""Later than any instant, more than any number of bytes or events."""


@dataclass(frozen=True)
class Inputs:
    """The numbers of every lane; `Lane` explains them.

    Attributes:
        which: (B,) the program that each lane plays.
        duration_ns: (E, B), E the events of the longest program; other rows are not read.
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


@dataclass(frozen=True)
class Outcome:
    """What happened in every lane; -1 where nothing did.

    Attributes:
        compute_start_ns: (E, B), as are the ends; (O, B) and (I, B) for copies.
        step_ns: (B,), -1 where the step did not finish.
        peak_bytes: (B,).
        host_bytes: (B,) largest pinned memory in use.
        stuck_event: (B,) the compute event that could not start, -1 in lanes that finished.
        stuck_ns: (B,) when everything stopped there.
        missing_bytes: (B,) by how much that event does not fit, 0 where it waits for a copy.
        out_of_memory: (B,) whether memory is what a stuck lane lacks; if not, its schedule is
            wrong.
        memory_ns: (M, B) instants, no rows if not asked for.
        memory_bytes: (M, B) bytes in use from then on; an entry that repeats the one before it is
            no change.
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
    out_of_memory: Flags
    memory_ns: Ints
    memory_bytes: Ints


@dataclass(frozen=True)
class _Tables:
    """The programs one after the other, each queue with a last entry that never becomes ready.

    Pointers into the tables and counts to wait for are positions in these long tables.
    """

    first_compute: Ints
    first_out: Ints
    first_in: Ints
    after_out: Ints
    after_in: Ints
    allocated: Ints
    released: Ints
    leaves: Ints
    leaving: list[tuple[Ints, Ints]]
    out_after: Ints
    out_freed_by: Ints
    out_bytes: Ints
    out_buffer: Ints
    in_after: Ints
    in_after_out: Ints
    in_bytes: Ints
    in_buffer: Ints

    @classmethod
    def of(cls, programs: Sequence[Program]) -> _Tables:
        def firsts(lengths: list[int]) -> Ints:
            return np.concatenate(([0], np.cumsum([n + 1 for n in lengths[:-1]]))).astype(np.int64)

        compute = firsts([len(p.allocated) for p in programs])
        out = firsts([len(p.out_after) for p in programs])
        into = firsts([len(p.in_after) for p in programs])

        def joined(queues: list[list[int]], last: int, base: Ints | None = None) -> Ints:
            parts = []
            for number, queue in enumerate(queues):
                values = np.array([*queue, last], dtype=np.int64)
                if base is not None:
                    values[:-1] += base[number]
                parts.append(values)
            return np.minimum(np.concatenate(parts), FAR)

        most = max((len(outs) for p in programs for outs in p.leaving), default=0)
        out_bytes = joined([p.out_bytes for p in programs], 0)
        leaves = joined([[len(outs) for outs in p.leaving] for p in programs], 0)
        leaving = []
        for rank in range(most):
            numbers = joined(
                [[outs[rank] if rank < len(outs) else 0 for outs in p.leaving] for p in programs],
                0,
                out,
            )
            leaving.append((numbers, np.where(leaves > rank, out_bytes[numbers], 0)))
        return cls(
            compute, out, into,
            after_out=joined([p.after_out for p in programs], FAR, out),
            after_in=joined([p.after_in for p in programs], FAR, into),
            allocated=joined([p.allocated for p in programs], 0),
            released=joined([p.released for p in programs], 0),
            leaves=leaves,
            leaving=leaving,
            out_after=joined([p.out_after for p in programs], FAR, compute),
            out_freed_by=joined(
                [[FAR if e is None else e for e in p.out_freed_by] for p in programs], FAR, compute
            ),
            out_bytes=out_bytes,
            out_buffer=joined([p.out_buffer for p in programs], 0),
            in_after=joined([p.in_after for p in programs], FAR, compute),
            in_after_out=joined([p.in_after_out for p in programs], FAR, out),
            in_bytes=joined([p.in_bytes for p in programs], 0),
            in_buffer=joined([p.in_buffer for p in programs], 0),
        )  # fmt: skip


@dataclass
class _Lanes:
    """The state of the lanes that are still of interest, in the last axis of every field."""

    lane: Ints
    now: Ints
    event: Ints  # positions in the tables: the next or running event, the head of each queue
    out: Ints
    into: Ints
    last: Ints  # position after the last compute event; -1 once the lane has finished
    event_row: Ints  # what to add to a position for its place in the results, a row per lane
    out_row: Ints
    in_row: Ints
    log_place: Ints
    idle: Flags  # compute is not running
    compute_end: Ints
    out_needs: Ints  # position of compute from which the idle head may start; FAR: busy or none
    in_needs: Ints
    used: Ints
    peak: Ints
    host: Ints
    host_peak: Ints
    busy: Flags  # (2, lanes) contiguous, as are the other fields of copies: out, in
    copy_end: Ints
    copy_from: Ints  # when the work left of the copy in flight was noted (or its latency ends)
    copy_left: Ints
    copy_rate: Ints
    alone_rate: Ints
    duplex_rate: Ints
    compute_from: Ints
    compute_left: Ints
    compute_speed: Ints
    speed_1: Ints
    speed_2: Ints
    latency: Ints
    capacity: Ints
    host_limit: Ints

    def keep(self, which: Flags) -> None:
        """Forget the other lanes."""
        for each in fields(self):
            kept = np.compress(which, getattr(self, each.name), axis=-1)
            setattr(self, each.name, np.ascontiguousarray(kept))


def _where(flags: Flags) -> Ints:
    """Positions of what is true."""
    return flags.nonzero()[0]


def play(programs: Sequence[Program], inputs: Inputs, *, timeline: bool) -> Outcome:
    """Play every lane to its end or standstill.

    Args:
        programs: what lanes play; every copy must take time (work or latency).
        inputs: the numbers.
        timeline: whether to keep every change of memory.
    """
    return _Loop(programs, inputs, timeline=timeline).run()


class _Loop:
    def __init__(self, programs: Sequence[Program], inputs: Inputs, *, timeline: bool) -> None:
        self.tables = tables = _Tables.of(programs)
        self.inputs = inputs
        self.batch = batch = len(inputs.which)
        self.elastic = inputs.speeds is not None
        self.limited = bool((inputs.host_bytes < FAR).any())
        self.instant = not inputs.duration_ns.all()
        self.waits_for_outs = any(any(p.after_out) for p in programs)
        self.lanes = _first_state(tables, programs, inputs)
        self.changed = np.zeros(batch, dtype=bool)

        def nothing(rows: int) -> Ints:
            return np.full(rows * batch, NEVER, dtype=np.int64)

        def by_lane(table: Ints) -> Ints:
            return np.ascontiguousarray(table.T).reshape(-1)

        self.duration = by_lane(inputs.duration_ns)
        self.out_work, self.in_work = by_lane(inputs.out_work), by_lane(inputs.in_work)
        rows = [len(inputs.duration_ns), len(inputs.out_work), len(inputs.in_work)]
        self.compute_start, self.out_start, self.in_start = map(nothing, rows)
        self.compute_end, self.out_end, self.in_end = map(nothing, rows)
        self.step, self.stuck_event, self.stuck_ns = nothing(1), nothing(1), nothing(1)
        self.peak, self.host_peak = np.zeros(batch, np.int64), np.zeros(batch, np.int64)
        self.missing = np.zeros(batch, np.int64)
        self.out_of_memory = np.zeros(batch, dtype=bool)
        self.log = _Log(batch, 2 * rows[0] + rows[1] + rows[2]) if timeline else None
        self.changes = np.zeros(batch, dtype=np.int64)
        if self.log is not None:
            self.lanes.log_place[:] = self.log.first

    def run(self) -> Outcome:
        while len(self.lanes.lane):
            self._start_compute()
            self._start_out()
            self._start_in()
            np.maximum(self.lanes.peak, self.lanes.used, out=self.lanes.peak)
            np.maximum(self.lanes.host_peak, self.lanes.host, out=self.lanes.host_peak)
            self._set_rates()
            if not self._advance():
                break
            self._end_compute()
            self._end_out()
            self._end_in()
            self._finish()
        return self._outcome()

    # -- the clocks -----------------------------------------------------------------------

    def _advance(self) -> bool:
        """Every lane to its next end; whether any has one."""
        lanes = self.lanes
        until = np.minimum(lanes.copy_end[0], lanes.copy_end[1])
        np.minimum(until, lanes.compute_end, out=until)
        over = until == FAR
        count = np.count_nonzero(over)
        if count == len(over):
            self._retire(over)
            return False
        if 4 * count >= len(over):
            self._retire(over)
            live = ~over
            lanes.keep(live)
            until = until[live]
            self.changed = np.zeros(len(until), dtype=bool)
        elif count:
            until = np.where(over, lanes.now, until)
        lanes.now = until
        return True

    def _retire(self, over: Flags) -> None:
        """Note what became of lanes in which nothing moves any more."""
        lanes = self.lanes
        lane = lanes.lane[over]
        self.peak[lane] = lanes.peak[over]
        self.host_peak[lane] = lanes.host_peak[over]
        if self.log is not None:
            self.changes[lane] = (lanes.log_place[over] - self.log.first[lane]) // 2
        self._note_stuck(_where(over & (lanes.last != NEVER)))

    def _note_stuck(self, at: Ints) -> None:
        """Whether memory is what these lanes lack (rule 8)."""
        lanes, tables = self.lanes, self.tables
        lane, event, into = lanes.lane[at], lanes.event[at], lanes.into[at]
        self.stuck_event[lane] = event - tables.first_compute[self.inputs.which[lane]]
        self.stuck_ns[lane] = lanes.now[at]
        inputs_there = into >= tables.after_in[event]
        over = lanes.used[at] + tables.allocated[event] - lanes.capacity[at]
        missing = np.where(inputs_there, np.maximum(over, 0), 0)
        in_waits = (
            ~inputs_there
            & (lanes.in_needs[at] <= event)
            & (lanes.out[at] >= tables.in_after_out[into])
        )
        out_waits = lanes.out_needs[at] <= event
        self.missing[lane] = missing
        self.out_of_memory[lane] = (missing > 0) | in_waits | out_waits

    def _finish(self) -> None:
        """The step ends with its last compute event; nothing starts any more (rule 9)."""
        lanes = self.lanes
        done = _where(lanes.event == lanes.last)
        if done.size:
            self.step[lanes.lane[done]] = lanes.now[done]
            lanes.last[done] = NEVER
            lanes.busy[:, done] = False
            lanes.copy_end[:, done] = FAR
            lanes.out_needs[done] = lanes.in_needs[done] = FAR

    def _set_rates(self) -> None:
        """Where an engine started or stopped, all that is under way goes on at its new rate."""
        lanes = self.lanes
        at = _where(self.changed)
        if not at.size:
            return
        self.changed[at] = False
        busy = lanes.busy.reshape(-1)
        count = len(lanes.now)
        both = np.concatenate((at, at + count))  # the copies out, then the copies in
        lane = np.concatenate((at, at))
        under_way = busy[both]
        both, lane = both[under_way], lane[under_way]
        now = lanes.now[lane]
        shared = busy[np.where(both < count, both + count, both - count)]
        copy_from, copy_left = lanes.copy_from.reshape(-1), lanes.copy_left.reshape(-1)
        copy_rate = lanes.copy_rate.reshape(-1)

        since = copy_from[both]
        left = copy_left[both]
        left -= copy_rate[both] * np.maximum(now - since, 0)
        np.maximum(left, 0, out=left)
        np.maximum(since, now, out=since)
        rate = np.where(
            shared, lanes.duplex_rate.reshape(-1)[both], lanes.alone_rate.reshape(-1)[both]
        )
        copy_from[both], copy_left[both], copy_rate[both] = since, left, rate
        lanes.copy_end.reshape(-1)[both] = since - (-left // rate)

        if self.elastic:
            now = lanes.now[at]
            done = lanes.compute_speed[at] * (now - lanes.compute_from[at])
            left = np.maximum(lanes.compute_left[at] - done, 0)
            copies = busy[at].astype(np.int64) + busy[at + count]
            speed = np.where(
                copies == 0,
                FULL_SPEED,
                np.where(copies == 1, lanes.speed_1[at], lanes.speed_2[at]),
            )
            self._run_compute(at, now, left, speed)

    def _run_compute(self, at: Ints, now: Ints, left: Ints, speed: Ints) -> None:
        """Set when compute events end that copies may slow down (rule 10)."""
        lanes = self.lanes
        lanes.compute_from[at], lanes.compute_left[at], lanes.compute_speed[at] = now, left, speed
        end = np.where(speed > 0, now - (-left // np.maximum(speed, 1)), FAR)
        end = np.where(left == 0, now, end)
        lanes.compute_end[at] = np.where(lanes.idle[at], FAR, end)

    # -- memory ---------------------------------------------------------------------------

    def _use(self, at: Ints, now: Ints, used: Ints) -> None:
        self.lanes.used[at] = used
        self._log_change(at, now, used)

    def _give_back(self, at: Ints, freed: Ints) -> None:
        lanes = self.lanes
        lanes.used[at] = used = lanes.used[at] - freed
        self._log_change(at, lanes.now[at], used)

    def _log_change(self, at: Ints, now: Ints, used: Ints) -> None:
        if self.log is not None:
            place = self.lanes.log_place[at]
            self.log.note(place, now, used)
            self.lanes.log_place[at] = place + 2

    # -- compute --------------------------------------------------------------------------

    def _start_compute(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = _where(lanes.idle)
        if not at.size:
            return
        event = lanes.event[at]
        ready = lanes.into[at] >= tables.after_in[event]
        if self.waits_for_outs:
            ready &= lanes.out[at] >= tables.after_out[event]
        used = lanes.used[at] + tables.allocated[event]
        ready &= used <= lanes.capacity[at]
        at, event, used = at[ready], event[ready], used[ready]
        if not at.size:
            return
        now = lanes.now[at]
        place = event + lanes.event_row[at]
        duration = self.duration[place]
        self.compute_start[place] = now
        self._use(at, now, used)
        lanes.idle[at] = False
        if self.elastic:
            lanes.compute_from[at] = now
            lanes.compute_left[at] = duration * FULL_SPEED
            lanes.compute_end[at] = np.where(duration == 0, now, FAR)  # until the rates are set
            self.changed[at] = True
        else:
            lanes.compute_end[at] = now + duration

    def _end_compute(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = _where(lanes.compute_end == lanes.now)
        if not at.size:
            return
        event = lanes.event[at]
        self.compute_end[event + lanes.event_row[at]] = lanes.now[at]
        freed = tables.released[event]
        if tables.leaving:
            numbers, sizes = tables.leaving[0]
            freed += sizes[event] * (lanes.out[at] > numbers[event])
        for rank, (numbers, sizes) in enumerate(tables.leaving[1:], 1):
            some = _where(tables.leaves[event] > rank)
            if not some.size:
                break
            which = event[some]
            freed[some] += sizes[which] * (lanes.out[at[some]] > numbers[which])
        self._give_back(at, freed)
        lanes.event[at] = event + 1
        lanes.idle[at] = True
        lanes.compute_end[at] = FAR

    # -- copies ---------------------------------------------------------------------------

    def _waiting(self, needs: Ints) -> Ints:
        """Lanes whose idle engine has a triggered copy, where no event ends at this instant."""
        lanes = self.lanes
        at = _where(needs <= lanes.event)
        if self.instant and at.size:
            return at[lanes.compute_end[at] > lanes.now[at]]
        return at

    def _start_out(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = self._waiting(lanes.out_needs)
        if not at.size:
            return
        copy = lanes.out[at]
        host = lanes.host[at] + tables.out_buffer[copy]
        if self.limited:
            fits = host <= lanes.host_limit[at]
            at, copy, host = at[fits], copy[fits], host[fits]
        lanes.host[at] = host
        place = copy + lanes.out_row[at]
        now = lanes.now[at]
        self.out_start[place] = now
        lanes.copy_from[0][at] = now + lanes.latency[at]
        lanes.copy_left[0][at] = self.out_work[place]
        lanes.busy[0][at] = True
        lanes.out_needs[at] = FAR
        self.changed[at] = True

    def _end_out(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = _where(lanes.copy_end[0] == lanes.now)
        if not at.size:
            return
        copy = lanes.out[at]
        self.out_end[copy + lanes.out_row[at]] = lanes.now[at]
        leaves = lanes.event[at] >= tables.out_freed_by[copy]
        self._give_back(at[leaves], tables.out_bytes[copy[leaves]])
        lanes.out[at] = copy + 1
        lanes.out_needs[at] = tables.out_after[copy + 1]
        lanes.busy[0][at] = False
        lanes.copy_end[0][at] = FAR
        self.changed[at] = True

    def _start_in(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = self._waiting(lanes.in_needs)
        if not at.size:
            return
        copy = lanes.into[at]
        used = lanes.used[at] + tables.in_bytes[copy]
        ready = used <= lanes.capacity[at]
        ready &= lanes.out[at] >= tables.in_after_out[copy]
        at, copy, used = at[ready], copy[ready], used[ready]
        if not at.size:
            return
        now = lanes.now[at]
        self._use(at, now, used)
        place = copy + lanes.in_row[at]
        self.in_start[place] = now
        lanes.copy_from[1][at] = now + lanes.latency[at]
        lanes.copy_left[1][at] = self.in_work[place]
        lanes.busy[1][at] = True
        lanes.in_needs[at] = FAR
        self.changed[at] = True

    def _end_in(self) -> None:
        lanes, tables = self.lanes, self.tables
        at = _where(lanes.copy_end[1] == lanes.now)
        if not at.size:
            return
        copy = lanes.into[at]
        self.in_end[copy + lanes.in_row[at]] = lanes.now[at]
        lanes.host[at] -= tables.in_buffer[copy]
        lanes.into[at] = copy + 1
        lanes.in_needs[at] = tables.in_after[copy + 1]
        lanes.busy[1][at] = False
        lanes.copy_end[1][at] = FAR
        self.changed[at] = True

    # -- results --------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        def rows(flat: Ints) -> Ints:
            return flat.reshape(self.batch, -1).T

        empty = np.zeros((0, self.batch), dtype=np.int64)
        memory_ns, memory_bytes = (
            (empty, empty) if self.log is None else self.log.arrays(self.changes)
        )
        return Outcome(
            rows(self.compute_start), rows(self.compute_end),
            rows(self.out_start), rows(self.out_end),
            rows(self.in_start), rows(self.in_end),
            self.step, self.peak, self.host_peak, self.stuck_event, self.stuck_ns,
            self.missing, self.out_of_memory, memory_ns, memory_bytes,
        )  # fmt: skip


def _first_state(tables: _Tables, programs: Sequence[Program], inputs: Inputs) -> _Lanes:
    batch = len(inputs.which)
    lane = np.arange(batch, dtype=np.int64)
    event, out, into = (
        first[inputs.which] for first in (tables.first_compute, tables.first_out, tables.first_in)
    )
    events = np.array([len(p.allocated) for p in programs], dtype=np.int64)[inputs.which]

    def all_lanes(value: int) -> Ints:
        return np.full(batch, value, dtype=np.int64)

    full = all_lanes(FULL_SPEED)
    speed_1, speed_2 = (full, full) if inputs.speeds is None else inputs.speeds[1:]
    return _Lanes(
        lane=lane,
        now=all_lanes(0),
        event=event,
        out=out,
        into=into,
        last=event + events,
        event_row=lane * len(inputs.duration_ns) - event,
        out_row=lane * len(inputs.out_work) - out,
        in_row=lane * len(inputs.in_work) - into,
        log_place=all_lanes(0),
        idle=np.ones(batch, dtype=bool),
        compute_end=all_lanes(FAR),
        out_needs=tables.out_after[out],
        in_needs=tables.in_after[into],
        used=all_lanes(0),
        peak=all_lanes(0),
        host=all_lanes(0),
        host_peak=all_lanes(0),
        busy=np.zeros((2, batch), dtype=bool),
        copy_end=np.full((2, batch), FAR),
        copy_from=np.zeros((2, batch), dtype=np.int64),
        copy_left=np.zeros((2, batch), dtype=np.int64),
        copy_rate=np.zeros((2, batch), dtype=np.int64),
        alone_rate=np.ascontiguousarray(inputs.rates[:2]),
        duplex_rate=np.ascontiguousarray(inputs.rates[2:]),
        compute_from=all_lanes(0),
        compute_left=all_lanes(0),
        compute_speed=all_lanes(0),
        speed_1=speed_1,
        speed_2=speed_2,
        latency=inputs.latency_ns,
        capacity=inputs.capacity_bytes,
        host_limit=inputs.host_bytes,
    )


class _Log:
    """Every change of memory in use: per lane a row of pairs of instant and level.

    The pairs lie in one flat array, which takes half the time of one with two columns.
    """

    def __init__(self, batch: int, most: int) -> None:
        self.first = np.arange(batch, dtype=np.int64) * (2 * most)
        self.pairs = np.empty(batch * most * 2, dtype=np.int64)

    def note(self, place: Ints, now: Ints, used: Ints) -> None:
        """One more change at these places."""
        self.pairs[place] = now
        self.pairs[place + 1] = used

    def arrays(self, count: Ints) -> tuple[Ints, Ints]:
        """(changes, B) instants and levels, -1 after a lane's last change."""
        pairs = self.pairs.reshape(len(self.first), -1, 2)
        for lane, changes in enumerate(count.tolist()):
            pairs[lane, changes:] = NEVER
        most = int(count.max(initial=0))
        return pairs[:, :most, 0].T, pairs[:, :most, 1].T

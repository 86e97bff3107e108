"""Many lanes at once: all play the same compute event, each by a clock of its own.

The rules are those of `engine.Player`, in the form that `program.Program` gives them. One round
takes every lane from the end of a compute event to the end of the next:

1. lanes in which the event cannot start yet go from one end of a copy to the next until it can;
2. it starts in all lanes, and then the copies that may start at that instant;
3. lanes in which copies end before it does go through these ends, and start what then can;
4. it ends in all lanes, and with it the copies that end at the same instant.

What concerns all lanes is a few operations on whole arrays. Copies concern some lanes; their steps
take positions of lanes.

Tie rule (`docs/problem.md`, rule 6): what is due ends before anything starts. So beside a compute
event of no duration no copy starts, and after a copy out that takes no time no copy in does.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.simulator.lanes import Engine, Inputs, Lanes
from slackswap_opt.simulator.program import Program
from slackswap_opt.simulator.record import NEVER, Record
from slackswap_opt.simulator.tables import FAR, Tables

Ints = NDArray[np.int64]
Flags = NDArray[np.bool_]

EVERY = slice(None)


def play(programs: Sequence[Program], inputs: Inputs, *, timeline: bool) -> tuple[Record, Flags]:
    """Play every lane to its end or standstill.

    Args:
        programs: what lanes play.
        inputs: the numbers.
        timeline: whether to keep every change of memory.

    Returns:
        What happened, and (B,) the lanes that are stuck and lack no memory: their schedule is
        wrong.
    """
    return _Loop(programs, inputs, timeline=timeline).run()


def _where(flags: Flags) -> Ints:
    """Positions of what is true."""
    return flags.nonzero()[0]


def _those(at: Ints, flags: Flags) -> Ints:
    """What is flagged of these lanes; faster than indexing by flags."""
    count = np.count_nonzero(flags)
    return at if count == len(at) else at[flags.nonzero()[0]]


class _Queue:
    """The copies of one direction in all lanes: what they take, and where results go.

    Attributes:
        instant: whether some take no time.
        first: compute events that must have ended for the first of all to start.
        left: how many have not ended yet.
    """

    def __init__(
        self, work: Ints, rate: Ints, latency_ns: Ints, start: Ints, end: Ints, after: Ints
    ) -> None:
        taken = np.negative(work)
        # Division by one number is several times faster than by one for each lane.
        taken //= rate[:1] if (rate == rate[:1]).all() else rate
        np.subtract(latency_ns, taken, out=taken)
        self.work = work.reshape(-1)
        self.alone_ns = taken.reshape(-1)
        self.start, self.end = start.reshape(-1), end.reshape(-1)
        self.instant = not taken.all()
        self.after = after
        self.first = int(after.min())
        self.left = 0
        self.lanes = work.shape[1]

    def active(self, event: int) -> bool:
        """Whether any copy can be under way, or start, before the end of this event."""
        return self.left > 0 and self.first <= event

    def begin(self, engine: Engine, at: Ints, now: Ints, latency: Ints) -> None:
        """The heads start, as if they were alone on the link."""
        place = engine.place[at]
        self.start[place] = now
        engine.since[at] = now + latency
        engine.left[at] = self.work[place]
        engine.end[at] = now + self.alone_ns[place]
        engine.needs[at] = FAR

    def finish(self, engine: Engine, at: Ints, now: Ints) -> Ints:
        """The copies in flight end; returns their positions in the tables."""
        self.left -= len(at)
        copy, place = engine.head[at], engine.place[at]
        self.end[place] = now
        following = copy + 1
        engine.head[at] = following
        engine.place[at] = place + self.lanes
        engine.needs[at] = self.after[following]
        engine.end[at] = FAR
        return copy


class _Log:
    """Every change of memory in use, in tables shaped (change, lane)."""

    def __init__(self, most: int, lanes: int) -> None:
        self.ns = np.empty(most * lanes, dtype=np.int64)
        self.bytes = np.empty(most * lanes, dtype=np.int64)
        self.changes = np.zeros(lanes, dtype=np.int64)

    def tables(self) -> tuple[Ints, Ints]:
        """Instants and levels, -1 after a lane's last change."""
        least, most = int(self.changes.min()), int(self.changes.max())
        lanes = len(self.changes)
        ns, levels = (flat.reshape(-1, lanes)[:most] for flat in (self.ns, self.bytes))
        behind = np.arange(least, most)[:, None] >= self.changes
        ns[least:][behind] = levels[least:][behind] = NEVER
        return ns, levels


class _Loop:
    def __init__(self, programs: Sequence[Program], inputs: Inputs, *, timeline: bool) -> None:
        self.tables = tables = Tables.of(programs)
        self.batch = batch = len(inputs.which)
        self.programs = len(programs)
        self.lengths = set(tables.events.tolist())
        self.durations = inputs.duration_ns
        self.elastic = inputs.speeds is not None
        self.limited = bool((inputs.host_bytes < FAR).any())
        self.instant = not inputs.duration_ns.all()
        events, outs, ins = map(len, (inputs.duration_ns, inputs.out_work, inputs.in_work))
        self.record = record = Record.blank(events, outs, ins, 0, batch)
        self.log = _Log(2 * events + outs + ins, batch) if timeline else None
        latency, (out_rate, in_rate) = inputs.latency_ns, inputs.rates[:2]
        self.outs = _Queue(
            inputs.out_work, out_rate, latency, record.out_start_ns, record.out_end_ns,
            tables.out_after,
        )  # fmt: skip
        self.ins = _Queue(
            inputs.in_work, in_rate, latency, record.in_start_ns, record.in_end_ns, tables.in_after
        )
        self.lanes = Lanes.at_start(tables, inputs)
        self.columns: Ints | slice = EVERY  # of the lanes that are left
        self.wrong = np.zeros(batch, dtype=bool)
        self.sharing = False
        self._count_copies()

    def run(self) -> tuple[Record, Flags]:
        for event in range(len(self.tables.allocated)):
            self._wait(event)
            if not len(self.lanes.lane):
                break
            self._start_compute(event)
            self._start_copies(event)
            self._play_copies(event)
            self._end_compute(event)
            if event + 1 in self.lengths:
                self._finish(event + 1)
        if self.log is None:
            return self.record, self.wrong
        memory_ns, memory_bytes = self.log.tables()
        return replace(self.record, memory_ns=memory_ns, memory_bytes=memory_bytes), self.wrong

    def _count_copies(self) -> None:
        lanes, tables = self.lanes, self.tables
        self.outs.left = int((tables.last_out[lanes.which] - lanes.out.head).sum())
        self.ins.left = int((tables.last_in[lanes.which] - lanes.into.head).sum())

    def _next_end(self, event: int) -> Ints:
        """(lanes,) when the first of the copies under way ends, `FAR` where none is."""
        lanes = self.lanes
        if not self.outs.active(event):
            return lanes.into.end
        if not self.ins.active(event):
            return lanes.out.end
        return np.minimum(lanes.out.end, lanes.into.end)

    def _row(self, row: Ints, at: Ints | slice = EVERY) -> Ints:
        """A number per program as a number per lane; one for all where there is one program."""
        return row if self.programs == 1 else row[self.lanes.which[at]]

    # -- compute --------------------------------------------------------------------------

    def _can_start(self, event: int, at: Ints | slice = EVERY) -> Flags:
        """Whether inputs, places of outputs and memory are there in these lanes (rule 1)."""
        lanes, tables = self.lanes, self.tables
        used = lanes.used[at] + self._row(tables.allocated[event], at)
        ready: Flags = used <= lanes.capacity[at]
        if (into := tables.after_in[event]) is not None:
            ready &= lanes.into.head[at] >= self._row(into, at)
        if (out := tables.after_out[event]) is not None:
            ready &= lanes.out.head[at] >= self._row(out, at)
        return ready

    def _wait(self, event: int) -> None:
        """Take lanes to the instant at which the event can start; drop those that are stuck."""
        lanes = self.lanes
        ready = self._can_start(event)
        if np.count_nonzero(ready) == len(ready):
            return
        at = _where(~ready)
        self._start_some(at, event)
        stuck = []
        while at.size:
            until = np.minimum(lanes.out.end[at], lanes.into.end[at])
            if np.count_nonzero(over := until == FAR):
                stuck.append(at[over])
                at, until = at[~over], until[~over]
            lanes.now[at] = until
            self._end_copies(at, until, event)
            ready = self._can_start(event, at)
            self._set_rates(_those(at, ready), event)
            at = _those(at, ~ready)
            self._start_some(at, event)
        if stuck:
            self._drop_stuck(np.concatenate(stuck), event)

    def _start_compute(self, event: int) -> None:
        lanes = self.lanes
        lanes.used += self._row(self.tables.allocated[event])
        np.maximum(lanes.peak, lanes.used, out=lanes.peak)
        self.record.compute_start_ns[event, self.columns] = lanes.now
        duration = self.durations[event, self.columns]
        if self.elastic:
            lanes.stretched.begin(lanes.now, duration)
            self._stretch()
        else:
            np.add(lanes.now, duration, out=lanes.compute_end)
        self._log_all()

    def _end_compute(self, event: int) -> None:
        lanes, tables = self.lanes, self.tables
        lanes.now, lanes.compute_end = lanes.compute_end, lanes.now
        self.record.compute_end_ns[event, self.columns] = lanes.now
        if (released := tables.released[event]) is not None:
            lanes.used -= self._row(released)
        for number, size in tables.leaving[event]:
            gone = lanes.out.head > self._row(number)
            if np.count_nonzero(gone):
                lanes.used -= np.where(gone, self._row(size), 0)
        self._log_all()
        at = _where(self._next_end(event) <= lanes.now)
        if at.size:
            self._end_copies(at, lanes.now[at], event + 1)
            self._set_rates(at, event)

    def _stretch(self) -> None:
        """Set when compute events end that copies slow down."""
        lanes = self.lanes
        copies = (lanes.out.end < FAR).astype(np.int64) + (lanes.into.end < FAR)
        lanes.compute_end = lanes.stretched.ends(lanes.now, copies)

    # -- copies ---------------------------------------------------------------------------

    def _start_copies(self, event: int) -> None:
        """What may start at the instant at which the event has started."""
        lanes = self.lanes
        for queue, engine, start in (
            (self.outs, lanes.out, self._start_out),
            (self.ins, lanes.into, self._start_in),
        ):
            if not queue.active(event):
                continue
            at = _where(engine.needs <= event)
            if self.instant:
                at = at[lanes.compute_end[at] > lanes.now[at]]
            started = start(at)
            if started.size:
                self._set_rates(started, event)
                if self.elastic:
                    self._stretch()

    def _play_copies(self, event: int) -> None:
        """Ends of copies before the event's end, and what starts then."""
        lanes = self.lanes
        while True:
            until = self._next_end(event)
            at = _where(until < lanes.compute_end)
            if not at.size:
                return
            until = until[at]
            lanes.now[at] = until
            self._end_copies(at, until, event)
            self._start_some(at, event)
            if self.elastic:
                self._stretch()

    def _start_some(self, at: Ints, event: int) -> None:
        """Copies that can start in these lanes, and the rates that are right then."""
        lanes = self.lanes
        if self.outs.active(event):
            self._start_out(_those(at, lanes.out.needs[at] <= event))
        if self.ins.active(event):
            self._start_in(_those(at, lanes.into.needs[at] <= event))
        self._set_rates(at, event)

    def _end_copies(self, at: Ints, now: Ints, ended: int) -> None:
        """Copies that end at this instant, at least one a lane; `ended` compute events have."""
        lanes, tables = self.lanes, self.tables
        outs = ins = at[:0]
        some_out, some_in = self.outs.left > 0, self.ins.active(ended)
        if some_out:
            outs = _those(at, lanes.out.end[at] == now) if some_in else at
            if outs.size:
                now_out = now if outs is at else lanes.now[outs]
                copy = self.outs.finish(lanes.out, outs, now_out)
                freed = tables.out_bytes[copy]
                stays = tables.out_freed_by[copy] > ended
                if np.count_nonzero(stays):
                    freed[stays] = 0
                self._use(outs, now_out, lanes.used[outs] - freed)
        if some_in:
            ins = _those(at, lanes.into.end[at] == now) if some_out else at
            if ins.size:
                copy = self.ins.finish(lanes.into, ins, lanes.now[ins])
                lanes.host[ins] -= tables.in_buffer[copy]
        if self.sharing:
            lanes.out.shared[outs] = lanes.into.shared[ins] = False

    def _start_out(self, at: Ints) -> Ints:
        """Start the heads, which are idle and triggered, where the host has room."""
        lanes, tables = self.lanes, self.tables
        if not at.size:
            return at
        host = lanes.host[at] + tables.out_buffer[lanes.out.head[at]]
        if self.limited:
            fits = host <= lanes.host_limit[at]
            at, host = at[fits], host[fits]
        lanes.host[at] = host
        np.maximum(lanes.host_peak, lanes.host, out=lanes.host_peak)
        self.outs.begin(lanes.out, at, lanes.now[at], lanes.latency[at])
        return at

    def _start_in(self, at: Ints) -> Ints:
        """Start the heads, which are idle and triggered, where all that they need is there."""
        lanes, tables = self.lanes, self.tables
        if not at.size:
            return at
        copy = lanes.into.head[at]
        used = lanes.used[at] + tables.in_bytes[copy]
        ready = used <= lanes.capacity[at]
        ready &= lanes.out.head[at] >= tables.in_after_out[copy]
        if self.outs.instant:
            ready &= lanes.out.end[at] > lanes.now[at]
        if (count := np.count_nonzero(ready)) < len(at):
            if not count:
                return at[:0]
            those = _where(ready)
            at, used = at[those], used[those]
        now = lanes.now[at]
        self._use(at, now, used)
        np.maximum(lanes.peak, lanes.used, out=lanes.peak)
        self.ins.begin(lanes.into, at, now, lanes.latency[at])
        return at

    def _set_rates(self, at: Ints, event: int) -> None:
        """Where both engines became busy, or one alone, copies go on at that rate."""
        lanes = self.lanes
        if not self.sharing:
            if not (self.outs.active(event) and self.ins.active(event)):
                return
            self.sharing = True
        both = (lanes.out.end[at] < FAR) & (lanes.into.end[at] < FAR)
        for engine in (lanes.out, lanes.into):
            if (changed := _where(both != engine.shared[at])).size:
                some = at[changed]
                engine.change_rate(some, lanes.now[some], both[changed])
        if not (self.outs.left and self.ins.left):
            still_shared = [np.count_nonzero(e.shared) for e in (lanes.out, lanes.into)]
            self.sharing = any(still_shared)

    # -- results --------------------------------------------------------------------------

    def _use(self, at: Ints, now: Ints, used: Ints) -> None:
        """Memory in use changes in these lanes."""
        lanes = self.lanes
        lanes.used[at] = used
        if self.log is not None:
            place = lanes.log_place[at]
            self.log.ns[place] = now
            self.log.bytes[place] = used
            lanes.log_place[at] = place + self.batch

    def _log_all(self) -> None:
        """Memory in use has changed in all lanes."""
        if self.log is not None:
            lanes = self.lanes
            self.log.ns[lanes.log_place] = lanes.now
            self.log.bytes[lanes.log_place] = lanes.used
            lanes.log_place += self.batch

    def _finish(self, events: int) -> None:
        """The step ends with its last compute event; nothing starts any more (rule 9)."""
        lanes = self.lanes
        done = self.tables.events[lanes.which] == events
        self.record.step_ns[lanes.lane[done]] = lanes.now[done]
        self._drop(done)

    def _drop_stuck(self, at: Ints, event: int) -> None:
        """Whether memory is what these lanes lack (rule 8)."""
        lanes, tables, record = self.lanes, self.tables, self.record
        lane, into = lanes.lane[at], lanes.into.head[at]
        after_in = tables.after_in[event]
        there = into >= (0 if after_in is None else self._row(after_in, at))
        over = lanes.used[at] + self._row(tables.allocated[event], at) - lanes.capacity[at]
        missing = np.where(there, np.maximum(over, 0), 0)
        in_waits = lanes.into.needs[at] <= event
        in_waits &= ~there & (lanes.out.head[at] >= tables.in_after_out[into])
        out_waits = lanes.out.needs[at] <= event
        record.stuck_event[lane] = event
        record.stuck_ns[lane] = lanes.now[at]
        record.missing_bytes[lane] = missing
        self.wrong[lane] = ~((missing > 0) | in_waits | out_waits)
        stuck = np.zeros(len(lanes.lane), dtype=bool)
        stuck[at] = True
        self._drop(stuck)

    def _drop(self, which: Flags) -> None:
        """Note what became of these lanes, and go on without them."""
        lanes = self.lanes
        lane = lanes.lane[which]
        self.record.peak_bytes[lane] = lanes.peak[which]
        self.record.host_bytes[lane] = lanes.host_peak[which]
        if self.log is not None:
            self.log.changes[lane] = lanes.log_place[which] // self.batch
        lanes.keep(~which)
        self._count_copies()
        self.columns = lanes.lane

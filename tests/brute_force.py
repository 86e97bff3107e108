"""The best schedule of a small step, by trying them all.

Every plan (keep, swap or neither for each evictable tensor), every slot for each re-execution,
every order of the copies out and in, and every moment at which a copy in may begin is played by the
referee. Nothing of the package's lowering or models is used; branches are cut only by
limits that hold exactly: durations, re-executions, copies at the rates of one direction alone, and
memory that no copy can have freed yet.

The class searched: each block is re-executed at most once, after the forward phase; each tensor is
copied out at most once, as soon as its queue allows, and leaves with its last forward reader.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum

from slackswap_opt.errors import ScheduleError
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.simulator import simulate

Best = tuple[int, Schedule]
NEVER = float("inf")


class Fate(Enum):
    """What becomes of a tensor between its last forward reader and its first later need."""

    GONE = 0
    KEEP = 1
    SWAP = 2


class TooManyError(Exception):
    """The search needed more trials than allowed."""


def best_schedule(
    problem: Problem, incumbent: Best | None = None, limit: int | None = None
) -> Best | None:
    """The fastest schedule that fits, with its step time; None if none does.

    Args:
        problem: a small one.
        incumbent: a schedule known to fit; the result is this one unless a faster one exists.
        limit: trials (simulations, and limits computed to avoid one) after which to give up.

    Raises:
        TooManyError: at the limit.
    """
    search = _Search(problem, incumbent, limit)
    search.run()
    return search.best


@dataclass
class _Stay:
    """A tensor on the device: events at which it is written, left, needed again and freed."""

    written: int
    done: int
    needs: list[int] = field(default_factory=list)


@dataclass
class _Arrangement:
    """Compute events with their re-executions, and what holds memory meanwhile.

    Attributes:
        compute: operation of each event.
        frees: tensors freed after each event, whatever the copies do.
        strays: (tensor, first, last event of a re-execution) that rebuilds a swapped tensor while
            it is away; freed unless its copy in has been allowed before.
        swapped: tensors that leave and return.
        ready: event whose end allows the copy out.
        stays: by tensor.
        base: bytes held during each event even if copies take no time.
    """

    compute: list[int]
    frees: list[list[int]]
    strays: list[tuple[int, int, int]]
    swapped: list[int]
    ready: dict[int, int]
    stays: dict[int, _Stay]
    base: list[int]


class _Search:
    def __init__(self, problem: Problem, incumbent: Best | None, limit: int | None) -> None:
        self.problem, self.best, self.limit = problem, incumbent, limit
        self.trials = 0
        index, self.live, self.blocks = problem.step.index, problem.liveness, problem.blocks
        self.index = index
        self.duration: list[int] = index.duration_ns.tolist()
        self.size: list[int] = index.size_bytes.tolist()
        self.capacity = problem.budget_bytes
        rates, latency = problem.machine.link.rates(), problem.machine.link.latency_ns
        moved = index.transfer_bytes.tolist()
        self.out_ns = [latency - (-size * 1000 // rates.d2h) for size in moved]
        self.in_ns = [latency - (-size * 1000 // rates.h2d) for size in moved]
        later = [op for op in range(index.operations) if not index.forward[op]]
        self.turn = later[0] if later else index.operations

    @property
    def best_ns(self) -> float:
        return NEVER if self.best is None else self.best[0]

    def run(self) -> None:
        plans = sorted(self._plans(), key=lambda plan: plan[0])
        for quick in (True, False):
            for rerun_ns, fates, rerun in plans:
                if self.problem.ideal_step_ns + rerun_ns >= self.best_ns:
                    break
                self._plan(fates, rerun, quick=quick)

    def _count(self) -> None:
        self.trials += 1
        if self.limit is not None and self.trials > self.limit:
            raise TooManyError

    # -- plans and slots ------------------------------------------------------------------

    def _plans(self) -> Iterator[tuple[int, dict[int, Fate], list[int]]]:
        """Re-execution time, fates, and blocks that run again, of every plan worth telling."""
        evictable, blocks = self.blocks.evictable, self.blocks.blocks
        choices = [
            [Fate.KEEP, Fate.SWAP] + [Fate.GONE] * (self.blocks.block_of[t] >= 0 or self._unread(t))
            for t in evictable
        ]
        for chosen in itertools.product(*choices):
            fates = dict(zip(evictable, chosen, strict=True))
            wanted = {t for t in evictable if self.live.saved[t]}
            stack = [t for t in wanted if fates[t] is Fate.GONE]
            rerun: set[int] = set()
            while stack:
                number = self.blocks.block_of[stack.pop()]
                if number < 0:
                    break
                if number in rerun:
                    continue
                rerun.add(number)
                wanted.update(blocks[number].inputs)
                stack += [u for u in blocks[number].inputs if fates[u] is Fate.GONE]
            else:
                if all(fates[t] is Fate.GONE or t in wanted for t in evictable):
                    total = sum(blocks[n].duration_ns for n in rerun)
                    yield total, fates, sorted(rerun)

    def _unread(self, tensor: int) -> bool:
        return not self.live.saved[tensor]

    def _plan(self, fates: dict[int, Fate], rerun: list[int], *, quick: bool) -> None:
        floor = self.problem.ideal_step_ns + sum(self.blocks.blocks[n].duration_ns for n in rerun)
        for slots in self._slots(fates, rerun):
            for sequence in self._sequences(slots):
                if floor >= self.best_ns:
                    return
                arrangement = self._arrange(fates, sequence)
                if arrangement is not None:
                    self._copies(arrangement, quick=quick)
            if quick:
                return

    def _slots(self, fates: dict[int, Fate], rerun: list[int]) -> Iterator[dict[int, int]]:
        """Before which operation each block runs again; the latest first."""
        blocks, live = self.blocks.blocks, self.live

        def place(position: int, slots: dict[int, int]) -> Iterator[dict[int, int]]:
            if position < 0:
                yield dict(slots)
                return
            number = rerun[position]
            gone = [t for t in blocks[number].outputs if fates[t] is Fate.GONE]
            last = [int(live.first_later[t]) for t in gone if live.saved[t]]
            last += [slots[n] for n in slots if not set(gone).isdisjoint(blocks[n].inputs)]
            first = max([self.turn, *(int(live.last_forward[t]) + 1 for t in gone)])
            for slot in range(min(last), first - 1, -1):
                slots[number] = slot
                yield from place(position - 1, slots)
                del slots[number]

        yield from place(len(rerun) - 1, {})

    def _sequences(self, slots: dict[int, int]) -> Iterator[dict[int, list[int]]]:
        """Orders of the blocks within each slot in which inputs come first."""
        by_slot: dict[int, list[int]] = {}
        for number in sorted(slots):
            by_slot.setdefault(slots[number], []).append(number)
        options = [
            [order for order in itertools.permutations(group) if self._inputs_first(order)]
            for group in by_slot.values()
        ]
        for orders in itertools.product(*options):
            yield dict(zip(by_slot, map(list, orders), strict=True))

    def _inputs_first(self, order: Sequence[int]) -> bool:
        blocks = self.blocks.blocks
        return not any(
            not set(blocks[later].outputs).isdisjoint(blocks[earlier].inputs)
            for earlier, later in itertools.combinations(order, 2)
        )

    # -- memory ---------------------------------------------------------------------------

    def _arrange(
        self, fates: dict[int, Fate], sequence: dict[int, list[int]]
    ) -> _Arrangement | None:
        """The compute events of a plan; None if even instant copies leave too little memory."""
        self._count()
        index, live = self.index, self.live
        compute: list[int] = []
        original: list[int] = []
        rebuilds: list[tuple[int, int, int]] = []
        for op in range(index.operations):
            for number in sequence.get(op, ()):
                first = len(compute)
                compute += self.blocks.blocks[number].operations
                rebuilds.append((number, first, len(compute) - 1))
            original.append(len(compute))
            compute.append(op)
        frees: list[list[int]] = [[] for _ in compute]
        hold = [0] * (len(compute) + 1)
        stays: dict[int, _Stay] = {}
        strays: list[tuple[int, int, int]] = []
        swapped: list[int] = []

        def holds(tensor: int, first: int, last: int) -> None:
            hold[first] += self.size[tensor]
            hold[last + 1] -= self.size[tensor]

        reads: dict[int, list[int]] = {}
        for event, op in enumerate(compute):
            for tensor, _ in index.reads[op]:
                reads.setdefault(tensor, []).append(event)
        for tensor in range(index.tensors):
            if live.first_write[tensor] < 0:
                continue
            written = original[int(live.first_write[tensor])]
            if tensor not in fates:
                last = original[int(live.last_access[tensor])]
                frees[last].append(tensor)
                holds(tensor, written, last)
                stays[tensor] = _Stay(written, last)
                continue
            done = original[int(live.last_forward[tensor])]
            own = index.writers[tensor]
            needs = [e for e in reads.get(tensor, ()) if e > done and compute[e] not in own]
            stays[tensor] = _Stay(written, done, needs)
            if needs and fates[tensor] is Fate.KEEP:
                frees[needs[-1]].append(tensor)
                holds(tensor, written, needs[-1])
                continue
            frees[done].append(tensor)
            holds(tensor, written, done)
            if needs:
                frees[needs[-1]].append(tensor)
                if fates[tensor] is Fate.SWAP:
                    swapped.append(tensor)
                    holds(tensor, needs[0], needs[-1])
        for number, first, last in rebuilds:
            for tensor in self.blocks.blocks[number].outputs:
                needs = stays[tensor].needs
                if needs and fates[tensor] is Fate.GONE:
                    holds(tensor, first, needs[-1])
                    continue
                holds(tensor, first, last)
                if not needs or first > needs[-1]:
                    frees[last].append(tensor)
                elif fates[tensor] is Fate.SWAP and first < needs[0]:
                    strays.append((tensor, first, last))
        workspace = index.workspace_bytes
        base = [
            held + int(workspace[op])
            for held, op in zip(itertools.accumulate(hold[:-1]), compute, strict=True)
        ]
        if max(base) > self.capacity:
            return None
        ready = {t: original[int(live.last_write[t])] for t in swapped}
        return _Arrangement(compute, frees, strays, swapped, ready, stays, base)

    # -- copies ---------------------------------------------------------------------------

    def _copies(self, at: _Arrangement, *, quick: bool) -> None:
        by_done = sorted(at.swapped, key=lambda t: (at.stays[t].done, t))
        by_need = sorted(at.swapped, key=lambda t: (at.stays[t].needs[0], t))
        for outs in itertools.permutations(by_done):
            if self._earliest(at, outs) < self.best_ns:
                for ins in itertools.permutations(by_need):
                    self._triggers(at, outs, ins, (), quick=quick)
                    if quick:
                        break
            if quick:
                return

    def _triggers(
        self,
        at: _Arrangement,
        outs: Sequence[int],
        ins: Sequence[int],
        chosen: tuple[int, ...],
        *,
        quick: bool,
    ) -> list[int] | None:
        """Try all triggers of the copies in beyond those chosen.

        Returns the event after which each copy in began in the first of the simulations, or None if
        there was none.
        """
        if len(chosen) == len(ins):
            return self._play(at, outs, ins, chosen)
        number = len(chosen)
        stay = at.stays[ins[number]]
        trigger = max((stay.done, *chosen[-1:]))
        answer: list[int] | None = None
        while trigger < stay.needs[0]:
            least = [*chosen, trigger]
            for tensor in ins[number + 1 :]:
                least.append(max(at.stays[tensor].done, least[-1]))
            if self._earliest(at, outs, ins, least) >= self.best_ns:
                break
            began = self._triggers(at, outs, ins, (*chosen, trigger), quick=quick)
            answer = answer or began
            if began is None or quick:
                break
            trigger = max(trigger, began[number]) + 1
        return answer

    def _earliest(
        self,
        at: _Arrangement,
        outs: Sequence[int],
        ins: Sequence[int] | None = None,
        triggers: Sequence[int] = (),
    ) -> float:
        """A limit that no simulation with these queues beats; without `ins`, for any queue in."""
        self._count()
        ends: list[float] = []
        out_end: dict[int, float] = {}
        in_end: dict[int, float] = {}
        now: float = 0
        for event, op in enumerate(at.compute):
            if at.swapped:
                clock: float = 0
                waiting = []
                blocked = False
                for tensor in outs:
                    blocked = blocked or at.ready[tensor] >= event
                    if blocked:
                        clock = NEVER
                    else:
                        clock = max(clock, ends[at.ready[tensor]]) + self.out_ns[tensor]
                    out_end[tensor] = clock
                    stay = at.stays[tensor]
                    if stay.done < event < stay.needs[0]:
                        waiting.append(tensor)
                if ins is None:
                    for tensor in at.swapped:
                        in_end[tensor] = out_end[tensor] + self.in_ns[tensor]
                else:
                    clock = 0
                    for tensor, trigger in zip(ins, triggers, strict=True):
                        allowed = ends[trigger] if trigger < event else NEVER
                        clock = max(clock, allowed, out_end[tensor]) + self.in_ns[tensor]
                        in_end[tensor] = clock
                for tensor in at.swapped:
                    if at.stays[tensor].needs[0] == event:
                        now = max(now, in_end[tensor])
                held = at.base[event] + sum(self.size[t] for t in waiting)
                for tensor in waiting:
                    if held <= self.capacity:
                        break
                    now = max(now, out_end[tensor])
                    held -= self.size[tensor]
            now += self.duration[op]
            if now == NEVER:
                return NEVER
            ends.append(now)
        return now

    def _play(
        self, at: _Arrangement, outs: Sequence[int], ins: Sequence[int], triggers: Sequence[int]
    ) -> list[int] | None:
        self._count()
        frees = at.frees
        if at.strays:
            frees = [list(tensors) for tensors in frees]
            allowed = dict(zip(ins, triggers, strict=True))
            for tensor, _, last in at.strays:
                if allowed[tensor] >= last:
                    frees[last].append(tensor)
        schedule = Schedule(
            tuple(at.compute),
            tuple(map(tuple, frees)),
            tuple(Copy(t, at.ready[t]) for t in outs),
            tuple(Copy(t, trigger) for t, trigger in zip(ins, triggers, strict=True)),
        )
        try:
            verdict = simulate(self.problem.step, self.problem.machine, schedule, self.capacity)
        except ScheduleError:
            if not at.strays:
                raise
            return list(triggers)  # a tensor rebuilt by the way met its copy in
        if verdict.step_ns is not None and verdict.step_ns < self.best_ns:
            self.best = (verdict.step_ns, schedule)
        timeline = verdict.timeline
        ends = timeline.compute_end_ns.tolist()
        began = []
        for start in timeline.in_start_ns.tolist():
            if start < 0:
                began.append(len(ends))
            else:
                began.append(max(e for e, end in enumerate(ends) if 0 <= end <= start))
        return began

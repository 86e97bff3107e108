"""Evict when memory is full, bring back on demand: one walk through the step.

The idea of dynamic rematerialization (Kirisame et al., ICLR 2021), with the rest of the step
known: of what is on the device and can come back, the tensor goes that is cheap to bring back,
large, and needed late. Operations run again as often as it takes, in the forward phase too.
Some tensors may be marked to be swapped: they are copied out as soon as they are written and, once
evicted, fetched in time for their next need instead of being rebuilt.
"""

from __future__ import annotations

import heapq
import math
from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field

from slackswap_opt.plan import Problem, Program, program_with


@dataclass(frozen=True)
class Taste:
    """How evictions are chosen: the lowest  w_t cost_t^a / (bytes_t distance_t^b)  goes.

    Attributes:
        cost: a, the exponent of the time to bring it back.
        distance: b, the exponent of the operations to the next need.
        weights: w_t by tensor; 1 where not given.
        swapped: tensors that are swapped when they are evicted.
        price: what the time of a copy in counts, as a part of the same time of compute.
        early_ns: how much earlier than it must a copy in starts.
    """

    cost: float = 1.0
    distance: float = 1.0
    weights: Mapping[int, float] = field(default_factory=dict)
    swapped: frozenset[int] = frozenset()
    price: float = 0.0
    early_ns: int = 0


def run_on_demand(problem: Problem, taste: Taste) -> Program | None:
    """The program of one walk; None where memory runs out whatever is evicted."""
    walk = _Walk(problem, taste)
    try:
        for op in range(problem.step.index.operations):
            walk.step(op)
    except _FullError:
        return None
    return program_with(problem, walk.reruns, walk.link.fetches)


class _FullError(Exception):
    """Nothing more can be evicted."""


class _Link:
    """The link in both directions, on a clock that the walk moves.

    Attributes:
        out: when the copy out of a tensor ends, for those whose copy has been asked for.
        coming: when a tensor that is being fetched arrives.
        fetches: operation and tensor of each fetch that something used.
    """

    def __init__(self, problem: Problem, swapped: Collection[int]) -> None:
        link, host, index = problem.machine.link, problem.machine.host, problem.step.index
        rates = link.rates()
        moved = {t: int(index.transfer_bytes[t]) for t in swapped}
        self.out_ns = {t: link.copy_ns(size, rates.d2h) for t, size in moved.items()}
        self.in_ns = {t: link.copy_ns(size, rates.h2d) for t, size in moved.items()}
        self.on_host = {t: host.buffer_bytes(size) for t, size in moved.items()}
        self.host_left = math.inf if host.pinned_bytes is None else host.pinned_bytes
        self.out: dict[int, int] = {}
        self.coming: dict[int, int] = {}
        self.fetches: list[tuple[int, int]] = []
        self._unused: set[int] = set()
        self._out_free = self._in_free = 0

    def send(self, tensor: int, now: int) -> None:
        """Copy out, if the host has room."""
        if self.on_host[tensor] > self.host_left:
            return
        self.host_left -= self.on_host[tensor]
        self._out_free = max(self._out_free, now) + self.out_ns[tensor]
        self.out[tensor] = self._out_free

    def fetch(self, tensor: int, now: int) -> None:
        """Copy in."""
        self._in_free = max(self._in_free, now, self.out[tensor]) + self.in_ns[tensor]
        self.coming[tensor] = self._in_free
        self._unused.add(tensor)

    def use(self, tensor: int, op: int, now: int) -> int:
        """When something that runs before an operation, or it, can read the tensor."""
        if tensor in self._unused:
            self._unused.remove(tensor)
            self.fetches.append((op, tensor))
        return max(now, self.coming.pop(tensor, now))

    def forget(self, tensor: int) -> None:
        """The tensor is gone from the device."""
        self.coming.pop(tensor, None)
        self._unused.discard(tensor)


class _Walk:
    """What is on the device, and what has run again and been fetched so far.

    Some tensors cannot come back: no block rebuilds them, or the block needs such a tensor, and it
    is gone. They are not evicted; after their last access they stay while a tensor that is absent
    and needed is rebuilt from them, and then as long as there is room.
    """

    def __init__(self, problem: Problem, taste: Taste) -> None:
        self.problem, self.taste = problem, taste
        index, live = problem.step.index, problem.liveness
        self.index = index
        self.blocks, self.block_of = problem.blocks.blocks, problem.blocks.block_of
        self.size: list[int] = index.size_bytes.tolist()
        self.duration: list[int] = index.duration_ns.tolist()
        self.last_access: list[int] = live.last_access.tolist()
        self.last_write: list[int] = live.last_write.tolist()
        self.weights = [taste.weights.get(t, 1.0) for t in range(index.tensors)]
        self.later = set(problem.blocks.evictable)
        self.evictable = {
            t
            for t in problem.blocks.evictable
            if self.size[t] > 0 and (self.block_of[t] >= 0 or t in taste.swapped)
        }
        self.rebuilders: dict[int, list[int]] = defaultdict(list)
        for n, block in enumerate(self.blocks):
            for t in block.inputs:
                self.rebuilders[t].append(n)
        swapped = self.evictable & taste.swapped
        self.link = _Link(problem, swapped)
        self.written: dict[int, list[int]] = defaultdict(list)
        for t in sorted(swapped):
            self.written[int(live.last_write[t])].append(t)
        self.planned = [0]
        for duration in self.duration:
            self.planned.append(self.planned[-1] + duration)
        self.next_reader = {
            t: index.readers[t][0] if index.readers[t] else index.operations
            for t in range(index.tensors)
            if self.block_of[t] >= 0 or t in swapped
        }
        self.here: set[int] = set()
        self.absent: set[int] = set()
        self.over: set[int] = set()
        self.dead: set[int] = set()
        self.costs: dict[int, int] = {}
        self.used = 0
        self.now = self.clock = 0
        self.due: list[tuple[int, int, int]] = []
        self.reruns: dict[int, list[int]] = defaultdict(list)

    def step(self, op: int) -> None:
        """Run one operation of the step."""
        self.now = op
        reads = [t for t, _ in self.index.reads[op]]
        fresh = [t for t, version in self.index.writes[op] if version == 0]
        held = {*reads, *(t for t, _ in self.index.writes[op])}
        self.prefetch(held)
        for t in reads:
            if t in self.later and t not in self.here:
                self.bring_back(t, held)
        self.make_room(sum(self.size[t] for t in fresh) + int(self.index.workspace_bytes[op]), held)
        self.add(fresh)
        self.run(reads, self.duration[op])
        for t in self.written.get(op, ()):
            self.link.send(t, self.clock)
        for t in reads:
            self.advance(t)
        for t in held:
            if self.last_access[t] <= op and not (t in self.evictable and self.returns(t)):
                self.over.add(t)
                if t not in self.rebuilders:
                    self.drop(t)

    def advance(self, tensor: int) -> None:
        """Turn to the next operation of the step that reads the tensor."""
        if tensor in self.next_reader:
            readers = self.index.readers[tensor]
            following = bisect_right(readers, self.now)
            never = self.index.operations
            self.next_reader[tensor] = readers[following] if following < len(readers) else never

    def run(self, reads: Iterable[int], duration_ns: int) -> None:
        """Let the time pass that something takes, and that it waits for what it reads."""
        for t in reads:
            self.clock = self.link.use(t, self.now, self.clock)
        self.clock += duration_ns

    def bring_back(self, tensor: int, held: Collection[int]) -> None:
        """Fetch a tensor; or run its block again, after those that rebuild its inputs."""
        stack = [(tensor, frozenset(held))]
        while stack:
            wanted, kept = stack[-1]
            if wanted in self.link.out:
                stack.pop()
                self.make_room(self.size[wanted], kept)
                self.fetch(wanted)
                continue
            if not self.returns(wanted) or len(stack) > len(self.blocks):
                raise _FullError
            number = self.block_of[wanted]
            block = self.blocks[number]
            missing = next((t for t in block.inputs if t not in self.here), None)
            if missing is not None:
                stack.append((missing, kept | set(block.inputs)))
                continue
            stack.pop()
            new = sum(self.size[t] for t in block.outputs if t not in self.here)
            self.make_room(new + block.workspace_bytes, {*kept, *block.inputs, *block.outputs})
            self.reruns[self.now].append(number)
            self.run(block.inputs, block.duration_ns)
            self.add(block.outputs)

    def fetch(self, tensor: int) -> None:
        self.link.fetch(tensor, self.clock)
        self.add([tensor])

    def add(self, tensors: Iterable[int]) -> None:
        for t in tensors:
            if t not in self.here:
                self.here.add(t)
                self.absent.discard(t)
                self.used += self.size[t]
                self.forget_costs(t)

    def drop(self, tensor: int) -> None:
        """Free a tensor; if it cannot come back, what must be rebuilt from it cannot either."""
        self.here.remove(tensor)
        self.over.discard(tensor)
        self.used -= self.size[tensor]
        self.link.forget(tensor)
        self.forget_costs(tensor)
        if tensor in self.next_reader:
            self.absent.add(tensor)
        lost = [tensor]
        while lost:
            if not self.returns(t := lost.pop()):
                for n in self.rebuilders.get(t, ()):
                    if n not in self.dead:
                        self.dead.add(n)
                        lost += self.bereave(n)

    def bereave(self, number: int) -> list[int]:
        """Note what a dead block does not rebuild any more; those that are absent."""
        outputs = [t for t in self.blocks[number].outputs if t not in self.link.out]
        self.over.update(t for t in outputs if t in self.here and self.last_access[t] <= self.now)
        return [t for t in outputs if t in self.absent]

    def prefetch(self, held: Collection[int]) -> None:
        """Start the copies in that must start now, as far as there is room."""
        if self.due and self.due[-1][1] < self.now:
            self.due = self.fetches_to_come(self.next_needs())
        while self.due and self.due[-1][0] - self.taste.early_ns <= self.planned[self.now]:
            _, needed, tensor = self.due[-1]
            if tensor in self.here:
                self.due.pop()
            elif self.room_before(needed, self.size[tensor], held):
                self.fetch(tensor)
            else:
                return

    def fetches_to_come(self, needed: Mapping[int, int]) -> list[tuple[int, int, int]]:
        """Copies in to come, the next one last: latest start without re-executions, need, tensor.

        Each must be over when it is needed, and when the next must start.
        """
        absent, never = self.link.out.keys() - self.here, self.index.operations
        found: list[tuple[int, int, int]] = []
        start = self.planned[-1]
        for op, t in sorted(((needed[t], t) for t in absent if needed[t] < never), reverse=True):
            start = min(start, self.planned[op]) - self.link.in_ns[t]
            found.append((start, op, t))
        return found

    def room_before(self, needed: int, more: int, held: Collection[int]) -> bool:
        """Make room with what is needed later than an operation, if that can be had at once."""
        if self.used + more <= self.problem.budget_bytes:
            return True
        needs = self.next_needs()
        self.clear(needs, held)
        later = [
            t
            for t in self.candidates(held)
            if needs[t] > needed and self.link.out.get(t, 0) <= self.clock
        ]
        return self.evict(more, later, needs)

    def make_room(self, more: int, held: Collection[int]) -> None:
        """Evict until so many bytes fit."""
        if self.used + more > self.problem.budget_bytes:
            needed = self.next_needs()
            self.clear(needed, held)
            if not self.evict(more, self.candidates(held), needed):
                raise _FullError

    def candidates(self, held: Collection[int]) -> list[int]:
        """What may be evicted now: not what is still to be written in place."""
        return [
            t
            for t in self.here & self.evictable
            if self.last_write[t] < self.now and t not in held and self.returns(t)
        ]

    def clear(self, needed: Mapping[int, int], held: Collection[int]) -> None:
        """Drop what is over, but for what something absent and needed is rebuilt from."""
        never = self.index.operations
        for t in sorted(self.over.difference(held), reverse=True):
            rebuilt = (u for n in self.rebuilders.get(t, ()) for u in self.blocks[n].outputs)
            if not any(u in self.absent and needed[u] < never for u in rebuilt):
                self.drop(t)

    def evict(self, more: int, candidates: Iterable[int], needed: dict[int, int]) -> bool:
        """Evict candidates, first those that nothing needs; whether so many bytes fit then.

        Where a copy out is not over, the clock moves to its end.
        """
        waiting: list[tuple[float, int]] = []
        for t in candidates:
            if needed[t] == self.index.operations:
                self.drop(t)
            else:
                waiting.append((self.score(t, needed[t]), t))
        heapq.heapify(waiting)
        while waiting and self.used + more > self.problem.budget_bytes:
            known, victim = heapq.heappop(waiting)
            score = self.score(victim, needed[victim])
            if score > known:  # what was evicted meanwhile has made it dearer
                heapq.heappush(waiting, (score, victim))
                continue
            self.clock = max(self.clock, self.link.out.get(victim, 0))
            self.drop(victim)
            self.hurry_inputs(victim, needed)
        self.due = self.fetches_to_come(needed)
        return self.used + more <= self.problem.budget_bytes

    def next_needs(self) -> dict[int, int]:
        """By tensor, the next operation that needs it, or a tensor that is rebuilt from it.

        The number of operations where none does.
        """
        needed = dict(self.next_reader)
        for t in sorted(self.absent, reverse=True):
            self.hurry_inputs(t, needed)
        return needed

    def hurry_inputs(self, tensor: int, needed: dict[int, int]) -> None:
        """What rebuilds a tensor that is not here is needed when the tensor is."""
        stack = [tensor]
        while stack:
            t = stack.pop()
            if t in self.link.out or self.block_of[t] < 0:
                continue
            for u in self.blocks[self.block_of[t]].inputs:
                if needed.get(u, 0) > needed[t]:
                    needed[u] = needed[t]
                    if u not in self.here:
                        stack.append(u)

    def score(self, tensor: int, needed: int) -> float:
        """The lowest goes first."""
        taste = self.taste
        gain = self.size[tensor] * float(max(1, needed - self.now)) ** taste.distance
        return float(self.weights[tensor] * self.cost(tensor) ** taste.cost / gain)

    def cost(self, tensor: int) -> int:
        """Time to bring a tensor back from what is here, in nanoseconds."""
        if tensor in self.link.out:
            wait = max(0, self.link.out[tensor] - self.clock)
            return max(1, int(self.taste.price * self.link.in_ns[tensor]) + wait)
        costs = self.costs
        if tensor in costs:
            return costs[tensor]
        stack = [tensor]
        while stack:
            t = stack[-1]
            block = self.blocks[self.block_of[t]]
            missing = [u for u in block.inputs if u in self.absent and self.returns(u)]
            unknown = [u for u in missing if u not in costs and u not in self.link.out]
            if unknown:
                stack.extend(unknown)
                continue
            costs[t] = max(1, block.duration_ns) + sum(map(self.cost, missing))
            stack.pop()
        return costs[tensor]

    def returns(self, tensor: int) -> bool:
        """Whether a tensor can be brought back once it is gone."""
        number = self.block_of[tensor]
        return (number >= 0 and number not in self.dead) or tensor in self.link.out

    def forget_costs(self, moved: int) -> None:
        """Forget the costs of what is rebuilt from a tensor that has come or gone."""
        stack = [moved] if self.costs else []
        while stack:
            for n in self.rebuilders.get(stack.pop(), ()):
                changed = [t for t in self.blocks[n].outputs if self.costs.pop(t, None) is not None]
                stack.extend(t for t in changed if t in self.absent)

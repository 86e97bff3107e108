"""Sets of the windowed ILP: where in the step each tensor may be wanted, and what may run there."""

from __future__ import annotations

import itertools
from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Sequence
from functools import cached_property

import numpy as np

from slackswap_opt.plan import Block, Problem, Program

HOPS = 8
"""How far downstream, in blocks, a need may lie that runs a block again."""
DETAILED = 500_000
"""Terms up to which each block of a slot has a row of memory of its own."""
FAR = 8
"""A forward reader this many operations after the last touch may find its tensor dropped."""


class Windows:
    """Slots of one problem: slot k is the moment just before operation k.

    A tensor's *needs* are the operations that read it after its last write. A need is *far* if it
    is not a forward operation, or comes at least `far` operations after the touch before it:
    between the two the tensor may be away. A block may run again in slot k if k is a far need of
    one of its outputs or of what lies downstream within `hops` blocks; and in the slots of `also`,
    pairs of a block and a slot: those of a program that is known.

    Attributes:
        tensors: what is decided about, in order of production.
        blocks: blocks that may run again, by number.
        needs: by tensor, ascending.
        far: by tensor, its far needs.
        reruns: W_n, slots of each block, ascending.
        slots: Q_t, slots at which it matters whether tensor t is on the device, ascending.
        leaves: by tensor that may be swapped, the last touch before its first far need.
        fetches: by tensor that may be swapped, the slots in which it may be fetched.
    """

    def __init__(
        self,
        problem: Problem,
        hops: int = HOPS,
        far: int = FAR,
        also: Iterable[tuple[int, int]] = (),
    ) -> None:
        self.problem, self.also = problem, tuple(also)
        index, live, blocks = problem.step.index, problem.liveness, problem.blocks
        self.index, self.live = index, live
        self.size: list[int] = index.size_bytes.tolist()
        self.ready = {t: int(live.last_write[t]) for t in blocks.evictable}
        self.needs = {
            t: [op for op in index.readers[t] if op > self.ready[t]] for t in blocks.evictable
        }
        self.far = {t: self._far(t, far) for t in blocks.evictable}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for n, block in enumerate(blocks.blocks):
            for t in block.inputs:
                self.readers[t].append(n)
        self.reruns = self._reruns(hops)
        self.blocks: dict[int, Block] = {n: blocks.blocks[n] for n in self.reruns}
        self.block_of = {t: n for t in blocks.evictable if (n := blocks.block_of[t]) in self.reruns}
        self.slots = {t: self._slots(t) for t in blocks.evictable}
        self.tensors = [
            t for t in blocks.evictable
            if self.size[t] > 0 and self.slots[t] and (self.far[t] or self._feeds(t))
        ]  # fmt: skip
        self.leaves: dict[int, int] = {}
        self.fetches: dict[int, list[int]] = {}
        if problem.swaps:
            for t in self.tensors:
                if index.transfer_bytes[t] >= problem.machine.link.min_swap_bytes:
                    self._swaps(t)

    @property
    def slot_count(self) -> int:
        """Slots of all tensors, re-executions and fetches: how large the model becomes."""
        counted = (self.slots, self.reruns, self.fetches)
        return sum(len(own) for slots in counted for own in slots.values())

    def _far(self, tensor: int, far: int) -> list[int]:
        touches = [self.ready[tensor], *self.needs[tensor]]
        return [
            b
            for a, b in itertools.pairwise(touches)
            if b - a >= far or (self.index.forward[a] and not self.index.forward[b])
            or not self.index.forward[a]
        ]  # fmt: skip

    def _reruns(self, hops: int) -> dict[int, list[int]]:
        blocks = self.problem.blocks.blocks
        near: dict[int, dict[int, int]] = {}
        for n in sorted(range(len(blocks)), key=lambda n: blocks[n].operations[-1], reverse=True):
            end = blocks[n].operations[-1]
            reach: dict[int, int] = {}
            for t in blocks[n].outputs:
                reach |= dict.fromkeys(self.far[t], 0)
                for reader in self.readers[t]:
                    for slot, distance in near.get(reader, {}).items():
                        if distance < hops:
                            reach[slot] = min(reach.get(slot, hops), distance + 1)
            near[n] = {slot: distance for slot, distance in reach.items() if slot > end + 1}
        for n, slot in self.also:
            near[n][slot] = 0
        return {n: sorted(near[n]) for n in sorted(near) if near[n]}

    def _feeds(self, tensor: int) -> bool:
        return any(n in self.reruns for n in self.readers[tensor])

    def _slots(self, tensor: int) -> list[int]:
        wanted = set(self.needs[tensor])
        for n in (self.block_of.get(tensor, -1), *self.readers[tensor]):
            wanted.update(self.reruns.get(n, ()))
        return sorted(k for k in wanted if k > self.ready[tensor])

    def _swaps(self, tensor: int) -> None:
        touches = [self.ready[tensor], *self.needs[tensor]]
        first = self.far[tensor][0] if self.far[tensor] else self.index.operations
        leaves = touches[bisect_left(touches, first) - 1]
        later = [k for k in self.slots[tensor] if k > leaves + 1]
        if later:
            self.leaves[tensor], self.fetches[tensor] = leaves, later

    def next_slot(self, tensor: int, op: int) -> int | None:
        """The first slot of the tensor after operation `op` has run; None if there is none."""
        slots = self.slots[tensor]
        position = bisect_right(slots, op)
        return slots[position] if position < len(slots) else None

    @cached_property
    def blocks_at(self) -> dict[int, list[int]]:
        """By slot, the blocks that may run again there."""
        found: dict[int, list[int]] = defaultdict(list)
        for n, slots in self.reruns.items():
            for k in slots:
                found[k].append(n)
        return found

    @cached_property
    def detailed(self) -> bool:
        """Whether memory is looked at block by block within a slot."""
        terms = sum(len(numbers) * len(self.present[k]) for k, numbers in self.blocks_at.items())
        return terms <= DETAILED

    @cached_property
    def present(self) -> list[list[int]]:
        """By operation, the tensors whose residency in its slot is decided, ascending."""
        count = self.index.operations
        found: list[list[int]] = [[] for _ in range(count)]
        for t in self.tensors:
            for k in range(self.ready[t] + 1, self.slots[t][-1] + 1):
                found[k].append(t)
        return found

    @cached_property
    def base_bytes(self) -> tuple[Sequence[int], Sequence[int]]:
        """Bytes whatever is decided: in each slot, and while each operation runs.

        All that is not decided about from its first write to its last access; the tensors that
        are from their first to their last write, and while an operation touches them.
        """
        index, live = self.index, self.live
        count = index.operations
        change = np.zeros(count + 1, dtype=np.int64)
        decided = set(self.tensors)
        before = np.zeros(count + 1, dtype=np.int64)
        for t in range(index.tensors):
            first = int(live.first_write[t])
            if first < 0:
                continue
            last = self.ready[t] if t in decided else int(live.last_access[t])
            change[first] += index.size_bytes[t]
            change[last + 1] -= index.size_bytes[t]
            before[first + 1] += index.size_bytes[t]
            before[max(last + 1, first + 1)] -= index.size_bytes[t]
        running = np.cumsum(change[:-1]) + index.workspace_bytes
        for t in self.tensors:
            for op in self.needs[t]:
                running[op] += index.size_bytes[t]
        return np.cumsum(before[:-1]).tolist(), running.tolist()


def slots_of(problem: Problem, program: Program) -> list[tuple[int, int]]:
    """The blocks that a program runs again, each with its slot."""
    numbers = {block.operations: n for n, block in enumerate(problem.blocks.blocks)}
    return [
        (numbers[rerun.block.operations], bisect_left(program.original, rerun.last))
        for rerun in program.reruns
    ]

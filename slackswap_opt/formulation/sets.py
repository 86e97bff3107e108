"""Sets and data of the compact ILP: tensors, blocks, and the runs that time is cut into."""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slackswap_opt.formulation.linear import grain
from slackswap_opt.plan import Action, Block, Plan, Problem

HOPS = 16
"""How far downstream, in blocks, a need may lie that re-executes a block."""
RUNS = 200
"""Steps of more operations than this are cut into about as many runs; without swaps, for which the
model is much smaller, each operation is a run of its own."""
FINE = 12
"""Operations on either side of the ideal peak that are runs of their own."""
WORK = 1000
"""Engine work of a byte: rates are bytes/us, times are ns."""


@dataclass(frozen=True)
class Tightening:
    """What earlier simulations taught.

    Attributes:
        reserve_bytes: memory to leave free at an operation, beyond what the model counts.
    """

    reserve_bytes: Mapping[int, int] = field(default_factory=dict)

    def with_reserve(self, operation: int, more_bytes: int) -> Tightening:
        """The same with more memory left free at an operation."""
        reserve = dict(self.reserve_bytes)
        reserve[operation] = reserve.get(operation, 0) + more_bytes
        return Tightening(reserve)


class Sets:
    """The model's sets and data.

    Args:
        problem: step, machine and budget.
        tightening: corrections learned from simulations.
        plans: plans that the model must be able to express: their re-execution slots are added.
        drained: whether every copy out must be over at the turn, when copies in begin. Costs next
            to nothing on long steps, where it makes fluid queues exact where it matters.
        hops: how far downstream, in blocks, a need may lie that re-executes a block.
    """

    def __init__(
        self,
        problem: Problem,
        tightening: Tightening,
        plans: Sequence[Plan] = (),
        *,
        drained: bool = False,
        hops: int = HOPS,
    ) -> None:
        self.problem, self.tightening, self.plans = problem, tightening, plans
        self.drained, self.hops = drained, hops
        index, live, blocks = problem.step.index, problem.liveness, problem.blocks
        self.index, self.live = index, live
        self.size: list[int] = index.size_bytes.tolist()
        self.saved = {t for t in blocks.evictable if live.saved[t]}
        feeds = {t for block in blocks.blocks for t in block.inputs}
        self.tensors = [
            t for t in blocks.evictable if self.size[t] > 0 and (t in self.saved or t in feeds)
        ]
        members = set(self.tensors)
        self.blocks: dict[int, Block] = {
            n: block
            for n, block in enumerate(blocks.blocks)
            if any(t in members for t in block.outputs)
        }
        self.block_of = {t: blocks.block_of[t] for t in self.tensors}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for n, block in self.blocks.items():
            for t in block.inputs:
                if t in members:
                    self.readers[t].append(n)
        first_later = [int(live.first_later[t]) for t in self.saved]
        turn = min(first_later, default=index.operations)
        runs = RUNS if problem.swaps else index.operations
        self.starts = _run_starts(index.operations, turn, live.peak_operation, runs)
        self.count = len(self.starts)
        ends = [*self.starts[1:], index.operations]
        self.run_of = [
            r for r, (a, b) in enumerate(zip(self.starts, ends, strict=True)) for _ in range(a, b)
        ]
        self.turn = self.run_of[turn] if turn < index.operations else self.count
        durations: list[int] = index.duration_ns.tolist()
        self.duration = [sum(durations[a:b]) for a, b in zip(self.starts, ends, strict=True)]
        self.elapsed = list(itertools.accumulate(durations, initial=0))
        self.done = {t: self.run_of[int(live.last_forward[t])] for t in self.tensors}
        self.first = {t: self.run_of[int(live.first_later[t])] for t in self.saved}
        self.last = {t: self.run_of[int(live.last_access[t])] for t in self.saved}
        self.rates = problem.machine.link.rates()
        self.tick_ns = grain(problem.ideal_step_ns)

    def out_rate(self, run: int) -> int:
        """Work per nanosecond of the queue out: after the turn, the queue in is busy as well."""
        return self.rates.d2h if run < self.turn else self.rates.d2h_duplex

    def work(self, tensor: int, rate: int) -> int:
        """Engine work of one copy, its latency included."""
        latency = self.problem.machine.link.latency_ns
        return int(self.index.transfer_bytes[tensor]) * WORK + latency * rate

    @cached_property
    def windows(self) -> dict[int, list[int]]:
        """W_o, ascending."""
        near: dict[int, dict[int, int]] = {}
        for n in sorted(self.blocks, reverse=True):
            reach = {
                self.first[t]: 0 for t in self.blocks[n].outputs if t in self.saved and self.size[t]
            }
            for t in self.blocks[n].outputs:
                for reader in self.readers.get(t, ()):
                    for slot, hops in near.get(reader, {}).items():
                        if hops < self.hops:
                            reach[slot] = min(reach.get(slot, self.hops), hops + 1)
            near[n] = reach
        slots = {n: set(reach) for n, reach in near.items()}
        for plan in self.plans:
            for n, slot in self.rerun_slots(plan).items():
                slots[n].add(slot)
        return {n: sorted(slots[n]) for n in self.blocks if slots[n]}

    def rerun_slots(self, plan: Plan) -> dict[int, int]:
        """The slot in which each block runs again, just before its first need; absent if never."""
        slots: dict[int, int] = {}
        for n in sorted(self.blocks, reverse=True):
            needs = [
                slot
                for t in self.blocks[n].outputs
                if t in self.block_of and plan.of(t) in (Action.RECOMPUTE, Action.DROP)
                for slot in (
                    *((self.first[t],) if t in self.saved else ()),
                    *(slots[c] for c in self.readers.get(t, ()) if c in slots),
                )
            ]
            if needs:
                slots[n] = min(needs)
        return slots

    @cached_property
    def base_bytes(self) -> list[int]:
        """Most bytes held in each run whatever is decided.

        Tensors that cannot be evicted; evictable ones to the end of the run of their last forward
        reader, and from the start of the run of their first later reader to their last;
        workspace; and what experience reserves.
        """
        count = self.index.operations
        change = [0] * (count + 1)
        ends = [*self.starts[1:], count]

        def hold(first: int, last: int, size: int) -> None:
            change[first] += size
            change[last + 1] -= size

        evictable = set(self.problem.blocks.evictable)
        for t in range(self.index.tensors):
            written, last = int(self.live.first_write[t]), int(self.live.last_access[t])
            if written < 0:
                continue
            if t not in evictable:
                hold(written, last, self.size[t])
                continue
            leaves = ends[self.run_of[int(self.live.last_forward[t])]] - 1
            if t not in self.saved:
                hold(written, min(leaves, last) if t not in self.block_of else leaves, self.size[t])
                continue
            returns = self.starts[self.first[t]]
            last = ends[self.last[t]] - 1 if self.readers.get(t) else last
            if returns > leaves:
                hold(written, leaves, self.size[t])
                hold(returns, last, self.size[t])
            else:
                hold(written, last, self.size[t])
        workspace = self.index.workspace_bytes.tolist()
        reserve = self.tightening.reserve_bytes
        most = [0] * self.count
        for k, held in enumerate(itertools.accumulate(change[:-1])):
            r = self.run_of[k]
            most[r] = max(most[r], held + workspace[k] + reserve.get(k, 0))
        return most

    @cached_property
    def own_bytes(self) -> list[int]:
        """Per run, the least that one of its operations allocates when it starts."""
        index = self.index
        ends = [*self.starts[1:], index.operations]
        allocated = [
            int(index.workspace_bytes[op])
            + sum(self.size[t] for t, v in index.writes[op] if v == 0)
            for op in range(index.operations)
        ]
        return [min(allocated[a:b]) for a, b in zip(self.starts, ends, strict=True)]


def _run_starts(count: int, turn: int, peak: int, runs: int) -> list[int]:
    """First operations of the runs: single ones if they are few, or near the peak or the turn."""
    length = -(-count // runs)
    starts = {0}
    for low, high in ((0, turn), (turn, count)):
        starts.update(range(low, high, length))
    for place in (peak, turn):
        starts.update(range(max(0, place - FINE), min(count, place + FINE + 1)))
    return sorted(starts)

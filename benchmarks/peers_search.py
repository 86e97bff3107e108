"""The exact optimum of a small recompute-only case, by searching what can be on the device.

A state is the next operation to run for the first time and the set of resident outputs. Running an
operation costs its time, giving up an output costs nothing, and everything must fit. The shortest
path (Dijkstra's algorithm, integers only) is the optimum over *all* orders of re-execution, and
no path is a proof that the case is infeasible. There are more states than small instances
with small budgets can have, so the search gives up at a limit.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction

from benchmarks.peers_instances import SIZE, TIME, Instance, units, whole


@dataclass(frozen=True)
class Exact:
    """What the search found.

    Attributes:
        cost: the optimum; None if there is no plan.
        states: states visited.
    """

    cost: Fraction | None
    states: int


class TooManyStatesError(Exception):
    """The search needed more states than allowed."""


def shortest(instance: Instance, budget: Fraction, limit: int = 500_000) -> Exact:
    """The least cost of running all operations within a memory budget.

    Raises:
        TooManyStatesError: at the limit.
    """
    ops = instance.ops
    times, sizes = [whole(op.time * TIME) for op in ops], [whole(op.size * SIZE) for op in ops]
    reads = [sum(1 << r for r in op.reads) for op in ops]
    last, room = _last_needs(instance), int(budget * SIZE)
    useless = [sum(1 << i for i in range(f) if last[i] < f) for f in range(len(ops) + 1)]
    held = {0: 0}

    def size(resident: int) -> int:
        if resident not in held:
            held[resident] = size(resident & resident - 1) + sizes[_lowest(resident)]
        return held[resident]

    def moves(following: int, resident: int) -> Iterator[tuple[int, int, int]]:
        free = room - size(resident)
        crowded = False
        for i in range(following + 1):
            if not resident >> i & 1 and not reads[i] & ~resident and last[i] >= following:
                if sizes[i] > free:
                    crowded = True
                    continue
                then = following + (i == following)
                yield times[i], then, (resident | 1 << i) & ~useless[then]
        if crowded:
            rest = resident
            while rest:
                yield 0, following, resident & ~(rest & -rest)
                rest &= rest - 1

    best = {(0, 0): 0}
    queue = [(0, 0, 0)]
    done: set[tuple[int, int]] = set()
    while queue:
        cost, following, resident = heapq.heappop(queue)
        if (following, resident) in done:
            continue
        done.add((following, resident))
        if following == len(ops):
            return Exact(units(cost), len(done))
        if len(done) > limit:
            raise TooManyStatesError
        for more, then, after in moves(following, resident):
            found = cost + more
            if found < best.get((then, after), found + 1):
                best[then, after] = found
                heapq.heappush(queue, (found, then, after))
    return Exact(None, len(done))


def _lowest(bits: int) -> int:
    return (bits & -bits).bit_length() - 1


def _last_needs(instance: Instance) -> list[int]:
    """Per output, the last operation that may need it, directly or for a re-execution."""
    last = list(range(len(instance.ops)))
    for j in reversed(range(len(instance.ops))):
        for r in instance.ops[j].reads:
            last[r] = max(last[r], j, last[j])
    return last

"""A plan as a point of the compact ILP, and the variables to open around it."""

from __future__ import annotations

from collections.abc import Collection

from slackswap_opt.formulation.compact import CompactModel
from slackswap_opt.formulation.sets import Sets
from slackswap_opt.plan import Action, Plan


def assignment(cm: CompactModel, sets: Sets, plan: Plan) -> dict[int, int]:
    """The 0-1 variables that a plan stands for; sums, queues and stalls are left open."""
    slots = sets.rerun_slots(plan)
    values: dict[int, int] = {}
    for t in cm.keep:
        values[cm.keep[t]] = int(plan.of(t) is Action.KEEP)
        values[cm.swap[t]] = int(plan.of(t) is Action.SWAP)
    for n, window in cm.rerun.items():
        values |= {x: int(n in slots and slots[n] <= j) for j, x in window.items()}

    def reruns(n: int, j: int) -> int:
        return int(n in slots and slots[n] <= j)

    def there(t: int, j: int) -> bool:
        if t in sets.saved and j >= sets.first[t]:
            return True
        action = plan.of(t)
        if action is Action.RECOMPUTE:
            return bool(reruns(sets.block_of[t], j))
        return action is Action.KEEP or any(reruns(n, j) for n in sets.readers.get(t, ()))

    for t, fetched in cm.fetched.items():
        for j, x in fetched.items():
            if x != cm.swap[t]:
                values[x] = int(plan.of(t) is Action.SWAP and there(t, j))
        own = cm.rerun.get(sets.block_of[t], {})
        for j, x in cm.rebuilt[t].items():
            if own.get(j) != x:
                values[x] = int(plan.of(t) is Action.RECOMPUTE and there(t, j))
        for (begin, end), x in cm.lingers[t].items():
            since = end if begin == end else begin - 1
            pending = any(slots.get(n, -1) >= begin for n in sets.readers.get(t, ()))
            values[x] = int(pending and (t in sets.saved or there(t, since)))
    return values


def neighbourhood(cm: CompactModel, sets: Sets, plan: Plan, free: Collection[int]) -> set[int]:
    """The 0-1 variables to leave open so that the actions of `free` tensors may change.

    With a tensor, its block; with a block, what it reads and, where that is not simply kept or
    swapped, the block that rebuilds it in turn.
    """
    opened = {x for t in free for x in (cm.keep[t], cm.swap[t])}
    stack = [sets.block_of[t] for t in free if sets.block_of[t] in cm.rerun]
    blocks: set[int] = set()
    touched = set(free)
    while stack:
        n = stack.pop()
        if n in blocks:
            continue
        blocks.add(n)
        touched.update(t for t in sets.blocks[n].outputs if t in cm.keep)
        for t in sets.blocks[n].inputs:
            if t not in cm.keep:
                continue
            touched.add(t)
            if (t in free or plan.of(t) is Action.RECOMPUTE) and sets.block_of[t] in cm.rerun:
                stack.append(sets.block_of[t])
    for n in blocks:
        opened.update(cm.rerun[n].values())
    for t in touched:
        opened.update(x for x in cm.fetched[t].values() if x != cm.swap[t])
        own = set(cm.rerun.get(sets.block_of[t], {}).values())
        opened.update(x for x in cm.rebuilt[t].values() if x not in own)
        opened.update(cm.lingers[t].values())
    return opened

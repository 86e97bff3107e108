"""Tight budgets: programs that run operations again any number of times."""

from __future__ import annotations

import random
from collections.abc import Mapping

from slackswap_opt.formulation.windowed import (
    WindowedModel,
    known_values,
    windowed_model,
    with_residency,
)
from slackswap_opt.formulation.windows import Windows, slots_of
from slackswap_opt.plan import Program, program_in
from slackswap_opt.planners.on_demand import TASTES, best_taste, refined
from slackswap_opt.planners.search import Search, complete

HOPS = (6, 10)
"""How far downstream a need may lie that runs a block again, narrow windows first."""
SLOTS = 6000
"""Where tensors may be swapped, models of more slots are not built: the queues of copies make
each neighbourhood take many seconds, in which eviction on demand with copies finds more."""
WHOLE = 400
"""Models with at most this many integer variables are solved at once as well."""
WHOLE_NODES = 20_000
"""Branch-and-bound nodes for those."""
SHAPES = ((2, 8), (6, 3), (16, 1))
"""Neighbourhoods open some stretches of some blocks, in turn: (how many, how long),"""
SPANS = (8, 5, 3, 2)
"""and all blocks in the slots of one part of the step out of so many, around a slot in which
something runs again: larger parts the longer nothing has been found."""
WIDEN = 8
"""Neighbourhoods without improvement before the next larger part."""
PATIENCE = 60
"""Neighbourhoods without improvement before the windows are widened."""
TRIALS, TRIALS_PER_TENSOR = 2000, 10
"""Changes of taste, at most; they take at most a third of the time that is left."""


def windowed_search(search: Search) -> None:
    """Improve on the best schedule with programs that may do anything twice.

    Args:
        search: the state, which is updated.
    """
    evict_on_demand(search)
    for hops in HOPS:
        if search.done() or not _descend(search, hops):
            return


def evict_on_demand(search: Search) -> None:
    """Programs without copies, refined from the best taste where they lead."""
    problem = search.problem
    found = best_taste(problem, TASTES)
    if found is None:
        return
    before = search.best_ns
    search.judge_program(found[1], by_solver=False)
    if problem.swaps and search.best_ns == before:
        return
    trials = min(TRIALS, TRIALS_PER_TENSOR * len(problem.blocks.evictable))
    with search.share(1 / 3):
        program = refined(
            problem, *found, lambda trial: trial < trials and search.seconds_left() > 0
        )
        search.time_limited |= search.seconds_left() <= 0
    search.judge_program(program, by_solver=False)


def _descend(search: Search, hops: int) -> bool:
    """Open one neighbourhood after another; whether there was anything to do."""
    program = _best_program(search)
    if program is None:
        return False
    windows = Windows(search.problem, hops, also=slots_of(search.problem, program))
    if search.problem.swaps and windows.slot_count > SLOTS:
        return False
    wm = windowed_model(windows)
    known = known_values(wm, windows, program)
    if sum(variable.integer for variable in wm.model.variables) <= WHOLE:
        values = complete(search, wm.model, {}, known, WHOLE_NODES)
        if values is not None:
            search.judge_program(wm.program(windows, values))
        return True
    chance = random.Random(hops)
    fastest, idle = search.best_ns, 0
    while idle < PATIENCE and not search.done():
        opened = _opened(windows, wm, known, idle, chance)
        found = _reopened(search, windows, wm, known, opened)
        idle += 1
        if found is None or found == known:
            continue
        realized = search.judge_program(wm.program(windows, found))
        if search.best_ns != fastest:
            known, fastest, idle = found, search.best_ns, 0
        elif realized.verdict.step_ns == fastest:
            known = found  # as good, and elsewhere
    return True


def _best_program(search: Search) -> Program | None:
    if search.best is None or search.best.schedule is None:
        return None
    return program_in(search.problem, search.best.schedule)


def _opened(
    windows: Windows, wm: WindowedModel, known: Mapping[int, int], turn: int, chance: random.Random
) -> set[int]:
    """The re-executions and fetches that a neighbourhood opens."""
    number, in_time = divmod(turn, 2)
    if not in_time:
        shape = SHAPES[number % len(SHAPES)]
        numbers = _stretches(list(windows.reruns), shape, chance)
        outputs = {t for n in numbers for t in windows.blocks[n].outputs}
        opened = {x for n in numbers for x in wm.rerun[n].values()}
        return opened | {x for t in outputs for x in wm.fetch.get(t, {}).values()}
    slots = [
        (k, x) for owner in (wm.rerun, wm.fetch) for own in owner.values() for k, x in own.items()
    ]
    busy = [k for k, x in slots if known[x]] or [k for k, _ in slots]
    length = windows.index.operations // SPANS[min(turn // WIDEN, len(SPANS) - 1)]
    begin = chance.choice(busy) - chance.randrange(length + 1)
    return {x for k, x in slots if begin <= k <= begin + length}


def _stretches(numbers: list[int], shape: tuple[int, int], chance: random.Random) -> set[int]:
    """Some stretches of consecutive blocks."""
    count, length = shape
    opened: set[int] = set()
    for _ in range(count):
        begin = chance.randrange(len(numbers))
        opened.update(numbers[begin : begin + length])
    return opened


def _reopened(
    search: Search,
    windows: Windows,
    wm: WindowedModel,
    known: Mapping[int, int],
    opened: set[int],
) -> dict[int, int] | None:
    """Decide some re-executions and fetches anew, all else as it is; None if that fails."""
    blocks = [windows.blocks[n] for n, slots in wm.rerun.items() if opened & set(slots.values())]
    touched = {t for t, slots in wm.fetch.items() if opened & set(slots.values())}
    touched.update(t for block in blocks for t in (*block.outputs, *block.inputs))
    fixed = {
        x: known[x]
        for owners in (wm.rerun, wm.fetch)
        for slots in owners.values()
        for x in slots.values()
        if x not in opened
    }
    fixed |= {
        x: known[x] for t, slots in wm.there.items() if t not in touched for x in slots.values()
    }
    fixed |= {
        v: known[v] for (t, _), chain in wm.wanted.items() if t not in touched for _, v in chain
    }
    values = complete(search, wm.model, fixed, known)
    if values is None:
        return None
    whole = {x: round(values[x]) for x, v in enumerate(wm.model.variables) if v.integer}
    return with_residency(wm, windows, whole)

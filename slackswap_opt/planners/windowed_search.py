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
from slackswap_opt.formulation.windows import Windows
from slackswap_opt.plan import Program, program_in
from slackswap_opt.planners.on_demand import TASTES, best_taste, refined
from slackswap_opt.planners.search import Search, complete

HOPS = (6, 10)
"""How far downstream a need may lie that runs a block again, narrow windows first."""
WHOLE = 400
"""Models with at most this many integer variables are solved at once as well."""
WHOLE_NODES = 20_000
"""Branch-and-bound nodes for those."""
SHAPES = ((2, 8), (6, 3), (16, 1))
"""A neighbourhood opens some stretches of some blocks, in turn: (how many, how long)."""
PATIENCE = 60
"""Neighbourhoods without improvement before the windows are widened."""
TRIALS, TRIALS_PER_TENSOR = 1000, 5
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
    if search.best_ns == before:
        return
    trials = min(TRIALS, TRIALS_PER_TENSOR * len(problem.blocks.evictable))
    with search.share(1 / 3):
        program = refined(
            problem, *found, lambda trial: trial < trials and search.seconds_left() > 0
        )
        search.time_limited |= search.seconds_left() <= 0
    search.judge_program(program, by_solver=False)


def _descend(search: Search, hops: int) -> bool:
    """Open one neighbourhood after another; whether there was anything to start from."""
    program = _best_program(search)
    if program is None:
        return False
    windows = Windows(search.problem, hops)
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
        shape = SHAPES[idle % len(SHAPES)]
        found = _reopened(
            search, windows, wm, known, _stretches(list(windows.reruns), shape, chance)
        )
        idle += 1
        if found is None or found == known:
            continue
        search.judge_program(wm.program(windows, found))
        if search.best_ns != fastest:
            known, fastest, idle = found, search.best_ns, 0
    return True


def _best_program(search: Search) -> Program | None:
    if search.best is None or search.best.schedule is None:
        return None
    return program_in(search.problem, search.best.schedule)


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
    """Decide some blocks anew, all else as it is; None if that fails."""
    blocks = [windows.blocks[n] for n in opened]
    outputs = {t for block in blocks for t in block.outputs}
    touched = outputs | {t for block in blocks for t in block.inputs}
    fixed = {
        x: known[x]
        for owners, free in ((wm.rerun, opened), (wm.fetch, outputs), (wm.there, touched))
        for owner, slots in owners.items()
        if owner not in free
        for x in slots.values()
    }
    values = complete(search, wm.model, fixed, known)
    if values is None:
        return None
    whole = {x: round(values[x]) for x, v in enumerate(wm.model.variables) if v.integer}
    return with_residency(wm, windows, whole)

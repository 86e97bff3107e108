"""Eviction on demand with copies: which tensors are swapped is searched by simulation."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import product

from slackswap_opt.plan import Action, Plan
from slackswap_opt.planners.eviction import Taste, run_on_demand
from slackswap_opt.planners.on_demand import rerun_ns, reweighted, stretch
from slackswap_opt.planners.search import Search

SHARES = (0.4, 0.2, 0.1, 0.6, 0.3, 0.0, 0.5, 0.8)
"""Parts of what is saved that are marked to be swapped, the dearest to rebuild first."""
DISTANCES = (1.0, 0.5)
PRICES = (0.1, 0.0, 0.5)
RELUCTANCE = (10.0, 1000.0, 1.0)
"""How much dearer it counts to evict what a plan keeps."""
MORE_PRICES = (0.0, 0.02, 0.1, 0.25, 0.5, 1.0)
EARLY = (0.0, 0.005, 0.02, 0.05, 0.1)
"""How much earlier than they must copies in start, in parts of the step."""
PATIENCE = 300
"""Changes without improvement before the search ends."""


def follow(search: Search, plan: Plan) -> None:
    """Swap what a plan swaps, and keep what it keeps as long as there is room.

    Plans that run out of memory show what is worth the link; eviction on demand makes room.

    Args:
        search: the state, which is updated.
        plan: a solver's.
    """
    swapped = frozenset(t for t in search.decisions if plan.of(t) is Action.SWAP)
    kept = [t for t in search.decisions if plan.of(t) is Action.KEEP]
    for factor, distance in product(RELUCTANCE, DISTANCES):
        if search.done():
            return
        weights = dict.fromkeys(kept, factor)
        _try(search, Taste(1.0, distance, weights, swapped, PRICES[0]), by_solver=True)


def evict_with_copies(search: Search) -> None:
    """Try parts of the saved tensors to be swapped, and go on from the best choice known.

    Args:
        search: the state, which is updated.
    """
    ranked = _ranked(search)
    for share, distance, price in product(SHARES, DISTANCES, PRICES):
        if search.done():
            return
        _try(search, Taste(1.0, distance, swapped=_part(search, ranked, share), price=price))
    change_tastes(search)


def change_tastes(search: Search, seed: int = 0) -> None:
    """Change what is swapped and how evictions are chosen, a little at a time.

    Args:
        search: the state, which is updated.
        seed: of the choice of changes.
    """
    chance = random.Random(seed)
    idle = 0
    while search.taste is not None and idle < PATIENCE and not search.done():
        before = search.taste_ns
        _try(search, _changed(search, search.taste, chance))
        idle = 0 if search.taste_ns != before else idle + 1


def _try(search: Search, taste: Taste, *, by_solver: bool = False) -> None:
    """Simulate what a taste leads to, unless its re-executions alone take too long."""
    problem = search.problem
    program = run_on_demand(problem, taste)
    if program is None:
        return
    known = search.taste_ns
    if known is not None and problem.ideal_step_ns + rerun_ns(program) > known:
        return
    step_ns = search.judge_program(program, by_solver=by_solver).verdict.step_ns
    if step_ns is not None and (known is None or step_ns <= known):
        search.taste, search.taste_ns = taste, step_ns


def _ranked(search: Search) -> list[int]:
    """What may be swapped, the dearest to rebuild for its size first."""
    blocks, size = search.problem.blocks, search.problem.step.index.size_bytes

    def density(tensor: int) -> float:
        number = blocks.block_of[tensor]
        return float("inf") if number < 0 else blocks.blocks[number].duration_ns / size[tensor]

    return sorted(search.decisions, key=density, reverse=True)


def _part(search: Search, ranked: Sequence[int], share: float) -> frozenset[int]:
    """The first of the tensors that make up a part of all bytes."""
    size = search.problem.step.index.size_bytes
    room = share * float(sum(int(size[t]) for t in ranked))
    chosen = []
    for t in ranked:
        if size[t] <= room:
            chosen.append(t)
            room -= int(size[t])
    return frozenset(chosen)


def _changed(search: Search, taste: Taste, chance: random.Random) -> Taste:
    """A taste with another choice of what is swapped, other weights, or another use of the link."""
    tensors, may_go = search.problem.blocks.evictable, set(search.decisions)

    def marks() -> Taste:
        return replace(taste, swapped=taste.swapped ^ may_go.intersection(stretch(tensors, chance)))

    def exchange() -> Taste:
        marked, others = sorted(taste.swapped), sorted(may_go - taste.swapped)
        if not marked or not others:
            return taste
        return replace(
            taste, swapped=taste.swapped ^ {chance.choice(marked), chance.choice(others)}
        )

    def weights() -> Taste:
        return reweighted(taste, tensors, chance)

    def price() -> Taste:
        return replace(taste, price=chance.choice(MORE_PRICES))

    def lead() -> Taste:
        early_ns = int(chance.choice(EARLY) * search.problem.ideal_step_ns)
        return replace(taste, early_ns=early_ns)

    (change,) = chance.choices((marks, exchange, weights, price, lead), (8, 2, 8, 1, 1))
    return change()

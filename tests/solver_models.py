"""Models for tests of the solver layer; imports little, as processes of their own use them too."""

from __future__ import annotations

import random

from slackswap_opt.formulation.linear import LinearModel

MIB = 2**20


def eviction(seed: int, tensors: int) -> tuple[LinearModel, int]:
    """Keep, swap or recompute with costs of microseconds, and its least cost by trying all."""
    rng = random.Random(seed)
    sizes = [rng.randint(5, 64) * MIB for _ in range(tensors)]
    costs = [rng.randint(1, 40) * 1000 + rng.choice((0, 0, 137)) for _ in range(tensors)]
    room, link = sum(sizes) * rng.randint(30, 70) // 100, sum(sizes) * rng.randint(0, 30) // 100
    model = LinearModel()
    states = [(model.binary(), model.binary(), model.binary()) for _ in sizes]
    for (_, _, again), cost in zip(states, costs, strict=True):
        model.objective[again] = cost
    for state in states:
        model.equal([(1, x) for x in state], 1, "state")
    model.at_most(((m, keep) for m, (keep, _, _) in zip(sizes, states, strict=True)), room, "keep")
    model.at_most(((m, swap) for m, (_, swap, _) in zip(sizes, states, strict=True)), link, "swap")
    best = {(0, 0): 0}
    for size, cost in zip(sizes, costs, strict=True):
        following: dict[tuple[int, int], int] = {}
        for (kept, swapped), spent in best.items():
            options = ((size, 0, 0), (0, size, 0), (0, 0, cost))
            for more_kept, more_swapped, more in options:
                key = (kept + more_kept, swapped + more_swapped)
                if key[0] <= room and key[1] <= link:
                    following[key] = min(spent + more, following.get(key, 1 << 60))
        best = following
    return model, min(best.values())


def market_split(rows: int, columns: int, *, slack: bool) -> LinearModel:
    """Hard for its size: the solvers find no optimum in the time given."""
    rng = random.Random(5)
    model = LinearModel()
    x = [model.binary() for _ in range(columns)]
    for _ in range(rows):
        weights = [rng.randint(1, 99) for _ in x]
        terms = list(zip(weights, x, strict=True))
        if slack:
            over, under = (model.variable(10**4, cost=1000) for _ in range(2))
            terms += [(1, over), (-1, under)]
        model.equal(terms, sum(weights) // 2, "split")
    return model

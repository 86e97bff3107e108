"""A lower limit on a model's minimum over its integer points, with a proof for every leaf.

Branch and bound: the relaxation is solved, an integer variable at a fraction is fixed at 0 and at
1, and so on, the open node with the least limit first. Every node has a limit of its own, worked
out in exact integers from whatever multipliers the solver gave (`certified_minimum`), and never
less than its parent's. The leaves cover all integer points, so the least of their limits is one for
the model. A solver that stops early or lies makes the limit weaker, never wrong.
"""

from __future__ import annotations

import heapq
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackswap_opt.formulation._pulp import Relaxation, Relaxed
from slackswap_opt.formulation.linear import LinearModel, certainly_empty, certified_minimum

WHOLE = 1e-6
"""How far from whole a value counts as a fraction."""
CANDIDATES = 4
"""Variables that are tried before one is chosen to branch on."""


@dataclass(frozen=True)
class _Node:
    """An open node; nodes compare by limit, and by age where that is equal."""

    limit: int
    number: int
    fixed: Mapping[int, int]
    values: Sequence[float]

    def __lt__(self, other: _Node) -> bool:
        return (self.limit, self.number) < (other.limit, other.number)


class Branching:
    """A tree that can be grown on.

    Attributes:
        solved: relaxations so far.
        timed_out: whether the clock has ended anything, so that another run may prove more or less.
    """

    def __init__(self, model: LinearModel, weights: Mapping[int, int]) -> None:
        """Begin with no proof.

        Args:
            model: what to minimize; its objective is nowhere negative.
            weights: the variables that may be branched on, which are integers with bounds 0 and 1,
                and how much each of them decides.
        """
        self.solved = 0
        self.timed_out = False
        self._model, self._weights = model, weights
        self._open: list[_Node] = []
        self._closed: list[int] = []
        self._deadline = 0.0

    @property
    def minimum(self) -> int | None:
        """No integer point has a smaller objective; None: there are no points."""
        limits = [*self._closed, *(node.limit for node in self._open[:1])]
        return min(limits, default=None) if self.solved else 0

    def run(
        self,
        relaxation: Relaxation,
        *,
        enough: int,
        nodes: int,
        deadline: float,
        patient: int | None = None,
    ) -> None:
        """Grow the tree until its limit is enough, or cannot be improved, or there was enough work.

        Args:
            relaxation: of the model.
            enough: a limit that needs not be improved.
            nodes: most relaxations to solve, those of earlier runs included.
            deadline: when to stop, on the clock of `time.perf_counter`.
            patient: relaxations after which to stop if they brought the limit hardly nearer.
        """
        self._deadline = deadline
        if not self.solved:
            self._grow(relaxation, None, {})
        looked = (self.solved, self.minimum or 0)
        stuck = min(self._closed, default=enough)
        while self._open and self._open[0].limit < min(enough, stuck) and self.solved < nodes:
            if time.perf_counter() >= deadline:
                self.timed_out = True
                return
            if patient is not None and self.solved >= looked[0] + patient:
                now = self._open[0].limit
                if (now - looked[1]) * _HOPELESS < enough - now:
                    return
                looked = (self.solved, now)
            node = heapq.heappop(self._open)
            chosen = self._choice(relaxation, node)
            if chosen is None:  # a point of the model, and the best one
                self._closed.append(node.limit)
                return
            for value in (0, 1):
                self._grow(relaxation, node, {**node.fixed, chosen: value})
            stuck = min(self._closed, default=enough)

    def _grow(self, relaxation: Relaxation, parent: _Node | None, fixed: Mapping[int, int]) -> None:
        """Solve a new node and file it, unless it certainly has no points."""
        self.solved += 1
        relaxed = relaxation.solve(fixed, self._seconds_left())
        self.timed_out |= relaxed.timed_out
        limit = self._limit(parent, relaxed, fixed)
        if limit is None:
            return
        values: Sequence[float] | None = relaxed.values
        if values is None and parent is not None:
            values = parent.values  # not solved, or empty without a proof: branch all the same
        if values is None:
            self._closed.append(limit)
        else:
            heapq.heappush(self._open, _Node(limit, self.solved, fixed, values))

    def _limit(
        self, parent: _Node | None, relaxed: Relaxed, fixed: Mapping[int, int]
    ) -> int | None:
        """What is proven of a node: not less than of its parent; None: that it has no points."""
        known = parent.limit if parent else 0
        if relaxed.duals is None:
            return known
        if relaxed.values is None and certainly_empty(self._model, relaxed.duals, fixed):
            return None
        return max(known, certified_minimum(self._model, relaxed.duals, fixed))

    def _choice(self, relaxation: Relaxation, node: _Node) -> int | None:
        """The variable at a fraction that promises most; None if there is none."""
        away = {
            x: min(value, 1 - value) * weight
            for x, weight in self._weights.items()
            if x not in node.fixed and WHOLE < (value := node.values[x]) < 1 - WHOLE
        }
        likely = sorted(away, key=lambda x: (-away[x], x))[:CANDIDATES]
        if len(likely) < 2:
            return likely[0] if likely else None
        trials = [(x, value) for x in likely for value in (0, 1)]
        found = relaxation.trials(node.fixed, trials, self._seconds_left())
        if len(found) < len(trials):
            return likely[0]
        base = node.limit / 1000
        gains = {
            x: max(found[2 * n] - base, _LEAST) * max(found[2 * n + 1] - base, _LEAST)
            for n, x in enumerate(likely)
        }
        return max(likely, key=lambda x: gains[x])

    def _seconds_left(self) -> float:
        return max(_SOLVE_S, self._deadline - time.perf_counter())


_HOPELESS = 50
"""Going on is hopeless where so many times what was gained would not be enough."""
_SOLVE_S = 0.5
"""What every solve is given at least."""
_LEAST = 1e-3
"""Microseconds that count for a gain of nothing, so that the other side's decides."""

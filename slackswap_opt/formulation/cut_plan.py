"""Plans from the boundary model: at one operation, decide what is kept, swapped or rebuilt.

The boundary model with integer decisions is small, and on long steps its plans come out of the
simulator as it predicts them, but for two things that it cannot see: a rebuilt tensor whose
rebuilding reaches far back, so that much else must be rebuilt with it at once, and memory at
other operations. Narrow places limit the first, rows learned from out-of-memory verdicts the
second.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from slackswap_opt.formulation.boundary import CutModel, boundary_model
from slackswap_opt.plan import Action, Plan, Problem


@dataclass(frozen=True)
class LearnedRow:
    """sum of bytes over `kept` (if kept), `rebuilt` (if rebuilt), `leaving` (if swapped) <= room.

    Attributes:
        kept: tensors that hold memory at the operation if they are kept.
        rebuilt: tensors that held memory there because they were rebuilt early.
        leaving: tensors that are on the device until then, or on the way out, if they are swapped.
        room_bytes: what the rest left for them, and the link took out by then.
    """

    kept: tuple[int, ...]
    rebuilt: tuple[int, ...]
    leaving: tuple[int, ...]
    room_bytes: int


class CutPlanner:
    """The integer boundary model at one operation, and the plans that its solutions stand for.

    Args:
        problem: step, machine and budget.
        cut: the operation at whose start decisions are taken.
        narrow: tensors that may not be rebuilt, which ends chains of re-execution there.
        learned: memory at other operations.
    """

    def __init__(
        self,
        problem: Problem,
        cut: int,
        narrow: Collection[int] = (),
        learned: Sequence[LearnedRow] = (),
    ) -> None:
        self.problem, self.cut = problem, cut
        self.cut_model: CutModel = boundary_model(problem, cut, integer=True)
        self.model = self.cut_model.model
        for (t, _), x in self.cut_model.rebuild.items():
            if t in narrow or problem.blocks.block_of[t] < 0:
                self.model.fix(x, 0)
        for row in learned:
            self._learn(row)

    def _learn(self, row: LearnedRow) -> None:
        """Add a row; what the model does not decide is kept, and takes its part of the room."""
        size: list[int] = self.problem.step.index.size_bytes.tolist()
        decided = [t for t in row.kept if self._decides(t)]
        others = set(row.kept).difference(decided)
        always = sum(size[t] for t in others if self._otherwise(t) is Action.KEEP)
        terms = [(size[t], self.cut_model.keep[t]) for t in decided]
        for variables, tensors in (
            (self.cut_model.rebuild, row.rebuilt),
            (self.cut_model.swap, [t for t in row.leaving if t not in others]),
        ):
            terms += [
                (size[t], self._final(variables, t)) for t in tensors if self._has(variables, t)
            ]
        self.model.at_most(terms, row.room_bytes - always, "learned")

    def _decides(self, tensor: int) -> bool:
        """Whether the tensor is there at the cut, or is read by re-executions only."""
        live = self.problem.liveness
        over = bool(live.saved[tensor]) and live.last_access[tensor] < self.cut
        return tensor in self.cut_model.keep and not over

    def _version(self, tensor: int) -> int:
        return sum(op < self.cut for op in self.problem.step.index.writers[tensor]) - 1

    def _has(self, variables: Mapping[tuple[int, int], int], tensor: int) -> bool:
        return (tensor, self._version(tensor)) in variables

    def _final(self, variables: Mapping[tuple[int, int], int], tensor: int) -> int:
        return variables[tensor, self._version(tensor)]

    @cached_property
    def decisions(self) -> dict[int, tuple[int, ...]]:
        """By tensor, in order of production, its integer variables."""
        found: dict[int, list[int]] = defaultdict(list)
        for t, x in self.cut_model.keep.items():
            found[t].append(x)
        for (t, _), x in (*self.cut_model.swap.items(), *self.cut_model.rebuild.items()):
            found[t].append(x)
        first = self.problem.liveness.first_write
        return {t: tuple(found[t]) for t in sorted(found, key=lambda t: (int(first[t]), t))}

    @property
    def choices(self) -> list[int]:
        """All integer variables."""
        return [x for variables in self.decisions.values() for x in variables]

    def step_ns(self, values: Sequence[float]) -> float:
        """The step time that the model sees in a solution."""
        overhead = sum(cost * values[x] for x, cost in self.model.objective.items())
        return self.problem.ideal_step_ns + overhead

    def plan(self, values: Sequence[float]) -> Plan:
        """The actions that a solution stands for; what the cut does not see is kept or dropped."""
        keep, swap = self.cut_model.keep, self.cut_model.swap

        def action(tensor: int) -> Action:
            if tensor in keep and values[keep[tensor]] > 0.5:
                return Action.KEEP
            if self._has(swap, tensor) and values[self._final(swap, tensor)] > 0.5:
                return Action.SWAP
            return self._otherwise(tensor)

        return Plan({t: action(t) for t in self.problem.blocks.evictable})

    def _otherwise(self, tensor: int) -> Action:
        """What happens to a tensor that the model neither keeps nor swaps."""
        rebuilt, decided = self.problem.blocks.block_of[tensor] >= 0, self._decides(tensor)
        if self.problem.liveness.saved[tensor]:
            return Action.RECOMPUTE if rebuilt and decided else Action.KEEP
        return Action.DROP if rebuilt or decided else Action.KEEP


def narrow_tensors(problem: Problem, spacing: int) -> set[int]:
    """Tensors that cross the narrow places of the forward phase, about `spacing` operations apart.

    The width of a place between two operations is the number of bytes that later forward operations
    still read. From each narrow place the next one is the narrowest between half and one and a
    half spacings on.
    """
    index, live = problem.step.index, problem.liveness
    forward = int(np.flatnonzero(index.forward)[-1]) + 1
    change = np.zeros(index.operations + 1, dtype=np.int64)
    spans = {
        t: (int(live.first_write[t]), int(live.last_forward[t]))
        for t in problem.blocks.evictable
        if live.last_forward[t] > live.first_write[t]
    }
    for t, (first, last) in spans.items():
        change[first] += index.size_bytes[t]
        change[last] -= index.size_bytes[t]
    width = np.cumsum(change)[:forward]
    places = []
    place = 0
    while (begin := place + max(1, spacing // 2)) < forward - 1:
        end = min(forward - 1, begin + spacing)
        place = begin + int(width[begin:end].argmin())
        places.append(place)
    return {t for t, (first, last) in spans.items() if any(first <= p < last for p in places)}

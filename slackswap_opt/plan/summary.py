"""What a schedule amounts to, read from the schedule itself: one action per activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from slackswap_opt.plan.actions import Action
from slackswap_opt.plan.schedule import Schedule
from slackswap_opt.step import IndexedStep, Liveness, TrainingStep, liveness


def actions_of(
    step: TrainingStep, schedule: Schedule, live: Liveness | None = None
) -> dict[int, Action]:
    """The action that a schedule amounts to, for each activation.

    A tensor that comes back by a copy is swapped, whatever else happens to it; one that is rebuilt
    after it was freed is recomputed; one that no event reads after the forward phase is done
    with it is dropped.
    """
    index = step.index
    live = live or liveness(step)
    events = _Events.of(index, schedule)
    copied_in = {copy.tensor for copy in schedule.copies_in}
    found: dict[int, Action] = {}
    for tensor in range(index.tensors):
        if not live.activation[tensor]:
            continue
        if not events.reads_after_forward(index, live, tensor):
            found[tensor] = Action.DROP
        elif tensor in copied_in:
            found[tensor] = Action.SWAP
        elif events.rebuilds(index, tensor):
            found[tensor] = Action.RECOMPUTE
        else:
            found[tensor] = Action.KEEP
    return found


@dataclass(frozen=True)
class _Events:
    """Events of each operation, and the first free of each tensor."""

    of_operation: Mapping[int, list[int]]
    first_free: Mapping[int, int]

    @classmethod
    def of(cls, index: IndexedStep, schedule: Schedule) -> _Events:
        runs: dict[int, list[int]] = {op: [] for op in range(index.operations)}
        for event, op in enumerate(schedule.compute):
            runs[op].append(event)
        freed: dict[int, int] = {}
        for event, tensors in enumerate(schedule.frees):
            for tensor in tensors:
                freed.setdefault(tensor, event)
        return cls(runs, freed)

    def reads_after_forward(self, index: IndexedStep, live: Liveness, tensor: int) -> bool:
        done = self.of_operation[int(live.last_forward[tensor])][0]
        own = {op for op in index.writers[tensor] if index.forward[op]}
        return any(
            self.of_operation[op][-1] > done for op in index.readers[tensor] if op not in own
        )

    def rebuilds(self, index: IndexedStep, tensor: int) -> bool:
        freed = self.first_free.get(tensor)
        if freed is None:
            return False
        return self.of_operation[index.writers[tensor][0]][-1] > freed

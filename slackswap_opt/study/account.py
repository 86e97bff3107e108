"""What a schedule does with each activation, read from the schedule and not from a plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackswap_opt.plan import Action, Schedule
from slackswap_opt.step import IndexedStep, Liveness, TrainingStep, liveness

_NUMBER = re.compile(r"\d+")


@dataclass
class Share:
    """Saved bytes by what happens to them."""

    kept_bytes: int = 0
    swapped_bytes: int = 0
    recomputed_bytes: int = 0


@dataclass(frozen=True)
class Account:
    """What becomes of the saved activations.

    Attributes:
        actions: by tensor index, for every activation.
        total: all saved activations; the three add up to the saved bytes.
        by_layer_kind: the same by layer kind (the label of the producer, numbers as `*`).
        recompute_ns: time of all re-executions.
    """

    actions: Mapping[int, Action]
    total: Share
    recompute_ns: int
    by_layer_kind: Mapping[str, Share] = field(default_factory=dict)


def account(step: TrainingStep, schedule: Schedule) -> Account:
    """Add up what a schedule keeps, swaps and recomputes."""
    index, live = step.index, liveness(step)
    actions = actions_of(step, schedule, live)
    total, kinds = Share(), defaultdict[str, Share](Share)
    for tensor, action in actions.items():
        if not live.saved[tensor]:
            continue
        kind = layer_kind(step.operations[int(live.first_write[tensor])].layer)
        for share in (total, kinds[kind]):
            size = int(index.size_bytes[tensor])
            if action is Action.SWAP:
                share.swapped_bytes += size
            elif action is Action.RECOMPUTE:
                share.recomputed_bytes += size
            else:
                share.kept_bytes += size
    recompute_ns = sum(int(index.duration_ns[op]) for op in schedule.reexecutions())
    return Account(actions, total, recompute_ns, dict(kinds))


def layer_kind(label: str) -> str:
    """A layer label with its numbers replaced: `layer.3` is of the kind `layer.*`."""
    return _NUMBER.sub("*", label) or "(no layer)"


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

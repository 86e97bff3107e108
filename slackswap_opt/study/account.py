"""What a schedule does with each activation, read from the schedule and not from a plan."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackswap_opt.plan import Action, Schedule, actions_of
from slackswap_opt.step import TrainingStep, liveness

NO_LAYER = "(without a layer)"
"""What stands for the label of operations without one."""
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
    return _NUMBER.sub("*", label) or NO_LAYER

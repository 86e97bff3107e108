"""A plan: one action per activation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum


class Action(StrEnum):
    """What happens to an activation between the forward phase and its first later reader."""

    KEEP = "keep"
    SWAP = "swap"
    RECOMPUTE = "recompute"
    DROP = "drop"


@dataclass(frozen=True)
class Plan:
    """A decision for each evictable tensor; what it does not name is kept.

    A tensor that nothing needs later is dropped whatever its action says. One that is only read
    by re-executions is kept or swapped for them if its action says so, and otherwise rebuilt.

    Attributes:
        actions: by tensor index.
    """

    actions: Mapping[int, Action]

    def of(self, tensor: int) -> Action:
        """The action of a tensor."""
        return self.actions.get(tensor, Action.KEEP)

"""An independent check of a plan in a peer's own cost and memory model.

Nothing of the package's lowering, models or simulator is used: only the order of computations and
copies counts, and what is resident follows from the peer's rule: "during operation k, resident =
kept checkpoints + everything computed this stage and still needed + k's own output". A value is
still needed if something reads it before it is made again.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

from benchmarks.peers_instances import Case, Instance
from slackswap_opt import Schedule


class ReplayError(Exception):
    """The plan is no plan for the peer's instance."""


@dataclass(frozen=True)
class Replay:
    """What a plan costs and needs, in the peer's units.

    Attributes:
        cost: all computations, and all copies at their prices.
        peak: most memory during any computation.
        runs: how often each operation runs.
    """

    cost: Fraction
    peak: Fraction
    runs: tuple[int, ...]


@dataclass(frozen=True)
class _Action:
    kind: Literal["run", "out", "in"]
    op: int


def replay(instance: Instance, case: Case, schedule: Schedule) -> Replay:
    """Replay the order of a plan's computations and copies.

    Raises:
        ReplayError: if it reads what is not there, skips or reorders an operation, or copies where
            the case has no copies.
    """
    actions = list(_actions(schedule))
    runs = [0] * len(instance.ops)
    for action in actions:
        if action.kind == "run":
            if runs[action.op] == 0 and not all(runs[: action.op]):
                raise ReplayError(f"operation {action.op} runs before an earlier one")
            runs[action.op] += 1
    if not all(runs):
        raise ReplayError(f"operation {runs.index(0)} never runs")
    return Replay(_cost(instance, case, actions), _peak(instance, actions), tuple(runs))


def _actions(schedule: Schedule) -> Iterator[_Action]:
    """Computations in order, each followed by the copies out and then in that it allows."""
    outs, backs = list(schedule.copies_out), list(schedule.copies_in)
    for event, op in enumerate(schedule.compute):
        yield _Action("run", op)
        yield from (_Action("out", copy.tensor) for copy in outs if copy.after == event)
        yield from (_Action("in", copy.tensor) for copy in backs if copy.after == event)
    if any(copy.after < 0 for copy in (*outs, *backs)):
        raise ReplayError("a copy comes before everything else")


def _cost(instance: Instance, case: Case, actions: list[_Action]) -> Fraction:
    total = Fraction(0)
    for action in actions:
        op = instance.ops[action.op]
        if action.kind == "run":
            total += op.time
        elif case.prices is None:
            raise ReplayError("a copy in a case without copies")
        else:
            total += op.size * (case.prices.out if action.kind == "out" else case.prices.back)
    return total


def _peak(instance: Instance, actions: list[_Action]) -> Fraction:
    """Backwards: a value is needed from its making to its last reading."""
    needed: set[int] = set()
    on_host_for: set[int] = set()
    peak = Fraction(0)
    for action in reversed(actions):
        if action.kind == "out":
            needed.add(action.op)
            on_host_for.discard(action.op)
            continue
        needed.discard(action.op)
        if action.kind == "in":
            on_host_for.add(action.op)
            continue
        inputs = set(instance.ops[action.op].reads)
        resident = needed | inputs | {action.op}
        peak = max(peak, sum((instance.ops[x].size for x in resident), Fraction(0)))
        needed |= inputs
    if needed:
        raise ReplayError(f"the output of operation {min(needed)} is read before it is there")
    if on_host_for:
        raise ReplayError(f"operation {min(on_host_for)}'s output comes back but never left")
    return peak

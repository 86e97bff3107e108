"""What is asked of a solver and what it says: plain types that every solver's module shares."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum


class Outcome(StrEnum):
    """Why the solver stopped, as far as it can be believed."""

    OPTIMAL = "optimal"
    STOPPED = "stopped with an incumbent"
    NOTHING = "stopped without an incumbent"
    INFEASIBLE = "called infeasible"
    FAILED = "failed"


@dataclass(frozen=True)
class Limits:
    """When a solve may stop.

    Attributes:
        seconds: wall-clock limit.
        gap_ns: absolute gap of the objective at which it may stop.
        nodes: limit on branch-and-bound nodes, a measure of work that does not depend on the clock;
            None for no limit.
    """

    seconds: float
    gap_ns: int = 0
    nodes: int | None = None


@dataclass(frozen=True)
class Answer:
    """What a solver said, its rows checked.

    Attributes:
        outcome: why it stopped.
        values: one per variable, None unless there is an incumbent; those of integer variables are
            whole.
        duals: one per row (LPs only), in nanoseconds per row unit; None if it gave none.
        solver: name and version.
        seconds: wall time, writing and reading included.
        timed_out: whether the clock stopped it, so that another run may answer differently.
        note: the solver's complaint where it failed.
    """

    outcome: Outcome
    values: tuple[float, ...] | None
    duals: tuple[float, ...] | None
    solver: str
    seconds: float
    timed_out: bool = False
    note: str = ""


@dataclass(frozen=True)
class Reply:
    """What came back from a solver's process, in the numbers of the model that it was given.

    Attributes:
        outcome: why it stopped.
        solver: name and version.
        values: by column; a column that is not there is 0.
        duals: by row; a row that is not there has the multiplier 0.
        timed_out: whether it says that the clock stopped it.
        note: its complaint where it failed.
    """

    outcome: Outcome
    solver: str
    values: Mapping[int, float] = field(default_factory=dict)
    duals: Mapping[int, float] = field(default_factory=dict)
    timed_out: bool = False
    note: str = ""

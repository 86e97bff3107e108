"""Tensors that no operation reads: what they cost in memory while they are written."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from slackswap_opt.plan import Problem
from slackswap_opt.step import working_set_bytes


@dataclass(frozen=True)
class Unread:
    """Tensors that are written and never read, static ones apart.

    Attributes:
        tensors: how many there are.
        size_bytes: their sum.
        largest: name of the largest one; empty if there are none.
        writer: name of the operation that writes it.
        raises_peak_bytes: by how much the ideal peak would fall without all of them.
        raises_least_bytes: by how much the largest working set of an operation would fall.
    """

    tensors: int
    size_bytes: int
    largest: str
    writer: str
    raises_peak_bytes: int
    raises_least_bytes: int


def unread(problem: Problem) -> Unread:
    """What is never read in a problem's step; the problem's budget plays no part."""
    step, live = problem.step, problem.liveness
    index = step.index
    found = [t for t in range(index.tensors) if live.first_write[t] >= 0 and not index.readers[t]]
    if not found:
        return Unread(0, 0, "", "", 0, 0)
    held, written = np.zeros((2, index.operations), dtype=np.int64)
    for tensor in found:
        size = index.size_bytes[tensor]
        held[live.first_write[tensor] : live.last_access[tensor] + 1] += size
        written[list(index.writers[tensor])] += size
    needed = working_set_bytes(step)
    largest = max(found, key=lambda t: (index.size_bytes[t], -t))
    return Unread(
        tensors=len(found),
        size_bytes=sum(int(index.size_bytes[t]) for t in found),
        largest=step.tensors[largest].name,
        writer=step.operations[int(live.first_write[largest])].name,
        raises_peak_bytes=live.ideal_peak_bytes - int((live.memory_bytes - held).max()),
        raises_least_bytes=int(needed.max() - (needed - written).max()),
    )

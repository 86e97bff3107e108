"""When each tensor lives if everything is kept: the ideal step and its memory."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.indexed import IndexedStep


@dataclass(frozen=True)
class Liveness:
    """Lifetimes in the ideal step, in which everything is kept from producer to last reader.

    Positions are operation indices; tensors that no operation writes (static or unused ones)
    have `first_write` -1.

    Attributes:
        first_write: (T,) the producer.
        last_write: (T,) the last in-place writer (the producer where there is none).
        last_forward: (T,) the last forward operation that writes or reads it, -1 if none does.
        first_later: (T,) the first later reader, after the forward phase has done with the
            tensor: the first non-forward reader; -1 where there is none.
        last_access: (T,) the last operation of any phase that touches it.
        memory_bytes: (N,) bytes held while each operation runs, its workspace included.
        saved: (T,) whether it is an activation (written by a forward operation) that a later
            operation reads.
        activation: (T,) whether a forward operation writes it.
    """

    first_write: NDArray[np.int64]
    last_write: NDArray[np.int64]
    last_forward: NDArray[np.int64]
    first_later: NDArray[np.int64]
    last_access: NDArray[np.int64]
    memory_bytes: NDArray[np.int64]
    saved: NDArray[np.bool_]
    activation: NDArray[np.bool_]

    @property
    def ideal_peak_bytes(self) -> int:
        """Largest sum of all non-static bytes over the ideal step."""
        return int(self.memory_bytes.max())

    @property
    def peak_operation(self) -> int:
        """The first operation at which the ideal step reaches its peak."""
        return int(self.memory_bytes.argmax())


def liveness(step: TrainingStep) -> Liveness:
    """Lifetimes and memory of the ideal step."""
    index = step.index
    count = index.tensors
    first_write = np.full(count, -1, dtype=np.int64)
    last_write, last_forward = first_write.copy(), first_write.copy()
    first_later, last_access = first_write.copy(), first_write.copy()
    for tensor in range(count):
        writers, readers = index.writers[tensor], index.readers[tensor]
        if not writers:
            continue
        first_write[tensor], last_write[tensor] = writers[0], writers[-1]
        touched = sorted({*writers, *readers})
        last_access[tensor] = touched[-1]
        last_forward[tensor] = max((op for op in touched if index.forward[op]), default=-1)
        first_later[tensor] = min((op for op in readers if not index.forward[op]), default=-1)
    written = first_write >= 0
    activation = np.zeros(count, dtype=bool)
    activation[written] = index.forward[first_write[written]]
    return Liveness(
        first_write=first_write,
        last_write=last_write,
        last_forward=last_forward,
        first_later=first_later,
        last_access=last_access,
        memory_bytes=_ideal_memory(index, first_write, last_access),
        saved=activation & (first_later >= 0),
        activation=activation,
    )


def ideal_step_ns(step: TrainingStep) -> int:
    """Duration of the ideal step: no memory limit, everything kept, optimizer included."""
    return int(step.index.duration_ns.sum())


def working_set_bytes(step: TrainingStep) -> NDArray[np.int64]:
    """(N,) bytes that each operation needs at once: inputs, outputs and workspace.

    The largest of them is a proven lower limit on any budget: no schedule runs that operation
    with less.
    """
    index = step.index
    needed = index.workspace_bytes.copy()
    for op in range(index.operations):
        touched = {tensor for tensor, _ in index.reads[op] + index.writes[op]}
        needed[op] += sum(int(index.size_bytes[tensor]) for tensor in touched)
    return needed


def _ideal_memory(
    index: IndexedStep, first_write: NDArray[np.int64], last_access: NDArray[np.int64]
) -> NDArray[np.int64]:
    change = np.zeros(index.operations + 1, dtype=np.int64)
    written = first_write >= 0
    np.add.at(change, first_write[written], index.size_bytes[written])
    np.subtract.at(change, last_access[written] + 1, index.size_bytes[written])
    return np.cumsum(change[:-1]) + index.workspace_bytes

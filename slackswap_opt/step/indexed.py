"""The step as integers: what planners, bounds and the simulator compute with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.step.model import Operation, Phase, Tensor

Access = tuple[int, int]
"""A tensor index and a version."""


@dataclass(frozen=True)
class IndexedStep:
    """Operations are 0..N-1 in execution order, tensors 0..T-1 (static ones included).

    Attributes:
        duration_ns: (N,) int64.
        workspace_bytes: (N,) int64.
        size_bytes: (T,) int64, device bytes held.
        transfer_bytes: (T,) int64, bytes moved by a copy.
        static: (T,) bool.
        reads: per operation, the non-static values it reads.
        writes: per operation, the values it writes.
        forward: (N,) bool, whether the operation is in the forward phase.
        recomputable: (N,) bool.
    """

    duration_ns: NDArray[np.int64]
    workspace_bytes: NDArray[np.int64]
    size_bytes: NDArray[np.int64]
    transfer_bytes: NDArray[np.int64]
    static: NDArray[np.bool_]
    reads: tuple[tuple[Access, ...], ...]
    writes: tuple[tuple[Access, ...], ...]
    forward: NDArray[np.bool_]
    recomputable: NDArray[np.bool_]

    @classmethod
    def of(cls, operations: Sequence[Operation], tensors: Sequence[Tensor]) -> IndexedStep:
        """Index a validated step."""
        at = {tensor.name: index for index, tensor in enumerate(tensors)}
        static = np.array([t.static for t in tensors], dtype=bool)
        return cls(
            duration_ns=np.array([op.duration_ns for op in operations], dtype=np.int64),
            workspace_bytes=np.array([op.workspace_bytes for op in operations], dtype=np.int64),
            size_bytes=np.array([t.size_bytes for t in tensors], dtype=np.int64),
            transfer_bytes=np.array([t.transfer_bytes for t in tensors], dtype=np.int64),
            static=static,
            reads=tuple(
                tuple((at[v.tensor], v.version) for v in op.reads if not static[at[v.tensor]])
                for op in operations
            ),
            writes=tuple(tuple((at[v.tensor], v.version) for v in op.writes) for op in operations),
            forward=np.array([op.phase is Phase.FORWARD for op in operations], dtype=bool),
            recomputable=np.array([op.recomputable for op in operations], dtype=bool),
        )

    @property
    def operations(self) -> int:
        """Number of operations."""
        return len(self.reads)

    @property
    def tensors(self) -> int:
        """Number of tensors, static ones included."""
        return len(self.size_bytes)

    @cached_property
    def touches(self) -> tuple[tuple[int, ...], ...]:
        """Per operation, the tensors that it reads or writes, each once."""
        return tuple(
            tuple(dict.fromkeys(tensor for tensor, _ in (*reads, *writes)))
            for reads, writes in zip(self.reads, self.writes, strict=True)
        )

    @cached_property
    def writers(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor, the operations that write it, by version."""
        found: list[list[tuple[int, int]]] = [[] for _ in range(self.tensors)]
        for op, values in enumerate(self.writes):
            for tensor, version in values:
                found[tensor].append((version, op))
        return tuple(tuple(op for _, op in sorted(writes)) for writes in found)

    @cached_property
    def readers(self) -> tuple[tuple[int, ...], ...]:
        """Per tensor, the operations that read any version of it, in execution order."""
        found: list[list[int]] = [[] for _ in range(self.tensors)]
        for op, values in enumerate(self.reads):
            for tensor in dict.fromkeys(tensor for tensor, _ in values):
                found[tensor].append(op)
        return tuple(map(tuple, found))

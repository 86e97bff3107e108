"""The vocabulary of a training step: operations that read and write versions of tensors.

A *tensor* here is a storage: one block of device memory, whatever number of names or views it
has. An operation that writes in place makes a new *version* of a storage. What operations read
and write are therefore *values*: a storage at a version, written `x` (version 0) or `x@1`.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class Phase(StrEnum):
    """The part of the step an operation belongs to."""

    FORWARD = "forward"
    BACKWARD = "backward"
    OPTIMIZER = "optimizer"


@dataclass(frozen=True, slots=True, order=True)
class Value:
    """A storage at one version: what an operation reads or writes.

    Attributes:
        tensor: name of the storage.
        version: 0 after the first write, one more after each in-place write.
    """

    tensor: str
    version: int = 0

    def __str__(self) -> str:
        return self.tensor if self.version == 0 else f"{self.tensor}@{self.version}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """One storage.

    Attributes:
        name: unique in its step.
        size_bytes: device memory that the storage holds.
        transfer_bytes: bytes that cross the link when it is swapped (a view of part of a storage
            or an expanded tensor moves a different number than it holds).
        static: parameters, their gradients, optimizer state and batch inputs: always on the
            device, outside of the activation budget, never planned.
        aliases: further names (views) of the same storage.
        samples: equal slices along the batch that the storage is made of, one after the other, so
            that it can be held in parts of whole samples; 0 if it has none or that is not known.
            Never for parameters, their gradients and losses.
    """

    name: str
    size_bytes: int
    transfer_bytes: int
    static: bool = False
    aliases: tuple[str, ...] = ()
    samples: int = 0

    @classmethod
    def of(cls, name: str, size_bytes: int, *, static: bool = False, samples: int = 0) -> Tensor:
        """A plain tensor, which moves as many bytes as it holds."""
        return cls(name, size_bytes, size_bytes, static, samples=samples)


@dataclass(frozen=True, slots=True)
class Operation:
    """One node of the step.

    Attributes:
        name: unique in its step.
        phase: forward, backward or optimizer.
        duration_ns: time on the compute stream, in integer nanoseconds.
        reads: values that must be on the device while it runs.
        writes: values it produces; version 0 allocates the storage, a higher version overwrites
            the version before it in place.
        workspace_bytes: scratch memory held only while it runs.
        layer: free label that groups operations ("layer.3"); no planner depends on it for
            correctness, the layer-wise baselines use it.
        recomputable: whether it may run again. False for collectives, data-dependent shapes and
            random generators whose state is not saved.
        random: it draws random numbers. If it is also recomputable, its generator state is saved
            and restored, so that a re-execution draws the same ones.
        per_sample: it works on the samples of a batch one by one, so that it can run on some of
            them: a sample of what it writes depends on that sample of each input with samples,
            and on inputs without; its time and its workspace are in proportion to the samples.
            False for what sums over samples (gradients of parameters, losses, statistics of a
            batch), and where it is not known.
    """

    name: str
    phase: Phase
    duration_ns: int
    reads: tuple[Value, ...] = ()
    writes: tuple[Value, ...] = ()
    workspace_bytes: int = 0
    layer: str = ""
    recomputable: bool = True
    random: bool = False
    per_sample: bool = False

    @property
    def in_place(self) -> bool:
        """Whether it overwrites a storage that already holds a version."""
        return any(value.version > 0 for value in self.writes)

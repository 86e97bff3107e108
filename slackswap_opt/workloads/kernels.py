"""Work of the kernels that a transformer is made of, and the sizes they share."""

from __future__ import annotations

from dataclasses import dataclass

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.workloads.describe import ELEMENT_BYTES, Workload

STATISTIC_BYTES = 4
"""Statistics of norms and of softmax are fp32 on a GPU, whatever the activations are."""
MASK_BYTES = 1
"""A dropout mask holds one byte per element."""
INDEX_BYTES = 8
"""Token indices are 64-bit integers."""


@dataclass(frozen=True)
class Sizes:
    """Sizes of one device's shard.

    Attributes:
        tokens: tokens per device and step.
        element: bytes of an activation's element.
        width: features of the residual stream, never sharded.
        heads: query heads on this device.
        kv_heads: key and value heads on this device.
        head_dim: features of a head.
        inner: inner features of the feed-forward part on this device.
        vocabulary: columns of the output on this device.
        loss_tokens: positions that enter the loss.
    """

    tokens: int
    element: int
    width: int
    heads: int
    kv_heads: int
    head_dim: int
    inner: int
    vocabulary: int
    loss_tokens: int

    @classmethod
    def of(cls, workload: Workload) -> Sizes:
        """The sizes of a workload."""
        network, training = workload.architecture, workload.training
        degree = workload.tensor_parallel.degree
        return cls(
            tokens=training.batch * training.sequence,
            element=ELEMENT_BYTES[training.dtype],
            width=network.width,
            heads=network.heads // degree,
            kv_heads=network.key_heads // degree,
            head_dim=network.features,
            inner=network.feed_forward // degree,
            vocabulary=-(-network.vocabulary // degree),
            loss_tokens=training.batch * (training.loss_positions or training.sequence),
        )

    @property
    def query_width(self) -> int:
        """Features of all queries on this device."""
        return self.heads * self.head_dim

    @property
    def kv_width(self) -> int:
        """Features of all keys (or all values) on this device."""
        return self.kv_heads * self.head_dim

    def stream_bytes(self, features: int, tokens: int | None = None) -> int:
        """Bytes of an activation with this many features per token."""
        return (self.tokens if tokens is None else tokens) * features * self.element


def matmul(rows: int, inner: int, columns: int, element: int, dtype: str) -> Kernel:
    """A matrix product, each operand read once and the result written once."""
    moved = (rows * inner + inner * columns + rows * columns) * element
    return Kernel(2.0 * rows * inner * columns, moved, dtype)


def pointwise(elements: int, moved_bytes: int, flops_per_element: float = 1.0) -> Kernel:
    """A kernel that does little arithmetic per element it moves."""
    return Kernel(flops_per_element * elements, moved_bytes)

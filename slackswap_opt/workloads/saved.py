"""Which activations a step saves, tensor by tensor."""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass

from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Phase

STATISTICS = frozenset({"mean", "rstd", "logsumexp"})
"""Last parts of the names of the small fp32 tensors that published formulas leave out."""


@dataclass(frozen=True)
class SavedTensor:
    """One activation that the backward phase reads.

    Attributes:
        name: of the tensor.
        size_bytes: of its storage.
        layer: of the forward operation that wrote it.
        readers: names of the backward operations that read it.
    """

    name: str
    size_bytes: int
    layer: str
    readers: tuple[str, ...]

    @property
    def statistic(self) -> bool:
        """Whether it is one of the small statistics of a norm, of attention or of the loss."""
        return self.name.rsplit(".", 1)[-1] in STATISTICS


def saved_tensors(step: TrainingStep) -> tuple[SavedTensor, ...]:
    """Every saved activation, in order of its producer."""
    size = {tensor.name: tensor.size_bytes for tensor in step.tensors if not tensor.static}
    readers: dict[str, list[str]] = defaultdict(list)
    for op in step.operations:
        if op.phase is not Phase.FORWARD:
            for value in op.reads:
                readers[value.tensor].append(op.name)
    return tuple(
        SavedTensor(value.tensor, size[value.tensor], op.layer, tuple(readers[value.tensor]))
        for op in step.operations
        if op.phase is Phase.FORWARD
        for value in op.writes
        if readers[value.tensor]
    )


def saved_by_layer(step: TrainingStep) -> dict[str, tuple[SavedTensor, ...]]:
    """Saved activations by the layer of the last backward operation that reads them.

    A layer's input thus counts with that layer, as in published formulas, and not with the layer
    before, which wrote it.
    """
    layer_of = {op.name: op.layer for op in step.operations}
    groups: dict[str, list[SavedTensor]] = defaultdict(list)
    for tensor in saved_tensors(step):
        groups[layer_of[tensor.readers[-1]]].append(tensor)
    return {layer: tuple(tensors) for layer, tensors in groups.items()}

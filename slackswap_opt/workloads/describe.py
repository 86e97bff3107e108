"""What a workload file says: an architecture, how it is trained, how it is sharded."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from slackswap_opt.errors import InputError
from slackswap_opt.resources import validated

Whole = Annotated[int, Field(ge=1)]
Probability = Annotated[float, Field(ge=0, lt=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]

DType = Literal["bf16", "fp16", "tf32", "fp32"]

ELEMENT_BYTES: dict[str, int] = {"bf16": 2, "fp16": 2, "tf32": 4, "fp32": 4}
"""Bytes per stored element; tf32 is a way of multiplying fp32 numbers."""


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class Architecture(_Table):
    """The network.

    Attributes:
        layers: number of transformer layers.
        width: features of the residual stream.
        heads: query heads.
        kv_heads: key and value heads; fewer than `heads` is grouped-query attention.
        head_dim: features of a head; `width / heads` if left out.
        feed_forward: inner features of the feed-forward part.
        activation: `gelu` (two matrices) or `swiglu` (gate, up and down).
        norm: `layernorm` or `rmsnorm`.
        norm_position: `pre` normalizes what enters each part, `post` the sum that leaves it.
        causal: whether a position attends only to those before it.
        positions: `learned` is a table added to the embedding; `rotary` turns queries and keys in
            each layer; `alibi` and `none` cost nothing outside of the attention kernel.
        projections: `joint` computes queries, keys and values in one product and one storage.
        bias: whether linear maps add a bias.
        vocabulary: rows of the embedding and columns of the output.
        tied_embeddings: whether the output map shares the embedding's parameters.
        head_transform: BERT's dense, gelu and norm in front of the output map.
        embedding_norm: whether the embedding is normalized (and dropped out), as in BERT.
        dropout: probability, at BERT's and GPT's places: attention, both residual branches,
            embedding.
        max_positions: rows of the learned table; the sequence length if left out.
    """

    layers: Whole
    width: Whole
    heads: Whole
    kv_heads: Whole | None = None
    head_dim: Whole | None = None
    feed_forward: Whole
    activation: Literal["gelu", "swiglu"]
    norm: Literal["layernorm", "rmsnorm"]
    norm_position: Literal["pre", "post"] = "pre"
    causal: bool
    positions: Literal["learned", "rotary", "alibi", "none"]
    projections: Literal["joint", "separate"]
    bias: bool
    vocabulary: Whole
    tied_embeddings: bool
    head_transform: bool = False
    embedding_norm: bool = False
    dropout: Probability = 0.0
    max_positions: Whole | None = None

    @model_validator(mode="after")
    def _consistent(self) -> Architecture:
        if self.head_dim is None and self.width % self.heads:
            raise ValueError(
                f"width is {self.width}, not a multiple of heads ({self.heads}); change one or "
                "give head_dim"
            )
        if self.heads % self.key_heads:
            raise ValueError(f"heads is {self.heads}, expected a multiple of kv_heads")
        if self.projections == "joint" and self.positions == "rotary":
            raise ValueError(
                "projections is 'joint', but rotary positions give queries and keys storages of "
                "their own; use projections = 'separate'"
            )
        if self.projections == "joint" and self.key_heads != self.heads:
            raise ValueError("kv_heads differs from heads; use projections = 'separate'")
        return self

    @property
    def key_heads(self) -> int:
        """Key and value heads."""
        return self.heads if self.kv_heads is None else self.kv_heads

    @property
    def features(self) -> int:
        """Features of one head."""
        return self.width // self.heads if self.head_dim is None else self.head_dim


class Training(_Table):
    """How it is trained.

    Attributes:
        sequence: tokens per sequence.
        batch: sequences per device and step.
        dtype: type of activations and of the parameters used in products.
        kernels: `eager` is one kernel per framework call, as PyTorch runs without a compiler;
            `fused` has one kernel each for a norm, rotary positions, bias + dropout + residual
            sum, the gated product and the loss.
        attention: `fused` never stores scores (FlashAttention and its kin); `stored` does.
        loss_positions: positions per sequence that enter the loss; all if left out.
        accumulation: micro-batches per update. The step is then the average micro-batch: its share
            of the optimizer's work, and the sum of its gradients of parameters with earlier ones.
        optimizer: `adamw` with fp32 master parameters and states, or `none`.
        optimizer_shards: devices that share the optimizer's work evenly (sharded data parallel).
    """

    sequence: Whole
    batch: Whole
    dtype: DType
    kernels: Literal["eager", "fused"]
    attention: Literal["fused", "stored"]
    loss_positions: Whole | None = None
    accumulation: Whole = 1
    optimizer: Literal["adamw", "none"] = "adamw"
    optimizer_shards: Whole = 1


class TensorParallel(_Table):
    """One device's shard of a tensor-parallel group.

    The attention heads, the inner features of the feed-forward part and the vocabulary are split
    evenly; norms, residual sums and dropout on the residual stream are repeated on each device.
    The group sums partial results with an all-reduce after the attention's output map and after
    the feed-forward part (forward), and in front of each (backward).

    Attributes:
        degree: devices in the group.
        all_reduce_bytes_per_s: bus bandwidth of an all-reduce; one of N bytes takes
            2 (degree - 1) / degree x N / rate.
        all_reduce_latency_ns: fixed time of a collective.
    """

    degree: Whole = 1
    all_reduce_bytes_per_s: Positive = 230e9
    all_reduce_latency_ns: Annotated[int, Field(ge=0)] = 20_000


class Workload(_Table):
    """A whole workload file.

    Attributes:
        description: one line for tables.
        architecture: the network.
        training: how it is trained.
        tensor_parallel: how it is sharded; one device if left out.
        notes: what a reader must know, one sentence each; handed on to the step.
        sources: where the figures come from, by table or field.
        name: what tables call it; the file's name without its suffix if left out.
    """

    description: str
    architecture: Architecture
    training: Training
    tensor_parallel: TensorParallel = TensorParallel()
    notes: tuple[str, ...] = Field(default=(), strict=False)
    sources: dict[str, str] = {}
    name: str = ""

    @model_validator(mode="after")
    def _divisible(self) -> Workload:
        degree, network = self.tensor_parallel.degree, self.architecture
        for field, count in (
            ("heads", network.heads),
            ("kv_heads", network.key_heads),
            ("feed_forward", network.feed_forward),
        ):
            if count % degree:
                raise ValueError(
                    f"architecture.{field} is {count}, expected a multiple of "
                    f"tensor_parallel.degree ({degree})"
                )
        if degree > 1 and network.norm_position == "post":
            raise ValueError(
                "tensor_parallel.degree is above 1, which is not modelled with "
                "architecture.norm_position 'post'; use 'pre' or degree = 1"
            )
        positions = self.training.loss_positions
        if positions is not None and positions > self.training.sequence:
            raise ValueError(
                f"training.loss_positions is {positions}, above the sequence length "
                f"({self.training.sequence})"
            )
        return self


def with_changes(workload: Workload, **changes: object) -> Workload:
    """The workload with other values for some fields, validated again.

    Args:
        workload: where to start from.
        changes: fields of any table by their plain names (`batch=8`, `layers=2`, `degree=4`);
            None leaves a field as it is.

    Raises:
        InputError: for a field that no table has, or values that do not go together.
    """
    tables: dict[str, type[BaseModel]] = {
        "architecture": Architecture,
        "training": Training,
        "tensor_parallel": TensorParallel,
    }
    data = workload.model_dump(exclude_unset=True)
    for field, value in changes.items():
        if value is None:
            continue
        table = next((name for name, model in tables.items() if field in model.model_fields), None)
        if table is None:
            known = sorted(f for model in tables.values() for f in model.model_fields)
            raise InputError(
                f"{field}: is not a field of a workload; use one of: {', '.join(known)}",
                where=workload.name,
            )
        data.setdefault(table, {})[field] = value
    return validated(Workload, data, workload.name)

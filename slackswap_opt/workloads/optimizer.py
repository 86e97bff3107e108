"""Parameters, and the optimizer that updates them."""

from __future__ import annotations

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.workloads.context import Context
from slackswap_opt.workloads.describe import Workload
from slackswap_opt.workloads.kernels import Sizes

MASTER_BYTES = 4
"""The fp32 parameter that the optimizer updates."""
MOMENT_BYTES = 8
"""Two fp32 moments per parameter."""
ADAM_FLOPS = 16


def layer_parameters(workload: Workload) -> int:
    """Parameters of one layer on one device."""
    sizes, network = Sizes.of(workload), workload.architecture
    attention = sizes.width * (2 * sizes.query_width + 2 * sizes.kv_width)
    matrices = 2 if network.activation == "gelu" else 3
    count = attention + matrices * sizes.width * sizes.inner + 2 * _norm_parameters(workload)
    if network.bias:
        inner_biases = (matrices - 1) * sizes.inner
        count += sizes.query_width + 2 * sizes.kv_width + inner_biases + 2 * sizes.width
    return count


def embedding_parameters(workload: Workload) -> int:
    """Parameters of the embedding on one device."""
    sizes, network = Sizes.of(workload), workload.architecture
    count = sizes.vocabulary * sizes.width
    if network.positions == "learned":
        count += (network.max_positions or workload.training.sequence) * sizes.width
    return count + (_norm_parameters(workload) if network.embedding_norm else 0)


def head_parameters(workload: Workload) -> int:
    """Parameters of the output on one device; tied ones count with the embedding."""
    sizes, network = Sizes.of(workload), workload.architecture
    count = 0 if network.tied_embeddings else sizes.vocabulary * sizes.width
    if network.norm_position == "pre":
        count += _norm_parameters(workload)
    if network.head_transform:
        count += sizes.width * (sizes.width + 1) + _norm_parameters(workload)
    return count


def parameter_groups(workload: Workload) -> dict[str, int]:
    """Parameters on one device, by layer label."""
    layers = workload.architecture.layers
    return {
        "embed": embedding_parameters(workload),
        **{f"layer.{index}": layer_parameters(workload) for index in range(layers)},
        "head": head_parameters(workload),
    }


def optimizer(ctx: Context) -> None:
    """One fused AdamW operation per group of parameters, after the backward phase.

    It reads the gradient, the fp32 parameter and both moments, and writes them back with the
    parameter in the training type. All of it is static memory.
    """
    training = ctx.workload.training
    element = ctx.sizes.element
    keeps_master = element < MASTER_BYTES
    updates = training.accumulation
    for group, count in parameter_groups(ctx.workload).items():
        states = MOMENT_BYTES + (MASTER_BYTES if keeps_master else 0)
        parameters = ctx.tape.static(f"{group}.parameters", count * element)
        gradients = ctx.tape.static(f"{group}.gradients", count * element)
        if training.optimizer == "none" or count == 0:
            continue
        own = -(-count // training.optimizer_shards)
        moments = ctx.tape.static(f"{group}.optimizer_state", own * states)
        moved = own * (element + 2 * (MASTER_BYTES + MOMENT_BYTES))
        moved += own * element if keeps_master else 0
        ctx.tape.optimizer(
            f"optimizer.{group}",
            "optimizer",
            [Kernel(ADAM_FLOPS * own / updates, moved / updates)],
            [gradients, parameters, moments],
        )


def _norm_parameters(workload: Workload) -> int:
    network = workload.architecture
    return network.width * (2 if network.norm == "layernorm" else 1)

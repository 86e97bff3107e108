"""Builds the training step of a transformer from its description."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from slackswap_opt.machine.cost import Kernel, duration_ns
from slackswap_opt.machine.model import Machine
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.workloads.attention import attention
from slackswap_opt.workloads.context import (
    Context,
    dropout_add,
    enter_group,
    sum_over_group,
)
from slackswap_opt.workloads.describe import Workload
from slackswap_opt.workloads.ends import embedding, head
from slackswap_opt.workloads.feed_forward import feed_forward
from slackswap_opt.workloads.kernels import Sizes
from slackswap_opt.workloads.norms import norm
from slackswap_opt.workloads.optimizer import optimizer
from slackswap_opt.workloads.tape import Tape


def build_step(workload: Workload, machine: Machine) -> TrainingStep:
    """One training step of a workload on one device of a machine.

    Operations are in execution order: forward, backward in reverse, optimizer. Layer labels are
    `embed`, `layer.0` ..., `head` and `optimizer`.

    Raises:
        InputError: if the machine has no arithmetic peak for the workload's data type.
    """

    def cost(kernels: Sequence[Kernel]) -> int:
        return duration_ns(machine.device, kernels)

    ctx = Context(Tape(cost, workload.training.batch), workload, Sizes.of(workload))
    stream = embedding(ctx)
    for index in range(workload.architecture.layers):
        stream = _layer(ctx, f"layer.{index}", stream)
    ctx.tape.backward(head(ctx, stream))
    optimizer(ctx)
    return TrainingStep.build(
        workload.name,
        ctx.tape.operations,
        ctx.tape.tensors.values(),
        tuple(_notes(workload, machine)),
    )


def _layer(ctx: Context, layer: str, stream: str) -> str:
    pre = ctx.workload.architecture.norm_position == "pre"
    for number, part, name in ((1, attention, "proj"), (2, feed_forward, "fc2")):
        last = number == 2
        source = stream
        if pre:
            source = f"{layer}.h{number}"
            norm(ctx, layer, f"norm{number}", stream, source)
        enter_group(ctx, layer, source)
        out = f"{layer}.{name}.out"
        part(ctx, layer, source, out)
        out = sum_over_group(ctx, layer, out, f"{layer}.{name}.reduced")
        summed = f"{layer}.out" if pre and last else f"{layer}.residual{number}"
        dropout_add(ctx, layer, number, stream, out, summed)
        stream = summed
        if not pre:
            stream = f"{layer}.out" if last else f"{layer}.h{number}"
            norm(ctx, layer, f"norm{number}", summed, stream)
    return stream


def _notes(workload: Workload, machine: Machine) -> Iterator[str]:
    training, network = workload.training, workload.architecture
    yield from workload.notes
    yield (
        f"Batch {training.batch} x sequence {training.sequence}, {training.dtype}, "
        f"{training.kernels} kernels, {training.attention} attention; durations are a roofline's "
        f"for {machine.name} (docs/cost-model.md)."
    )
    yield "Parameters, their gradients, optimizer states and the batch are static memory."
    if network.dropout > 0:
        yield "Dropout operations save their generator's state, so they may run again."
    if workload.tensor_parallel.degree > 1:
        yield (
            f"One device's shard of {workload.tensor_parallel.degree}-way tensor parallelism; "
            "the all-reduces run on the compute stream and never run again."
        )
    if training.optimizer_shards > 1:
        yield (
            f"One device's {training.optimizer_shards}th of the optimizer; the exchange of "
            "parameters and gradients is taken as hidden."
        )

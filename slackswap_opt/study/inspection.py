"""What a step is made of, and whether swapping is worth it on a machine."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass

import networkx as nx
import numpy as np

from slackswap_opt.plan import Problem
from slackswap_opt.step import Phase, TrainingStep, find_repeats
from slackswap_opt.study.account import NO_LAYER, layer_kind
from slackswap_opt.study.smallest import LowerLimit, lower_limit
from slackswap_opt.study.swap_value import SwapValue, swap_value
from slackswap_opt.study.unread import Unread, unread

LARGEST = 10
MOST_CRITICAL = 5
SHOWN_REPEAT = 0.03
"""Repeats are told of whose further blocks are at least this part of the operations."""
MEASURED = 0.1
"""What durations may differ by in repeats of a step that has no exact ones."""


@dataclass(frozen=True)
class PhaseFacts:
    """Operations of one phase."""

    phase: str
    operations: int
    duration_ns: int


@dataclass(frozen=True)
class LayerFacts:
    """Layers of one kind: labels that differ in numbers only."""

    kind: str
    layers: int
    operations: int
    forward_ns: int
    saved_bytes: int


@dataclass(frozen=True)
class RepeatFacts:
    """Equal blocks of operations, one after the other: layers, whatever they are called.

    Attributes:
        first: name of the first operation.
        last: name of the last one.
        start: position of the first operation in the step, from 0.
        length: operations of a block.
        count: number of blocks.
        phase: the phase they belong to.
        tolerance: by what fraction durations that count as equal may differ.
    """

    first: str
    last: str
    start: int
    length: int
    count: int
    phase: str
    tolerance: float


@dataclass(frozen=True)
class CriticalLayer:
    """A layer that saves bytes faster than the link takes them away.

    Attributes:
        layer: its label.
        forward_ns: its time in the forward phase.
        saved_bytes: what it saves.
        link_bytes: what the link moves out in that time.
        late_ns: how much longer the link takes for what it saves.
    """

    layer: str
    forward_ns: int
    saved_bytes: int
    link_bytes: int
    late_ns: int


@dataclass(frozen=True)
class TensorFacts:
    """One large tensor."""

    name: str
    size_bytes: int
    layer: str
    saved: bool


@dataclass(frozen=True)
class Inspection:
    """Facts about a step on a machine.

    Attributes:
        name: of the step.
        machine: its name.
        components: parts of forward and backward phase that pass each other nothing.
        operations: number of operations.
        phases: by phase, in order.
        tensors: number of tensors that are not static.
        activations: number of tensors written in the forward phase.
        saved: number of activations that a later phase reads.
        saved_bytes: their sum.
        movable_bytes: the part of them that may leave the device.
        rebuildable_bytes: the part of them that may be recomputed.
        static_bytes: parameters and the like, outside of the budget.
        ideal_step_ns: duration without a memory limit.
        ideal_peak_bytes: peak of all that is not static.
        peak_operation: the first operation at which the peak is reached.
        slack_out_bytes: what the link could move out under the forward phase.
        slack_in_bytes: what the link could move back under the rest.
        slack_bytes: what could leave and return: the less of the two, at most the movable bytes.
        swapping: what swapping saves, at half of the peak where that is possible.
        smallest: no schedule runs with less.
        critical: the layers that are latest in being moved out, the worst first.
        critical_layers: how many there are.
        layers: by kind, in order of appearance.
        repeats: the repeated blocks that matter most, found in the operations, in order.
        largest: the largest tensors that are not static.
        unread: the tensors that no operation reads.
        notes: of the step.
    """

    name: str
    machine: str
    components: int
    operations: int
    phases: tuple[PhaseFacts, ...]
    tensors: int
    activations: int
    saved: int
    saved_bytes: int
    movable_bytes: int
    rebuildable_bytes: int
    static_bytes: int
    ideal_step_ns: int
    ideal_peak_bytes: int
    peak_operation: str
    slack_out_bytes: int
    slack_in_bytes: int
    slack_bytes: int
    swapping: SwapValue
    smallest: LowerLimit
    critical: tuple[CriticalLayer, ...]
    critical_layers: int
    layers: tuple[LayerFacts, ...]
    repeats: tuple[RepeatFacts, ...]
    largest: tuple[TensorFacts, ...]
    unread: Unread
    notes: tuple[str, ...]


def inspect(problem: Problem) -> Inspection:
    """Collect the facts; the problem's budget plays no part."""
    step, live, blocks = problem.step, problem.liveness, problem.blocks
    index = step.index
    rates = problem.machine.link.rates()
    forward_ns = int(index.duration_ns[index.forward].sum())
    out = forward_ns * rates.d2h // 1000
    back = (problem.ideal_step_ns - forward_ns) * rates.h2d // 1000
    movable = [t for t in blocks.evictable if live.saved[t]]
    movable_bytes = sum(int(index.size_bytes[t]) for t in movable)
    planned = ~index.static & (live.first_write >= 0)
    slack = min(out, back, movable_bytes)
    critical = _critical(problem)
    smallest = lower_limit(step)
    return Inspection(
        name=step.name,
        machine=problem.machine.name,
        components=_components(problem),
        operations=index.operations,
        phases=_phases(problem),
        tensors=int(planned.sum()),
        activations=int(live.activation.sum()),
        saved=int(live.saved.sum()),
        saved_bytes=int(index.size_bytes[live.saved].sum()),
        movable_bytes=movable_bytes,
        rebuildable_bytes=sum(int(index.size_bytes[t]) for t in movable if blocks.block_of[t] >= 0),
        static_bytes=int(index.size_bytes[index.static].sum()),
        ideal_step_ns=problem.ideal_step_ns,
        ideal_peak_bytes=live.ideal_peak_bytes,
        peak_operation=step.operations[live.peak_operation].name,
        slack_out_bytes=out,
        slack_in_bytes=back,
        slack_bytes=slack,
        swapping=swap_value(problem, slack, smallest.budget_bytes),
        smallest=smallest,
        critical=tuple(critical[:MOST_CRITICAL]),
        critical_layers=len(critical),
        layers=_layers(problem),
        repeats=_repeats(problem.step),
        largest=_largest(problem),
        unread=unread(problem),
        notes=step.notes,
    )


def _components(problem: Problem) -> int:
    graph = problem.step.graph
    computed = [op.name for op in problem.step.operations if op.phase is not Phase.OPTIMIZER]
    return int(nx.number_weakly_connected_components(graph.subgraph(computed)))


def _phases(problem: Problem) -> tuple[PhaseFacts, ...]:
    ops = problem.step.operations
    return tuple(
        PhaseFacts(
            phase.value,
            sum(op.phase is phase for op in ops),
            sum(op.duration_ns for op in ops if op.phase is phase),
        )
        for phase in Phase
    )


def _layers(problem: Problem) -> tuple[LayerFacts, ...]:
    step, live = problem.step, problem.liveness
    index = step.index
    labels: dict[str, set[str]] = {}
    operations, forward_ns, saved = Counter[str](), Counter[str](), Counter[str]()
    for op in step.operations:
        kind = layer_kind(op.layer)
        labels.setdefault(kind, set()).add(op.layer)
        operations[kind] += 1
        forward_ns[kind] += op.duration_ns if op.phase is Phase.FORWARD else 0
    for tensor in np.flatnonzero(live.saved):
        writer = step.operations[int(live.first_write[tensor])]
        saved[layer_kind(writer.layer)] += int(index.size_bytes[tensor])
    return tuple(
        LayerFacts(kind, len(found), operations[kind], forward_ns[kind], saved[kind])
        for kind, found in labels.items()
    )


def _repeats(step: TrainingStep) -> tuple[RepeatFacts, ...]:
    """Repeats that stand for a good part of the step; of a measured one by similar durations."""
    least = SHOWN_REPEAT * len(step.operations)
    for tolerance in (0.0, MEASURED):
        shown = [repeat for repeat in find_repeats(step, tolerance) if repeat.saved >= least]
        if shown:
            break
    return tuple(
        RepeatFacts(
            step.operations[repeat.start].name,
            step.operations[repeat.end - 1].name,
            repeat.start,
            repeat.length,
            repeat.count,
            step.operations[repeat.start].phase.value,
            tolerance,
        )
        for repeat in shown
    )


def _critical(problem: Problem) -> list[CriticalLayer]:
    """Layers whose saved bytes take longer on the link than their forward operations run.

    The latest first; equally late ones in the order of the step.
    """
    step, live = problem.step, problem.liveness
    index = step.index
    rate = problem.machine.link.rates().d2h
    forward_ns, saved = Counter[str](), Counter[str]()
    for op in step.operations:
        forward_ns[op.layer] += op.duration_ns if op.phase is Phase.FORWARD else 0
    for tensor in np.flatnonzero(live.saved):
        layer = step.operations[int(live.first_write[tensor])].layer
        saved[layer] += int(index.transfer_bytes[tensor])
    found = [
        CriticalLayer(
            layer or NO_LAYER,
            forward_ns[layer],
            size,
            forward_ns[layer] * rate // 1000,
            size * 1000 // rate - forward_ns[layer],
        )
        for layer, size in saved.items()
        if size * 1000 > forward_ns[layer] * rate
    ]
    return sorted(found, key=lambda layer: -layer.late_ns)


def _largest(problem: Problem) -> tuple[TensorFacts, ...]:
    step, live = problem.step, problem.liveness
    sizes = step.index.size_bytes
    planned = [t for t in range(step.index.tensors) if live.first_write[t] >= 0]
    planned.sort(key=lambda t: (-int(sizes[t]), t))
    return tuple(
        TensorFacts(
            step.tensors[t].name,
            int(sizes[t]),
            step.operations[int(live.first_write[t])].layer,
            bool(live.saved[t]),
        )
        for t in planned[:LARGEST]
    )

"""Kineto traces: what PyTorch's profiler exports, read as the training step that was measured.

A trace has calls with the shapes of their arguments, and kernels with their times, but no identity
of a tensor. `kineto_events` checks the events and chooses a profiler step, `kineto_units` finds its
operations, `kineto_flow` ties them by shapes. docs/formats-traces.md has the rules; the notes of
the step say what was assumed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

from slackswap_opt.errors import InputError
from slackswap_opt.formats import autodiff, files, kineto_events, trace_json
from slackswap_opt.formats.kineto_events import ProfilerStep
from slackswap_opt.formats.kineto_flow import Flow
from slackswap_opt.formats.kineto_units import Work, work_of
from slackswap_opt.formats.options import ReadOptions
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Operation, Phase

NAME = "Kineto profiler trace"
USES = frozenset({"profiler_step"})

FAR_BELOW_WALL = 0.8
"""Kernels that fill less of the step's wall time than this are worth a warning."""
_NAMED_IN_NOTES = 5
_TRACE = re.compile(rb'"traceEvents"\s*:')
_EVENTS = re.compile(rb'\s*\[\s*\{[^{}]{0,400}"ph"\s*:')


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a profiler trace, sound or not."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start.startswith(b"["):
        return _EVENTS.match(start) is not None
    if not start.startswith(b"{"):
        return False
    return _TRACE.search(start) is not None or (
        b'"deviceProperties"' in start and b'"schemaVersion"' in start
    )


def read(content: bytes, name: str, options: ReadOptions) -> TrainingStep:
    """Read one profiler step of a trace.

    Raises:
        InputError: with every fault of the events, or why the step cannot be read.
    """
    step = kineto_events.profiler_step(
        trace_json.parse(files.decode(content)), options.profiler_step
    )
    if not step.shapes_known:
        raise InputError(
            "the trace has no shapes of tensors, so their bytes are not known; record it with "
            "record_shapes=True"
        )
    work = work_of(step)
    if not work.backward:
        raise InputError(
            f"{step.title} has no backward operations (calls named ...Backward that share a "
            "sequence number or an arrow with the forward phase); trace a training step"
        )
    return _training_step(name, step, work)


def _training_step(name: str, step: ProfilerStep, work: Work) -> TrainingStep:
    backward = {unit.number: unit for unit in work.backward if unit.number is not None}
    flow = Flow(backward, work.parameters)
    nodes = [flow.node(unit) for unit in work.forward]
    if not flow.tied:
        raise InputError(
            f"{step.title}: no backward operation could be tied to a forward one; the trace needs "
            "sequence numbers or forward-backward arrows, and shapes"
        )
    by_number = {
        unit.number: node
        for unit, node in zip(work.forward, nodes, strict=True)
        if unit.number in flow.tied
    }
    untied = [unit for unit in work.backward if unit.number not in by_number]
    loss_us = work.loss_us + flow.lost_us + sum(unit.kernel_us for unit in untied)
    optimizer = Operation(
        "optimizer", Phase.OPTIMIZER, round(work.optimizer_us * 1000), layer="optimizer"
    )
    return autodiff.training_step(
        name,
        nodes,
        loss_ns=round(loss_us * 1000),
        sum_ns=lambda *_: 0,  # the time of sums is in the backward operations before them
        backward_order=[by_number[u.number] for u in work.backward if u.number in by_number],
        optimizer=[optimizer] if work.optimizer_us else [],
        notes=tuple(_notes(step, work, flow, len(untied))),
        measured=True,
    )


def _notes(step: ProfilerStep, work: Work, flow: Flow, untied: int) -> Iterator[str]:
    others = ", ".join(map(str, step.others))
    yield (
        f"{step.title} of the trace"
        + (f" (it has {others}; FILE@profiler-step=N chooses)" if len(step.others) > 1 else "")
        + "; durations are measured kernel times on the stream that computes most."
    )
    share = work.kernel_us / step.wall_us if step.wall_us else 1.0
    if share < FAR_BELOW_WALL:
        yield (
            f"Warning: kernels take {work.kernel_us / 1000:.1f} ms of {step.wall_us / 1000:.1f} ms "
            f"({share:.0%}); the rest, waiting for the host or for data, is left out. In reality "
            "there is more slack, and overheads are a smaller share."
        )
    if step.copies_us:
        yield (
            f"Copies between host and device ({step.copies_us / 1000:.2f} ms) load the batch or "
            "fetch results; they are left out."
        )
    if step.beside_us:
        yield (
            f"Kernels on other streams ({step.beside_us / 1000:.2f} ms), such as communication, "
            "are taken to run beside the compute stream; they are left out."
        )
    yield from _assumptions(flow)
    if flow.outside:
        time_us = sum(unit.kernel_us for unit in flow.outside)
        yield (
            f"Forward operations without gradients ({len(flow.outside)}, {time_us / 1000:.2f} ms) "
            "take their time; their tensors are not known and not listed."
        )
    if untied:
        yield (
            f"Backward operations without a forward operation in this step ({untied}) count "
            "with the loss."
        )
    held = sum(size for unit in work.forward for size in unit.memory)
    if held > 0:
        yield (
            f"The allocator's events of the forward operations leave {held / 2**20:.1f} MiB; the "
            f"tensors listed here hold {flow.allocated_bytes / 2**20:.1f} MiB. Workspaces are what "
            "an operation allocated and freed again."
        )
    else:
        yield "No workspace is known: the trace has no memory events (profile_memory=True)."
    yield "Gradients of parameters and optimizer state are static and not listed."


def _assumptions(flow: Flow) -> Iterator[str]:
    yield (
        "Assumed, because a trace has no identity of tensors: an input is the latest output of its "
        "shape that nobody has read, or that must have another reader because its gradients were "
        f"summed ({flow.matched} inputs), else the latest of its shape ({flow.guessed}); where "
        f"there is none, a parameter or the batch ({flow.statics})."
    )
    yield (
        "Assumed: a backward operation reads again what functions of its name save; an output has "
        "the size of the gradient that came in for it."
    )
    if flow.unknown:
        yield (
            f"Functions without a rule, taken to read inputs and outputs: {_listed(flow.unknown)}."
        )
    if flow.kept_apart:
        yield (
            "In place, but what they overwrite seems to be needed, so they have memory of their "
            f"own: {_listed(flow.kept_apart)}."
        )
    if flow.random:
        yield (
            f"Random operations run again with their saved generator state: {_listed(flow.random)}."
        )


def _listed(names: Iterable[str]) -> str:
    known = list(names)
    more = len(known) - _NAMED_IN_NOTES
    return ", ".join(known[:_NAMED_IN_NOTES]) + (f" and {more} more" if more > 0 else "")

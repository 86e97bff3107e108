"""A simulated schedule as a trace in the Trace Event Format, for Perfetto and chrome://tracing.

Times in that format are microseconds. They are written as decimals of the integer nanoseconds,
never through a float, and every slice as a pair of a begin and an end: neighbours share the very
same number, so that no reader makes them overlap, however it rounds.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.plan import Schedule
from slackswap_opt.simulator import Cause, Stall, Verdict
from slackswap_opt.step import TrainingStep

PROCESS = 1
COMPUTE, D2H, H2D = 1, 2, 3
THREADS = {COMPUTE: "compute", D2H: "copies out (D2H)", H2D: "copies in (H2D)"}
"""Track numbers and their names, in the order in which they are shown."""

Samples = tuple[NDArray[np.int64], NDArray[np.int64]]
"""Instants in nanoseconds, and the bytes from each of them on."""


def chrome_trace(
    step: TrainingStep,
    schedule: Schedule,
    verdict: Verdict,
    *,
    machine: str = "",
    budget_bytes: int | None = None,
    counters: Mapping[str, Samples] | None = None,
) -> str:
    """The trace as JSON text, one event a line.

    Tracks for compute, copies out and copies in; waits of the compute stream as slices with their
    cause; counters for the memory in use, the budget and any others given; an arrow from each copy
    out to every copy in that brings back what it saved. A copy that is in flight when the step ends
    is cut off there.

    Args:
        step: what was run.
        schedule: the program.
        verdict: its simulation, complete or not.
        machine: name of the machine.
        budget_bytes: device memory the schedule was made for; the capacity played at if not given.
        counters: further counters by name, such as reserved memory.
    """
    end_ns = verdict.step_ns if verdict.step_ns is not None else _last_ns(verdict)
    budget = verdict.capacity_bytes if budget_bytes is None else budget_bytes
    events = [
        *_names(step, machine),
        *_compute(step, schedule, verdict, end_ns),
        *_copies(step, schedule, verdict, end_ns),
        *_counter("memory in use", (verdict.timeline.memory_ns, verdict.timeline.memory_bytes)),
        *_counter("budget", (np.array([0, end_ns]), np.array([budget, budget]))),
    ]
    for name, samples in (counters or {}).items():
        events += _counter(name, samples)
    metadata = {
        "workload": step.name,
        "machine": machine,
        "budget_bytes": budget,
        "capacity_bytes": verdict.capacity_bytes,
        "peak_bytes": verdict.peak_bytes,
        "step_ns": verdict.step_ns,
        "stall_ns": verdict.stall_ns,
        "written_by": "slackswap-opt",
    }
    head = f'{{"displayTimeUnit": "ns",\n"otherData": {_json(metadata)},\n"traceEvents": ['
    return head + "\n" + ",\n".join(events) + "\n]}\n"


def microseconds(ns: int) -> str:
    """A time in microseconds, exactly: 1234 ns are `1.234`."""
    return f"{ns // 1000}.{ns % 1000:03d}"


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)


def _event(kind: str, ns: int, name: str, thread: int | None = None, **rest: object) -> str:
    """One event; the time is put in as text."""
    fields: dict[str, object] = {"ph": kind, "name": name, "pid": PROCESS}
    if thread is not None:
        fields["tid"] = thread
    return f'{{"ts": {microseconds(ns)}, {_json({**fields, **rest})[1:]}'


@dataclass(frozen=True)
class _Slice:
    start_ns: int
    end_ns: int
    name: str
    category: str
    arguments: Mapping[str, object]
    arrows: tuple[tuple[str, int], ...] = ()
    """Kind ("s" starts, "f" ends) and number of each arrow at its start."""

    def events(self, thread: int) -> Iterator[str]:
        yield _event("B", self.start_ns, self.name, thread, cat=self.category, args=self.arguments)
        for kind, number in self.arrows:
            bound = {"bp": "e"} if kind == "f" else {}
            yield _event(kind, self.start_ns, "swap", thread, cat="swap", id=number, **bound)
        yield _event("E", self.end_ns, self.name, thread, cat=self.category)


def _names(step: TrainingStep, machine: str) -> Iterator[str]:
    where = f" on {machine}" if machine else ""
    yield _event("M", 0, "process_name", 0, args={"name": f"{step.name}{where}"})
    for thread, name in THREADS.items():
        yield _event("M", 0, "thread_name", thread, args={"name": name})
        yield _event("M", 0, "thread_sort_index", thread, args={"sort_index": thread})


def _compute(
    step: TrainingStep, schedule: Schedule, verdict: Verdict, end_ns: int
) -> Iterator[str]:
    line = verdict.timeline
    seen: set[int] = set()
    slices = []
    for event, op in enumerate(schedule.compute):
        start, end = int(line.compute_start_ns[event]), int(line.compute_end_ns[event])
        if start < 0:
            break
        operation = step.operations[op]
        again = op in seen
        seen.add(op)
        arguments: dict[str, object] = {
            "event": event, "phase": operation.phase.value, "layer": operation.layer,
            "recomputed": again,
        }  # fmt: skip
        category = "recompute" if again else operation.phase.value
        slices.append(
            _Slice(start, end if end >= 0 else end_ns, operation.name, category, arguments)
        )
    slices += [_wait(step, schedule, stall) for stall in line.stalls]
    # A wait ends as the event begins that waited; an event of no time that ends there comes first.
    slices.sort(key=lambda s: (s.start_ns, s.end_ns))
    for piece in slices:
        yield from piece.events(COMPUTE)


def _wait(step: TrainingStep, schedule: Schedule, stall: Stall) -> _Slice:
    tensor = step.tensors[stall.tensor].name
    way = "in" if stall.cause is Cause.SWAP_IN else "out"
    arguments = {
        "cause": stall.cause.value,
        "tensor": tensor,
        "before": step.operations[schedule.compute[stall.event]].name,
        "event": stall.event,
    }
    return _Slice(
        stall.start_ns, stall.end_ns, f"wait for {tensor} to come {way}"
        if way == "in" else f"wait for {tensor} to leave", "stall", arguments,
    )  # fmt: skip


def _copies(step: TrainingStep, schedule: Schedule, verdict: Verdict, end_ns: int) -> Iterator[str]:
    line = verdict.timeline
    starts: dict[int, list[tuple[str, int]]] = {}
    ends: dict[int, list[tuple[str, int]]] = {}
    for number, (out, into) in enumerate(_pairs(schedule)):
        if line.out_start_ns[out] >= 0 and line.in_start_ns[into] >= 0:
            starts.setdefault(out, []).append(("s", number))
            ends.setdefault(into, []).append(("f", number))
    queues = (
        (D2H, "copy out", schedule.copies_out, line.out_start_ns, line.out_end_ns, starts),
        (H2D, "copy in", schedule.copies_in, line.in_start_ns, line.in_end_ns, ends),
    )
    for thread, what, copies, begun, done, arrows in queues:
        for number, copy in enumerate(copies):
            start, end = int(begun[number]), int(done[number])
            if start < 0:
                continue
            tensor = step.tensors[copy.tensor]
            arguments = {
                "tensor": tensor.name,
                "bytes": tensor.transfer_bytes,
                "after_event": copy.after,
                "unfinished": end < 0,
            }
            yield from _Slice(
                start, end if end >= 0 else end_ns, f"{what} {tensor.name}", "copy", arguments,
                tuple(arrows.get(number, ())),
            ).events(thread)  # fmt: skip


def _pairs(schedule: Schedule) -> Iterator[tuple[int, int]]:
    """Every copy in with the copy out that saved what it brings: the last one that it waits for."""
    for into, copy in enumerate(schedule.copies_in):
        saved = max(
            (
                number
                for number, out in enumerate(schedule.copies_out)
                if out.tensor == copy.tensor and out.after <= copy.after
            ),
            default=None,
        )
        if saved is not None:
            yield saved, into


def _counter(name: str, samples: Samples) -> Iterator[str]:
    for ns, size in zip(samples[0].tolist(), samples[1].tolist(), strict=True):
        yield _event("C", ns, name, args={"bytes": size})


def _last_ns(verdict: Verdict) -> int:
    line = verdict.timeline
    times: Iterable[NDArray[np.int64]] = (
        line.compute_end_ns, line.out_end_ns, line.in_end_ns, line.out_start_ns,
        line.in_start_ns, line.memory_ns,
    )  # fmt: skip
    return max((int(t.max(initial=0)) for t in times), default=0)

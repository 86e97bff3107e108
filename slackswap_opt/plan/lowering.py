"""From a plan to a complete schedule.

Each block that is needed again runs once, just before the first operation that needs it. Copies out
follow the order in which their tensors are done with; copies in follow the order of need, each
as early as memory allows. Times come from a clock: the durations alone at first, then, if the
caller wants, the start times that a simulation of the first result gave.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.errors import SlackSwapError
from slackswap_opt.plan.actions import Action, Plan
from slackswap_opt.plan.blocks import Block
from slackswap_opt.plan.problem import Problem
from slackswap_opt.plan.schedule import Copy, Schedule


class UnbuildablePlanError(SlackSwapError):
    """The plan drops a tensor that is needed again and that no block can rebuild."""


@dataclass(frozen=True)
class Clock:
    """Predicted times of compute events.

    Attributes:
        start_ns: (events,) when each starts.
        end_ns: (events,) when each ends.
    """

    start_ns: NDArray[np.int64]
    end_ns: NDArray[np.int64]

    @classmethod
    def without_stalls(cls, durations_ns: NDArray[np.int64]) -> Clock:
        """Back to back."""
        end = np.cumsum(durations_ns)
        return cls(end - durations_ns, end)


@dataclass
class _Stay:
    """When one tensor is on the device, in compute events (both ends included).

    Attributes:
        written: event that allocates it first.
        ready: event that writes its last version: from its end a copy out may start.
        done: last event that touches it before it leaves, or at all if it does not.
        back: event that allocates it again or, if it is swapped, first needs it again; -1 if it
            does not return.
        last: last event that touches it after its return.
        swapped: whether it returns by a copy.
    """

    written: int
    ready: int
    done: int
    back: int = -1
    last: int = -1
    swapped: bool = False


@dataclass(frozen=True)
class _Rebuild:
    """One re-execution of a block: its events, first and last."""

    block: Block
    first: int
    last: int


@dataclass
class _Program:
    """Compute events, where each original operation is, and what touches each tensor."""

    compute: list[int] = field(default_factory=list)
    original: list[int] = field(default_factory=list)
    touched: dict[int, list[int]] = field(default_factory=dict)
    rebuilds: list[_Rebuild] = field(default_factory=list)
    rebuilt: dict[int, _Rebuild] = field(default_factory=dict)


def lower(problem: Problem, plan: Plan, clock: Clock | None = None) -> Schedule:
    """A complete schedule that carries out a plan.

    Args:
        problem: step, machine and budget; the budget limits how early copies in start.
        plan: an action per activation.
        clock: predicted times of this plan's compute events; durations back to back if not given.

    Raises:
        UnbuildablePlanError: if a dropped tensor is needed and cannot be rebuilt.
    """
    program = _order_compute(problem, plan)
    index = problem.step.index
    if clock is None or len(clock.start_ns) != len(program.compute):
        clock = Clock.without_stalls(index.duration_ns[program.compute])
    stays = _stays(problem, plan, program)
    swapped = sorted(t for t, stay in stays.items() if stay.swapped)
    rates, latency = problem.machine.link.rates(), problem.machine.link.latency_ns

    def transfer_ns(tensor: int, rate: int) -> int:
        return latency - (-int(index.transfer_bytes[tensor]) * 1000 // rate)

    outs, out_end = _queue_out(
        stays, swapped, clock, {t: transfer_ns(t, rates.d2h) for t in swapped}
    )
    memory = _memory(problem, program, stays, clock, out_end)
    not_before = {t: stays[t].done for t in swapped}
    for tensor, event in _strays(program, stays):
        if tensor in not_before and event < stays[tensor].back:
            not_before[tensor] = event
    copies_in = _queue_in(
        problem, stays, clock, out_end, memory, not_before,
        {t: transfer_ns(t, rates.h2d) for t in swapped},
    )  # fmt: skip
    return Schedule(
        compute=tuple(program.compute),
        frees=_frees(program, stays),
        copies_out=tuple(outs),
        copies_in=tuple(copies_in),
    )


def without_idle_copies(problem: Problem, plan: Plan) -> Plan:
    """The plan in which what is rebuilt in time anyway is neither swapped nor kept.

    A re-execution recreates every output of its block, so an output that is first needed after it
    need not be kept or fetched. Plans with nothing of the kind come back unchanged.
    """
    program = _order_compute(problem, plan)
    anyway = {
        t: Action.RECOMPUTE
        for rebuild in program.rebuilds
        for t in rebuild.block.outputs
        if plan.of(t) in (Action.KEEP, Action.SWAP)
        and not _wanted_between(problem, program, t, rebuild.first)
    }
    return Plan({**plan.actions, **anyway}) if anyway else plan


def _order_compute(problem: Problem, plan: Plan) -> _Program:
    """Original operations in order, each preceded by the blocks that rebuild what it needs."""
    index, blocks = problem.step.index, problem.blocks
    evictable = set(blocks.evictable)
    live = problem.liveness
    gone = {t for t in blocks.evictable if plan.of(t) in (Action.RECOMPUTE, Action.DROP)}
    program = _Program()

    def emit(op: int) -> None:
        event = len(program.compute)
        program.compute.append(op)
        for tensor, _ in index.reads[op] + index.writes[op]:
            events = program.touched.setdefault(tensor, [])
            if not events or events[-1] != event:
                events.append(event)

    def rebuild(tensors: Iterable[int]) -> None:
        stack = [(t, False) for t in reversed(list(tensors))]
        while stack:
            tensor, inputs_ready = stack.pop()
            if tensor not in gone or tensor in program.rebuilt:
                continue
            if blocks.block_of[tensor] < 0:
                raise UnbuildablePlanError(
                    f"{problem.step.tensors[tensor].name!r} is dropped, needed again, "
                    "and cannot be rebuilt"
                )
            block = blocks.blocks[blocks.block_of[tensor]]
            if not inputs_ready:
                stack.append((tensor, True))
                stack.extend((t, False) for t in reversed(block.inputs))
                continue
            first = len(program.compute)
            for op in block.operations:
                emit(op)
            program.rebuilds.append(_Rebuild(block, first, len(program.compute) - 1))
            for output in block.outputs:
                program.rebuilt.setdefault(output, program.rebuilds[-1])

    for op in range(index.operations):
        later = [t for t, _ in index.reads[op] if t in evictable and op > live.last_forward[t]]
        rebuild(later)
        program.original.append(len(program.compute))
        emit(op)
    return program


def _stays(problem: Problem, plan: Plan, program: _Program) -> dict[int, _Stay]:
    live, original = problem.liveness, program.original
    stays: dict[int, _Stay] = {}
    for tensor in range(problem.step.index.tensors):
        written, ready = int(live.first_write[tensor]), int(live.last_write[tensor])
        if written >= 0:
            last = program.touched[tensor][-1]
            stays[tensor] = _Stay(original[written], original[ready], last)
    for tensor in problem.blocks.evictable:
        stay, action = stays[tensor], plan.of(tensor)
        stay.done = original[int(live.last_forward[tensor])]
        wanted = _wanted_again(problem, program, tensor, stay.done)
        if not wanted:
            continue
        if action is Action.KEEP:
            stay.done = wanted[-1]
        else:
            stay.swapped = action is Action.SWAP
            stay.back = wanted[0] if stay.swapped else program.rebuilt[tensor].first
            stay.last = wanted[-1]
    return stays


def _wanted_again(problem: Problem, program: _Program, tensor: int, done: int) -> list[int]:
    """Events after `done` that read the tensor (not those that merely rebuild it)."""
    index = problem.step.index
    own = set(index.writers[tensor])
    return [e for e in program.touched[tensor] if e > done and program.compute[e] not in own]


def _wanted_between(problem: Problem, program: _Program, tensor: int, event: int) -> bool:
    """Whether a later reader needs the tensor before this event."""
    done = program.original[int(problem.liveness.last_forward[tensor])]
    return any(e < event for e in _wanted_again(problem, program, tensor, done))


def _frees(program: _Program, stays: dict[int, _Stay]) -> tuple[tuple[int, ...], ...]:
    frees: list[list[int]] = [[] for _ in program.compute]
    for tensor, stay in stays.items():
        frees[stay.done].append(tensor)
        if stay.back >= 0:
            frees[stay.last].append(tensor)
    for tensor, event in _strays(program, stays):
        frees[event].append(tensor)
    return tuple(map(tuple, frees))


def _strays(program: _Program, stays: dict[int, _Stay]) -> list[tuple[int, int]]:
    """Tensors that a re-execution recreates although they are neither there nor wanted.

    Each is freed at the end of that event, so that it leaves no trace.
    """
    return [
        (tensor, rebuild.last)
        for rebuild in program.rebuilds
        for tensor in rebuild.block.outputs
        if rebuild.last > stays[tensor].done
        and not stays[tensor].back <= rebuild.first <= stays[tensor].last
    ]


def _queue_out(
    stays: dict[int, _Stay],
    swapped: Sequence[int],
    clock: Clock,
    transfer_ns: dict[int, int],
) -> tuple[list[Copy], dict[int, int]]:
    """Of the tensors ready to go, always the one that is done with first."""
    waiting = sorted(swapped, key=lambda t: (stays[t].ready, t))
    ready: list[tuple[int, int]] = []
    queue: list[Copy] = []
    ends: dict[int, int] = {}
    now = position = 0
    while position < len(waiting) or ready:
        while position < len(waiting):
            tensor = waiting[position]
            available = int(clock.end_ns[stays[tensor].ready])
            if available > now and ready:
                break
            now = max(now, available)
            heapq.heappush(ready, (stays[tensor].done, tensor))
            position += 1
        _, tensor = heapq.heappop(ready)
        now += transfer_ns[tensor]
        ends[tensor] = now
        queue.append(Copy(tensor, stays[tensor].ready))
    return queue, ends


def _memory(
    problem: Problem,
    program: _Program,
    stays: dict[int, _Stay],
    clock: Clock,
    out_end: dict[int, int],
) -> NDArray[np.int64]:
    """(events,) bytes in use at each compute event, before any prefetch.

    A swapped tensor counts until its copy out is over, and again from its first need.
    """
    index = problem.step.index
    events = len(program.compute)
    change = np.zeros(events + 1, dtype=np.int64)

    def hold(tensor: int, first: int, last: int) -> None:
        change[first] += index.size_bytes[tensor]
        change[last + 1] -= index.size_bytes[tensor]

    for tensor, stay in stays.items():
        leaves = stay.done
        if stay.swapped:
            covered = int(np.searchsorted(clock.start_ns, out_end[tensor], side="left")) - 1
            leaves = min(max(leaves, covered), stay.back - 1)
        hold(tensor, stay.written, leaves)
        if stay.back >= 0:
            hold(tensor, max(stay.back, leaves + 1), stay.last)
    for rebuild in program.rebuilds:
        for tensor in rebuild.block.outputs:
            stay = stays[tensor]
            if stay.swapped or stay.back != rebuild.first:
                hold(tensor, rebuild.first, rebuild.last)
    return np.cumsum(change[:-1]) + index.workspace_bytes[program.compute]


def _queue_in(
    problem: Problem,
    stays: dict[int, _Stay],
    clock: Clock,
    out_end: dict[int, int],
    memory: NDArray[np.int64],
    not_before: dict[int, int],
    transfer_ns: dict[int, int],
) -> list[Copy]:
    """In the order of need, each as early as memory and its own copy out allow."""
    queue: list[Copy] = []
    now = 0
    for tensor in sorted(not_before, key=lambda t: (stays[t].back, t)):
        back, size = stays[tensor].back, int(problem.step.index.size_bytes[tensor])
        trigger = not_before[tensor]
        crowded = np.flatnonzero(memory[trigger + 1 : back] > problem.budget_bytes - size)
        if crowded.size:
            trigger += 1 + int(crowded[-1])
        begin = max(now, int(clock.end_ns[trigger]), out_end[tensor])
        ended = int(np.searchsorted(clock.end_ns, begin, side="right")) - 1
        trigger = max(trigger, min(ended, back - 1))
        memory[trigger + 1 : back] += size
        queue.append(Copy(tensor, trigger))
        now = begin + transfer_ns[tensor]
    return queue

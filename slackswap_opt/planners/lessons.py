"""What the referee's verdict on a plan of the boundary ILP says of memory at other operations.

The model sees memory at its cut only. Rows that are learned steer the search; they may cut off good
plans, and have no part in any bound.
"""

from __future__ import annotations

from slackswap_opt.formulation.cut_plan import LearnedRow
from slackswap_opt.plan import Action, Problem
from slackswap_opt.planners.realize import Realized
from slackswap_opt.simulator import Cause


def learned_from_memory(problem: Problem, realized: Realized) -> LearnedRow | None:
    """What was resident for later operations must become less by what was missing."""
    verdict = realized.verdict.out_of_memory
    if verdict is None or verdict.missing_bytes == 0:
        return None
    position = _position(realized, verdict.event)
    live, size = problem.liveness, problem.step.index.size_bytes
    idle = set(_idle(problem, position))
    later = [
        t
        for t in verdict.resident
        if t in idle
        or (not live.saved[t] and live.activation[t] and live.last_forward[t] < position)
    ]
    kept = tuple(t for t in later if realized.plan.of(t) is Action.KEEP)
    rebuilt = tuple(t for t in later if realized.plan.of(t) in (Action.RECOMPUTE, Action.DROP))
    held = sum(int(size[t]) for t in kept + rebuilt)
    if not held:
        return None
    everyone = tuple(t for t in problem.blocks.evictable if t in idle or t in kept)
    return LearnedRow(everyone, rebuilt, (), held - verdict.missing_bytes)


def learned_from_stalls(
    problem: Problem, realized: Realized, cut: int, seen_ns: float
) -> list[LearnedRow]:
    """Where compute waited for copies out, what was written must become less by what they moved.

    Args:
        problem: the problem.
        realized: a plan of the model.
        cut: where the model stands: it knows of stalls from there on.
        seen_ns: the step time that the model sees in the plan.
    """
    verdict = realized.verdict
    if verdict.step_ns is None or verdict.step_ns <= seen_ns:
        return []
    waits = [(_position(realized, s.event), s) for s in verdict.timeline.stalls]
    return [
        _waited(problem, realized, position, stall.end_ns - stall.start_ns)
        for position, stall in waits
        if stall.cause is Cause.SWAP_OUT and position < cut
    ]


def _waited(problem: Problem, realized: Realized, position: int, wait_ns: int) -> LearnedRow:
    size, idle = problem.step.index.size_bytes, _idle(problem, position)
    held = (Action.KEEP, Action.SWAP)
    held_bytes = sum(int(size[t]) for t in idle if realized.plan.of(t) in held)
    moved_bytes = problem.machine.link.rates().d2h * wait_ns // 1000
    return LearnedRow(idle, (), idle, held_bytes - max(1, moved_bytes))


def _position(realized: Realized, event: int) -> int:
    """The operation of the step that a compute event is, or that it comes before."""
    compute = realized.schedule.compute
    position = max(compute[: event + 1])
    return position if compute[event] == position else position + 1


def _idle(problem: Problem, position: int) -> tuple[int, ...]:
    """Tensors that the step does not touch at an operation, and that are there then if kept.

    In the forward phase those that only re-executions read are among them; later these may have
    been freed.
    """
    live = problem.liveness
    forward = bool(problem.step.index.forward[position])
    return tuple(
        t
        for t in problem.blocks.evictable
        if live.last_forward[t] < position
        and (position < live.first_later[t] if live.saved[t] else forward)
    )

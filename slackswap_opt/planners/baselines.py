"""What people use today: fixed policies that do not look at the budget.

Each makes one plan, whatever the budget; the result says whether it fits.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence

from slackswap_opt.plan import Action, Plan, PlanResult, Problem, Status
from slackswap_opt.planners.realize import realize
from slackswap_opt.step import layers_of

Policy = Callable[[Problem], Plan]


def keep_all(problem: Problem) -> PlanResult:
    """Keep every activation: the ideal step."""
    return _carry_out("keep-all", problem, lambda _: Plan({}))


def recompute_all(problem: Problem) -> PlanResult:
    """Keep what crosses a layer boundary, recompute everything inside of each layer.

    Layers are what operations are labelled with or, in a step without labels, its repeated blocks.
    """
    return _carry_out("recompute-all", problem, lambda p: _checkpoint_every(p, 1))


def sqrt_n(problem: Problem) -> PlanResult:
    """Chen et al. 2016, "Training Deep Nets with Sublinear Memory Cost".

    The n layers are cut into about sqrt(n) segments, and only what crosses a cut is kept.
    """

    def policy(p: Problem) -> Plan:
        return _checkpoint_every(p, max(1, round(math.sqrt(len(set(_layers(p).values()))))))

    return _carry_out("sqrt-n", problem, policy)


def selective(problem: Problem) -> PlanResult:
    """Korthikanti et al. 2022, selective recomputation, for any graph.

    Recompute what holds much memory and is cheap to rebuild: tensors that hold more bytes per
    second of their block than the saved activations do on average. Keep the rest.
    """
    return _carry_out("selective", problem, _selective)


def swap_all(problem: Problem) -> PlanResult:
    """Swap every saved activation out and back."""

    def policy(p: Problem) -> Plan:
        saved = (t for t in p.blocks.evictable if p.liveness.saved[t])
        return Plan(dict.fromkeys(saved, Action.SWAP))

    return _carry_out("swap-all", problem, policy)


def _carry_out(name: str, problem: Problem, policy: Policy) -> PlanResult:
    began = time.perf_counter()
    plan = policy(problem)
    realized = realize(problem, plan)
    seconds = time.perf_counter() - began
    if realized is None:
        reason = "the policy drops a tensor that cannot be rebuilt"
        if not problem.swaps:
            reason += ", or swaps where only recomputation is allowed"
        return PlanResult(name, Status.INFEASIBLE, reason=reason, planning_s=seconds)
    if realized.verdict.step_ns is None:
        reason = "its plan needs more memory than the budget"
        return PlanResult(name, Status.INFEASIBLE, reason=reason, planning_s=seconds)
    return PlanResult(
        name, Status.FEASIBLE, realized.schedule, realized.step_ns, plan, planning_s=seconds
    )


def _layers(problem: Problem) -> dict[int, str]:
    """Each forward operation's layer: its label or, where all are alike, the block it repeats."""
    index, ops = problem.step.index, problem.step.operations
    forward = [o for o in range(index.operations) if index.forward[o]]
    labels: Sequence[str] = [op.layer for op in ops]
    if len({labels[o] for o in forward}) <= 1:
        labels = layers_of(problem.step)
    return {o: labels[o] for o in forward}


def _checkpoint_every(problem: Problem, layers_per_segment: int) -> Plan:
    """Keep what passes from one segment of layers to another; recompute all else."""
    layers, index = _layers(problem), problem.step.index
    order = {
        label: n // layers_per_segment for n, label in enumerate(dict.fromkeys(layers.values()))
    }

    def segment(op: int) -> int:
        return order[layers[op]]

    def crosses(tensor: int) -> bool:
        touching = [*index.writers[tensor], *index.readers[tensor]]
        return len({segment(op) for op in touching if index.forward[op]}) > 1

    inside = (t for t in problem.blocks.evictable if not crosses(t))
    return Plan({t: Action.RECOMPUTE for t in inside if problem.blocks.block_of[t] >= 0})


def _selective(problem: Problem) -> Plan:
    index, blocks, live = problem.step.index, problem.blocks, problem.liveness
    saved = [t for t in blocks.evictable if live.saved[t]]
    forward_ns = int(index.duration_ns[index.forward].sum())
    average = sum(int(index.size_bytes[t]) for t in saved) / max(1, forward_ns)

    def cheap(tensor: int) -> bool:
        block = blocks.blocks[blocks.block_of[tensor]]
        held = sum(int(index.size_bytes[t]) for t in block.outputs)
        return held > average * block.duration_ns

    return Plan(
        {
            t: Action.RECOMPUTE if live.saved[t] else Action.DROP
            for t in blocks.evictable
            if blocks.block_of[t] >= 0 and (not live.saved[t] or cheap(t))
        }
    )

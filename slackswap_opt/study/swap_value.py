"""Is swapping worth it here? An estimate with numbers, before anything is planned.

With half of the ideal peak (or the least that any schedule needs, if that is more), the rest has to
leave. Tensors are taken cheapest first, by the time that rebuilding them costs per byte, until
enough has left: once with recomputation alone, and once with the link taking as many bytes as hide
under compute, the dearest ones. The difference is what swapping saves, and it is worth it if that
is at least `WORTH_IT` of the step.

It is an estimate, neither a plan nor a bound: it counts bytes, not when they leave, every tensor
rebuilt once, and tensors in fractions.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from slackswap_opt.plan import Problem

BUDGET = 0.5
"""The budget the estimate is for, as a fraction of the ideal peak."""
WORTH_IT = 0.01
"""Share of the ideal step that swapping must save to be worth it."""
A_LITTLE = 0.001
"""Share of the ideal step below which swapping is not worth it at all."""


@dataclass(frozen=True)
class SwapValue:
    """What swapping saves, at half of the ideal peak where that is possible.

    Attributes:
        budget_bytes: the budget that the estimate is for.
        leave_bytes: what has to leave, the peak less the budget.
        recompute_ns: recomputing enough, without swapping; None where that does not reach.
        remaining_ns: recomputing what the link does not hide; None where both do not reach.
        saved_fraction: the difference as a fraction of the ideal step; None where recomputation
            alone does not reach.
        swap_ns_per_gib: time of the slower direction for 2^30 bytes.
        rebuild_ns_per_gib: time to rebuild 2^30 bytes, on average; None where nothing can be.
        verdict: `worth it`, `worth a little`, `not worth it`, or `nothing can be swapped`.
    """

    budget_bytes: int
    leave_bytes: int
    recompute_ns: int | None
    remaining_ns: int | None
    saved_fraction: float | None
    swap_ns_per_gib: int
    rebuild_ns_per_gib: int | None
    verdict: str


def swap_value(problem: Problem, slack_bytes: int, least_bytes: int) -> SwapValue:
    """The estimate for a problem's step on its machine; the problem's budget plays no part.

    Args:
        problem: the step and the machine.
        slack_bytes: what the link hides under compute.
        least_bytes: no schedule runs with less.
    """
    peak = problem.liveness.ideal_peak_bytes
    budget = max(int(peak * BUDGET), least_bytes)
    leave = peak - budget
    rates = problem.machine.link.rates()
    priced = _priced(problem)
    rebuildable = sum(size for size, cost in priced if cost is not None)
    total_ns = sum(cost for _, cost in priced if cost is not None)
    alone = _recompute_ns(priced, leave)
    hidden = min(slack_bytes, sum(size for size, _ in priced))
    beside = _recompute_ns(_without_dearest(priced, hidden), leave - hidden)
    saved = None
    if alone is not None and beside is not None and problem.ideal_step_ns:
        saved = (alone - beside) / problem.ideal_step_ns
    return SwapValue(
        budget_bytes=budget,
        leave_bytes=leave,
        recompute_ns=alone,
        remaining_ns=beside,
        saved_fraction=saved,
        swap_ns_per_gib=round(2**30 * 1000 / min(rates.d2h, rates.h2d)),
        rebuild_ns_per_gib=round(total_ns * 2**30 / rebuildable) if rebuildable else None,
        verdict=_verdict(hidden, alone, beside, saved),
    )


def _verdict(hidden: int, alone: int | None, beside: int | None, saved: float | None) -> str:
    if not hidden:
        return "nothing can be swapped"
    if saved is None:
        return "worth it" if alone is None and beside is not None else "worth a little"
    if saved >= WORTH_IT:
        return "worth it"
    return "worth a little" if saved >= A_LITTLE else "not worth it"


Priced = tuple[int, int | None]
"""Bytes of a tensor that may leave, and the time to rebuild them, if they can be rebuilt."""


def _priced(problem: Problem) -> list[Priced]:
    """Saved tensors that may leave, from the cheapest to the dearest to rebuild per byte."""
    index, blocks, live = problem.step.index, problem.blocks, problem.liveness
    found: list[tuple[float, int, Priced]] = []
    for tensor in blocks.evictable:
        size = int(index.size_bytes[tensor])
        if not live.saved[tensor] or not size:
            continue
        number = blocks.block_of[tensor]
        if number < 0:
            found.append((float("inf"), tensor, (size, None)))
            continue
        block = blocks.blocks[number]
        share = size / max(1, sum(int(index.size_bytes[t]) for t in block.outputs))
        cost = round(block.duration_ns * share)
        found.append((cost / size, tensor, (size, cost)))
    return [priced for _, _, priced in sorted(found)]


def _recompute_ns(priced: Sequence[Priced], leave: int) -> int | None:
    """Time to rebuild the cheapest tensors of that many bytes; None if there are not enough."""
    time = 0
    for size, cost in priced:
        if leave <= 0:
            break
        if cost is None:
            continue
        taken = min(size, leave)
        time += cost * taken // size
        leave -= taken
    return time if leave <= 0 else None


def _without_dearest(priced: Sequence[Priced], hidden: int) -> list[Priced]:
    """What is left when that many bytes of the dearest tensors have been swapped."""
    left: list[Priced] = []
    for size, cost in reversed(priced):
        gone = min(size, hidden)
        hidden -= gone
        if size > gone:
            left.append((size - gone, None if cost is None else cost * (size - gone) // size))
    left.reverse()
    return left

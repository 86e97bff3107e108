"""The two copy queues as Lindley recursions in a linear model.

Time is a sequence of slots with operations in each; what comes before a slot's operations (stalls
and re-executions) is its *pause*. Copies are in order, so that work adds up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from slackswap_opt.formulation.linear import LinearModel, grain
from slackswap_opt.machine.model import LinkRates

Terms = list[tuple[int, int]]
"""Pairs of a coefficient and a variable."""


@dataclass(frozen=True)
class QueueOut:
    """Columns of the queue out by slot, as terms; empty where nothing can be waiting.

    Attributes:
        at_start: D_k, when the operations of slot k start.
        at_end: B_k, when they end.
    """

    at_start: list[Terms]
    at_end: list[Terms]


def queue_out(
    model: LinearModel,
    rates: Sequence[int],
    durations: Sequence[int],
    pauses: Sequence[Terms],
    entering: Mapping[int, Terms],
    drained_from: int | None = None,
) -> QueueOut:
    """D_k >= B_k-1 - R pause_k;  B_k >= D_k - R d_k + in_k;  B_k >= in_k.

    Args:
        model: gets the columns and rows.
        rates: R per slot, in work per nanosecond.
        durations: d_k in nanoseconds.
        pauses: time before the operations of each slot, as terms.
        entering: by slot, the work in_k that is ready to leave at its end.
        drained_from: the slot from which on nothing may be waiting any more, if there is one.
    """
    queue = QueueOut([], [])
    unit = grain(sum(durations))
    left: Terms = []
    total = 0
    for k, (rate, duration) in enumerate(zip(rates, durations, strict=True)):
        at_start: Terms = []
        if left:
            column = model.variable(total, unit=rate * unit)
            pause = [(rate * c, x) for c, x in pauses[k]]
            model.at_least([(1, column), *((-c, x) for c, x in left), *pause], 0, "queue out")
            at_start = [(1, column)]
            if drained_from is not None and k >= drained_from:
                model.at_most(at_start, 0, "drained")
                at_start = []
        enter = entering.get(k, [])
        total += sum(c for c, _ in enter)
        left = []
        if at_start or enter:
            column = model.variable(total, unit=rate * unit)
            before = [(-c, x) for c, x in at_start]
            inside = [(-c, x) for c, x in enter]
            model.at_least([(1, column), *before, *inside], -rate * duration, "queue out")
            model.at_least([(1, column), *inside], 0, "queue out")
            left = [(1, column)]
        queue.at_start.append(at_start)
        queue.at_end.append(left)
    return queue


def queue_in(
    model: LinearModel,
    rates: LinkRates,
    durations: Sequence[int],
    pauses: Sequence[Terms],
    needs: Mapping[int, Terms],
    out: QueueOut,
    turn: int,
) -> list[Terms]:
    """F_j >= need_j,  F_j >= need_j + E_j+1 - R (reruns_j + d_j) + loss_j;  E_j >= F_j - R stall_j.

    The mirror image of the queue out in reverse time: what must have come in by then, for slot j
    and all later ones. While the queue out still works, the link brings less: every unit that it
    moves in slot j costs loss_j = (R_in - R_in,duplex) / R_out,duplex units of the queue in.
    Nothing comes in before the turn. The first term of a pause is its stall, the others are
    re-executions.

    Returns:
        E_j by slot, as terms, with one more at the end that is empty.
    """
    coming: list[Terms] = [[] for _ in range(len(durations) + 1)]
    unit = rates.h2d * grain(sum(durations))
    following: Terms = []
    total = 0
    scale, lost = rates.d2h_duplex, rates.h2d - rates.h2d_duplex
    for j in range(len(durations) - 1, turn - 1, -1):
        need = needs.get(j, [])
        total += sum(max(0, c) for c, _ in need)
        if not need and not following:
            continue
        stall, *again = pauses[j]
        after_stall = model.variable(total, unit=unit)
        inside = [(-c, x) for c, x in need]
        if need:
            model.at_least([(1, after_stall), *inside], 0, "queue in")
        if following:
            reruns = [(rates.h2d * c, x) for c, x in again]
            ahead = [(-c, x) for c, x in following]
            terms = [(scale * c, x) for c, x in [(1, after_stall), *inside, *ahead, *reruns]]
            terms += [(-lost * c, x) for c, x in out.at_start[j]]
            terms += [(lost * c, x) for c, x in out.at_end[j]]
            model.at_least(terms, -scale * rates.h2d * durations[j], "queue in")
        begin = model.variable(total, unit=unit)
        waits = (rates.h2d * stall[0], stall[1])
        model.at_least([(1, begin), (-1, after_stall), waits], 0, "queue in")
        following = [(1, begin)]
        coming[j] = following
    if following:
        model.at_most(following, 0, "queue in")
    return coming

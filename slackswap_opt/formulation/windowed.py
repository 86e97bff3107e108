"""The windowed ILP: re-execute, drop and fetch again any number of times, wherever it may matter.

Time is the step's operations 0..N-1, and slot k is the moment just before operation k. A tensor is
looked at only in its slots Q_t, those in which it may be wanted (`windows`); what is on the
device in a slot is there since the slot before, runs again, or is fetched.

    t    tensor: m_t bytes held, v_t work of one copy, c_t the operation after which it may leave
    o    block that rebuilds tensors: duration d_o, inputs I_o, outputs O_o, slots W_o
    d_k  duration of operation k

Variables.

    a_tk in [0, 1]    t is on the device just before slot k, k in Q_t
    x_ok in {0, 1}    o runs again in slot k, k in W_o
    f_tk in {0, 1}    t is fetched in slot k
    h_t  in [0, 1]    t has been copied out
    s_k  >= 0         stall before operation k

With  p_tk = a_tk + x_o(t)k + f_tk  (terms that do not exist are 0), least time:
min  sum d_o x_ok + sum s_k  under

    stay     a_tk' <= p_tk                              k' the slot after k in Q_t
    need     p_tk >= 1                                  k reads t
    inputs   p_uk >= x_ok                               u in I_o
    copied   h_t >= f_tk
    memory   sum of m_t over what is held while o runs in slot k <= M less the base, o in order
             sum m_t a_t,next <= M less the base and what k touches, while k runs
    queues   what waits to leave after k, what must have come in by k  (`queues`)
    host     sum h_t over what is copied out

a needs no integrality: with x and f whole its least values are. In a slot blocks run in the order
of their numbers. While the i-th of them runs, t is held

    p_tk                              if k reads t and no later block of the slot rebuilds it
    a_tk + f_tk                       if a later block rebuilds it
    v_tj, j the first reader from i   otherwise: v_tj >= v_tj' (j' the reader in the slot after j),
                                      v_tj >= x_jk, and v_tj >= a_t,next: it stays while anything
                                      in the slot or after it still needs it

On long steps, where that would be too many terms (`Windows.detailed`), all p_tk of a slot count as
if they were there at once; a schedule frees what it no longer needs in between.
"""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from slackswap_opt.formulation.linear import MICROSECOND, LinearModel
from slackswap_opt.formulation.queues import QueueOut, queue_in, queue_out
from slackswap_opt.formulation.windows import Windows
from slackswap_opt.plan import Program, in_order, program_with

Terms = list[tuple[int, int]]
"""Pairs of a coefficient and a variable."""
WORK = 1000
"""Engine work of a byte: rates are bytes/us, times are ns."""


@dataclass
class WindowedModel:
    """The model and the meaning of its variables.

    Attributes:
        model: the linear model; its objective is the overhead in nanoseconds.
        there: a_tk by tensor and slot.
        rerun: x_ok by block number and slot.
        fetch: f_tk by tensor and slot.
        copied: h_t by tensor.
        wanted: v_tj by tensor and slot, with the block j.
        stall: s_k by operation; empty where nothing may be swapped.
    """

    model: LinearModel
    there: dict[int, dict[int, int]] = field(default_factory=dict)
    rerun: dict[int, dict[int, int]] = field(default_factory=dict)
    fetch: dict[int, dict[int, int]] = field(default_factory=dict)
    copied: dict[int, int] = field(default_factory=dict)
    wanted: dict[tuple[int, int], list[tuple[int, int]]] = field(default_factory=dict)
    stall: list[int] = field(default_factory=list)

    def program(self, windows: Windows, values: Sequence[float] | Mapping[int, int]) -> Program:
        """The program that a solution stands for."""
        again: dict[int, set[int]] = defaultdict(set)
        for n, slots in self.rerun.items():
            for k, x in slots.items():
                if values[x] > 0.5:
                    again[k].add(n)
        return program_with(
            windows.problem,
            {k: in_order(windows.problem, numbers) for k, numbers in again.items()},
            [
                (k, t)
                for t, slots in self.fetch.items()
                for k, x in slots.items()
                if values[x] > 0.5
            ],
        )


def windowed_model(windows: Windows) -> WindowedModel:
    """Build the model."""
    wm = WindowedModel(LinearModel())
    _variables(wm, windows)
    stay(wm, windows)
    need(wm, windows)
    inputs(wm, windows)
    copied(wm)
    waiting, coming = queues(wm, windows)
    memory(wm, windows, waiting, coming)
    round_trip(wm, windows, waiting)
    host(wm, windows)
    return wm


def _variables(wm: WindowedModel, windows: Windows) -> None:
    model = wm.model
    for t in windows.tensors:
        wm.there[t] = {k: model.binary(integer=False) for k in windows.slots[t]}
    for n, slots in windows.reruns.items():
        duration = windows.blocks[n].duration_ns
        wm.rerun[n] = {k: model.variable(1, integer=True, cost=duration) for k in slots}
    for t, slots in windows.fetches.items():
        wm.fetch[t] = {k: model.binary() for k in slots}
        wm.copied[t] = model.binary(integer=False)
    if wm.fetch:
        slowest = windows.problem.machine.link.rates().slowest()
        limit = max(1, windows.problem.ideal_step_ns)
        limit += 2 * sum(-(-_work(windows, t, slowest) // slowest) for t in wm.fetch)
        wm.stall = [
            model.variable(limit, unit=MICROSECOND, cost=1) for _ in range(windows.index.operations)
        ]


def _work(windows: Windows, tensor: int, rate: int) -> int:
    """Engine work of one copy, its latency included."""
    latency = windows.problem.machine.link.latency_ns
    return int(windows.index.transfer_bytes[tensor]) * WORK + latency * rate


def _provided(wm: WindowedModel, windows: Windows, t: int, k: int) -> Terms:
    """p_tk = a_tk + x_o(t)k + f_tk."""
    found = (
        wm.there[t].get(k),
        wm.rerun.get(windows.block_of.get(t, -1), {}).get(k),
        wm.fetch.get(t, {}).get(k),
    )
    return [(1, x) for x in found if x is not None]


def stay(wm: WindowedModel, windows: Windows) -> None:
    """a_tk' <= p_tk for consecutive slots k < k' of t."""
    for t, slots in wm.there.items():
        for k, following in itertools.pairwise(slots):
            terms = [*_provided(wm, windows, t, k), (-1, slots[following])]
            wm.model.at_least(terms, 0, "stay")


def need(wm: WindowedModel, windows: Windows) -> None:
    """p_tk >= 1 for every operation k that reads t."""
    for t in windows.tensors:
        for k in windows.needs[t]:
            wm.model.at_least(_provided(wm, windows, t, k), 1, "need")


def inputs(wm: WindowedModel, windows: Windows) -> None:
    """p_uk >= x_ok for every input u of o."""
    for n, slots in wm.rerun.items():
        for u in windows.blocks[n].inputs:
            if u in wm.there:
                for k, x in slots.items():
                    wm.model.at_least([*_provided(wm, windows, u, k), (-1, x)], 0, "inputs")


def copied(wm: WindowedModel) -> None:
    """h_t >= f_tk."""
    for t, slots in wm.fetch.items():
        for x in slots.values():
            wm.model.at_least([(1, wm.copied[t]), (-1, x)], 0, "copied")


def _again(wm: WindowedModel, windows: Windows, k: int) -> Terms:
    """Time of the re-executions in slot k: sum d_o x_ok."""
    return [(windows.blocks[n].duration_ns, wm.rerun[n][k]) for n in windows.blocks_at.get(k, ())]


def queues(wm: WindowedModel, windows: Windows) -> tuple[QueueOut, list[Terms]]:
    """What waits to leave after each operation, and what must have come in by each."""
    count = windows.index.operations
    if not wm.fetch:
        return QueueOut([[]] * count, [[]] * count), [[] for _ in range(count + 1)]
    rates = windows.problem.machine.link.rates()
    durations: list[int] = windows.index.duration_ns.tolist()
    pauses = [[(1, wm.stall[k]), *_again(wm, windows, k)] for k in range(count)]
    turn = min((k for slots in wm.fetch.values() for k in slots), default=count)
    entering: dict[int, Terms] = defaultdict(list)
    for t, x in wm.copied.items():
        leaves = windows.leaves[t]
        rate = rates.d2h if leaves < turn else rates.d2h_duplex
        entering[leaves].append((_work(windows, t, rate), x))
    needs: dict[int, Terms] = defaultdict(list)
    for t, slots in wm.fetch.items():
        for k, x in slots.items():
            needs[k].append((_work(windows, t, rates.h2d), x))
    out_rates = [rates.d2h if k < turn else rates.d2h_duplex for k in range(count)]
    waiting = queue_out(wm.model, out_rates, durations, pauses, entering)
    coming = queue_in(wm.model, rates, durations, pauses, needs, waiting, turn)
    return waiting, coming


def memory(wm: WindowedModel, windows: Windows, waiting: QueueOut, coming: Sequence[Terms]) -> None:
    """While operation k runs and while each block of slot k does, what is on the device fits."""
    budget = windows.problem.budget_bytes
    in_slot, running = windows.base_bytes
    if windows.detailed:
        wanted(wm, windows)
    for k, present in enumerate(windows.present):
        copies = [*waiting.at_start[k], *coming[k + 1]]
        touched = {t for t, _ in windows.index.reads[k] + windows.index.writes[k]}
        rest: Terms = []
        for t in present:
            following = windows.next_slot(t, k)
            if t not in touched and following is not None:
                rest.append((WORK * windows.size[t], wm.there[t][following]))
        room = WORK * (budget - running[k])
        wm.model.at_most([*rest, *copies], room, "memory")
        numbers = windows.blocks_at.get(k, ())
        if not numbers:
            continue
        room = WORK * (budget - in_slot[k])
        scratch = {n: windows.blocks[n].workspace_bytes for n in numbers}
        held: Terms = []
        for n in numbers if windows.detailed or any(scratch.values()) else numbers[:1]:
            if windows.detailed or not held:
                held = [
                    (WORK * windows.size[t], x)
                    for t in present
                    for _, x in _held(wm, windows, t, k, n)
                ]
            own = [(WORK * scratch[n], wm.rerun[n][k])] if scratch[n] else []
            wm.model.at_most([*held, *copies, *own], room, "memory of reruns")


def wanted(wm: WindowedModel, windows: Windows) -> None:
    """v_tj >= v_tj',  v_tj >= x_jk,  v_tj >= a_t,next  for the blocks j that read t in slot k."""
    for t in windows.tensors:
        reading: dict[int, list[int]] = defaultdict(list)
        for n in sorted(windows.readers[t]):
            for k in wm.rerun.get(n, ()):
                reading[k].append(n)
        for k, numbers in reading.items():
            if k in windows.needs[t] or k not in wm.there[t]:
                continue
            following = windows.next_slot(t, k)
            after = [] if following is None else [(-1, wm.there[t][following])]
            chain: list[tuple[int, int]] = []
            for n in reversed(numbers):
                v = wm.model.binary(integer=False)
                wm.model.at_least([(1, v), (-1, wm.rerun[n][k])], 0, "wanted")
                if after:
                    wm.model.at_least([(1, v), *after], 0, "wanted")
                after = [(-1, v)]
                chain.append((n, v))
            wm.wanted[t, k] = chain[::-1]


def _held(wm: WindowedModel, windows: Windows, t: int, k: int, running: int) -> Terms:
    """What is held of t while block `running` runs in slot k; without detail, at any time in it."""
    following = windows.next_slot(t, k)
    stays: Terms = [] if following is None else [(1, wm.there[t][following])]
    if k not in wm.there[t]:
        return stays
    provided = _provided(wm, windows, t, k)
    if not windows.detailed:
        return provided
    again = wm.rerun.get(windows.block_of.get(t, -1), {}).get(k)
    if again is not None and windows.block_of[t] > running:
        return [(c, x) for c, x in provided if x != again]
    if k in windows.needs[t]:
        return provided
    return next(([(1, v)] for n, v in wm.wanted.get((t, k), ()) if n >= running), stays)


def round_trip(wm: WindowedModel, windows: Windows, waiting: QueueOut) -> None:
    """v_t (1 / R_out + 1 / R_in) f_tk <= time from the last write to k, if it is short.

    And B_c + R_out v_t f_tk / R_in <= R_out (time from c_t to k) + (largest B_c) (1 - f_tk): t
    leaves when all that waits with it has left, and only then can it come back.
    """
    if not wm.fetch:
        return
    rates = windows.problem.machine.link.rates()
    elapsed = [0, *itertools.accumulate(windows.index.duration_ns.tolist())]
    out, back = rates.d2h, rates.h2d
    for t, slots in wm.fetch.items():
        there, here = -(-_work(windows, t, out) // out), -(-_work(windows, t, back) // back)
        leaves = windows.leaves[t]
        backlog = waiting.at_end[leaves]
        most = wm.model.variables[backlog[0][1]].upper if backlog else 0
        for k, x in slots.items():
            available = elapsed[k] - elapsed[windows.ready[t] + 1]
            after = elapsed[k] - elapsed[leaves + 1]
            if there + here <= available and most <= out * (after - here):
                break
            between = range(windows.ready[t] + 1, k + 1)
            pauses = [(1, wm.stall[j]) for j in between]
            pauses += [term for j in between[:-1] for term in _again(wm, windows, j)]
            if there + here > available:
                wm.model.at_least([(-there - here, x), *pauses], -available, "round trip")
            if backlog and most > out * (after - here):
                late = [(out * c, y) for c, y in pauses]
                terms = [*((-c, y) for c, y in backlog), *late, (-out * here - most, x)]
                wm.model.at_least(terms, -out * after - most, "round trip")


def host(wm: WindowedModel, windows: Windows) -> None:
    """Over all that is copied out, sum h_t <= H."""
    limits = windows.problem.machine.host
    if limits.pinned_bytes is not None and wm.copied:
        size = windows.index.transfer_bytes
        wm.model.at_most(
            ((limits.buffer_bytes(int(size[t])), x) for t, x in wm.copied.items()),
            limits.pinned_bytes,
            "host",
        )


def known_values(wm: WindowedModel, windows: Windows, program: Program) -> dict[int, int]:
    """Variables x, f, h and a that a program stands for; what lies outside of W is left out."""
    original = program.original
    numbers = {block.operations: n for n, block in windows.blocks.items()}
    values = dict.fromkeys((x for slots in wm.rerun.values() for x in slots.values()), 0)
    values |= dict.fromkeys((x for slots in wm.fetch.values() for x in slots.values()), 0)
    for rerun in program.reruns:
        slots = wm.rerun.get(numbers.get(rerun.block.operations, -1), {})
        x = slots.get(bisect_left(original, rerun.last))
        if x is not None:
            values[x] = 1
    for tensor, event in program.fetches:
        x = wm.fetch.get(tensor, {}).get(bisect_left(original, event))
        if x is not None:
            values[x] = 1
    return with_residency(wm, windows, values)


def with_residency(
    wm: WindowedModel, windows: Windows, values: Mapping[int, int]
) -> dict[int, int]:
    """Add the least a and h to x and f: there from each provision to the last need before the next.

    Args:
        wm: the model.
        windows: its sets.
        values: x and f.
    """
    found = dict(values)
    for t, x in wm.copied.items():
        found[x] = max(values[f] for f in wm.fetch[t].values())
    for t, slots in wm.there.items():
        own = wm.rerun.get(windows.block_of.get(t, -1), {})
        fetched = wm.fetch.get(t, {})
        read = set(windows.needs[t])
        for n in windows.readers[t]:
            read.update(k for k, x in wm.rerun.get(n, {}).items() if values[x])
        stays = 0
        for k in reversed(slots):
            provided = any(values[x] for x in (own.get(k), fetched.get(k)) if x is not None)
            after = stays
            for n, v in reversed(wm.wanted.get((t, k), ())):
                after = found[v] = max(after, values[wm.rerun[n][k]])
            stays = int((stays or k in read) and not provided)
            found[slots[k]] = stays
    return found

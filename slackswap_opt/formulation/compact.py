"""The compact ILP: keep, swap or recompute each activation, re-executing a block at most once.

Sets. Operations 0..N-1 of the step in order; "slot j" is what happens between the end of operation
j-1 and the end of operation j: stall, then the re-executions placed there, then operation j itself.

    t    evictable tensor: m_t bytes held, v_t engine work of one copy, p_t its last writer,
         a_t its last forward reader, b_t / l_t its first / last later reader ("saved" if it has one)
    o    block that rebuilds tensors: duration d_o, inputs I_o, outputs O_o
    W_o  slots in which o may run again: b_t of its outputs and of what lies downstream of it within
         a few blocks

Variables.

    K_t, S_t in {0, 1}    keep, swap (neither: recompute, or drop if nothing needs it)
    U_oj in [0, 1]        o has run again by slot j, j in W_o; y_o is the last of them
    G_tj in [0, 1]        t has been fetched by slot j
    X_tj in [0, 1]        t of a block with several outputs is there by slot j since its block ran
    A_tj in [0, 1]        t stays in slot j for re-executions, the step itself not needing it
    H_k  >= 0             bytes kept past their last forward reader, up to operation k
    J_j  >= 0             bytes kept for operations after j
    D_k, B_k >= 0         work left in the queue out: when operation k starts, and when it ends
    E_j, F_j >= 0         work that must have come in: when slot j begins, and after its stall
    q_j  >= 0             stall in slot j

Objective: least re-execution and stall,  min  sum_o d_o y_o + sum_j q_j. Constraint families, each a
function below, with its inequality in its docstring:

    decide, order, chain, fetch_early, linger           what is where
    kept_forward, kept_later, queue_out, queue_in       running sums
    memory_forward, memory_later                        the budget at every operation
    round_trip, host_memory                             limits on single swaps and on the host
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slackswap_opt.formulation.linear import MEBIBYTE, MICROSECOND, LinearModel
from slackswap_opt.plan import Action, Plan, Problem
from slackswap_opt.plan.blocks import Block

HOPS = 8
"""How far downstream, in blocks, a need may lie that re-executes a block."""
LONGEST_STALL = 4
"""Stalls are at most this many ideal steps each."""
WORK = 1000
"""Engine work of a byte: rates are bytes/us, times are ns."""


@dataclass(frozen=True)
class Tightening:
    """What earlier simulations taught: corrections by operation.

    Attributes:
        reserve_bytes: memory to leave free at an operation, beyond what the model counts.
        out_rate: link rate out (bytes/us) seen in the slot of an operation, where not the alone rate.
        in_rate: link rate in, likewise.
    """

    reserve_bytes: Mapping[int, int] = field(default_factory=dict)
    out_rate: Mapping[int, int] = field(default_factory=dict)
    in_rate: Mapping[int, int] = field(default_factory=dict)


@dataclass
class CompactModel:
    """The model and the meaning of its variables.

    Attributes:
        model: the linear model; its objective is the overhead in nanoseconds.
        keep: K_t by tensor.
        swap: S_t by tensor.
        rerun: U_oj by block number and slot.
        fetched: G_tj by tensor and slot.
        rebuilt: X_tj by tensor and slot.
        lingers: A_tj by tensor and span of operations.
        stall: q_j by operation.
    """

    model: LinearModel
    keep: dict[int, int] = field(default_factory=dict)
    swap: dict[int, int] = field(default_factory=dict)
    rerun: dict[int, dict[int, int]] = field(default_factory=dict)
    fetched: dict[int, dict[int, int]] = field(default_factory=dict)
    rebuilt: dict[int, dict[int, int]] = field(default_factory=dict)
    lingers: dict[int, dict[tuple[int, int], int]] = field(default_factory=dict)
    stall: list[int] = field(default_factory=list)

    def plan(self, values: Sequence[float]) -> Plan:
        """The actions that a solution stands for."""
        return Plan(
            {
                t: Action.KEEP
                if values[self.keep[t]] > 0.5
                else Action.SWAP
                if values[self.swap[t]] > 0.5
                else Action.RECOMPUTE
                for t in self.keep
            }
        )


def compact_model(
    problem: Problem,
    tightening: Tightening | None = None,
    fixed: Mapping[int, Action] | None = None,
) -> CompactModel:
    """Build the model.

    Args:
        problem: step, machine and budget.
        tightening: corrections learned from simulations.
        fixed: actions that are decided already, by tensor.
    """
    sets = Sets(problem, tightening or Tightening())
    cm = CompactModel(LinearModel())
    _variables(cm, sets)
    decide(cm, sets)
    order(cm, sets)
    chain(cm, sets)
    fetch_early(cm, sets)
    linger(cm, sets)
    kept = kept_forward(cm, sets)
    ahead = kept_later(cm, sets)
    waiting = queue_out(cm, sets)
    coming = queue_in(cm, sets)
    memory_forward(cm, sets, kept, waiting)
    memory_later(cm, sets, ahead, waiting, coming)
    round_trip(cm, sets)
    host_memory(cm, sets)
    for t, action in (fixed or {}).items():
        if t in cm.keep:
            cm.model.fix(cm.keep[t], int(action is Action.KEEP))
            cm.model.fix(cm.swap[t], int(action is Action.SWAP))
    return cm


class Sets:
    """The model's sets and data."""

    def __init__(self, problem: Problem, tightening: Tightening) -> None:
        self.problem, self.tightening = problem, tightening
        index, live, blocks = problem.step.index, problem.liveness, problem.blocks
        self.index, self.live = index, live
        self.count = index.operations
        self.duration: list[int] = index.duration_ns.tolist()
        self.size: list[int] = index.size_bytes.tolist()
        self.saved = {t for t in blocks.evictable if live.saved[t]}
        feeds = {t for block in blocks.blocks for t in block.inputs}
        self.tensors = [
            t for t in blocks.evictable if self.size[t] > 0 and (t in self.saved or t in feeds)
        ]
        members = set(self.tensors)
        self.blocks: dict[int, Block] = {
            n: block
            for n, block in enumerate(blocks.blocks)
            if any(t in members for t in block.outputs)
        }
        self.block_of = {t: blocks.block_of[t] for t in self.tensors}
        self.readers: dict[int, list[int]] = defaultdict(list)
        for n, block in self.blocks.items():
            for t in block.inputs:
                if t in members:
                    self.readers[t].append(n)
        self.ready = {t: int(live.last_write[t]) for t in self.tensors}
        self.done = {t: int(live.last_forward[t]) for t in self.tensors}
        self.first = {t: int(live.first_later[t]) for t in self.saved}
        self.last = {t: int(live.last_access[t]) for t in self.saved}
        rates = problem.machine.link.rates()
        self.out_rate = [tightening.out_rate.get(k, rates.d2h) for k in range(self.count)]
        self.in_rate = [tightening.in_rate.get(k, rates.h2d) for k in range(self.count)]
        self.turn = min(self.first.values(), default=self.count)

    def work(self, tensor: int, rate: int) -> int:
        """Engine work of one copy, its latency included."""
        latency = self.problem.machine.link.latency_ns
        return int(self.index.transfer_bytes[tensor]) * WORK + latency * rate

    @cached_property
    def windows(self) -> dict[int, list[int]]:
        """W_o, ascending."""
        near: dict[int, dict[int, int]] = {}
        for n in sorted(self.blocks, reverse=True):
            reach = {
                self.first[t]: 0 for t in self.blocks[n].outputs if t in self.saved and self.size[t]
            }
            for t in self.blocks[n].outputs:
                for reader in self.readers.get(t, ()):
                    for slot, hops in near.get(reader, {}).items():
                        if hops < HOPS:
                            reach[slot] = min(reach.get(slot, HOPS), hops + 1)
            near[n] = reach
        return {n: sorted(near[n]) for n in self.blocks if near[n]}

    @cached_property
    def base_bytes(self) -> list[int]:
        """Bytes held whatever is decided, by operation.

        Tensors that cannot be evicted, evictable ones up to their last forward reader and from
        their first to their last later reader, workspace, and what experience reserves.
        """
        change = [0] * (self.count + 1)

        def hold(first: int, last: int, size: int) -> None:
            change[first] += size
            change[last + 1] -= size

        evictable = set(self.problem.blocks.evictable)
        for t in range(self.index.tensors):
            written = int(self.live.first_write[t])
            if written < 0:
                continue
            if t in evictable:
                hold(written, int(self.live.last_forward[t]), self.size[t])
                if self.live.saved[t]:
                    hold(int(self.live.first_later[t]), int(self.live.last_access[t]), self.size[t])
            else:
                hold(written, int(self.live.last_access[t]), self.size[t])
        workspace = self.index.workspace_bytes.tolist()
        reserve = self.tightening.reserve_bytes
        return [
            held + workspace[k] + reserve.get(k, 0)
            for k, held in enumerate(itertools.accumulate(change[:-1]))
        ]


def _variables(cm: CompactModel, sets: Sets) -> None:
    model = cm.model
    for t in sets.tensors:
        cm.keep[t] = model.binary()
        cm.swap[t] = model.binary()
    for n, window in sets.windows.items():
        cm.rerun[n] = {j: model.binary(integer=False) for j in window}
        model.objective[cm.rerun[n][window[-1]]] = sets.blocks[n].duration_ns
    limit = LONGEST_STALL * max(1, sets.problem.ideal_step_ns)
    cm.stall = [model.variable(limit, unit=MICROSECOND, cost=1) for _ in range(sets.count)]


def _slots_for(cm: CompactModel, sets: Sets, t: int) -> list[int]:
    """Slots in which a re-execution may read the tensor."""
    return sorted({j for n in sets.readers.get(t, ()) for j in cm.rerun.get(n, ())})


def _by(slots: Mapping[int, int], j: int) -> list[tuple[int, int]]:
    """The variable of the last slot up to j, as a term; nothing if there is none."""
    before = [q for q in slots if q <= j]
    return [(1, slots[max(before)])] if before else []


def decide(cm: CompactModel, sets: Sets) -> None:
    """K_t + S_t <= 1;  U_o,b_t + K_t + S_t >= 1 for saved t (K_t + S_t >= 1 without a block)."""
    for t in sets.tensors:
        cm.model.at_most([(1, cm.keep[t]), (1, cm.swap[t])], 1, "decide")
        if t in sets.saved:
            slots = cm.rerun.get(sets.block_of[t], {})
            terms = [(1, cm.keep[t]), (1, cm.swap[t]), *_by(slots, sets.first[t])]
            cm.model.at_least(terms, 1, "decide")


def order(cm: CompactModel, sets: Sets) -> None:
    """U_oj <= U_oj' for consecutive slots j < j' of W_o: what has run has run."""
    for slots in cm.rerun.values():
        for earlier, later in itertools.pairwise(slots.values()):
            cm.model.at_least([(1, later), (-1, earlier)], 0, "order")


def chain(cm: CompactModel, sets: Sets) -> None:
    """K_u + S_u + U_o(u),j >= U_oj for every input u of o: what runs again has its inputs.

    From b_u on, `decide` already says so.
    """
    for n, slots in cm.rerun.items():
        for u in sets.blocks[n].inputs:
            if u not in cm.keep:
                continue
            for j, variable in slots.items():
                if u in sets.saved and j >= sets.first[u]:
                    break
                again = _by(cm.rerun.get(sets.block_of[u], {}), j)
                terms = [(1, cm.keep[u]), (1, cm.swap[u]), *again, (-1, variable)]
                cm.model.at_least(terms, 0, "chain")


def fetch_early(cm: CompactModel, sets: Sets) -> None:
    """G_tj >= S_t + U_cj - 1 for c reading t before b_t; G_tj <= G_tj'; G_t,b_t >= S_t.

    X_tj >= U_oj - K_t - S_t for t of a block with several outputs (with one, X_tj = U_oj).
    """
    for t in sets.tensors:
        final = sets.first.get(t, sets.count)
        slots = [j for j in _slots_for(cm, sets, t) if j < final]
        fetched = {j: cm.model.binary(integer=False) for j in slots}
        for earlier, later in itertools.pairwise(fetched.values()):
            cm.model.at_least([(1, later), (-1, earlier)], 0, "fetch")
        for n in sets.readers.get(t, ()):
            for j, reruns in cm.rerun.get(n, {}).items():
                if j in fetched:
                    terms = [(1, fetched[j]), (-1, cm.swap[t]), (-1, reruns)]
                    cm.model.at_least(terms, -1, "fetch")
        if t in sets.saved:
            fetched[final] = cm.swap[t]
        cm.fetched[t] = fetched
        block = sets.block_of[t]
        own = {j: u for j, u in cm.rerun.get(block, {}).items() if j < final}
        if own and len(sets.blocks[block].outputs) > 1:
            cm.rebuilt[t] = {}
            for j, reruns in own.items():
                there = cm.model.binary(integer=False)
                terms = [(1, there), (-1, reruns), (1, cm.keep[t]), (1, cm.swap[t])]
                cm.model.at_least(terms, 0, "fetch")
                cm.rebuilt[t][j] = there
        else:
            cm.rebuilt[t] = own


def linger(cm: CompactModel, sets: Sets) -> None:
    """A_tj >= (K_t + G_tj + X_tj) + (y_c - U_c,j-1) - 1 for c reading t in slots after l_t.

    t stays while a re-execution that reads it is still to come; l_t is the turn for unsaved t. For the
    operations between two slots i < j, what is there is what was there in slot i.
    """
    for t in sets.tensors:
        after = sets.last.get(t, sets.turn - 1)
        slots = [j for j in _slots_for(cm, sets, t) if j > after]
        spans = [(j, j, j) for j in slots]
        spans += [(i + 1, j - 1, i) for i, j in itertools.pairwise(slots) if j - i > 1]
        if t in sets.saved and slots and slots[0] > after + 1:
            spans.append((after + 1, slots[0] - 1, after))
        cm.lingers[t] = {}
        for begin, end, since in spans:
            stays = cm.model.binary(integer=False)
            there = _there(cm, sets, t, since)
            for n in sets.readers.get(t, ()):
                reruns = cm.rerun.get(n, {})
                if reruns and begin <= max(reruns):
                    final = next(reversed(reruns.values()))
                    pending = [(-1, final), *_by(reruns, begin - 1)]
                    cm.model.at_least([(1, stays), *pending, *there], -bool(there), "linger")
            cm.lingers[t][begin, end] = stays


def _there(cm: CompactModel, sets: Sets, t: int, j: int) -> list[tuple[int, int]]:
    """-(K_t + G_tj + X_tj); nothing for a saved tensor, which is there from b_t on anyway."""
    if t in sets.saved:
        return []
    here = [(1, cm.keep[t]), *_by(cm.fetched[t], j), *_by(cm.rebuilt[t], j)]
    return [(-c, x) for c, x in here]


def kept_forward(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
    """H_k >= H_k-1 + sum_{a_t = k-1} m_t K_t, for operations up to the turn."""
    leaving: dict[int, list[int]] = defaultdict(list)
    for t in sets.tensors:
        leaving[sets.done[t]].append(t)
    return _running(
        cm,
        (
            (k, [(sets.size[t], cm.keep[t]) for t in leaving.get(k - 1, ())])
            for k in range(sets.turn)
        ),
        MEBIBYTE,
        "kept",
    )


def kept_later(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
    """J_j >= J_j+1 + sum_{b_t = j+1} m_t K_t, from the last operation down to the turn."""
    needed: dict[int, list[int]] = defaultdict(list)
    for t, first in sets.first.items():
        if t in cm.keep:
            needed[first].append(t)
    down = range(sets.count - 1, sets.turn - 1, -1)
    sums = _running(
        cm,
        ((j, [(sets.size[t], cm.keep[t]) for t in needed.get(j + 1, ())]) for j in down),
        MEBIBYTE,
        "kept",
    )
    return [[]] * sets.turn + sums[::-1]


def _running(
    cm: CompactModel,
    entries: Iterable[tuple[int, list[tuple[int, int]]]],
    unit: int,
    family: str,
) -> list[list[tuple[int, int]]]:
    """Running sums as columns, a new one only where something enters."""
    sums: list[list[tuple[int, int]]] = []
    current: list[tuple[int, int]] = []
    total = 0
    for _, terms in entries:
        if terms:
            total += sum(c for c, _ in terms)
            column = cm.model.variable(total, unit=unit)
            inside = [(-c, x) for c, x in terms + current]
            cm.model.at_least([(1, column), *inside], 0, family)
            current = [(1, column)]
        sums.append(current)
    return sums


def _rerun_time(
    cm: CompactModel, sets: Sets, j: int, starts: Mapping[int, list[int]]
) -> list[tuple[int, int]]:
    """Time of the re-executions in slot j: sum over o of d_o (U_oj - U_o,j-1)."""
    terms = []
    for n in starts.get(j, ()):
        slots = cm.rerun[n]
        duration = sets.blocks[n].duration_ns
        terms.append((duration, slots[j]))
        terms += [(-duration, x) for _, x in _by(slots, j - 1)]
    return terms


def _blocks_by_slot(cm: CompactModel) -> dict[int, list[int]]:
    starts: dict[int, list[int]] = defaultdict(list)
    for n, slots in cm.rerun.items():
        for j in slots:
            starts[j].append(n)
    return starts


def queue_out(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
    """D_k >= B_k-1 - R (q_k + reruns_k);  B_k >= D_k - R d_k + in_k;  B_k >= in_k.

    Work enters when its tensor's last forward reader is done (until then it is counted as held).
    Returns D_k by operation, as terms; empty once nothing can be waiting.
    """
    entering: dict[int, list[int]] = defaultdict(list)
    for t in sets.tensors:
        entering[sets.done[t]].append(t)
    starts = _blocks_by_slot(cm)
    waiting: list[list[tuple[int, int]]] = []
    left: list[tuple[int, int]] = []
    total = 0
    unit = MEBIBYTE * WORK
    for k in range(sets.count):
        rate = sets.out_rate[k]
        at_start: list[tuple[int, int]] = []
        if left:
            column = cm.model.variable(total, unit=unit)
            pause = [(rate, cm.stall[k])]
            pause += [(rate * c, x) for c, x in _rerun_time(cm, sets, k, starts)]
            cm.model.at_least([(1, column), *((-c, x) for c, x in left), *pause], 0, "queue out")
            at_start = [(1, column)]
        waiting.append(at_start)
        enter = [(sets.work(t, rate), cm.swap[t]) for t in entering.get(k, ())]
        total += sum(c for c, _ in enter)
        if not at_start and not enter:
            left = []
            continue
        column = cm.model.variable(total, unit=unit)
        inside = [(-c, x) for c, x in enter]
        if at_start:
            before = [(-c, x) for c, x in at_start]
            cm.model.at_least(
                [(1, column), *before, *inside], -rate * sets.duration[k], "queue out"
            )
        if inside:
            cm.model.at_least([(1, column), *inside], 0, "queue out")
        left = [(1, column)]
        if not enter and total <= rate * sum(sets.duration[sets.turn : k + 1]) and k >= sets.turn:
            left = []
    return waiting


def queue_in(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
    """F_j >= need_j;  F_j >= need_j + E_j+1 - R (reruns_j + d_j);  E_j >= F_j - R q_j.

    The mirror image of the queue out in reverse time: what must have come in by then, for slot j
    and all later ones. Nothing can come in before the turn. Returns E_j by operation, as terms.
    """
    starts = _blocks_by_slot(cm)
    unit = MEBIBYTE * WORK
    needs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for t, slots in cm.fetched.items():
        previous: int | None = None
        for j, variable in slots.items():
            work = sets.work(t, sets.in_rate[j])
            needs[j].append((work, variable))
            if previous is not None:
                needs[j].append((-work, previous))
            previous = variable
    coming: list[list[tuple[int, int]]] = [[] for _ in range(sets.count + 1)]
    following: list[tuple[int, int]] = []
    total = 0
    for j in range(sets.count - 1, sets.turn - 1, -1):
        rate = sets.in_rate[j]
        need = needs.get(j, [])
        total += sum(max(0, c) for c, _ in need)
        if not need and not following:
            continue
        after_stall = cm.model.variable(total, unit=unit)
        inside = [(-c, x) for c, x in need]
        if need:
            cm.model.at_least([(1, after_stall), *inside], 0, "queue in")
        if following:
            again = [(rate * c, x) for c, x in _rerun_time(cm, sets, j, starts)]
            ahead = [(-c, x) for c, x in following]
            cm.model.at_least(
                [(1, after_stall), *inside, *ahead, *again],
                -rate * sets.duration[j],
                "queue in",
            )
        begin = cm.model.variable(total, unit=unit)
        cm.model.at_least([(1, begin), (-1, after_stall), (rate, cm.stall[j])], 0, "queue in")
        following = [(1, begin)]
        coming[j] = following
    if following:
        cm.model.at_most(following, 0, "queue in")
    return coming


def memory_forward(
    cm: CompactModel,
    sets: Sets,
    kept: Sequence[list[tuple[int, int]]],
    waiting: Sequence[list[tuple[int, int]]],
) -> None:
    """base_k + H_k + D_k <= M for every operation up to the turn."""
    for k in range(sets.turn):
        room = sets.problem.budget_bytes - sets.base_bytes[k]
        terms = [(WORK * c, x) for c, x in kept[k]] + waiting[k]
        cm.model.at_most(terms, WORK * room, "memory")


def memory_later(
    cm: CompactModel,
    sets: Sets,
    ahead: Sequence[list[tuple[int, int]]],
    waiting: Sequence[list[tuple[int, int]]],
    coming: Sequence[list[tuple[int, int]]],
) -> None:
    """base_j + J_j + sum_{b_t > j} m_t (G_tj + X_tj) + sum m_t A_tj + D_j + E_j+1 <= M."""
    early: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for t in sets.tensors:
        final = sets.first.get(t, sets.turn)
        events = sorted({j for j in (*cm.fetched[t], *cm.rebuilt[t]) if j < final})
        for j, following in itertools.zip_longest(events, events[1:], fillvalue=final):
            terms = _by(cm.fetched[t], j) + _by(cm.rebuilt[t], j)
            for k in range(j, following):
                early[k] += [(sets.size[t] * c, x) for c, x in terms]
        if t not in sets.saved and cm.lingers[t]:
            for k in range(sets.turn, min(begin for begin, _ in cm.lingers[t])):
                early[k].append((sets.size[t], cm.keep[t]))
        for (begin, end), stays in cm.lingers[t].items():
            for k in range(begin, end + 1):
                early[k].append((sets.size[t], stays))
    for j in range(sets.turn, sets.count):
        room = sets.problem.budget_bytes - sets.base_bytes[j]
        terms = [(WORK * c, x) for c, x in (*ahead[j], *early.get(j, ()))]
        cm.model.at_most([*terms, *waiting[j], *coming[j + 1]], WORK * room, "memory")


def round_trip(cm: CompactModel, sets: Sets) -> None:
    """v_t (1/R_out + 1/R_in) S_t <= time from p_t to b_t, stalls and re-executions included."""
    elapsed = list(itertools.accumulate(sets.duration, initial=0))
    starts = _blocks_by_slot(cm)
    for t in sets.tensors:
        first = sets.first.get(t)
        if first is None:
            continue
        out, back = sets.out_rate[sets.ready[t]], sets.in_rate[first]
        trip = -(-sets.work(t, out) // out) + -(-sets.work(t, back) // back)
        available = elapsed[first] - elapsed[sets.ready[t] + 1]
        if trip <= available:
            continue
        between = range(sets.ready[t] + 1, first + 1)
        pauses = [(1, cm.stall[k]) for k in between]
        again = [term for k in between for term in _rerun_time(cm, sets, k, starts) if k < first]
        cm.model.at_least([(-trip, cm.swap[t]), *pauses, *again], -available, "round trip")


def host_memory(cm: CompactModel, sets: Sets) -> None:
    """sum h_t S_t <= H."""
    host = sets.problem.machine.host
    if host.pinned_bytes is not None:
        size = sets.index.transfer_bytes
        cm.model.at_most(
            ((host.buffer_bytes(int(size[t])), x) for t, x in cm.swap.items()),
            host.pinned_bytes,
            "host",
        )

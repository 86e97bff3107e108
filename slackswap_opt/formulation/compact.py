"""The compact ILP: keep, swap or recompute each activation, re-executing a block at most once.

Time is cut into *runs* of consecutive operations of the step, 0..R-1: one operation each where
the step is short (the model is then exact up to fluid transfers), a few where it is long, but
single ones around the peak. What happens within a run is counted on the safe side: stalls and
re-executions come before its operations, what leaves leaves at its end, what returns is there
from its start.

    t    evictable tensor: m_t bytes held, v_t engine work of one copy, a_t the run of its last
         forward reader, b_t / l_t those of its first / last later reader ("saved" if it has one)
    o    block that rebuilds tensors: duration d_o, inputs I_o, outputs O_o
    W_o  runs in which o may run again: b_t of its outputs and of what lies downstream of it within
         a few blocks
    d_j  time of the operations of run j

Variables.

    K_t, S_t in {0, 1}    keep, swap (neither: recompute, or drop if nothing needs it)
    U_oj in [0, 1]        o has run again by run j, j in W_o; y_o is the last of them
    G_tj in [0, 1]        t has been fetched by run j
    X_tj in [0, 1]        t of a block with several outputs is there by run j since its block ran
    A_tj in [0, 1]        t stays in run j for re-executions, the step itself not needing it
    H_k  >= 0             bytes kept past their last forward reader, in run k
    J_j  >= 0             bytes kept for runs after j
    D_k, B_k >= 0         work left in the queue out: when the operations of run k start, and end
    E_j, F_j >= 0         work that must have come in: when run j begins, and after its stall
    q_j  >= 0             stall in run j

Objective: least re-execution and stall,  min  sum_o d_o y_o + sum_j q_j. The constraint families,
each a function below with its inequality in its docstring:

    decide, order, chain, fetch_early, linger           what is where
    kept_forward, kept_later, held_early,
    queues                                              running sums
    memory_forward, memory_later, memory_rerun          the budget in every run
    round_trip, host_memory                             limits on single swaps and on the host
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap_opt.formulation.linear import MICROSECOND, LinearModel, grain
from slackswap_opt.formulation.queues import QueueOut, queue_in, queue_out
from slackswap_opt.formulation.sets import WORK, Sets
from slackswap_opt.plan import Action, Plan

Terms = list[tuple[int, int]]
"""Pairs of a coefficient and a variable."""


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


def compact_model(sets: Sets) -> CompactModel:
    """Build the model."""
    cm = CompactModel(LinearModel())
    _variables(cm, sets)
    decide(cm, sets)
    order(cm)
    chain(cm, sets)
    fetch_early(cm, sets)
    linger(cm, sets)
    waiting, coming = queues(cm, sets)
    sums = Sums(
        kept=kept_forward(cm, sets),
        ahead=kept_later(cm, sets),
        early=held_early(cm, sets),
        waiting=waiting,
        coming=coming,
    )
    memory_forward(cm, sets, sums)
    memory_later(cm, sets, sums)
    memory_rerun(cm, sets, sums)
    round_trip(cm, sets, sums)
    host_memory(cm, sets)
    return cm


def _variables(cm: CompactModel, sets: Sets) -> None:
    model = cm.model
    for t in sets.tensors:
        cm.keep[t] = model.binary()
        cm.swap[t] = model.variable(int(sets.problem.swaps), integer=True)
    for n, window in sets.windows.items():
        cm.rerun[n] = {j: model.binary(integer=False) for j in window}
        model.objective[cm.rerun[n][window[-1]]] = sets.blocks[n].duration_ns
    if not sets.problem.swaps:
        return
    slowest = sets.problem.machine.link.rates().slowest()
    limit = max(1, sets.problem.ideal_step_ns)
    limit += 2 * sum(-(-sets.work(t, slowest) // slowest) for t in sets.tensors)
    cm.stall = [model.variable(limit, unit=MICROSECOND, cost=1) for _ in range(sets.count)]


def _slots_for(cm: CompactModel, sets: Sets, t: int) -> list[int]:
    """Slots in which a re-execution may read the tensor."""
    return sorted({j for n in sets.readers.get(t, ()) for j in cm.rerun.get(n, ())})


def _by(slots: Mapping[int, int], j: int) -> Terms:
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


def order(cm: CompactModel) -> None:
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
    swaps = sets.problem.swaps
    for t in sets.tensors:
        final = sets.first.get(t, sets.count)
        slots = [j for j in _slots_for(cm, sets, t) if j < final] if swaps else []
        fetched = {j: cm.model.binary(integer=False) for j in slots}
        for earlier, later in itertools.pairwise(fetched.values()):
            cm.model.at_least([(1, later), (-1, earlier)], 0, "fetch")
        for n in sets.readers.get(t, ()):
            for j, reruns in cm.rerun.get(n, {}).items():
                if j in fetched:
                    terms = [(1, fetched[j]), (-1, cm.swap[t]), (-1, reruns)]
                    cm.model.at_least(terms, -1, "fetch")
        if t in sets.saved and swaps:
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

    t stays while a re-execution that reads it is still to come; l_t is the turn for unsaved t. In
    the runs between two slots i < j, what is there is what was there in slot i.
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


def _there(cm: CompactModel, sets: Sets, t: int, j: int) -> Terms:
    """-(K_t + G_tj + X_tj); nothing for a saved tensor, which is there from b_t on anyway."""
    if t in sets.saved:
        return []
    here = [(1, cm.keep[t]), *_by(cm.fetched[t], j), *_by(cm.rebuilt[t], j)]
    return [(-c, x) for c, x in here]


def kept_forward(cm: CompactModel, sets: Sets) -> list[Terms]:
    """H_k >= H_k-1 + sum_{a_t = k-1} m_t K_t, up to the turn."""
    leaving: dict[int, list[int]] = defaultdict(list)
    for t in sets.tensors:
        leaving[sets.done[t]].append(t)
    return _running(
        cm,
        (
            (k, [(sets.size[t], cm.keep[t]) for t in leaving.get(k - 1, ())])
            for k in range(sets.turn)
        ),
        grain(sets.problem.budget_bytes),
        "kept",
    )


def kept_later(cm: CompactModel, sets: Sets) -> list[Terms]:
    """J_j >= J_j+1 + sum_{b_t = j+1} m_t K_t, from the last run down to the turn."""
    needed: dict[int, list[int]] = defaultdict(list)
    for t, first in sets.first.items():
        if t in cm.keep:
            needed[first].append(t)
    down = range(sets.count - 1, sets.turn - 1, -1)
    sums = _running(
        cm,
        ((j, [(sets.size[t], cm.keep[t]) for t in needed.get(j + 1, ())]) for j in down),
        grain(sets.problem.budget_bytes),
        "kept",
    )
    return [[]] * sets.turn + sums[::-1]


def _running(
    cm: CompactModel,
    entries: Iterable[tuple[int, Terms]],
    unit: int,
    family: str,
) -> list[Terms]:
    """Running sums as columns, a new one only where something enters."""
    sums: list[Terms] = []
    current: Terms = []
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


def _rerun_time(cm: CompactModel, sets: Sets, j: int, starts: Mapping[int, list[int]]) -> Terms:
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


@dataclass(frozen=True)
class Sums:
    """Running sums by run, as terms.

    Attributes:
        kept: H_k.
        ahead: J_j.
        early: bytes fetched or rebuilt before their first reader, or lingering after their last.
        waiting: D_k and B_k.
        coming: E_j.
    """

    kept: list[Terms]
    ahead: list[Terms]
    early: dict[int, Terms]
    waiting: QueueOut
    coming: list[Terms]

    def held(self, j: int) -> Terms:
        """What is decided of the memory in run j after the turn, in work units."""
        held = [(WORK * c, x) for c, x in (*self.ahead[j], *self.early.get(j, ()))]
        return [*held, *self.waiting.at_start[j], *self.coming[j + 1]]


def queues(cm: CompactModel, sets: Sets) -> tuple[QueueOut, list[Terms]]:
    """D_k, B_k and E_j (`queues`), by run.

    Work enters when its tensor's last forward reader is done (until then it is counted as held).
    Without swaps both queues are empty.
    """
    if not sets.problem.swaps:
        return QueueOut([[]] * sets.count, [[]] * sets.count), [[] for _ in range(sets.count + 1)]
    entering: dict[int, Terms] = defaultdict(list)
    for t in sets.tensors:
        done = sets.done[t]
        entering[done].append((sets.work(t, sets.out_rate(done)), cm.swap[t]))
    starts = _blocks_by_slot(cm)
    pauses = [[(1, cm.stall[k]), *_rerun_time(cm, sets, k, starts)] for k in range(sets.count)]
    needs: dict[int, Terms] = defaultdict(list)
    for t, slots in cm.fetched.items():
        work = sets.work(t, sets.rates.h2d)
        previous: int | None = None
        for j, variable in slots.items():
            needs[j].append((work, variable))
            if previous is not None:
                needs[j].append((-work, previous))
            previous = variable
    out_rates = [sets.out_rate(k) for k in range(sets.count)]
    drained = sets.turn if sets.drained else None
    waiting = queue_out(cm.model, out_rates, sets.duration, pauses, entering, drained)
    coming = queue_in(cm.model, sets.rates, sets.duration, pauses, needs, waiting, sets.turn)
    return waiting, coming


def memory_forward(cm: CompactModel, sets: Sets, sums: Sums) -> None:
    """base_k + H_k + D_k <= M for every run up to the turn."""
    for k in range(sets.turn):
        room = sets.problem.budget_bytes - sets.base_bytes[k]
        terms = [(WORK * c, x) for c, x in sums.kept[k]] + sums.waiting.at_start[k]
        cm.model.at_most(terms, WORK * room, "memory")


def memory_later(cm: CompactModel, sets: Sets, sums: Sums) -> None:
    """base_j + J_j + sum_{b_t > j} m_t (G_tj + X_tj) + sum m_t A_tj + D_j + E_j+1 <= M."""
    for j in range(sets.turn, sets.count):
        room = sets.problem.budget_bytes - sets.base_bytes[j]
        cm.model.at_most(sums.held(j), WORK * room, "memory")


def memory_rerun(cm: CompactModel, sets: Sets, sums: Sums) -> None:
    """The row of memory_later while o runs again in run j, its scratch instead of the run's own.

    Scratch is o's workspace, and a second buffer for each output that is there already:
    (scratch_o - what the run's operations allocate) (U_oj - U_o,j-1) on top of the row of run j.
    """
    for n, slots in cm.rerun.items():
        block = sets.blocks[n]
        scratch = block.workspace_bytes
        if len(block.outputs) > 1:
            scratch += sum(sets.size[t] for t in block.outputs)
        for j, variable in slots.items():
            more = scratch - sets.own_bytes[j]
            if more <= 0:
                continue
            room = sets.problem.budget_bytes - sets.base_bytes[j]
            runs = [(WORK * more, variable)]
            runs += [(-WORK * more, x) for _, x in _by(slots, j - 1)]
            cm.model.at_most([*sums.held(j), *runs], WORK * room, "memory of reruns")


def held_early(cm: CompactModel, sets: Sets) -> dict[int, Terms]:
    """Per run, what is fetched or rebuilt before its first reader, or lingers after its last."""
    early: dict[int, Terms] = defaultdict(list)
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
    return early


def round_trip(cm: CompactModel, sets: Sets, sums: Sums) -> None:
    """B_a + R_out v_t S_t / R_in <= R_out (time from a_t to b_t) + (largest B_a) (1 - S_t).

    Queues are in order: t leaves when all that waits with it at the end of its run a_t has left,
    and only then can it come back. Where it enters an empty queue, it may start as soon as its last
    writer is done: v_t (1 / R_out + 1 / R_in) S_t <= time from that writer to b_t.
    """
    if not sets.problem.swaps:
        return
    starts = _blocks_by_slot(cm)
    out, back = sets.rates.d2h, sets.rates.h2d
    for t in sets.saved & set(sets.tensors):
        ready, first = int(sets.live.last_write[t]), int(sets.live.first_later[t])
        there, here = -(-sets.work(t, out) // out), -(-sets.work(t, back) // back)
        available = sets.elapsed[first] - sets.elapsed[ready + 1]
        between = range(sets.run_of[ready] + 1, sets.first[t] + 1)
        pauses = [(1, cm.stall[k]) for k in between]
        pauses += [x for k in between[:-1] for x in _rerun_time(cm, sets, k, starts)]
        if there + here > available:
            cm.model.at_least([(-there - here, cm.swap[t]), *pauses], -available, "round trip")
        backlog = sums.waiting.at_end[sets.done[t]]
        if not backlog:
            continue
        most = cm.model.variables[backlog[0][1]].upper
        after = sum(sets.duration[sets.done[t] + 1 : sets.first[t]])
        between = range(sets.done[t] + 1, sets.first[t] + 1)
        if most > out * (after - here):
            pauses = [(out, cm.stall[k]) for k in between]
            terms = [*((-c, x) for c, x in backlog), *pauses, (-out * here - most, cm.swap[t])]
            cm.model.at_least(terms, -out * after - most, "round trip")


def host_memory(cm: CompactModel, sets: Sets) -> None:
    """Over all swapped tensors, sum h_t S_t <= H."""
    host = sets.problem.machine.host
    if host.pinned_bytes is not None:
        size = sets.index.transfer_bytes
        cm.model.at_most(
            ((host.buffer_bytes(int(size[t])), x) for t, x in cm.swap.items()),
            host.pinned_bytes,
            "host",
        )

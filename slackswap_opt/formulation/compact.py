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
    kept_forward, kept_later, queue_out, queue_in       running sums
    memory_forward, memory_later, memory_rerun          the budget in every run
    round_trip, host_memory                             limits on single swaps and on the host
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

from slackswap_opt.formulation.linear import MEBIBYTE, MICROSECOND, LinearModel
from slackswap_opt.plan import Action, Plan, Problem
from slackswap_opt.plan.blocks import Block

HOPS = 16
"""How far downstream, in blocks, a need may lie that re-executes a block."""
RUNS = 200
"""Steps of more operations than this are cut into about as many runs."""
FINE = 12
"""Operations on either side of the ideal peak that are runs of their own."""
WORK = 1000
"""Engine work of a byte: rates are bytes/us, times are ns."""


@dataclass(frozen=True)
class Tightening:
    """What earlier simulations taught.

    Attributes:
        reserve_bytes: memory to leave free at an operation, beyond what the model counts.
    """

    reserve_bytes: Mapping[int, int] = field(default_factory=dict)

    def with_reserve(self, operation: int, more_bytes: int) -> Tightening:
        """The same with more memory left free at an operation."""
        reserve = dict(self.reserve_bytes)
        reserve[operation] = reserve.get(operation, 0) + more_bytes
        return Tightening(reserve)


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
    kept = kept_forward(cm, sets)
    ahead = kept_later(cm, sets)
    waiting = queue_out(cm, sets)
    coming = queue_in(cm, sets, waiting)
    memory_forward(cm, sets, kept, waiting.at_start)
    memory_later(cm, sets, ahead, waiting.at_start, coming)
    memory_rerun(cm, sets, ahead, waiting.at_start, coming)
    round_trip(cm, sets, waiting)
    host_memory(cm, sets)
    return cm


def assignment(cm: CompactModel, sets: Sets, plan: Plan) -> dict[int, int]:
    """The 0-1 variables that a plan stands for; sums, queues and stalls are left open."""
    slots = sets.rerun_slots(plan)
    values: dict[int, int] = {}
    for t in cm.keep:
        values[cm.keep[t]] = int(plan.of(t) is Action.KEEP)
        values[cm.swap[t]] = int(plan.of(t) is Action.SWAP)
    for n, window in cm.rerun.items():
        values |= {x: int(n in slots and slots[n] <= j) for j, x in window.items()}

    def reruns(n: int, j: int) -> int:
        return int(n in slots and slots[n] <= j)

    def there(t: int, j: int) -> bool:
        if t in sets.saved and j >= sets.first[t]:
            return True
        action = plan.of(t)
        if action is Action.RECOMPUTE:
            return bool(reruns(sets.block_of[t], j))
        return action is Action.KEEP or any(reruns(n, j) for n in sets.readers.get(t, ()))

    for t, fetched in cm.fetched.items():
        for j, x in fetched.items():
            if x != cm.swap[t]:
                values[x] = int(plan.of(t) is Action.SWAP and there(t, j))
        own = cm.rerun.get(sets.block_of[t], {})
        for j, x in cm.rebuilt[t].items():
            if own.get(j) != x:
                values[x] = int(plan.of(t) is Action.RECOMPUTE and there(t, j))
        for (begin, end), x in cm.lingers[t].items():
            since = end if begin == end else begin - 1
            pending = any(slots.get(n, -1) >= begin for n in sets.readers.get(t, ()))
            values[x] = int(pending and (t in sets.saved or there(t, since)))
    return values


def neighbourhood(cm: CompactModel, sets: Sets, plan: Plan, free: Collection[int]) -> set[int]:
    """The 0-1 variables to leave open so that the actions of `free` tensors may change.

    With a tensor, its block; with a block, what it reads and, where that is not simply kept or
    swapped, the block that rebuilds it in turn.
    """
    opened = {x for t in free for x in (cm.keep[t], cm.swap[t])}
    stack = [sets.block_of[t] for t in free if sets.block_of[t] in cm.rerun]
    blocks: set[int] = set()
    touched = set(free)
    while stack:
        n = stack.pop()
        if n in blocks:
            continue
        blocks.add(n)
        touched.update(t for t in sets.blocks[n].outputs if t in cm.keep)
        for t in sets.blocks[n].inputs:
            if t not in cm.keep:
                continue
            touched.add(t)
            if (t in free or plan.of(t) is Action.RECOMPUTE) and sets.block_of[t] in cm.rerun:
                stack.append(sets.block_of[t])
    for n in blocks:
        opened.update(cm.rerun[n].values())
    for t in touched:
        opened.update(x for x in cm.fetched[t].values() if x != cm.swap[t])
        own = set(cm.rerun.get(sets.block_of[t], {}).values())
        opened.update(x for x in cm.rebuilt[t].values() if x not in own)
        opened.update(cm.lingers[t].values())
    return opened


class Sets:
    """The model's sets and data.

    Args:
        problem: step, machine and budget.
        tightening: corrections learned from simulations.
        plans: plans that the model must be able to express: their re-execution slots are added.
        drained: whether every copy out must be over at the turn, when copies in begin. Costs next
            to nothing on long steps, where it makes fluid queues exact where it matters.
    """

    def __init__(
        self,
        problem: Problem,
        tightening: Tightening,
        plans: Sequence[Plan] = (),
        *,
        drained: bool = False,
    ) -> None:
        self.problem, self.tightening, self.plans = problem, tightening, plans
        self.drained = drained
        index, live, blocks = problem.step.index, problem.liveness, problem.blocks
        self.index, self.live = index, live
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
        first_later = [int(live.first_later[t]) for t in self.saved]
        turn = min(first_later, default=index.operations)
        self.starts = _run_starts(index.operations, turn, live.peak_operation)
        self.count = len(self.starts)
        ends = [*self.starts[1:], index.operations]
        self.run_of = [
            r for r, (a, b) in enumerate(zip(self.starts, ends, strict=True)) for _ in range(a, b)
        ]
        self.turn = self.run_of[turn] if turn < index.operations else self.count
        durations: list[int] = index.duration_ns.tolist()
        self.duration = [sum(durations[a:b]) for a, b in zip(self.starts, ends, strict=True)]
        self.elapsed = list(itertools.accumulate(durations, initial=0))
        self.done = {t: self.run_of[int(live.last_forward[t])] for t in self.tensors}
        self.first = {t: self.run_of[int(live.first_later[t])] for t in self.saved}
        self.last = {t: self.run_of[int(live.last_access[t])] for t in self.saved}
        self.rates = problem.machine.link.rates()

    def out_rate(self, run: int) -> int:
        """Work per nanosecond of the queue out: after the turn, the queue in is busy as well."""
        return self.rates.d2h if run < self.turn else self.rates.d2h_duplex

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
        slots = {n: set(reach) for n, reach in near.items()}
        for plan in self.plans:
            for n, slot in self.rerun_slots(plan).items():
                slots[n].add(slot)
        return {n: sorted(slots[n]) for n in self.blocks if slots[n]}

    def rerun_slots(self, plan: Plan) -> dict[int, int]:
        """The slot in which each block runs again, just before its first need; absent if never."""
        slots: dict[int, int] = {}
        for n in sorted(self.blocks, reverse=True):
            needs = [
                slot
                for t in self.blocks[n].outputs
                if t in self.block_of and plan.of(t) in (Action.RECOMPUTE, Action.DROP)
                for slot in (
                    *((self.first[t],) if t in self.saved else ()),
                    *(slots[c] for c in self.readers.get(t, ()) if c in slots),
                )
            ]
            if needs:
                slots[n] = min(needs)
        return slots

    @cached_property
    def base_bytes(self) -> list[int]:
        """Most bytes held in each run whatever is decided.

        Tensors that cannot be evicted; evictable ones to the end of the run of their last forward
        reader, and from the start of the run of their first later reader to their last;
        workspace; and what experience reserves.
        """
        count = self.index.operations
        change = [0] * (count + 1)
        ends = [*self.starts[1:], count]

        def hold(first: int, last: int, size: int) -> None:
            change[first] += size
            change[last + 1] -= size

        evictable = set(self.problem.blocks.evictable)
        for t in range(self.index.tensors):
            written, last = int(self.live.first_write[t]), int(self.live.last_access[t])
            if written < 0:
                continue
            if t not in evictable:
                hold(written, last, self.size[t])
                continue
            leaves = ends[self.run_of[int(self.live.last_forward[t])]] - 1
            if t not in self.saved:
                hold(written, min(leaves, last) if t not in self.block_of else leaves, self.size[t])
                continue
            returns = self.starts[self.first[t]]
            last = ends[self.last[t]] - 1 if self.readers.get(t) else last
            if returns > leaves:
                hold(written, leaves, self.size[t])
                hold(returns, last, self.size[t])
            else:
                hold(written, last, self.size[t])
        workspace = self.index.workspace_bytes.tolist()
        reserve = self.tightening.reserve_bytes
        most = [0] * self.count
        for k, held in enumerate(itertools.accumulate(change[:-1])):
            r = self.run_of[k]
            most[r] = max(most[r], held + workspace[k] + reserve.get(k, 0))
        return most

    @cached_property
    def own_bytes(self) -> list[int]:
        """Per run, the least that one of its operations allocates when it starts."""
        index = self.index
        ends = [*self.starts[1:], index.operations]
        allocated = [
            int(index.workspace_bytes[op])
            + sum(self.size[t] for t, v in index.writes[op] if v == 0)
            for op in range(index.operations)
        ]
        return [min(allocated[a:b]) for a, b in zip(self.starts, ends, strict=True)]


def _run_starts(count: int, turn: int, peak: int) -> list[int]:
    """First operations of the runs: single ones if they are few, or near the peak or the turn."""
    length = -(-count // RUNS)
    starts = {0}
    for low, high in ((0, turn), (turn, count)):
        starts.update(range(low, high, length))
    for place in (peak, turn):
        starts.update(range(max(0, place - FINE), min(count, place + FINE + 1)))
    return sorted(starts)


def _variables(cm: CompactModel, sets: Sets) -> None:
    model = cm.model
    for t in sets.tensors:
        cm.keep[t] = model.binary()
        cm.swap[t] = model.binary()
    for n, window in sets.windows.items():
        cm.rerun[n] = {j: model.binary(integer=False) for j in window}
        model.objective[cm.rerun[n][window[-1]]] = sets.blocks[n].duration_ns
    slowest = sets.problem.machine.link.rates().slowest()
    limit = max(1, sets.problem.ideal_step_ns)
    limit += 2 * sum(-(-sets.work(t, slowest) // slowest) for t in sets.tensors)
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


def _there(cm: CompactModel, sets: Sets, t: int, j: int) -> list[tuple[int, int]]:
    """-(K_t + G_tj + X_tj); nothing for a saved tensor, which is there from b_t on anyway."""
    if t in sets.saved:
        return []
    here = [(1, cm.keep[t]), *_by(cm.fetched[t], j), *_by(cm.rebuilt[t], j)]
    return [(-c, x) for c, x in here]


def kept_forward(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
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
        MEBIBYTE,
        "kept",
    )


def kept_later(cm: CompactModel, sets: Sets) -> list[list[tuple[int, int]]]:
    """J_j >= J_j+1 + sum_{b_t = j+1} m_t K_t, from the last run down to the turn."""
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


@dataclass(frozen=True)
class _Queue:
    """Columns of the queue out, as terms by run; empty where nothing can be waiting."""

    at_start: list[list[tuple[int, int]]]
    at_end: list[list[tuple[int, int]]]


def queue_out(cm: CompactModel, sets: Sets) -> _Queue:
    """D_k >= B_k-1 - R (q_k + reruns_k);  B_k >= D_k - R d_k + in_k;  B_k >= in_k.

    Work enters when its tensor's last forward reader is done (until then it is counted as held).
    """
    entering: dict[int, list[int]] = defaultdict(list)
    for t in sets.tensors:
        entering[sets.done[t]].append(t)
    starts = _blocks_by_slot(cm)
    queue = _Queue([], [])
    left: list[tuple[int, int]] = []
    total = 0
    for k in range(sets.count):
        rate = sets.out_rate(k)
        at_start: list[tuple[int, int]] = []
        if left:
            column = cm.model.variable(total, unit=MEBIBYTE * WORK)
            pause = [(rate, cm.stall[k])]
            pause += [(rate * c, x) for c, x in _rerun_time(cm, sets, k, starts)]
            cm.model.at_least([(1, column), *((-c, x) for c, x in left), *pause], 0, "queue out")
            at_start = [(1, column)]
            if sets.drained and k >= sets.turn:
                cm.model.at_most(at_start, 0, "drained")
                at_start = []
        enter = [(sets.work(t, rate), cm.swap[t]) for t in entering.get(k, ())]
        total += sum(c for c, _ in enter)
        left = []
        if at_start or enter:
            column = cm.model.variable(total, unit=MEBIBYTE * WORK)
            before = [(-c, x) for c, x in at_start]
            inside = [(-c, x) for c, x in enter]
            worked = rate * sets.duration[k]
            cm.model.at_least([(1, column), *before, *inside], -worked, "queue out")
            cm.model.at_least([(1, column), *inside], 0, "queue out")
            left = [(1, column)]
        queue.at_start.append(at_start)
        queue.at_end.append(left)
    return queue


def queue_in(cm: CompactModel, sets: Sets, out: _Queue) -> list[list[tuple[int, int]]]:
    """F_j >= need_j;  F_j >= need_j + E_j+1 - R (reruns_j + d_j) + loss_j;  E_j >= F_j - R q_j.

    The mirror image of the queue out in reverse time: what must have come in by then, for run j
    and all later ones. While the queue out still works, the link brings less: every unit that it
    moves in run j costs loss_j = (R_in - R_in,duplex) / R_out,duplex units of the queue in. Nothing
    comes in before the turn. Returns E_j by run, as terms.
    """
    starts = _blocks_by_slot(cm)
    rates = sets.rates
    needs: dict[int, list[tuple[int, int]]] = defaultdict(list)
    for t, slots in cm.fetched.items():
        work = sets.work(t, rates.h2d)
        previous: int | None = None
        for j, variable in slots.items():
            needs[j].append((work, variable))
            if previous is not None:
                needs[j].append((-work, previous))
            previous = variable
    coming: list[list[tuple[int, int]]] = [[] for _ in range(sets.count + 1)]
    following: list[tuple[int, int]] = []
    total = 0
    scale, lost = rates.d2h_duplex, rates.h2d - rates.h2d_duplex
    for j in range(sets.count - 1, sets.turn - 1, -1):
        need = needs.get(j, [])
        total += sum(max(0, c) for c, _ in need)
        if not need and not following:
            continue
        after_stall = cm.model.variable(total, unit=MEBIBYTE * WORK)
        inside = [(-c, x) for c, x in need]
        if need:
            cm.model.at_least([(1, after_stall), *inside], 0, "queue in")
        if following:
            again = [(rates.h2d * c, x) for c, x in _rerun_time(cm, sets, j, starts)]
            ahead = [(-c, x) for c, x in following]
            terms = [(scale * c, x) for c, x in [(1, after_stall), *inside, *ahead, *again]]
            terms += [(-lost * c, x) for c, x in out.at_start[j]]
            terms += [(lost * c, x) for c, x in out.at_end[j]]
            cm.model.at_least(terms, -scale * rates.h2d * sets.duration[j], "queue in")
        begin = cm.model.variable(total, unit=MEBIBYTE * WORK)
        stall = (rates.h2d, cm.stall[j])
        cm.model.at_least([(1, begin), (-1, after_stall), stall], 0, "queue in")
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
    """base_k + H_k + D_k <= M for every run up to the turn."""
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
    early = _early(cm, sets)
    for j in range(sets.turn, sets.count):
        room = sets.problem.budget_bytes - sets.base_bytes[j]
        terms = [(WORK * c, x) for c, x in (*ahead[j], *early.get(j, ()))]
        cm.model.at_most([*terms, *waiting[j], *coming[j + 1]], WORK * room, "memory")


def memory_rerun(
    cm: CompactModel,
    sets: Sets,
    ahead: Sequence[list[tuple[int, int]]],
    waiting: Sequence[list[tuple[int, int]]],
    coming: Sequence[list[tuple[int, int]]],
) -> None:
    """The row of memory_later while o runs again in run j, its scratch instead of the run's own.

    Scratch is o's workspace, and a second buffer for each output that is there already:
    (scratch_o - what the run's operations allocate) (U_oj - U_o,j-1) on top of the row of run j.
    """
    early = _early(cm, sets)
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
            terms = [(WORK * c, x) for c, x in (*ahead[j], *early.get(j, ()))]
            runs = [(WORK * more, variable)]
            runs += [(-WORK * more, x) for _, x in _by(slots, j - 1)]
            cm.model.at_most(
                [*terms, *runs, *waiting[j], *coming[j + 1]], WORK * room, "memory of reruns"
            )


def _early(cm: CompactModel, sets: Sets) -> dict[int, list[tuple[int, int]]]:
    """Per run, what is fetched or rebuilt before its first reader, or lingers after its last."""
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
    return early


def round_trip(cm: CompactModel, sets: Sets, queue: _Queue) -> None:
    """B_a + R_out v_t S_t / R_in <= R_out (time from a_t to b_t) + (largest B_a) (1 - S_t).

    Queues are in order: t leaves when all that waits with it at the end of its run a_t has left,
    and only then can it come back. Where it enters an empty queue, it may start as soon as its last
    writer is done: v_t (1 / R_out + 1 / R_in) S_t <= time from that writer to b_t.
    """
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
        backlog = queue.at_end[sets.done[t]]
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

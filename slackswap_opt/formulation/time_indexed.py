"""The time-indexed reference ILP: every re-execution and every copy at every stage of the step.

*Stage* k runs from the end of operation k-1 to the end of operation k. It has two *periods*: the
*gap*, in which operations before k may run again, each at most once and in step order, and in
which compute may wait; and the *run* of operation k. What is on the device is decided per value (a
storage at a version) and period, so values may leave and return any number of times and
operations may run again in any stage, of any phase.

    x, w(x), m_x    value, its writer, bytes held          d_i   duration of operation i
    R_ki  in {0,1}  i < k runs again in the gap of k       L     "x is still wanted", per reader
    B_kx  in {0,1}  x is usable when stage k begins        q_k   wait in the gap of k
    O_kx  in {0,1}  x is usable when operation k starts    e_k   stretch of k beside copies

With copies that overlap compute, p numbers the periods (gap of k: 2k, run of k: 2k+1), v_x is the
engine work of one copy, and

    C_px  work done on the copy out of x by the end of p   D_px  work done on a copy in under way
    A_px  in {0,1}  x is arriving when p ends              G_px  a copy in of x is over in p
    Y_kxi in {0,1}  x has left in the gap of k before i runs (i = k: before its end)
    Z_kxi in {0,1}  a copy in of x begins in the gap of k after i has started
    M_kx  a copy in of x is under way in the gap of k

With *additive* copies (nothing overlaps, each costs its time and happens between two stages):

    H_kx  in {0,1} x is paged out when stage k begins     G_kx  in {0,1}  x is paged in then

The families, each a function below with its inequality in its docstring:

    carry, supply, versions                      what is where
    memory_gap, memory_run                       the budget at every computation
    page                                         additive copies
    copy_out, copy_in, after, in_time, engines, host   copies beside compute

Without copies the model is exact: its optimum is that of every schedule in which an operation runs
at most once per stage and the re-executions of a stage are in step order. With copies beside
compute it is a relaxation of the simulator's rules (engines are fluid within a period, memory is
counted at the ends of periods), so that its optimum is a lower limit for the schedules it
covers. docs/reference-ilp.md has the argument.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum
from fractions import Fraction
from functools import cached_property

from slackswap_opt.formulation.linear import LinearModel, grain
from slackswap_opt.plan import Problem

WORK = 1000
"""Engine work of a byte: rates are bytes/us, times are ns."""

Terms = list[tuple[int, int]]
"""Pairs of a coefficient and a variable."""
Key = tuple[int, int]
"""A stage or a period, and an operation or a value."""


class Copies(Enum):
    """How the model sees transfers."""

    NONE = "none"
    """There are none: recomputation only."""
    ADDITIVE = "additive"
    """Compute stands still during each copy."""
    OVERLAPPED = "overlapped"
    """Two engines beside compute."""


@dataclass(frozen=True)
class Available:
    """A 0-1 quantity of the model: a variable, or known to be 0 or 1.

    Attributes:
        variable: its number; None if it is known.
        known: its value if there is no variable.
    """

    variable: int | None
    known: int = 0

    def terms(self, coefficient: int) -> Terms:
        """The variable's term, if there is one."""
        return [] if self.variable is None else [(coefficient, self.variable)]

    def constant(self, coefficient: int) -> int:
        """What the known value adds."""
        return 0 if self.variable is not None else coefficient * self.known

    def value(self, values: Sequence[float]) -> bool:
        """Whether it is 1 in a solution."""
        return self.known == 1 if self.variable is None else values[self.variable] > 0.5


NEVER, ALWAYS = Available(None, 0), Available(None, 1)


class StageSets:
    """Values, and when each may be wanted.

    Args:
        problem: step, machine and budget.
        copies: how transfers are modelled.
    """

    def __init__(self, problem: Problem, copies: Copies) -> None:
        self.problem, self.copies = problem, copies
        index = problem.step.index
        self.index, self.count = index, index.operations
        self.duration: list[int] = index.duration_ns.tolist()
        self.workspace: list[int] = index.workspace_bytes.tolist()
        self.rates = problem.machine.link.rates()
        self.latency = problem.machine.link.latency_ns
        full, beside_one, _ = problem.machine.link.compute_speeds()
        self.lost = Fraction(full - beside_one, full)
        self.values: list[tuple[int, int]] = sorted(
            {value for writes in index.writes for value in writes},
            key=lambda value: (index.writers[value[0]][value[1]], value),
        )
        self.number = {value: x for x, value in enumerate(self.values)}
        self.tensor = [t for t, _ in self.values]
        self.writer = [index.writers[t][v] for t, v in self.values]
        self.size = [int(index.size_bytes[t]) for t in self.tensor]
        self.written = [[self.number[value] for value in writes] for writes in index.writes]
        self.read = [[self.number[value] for value in reads] for reads in index.reads]
        self.readers: list[list[int]] = [[] for _ in self.values]
        for op, values in enumerate(self.read):
            for x in values:
                self.readers[x].append(op)

    @cached_property
    def last_need(self) -> list[int]:
        """Per value, the last stage in which an operation or a re-execution may read it."""
        last = [-1] * len(self.values)
        useful = [-1] * self.count
        for op in reversed(range(self.count)):
            for x in self.written[op]:
                for reader in self.readers[x]:
                    again = useful[reader] if self.index.recomputable[reader] else -1
                    last[x] = max(last[x], reader, again)
                useful[op] = max(useful[op], last[x])
        return last

    @cached_property
    def reruns(self) -> list[list[int]]:
        """Per stage, the operations that may run again in its gap."""
        useful = [max((self.last_need[x] for x in self.written[o]), default=-1) for o in self._all]
        return [[i for i in self.index.recomputable.nonzero()[0].tolist() if i < k <= useful[i]]
                for k in self._all]  # fmt: skip

    @property
    def _all(self) -> range:
        return range(self.count)

    def fresh(self, op: int) -> list[int]:
        """Values that an operation allocates: those at version 0."""
        return [x for x in self.written[op] if self.values[x][1] == 0]

    def several(self, x: int) -> bool:
        """Whether the storage of a value has several versions."""
        return len(self.index.writers[self.tensor[x]]) > 1

    def overwriter(self, x: int) -> int | None:
        """The operation that ends a value by writing the next version in place."""
        t, v = self.values[x]
        writers = self.index.writers[t]
        return writers[v + 1] if v + 1 < len(writers) else None

    @cached_property
    def movable(self) -> list[int]:
        """Values that copies may move: the last version of each storage."""
        if self.copies is Copies.NONE:
            return []
        least, moved = self.problem.machine.link.min_swap_bytes, self.index.transfer_bytes
        return [
            x
            for x, (t, _) in enumerate(self.values)
            if self.overwriter(x) is None and self.size[x] and moved[t] >= least
        ]

    def work(self, x: int, rate: int) -> int:
        """Engine work of one copy, its latency included."""
        return int(self.index.transfer_bytes[self.tensor[x]]) * WORK + self.latency * rate

    def copy_ns(self, x: int, rate: int) -> int:
        """Time of one copy in one direction alone."""
        return self.latency - (-int(self.index.transfer_bytes[self.tensor[x]]) * WORK // rate)

    def stages(self, x: int) -> range:
        """Stages that may begin with the value on the device."""
        return range(self.writer[x] + 1, self.last_need[x] + 1)


@dataclass
class StageModel:
    """The model and the meaning of its variables.

    Attributes:
        model: the linear model. Its objective is the overhead in nanoseconds times `weight`, plus
            the number of re-executions and copies in if copies overlap: among equals it takes the
            one with the fewest, as what is done during a wait costs nothing.
        sets: its data.
        rerun: R_ki.
        begin: B_kx.
        usable: O_kx where it is a variable of its own.
        wait: q_k; empty unless copies overlap.
        stretch: e_k; empty unless copies slow compute down.
        out_done: C_px.
        arriving: A_px.
        in_done: D_px.
        arrived: G, by period (overlapped) or stage (additive) and value.
        paged_out: H_kx.
        left: Y_kxi.
        after: Z_kxi.
        coming: M_kx.
    """

    model: LinearModel
    sets: StageSets
    weight: int = 1
    rerun: dict[Key, int] = field(default_factory=dict)
    begin: dict[Key, int] = field(default_factory=dict)
    usable: dict[Key, int] = field(default_factory=dict)
    wait: list[int] = field(default_factory=list)
    stretch: list[int] = field(default_factory=list)
    out_done: dict[Key, int] = field(default_factory=dict)
    arriving: dict[Key, int] = field(default_factory=dict)
    in_done: dict[Key, int] = field(default_factory=dict)
    arrived: dict[Key, int] = field(default_factory=dict)
    paged_out: dict[Key, int] = field(default_factory=dict)
    left: dict[tuple[int, int, int], int] = field(default_factory=dict)
    after: dict[tuple[int, int, int], int] = field(default_factory=dict)
    coming: dict[Key, int] = field(default_factory=dict)

    def overhead_ns(self, values: Sequence[float]) -> int:
        """The overhead of a solution: decisions rounded, waits as they are, the sum rounded."""
        waits = sum(values[q] for q in (*self.wait, *self.stretch))
        sets = self.sets
        total = sum(sets.duration[i] for (k, i), y in self.rerun.items() if values[y] > 0.5)
        for (_, x), y in self.paged_out.items():
            total += (values[y] > 0.5) * sets.copy_ns(x, sets.rates.d2h)
        if self.paged_out:
            for (_, x), y in self.arrived.items():
                total += (values[y] > 0.5) * sets.copy_ns(x, sets.rates.h2d)
        return total + round(waits)

    @property
    def overlapped(self) -> bool:
        """Whether copies run beside compute."""
        return self.sets.copies is Copies.OVERLAPPED

    def at_start(self, k: int, x: int) -> Available:
        """O_kx: 1 for what k reads; where nothing else can be, B_k+1,x."""
        if x in self.sets.read[k]:
            return ALWAYS
        if (k, x) in self.usable:
            return Available(self.usable[k, x])
        if self.sets.writer[x] < k and (k + 1, x) in self.begin:
            return Available(self.begin[k + 1, x])
        return NEVER

    def there(self, k: int, x: int) -> Terms:
        """B_kx + R_k,w(x) + G: the ways in which x can be there in the gap of k."""
        terms = _term(1, self.begin, (k, x)) + _term(1, self.rerun, (k, self.sets.writer[x]))
        return terms + _term(1, self.arrived, self.gap(k, x))

    def gap(self, k: int, x: int) -> Key:
        """Where copies in the gap of stage k are filed."""
        return (2 * k, x) if self.overlapped else (k, x)

    def run(self, k: int, x: int) -> Key:
        """Where copies beside operation k are filed."""
        return (2 * k + 1, x)


def stage_model(
    problem: Problem, copies: Copies, most_overhead_ns: int | None = None
) -> StageModel:
    """Build the model.

    Args:
        problem: step, machine and budget.
        copies: how transfers are modelled.
        most_overhead_ns: overhead of a schedule that is known, which none with longer waits beats.
    """
    sets = StageSets(problem, copies)
    weight = 1
    if copies is Copies.OVERLAPPED:
        weight += sum(map(len, sets.reruns)) + 2 * sum(len(sets.stages(x)) for x in sets.movable)
    sm = StageModel(LinearModel(), sets, weight)
    _variables(sm, most_overhead_ns)
    carry(sm)
    supply(sm)
    versions(sm)
    if copies is Copies.ADDITIVE:
        page(sm)
    if copies is Copies.OVERLAPPED:
        copy_out(sm)
        copy_in(sm)
        engines(sm)
        in_time(sm)
        host(sm)
    memory_gap(sm)
    memory_run(sm)
    return sm


def _term(coefficient: int, variables: Mapping[Key, int], key: Key) -> Terms:
    return [(coefficient, variables[key])] if key in variables else []


def _variables(sm: StageModel, most_overhead_ns: int | None) -> None:
    model, sets = sm.model, sm.sets
    for k in range(sets.count):
        for i in sets.reruns[k]:
            sm.rerun[k, i] = model.binary()
            cost = sm.weight * sets.duration[i] + (1 if sm.overlapped else 0)
            if cost:
                model.objective[sm.rerun[k, i]] = cost
    for x in range(len(sets.values)):
        for k in sets.stages(x):
            sm.begin[k, x] = model.binary()
    if sets.copies is Copies.ADDITIVE:
        for x in sets.movable:
            out_ns, in_ns = sets.copy_ns(x, sets.rates.d2h), sets.copy_ns(x, sets.rates.h2d)
            for k in sets.stages(x):
                sm.paged_out[k, x] = model.variable(1, integer=True, cost=out_ns)
                sm.arrived[k, x] = model.variable(1, integer=True, cost=in_ns)
    if sets.copies is Copies.OVERLAPPED:
        _copy_variables(sm, most_overhead_ns)


def _copy_variables(sm: StageModel, most_overhead_ns: int | None) -> None:
    model, sets = sm.model, sm.sets
    rates = sets.rates
    longest = sum(
        sets.copy_ns(x, rate) * len(sets.stages(x))
        for x in sets.movable
        for rate in (rates.d2h, rates.h2d)
    )
    limit = longest if most_overhead_ns is None else min(longest, most_overhead_ns)
    unit = grain(max(1, sets.problem.ideal_step_ns))
    sm.wait = [model.variable(limit, unit=unit, cost=sm.weight) for _ in range(sets.count)]
    if sets.lost:
        sm.stretch = [model.variable(limit, unit=unit, cost=sm.weight) for _ in range(sets.count)]
    for x in sets.movable:
        out, back = sets.work(x, rates.d2h), sets.work(x, rates.h2d)
        stages = sets.stages(x)
        for k in stages:
            if k not in sets.readers[x]:
                sm.usable[k, x] = model.binary()
            for p in (2 * k, 2 * k + 1):
                sm.out_done[p, x] = model.variable(out, unit=max(1, out))
                if k > stages[0]:
                    sm.arriving[p, x] = model.binary()
                    sm.in_done[p, x] = model.variable(back, unit=max(1, back))
                    sm.arrived[p, x] = model.variable(1, cost=1)
            sm.left[k, x, k] = model.binary()
            for i in sets.reruns[k]:
                if i <= sets.writer[x]:
                    sm.left[k, x, i] = model.binary()
                if k > stages[0]:
                    sm.after[k, x, i] = model.binary()
            if k > stages[0]:
                sm.coming[k, x] = model.binary(integer=False)


# -- What is where ---------------------------------------------------------------------------------


def carry(sm: StageModel) -> None:
    """O_kx <= B_kx + R_k,w(x) + G_gap,x;  B_k+1,x <= O_kx + G_run,x for x not written by k."""
    sets = sm.sets
    for x in range(len(sets.values)):
        for k in range(sets.writer[x] + 1, sets.count):
            wanted = sm.at_start(k, x)
            terms = sm.there(k, x) + wanted.terms(-1)
            sm.model.at_least(terms, wanted.constant(1), "carry")
            if (k + 1, x) not in sm.begin:
                continue
            following = sm.begin[k + 1, x]
            arrived = _term(1, sm.arrived, sm.run(k, x))
            terms = [(-1, following), *wanted.terms(1), *arrived]
            sm.model.at_least(terms, -wanted.constant(1), "carry")


def supply(sm: StageModel) -> None:
    """B_kx + R_k,w(x) + G_gap,x >= R_ki for every x that i reads.

    An operation with one output does not run again while its output is there:
    R_k,w(x) + B_kx <= 1.
    """
    for (k, i), rerun in sm.rerun.items():
        for x in sm.sets.read[i]:
            sm.model.at_least([*sm.there(k, x), (-1, rerun)], 0, "supply")
        if len(sm.sets.written[i]) == 1:
            (x,) = sm.sets.written[i]
            sm.model.at_most([(1, rerun), *_term(1, sm.begin, (k, x))], 1, "supply")


def versions(sm: StageModel) -> None:
    """A storage holds one version: what is overwritten is gone.

    sum_v B_k,(t,v) + R_k,w(t,0) <= 1;  O_k,(t,v) + R_k,w(t,v+1) <= 1;  B_k+1,(t,v) = 0 where k
    writes (t, v+1).
    """
    sets = sm.sets
    by_tensor: dict[int, list[int]] = {}
    for x in range(len(sets.values)):
        if sets.several(x):
            by_tensor.setdefault(sets.tensor[x], []).append(x)
    for members in by_tensor.values():
        first = sets.writer[members[0]]
        for k in range(sets.count):
            there = [term for x in members for term in _term(1, sm.begin, (k, x))]
            sm.model.at_most([*there, *_term(1, sm.rerun, (k, first))], 1, "versions")
            for x in members:
                over = sets.overwriter(x)
                if over is None:
                    continue
                if over == k and (k + 1, x) in sm.begin:
                    sm.model.fix(sm.begin[k + 1, x], 0)
                wanted, again = sm.at_start(k, x), _term(1, sm.rerun, (k, over))
                sm.model.at_most(wanted.terms(1) + again, 1 - wanted.constant(1), "versions")


# -- Memory ----------------------------------------------------------------------------------------


def memory_gap(sm: StageModel) -> None:
    """sum_x m_x P_ix + R_ki (workspace_i + what i allocates) <= M for every i in the gap of k.

    P_ix: a value whose writer comes after i is there if it was when the stage began or comes in
    (B - Y + M - Z); one whose writer comes before is there if somebody from i on wants it or it
    comes in (L - Z); outputs of i that were there already are held twice.
    """
    sets = sm.sets
    for k in range(sets.count):
        wanted = {x: _wanted(sm, k, x) for x in range(len(sets.values)) if sets.writer[x] < k}
        for i in sets.reruns[k]:
            allocated = sets.workspace[i] + sum(sets.size[x] for x in sets.fresh(i))
            terms: Terms = [(allocated, sm.rerun[k, i])]
            room = sets.problem.budget_bytes
            for x, levels in wanted.items():
                size, writer = sets.size[x], sets.writer[x]
                if writer < i:
                    level = next(need for reader, need in levels if reader >= i)
                    terms += level.terms(size)
                    if (k, x, i) in sm.after:
                        terms.append((-size, sm.after[k, x, i]))
                    room -= level.constant(size)
                elif writer > i or x in sets.fresh(i):
                    terms += _held_before(sm, k, x, i)
            sm.model.at_most(terms, room, "memory")


def _held_before(sm: StageModel, k: int, x: int, i: int) -> Terms:
    """m_x (B_kx - Y_kxi + M_kx - Z_kxi), or m_x (B_kx + G_kx), before its writer's turn."""
    size = sm.sets.size[x]
    terms = _term(size, sm.begin, (k, x))
    if sm.overlapped:
        if (k, x, i) in sm.left:
            terms.append((-size, sm.left[k, x, i]))
        if (k, x, i) in sm.after:
            terms += [(size, sm.coming[k, x]), (-size, sm.after[k, x, i])]
        return terms
    return terms + _term(size, sm.arrived, (k, x))


def _wanted(sm: StageModel, k: int, x: int) -> list[tuple[int, Available]]:
    """L >= R_kj for every reader j from the one named on, L >= O_kx, L >= M_kx: by reader.

    Readers ascend. The last entry, which stands for no reader, is what is wanted after the gap:
    its number is above every operation's.
    """
    sets = sm.sets
    need = sm.at_start(k, x)
    here = _term(1, sm.coming, (k, x))
    if here and need is not ALWAYS:
        need = _at_least_each(sm, [need.terms(1), here])
    levels = [(sets.count, need)]
    for reader in reversed(sets.readers[x]):
        if (k, reader) in sm.rerun:
            if need is not ALWAYS:
                need = _at_least_each(sm, [need.terms(1), [(1, sm.rerun[k, reader])]])
            levels.append((reader, need))
    return levels[::-1]


def _at_least_each(sm: StageModel, alternatives: Sequence[Terms]) -> Available:
    """A variable that is at least each of the given ones (itself if there is only one)."""
    given = [terms for terms in alternatives if terms]
    if not given:
        return NEVER
    if len(given) == 1:
        return Available(given[0][0][1])
    variable = sm.model.binary(integer=False)
    for ((_, x),) in given:
        sm.model.at_least([(1, variable), (-1, x)], 0, "wanted")
    return Available(variable)


def memory_run(sm: StageModel) -> None:
    """The same while operation k runs, when it starts and when it ends.

    sum m_x O_kx + sum m_x A_gap,x + own_k <= M;
    sum_{x read} m_x + sum_{others} m_x (B_k+1,x + A_run,x) + own_k <= M
    """
    sets = sm.sets
    for k in range(sets.count):
        room = sets.problem.budget_bytes - sets.workspace[k]
        room -= sum(sets.size[x] for x in sets.fresh(k))
        start: Terms = []
        end: Terms = []
        left_at_start = left_at_end = room
        for x in range(len(sets.values)):
            size = sets.size[x]
            if sets.writer[x] >= k:
                continue
            there = sm.at_start(k, x)
            start += there.terms(size)
            left_at_start -= there.constant(size)
            start += _term(size, sm.arriving, (2 * k, x))
            if x in sets.read[k]:
                left_at_end -= size
            else:
                end += _term(size, sm.begin, (k + 1, x))
                end += _term(size, sm.arriving, (2 * k + 1, x))
        sm.model.at_most(start, left_at_start, "memory")
        if sm.overlapped:
            sm.model.at_most(end, left_at_end, "memory")


# -- Additive copies -------------------------------------------------------------------------------


def page(sm: StageModel) -> None:
    """sum_k H_kx <= 1;  H_k+1,x <= O_kx or 1 if k wrote x;  G_kx <= sum of H before k.

    What is paged in was absent and does not run again meanwhile: G_kx + B_kx + R_k,w(x) <= 1.
    """
    sets = sm.sets
    for x in sets.movable:
        stages = list(sets.stages(x))
        outs = [(1, sm.paged_out[k, x]) for k in stages]
        sm.model.at_most(outs, 1, "page")
        for number, k in enumerate(stages):
            if k - 1 > sets.writer[x]:
                there = sm.at_start(k - 1, x)
                out = sm.paged_out[k, x]
                sm.model.at_least([*there.terms(1), (-1, out)], -there.constant(1), "page")
            back = sm.arrived[k, x]
            sm.model.at_least([*outs[:number], (-1, back)], 0, "page")
            sm.model.at_most(sm.there(k, x), 1, "page")
            sm.model.at_most([(1, back), *sm.there(k - 1, x)], 1, "page")


# -- Copies beside compute -------------------------------------------------------------------------


def copy_out(sm: StageModel) -> None:
    """C grows only while x is there, and what has left after its copy is not counted in the gap.

    C_p >= C_p-1;  C_gap - C_before <= v_x (B_kx + R_k,w(x));  C_run - C_gap <= v_x O_kx;
    Y_kxi <= B_kx,  v_x Y_kxi <= C_gap,  Y_kxi <= 1 - O_kx,  Y_kxi <= 1 - R_kj for its readers j;
    C_gap - C_before <= R_out (q_k + sum_{j < i} R_kj d_j) + v_x (1 - Y_kxi);  Y_kxi <= Y_kxk
    """
    sets, model = sm.sets, sm.model
    for x in sets.movable:
        work = sets.work(x, sets.rates.d2h)
        before: Terms = []
        for k in sets.stages(x):
            gap, run = sm.out_done[2 * k, x], sm.out_done[2 * k + 1, x]
            model.at_least([(1, gap), *before], 0, "copy out")
            model.at_least([(1, run), (-1, gap)], 0, "copy out")
            present = [
                *_term(work, sm.begin, (k, x)), *_term(work, sm.rerun, (k, sets.writer[x])),
            ]  # fmt: skip
            model.at_least([*present, (-1, gap), *((-c, y) for c, y in before)], 0, "copy out")
            there = sm.at_start(k, x)
            terms = [*there.terms(work), (-1, run), (1, gap)]
            model.at_least(terms, -there.constant(work), "copy out")
            for i in (*sets.reruns[k], k):
                if (k, x, i) not in sm.left:
                    continue
                left = sm.left[k, x, i]
                model.at_least([(1, sm.begin[k, x]), (-1, left)], 0, "left")
                model.at_least([(1, gap), (-work, left)], 0, "left")
                model.at_most([(1, left), *there.terms(1)], 1 - there.constant(1), "left")
                for j in sets.readers[x]:
                    if (k, j) in sm.rerun:
                        model.at_most([(1, left), (1, sm.rerun[k, j])], 1, "left")
                time = _time(sm, k, [j for j in sets.reruns[k] if j < i], sets.rates.d2h)
                terms = [(1, gap), *before, (work, left)]
                model.at_most([*terms, *((-c, y) for c, y in time)], work, "left")
                model.at_least([(1, sm.left[k, x, k]), (-1, left)], 0, "left")
            before = [(-1, run)]


def copy_in(sm: StageModel) -> None:
    """D_p = D_p-1 + (work done in p) - v_x G_p, D_p <= v_x A_p; only what the host has comes back.

    Work done in p is between 0 and v_x (A_p + G_p).
    v_x (A_p + G_p) <= C_p-1;  A_p + G_p + (x was there when p began, or ran again in it) <= 1;
    A_run + B_k+1 <= 1;  A_gap + O_k <= 1;  M_kx >= A_before, A_gap, G_gap
    """
    sets, model = sm.sets, sm.model
    for x in sets.movable:
        work = sets.work(x, sets.rates.d2h)
        back = sets.work(x, sets.rates.h2d)
        for k in sets.stages(x):
            if (2 * k, x) not in sm.arrived:
                continue
            for i in sets.reruns[k]:
                after(sm, k, x, i)
            for period, variables in (
                (2 * k - 1, sm.arriving), (2 * k, sm.arriving), (2 * k, sm.arrived),
            ):  # fmt: skip
                for _, y in _term(1, variables, (period, x)):
                    model.at_least([(1, sm.coming[k, x]), (-1, y)], 0, "copy in")
            again = _term(1, sm.rerun, (k, sets.writer[x]))
            there = sm.at_start(k, x)
            for p in (2 * k, 2 * k + 1):
                moving = [(1, sm.arriving[p, x]), (1, sm.arrived[p, x])]
                model.at_least(
                    [(1, sm.out_done[p - 1, x]), *((-work, y) for _, y in moving)], 0, "copy in"
                )
                done = _work_in(sm, p, x)
                model.at_least(done, 0, "copy in")
                model.at_most([*done, *((-back, y) for _, y in moving)], 0, "copy in")
                model.at_most([(1, sm.in_done[p, x]), (-back, sm.arriving[p, x])], 0, "copy in")
                if p % 2 == 0:
                    present = [*_term(1, sm.begin, (k, x)), *again]
                    model.at_most([*moving, *present], 1, "copy in")
                    model.at_most([*again, *_term(1, sm.arriving, (p - 1, x))], 1, "copy in")
                    waits, known = there.terms(1), there.constant(1)
                    model.at_most([moving[0], *waits], 1 - known, "copy in")
                else:
                    model.at_most([*moving, *there.terms(1)], 1 - there.constant(1), "copy in")
                    following = _term(1, sm.begin, (k + 1, x))
                    model.at_most([moving[0], *following], 1, "copy in")


def after(sm: StageModel, k: int, x: int, i: int) -> None:
    """What begins after i has only the time from there on.

    (work in on x) <= R_in (q_k + sum_{j > i} R_kj d_j + d_i n) + v_x (1 - Z_kxi), where n values
    leave while i runs or later (Y_kxk - Y_kxi), so that x may begin while i runs;
    Z_kxi <= G_gap + A_gap, 1 - A_before, and 1 - R_kj for readers j of x up to i
    """
    sets, begins, rate = sm.sets, sm.after[k, x, i], sm.sets.rates.h2d
    moving = [(1, sm.arrived[2 * k, x]), (1, sm.arriving[2 * k, x])]
    sm.model.at_least([*moving, (-1, begins)], 0, "after")
    sm.model.at_most([(1, begins), *_term(1, sm.arriving, (2 * k - 1, x))], 1, "after")
    for j in sets.readers[x]:
        if j <= i and (k, j) in sm.rerun:
            sm.model.at_most([(1, begins), (1, sm.rerun[k, j])], 1, "after")
    time = _time(sm, k, [j for j in sets.reruns[k] if j > i], rate)
    inside = rate * sets.duration[i]
    for y in sets.movable:
        if (k, y, i) in sm.left:
            time += [(inside, sm.left[k, y, k]), (-inside, sm.left[k, y, i])]
    back = sets.work(x, rate)
    terms = [*_work_in(sm, 2 * k, x), (back, begins), *((-c, y) for c, y in time)]
    sm.model.at_most(terms, back, "after")


def _time(sm: StageModel, k: int, reruns: Sequence[int], rate: int) -> Terms:
    """Time of a gap with some of its re-executions: rate * (q_k + sum_j R_kj d_j)."""
    return [(rate, sm.wait[k]), *((rate * sm.sets.duration[j], sm.rerun[k, j]) for j in reruns)]


def _work_in(sm: StageModel, p: int, x: int) -> Terms:
    """D_p - D_p-1 + v_x G_p."""
    back = sm.sets.work(x, sm.sets.rates.h2d)
    terms = [(1, sm.in_done[p, x]), (back, sm.arrived[p, x])]
    return terms + _term(-1, sm.in_done, (p - 1, x))


def engines(sm: StageModel) -> None:
    """Work done in a period <= rate * its length: d_k + e_k or q_k + sum_i R_ki d_i.

    Where copies take a share of compute's speed, that share of the time that they need is lost:
    e_k, q_k >= share * (work done in the period) / rate.
    """
    sets = sm.sets
    for k in range(sets.count):
        reruns = [(sets.duration[i], sm.rerun[k, i]) for i in sets.reruns[k]]
        for p in (2 * k, 2 * k + 1):
            known = sets.duration[k] if p % 2 else 0
            idle = [(1, y) for y in (sm.stretch if p % 2 else sm.wait)[k : k + 1]]
            length = idle if p % 2 else idle + [(d, y) for d, y in reruns if d]
            out: Terms = []
            back: Terms = []
            for x in sets.movable:
                if (p, x) in sm.out_done:
                    out += [(1, sm.out_done[p, x]), *_term(-1, sm.out_done, (p - 1, x))]
                if (p, x) in sm.in_done:
                    back += _work_in(sm, p, x)
            for done, rate in ((out, sets.rates.d2h), (back, sets.rates.h2d)):
                _within(sm.model, done, length, known, rate)
                if sets.lost:
                    lost = [(sets.lost.numerator * c, y) for c, y in done]
                    _within(sm.model, lost, idle, 0, rate * sets.lost.denominator)


def _within(model: LinearModel, done: Terms, length: Terms, known: int, rate: int) -> None:
    model.at_most([*done, *((-rate * c, y) for c, y in length)], rate * known, "engine")


def in_time(sm: StageModel) -> None:
    """A re-execution in the gap that reads what arrives there comes after the copy.

    For i reading x: (work in on x) <= R_in (q_k + sum_{j != i} R_kj d_j) and
    (work in on x) <= R_in (q_k + sum_{j < i} R_kj d_j) + v_x (1 - R_ki).
    """
    sets, rate = sm.sets, sm.sets.rates.h2d
    for x in sets.movable:
        back = sets.work(x, rate)
        for k in sets.stages(x):
            if (2 * k, x) not in sm.in_done:
                continue
            done = _work_in(sm, 2 * k, x)
            for i in sets.readers[x]:
                if (k, i) not in sm.rerun:
                    continue
                others = _time(sm, k, [j for j in sets.reruns[k] if j != i], rate)
                sm.model.at_most([*done, *((-c, y) for c, y in others)], 0, "in time")
                before = _time(sm, k, [j for j in sets.reruns[k] if j < i], rate)
                terms = [*done, *((-c, y) for c, y in before), (back, sm.rerun[k, i])]
                sm.model.at_most(terms, back, "in time")


def host(sm: StageModel) -> None:
    """sum_x h_x N_px <= host memory, if it is limited.

    N_px >= C_px / v_x + V_px - 1: the part copied out takes room while a copy in is yet to come
    (V_p >= A_p, G_p, V_p+1).
    """
    sets, model = sm.sets, sm.model
    limit = sets.problem.machine.host.pinned_bytes
    if limit is None:
        return
    held: dict[int, Terms] = {}
    for x in sets.movable:
        work = sets.work(x, sets.rates.d2h)
        moved = int(sets.index.transfer_bytes[sets.tensor[x]])
        buffer = sets.problem.machine.host.buffer_bytes(moved)
        later: Terms = []
        for k in reversed(sets.stages(x)):
            for p in (2 * k + 1, 2 * k):
                ahead = model.binary(integer=False)
                for _, y in (
                    *_term(1, sm.arriving, (p, x)), *_term(1, sm.arrived, (p, x)), *later,
                ):  # fmt: skip
                    model.at_least([(1, ahead), (-1, y)], 0, "host")
                later = [(1, ahead)]
                inside = model.binary(integer=False)
                terms = [(work, inside), (-1, sm.out_done[p, x]), (-work, ahead)]
                model.at_least(terms, -work, "host")
                held.setdefault(p, []).append((buffer, inside))
    for terms in held.values():
        model.at_most(terms, limit, "host")

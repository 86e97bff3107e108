"""The boundary bound: a proven lower limit on the step time of every schedule.

Stand at the instant tau at which operation c starts for the first time. Sets and data:

    (t, v)  storage t at version v, written before c: all that c itself does not touch
    v*_t    the version that t holds in the ideal step at tau
    m_t     bytes held on the device        w_t   engine time of one copy, in work units
    d_o     duration of operation o         M     budget, less the working set of c
    R_out, R_in  the link's rates, each direction alone

Variables, each in [0, 1]:

    k_t   t occupies device memory at tau, at whatever version
    s_tv  it does not, and version v is first available after tau by a copy in
    r_tv  it does not, and version v is first available after tau by running its writer again
    y_o   operation o is re-executed after tau (counted once)
    e_out, e_in >= 0   time beyond the durations before tau, and beyond durations and y after tau

and the least overhead is   min  sum_o d_o y_o + e_out + e_in   under

    (1) state       k_t + s_tv* + r_tv* >= 1             t touched by an operation after c
    (2) rebuild     y_o >= r_tv                          o the writer of (t, v)
    (3) inputs      k_u + s_uv + r_uv >= y_o             o reads (u, v)
    (4) memory      sum m_t k_t <= M
    (5) copies out  sum_{ready_tv >= i} w_t s_tv <= R_out (sum_{i < k < c} d_k + e_out)   every i
    (6) copies in   sum_{first_t <= j} w_t s_tv
                        <= R_in (sum_{c <= k < j} d_k + sum_o d_o y_o + e_in)        every j
    (7) host        sum h_t s_tv* <= H

Any schedule, re-executing any number of times and copying anything anywhere, gives a feasible
point with an objective no larger than its overhead. So the minimum, and with it every value that
weak duality gives, is a lower limit (proof in docs/formulation.md).

With integer k, s, r the model also proposes plans: what it leaves out, time within the two phases
and memory at other operations, the caller learns from the simulator and adds as rows.
"""

from __future__ import annotations

import itertools
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from slackswap_opt.formulation.linear import MICROSECOND, LinearModel, grain
from slackswap_opt.plan.problem import Problem
from slackswap_opt.step import working_set_bytes

LONGEST_OVERHEAD = 1000
"""Overheads beyond this many ideal steps are not told apart."""


Value = tuple[int, int]
"""A tensor index and a version."""


@dataclass(frozen=True)
class CutModel:
    """The boundary model at one operation.

    Attributes:
        model: the linear model; its objective is the overhead in nanoseconds.
        keep: variable k_t by tensor.
        swap: variable s_tv by value.
        rebuild: variable r_tv by value.
        rerun: variable y_o by operation.
    """

    model: LinearModel
    keep: dict[int, int]
    swap: dict[Value, int]
    rebuild: dict[Value, int]
    rerun: dict[int, int]


def longest_overhead_ns(problem: Problem) -> int:
    """Schedules with more overhead than this are no points of the model: limits are capped here."""
    return LONGEST_OVERHEAD * max(1, problem.ideal_step_ns)


def boundary_model(problem: Problem, cut: int, *, integer: bool = False) -> CutModel:
    """The model at the start of operation `cut`."""
    at = _Cut(problem, cut)
    model = LinearModel()
    rerun = {o: model.binary(integer=False) for o in at.operations}
    cut_model = CutModel(
        model,
        keep={t: model.binary(integer=integer) for t in at.tensors},
        swap={value: model.variable(int(problem.swaps), integer=integer) for value in at.writer},
        rebuild={
            value: model.binary(integer=integer)
            for value, writer in at.writer.items()
            if writer in rerun
        },
        rerun=rerun,
    )
    limit = longest_overhead_ns(problem)
    extra_before = model.variable(limit, unit=MICROSECOND, cost=1)
    extra_after = model.variable(limit, unit=MICROSECOND, cost=1)
    for op, variable in rerun.items():
        model.objective[variable] = int(at.durations[op])
    _state(cut_model, at)
    _rebuild(cut_model, at)
    _inputs(cut_model, at)
    _memory(cut_model, at)
    _copies_out(cut_model, at, extra_before)
    _copies_in(cut_model, at, extra_after)
    _host(cut_model, at, problem)
    return cut_model


class _Cut:
    """Sets and data of the model at one cut."""

    def __init__(self, problem: Problem, cut: int) -> None:
        index, live = problem.step.index, problem.liveness
        self.index, self.cut = index, cut
        self.durations: list[int] = index.duration_ns.tolist()
        self.elapsed = list(itertools.accumulate(self.durations, initial=0))
        self.rates = problem.machine.link.rates()
        self.latency = problem.machine.link.latency_ns
        self.tick_ns = grain(problem.ideal_step_ns)
        self.room = problem.budget_bytes - int(working_set_bytes(problem.step)[cut])
        self.there = {t for t, _ in index.reads[cut] + index.writes[cut]}
        self.operations = [o for o in range(cut) if index.recomputable[o]]
        self.transit = {
            t: sum(o < cut for o in index.writers[t]) - 1
            for t in range(index.tensors)
            if 0 <= live.first_write[t] < cut < live.last_access[t] and t not in self.there
        }
        needed = {value for o in self.operations for value in index.reads[o]}
        needed |= set(self.transit.items())
        self.writer = {
            (t, v): index.writers[t][v] for t, v in sorted(needed) if t not in self.there
        }
        self.tensors = list(dict.fromkeys(t for t, _ in self.writer))

    def first_need(self, value: Value) -> int:
        """The operation of the step before which the value must be back; N if none needs it."""
        if self.transit.get(value[0]) == value[1]:
            return next(o for o in self.index.readers[value[0]] if o > self.cut)
        return self.index.operations

    def work(self, tensor: int, rate: int) -> int:
        """Engine time of one copy, in bytes x 1000 (time in ns x rate in bytes/us)."""
        return int(self.index.transfer_bytes[tensor]) * 1000 + self.latency * rate

    def grouped(self, key: Callable[[Value], int]) -> dict[int, list[Value]]:
        """Values by a position, in ascending order of it."""
        groups: dict[int, list[Value]] = defaultdict(list)
        for value in self.writer:
            groups[key(value)].append(value)
        return dict(sorted(groups.items()))


def _state(cm: CutModel, at: _Cut) -> None:
    """(1) k_t + s_tv* + r_tv* >= 1 for every t in transit."""
    for value in at.transit.items():
        cm.model.at_least(_available(cm, value), 1, "state")


def _rebuild(cm: CutModel, at: _Cut) -> None:
    """(2) y_o >= r_tv for the writer o of (t, v)."""
    for value, variable in cm.rebuild.items():
        cm.model.at_least([(1, cm.rerun[at.writer[value]]), (-1, variable)], 0, "rebuild")


def _inputs(cm: CutModel, at: _Cut) -> None:
    """(3) k_u + s_uv + r_uv >= y_o for every value (u, v) that o reads."""
    for op, variable in cm.rerun.items():
        for value in at.index.reads[op]:
            if value in at.writer:
                cm.model.at_least([*_available(cm, value), (-1, variable)], 0, "inputs")


def _available(cm: CutModel, value: Value) -> list[tuple[int, int]]:
    terms = [(1, cm.keep[value[0]]), (1, cm.swap[value])]
    if value in cm.rebuild:
        terms.append((1, cm.rebuild[value]))
    return terms


def _memory(cm: CutModel, at: _Cut) -> None:
    """(4) sum m_t k_t <= M less the working set of c."""
    size = at.index.size_bytes
    cm.model.at_most(((int(size[t]), x) for t, x in cm.keep.items()), at.room, "memory")


def _copies_out(cm: CutModel, at: _Cut, extra: int) -> None:
    """(5) sum_{ready_tv >= i} w_t s_tv <= R_out (sum_{i < k < c} d_k + e_out) for every i."""
    rate = at.rates.d2h
    groups = at.grouped(at.writer.__getitem__)
    for ready, total in _running_totals(cm, at, rate, list(reversed(groups.items()))):
        time = at.elapsed[at.cut] - at.elapsed[ready + 1]
        cm.model.at_most([(1, total), (-rate, extra)], rate * time, "copies out")


def _copies_in(cm: CutModel, at: _Cut, extra: int) -> None:
    """(6) sum_{first_t <= j} w_t s_tv <= R_in (sum_{c <= k < j} d_k + sum d_o y_o + e_in)."""
    rate = at.rates.h2d
    longest = sum(at.durations[o] for o in cm.rerun)
    reruns = cm.model.variable(longest, unit=MICROSECOND)
    terms = [(-1, reruns), *((at.durations[o], y) for o, y in cm.rerun.items())]
    cm.model.at_least(terms, 0, "reruns")
    groups = at.grouped(at.first_need)
    for need, total in _running_totals(cm, at, rate, list(groups.items())):
        time = at.elapsed[need] - at.elapsed[at.cut]
        cm.model.at_most([(1, total), (-rate, extra), (-rate, reruns)], rate * time, "copies in")


def _running_totals(
    cm: CutModel, at: _Cut, rate: int, groups: Sequence[tuple[int, list[Value]]]
) -> Iterator[tuple[int, int]]:
    """After each group, its position and a column that is at least the work swapped so far."""
    before: list[tuple[int, int]] = []
    largest = 0
    for position, values in groups:
        terms = [(-at.work(t, rate), cm.swap[t, v]) for t, v in values]
        largest -= sum(c for c, _ in terms)
        total = cm.model.variable(largest, unit=rate * at.tick_ns)
        cm.model.at_least([(1, total), *before, *terms], 0, "running total")
        before = [(-1, total)]
        yield position, total


def _host(cm: CutModel, at: _Cut, problem: Problem) -> None:
    """(7) sum h_t s_tv* <= H."""
    host = problem.machine.host
    if host.pinned_bytes is not None:
        size = at.index.transfer_bytes
        buffers = [(host.buffer_bytes(int(size[t])), cm.swap[t, v]) for t, v in at.transit.items()]
        cm.model.at_most(buffers, host.pinned_bytes, "host")

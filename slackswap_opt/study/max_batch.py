"""The largest batch that a device trains at a given share of its ideal throughput.

For each batch tried, the budget is what static memory and reserve leave of the device, and the
throughput is held against the ideal step *of the same batch*. Batches double until one cannot fit
at all; then the gap above the largest that works is bisected.

What is proven and what is not: that a batch does not fit is monotone (every operation needs at
least as much for more sequences, and static memory does not shrink), so `first_impossible` is a
proof for all larger ones. That a batch misses the throughput says nothing of another: those that
were tried are listed, with what is known of each.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from slackswap_opt.machine import Machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import TrainingStep
from slackswap_opt.study.attempt import Attempt, Outcome, attempt
from slackswap_opt.study.compare import ratio
from slackswap_opt.study.smallest import lower_limit
from slackswap_opt.study.static_memory import DeviceMemory
from slackswap_opt.study.sweep import Cell, Report, Settings, silent, solve_cell
from slackswap_opt.workloads import Workload, build_step, with_changes

MOST = 2**20
"""No larger batch is tried."""

Divide = Callable[[TrainingStep, Workload], DeviceMemory]
"""Divides the device's memory for a step, such as `slackswap_opt.study.device_memory`."""


@dataclass(frozen=True)
class Trial:
    """One batch that was tried.

    Attributes:
        batch: sequences per step.
        memory: how the device's memory is divided.
        ideal_peak_bytes: peak without a limit.
        ideal_step_ns: time without a limit.
        outcome: whether a schedule was found, or what is proven.
        best_possible: no schedule retains more throughput; None where none fits.
        retained: of the fastest schedule found; None without one.
    """

    batch: int
    memory: DeviceMemory
    ideal_peak_bytes: int
    ideal_step_ns: int
    outcome: Outcome
    best_possible: float | None
    retained: float | None


@dataclass(frozen=True)
class MaxBatch:
    """The largest batch found.

    Attributes:
        workload: its name.
        machine: its name.
        planner: who planned.
        min_throughput: share of the ideal throughput that was asked for.
        batch: the largest batch with a schedule that is fast enough; None if there is none.
        cell: that batch, planned to the gap asked for.
        memory: how the device's memory is divided for it.
        unplanned: the largest batch that needs no plan: everything is kept; 0 if not even one
            sequence fits so.
        first_impossible: proven: no batch of so many sequences or more fits, whatever is planned;
            None if that is above `MOST`.
        trials: every batch that was tried, in ascending order.
    """

    workload: str
    machine: str
    planner: str
    min_throughput: Fraction
    batch: int | None
    cell: Cell | None
    memory: DeviceMemory | None
    unplanned: int
    first_impossible: int | None
    trials: tuple[Trial, ...]


def max_batch(
    workload: Workload,
    machine: Machine,
    divide: Divide,
    min_throughput: Fraction,
    planner: str = "ilp",
    settings: Settings | None = None,
    report: Report = silent,
) -> MaxBatch:
    """Search for the largest batch.

    Args:
        workload: what is trained; its own batch is not used.
        machine: where.
        divide: static memory and reserve of a step.
        min_throughput: share of the ideal throughput of the same batch, above 0 and at most 1.
        planner: who plans.
        settings: how planner and bound are run.
        report: told what is being worked on.

    Raises:
        InputError: for an unknown planner, or a workload whose shape does not allow a batch.
        InvalidPlanError, CertificateError, SolverUnavailableError: as
            `slackswap_opt.study.sweep.sweep`.
    """
    search = _Search(
        workload, machine, divide, min_throughput, planner, settings or Settings(), report
    )
    impossible = search.first(lambda b: not search.fits(b))
    unfit = search.first(lambda b: not search.fits_unplanned(b))
    end = MOST + 1 if impossible is None else impossible
    batch = 1
    while batch < end:
        search.try_batch(batch)
        batch *= 2
    works = [b for b, tried in search.tried.items() if tried.outcome is Outcome.MET]
    best = max(works, default=None)
    if best is not None:
        high = min((b for b in search.tried if b > best), default=end)
        while high - best > 1:
            middle = (best + high) // 2
            if search.try_batch(middle).outcome is Outcome.MET:
                best = middle
            else:
                high = middle
    return MaxBatch(
        workload.name,
        machine.name,
        planner,
        min_throughput,
        best,
        None if best is None else search.planned(best),
        None if best is None else search.memory(best),
        unplanned=(MOST if unfit is None else unfit - 1),
        first_impossible=impossible,
        trials=tuple(search.trial(b) for b in sorted(search.tried)),
    )


class _Search:
    """Batches looked at so far."""

    def __init__(
        self,
        workload: Workload,
        machine: Machine,
        divide: Divide,
        min_throughput: Fraction,
        planner: str,
        settings: Settings,
        report: Report,
    ) -> None:
        self.workload, self.machine, self.divide = workload, machine, divide
        self.min_throughput, self.planner = min_throughput, planner
        self.settings, self.report = settings, report
        self.tried: dict[int, Attempt] = {}
        self._problems: dict[int, tuple[Problem, DeviceMemory]] = {}

    def at(self, batch: int) -> tuple[Problem, DeviceMemory]:
        """The problem of a batch, and how its budget comes about."""
        if batch not in self._problems:
            changed = with_changes(self.workload, batch=batch)
            step = build_step(changed, self.machine)
            memory = self.divide(step, changed)
            self._problems[batch] = Problem(step, self.machine, memory.budget_bytes), memory
        return self._problems[batch]

    def memory(self, batch: int) -> DeviceMemory:
        """How the device's memory is divided for a batch."""
        return self.at(batch)[1]

    def fits(self, batch: int) -> bool:
        """Whether each operation alone fits."""
        problem, memory = self.at(batch)
        return lower_limit(problem.step).budget_bytes <= memory.budget_bytes

    def fits_unplanned(self, batch: int) -> bool:
        """Whether everything can be kept."""
        problem, memory = self.at(batch)
        return problem.liveness.ideal_peak_bytes <= memory.budget_bytes

    def first(self, fails: Callable[[int], bool]) -> int | None:
        """The smallest batch of which something monotone is true; None if none up to `MOST` is."""
        self.report(f"{self.workload.name}: memory by batch")
        low, high = 0, 1
        while not fails(high):
            low, high = high, 2 * high
            if high > MOST:
                return None
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if fails(middle) else (middle, high)
        return high

    def try_batch(self, batch: int) -> Attempt:
        """Look for a schedule that is fast enough."""
        problem, _ = self.at(batch)
        target = int(problem.ideal_step_ns / self.min_throughput)
        self.tried[batch] = attempt(
            problem, target, self.planner, self.settings,
            lambda what: self.report(f"batch {batch}: {what}"),
        )  # fmt: skip
        return self.tried[batch]

    def planned(self, batch: int) -> Cell:
        """A batch that works, planned to the gap asked for, never slower than what is known."""
        known = self.tried[batch]
        assert known.judged is not None
        assert known.bound is not None
        return solve_cell(
            known.problem, known.bound, {self.planner: PLANNERS[self.planner]}, self.settings,
            {self.planner: known.judged}, self.report,
        )  # fmt: skip

    def trial(self, batch: int) -> Trial:
        """What is known of a batch that was tried."""
        tried, (problem, memory) = self.tried[batch], self.at(batch)
        ideal = problem.ideal_step_ns
        step_ns = None if tried.judged is None else tried.judged.step_ns
        return Trial(
            batch,
            memory,
            problem.liveness.ideal_peak_bytes,
            ideal,
            tried.outcome,
            None if tried.bound is None else ratio(ideal, tried.bound.step_ns),
            None if step_ns is None else ratio(ideal, step_ns),
        )

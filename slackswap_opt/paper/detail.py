"""One problem in full: what every planner does with each activation, when, and in what memory."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from slackswap_opt.allocator import Kind, reserve
from slackswap_opt.figures.spans import spans_of
from slackswap_opt.paper.case import Case
from slackswap_opt.paper.residents import kind_of, residents_at_peak
from slackswap_opt.paper.tasks import points_of
from slackswap_opt.plan import Problem, Schedule
from slackswap_opt.planners import PLANNERS
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.step import TrainingStep, liveness
from slackswap_opt.study import Cell, Settings, account, sweep
from slackswap_opt.study.robustness import Noise, robustness

KEPT_ALL = "keep-all"
STEPS = 2
"""Steps in a row in the allocator: the second begins with the cache of the first."""
BINS = 800
"""Memory over time is told as the largest value in each of this many parts of the step."""


@dataclass(frozen=True)
class Detail:
    """All planners on one problem.

    Attributes:
        case: the step and the machine.
        percent: budget in percent of the ideal peak.
        seconds: limit of the ILP.
        gap: certified gap at which it stops.
        jitters: standard deviations of every duration and copy, in percent, to play plans under.
        trials: how often, for each of them.
    """

    case: Case
    percent: float
    seconds: float
    gap: float
    jitters: tuple[float, ...]
    trials: int

    @property
    def effort(self) -> float:
        """The ILP's limit, and the other planners."""
        return self.seconds + 10

    def run(self) -> dict[str, list[dict[str, Any]]]:
        """Tables by name.

        They are "points", "actions", "spans", "memory", "peaks", "reserved" and "spreads".

        Their fields are those of `Point`, `Decision`, `Span`, `Memory`, `Resident`, `Peak` and
        `Spread` of `slackswap_opt.figures`.
        """
        problem = self.case.problem()
        peak = problem.liveness.ideal_peak_bytes
        budget = int(self.percent * peak / 100)
        settings = Settings(gap=self.gap, seconds=self.seconds)
        (cell,) = sweep(problem, [budget], PLANNERS, settings)
        tables: dict[str, list[dict[str, Any]]] = {
            "points": points_of(self.case, cell),
            "actions": [],
            "spans": [],
            "memory": [],
            "peaks": [],
            "reserved": [],
            "spreads": [],
        }
        for planner, (schedule, verdict, fits) in _played(cell).items():
            about = {"planner": planner, "fits": fits}
            tables["memory"] += [
                {**about, **row} for row in _memory(verdict, cell.problem.budget_bytes, peak)
            ]
            tables["peaks"] += [
                {**about, **asdict(row)} for row in residents_at_peak(problem, schedule, verdict)
            ]
            tables["reserved"] += [
                {"planner": planner, "budget_bytes": budget, **row}
                for row in _reserved(problem.step, schedule, verdict)
            ]
            if fits:
                tables["spreads"] += [
                    {"planner": planner, **row}
                    for row in _spreads(cell.problem, schedule, self.jitters, self.trials)
                ]
                tables["actions"] += [{**about, **row} for row in _actions(problem.step, schedule)]
                tables["spans"] += [
                    {**about, **row} for row in _spans(problem.step, schedule, verdict)
                ]
        return tables


def _played(cell: Cell) -> dict[str, tuple[Schedule, Verdict, bool]]:
    """Schedule and simulation per planner; what keeps everything is shown even if it is too big."""
    problem = cell.problem
    found: dict[str, tuple[Schedule, Verdict, bool]] = {}
    for name, judged in cell.judged.items():
        schedule = judged.result.schedule
        if schedule is not None and judged.verdict is not None:
            found[name] = (schedule, judged.verdict, True)
        elif name == KEPT_ALL:
            peak = problem.liveness.ideal_peak_bytes
            whole = PLANNERS[KEPT_ALL](problem.with_budget(peak)).schedule
            if whole is not None:
                verdict = simulate(problem.step, problem.machine, whole, peak)
                found[name] = (whole, verdict, False)
    return found


def _actions(step: TrainingStep, schedule: Schedule) -> list[dict[str, Any]]:
    """What becomes of each saved activation, in the order of production."""
    actions = account(step, schedule).actions
    rows = []
    for tensor in _saved_in_order(step):
        tensor_name = step.tensors[tensor].name
        layer = step.operations[step.index.writers[tensor][0]].layer
        rows.append(
            {
                "layer": layer,
                "kind": kind_of(tensor_name, layer),
                "tensor": tensor_name,
                "bytes": int(step.index.size_bytes[tensor]),
                "action": actions[tensor].value,
            }
        )
    return rows


def _saved_in_order(step: TrainingStep) -> list[int]:
    live = liveness(step)
    saved = np.flatnonzero(live.saved)
    return [int(t) for t in saved[np.argsort(live.first_write[saved], kind="stable")]]


def _memory(verdict: Verdict, budget_bytes: int, ideal_peak_bytes: int) -> list[dict[str, Any]]:
    """The largest memory in each part of the step; its maximum is the peak."""
    played = verdict.timeline
    end = int(verdict.step_ns or 0)
    edges = np.linspace(0, end, BINS + 1).astype(np.int64)
    at = np.searchsorted(played.memory_ns, edges, side="right") - 1
    rows = []
    for n in range(BINS):
        first, last = max(0, int(at[n])), int(at[n + 1])
        inside = played.memory_bytes[first : last + 1]
        rows.append(
            {
                "start_ms": int(edges[n]) / 1e6,
                "end_ms": int(edges[n + 1]) / 1e6,
                "bytes": int(inside.max(initial=0)),
                "budget_bytes": budget_bytes,
                "ideal_peak_bytes": ideal_peak_bytes,
            }
        )
    return rows


def _reserved(step: TrainingStep, schedule: Schedule, verdict: Verdict) -> list[dict[str, Any]]:
    """The peak in use, and what each allocator reserves over two steps."""
    rows = [{"measure": "in use", "bytes": verdict.peak_bytes}]
    for kind in (Kind.EXPANDABLE, Kind.CACHING):
        held = reserve(step, schedule, verdict, kind, steps=STEPS)
        rows.append({"measure": kind.value, "bytes": held.reserved_peak_bytes})
    return rows


def _spreads(
    problem: Problem, schedule: Schedule, jitters: tuple[float, ...], trials: int
) -> list[dict[str, Any]]:
    """Step times under each amount of jitter, on compute and copies alike."""
    rows = []
    for percent in jitters:
        found = robustness(problem, schedule, Noise(percent / 100, percent / 100, trials))
        low, median, high = (
            None if ns is None else ns / 1e6 for ns in map(found.percentile_ns, (5, 50, 95))
        )
        rows.append(
            {
                "jitter_percent": percent,
                "trials": trials,
                "ideal_step_ms": problem.ideal_step_ns / 1e6,
                "median_ms": median,
                "low_ms": low,
                "high_ms": high,
                "out_of_memory": found.out_of_memory,
            }
        )
    return rows


def _spans(step: TrainingStep, schedule: Schedule, verdict: Verdict) -> list[dict[str, Any]]:
    return [asdict(span) for span in spans_of(step, schedule, verdict.timeline)]

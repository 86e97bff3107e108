"""Plan files out of results, and the proof that a plan file is what it says."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import numpy as np

from slackswap_opt.errors import CertificateError, ScheduleError
from slackswap_opt.plan import Problem, Schedule
from slackswap_opt.plan.files import Figures, PlanFile, RecordedBound
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.study.account import Account, account
from slackswap_opt.study.judge import InvalidPlanError
from slackswap_opt.study.sweep import Cell

_MOST_SHOWN = 5


@dataclass(frozen=True)
class Replay:
    """A plan file that was played and found to be what it says.

    Attributes:
        plan: the file.
        problem: what it was made for.
        account: what its schedule does.
        verdict: the simulation at the capacity asked for.
        busy_ns: time that each of "compute", "d2h" and "h2d" worked.
    """

    plan: PlanFile
    problem: Problem
    account: Account
    verdict: Verdict
    busy_ns: dict[str, int]


def plan_file(cell: Cell, planner: str, package: str) -> PlanFile:
    """A planner's result as a plan file; it must have a schedule."""
    judged, problem = cell.judged[planner], cell.problem
    schedule, verdict = judged.result.schedule, judged.verdict
    if schedule is None or verdict is None:
        raise ValueError(f"{planner} has no schedule")
    sums, names = account(problem.step, schedule), problem.step.tensors
    cut = problem.step.operations[cell.bound.cut].name if cell.bound.cut >= 0 else None
    return PlanFile(
        package=package,
        planner=planner,
        status=cell.status(judged).value,
        reason=judged.result.reason,
        solver=judged.result.solver,
        time_limited=judged.result.time_limited,
        machine=problem.machine,
        budget_bytes=judged.capacity_bytes,
        bound=RecordedBound(cell.bound.step_ns, cut, cell.bound.solver),
        simulated=_figures(problem, verdict, sums),
        actions={names[tensor].name: action for tensor, action in sums.actions.items()},
        schedule=schedule,
        step=problem.step,
        swaps=problem.swaps,
    )


def replay(plan: PlanFile, capacity_bytes: int | None = None) -> Replay:
    """Play a plan file's schedule and compare all that it says with what happens.

    Args:
        plan: the file's content.
        capacity_bytes: a further capacity to play it at; the budget if not given.

    Raises:
        InvalidPlanError: if the schedule is wrong, runs out of memory, or the file says
            something that is not so.
        CertificateError: if it is faster than the bound in the file.
    """
    problem = Problem(plan.step, plan.machine, plan.budget_bytes, plan.swaps)
    verdict = _played(plan, plan.budget_bytes)
    sums = account(plan.step, plan.schedule)
    _check(plan, _figures(problem, verdict, sums), sums)
    if capacity_bytes is not None and capacity_bytes != plan.budget_bytes:
        verdict = _played(plan, capacity_bytes)
    return Replay(
        plan, problem, sums, verdict, _busy(plan.schedule, plan.step.index.duration_ns, verdict)
    )


def _played(plan: PlanFile, capacity_bytes: int) -> Verdict:
    try:
        verdict = simulate(plan.step, plan.machine, plan.schedule, capacity_bytes)
    except ScheduleError as error:
        raise InvalidPlanError(f"the schedule is invalid: {error}") from None
    stop = verdict.out_of_memory
    if stop is None:
        return verdict
    operation = plan.step.operations[plan.schedule.compute[stop.event]].name
    missing = max(stop.missing_bytes, stop.waiting_bytes)
    largest = ", ".join(repr(plan.step.tensors[t].name) for t in stop.resident[:3])
    raise InvalidPlanError(
        f"the schedule runs out of memory at a capacity of {capacity_bytes} bytes: before event "
        f"{stop.event} ({operation!r}), {missing} bytes are missing"
        + (f"; the largest tensors on the device are {largest}" if largest else "")
    )


def _check(plan: PlanFile, played: Figures, sums: Account) -> None:
    faults = [
        f"simulated.{field.name} is {getattr(plan.simulated, field.name)} in the file, "
        f"{getattr(played, field.name)} when played"
        for field in dataclasses.fields(Figures)
        if getattr(plan.simulated, field.name) != getattr(played, field.name)
    ]
    names = plan.step.tensors
    done = {names[tensor].name: action for tensor, action in sums.actions.items()}
    for name in sorted(done.keys() | plan.actions.keys()):
        said, does = plan.actions.get(name), done.get(name)
        if said != does:
            faults.append(
                f"actions: {name!r} is {said.value if said else 'not listed'} in the file, "
                f"{does.value if does else 'no activation'} in the schedule"
            )
    if not plan.swaps and (plan.schedule.copies_out or plan.schedule.copies_in):
        faults.append("swaps is false in the file, but its schedule copies tensors")
    if plan.bound.cut is not None and plan.bound.cut not in {
        op.name for op in plan.step.operations
    }:
        faults.append(f"bound.cut: {plan.bound.cut!r} is not an operation of the step")
    if faults:
        more = [f"and {len(faults) - _MOST_SHOWN} more"] if len(faults) > _MOST_SHOWN else []
        raise InvalidPlanError(
            "\n".join(
                ["the file does not say what its schedule does", *faults[:_MOST_SHOWN], *more]
            )
        )
    if played.step_ns < plan.bound.step_ns:
        raise CertificateError(
            f"the schedule takes {played.step_ns} ns, less than the bound of "
            f"{plan.bound.step_ns} ns in the file; one of the two is wrong"
        )


def _figures(problem: Problem, verdict: Verdict, sums: Account) -> Figures:
    if verdict.step_ns is None:
        raise ValueError("the schedule does not fit")
    return Figures(
        step_ns=verdict.step_ns,
        ideal_step_ns=problem.ideal_step_ns,
        peak_bytes=verdict.peak_bytes,
        ideal_peak_bytes=problem.liveness.ideal_peak_bytes,
        stall_ns=verdict.stall_ns,
        recompute_ns=sums.recompute_ns,
        host_bytes=verdict.timeline.host_bytes,
    )


def _busy(
    schedule: Schedule,
    durations_ns: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    verdict: Verdict,
) -> dict[str, int]:
    """Working time of each engine within the step."""
    step_ns = verdict.step_ns or 0
    line = verdict.timeline

    def copying(
        start: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
        end: np.ndarray[tuple[int, ...], np.dtype[np.int64]],
    ) -> int:
        begun = start >= 0
        ends = np.where(end[begun] >= 0, np.minimum(end[begun], step_ns), step_ns)
        return int((ends - start[begun]).sum())

    return {
        "compute": int(durations_ns[list(schedule.compute)].sum()),
        "d2h": copying(line.out_start_ns, line.out_end_ns),
        "h2d": copying(line.in_start_ns, line.in_end_ns),
    }

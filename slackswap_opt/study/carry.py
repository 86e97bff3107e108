"""Results as text, to be handed to the next budget in another process or after a restart."""

from __future__ import annotations

import base64
import json
import zlib

from slackswap_opt.formulation.bound import Bound
from slackswap_opt.plan import Action, Copy, Plan, PlanResult, Problem, Schedule, Status
from slackswap_opt.study.judge import Judged, judge


def pack(judged: Judged) -> str:
    """A result that has a schedule, and the capacity at which it was played."""
    result, schedule = judged.result, judged.result.schedule
    if schedule is None:
        raise ValueError(f"{result.planner} has no schedule")
    data = {
        "capacity_bytes": judged.capacity_bytes,
        "planner": result.planner,
        "status": result.status.value,
        "step_ns": result.step_ns,
        "reason": result.reason,
        "solver": result.solver,
        "planning_s": result.planning_s,
        "time_limited": result.time_limited,
        "actions": None
        if result.plan is None
        else [[tensor, action.value] for tensor, action in result.plan.actions.items()],
        "compute": schedule.compute,
        "frees": schedule.frees,
        "copies_out": [[copy.tensor, copy.after] for copy in schedule.copies_out],
        "copies_in": [[copy.tensor, copy.after] for copy in schedule.copies_in],
    }
    text = json.dumps(data, separators=(",", ":")).encode()
    return base64.b85encode(zlib.compress(text, 9)).decode()


def unpack(text: str, problem: Problem, limit: Bound) -> Judged:
    """A packed result, played again before it is believed.

    Args:
        text: from `pack`.
        problem: a problem with the same step and machine and at least that budget.
        limit: the problem's bound.

    Raises:
        InvalidPlanError: if the schedule is not what it says.
    """
    data = json.loads(zlib.decompress(base64.b85decode(text)))
    result = PlanResult(
        data["planner"],
        Status(data["status"]),
        Schedule(
            tuple(data["compute"]),
            tuple(tuple(tensors) for tensors in data["frees"]),
            tuple(Copy(*copy) for copy in data["copies_out"]),
            tuple(Copy(*copy) for copy in data["copies_in"]),
        ),
        data["step_ns"],
        None
        if data["actions"] is None
        else Plan({tensor: Action(action) for tensor, action in data["actions"]}),
        data["reason"],
        data["solver"],
        data["planning_s"],
        data["time_limited"],
    )
    return judge(problem, result, limit, data["capacity_bytes"])

"""Plan GPU activation memory for training: keep, swap or recompute, with proofs.

    from slackswap_opt import Problem, build_step, greedy, load_machine, load_workload

    machine = load_machine()
    step = build_step(load_workload("gpt2-xl"), machine)
    result = greedy(Problem(step, machine, budget_bytes=20 * 2**30))

Names are loaded when they are first used.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    __version__: str
    from slackswap_opt.errors import SlackSwapError
    from slackswap_opt.formats import read_step, write_step
    from slackswap_opt.formulation.bound import Bound, bound
    from slackswap_opt.machine import Machine, load_machine, machine_names
    from slackswap_opt.plan import (
        Action,
        Plan,
        PlanResult,
        Problem,
        Schedule,
        Status,
        lower,
        parse_budget,
    )
    from slackswap_opt.plan.files import PlanFile, read_plan, write_plan
    from slackswap_opt.planners import (
        HEURISTICS,
        ON_REQUEST,
        PLANNERS,
        IlpOptions,
        ReferenceOptions,
        ReferencePlan,
        greedy,
        ilp,
        reference,
        reference_plan,
    )
    from slackswap_opt.simulator import Verdict, simulate
    from slackswap_opt.step import (
        LayerRule,
        Operation,
        Phase,
        Tensor,
        TrainingStep,
        Value,
        in_parts,
    )
    from slackswap_opt.study import Row, Settings, compare, smallest_budget, sweep
    from slackswap_opt.workloads import Workload, build_step, load_workload, workload_names

__all__ = [
    "HEURISTICS",
    "ON_REQUEST",
    "PLANNERS",
    "Action",
    "Bound",
    "IlpOptions",
    "LayerRule",
    "Machine",
    "Operation",
    "Phase",
    "Plan",
    "PlanFile",
    "PlanResult",
    "Problem",
    "ReferenceOptions",
    "ReferencePlan",
    "Row",
    "Schedule",
    "Settings",
    "SlackSwapError",
    "Status",
    "Tensor",
    "TrainingStep",
    "Value",
    "Verdict",
    "Workload",
    "__version__",
    "bound",
    "build_step",
    "compare",
    "greedy",
    "ilp",
    "in_parts",
    "load_machine",
    "load_workload",
    "lower",
    "machine_names",
    "parse_budget",
    "read_plan",
    "read_step",
    "reference",
    "reference_plan",
    "simulate",
    "smallest_budget",
    "sweep",
    "workload_names",
    "write_plan",
    "write_step",
]

_HOMES = {
    "errors": ("SlackSwapError",),
    "formats": ("read_step", "write_step"),
    "formulation.bound": ("Bound", "bound"),
    "machine": ("Machine", "load_machine", "machine_names"),
    "plan": (
        "Action", "Plan", "PlanResult", "Problem", "Schedule", "Status", "lower", "parse_budget",
    ),
    "plan.files": ("PlanFile", "read_plan", "write_plan"),
    "planners": (
        "HEURISTICS", "ON_REQUEST", "PLANNERS", "IlpOptions", "ReferenceOptions", "ReferencePlan",
        "greedy", "ilp", "reference", "reference_plan",
    ),
    "simulator": ("Verdict", "simulate"),
    "step": ("LayerRule", "Operation", "Phase", "Tensor", "TrainingStep", "Value", "in_parts"),
    "study": ("Row", "Settings", "compare", "smallest_budget", "sweep"),
    "workloads": ("Workload", "build_step", "load_workload", "workload_names"),
}  # fmt: skip
_HOME_OF = {name: module for module, names in _HOMES.items() for name in names}


def __getattr__(name: str) -> object:
    value: object
    if name == "__version__":
        value = _version()
    elif name in _HOME_OF:
        value = getattr(importlib.import_module(f"{__name__}.{_HOME_OF[name]}"), name)
    else:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME_OF, "__version__"})


def _version() -> str:
    from importlib import metadata

    try:
        return metadata.version("slackswap-opt")
    except metadata.PackageNotFoundError:
        return "0+unknown"

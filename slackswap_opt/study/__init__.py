"""Studies: many problems, many planners, every figure from a simulation of its own."""

from slackswap_opt.plan import actions_of
from slackswap_opt.study.account import Account, account
from slackswap_opt.study.compare import Row, compare, rows_of
from slackswap_opt.study.explain import Explanation, explain, limits_at
from slackswap_opt.study.frontier import Frontier, FrontierPoint, frontier
from slackswap_opt.study.grid import SweepResult, run_sweep
from slackswap_opt.study.inspection import Inspection, inspect
from slackswap_opt.study.judge import InvalidPlanError, Judged, judge
from slackswap_opt.study.max_batch import MaxBatch, max_batch
from slackswap_opt.study.pools import pool_of
from slackswap_opt.study.replay import Replay, plan_file, replay
from slackswap_opt.study.results import SweepRow, read_rows, write_rows
from slackswap_opt.study.robustness import Margin, Noise, Robustness, robustness, with_margin
from slackswap_opt.study.smallest import LowerLimit, Smallest, lower_limit, smallest_budget
from slackswap_opt.study.spec import SweepSpec, chains_of, read_spec, spec_of
from slackswap_opt.study.static_memory import (
    DeviceMemory,
    StaticMemory,
    device_memory,
    static_memory,
)
from slackswap_opt.study.steady_state import Repeated, SteadyState, repeat, steady_state
from slackswap_opt.study.sweep import Cell, Settings, sweep

__all__ = [
    "Account",
    "Cell",
    "DeviceMemory",
    "Explanation",
    "Frontier",
    "FrontierPoint",
    "Inspection",
    "InvalidPlanError",
    "Judged",
    "LowerLimit",
    "Margin",
    "MaxBatch",
    "Noise",
    "Repeated",
    "Replay",
    "Robustness",
    "Row",
    "Settings",
    "Smallest",
    "StaticMemory",
    "SteadyState",
    "SweepResult",
    "SweepRow",
    "SweepSpec",
    "account",
    "actions_of",
    "chains_of",
    "compare",
    "device_memory",
    "explain",
    "frontier",
    "inspect",
    "judge",
    "limits_at",
    "lower_limit",
    "max_batch",
    "plan_file",
    "pool_of",
    "read_rows",
    "read_spec",
    "repeat",
    "replay",
    "robustness",
    "rows_of",
    "run_sweep",
    "smallest_budget",
    "spec_of",
    "static_memory",
    "steady_state",
    "sweep",
    "with_margin",
    "write_rows",
]

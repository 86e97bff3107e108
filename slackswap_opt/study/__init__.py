"""Studies: many problems, many planners, every figure from a simulation of its own."""

from slackswap_opt.study.account import Account, account, actions_of
from slackswap_opt.study.compare import Row, compare, rows_of
from slackswap_opt.study.inspection import Inspection, inspect
from slackswap_opt.study.judge import InvalidPlanError, Judged, judge
from slackswap_opt.study.replay import Replay, plan_file, replay
from slackswap_opt.study.smallest import LowerLimit, Smallest, lower_limit, smallest_budget
from slackswap_opt.study.sweep import Cell, Settings, sweep

__all__ = [
    "Account",
    "Cell",
    "Inspection",
    "InvalidPlanError",
    "Judged",
    "LowerLimit",
    "Replay",
    "Row",
    "Settings",
    "Smallest",
    "account",
    "actions_of",
    "compare",
    "inspect",
    "judge",
    "lower_limit",
    "plan_file",
    "replay",
    "rows_of",
    "smallest_budget",
    "sweep",
]

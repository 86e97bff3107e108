"""Plans and schedules: what is decided, and the complete program it becomes."""

from slackswap_opt.plan.actions import Action, Plan
from slackswap_opt.plan.blocks import Block, Blocks, find_blocks
from slackswap_opt.plan.lowering import Clock, UnbuildablePlanError, lower, without_idle_copies
from slackswap_opt.plan.problem import Problem, parse_budget
from slackswap_opt.plan.result import PlanResult, Status
from slackswap_opt.plan.schedule import START, Copy, Schedule

__all__ = [
    "START",
    "Action",
    "Block",
    "Blocks",
    "Clock",
    "Copy",
    "Plan",
    "PlanResult",
    "Problem",
    "Schedule",
    "Status",
    "UnbuildablePlanError",
    "find_blocks",
    "lower",
    "parse_budget",
    "without_idle_copies",
]

"""Plans and schedules: what is decided, and the complete program it becomes."""

from slackswap_opt.plan.actions import Action, Plan
from slackswap_opt.plan.blocks import Block, Blocks, find_blocks
from slackswap_opt.plan.lowering import Clock, lower, schedule_of, without_idle_copies
from slackswap_opt.plan.problem import Problem, parse_budget
from slackswap_opt.plan.program import (
    Program,
    Rerun,
    UnbuildablePlanError,
    in_order,
    program_in,
    program_of,
    program_with,
)
from slackswap_opt.plan.result import PlanResult, Status
from slackswap_opt.plan.schedule import START, Copy, Schedule
from slackswap_opt.plan.summary import actions_of

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
    "Program",
    "Rerun",
    "Schedule",
    "Status",
    "UnbuildablePlanError",
    "actions_of",
    "find_blocks",
    "in_order",
    "lower",
    "parse_budget",
    "program_in",
    "program_of",
    "program_with",
    "schedule_of",
    "without_idle_copies",
]

"""The referee: plays schedules, shares no code with the planners."""

from slackswap_opt.simulator.engine import simulate
from slackswap_opt.simulator.verdict import Cause, OutOfMemory, Stall, Timeline, Verdict

__all__ = ["Cause", "OutOfMemory", "Stall", "Timeline", "Verdict", "simulate"]

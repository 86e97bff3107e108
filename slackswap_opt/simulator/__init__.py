"""The referee: plays schedules, shares no code with the planners."""

from slackswap_opt.simulator.batch import BatchVerdict, simulate_batch
from slackswap_opt.simulator.engine import simulate
from slackswap_opt.simulator.scenarios import Scenarios
from slackswap_opt.simulator.timing import FixedOrder, Times
from slackswap_opt.simulator.verdict import Cause, OutOfMemory, Stall, Timeline, Verdict

__all__ = [
    "BatchVerdict",
    "Cause",
    "FixedOrder",
    "OutOfMemory",
    "Scenarios",
    "Stall",
    "Timeline",
    "Times",
    "Verdict",
    "simulate",
    "simulate_batch",
]

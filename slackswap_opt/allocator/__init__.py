"""A model of PyTorch's caching allocator: what a schedule reserves, and what fragments it."""

from slackswap_opt.allocator.caching import CachingAllocator, Usage
from slackswap_opt.allocator.history import HistoryReplay, replay_history
from slackswap_opt.allocator.replay import Kind, Refused, Reserved, reserve
from slackswap_opt.allocator.report import Fragmentation, Hole, PoolUse, fragmentation
from slackswap_opt.allocator.requests import Stream, requests

__all__ = [
    "CachingAllocator",
    "Fragmentation",
    "HistoryReplay",
    "Hole",
    "Kind",
    "PoolUse",
    "Refused",
    "Reserved",
    "Stream",
    "Usage",
    "fragmentation",
    "replay_history",
    "requests",
    "reserve",
]

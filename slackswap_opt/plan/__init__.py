"""Plans and schedules: what is decided, and the complete program it becomes."""

from slackswap_opt.plan.schedule import START, Copy, Schedule

__all__ = ["START", "Copy", "Schedule"]

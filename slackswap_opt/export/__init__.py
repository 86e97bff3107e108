"""Results in the formats of other programs."""

from slackswap_opt.export.chrome_trace import chrome_trace

__all__ = ["chrome_trace"]

"""Figures: one per file; each draws results that it is given, and computes none."""

from slackswap_opt.figures.comparison import comparison
from slackswap_opt.figures.published import Panel, published
from slackswap_opt.figures.style import save
from slackswap_opt.figures.sweep import sweep
from slackswap_opt.figures.timeline import timeline

__all__ = ["Panel", "comparison", "published", "save", "sweep", "timeline"]

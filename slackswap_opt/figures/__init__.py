"""Figures: one per file; each draws results that it is given, and computes none."""

from matplotlib.figure import Figure

from slackswap_opt.figures.bars import bars
from slackswap_opt.figures.budgets import budget, budgets
from slackswap_opt.figures.comparison import comparison
from slackswap_opt.figures.decisions import Decision, decisions
from slackswap_opt.figures.jitter import Spread, jitter
from slackswap_opt.figures.maps import gains, phases
from slackswap_opt.figures.memory import Resident, memory, peaks
from slackswap_opt.figures.points import Limits, Point, of, points_of
from slackswap_opt.figures.prices import Price, prices
from slackswap_opt.figures.published import Panel, published
from slackswap_opt.figures.reserved import Peak, reserved
from slackswap_opt.figures.scaling import scaling
from slackswap_opt.figures.sensitivity import sensitivity
from slackswap_opt.figures.spans import Memory, Span, spans_of
from slackswap_opt.figures.style import paper, rendered, save
from slackswap_opt.figures.sweep import sweep
from slackswap_opt.figures.timeline import step_timeline, timeline

__all__ = [
    "Decision",
    "Figure",
    "Limits",
    "Memory",
    "Panel",
    "Peak",
    "Point",
    "Price",
    "Resident",
    "Span",
    "Spread",
    "bars",
    "budget",
    "budgets",
    "comparison",
    "decisions",
    "gains",
    "jitter",
    "memory",
    "of",
    "paper",
    "peaks",
    "phases",
    "points_of",
    "prices",
    "published",
    "rendered",
    "reserved",
    "save",
    "scaling",
    "sensitivity",
    "spans_of",
    "step_timeline",
    "sweep",
    "timeline",
]

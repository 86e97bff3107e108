"""The paper's figures: what each needs, computed in parallel, cached, drawn and written."""

from slackswap_opt.paper.cache import Cache, default_cache_dir
from slackswap_opt.paper.case import Case
from slackswap_opt.paper.catalogue import FIGURES
from slackswap_opt.paper.entry import PaperFigure
from slackswap_opt.paper.grid import FULL, QUICK, Grid
from slackswap_opt.paper.make import Made, make, write

__all__ = [
    "FIGURES",
    "FULL",
    "QUICK",
    "Cache",
    "Case",
    "Grid",
    "Made",
    "PaperFigure",
    "default_cache_dir",
    "make",
    "write",
]

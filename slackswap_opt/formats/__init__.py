"""File formats: reading training steps from any known file, writing them in several."""

from slackswap_opt.formats.files import read_text, write_text
from slackswap_opt.formats.library import graph_names, graph_path
from slackswap_opt.formats.registry import format_of, read_step
from slackswap_opt.formats.writing import write_step

__all__ = [
    "format_of",
    "graph_names",
    "graph_path",
    "read_step",
    "read_text",
    "write_step",
    "write_text",
]

"""File formats: reading training steps from any known file, writing them in several."""

from slackswap_opt.formats.files import read_text, write_text
from slackswap_opt.formats.library import graph_names, graph_path
from slackswap_opt.formats.registry import format_of, read_step
from slackswap_opt.formats.step_files import StepFile, step_file
from slackswap_opt.formats.writing import write_step

__all__ = [
    "StepFile",
    "format_of",
    "graph_names",
    "graph_path",
    "read_step",
    "read_text",
    "step_file",
    "write_step",
    "write_text",
]

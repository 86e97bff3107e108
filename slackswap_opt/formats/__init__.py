"""File formats: reading training steps from any known file, writing them in the native one."""

from slackswap_opt.formats.files import read_text, write_text
from slackswap_opt.formats.native import write as write_step
from slackswap_opt.formats.registry import read_step

__all__ = ["read_step", "read_text", "write_step", "write_text"]

"""The command line, `slackswap`."""

from slackswap_opt.cli.app import main

__all__ = ["main"]

"""Standard output that may go away, and text that may hold anything."""

from __future__ import annotations

import os
import sys


def discard_stdout() -> None:
    """The reader has gone: let the rest of the output go nowhere."""
    try:
        nowhere = os.open(os.devnull, os.O_WRONLY)
        os.dup2(nowhere, sys.stdout.fileno())
        os.close(nowhere)
    except (OSError, ValueError):
        pass


def plain(text: str, keep: str = "") -> str:
    """Text without control characters, which names in a file may contain."""
    return "".join(c if c.isprintable() or c in keep else "\N{REPLACEMENT CHARACTER}" for c in text)

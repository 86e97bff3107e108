"""DOT graphs, which are recognized in order to say why they are not read."""

from __future__ import annotations

import re
from typing import NoReturn

from slackswap_opt.errors import InputError

NAME = "DOT graph (recognized, not read)"

_START = re.compile(
    rb"\s*(//[^\n]*\n\s*|#[^\n]*\n\s*)*(strict\s+)?(di)?graph\b[^{\n]*\{", re.IGNORECASE
)


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a DOT graph."""
    return _START.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def read(content: bytes, name: str) -> NoReturn:
    """Refuse the file, with what to do instead."""
    del content, name
    raise InputError(
        "this is a DOT graph, which holds figures only inside of label text, if at all; "
        "give the PipeDream graph.txt that comes with it, or write the step as native JSON "
        "(docs/formats.md)"
    )

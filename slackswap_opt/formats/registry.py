"""Reads a step from any known file, recognized by what it holds and not by its suffix.

A format is a module with `NAME`, `recognizes(head)` and `read(content, name)`. To add one, write
the module and list it in `FORMATS`; what it needs beyond the package's own dependencies it imports
inside of `read`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Protocol

from slackswap_opt.errors import InputError
from slackswap_opt.formats import dot, files, native, pipedream
from slackswap_opt.step.graph import TrainingStep

HEAD_BYTES = 2**20
"""How much of a file the formats see to recognize it."""


class StepFormat(Protocol):
    """What a module must offer to be a format."""

    NAME: str
    """What the format is called in messages."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is of this format, sound or not."""

    def read(self, content: bytes, name: str) -> TrainingStep:
        """The step a file holds; `name` names it where the file does not.

        Raises:
            InputError: with every fault found.
        """


FORMATS: list[StepFormat] = [native, dot, pipedream]
"""In the order in which they are asked."""


def read_step(path: str | Path) -> TrainingStep:
    """Read a training step from a file, plain or gzip.

    Raises:
        InputError: if the file cannot be read, no format recognizes it, or it is faulty; every
            line of the message begins with the path.
    """
    content = files.read_bytes(path)
    try:
        return read_content(content, _stem(Path(path)))
    except InputError as error:
        raise error.at(str(path)) from None


def read_content(content: bytes, name: str) -> TrainingStep:
    """Read a training step from the content of a file.

    Raises:
        InputError: as `read_step`, without the path.
    """
    head = content[:HEAD_BYTES]
    for known in FORMATS:
        if known.recognizes(head):
            return known.read(content, name)
    names = "; ".join(known.NAME for known in FORMATS)
    raise InputError(f"the format is not recognized; known formats: {names}")


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name

"""Writes a step in any of the formats that can hold one without loss."""

from __future__ import annotations

import gzip
from collections.abc import Callable, Mapping
from pathlib import Path

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, graphml, native, native_yaml, node_link
from slackswap_opt.step.graph import TrainingStep

WRITERS: Mapping[str, Callable[[TrainingStep], str]] = {
    "native": native.dumps,
    "yaml": native_yaml.dumps,
    "node-link": node_link.dumps,
    "graphml": graphml.dumps,
}
"""How to write each format, by the name that the command line uses."""

_BY_SUFFIX = {".json": "native", ".yaml": "yaml", ".yml": "yaml", ".graphml": "graphml"}


def format_for(path: str | Path, wanted: str | None = None) -> str:
    """The format to write: the one asked for, or the one that the suffix stands for.

    Raises:
        InputError: if there is no such format, or the suffix stands for none.
    """
    if wanted is not None:
        if wanted in WRITERS:
            return wanted
        raise InputError(f"unknown format {wanted!r}; available: {', '.join(WRITERS)}")
    suffixes = [suffix.lower() for suffix in Path(path).suffixes]
    if suffixes[-1:] == [".gz"]:
        suffixes.pop()
    found = _BY_SUFFIX.get(suffixes[-1]) if suffixes else None
    if found is None:
        raise InputError(
            f"the suffix does not say the format; end it with {', '.join(_BY_SUFFIX)}, or name "
            f"one of {', '.join(WRITERS)}",
            where=str(path),
        )
    return found


def write_step(
    step: TrainingStep, path: str | Path, *, to: str | None = None, force: bool = False
) -> None:
    """Write a step to a file, whole or not at all; compressed if the path ends in `.gz`.

    Args:
        step: what to write.
        path: where to.
        to: a name of `WRITERS`; by the suffix if left out.
        force: whether an existing file may be replaced.

    Raises:
        InputError: if the format is not known or cannot hold the step's names, the file exists and
            `force` is not set, or it cannot be written.
    """
    dumps = WRITERS[format_for(path, to)]
    try:
        text = dumps(step)
    except InputError as error:
        raise error.at(str(path)) from None
    if Path(path).suffix.lower() == ".gz":
        files.write_bytes(path, gzip.compress(_encoded(text, path), mtime=0), force=force)
    else:
        files.write_text(path, text, force=force)


def _encoded(text: str, path: str | Path) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError as error:
        raise InputError(
            f"{text[error.start]!r} is half of a character and cannot be written", where=str(path)
        ) from None

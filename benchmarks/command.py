"""What the scripts have in common: options, refusals, tables, and the places they write to."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from slackswap_opt.machine import DEFAULT_MACHINE

ROOT = Path(__file__).resolve().parent.parent
DATA = "SLACKSWAP_DATA"
"""Environment variable that names a folder of profiles that are not part of the project."""


def parser_of(
    doc: str | None,
    *,
    write: str,
    json: bool = False,
    machine: bool = False,
    seconds: float | None = None,
) -> argparse.ArgumentParser:
    """A parser with `--write`, and with those of the usual options that a script takes.

    Args:
        doc: the script's documentation, of which the first line is shown.
        write: what `--write` does, such as "update docs/gains.md".
        json: whether there is `--json`.
        machine: whether there is `--machine`.
        seconds: what `--seconds` is unless it is given; None where there is no such option.
    """
    parser = argparse.ArgumentParser(description=(doc or "").splitlines()[0])
    if machine:
        parser.add_argument("--machine", default=DEFAULT_MACHINE)
    if seconds is not None:
        parser.add_argument("--seconds", type=float, default=seconds, help="limit of the ILP, each")
    if json:
        parser.add_argument("--json", action="store_true", help="print one JSON document")
    parser.add_argument("--write", action="store_true", help=write)
    return parser


def names_in(text: str) -> list[str]:
    """The parts of a list with commas."""
    return [part for part in text.split(",") if part]


def failed(faults: Iterable[str]) -> bool:
    """Whether there are faults; they are told on standard error."""
    found = list(faults)
    if found:
        print("\n".join(found), file=sys.stderr)
    return bool(found)


def table_lines(heads: Sequence[str], rows: Iterable[Iterable[object]]) -> list[str]:
    """The lines of a table in Markdown."""
    lines = ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads)]
    return lines + ["| " + " | ".join(map(str, row)) + " |" for row in rows]


def rewrite(path: Path, name: str, text: str) -> None:
    """Replace what stands between `<!-- name -->` and `<!-- /name -->` in a file.

    Raises:
        ValueError: if there is no such section.
    """
    content = path.read_text(encoding="utf-8")
    begin, end = f"<!-- {name} -->\n", f"<!-- /{name} -->"
    before, _, rest = content.partition(begin)
    _, found, after = rest.partition(end)
    if not found:
        raise ValueError(f"{path} has no section {name!r}")
    path.write_text(before + begin + text + "\n" + end + after, encoding="utf-8")

"""Results to stdout, progress to stderr; figures rounded so that they never claim too much."""

from __future__ import annotations

import json
import math
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Literal

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from slackswap_opt.cli.streams import discard_stdout, plain

WIDE = 160
"""Columns assumed where the output is not a terminal."""
_UNITS = (("GiB", 2**30), ("MiB", 2**20), ("KiB", 2**10), ("B", 1))


class _Console(Console):
    def on_broken_pipe(self) -> None:
        discard_stdout()


def console() -> Console:
    """The console of standard output."""
    if sys.stdout.isatty() or os.environ.get("COLUMNS"):
        return _Console(highlight=False, markup=False, emoji=False)
    return _Console(highlight=False, markup=False, emoji=False, width=WIDE)


def print_json(document: object) -> None:
    """One JSON document."""
    print_text(json.dumps(document, indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_text(text: str) -> None:
    """Text as it is."""
    try:
        sys.stdout.write(text)
        sys.stdout.flush()
    except BrokenPipeError:
        discard_stdout()


@contextmanager
def progress() -> Iterator[Callable[[str], None]]:
    """Yields what to call with the work at hand; shown on stderr if that is a terminal."""
    to = Console(stderr=True, highlight=False, markup=False, emoji=False)
    if not to.is_terminal or to.is_dumb_terminal:
        yield lambda _: None
        return
    with to.status("") as status:
        yield lambda message: status.update(Text(plain(message)))


@dataclass(frozen=True)
class Column:
    """A table's column; those of the highest rank go first where the terminal is narrow."""

    header: str
    rank: int = 0
    left: bool = False


def only(swaps: bool) -> str:
    """What a title adds for problems in which nothing may be swapped."""
    return "" if swaps else ", recompute only"


def print_table(
    title: str, columns: Sequence[Column], rows: Sequence[Sequence[str]], note: str = ""
) -> None:
    """A table, without its least important columns if it is too wide.

    Args:
        title: a line in bold above it.
        columns: what each is called, where it stands.
        rows: entries by column.
        note: a line below the title, if any.
    """
    to = console()
    shown = list(range(len(columns)))
    while True:
        table = _table(columns, rows, shown)
        width = to.measure(table, options=to.options.update(width=10_000)).maximum
        if width <= to.width or all(columns[c].rank == 0 for c in shown):
            break
        shown.remove(max(shown, key=lambda c: (columns[c].rank, c)))
    print_title(title)
    if note:
        print_lines(note)
    to.print(table)


def _table(columns: Sequence[Column], rows: Sequence[Sequence[str]], shown: Sequence[int]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False)
    for c in shown:
        column = columns[c]
        justify: Literal["left", "right"] = "left" if column.left else "right"
        table.add_column(Text(column.header), justify=justify, no_wrap=True)
    for row in rows:
        table.add_row(*(Text(plain(row[c])) for c in shown))
    return table


def print_title(title: str) -> None:
    """A line in bold, never wrapped."""
    console().print(Text(plain(title), style="bold"), soft_wrap=True)


def print_lines(*lines: str) -> None:
    """Lines of text, never wrapped."""
    to = console()
    for line in lines:
        to.print(Text(plain(line)), soft_wrap=True)


def print_facts(facts: Mapping[str, str]) -> None:
    """Names and values, aligned."""
    print_pairs(list(facts.items()))


def print_pairs(pairs: Sequence[tuple[str, str]]) -> None:
    """Names and values, aligned; a name may be empty or there more than once."""
    width = max(len(name) for name, _ in pairs)
    print_lines(*(f"{name:<{width}}  {value}".rstrip() for name, value in pairs))


# Figures


def number(value: float) -> str:
    """About three digits."""
    size = abs(value)
    decimals = 0 if size >= 1000 else 1 if size >= 100 else 2 if size >= 1 or size == 0 else 3
    return f"{value:.{decimals}f}"


def milliseconds(seconds: float | None) -> str:
    """A time in milliseconds."""
    return "-" if seconds is None else number(seconds * 1000)


def percent_down(fraction: float | None) -> str:
    """A percentage with two decimals, rounded down."""
    return "-" if fraction is None else f"{math.floor(round(fraction * 1e4, 6)) / 100:.2f} %"


def percent_up(fraction: float | None) -> str:
    """A percentage with two decimals, rounded up."""
    return "-" if fraction is None else f"{math.ceil(round(fraction * 1e4, 6)) / 100:.2f} %"


def memory(size_bytes: int) -> str:
    """A number of bytes in the unit that suits it."""
    unit, scale = unit_of(size_bytes)
    return f"{in_unit(size_bytes, scale)} {unit}"


def unit_of(size_bytes: int) -> tuple[str, int]:
    """The unit that suits a size, and its bytes."""
    return next(((u, s) for u, s in _UNITS if abs(size_bytes) >= s), _UNITS[-1])


def in_unit(size_bytes: int | None, scale: int) -> str:
    """A size as a number of units."""
    if size_bytes is None:
        return "-"
    return str(size_bytes) if scale == 1 else number(size_bytes / scale)


def count(amount: int, thing: str) -> str:
    """`1 layer`, `2 layers`."""
    return f"{amount} {thing}{'' if amount == 1 else 's'}"

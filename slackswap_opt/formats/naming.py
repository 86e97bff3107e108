"""Names for operations and tensors out of names that files carry."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

MAX_LENGTH = 120
"""Longer names are cut; messages and tables show them whole."""


class Names:
    """Hands out unique, printable names.

    A name that is taken gets a number: `conv`, `conv.2`, `conv.3`.
    """

    def __init__(self) -> None:
        self._taken: set[str] = set()
        self._count: Counter[str] = Counter()

    def reserve(self, names: Iterable[str]) -> None:
        """Take names that were handed out before, by others of this class."""
        self._taken.update(names)

    def unique(self, wanted: str) -> str:
        """The wanted name, made printable, cut and numbered as needed."""
        stem = printable(wanted)
        name = stem
        while not name or name in self._taken:
            self._count[stem] += 1
            name = f"{stem}.{self._count[stem] + 1}"
        self._taken.add(name)
        return name


def printable(text: str) -> str:
    """A text without control characters and half characters, cut to a readable length."""
    cut = text[:MAX_LENGTH].replace(" ", "_")
    if cut.isprintable():
        return cut
    return "".join(character if character.isprintable() else "_" for character in cut)

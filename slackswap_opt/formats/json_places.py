"""Where in a JSON text its values are; looked for only where a fault is to be reported."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

_TOKEN = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"|[{}\[\]]|[^\s{}\[\],:"]+', re.DOTALL)

Path = tuple[object, ...]
"""The keys and indices that lead to a value."""


@dataclass(eq=False, slots=True)
class Container:
    """An object or a list.

    Attributes:
        path: where it is.
        is_object: whether it has keys.
        keys: those that came so far.
        name: the text that its key `name` has, as it is written.
        key: the one that waits for its value.
        count: values so far.
    """

    path: Path
    is_object: bool
    keys: set[str] = field(default_factory=set)
    name: str = ""
    key: str | None = None
    count: int = 0


class Found(NamedTuple):
    """A value: its path, its line, how it begins, what it is in, whether its key came before."""

    path: Path
    line: int
    token: str
    owner: Container | None
    repeated: bool


def values(text: str) -> Iterator[Found]:
    """Every value of a sound JSON text, in the order of the text."""
    stack: list[Container] = []
    line, counted = 1, 0
    for match in _TOKEN.finditer(text):
        token, owner = match[0], stack[-1] if stack else None
        if token in ("}", "]"):
            stack.pop()
            continue
        if owner is not None and owner.is_object and owner.key is None:
            owner.key = json.loads(token) if "\\" in token else token[1:-1]
            continue
        line += text.count("\n", counted, match.start())
        counted = match.start()
        path, repeated = _place(owner, token)
        yield Found(path, line, token, owner, repeated)
        if token in ("{", "["):
            stack.append(Container(path, token == "{"))


def _place(owner: Container | None, token: str) -> tuple[Path, bool]:
    """The path of a value, and whether its key came before; the owner counts it."""
    if owner is None:
        return (), False
    owner.count += 1
    key, owner.key = owner.key, None
    if key is None:
        return (*owner.path, owner.count - 1), False
    if key == "name" and token.startswith('"'):
        owner.name = token
    repeated = key in owner.keys
    owner.keys.add(key)
    return (*owner.path, key), repeated


def lines_of(text: str, paths: Collection[Path]) -> list[int]:
    """The line of each value, or of the nearest thing around it that the text has."""
    wanted = {path[:length] for path in paths for length in range(len(path) + 1)}
    lines: dict[Path, int] = {}
    for found in values(text):
        if found.path in wanted:
            lines.setdefault(found.path, found.line)
            if len(lines) == len(wanted):
                break
    return [nearest(path, lines) for path in paths]


def nearest(path: Path, lines: dict[Path, int]) -> int:
    """The line of a value, or of the nearest thing around it that has one."""
    while path and path not in lines:
        path = path[:-1]
    return lines.get(path, 1)

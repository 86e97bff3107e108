"""YAML without its surprises: no aliases, no tags, nothing that versions of YAML read differently.

Built from the parser's events, not by a loader: depth is bounded, aliases cannot multiply, and
no tag makes an object. Plain scalars are what the core schema of YAML 1.2 says; so `no` is a text
and `1e3` a number. Where YAML 1.1 has another number in mind (`010`), the file has to say which.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.formats.strict_json import MAX_DIGITS, shown

MAX_CHARACTERS = 32 * 2**20
"""Largest text that is read; YAML is for files written by hand."""
_MAX_DEPTH = 12
_NULL = ("", "~", "null", "Null", "NULL")
_TRUE, _FALSE = ("true", "True", "TRUE"), ("false", "False", "FALSE")
_INTEGER = re.compile(r"[-+]?[0-9]+")
_FLOAT = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_SPECIAL = re.compile(r"[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)")
_NO_KEY = object()

Lines = dict[tuple[object, ...], int]
"""The line at which each value begins, by its path of keys and indices."""


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not complete, and the key that waits for its value."""

    container: Any
    path: tuple[object, ...]
    key: object = _NO_KEY
    line: int = 0


def parse(text: str, lines: Lines | None = None) -> tuple[Any, list[str]]:
    """Parse a document.

    Args:
        text: one YAML document.
        lines: is filled with the lines of values, if given.

    Returns:
        The document, and one sentence for each key given twice or that is no text, and for each
        number that versions of YAML read differently.

    Raises:
        InputError: if PyYAML is missing, the text is not YAML, or it uses what is refused.
    """
    try:
        import yaml
    except ImportError:
        raise InputError(
            "reading YAML needs PyYAML; install it with `pip install 'slackswap-opt[yaml]'`, or "
            "write the file as JSON"
        ) from None
    if len(text) > MAX_CHARACTERS:
        raise InputError(
            f"it has more than {MAX_CHARACTERS} characters, the most that is read as YAML; "
            "write it as JSON"
        )
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    try:
        return _Builder(lines).build(yaml.parse(text, Loader=loader))
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}: " if mark else ""
        raise InputError(f"{where}not valid YAML: {error.problem or error.context}") from None
    except yaml.reader.ReaderError as error:
        raise InputError(_unreadable(text, error.position)) from None
    except yaml.YAMLError as error:
        raise InputError(f"not valid YAML: {error}") from None
    except RecursionError:
        raise InputError("the YAML is nested too deeply; a step needs four levels") from None


def _unreadable(text: str, position: object) -> str:
    at = position if isinstance(position, int) else 0
    character = ascii(text[at]) if at < len(text) else "a character"
    line = text.count("\n", 0, at) + 1
    return f"line {line}: the character {character} is not allowed in YAML; remove it"


class _Builder:
    def __init__(self, lines: Lines | None) -> None:
        self.lines = lines
        self.faults: list[str] = []
        self.stack: list[_Open] = []
        self.document: Any = None
        self.documents = 0

    def build(self, events: Iterator[Any]) -> tuple[Any, list[str]]:
        for event in events:
            line = event.start_mark.line + 1
            match type(event).__name__:
                case "DocumentStartEvent":
                    self.documents += 1
                    if self.documents > 1:
                        raise InputError(f"line {line}: a second document begins; give one")
                case "AliasEvent":
                    raise InputError(
                        f"line {line}: the alias *{event.anchor[:60]} is not read; write what it "
                        "stands for"
                    )
                case "ScalarEvent":
                    self._refuse_extras(event, line)
                    plain, _ = event.implicit
                    self._add(self._scalar(event.value, line) if plain else event.value, line)
                case "MappingStartEvent" | "SequenceStartEvent":
                    self._refuse_extras(event, line)
                    self._enter({} if type(event).__name__.startswith("M") else [], line)
                case "MappingEndEvent" | "SequenceEndEvent":
                    self.stack.pop()
                case _:
                    pass
        return self.document, self.faults

    def _refuse_extras(self, event: Any, line: int) -> None:
        if event.anchor is not None:
            raise InputError(
                f"line {line}: the anchor &{event.anchor[:60]} is not read; write what its aliases "
                "stand for"
            )
        if event.tag is not None and event.tag != "!":
            raise InputError(f"line {line}: the tag {shown(event.tag)} is not read; remove it")

    def _enter(self, container: Any, line: int) -> None:
        if len(self.stack) >= _MAX_DEPTH:
            raise InputError(
                f"line {line}: the YAML is nested too deeply; a step needs four levels"
            )
        self.stack.append(_Open(container, self._add(container, line)))

    def _add(self, value: Any, line: int) -> tuple[object, ...]:
        """Put a value where it belongs; its path."""
        if not self.stack:
            self.document = value
            if self.lines is not None:
                self.lines[()] = line
            return ()
        top = self.stack[-1]
        if isinstance(top.container, list):
            path = (*top.path, len(top.container))
            top.container.append(value)
        elif top.key is _NO_KEY:
            top.key, top.line = self._key(value, line), line
            return (*top.path, top.key)
        else:
            path = (*top.path, top.key)
            if top.key in top.container:
                self.faults.append(
                    f"line {top.line}: the key {shown(top.key)} appears more than once; keep one"
                )
            top.container[top.key] = value
            top.key = _NO_KEY
        if self.lines is not None:
            self.lines[path] = line
        return path

    def _key(self, value: Any, line: int) -> str:
        if isinstance(value, dict | list):
            raise InputError(f"line {line}: a key is {shown(value)}, expected text")
        if isinstance(value, str):
            return value
        self.faults.append(f"line {line}: the key {shown(value)} is not text; put it in quotes")
        return str(value)

    def _scalar(self, text: str, line: int) -> Any:
        """What the core schema of YAML 1.2 says that a plain scalar is."""
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text):
            digits = text.lstrip("+-")
            if len(digits) > MAX_DIGITS:
                raise InputError(f"line {line}: {shown(text)} has {len(digits)} digits; too many")
            if len(digits) > 1 and digits[0] == "0":
                self.faults.append(
                    f"line {line}: {text} begins with 0, which YAML 1.1 takes for an octal number; "
                    "write it without the 0, or in quotes if it is text"
                )
            return int(text)
        if len(text) < MAX_DIGITS and _FLOAT.fullmatch(text):
            return float(text)
        if _SPECIAL.fullmatch(text):
            return float(text.lower().replace(".", ""))
        return text

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
_NOT_TEXT = frozenset(["", *"+-.0123456789~nNtTfF"])
"""How plain scalars begin that may be no texts."""
_NO_KEY = object()

Lines = dict[tuple[object, ...], int]
"""The line at which each value begins, by its path of keys and indices."""


@dataclass(slots=True)
class _Open:
    """A list or mapping that is not complete, and the key that waits for its value."""

    container: Any
    path: tuple[object, ...]
    key: object = _NO_KEY
    event: Any = None


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
    try:
        loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)(text)
        try:
            return _Builder(lines).build(iter(loader.get_event, None))
        finally:
            loader.dispose()
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
        import yaml

        for event in events:
            kind = type(event)
            if kind is yaml.ScalarEvent:
                if event.anchor is not None or event.tag is not None:
                    self._refuse_extras(event)
                value = event.value
                if event.implicit[0] and value[:1] in _NOT_TEXT:
                    value = self._scalar(value, event)
                self._add(value, event)
            elif kind is yaml.MappingEndEvent or kind is yaml.SequenceEndEvent:
                self.stack.pop()
            elif kind is yaml.MappingStartEvent or kind is yaml.SequenceStartEvent:
                self._refuse_extras(event)
                self._enter({} if kind is yaml.MappingStartEvent else [], event)
            elif kind is yaml.DocumentStartEvent:
                self.documents += 1
                if self.documents > 1:
                    raise InputError(f"{_line(event)}a second document begins; give one")
            elif kind is yaml.AliasEvent:
                raise InputError(
                    f"{_line(event)}the alias *{event.anchor[:60]} is not read; write what it "
                    "stands for"
                )
        return self.document, self.faults

    def _refuse_extras(self, event: Any) -> None:
        if event.anchor is not None:
            raise InputError(
                f"{_line(event)}the anchor &{event.anchor[:60]} is not read; write what its "
                "aliases stand for"
            )
        if event.tag is not None and event.tag != "!":
            raise InputError(f"{_line(event)}the tag {shown(event.tag)} is not read; remove it")

    def _enter(self, container: Any, event: Any) -> None:
        if len(self.stack) >= _MAX_DEPTH:
            raise InputError(
                f"{_line(event)}the YAML is nested too deeply; a step needs four levels"
            )
        self.stack.append(_Open(container, self._add(container, event)))

    def _add(self, value: Any, event: Any) -> tuple[object, ...]:
        """Put a value where it belongs; its path, if lines are wanted."""
        if not self.stack:
            self.document = value
            return self._noted((), event)
        top = self.stack[-1]
        if type(top.container) is list:
            top.container.append(value)
            last: object = len(top.container) - 1
        elif top.key is _NO_KEY:
            top.key = value if type(value) is str else self._key(value, event)
            top.event = event
            return ()
        else:
            last = top.key
            if last in top.container:
                self.faults.append(
                    f"{_line(top.event)}the key {shown(last)} appears more than once; keep one"
                )
            top.container[last] = value
            top.key = _NO_KEY
        return () if self.lines is None else self._noted((*top.path, last), event)

    def _noted(self, path: tuple[object, ...], event: Any) -> tuple[object, ...]:
        if self.lines is not None:
            self.lines[path] = event.start_mark.line + 1
        return path

    def _key(self, value: Any, event: Any) -> str:
        if isinstance(value, dict | list):
            raise InputError(f"{_line(event)}a key is {shown(value)}, expected text")
        self.faults.append(f"{_line(event)}the key {shown(value)} is not text; put it in quotes")
        return str(value)

    def _scalar(self, text: str, event: Any) -> Any:
        """What the core schema of YAML 1.2 says that a plain scalar is that may be no text."""
        if text in _NULL:
            return None
        if text in _TRUE or text in _FALSE:
            return text in _TRUE
        if _INTEGER.fullmatch(text):
            digits = text.lstrip("+-")
            if len(digits) > MAX_DIGITS:
                raise InputError(f"{_line(event)}{shown(text)} has {len(digits)} digits; too many")
            if len(digits) > 1 and digits[0] == "0":
                self.faults.append(
                    f"{_line(event)}{text} begins with 0, which YAML 1.1 takes for an octal "
                    "number; write it without the 0, or in quotes if it is text"
                )
            return int(text)
        if len(text) < MAX_DIGITS and _FLOAT.fullmatch(text):
            return float(text)
        if _SPECIAL.fullmatch(text):
            return float(text.lower().replace(".", ""))
        return text


def _line(event: Any) -> str:
    return f"line {event.start_mark.line + 1}: "

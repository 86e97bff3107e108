"""JSON as its standard has it: no NaN, no repeated keys, no surprises from hostile files."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.formats import json_places

MAX_DIGITS = 400
"""Longest integer accepted; every quantity of this package has at most 16 digits."""
_SHOWN = 60
_CONSTANTS = ("NaN", "Infinity", "-Infinity")
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse(text: str) -> tuple[Any, list[str]]:
    """Parse a document.

    Returns:
        The document, and one sentence for each key that an object holds twice, each NaN or
        Infinity, with its line, and for half characters; the document has them as Python does.

    Raises:
        InputError: if the text is not JSON; names line and column.
    """
    odd = False

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        nonlocal odd
        found = dict(pairs)
        if len(found) < len(pairs):
            odd = True
        return found

    def constant(name: str) -> float:
        nonlocal odd
        odd = True
        return float(name)

    try:
        document = json.loads(
            text, object_pairs_hook=unique, parse_int=_integer, parse_constant=constant
        )
        faults = list(_oddities(text)) if odd else []
        faults.extend(_half_characters(text, document))
    except json.JSONDecodeError as error:
        raise InputError(_not_json(error)) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply; a step needs four levels") from None
    return document, faults


def _not_json(error: json.JSONDecodeError) -> str:
    """What is wrong with a text; slips that are made often are named."""
    text, at = error.doc, error.pos
    before = text[:at].rstrip()
    what = f"not valid JSON: {error.msg}"
    if text[at : at + 1] in ("]", "}") and before.endswith(","):
        at, what = len(before) - 1, f"not valid JSON: a comma before {text[at]}; remove it"
    elif text[at : at + 1] == "," and text[at + 1 :].lstrip()[:1] in ("]", "}"):
        what = f"not valid JSON: a comma before {text[at + 1 :].lstrip()[0]}; remove it"
    elif text[at : at + 1] in ("#", "/"):
        what = "not valid JSON: it has no comments; remove it, or write the file as YAML"
    elif text[at : at + 1] == "'":
        what = "not valid JSON: texts are in double quotes"
    line, column = text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)
    return f"line {line}, column {column}: {what}"


def _oddities(text: str) -> Iterator[str]:
    """What JSON parsers let pass, by line."""
    repeated: dict[tuple[object, ...], json_places.Found] = {}
    for found in json_places.values(text):
        if found.token in _CONSTANTS:
            yield f"line {found.line}: {found.token} is not valid JSON; write a finite number"
        if found.repeated:
            repeated.setdefault(found.path, found)
    for path, found in repeated.items():
        name = found.owner.name if found.owner else ""
        where = f" in the object named {shown(json.loads(name))}" if name else ""
        key = shown(path[-1])
        yield f"line {found.line}: the key {key} appears more than once{where}; keep one"


def shown(value: object) -> str:
    """A value for a message: as JSON writes it, cut to a readable length."""
    if isinstance(value, str):
        text = json.dumps(value[: _SHOWN + 1], ensure_ascii=False)
        cut = len(value) > _SHOWN
    elif isinstance(value, dict):
        return "an object"
    elif isinstance(value, list):
        return "a list"
    else:
        text = json.dumps(value)
        cut = len(text) > _SHOWN
    text = text.encode(errors="backslashreplace").decode()
    return f"{text[:_SHOWN]}... ({len(str(value))} characters)" if cut else text


def _half_characters(text: str, document: object) -> Iterator[str]:
    written = r"\u" in text or not text.isascii()  # both are quick, the pattern is not
    if not written or not _SURROGATE.search(text):
        return
    try:
        json.dumps(document, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        half = ascii(error.object[error.start])
        yield f"{half} is half of a character; write the whole character"


def _integer(digits: str) -> int:
    if len(digits) > MAX_DIGITS:
        raise InputError(f"the integer {digits[:20]}... has {len(digits)} digits; too many")
    return int(digits)

"""JSON as its standard has it: no NaN, no repeated keys, no surprises from hostile files."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

from slackswap_opt.errors import InputError

MAX_DIGITS = 400
"""Longest integer accepted; every quantity of this package has at most 16 digits."""
_SHOWN = 60
_SURROGATE = re.compile(r"\\u[dD][89a-fA-F]|[\ud800-\udfff]")


def parse(text: str) -> tuple[Any, list[str]]:
    """Parse a document.

    Returns:
        The document, and one sentence for each key that an object holds twice, each NaN or
        Infinity, and for half characters; the document has them as Python does.

    Raises:
        InputError: if the text is not JSON; names line and column.
    """
    faults: list[str] = []

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            counts = Counter(key for key, _ in pairs)
            again = [key for key, count in counts.items() if count > 1]
            owner = found.get("name")
            where = f" in the object named {shown(owner)}" if isinstance(owner, str) else ""
            faults.extend(
                f"the key {shown(key)} appears more than once{where}; keep one" for key in again
            )
        return found

    def constant(name: str) -> float:
        faults.append(f"{name} is not valid JSON; write a finite number")
        return float(name)

    try:
        document = json.loads(
            text, object_pairs_hook=unique, parse_int=_integer, parse_constant=constant
        )
        faults.extend(_half_characters(text, document))
    except json.JSONDecodeError as error:
        raise InputError(
            f"line {error.lineno}, column {error.colno}: not valid JSON: {error.msg}"
        ) from None
    except RecursionError:
        raise InputError("the JSON is nested too deeply; a step needs four levels") from None
    return document, faults


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
    if not _SURROGATE.search(text):
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

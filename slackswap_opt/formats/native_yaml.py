"""The native format as YAML: the same fields, pleasant to write by hand.

Read with PyYAML (the extra `yaml`); `strict_yaml` says what of YAML is read. Written without it.
"""

from __future__ import annotations

import json
import re

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, native, strict_yaml
from slackswap_opt.formats.json_places import nearest
from slackswap_opt.formats.native_schema import SCHEMA
from slackswap_opt.step.graph import TrainingStep

NAME = f"native YAML, with schema: {SCHEMA}"

_SCHEMA_KEY = re.compile(rb"^[\"']?schema[\"']?[ \t]*:[ \t]*[\"']?slackswap\.", re.MULTILINE)
_KEYS = tuple(
    re.compile(rb"^" + key + rb"[ \t]*:", re.MULTILINE) for key in (b"tensors", b"operations")
)
_NOT_YAML = re.compile(
    "[^\t\n\r\x20-\x7e\xa0-\u2027\u202a-\ud7ff\ue000-\ufefe\uff00-\ufffd\U00010000-\U0010ffff]"
)
_LONGEST_KEY = 250
"""A key must fit into 1024 characters with its escapes; with longer names tensors are a list."""


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a step in native YAML, sound or not."""
    start = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if start[:1] in (b"{", b"[", b"<", b""):
        return False
    return _SCHEMA_KEY.search(start) is not None or all(key.search(start) for key in _KEYS)


def read(content: bytes, name: str = "") -> TrainingStep:  # noqa: ARG001 - the file names itself
    """Read a step from the content of a file; `name` is not needed, the file holds one."""
    return loads(files.decode(content))


def loads(text: str) -> TrainingStep:
    """Read a step from YAML text.

    Raises:
        InputError: with every fault of the text, by line.
    """
    document, faults = strict_yaml.parse(text)
    step, found = native.step_of(document)
    if found:
        lines: strict_yaml.Lines = {}
        strict_yaml.parse(text, lines)
        faults.extend(f"line {nearest(path, lines)}: {sentence}" for path, sentence in found)
    if faults or step is None:
        raise InputError(*faults)
    return step


def dumps(step: TrainingStep) -> str:
    """A step as YAML text: one line for each tensor and operation, defaults left out."""
    document = json.loads(native.dumps(step))
    text = [f"schema: {SCHEMA}", f"name: {_json(document['name'])}"]
    for group in ("notes", "operations"):
        if document.get(group):
            text += [f"{group}:", *(f"  - {_json(entry)}" for entry in document[group])]
    tensors = document["tensors"]
    if not tensors:
        body = ["tensors: {}"]
    elif any(len(name) > _LONGEST_KEY for name in tensors):
        entries = (
            {"name": name, **(entry if isinstance(entry, dict) else {"size_bytes": entry})}
            for name, entry in tensors.items()
        )
        body = ["tensors:", *(f"  - {_json(entry)}" for entry in entries)]
    else:
        body = ["tensors:", *(f"  {_json(name)}: {_json(e)}" for name, e in tensors.items())]
    at = next((i for i, line in enumerate(text) if line == "operations:"), len(text))
    return "\n".join([*text[:at], *body, *text[at:]]) + "\n"


def _json(value: object) -> str:
    """JSON, which is YAML once the characters that YAML refuses are written as escapes."""
    return _NOT_YAML.sub(
        lambda match: "".join(
            f"\\u{ord(c):04x}" if ord(c) < 0x10000 else f"\\U{ord(c):08x}" for c in match[0]
        ),
        json.dumps(value, ensure_ascii=False),
    )

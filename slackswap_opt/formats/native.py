"""The native format, `slackswap.step/1`: a training step as JSON, without loss.

Made to be written by hand as well; `docs/formats.md` has an example and every field.
"""

from __future__ import annotations

import itertools
import json
import re
from collections import Counter
from collections.abc import Collection, Iterator, Sequence
from decimal import Decimal
from typing import Any

from pydantic import ValidationError

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, json_places, strict_json
from slackswap_opt.formats.native_schema import (
    SCHEMA,
    Fault,
    StepFields,
    did_you_mean,
    faults_of,
    place,
)
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.graph_records import NS_PER_UNIT
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

NAME = f'native JSON, with "schema": "{SCHEMA}"'

_VERSIONED = re.compile(r"(.+)@([0-9]{1,15})", re.DOTALL)
_SCHEMA_KEY = re.compile(rb'"schema"\s*:\s*"slackswap\.')
_MOST_SUGGESTIONS = 20
_ADD_TENSOR = '; add it there, with "static": true if it is a parameter or the batch'
_ENOUGH = 1000
"""Faults of one kind after which no more are looked for."""
_PHASES = {phase.value: phase for phase in Phase}
_PLAIN_OF_TENSORS = ("static", "samples")
_PLAIN_OF_OPERATIONS = ("workspace_bytes", "layer", "recomputable", "random", "per_sample")
"""Fields that operations here and in the file have in common, with the same defaults."""


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a step in the native format, sound or not."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"{"):
        return False
    return bool(_SCHEMA_KEY.search(start)) or (b'"operations"' in start and b'"tensors"' in start)


def read(content: bytes, name: str = "") -> TrainingStep:  # noqa: ARG001 - the file names itself
    """Read a step from the content of a file; `name` is not needed, the file holds one."""
    return loads(files.decode(content))


def loads(text: str) -> TrainingStep:
    """Read a step from JSON text.

    Raises:
        InputError: with every fault of the text; what only a graph can show (values nobody
            writes, cycles) is looked for once the fields are right.
    """
    document, faults = strict_json.parse(text)
    step, found = step_of(document)
    lines = json_places.lines_of(text, [path for path, _ in found]) if found else []
    faults.extend(f"line {n}: {sentence}" for n, (_, sentence) in zip(lines, found, strict=True))
    if faults or step is None:
        raise InputError(*faults)
    return step


def from_document(document: object) -> TrainingStep:
    """The step that a parsed document describes, where its text is part of another file.

    Raises:
        InputError: as `loads`, without lines.
    """
    step, found = step_of(document)
    if found or step is None:
        raise InputError(*(sentence for _, sentence in found))
    return step


def step_of(document: object) -> tuple[TrainingStep | None, list[Fault]]:
    """The step that a parsed document describes, or every fault of its fields.

    Raises:
        InputError: if the schema is another one, or as `TrainingStep.build`.
    """
    faults: list[Fault] = []
    if isinstance(document, dict):
        _refuse_other_schema(document.get("schema"))
    try:
        StepFields.model_validate(document)  # strict: it changes nothing, the document will do
    except ValidationError as error:
        faults.extend(faults_of(_of_the_beginning(error, document), document))
    if isinstance(document, dict):
        for found in (_name_faults, _duration_faults, _reference_faults):
            faults.extend(itertools.islice(found(document), _ENOUGH))
    if faults or not isinstance(document, dict):
        return None, faults
    tensors = _tensors(document["tensors"])
    known = {name: Value(name) for tensor in tensors for name in (tensor.name, *tensor.aliases)}
    operations = [_operation(entry, known) for entry in document["operations"]]
    notes = document.get("notes", ())
    return TrainingStep.build(document["name"], operations, tensors, notes), []


def dumps(step: TrainingStep) -> str:
    """A step as JSON text: one line for each tensor and operation, defaults left out."""
    known = {name for tensor in step.tensors for name in (tensor.name, *tensor.aliases)}
    lines = ["{", f'  "schema": {_json(SCHEMA)},', f'  "name": {_json(step.name)},']
    if step.notes:
        lines += ['  "notes": [', *_listed(map(_json, step.notes)), "  ],"]
    tensors = (f"{_json(tensor.name)}: {_json(_tensor_entry(tensor))}" for tensor in step.tensors)
    lines += ['  "tensors": {', *_listed(tensors), "  },"]
    operations = (_json(_operation_entry(op, known)) for op in step.operations)
    lines += ['  "operations": [', *_listed(operations), "  ]", "}"]
    return "\n".join(lines) + "\n"


def _refuse_other_schema(schema: object) -> None:
    if not isinstance(schema, str) or schema == SCHEMA:
        return
    if re.fullmatch(r"slackswap\.step/[1-9][0-9]*", schema):
        raise InputError(
            f"schema is {shown(schema)}, newer than the {shown(SCHEMA)} this version reads; "
            "upgrade slackswap-opt"
        )
    if schema.startswith("slackswap.") and not schema.startswith("slackswap.step"):
        raise InputError(
            f"schema is {shown(schema)}: this is not a training step; expected {shown(SCHEMA)}"
        )


def _of_the_beginning(error: ValidationError, document: object) -> ValidationError:
    """The error of the first operations and tensors, if they hold more than enough faults."""
    if error.error_count() <= _ENOUGH or not isinstance(document, dict):
        return error
    first = dict(document)
    for group in ("operations", "tensors"):
        if isinstance(first.get(group), list):
            first[group] = first[group][:_ENOUGH]
        elif isinstance(first.get(group), dict):
            first[group] = dict(itertools.islice(first[group].items(), _ENOUGH))
    try:
        StepFields.model_validate(first)
    except ValidationError as fewer:
        return fewer if fewer.error_count() >= files.MOST_FAULTS else error
    return error


# Reading: what no single field can tell


def _name_faults(document: dict[str, Any]) -> Iterator[Fault]:
    operations = Counter(
        [op["name"] for op in _objects(document, "operations") if isinstance(op.get("name"), str)]
    )
    yield from _repeated("operation", document, "operations", operations)
    names = Counter(_tensor_names(document))
    yield from _repeated("tensor or alias", document, "tensors", names)


def _repeated(
    what: str, document: dict[str, Any], group: str, names: Counter[str]
) -> Iterator[Fault]:
    if len(names) == names.total():
        return
    last = {
        entry["name"]: index
        for index, entry in enumerate(_list(document, group))
        if isinstance(entry, dict) and isinstance(entry.get("name"), str)
    }
    for name, count in names.items():
        if count > 1:
            yield (
                (group, last.get(name, name)),
                f"{what} {shown(name)} is defined {count} times; names must be unique",
            )


def _duration_faults(document: dict[str, Any]) -> Iterator[Fault]:
    for index, op in enumerate(_list(document, "operations")):
        given = [unit for unit in NS_PER_UNIT if unit in op] if isinstance(op, dict) else [""]
        if len(given) == 1:
            continue
        path = ("operations", index)
        where = place(document, path)
        if given:
            yield path, f"{where} has {' and '.join(given)}; keep one"
        else:
            yield path, f"{where}: the duration is missing; add one of {', '.join(NS_PER_UNIT)}"


def _reference_faults(document: dict[str, Any]) -> Iterator[Fault]:
    names = dict.fromkeys(_tensor_names(document))
    if not names:
        return
    suggestions = _MOST_SUGGESTIONS
    for index, op in enumerate(_list(document, "operations")):
        for field in ("reads", "writes"):
            references = _list(op, field) if isinstance(op, dict) else []
            for position, reference in enumerate(references):
                if isinstance(reference, str) and reference in names:
                    continue
                tensor = reference.get("tensor") if isinstance(reference, dict) else reference
                if not isinstance(tensor, str) or not tensor:
                    continue
                if tensor in names or _resolved(tensor, names):
                    continue
                match = _VERSIONED.fullmatch(tensor)
                hint = did_you_mean(match[1] if match else tensor, names) if suggestions else ""
                suggestions = max(0, suggestions - 1)
                where = place(document, ("operations", index, field))
                yield (
                    ("operations", index, field, position),
                    f"{where}: {shown(tensor)} is not in tensors{hint or _ADD_TENSOR}",
                )


def _resolved(text: str, known: Collection[str]) -> Value | None:
    """The value a name means: a tensor of exactly this name, otherwise `tensor@version`."""
    if text in known:
        return Value(text)
    match = _VERSIONED.fullmatch(text) if "@" in text else None
    return Value(match[1], int(match[2])) if match and match[1] in known else None


def _tensor_names(document: dict[str, Any]) -> Iterator[str]:
    tensors = document.get("tensors")
    entries: list[tuple[Any, Any]] = []
    if isinstance(tensors, dict):
        entries = list(tensors.items())
    elif isinstance(tensors, list):
        entries = [(t.get("name"), t) for t in tensors if isinstance(t, dict)]
    for name, entry in entries:
        if isinstance(name, str) and name:
            yield name
        if isinstance(entry, dict):
            for alias in _list(entry, "aliases"):
                if isinstance(alias, str) and alias:
                    yield alias


def _list(owner: dict[str, Any], field: str) -> list[Any]:
    value = owner.get(field)
    return value if isinstance(value, list) else []


def _objects(owner: dict[str, Any], field: str) -> list[dict[str, Any]]:
    return [entry for entry in _list(owner, field) if isinstance(entry, dict)]


# Reading: from sound fields to the step


def _tensors(entries: dict[str, Any] | list[dict[str, Any]]) -> list[Tensor]:
    if isinstance(entries, list):
        return [_tensor(entry["name"], entry) for entry in entries]
    return [
        Tensor.of(name, entry) if isinstance(entry, int) else _tensor(name, entry)
        for name, entry in entries.items()
    ]


def _tensor(name: str, entry: dict[str, Any]) -> Tensor:
    size_bytes = entry["size_bytes"]
    return Tensor(
        name,
        size_bytes,
        entry.get("transfer_bytes", size_bytes),
        aliases=tuple(entry.get("aliases", ())),
        **{field: entry[field] for field in _PLAIN_OF_TENSORS if field in entry},
    )


def _operation(entry: dict[str, Any], known: dict[str, Value]) -> Operation:
    return Operation(
        entry["name"],
        _PHASES[entry["phase"]],
        _duration_ns(entry),
        _values(entry.get("reads", ()), known),
        _values(entry.get("writes", ()), known),
        **{field: entry[field] for field in _PLAIN_OF_OPERATIONS if field in entry},
    )


def _values(references: Sequence[Any], known: dict[str, Value]) -> tuple[Value, ...]:
    """The values that texts or objects name; most are names of tensors, in their first version."""
    try:
        return tuple([known[name] for name in references])
    except (KeyError, TypeError):
        return tuple([_value(reference, known) for reference in references])


def _value(reference: str | dict[str, Any], known: dict[str, Value]) -> Value:
    if isinstance(reference, dict):
        return Value(**reference)
    return _resolved(reference, known) or Value(reference)


def _duration_ns(entry: dict[str, Any]) -> int:
    (unit,) = [unit for unit in NS_PER_UNIT if unit in entry]
    written = entry[unit]
    if isinstance(written, int):
        return written * NS_PER_UNIT[unit]
    return round(Decimal(repr(written)) * NS_PER_UNIT[unit])


# Writing


def _tensor_entry(tensor: Tensor) -> int | dict[str, Any]:
    entry: dict[str, Any] = {"size_bytes": tensor.size_bytes}
    if tensor.transfer_bytes != tensor.size_bytes:
        entry["transfer_bytes"] = tensor.transfer_bytes
    if tensor.static:
        entry["static"] = True
    if tensor.aliases:
        entry["aliases"] = list(tensor.aliases)
    if tensor.samples:
        entry["samples"] = tensor.samples
    return tensor.size_bytes if len(entry) == 1 else entry


def _operation_entry(op: Operation, known: set[str]) -> dict[str, Any]:
    def references(values: tuple[Value, ...]) -> list[Any]:
        return [
            str(value)
            if _resolved(str(value), known) == value
            else {"tensor": value.tensor, "version": value.version}
            for value in values
        ]

    entry: dict[str, Any] = {
        "name": op.name,
        "phase": op.phase.value,
        "duration_ns": op.duration_ns,
        "reads": references(op.reads),
        "writes": references(op.writes),
    }
    if op.workspace_bytes:
        entry["workspace_bytes"] = op.workspace_bytes
    if op.layer:
        entry["layer"] = op.layer
    if not op.recomputable:
        entry["recomputable"] = False
    if op.random:
        entry["random"] = True
    if op.per_sample:
        entry["per_sample"] = True
    return entry


def _listed(entries: Iterator[str]) -> list[str]:
    lines = [f"    {entry}," for entry in entries]
    if lines:
        lines[-1] = lines[-1].removesuffix(",")
    return lines


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

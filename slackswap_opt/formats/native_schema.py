"""The fields of the native format, and sentences for what is wrong with them.

The published `docs/step.schema.json` is `json_schema()`.
"""

from __future__ import annotations

import difflib
import itertools
import re
from collections.abc import Iterable, Iterator, Mapping
from decimal import Decimal
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Discriminator, Field, Tag, ValidationError

from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS
from slackswap_opt.step.graph_records import NS_PER_UNIT

SCHEMA = "slackswap.step/1"
_MOST_TO_COMPARE = 2000
_SYNONYMS = {
    "duration_us": ("duration", "time", "latency", "cost", "runtime"),
    "reads": ("inputs", "input", "in", "deps", "depends_on"),
    "writes": ("outputs", "output", "out", "produces"),
    "size_bytes": ("size", "bytes", "nbytes"),
    "phase": ("type", "stage", "kind", "pass"),
}
"""What other formats call our fields."""
_SIZE = re.compile(r"([0-9]{1,15}(?:\.[0-9]{1,9})?) ?(?:([kKMGT])(i?))?B")

Name = Annotated[str, Field(min_length=1)]
Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES)]


def _without_default(schema: dict[str, Any]) -> None:
    schema.pop("default", None)


def _duration(unit: str) -> Any:
    limit = MAX_NS if unit == "duration_ns" else MAX_NS / NS_PER_UNIT[unit]
    return Field(
        default=0,
        ge=0,
        le=limit,
        description="Time on the compute stream; give exactly one of the four.",
        json_schema_extra=_without_default,
    )


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class TensorFields(_Strict):
    """A storage: one block of device memory."""

    size_bytes: Bytes = Field(description="Device memory the storage holds.")
    transfer_bytes: Bytes = Field(
        default=0,
        description="Bytes that cross the link when it is swapped; size_bytes if left out.",
        json_schema_extra=_without_default,
    )
    static: bool = Field(
        default=False,
        description="Parameters, their gradients, optimizer state and batch inputs: "
        "always on the device, outside of the budget.",
    )
    aliases: list[Name] = Field(default=[], description="Further names of the same storage.")
    samples: Bytes = Field(
        default=0,
        description="Equal slices along the batch that the storage is made of, one after the "
        "other; 0 if it has none or that is not known.",
    )


class NamedTensor(TensorFields):
    """A storage with its name, for tensors given as a list."""

    name: Name = Field(description="Unique in the step.")


class ValueFields(_Strict):
    """A version of a tensor, for names that would be ambiguous as `name@version`."""

    tensor: Name = Field(description="Name of a tensor, taken as it is.")
    version: Annotated[int, Field(ge=0, le=MAX_NS)] = Field(
        default=0, description="0 after the first write, one more after each in-place write."
    )


def _short_or_full(value: object) -> str:
    return "full" if isinstance(value, dict) else "short"


def _list_or_object(value: object) -> str:
    return "list" if isinstance(value, list) else "object"


TensorEntry = Annotated[
    Annotated[Bytes, Tag("short")] | Annotated[TensorFields, Tag("full")],
    Discriminator(_short_or_full),
]
Reference = Annotated[
    Annotated[Name, Tag("short")] | Annotated[ValueFields, Tag("full")],
    Discriminator(_short_or_full),
]
Tensors = Annotated[
    Annotated[dict[Name, TensorEntry], Tag("object")] | Annotated[list[NamedTensor], Tag("list")],
    Discriminator(_list_or_object),
]


class OperationFields(_Strict):
    """One operation."""

    model_config = ConfigDict(
        json_schema_extra={"oneOf": [{"required": [unit]} for unit in NS_PER_UNIT]}
    )

    name: Name = Field(description="Unique in the step.")
    phase: Literal["forward", "backward", "optimizer"] = Field(description="Part of the step.")
    duration_ns: int = _duration("duration_ns")
    duration_us: float = _duration("duration_us")
    duration_ms: float = _duration("duration_ms")
    duration_s: float = _duration("duration_s")
    reads: list[Reference] = Field(
        default=[], description="Values it needs: `x`, or `x@1` after one in-place write."
    )
    writes: list[Reference] = Field(
        default=[], description="Values it produces; `x@1` overwrites `x` in place."
    )
    workspace_bytes: Bytes = Field(default=0, description="Scratch memory while it runs.")
    layer: str = Field(default="", description="Free label that groups operations.")
    recomputable: bool = Field(default=True, description="Whether it may run again.")
    random: bool = Field(
        default=False,
        description="It draws random numbers; if it is recomputable too, its generator state "
        "is saved.",
    )
    per_sample: bool = Field(
        default=False,
        description="It works on samples one by one, with time and workspace in proportion, so "
        "that it can run on part of a batch; all that it writes has samples.",
    )


class StepFields(_Strict):
    """A training step: operations in execution order and the tensors they pass."""

    model_config = ConfigDict(title=SCHEMA)

    schema_: Literal["slackswap.step/1"] = Field(alias="schema", description="Format, version.")
    name: str = Field(description="What tables and files call the step.")
    notes: list[str] = Field(default=[], description="Assumptions, one sentence each.")
    tensors: Tensors = Field(
        description="By name: a number of bytes, or an object. A list of objects will do as well."
    )
    operations: list[OperationFields] = Field(
        description="In execution order; sorted if a dependency is not respected."
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the native format."""
    schema = StepFields.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


Fault = tuple[tuple[object, ...], str]
"""The path in the document of what is wrong, and a sentence."""


def faults_of(error: ValidationError, document: object) -> Iterator[Fault]:
    """One sentence per fault: where, what was found, what was expected, how to mend it."""
    for fault in error.errors(include_url=False, include_context=True):
        path = tuple(_untagged(fault["loc"]))
        yield path, _sentence(fault, path, document)


def place(document: object, path: Iterable[object]) -> str:
    """Name the spot in a document as a person would: `operation "a": reads[0]`."""
    parts = list(path)
    if parts[:1] == ["operations"] and len(parts) > 1:
        return _joined(_owner(document, "operation", "operations", parts[1]), parts[2:])
    if parts[:1] == ["tensors"] and len(parts) > 1:
        owner = (
            f"tensor {shown(parts[1])}"
            if isinstance(parts[1], str)
            else _owner(document, "tensor", "tensors", parts[1])
        )
        return _joined(owner, parts[2:])
    return _joined("", parts)


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """`; did you mean "x"?`, or nothing where no known word is close, or too many are known."""
    choices = [k for k in itertools.islice(known, _MOST_TO_COMPARE + 1) if len(k) <= 100]
    if len(word) > 100 or len(choices) > _MOST_TO_COMPARE:
        return ""
    close = difflib.get_close_matches(word, choices, n=1)
    return f"; did you mean {shown(close[0])}?" if close else ""


def _owner(document: object, what: str, group: str, index: object) -> str:
    entries = document.get(group) if isinstance(document, Mapping) else None
    if isinstance(entries, list) and isinstance(index, int):
        entry = entries[index]
        name = entry.get("name") if isinstance(entry, Mapping) else None
        if isinstance(name, str) and name:
            return f"{what} {shown(name)}"
    return f"{group}[{index}]"


def _joined(owner: str, rest: list[object]) -> str:
    field = ""
    for part in rest:
        field += f"[{part}]" if isinstance(part, int) else f".{part}" if field else str(part)
    return ": ".join(part for part in (owner, field) if part)


_EXPECTED = {
    "string_type": "text in quotes",
    "string_unicode": "text without half characters",
    "string_too_short": "a name that is not empty",
    "bool_type": "true or false",
    "list_type": "a list [...]",
    "dict_type": "an object {...} or a list [...]",
    "model_type": "an object {...}",
    "int_type": "a whole number",
    "int_from_float": "a whole number",
    "float_type": "a number",
    "finite_number": "a finite number",
}


def _sentence(fault: Any, path: tuple[Any, ...], document: object) -> str:
    kind, found, context = fault["type"], fault["input"], fault.get("ctx", {})
    where = place(document, path)
    if kind == "extra_forbidden":
        known = _known_fields(path)
        owner = place(document, path[:-1])
        return f"{owner + ': ' if owner else ''}there is no field {shown(str(path[-1]))}" + (
            _meant(str(path[-1]), known) or f"; it knows {', '.join(known)}"
        )
    if kind == "missing":
        remedy = f'add "schema": "{SCHEMA}"' if where == "schema" else "add it"
        return f"{where}: the field is missing; {remedy}"
    if kind in ("greater_than_equal", "less_than_equal"):
        bound = context.get("ge", context.get("le"))
        relation = "at least" if kind == "greater_than_equal" else "at most"
        return f"{where} is {shown(found)}, expected {relation} {bound:.16g}"
    if kind == "literal_error":
        expected = str(context.get("expected"))
        hint = (
            did_you_mean(found, ["forward", "backward", "optimizer"])
            if (isinstance(found, str) and path[-1] == "phase")
            else ""
        )
        return f"{where} is {shown(found)}, expected {expected}{hint}"
    if kind in ("int_type", "int_from_float") and isinstance(found, float):
        mend = f"; write {int(found)}" if found.is_integer() and abs(found) < 2**63 else ""
        return f"{where} is {shown(found)}, expected a whole number written as an integer{mend}"
    if kind == "float_type" and isinstance(found, int) and not isinstance(found, bool):
        return f"{where} is {shown(found)}, far too large"
    expected = _EXPECTED.get(kind) or str(fault["msg"])
    if kind == "float_type" and isinstance(found, str):
        expected += "; the unit is in the name of the field"
    if kind == "list_type" and isinstance(found, str) and path[-1] in ("reads", "writes"):
        expected += f"; write [{shown(found)}]"
    if len(path) == 2 and path[0] == "tensors" and kind in ("model_type", "int_type"):
        expected = "a number of bytes or an object {...}" + _in_bytes(found)
    elif kind == "int_type":
        expected += _in_bytes(found)
    return f"{where or 'the document'} is {shown(found)}, expected {expected}"


def _meant(field: str, known: Iterable[str]) -> str:
    """The field that a word stands for elsewhere, or that it is close to."""
    for name, words in _SYNONYMS.items():
        if field.lower() in words and name in known:
            also = ", or the same in _ns, _ms or _s" if name == "duration_us" else ""
            return f"; did you mean {shown(name)}{also}?"
    return did_you_mean(field, known)


def _in_bytes(found: object) -> str:
    """A size with its unit as a number of bytes; nothing for what is no size."""
    match = _SIZE.fullmatch(found) if isinstance(found, str) else None
    if match is None:
        return ""
    power = " kmgt".index(match[2].lower()) if match[2] else 0
    return f"; write {round(Decimal(match[1]) * (1024 if match[3] else 1000) ** power)}"


def _untagged(loc: tuple[Any, ...]) -> Iterator[Any]:
    """The path without the union tags, which stand at known places."""
    if loc[:1] == ("tensors",):
        yield "tensors"
        rest = loc[2:]
        if loc[1:2] == ("object",) and len(rest) > 1:
            yield rest[0]
            rest = rest[2:]
        yield from rest
    elif loc[:1] == ("operations",) and len(loc) > 4 and loc[2] in ("reads", "writes"):
        yield from loc[:4]
        yield from loc[5:]
    else:
        yield from loc


def _known_fields(path: tuple[Any, ...]) -> list[str]:
    model: type[BaseModel] = StepFields
    if path[0] == "operations" and len(path) > 1:
        model = OperationFields if len(path) == 3 else ValueFields
    elif path[0] == "tensors" and len(path) > 1:
        model = NamedTensor if isinstance(path[1], int) else TensorFields
    return [field.alias or name for name, field in model.model_fields.items()]

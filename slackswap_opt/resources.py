"""Where the data files shipped with the package are, and how a description file is read."""

from __future__ import annotations

import difflib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError

from slackswap_opt.errors import InputError

_PACKAGE = Path(__file__).resolve().parent

Described = TypeVar("Described", bound=BaseModel)


def models_dir() -> Path:
    """The folder of workload and machine descriptions.

    Inside an installed package it is `slackswap_opt/models`; in a checkout (an editable install)
    the files are in the top-level `models/`, from which the wheel is filled.
    """
    packaged = _PACKAGE / "models"
    return packaged if packaged.is_dir() else _PACKAGE.parent / "models"


def names_in(folder: Path) -> tuple[str, ...]:
    """Names of the descriptions in a folder, sorted."""
    return tuple(sorted(path.stem for path in folder.glob("*.toml")))


def locate(name_or_path: str | Path, folder: Path, kind: str) -> Path:
    """The file that a name or a path means.

    Anything with a suffix `.toml` or a folder in it is a path; the rest are names of files in
    `folder`.

    Args:
        name_or_path: what the user gave.
        folder: where the shipped descriptions of this kind are.
        kind: "machine" or "workload", for the message.

    Raises:
        InputError: for an unknown name or a missing file, with the names available.
    """
    text = str(name_or_path)
    known = names_in(folder)
    if isinstance(name_or_path, Path) or text.endswith(".toml") or Path(text).name != text:
        path = Path(name_or_path)
        if path.is_file():
            return path
        raise InputError(
            f"no such {kind} file; give the path of a TOML file or one of: {', '.join(known)}",
            where=text,
        )
    if text in known:
        return folder / f"{text}.toml"
    close = difflib.get_close_matches(text.lower(), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    raise InputError(f"unknown {kind} {text!r}; {hint}available: {', '.join(known)}")


def read_description(path: Path, model: type[Described]) -> Described:
    """A TOML file as a validated model.

    Raises:
        InputError: naming the file, and for each fault the field and what is expected.
    """
    try:
        data = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read ({error}); check the path", where=str(path)) from None
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not valid TOML: {error}", where=str(path)) from None
    return validated(model, data, str(path))


def validated(model: type[Described], data: dict[str, Any], where: str) -> Described:
    """Data as a validated model; faults become one `InputError` that starts with `where`."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        raise InputError(*_faults(error, model), where=where) from None


def _faults(error: ValidationError, model: type[BaseModel]) -> Iterator[str]:
    for fault in error.errors(include_url=False):
        at = fault["loc"]
        field = ".".join(str(part) for part in at) or "the file"
        if fault["type"] == "missing":
            yield f"{field}: is missing; add it"
        elif fault["type"] == "extra_forbidden":
            yield f"{field}: is not a field here; {_fields_hint(model, at)}"
        elif fault["type"] == "value_error":
            yield f"{field}: {fault['ctx']['error']}"
        else:
            expected = fault["msg"].replace("Input should be", "expected")
            yield f"{field}: {expected}, got {fault['input']!r}"


def _fields_hint(model: type[BaseModel], at: tuple[int | str, ...]) -> str:
    """The fields that the table holding the unknown one does have."""
    for part in at[:-1]:
        inner = model.model_fields[str(part)].annotation if part in model.model_fields else None
        if not (isinstance(inner, type) and issubclass(inner, BaseModel)):
            return "remove it"
        model = inner
    known = sorted(model.model_fields)
    close = difflib.get_close_matches(str(at[-1]), known, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"{hint}remove it or use one of: {', '.join(known)}"

"""Results on disk, by what they depend on: inputs, the package's version, its code and data."""

from __future__ import annotations

import hashlib
import json
import os
import sys
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import cache
from pathlib import Path
from typing import Any, cast

from slackswap_opt import __version__
from slackswap_opt.errors import InputError
from slackswap_opt.formats.files import write_text
from slackswap_opt.paper.tasks import Task
from slackswap_opt.resources import models_dir

_PACKAGE = Path(__file__).resolve().parent.parent
_APART = frozenset(
    {
        "cli",
        "figures",
        *(f"paper/{n}.py" for n in ("cache", "catalogue", "entry", "grid", "make", "one_plan")),
    }
)
"""Rooms and files that no result depends on, apart from `figures/spans.py`."""


@dataclass(frozen=True)
class Entry:
    """What a task gave.

    Attributes:
        made: the day it was computed, `2026-01-31`, in UTC.
        result: plain JSON values.
    """

    made: str
    result: Any

    @classmethod
    def today(cls, result: Any) -> Entry:
        """A result of today."""
        return cls(datetime.now(UTC).date().isoformat(), result)


@dataclass(frozen=True)
class Cache:
    """A folder of results; one file per task, written whole or not at all.

    Attributes:
        folder: where; made when the first result is kept.
    """

    folder: Path

    def find(self, task: Task) -> Entry | None:
        """The result of a task, if it is there and whole."""
        try:
            kept = json.loads(self._path(task).read_text(encoding="utf-8"))
            return Entry(kept["made"], kept["result"])
        except (OSError, ValueError, KeyError, TypeError):
            return None

    def keep(self, task: Task, result: Any) -> Entry:
        """Store a result.

        Raises:
            InputError: if the folder cannot be written.
        """
        entry = Entry.today(result)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"the cache folder cannot be made: {error.strerror or error}; name another one",
                where=str(self.folder),
            ) from None
        text = json.dumps({"key": key_of(task), **asdict(entry)}, allow_nan=False)
        write_text(self._path(task), text + "\n", force=True)
        return entry

    def _path(self, task: Task) -> Path:
        text = json.dumps(key_of(task), sort_keys=True)
        digest = hashlib.sha256(text.encode()).hexdigest()[:32]
        return self.folder / f"{type(task).__name__.lower()}-{digest}.json"


def key_of(task: Task) -> Mapping[str, Any]:
    """Everything that a task's result depends on."""
    return {
        "task": type(task).__name__,
        "inputs": asdict(cast(Any, task)),
        "file": task.case.digest(),
        "version": __version__,
        "code": fingerprint(),
    }


@cache
def fingerprint() -> str:
    """A digest of the code and data that results come from; drawing is not among them."""
    digest = hashlib.sha256()
    code = {path.relative_to(_PACKAGE): path for path in _PACKAGE.rglob("*.py")}
    used = [
        path
        for name, path in code.items()
        if not {name.parts[0], name.as_posix()} & _APART or name.as_posix() == "figures/spans.py"
    ]
    for path in sorted([*used, *models_dir().rglob("*.toml")]):
        digest.update(path.name.encode())
        digest.update(path.read_bytes())
    return digest.hexdigest()[:16]


def default_cache_dir() -> Path:
    """The folder for caches that the platform gives each user, and `slackswap-opt` in it."""
    home = Path.home()
    if sys.platform == "win32":
        base = Path(os.environ.get("LOCALAPPDATA") or home / "AppData" / "Local")
    elif sys.platform == "darwin":
        base = home / "Library" / "Caches"
    else:
        base = Path(os.environ.get("XDG_CACHE_HOME") or home / ".cache")
    return base / "slackswap-opt"

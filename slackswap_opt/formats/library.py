"""The example graphs shipped with the package."""

from __future__ import annotations

from pathlib import Path

from slackswap_opt.resources import models_dir

_SUFFIX = ".json"


def graph_names() -> tuple[str, ...]:
    """Names of the shipped graphs, sorted."""
    return tuple(sorted(path.stem for path in _folder().glob(f"*{_SUFFIX}")))


def graph_path(name: str) -> Path:
    """The file of a shipped graph."""
    return _folder() / f"{name}{_SUFFIX}"


def _folder() -> Path:
    return models_dir() / "graphs"

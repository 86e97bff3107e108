"""The workloads shipped with the package, and those in files of the user's."""

from __future__ import annotations

from pathlib import Path

from slackswap_opt.resources import locate, models_dir, names_in, read_description
from slackswap_opt.workloads.describe import Workload, with_changes


def workload_names() -> tuple[str, ...]:
    """Names of the shipped workloads, sorted."""
    return names_in(models_dir())


def load_workload(
    name_or_path: str | Path,
    *,
    batch: int | None = None,
    sequence: int | None = None,
    layers: int | None = None,
    **changes: object,
) -> Workload:
    """A shipped workload, or one of a TOML file, optionally with other values.

    Args:
        name_or_path: a name of `workload_names()`, or the path of a TOML file.
        batch: sequences per device and step.
        sequence: tokens per sequence.
        layers: number of layers.
        changes: any other field by its plain name, such as `kernels="eager"`; see
            `slackswap_opt.workloads.describe`.

    Raises:
        InputError: for an unknown name (the known ones are listed), a faulty file, or values
            that do not go together.
    """
    path = locate(name_or_path, models_dir(), "workload")
    workload = read_description(path, Workload)
    workload = workload.model_copy(update={"name": workload.name or path.stem})
    return with_changes(workload, batch=batch, sequence=sequence, layers=layers, **changes)

"""Files of steps as the user names them: `FILE`, or `FILE@NAME=VALUE,...`.

What follows the `@` is what the file leaves open: sizes of a model's dimensions, or which profiler
step of a trace is meant.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field

from slackswap_opt.errors import InputError
from slackswap_opt.formats.registry import priced_on_machine, read_step
from slackswap_opt.machine.model import Machine
from slackswap_opt.step.graph import TrainingStep

_SETTINGS = re.compile(r"[^@=,]+=[^@=,]*(,[^@=,]+=[^@=,]*)*")
_LARGEST = 2**40


@dataclass(frozen=True)
class StepFile:
    """A file and what it leaves open; it is read once the machine is known.

    Attributes:
        path: of the file.
        batch: size of the first axis of a model's inputs.
        dimensions: sizes of other dimensions, by name.
        profiler_step: number of the profiler step.
    """

    path: str
    batch: int | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    profiler_step: int | None = None

    @property
    def priced(self) -> bool:
        """Whether its operations have no times of their own and are priced on a machine.

        Raises:
            InputError: if the file cannot be read.
        """
        return priced_on_machine(self.path)

    def on(self, machine: Machine) -> TrainingStep:
        """The step, priced on a machine where the file has no durations.

        Raises:
            InputError: as `read_step`.
        """
        return read_step(
            self.path,
            machine=machine,
            batch=self.batch,
            dimensions=self.dimensions,
            profiler_step=self.profiler_step,
        )


def step_file(target: str, batch: int | None = None) -> StepFile:
    """Take apart what the user wrote; a file of that very name comes first.

    Args:
        target: `FILE` or `FILE@NAME=VALUE,...`.
        batch: of an option beside it.

    Raises:
        InputError: for a value that is not a whole number, or two batches.
    """
    path, _, settings = target.rpartition("@")
    if not path or os.path.lexists(target) or not _SETTINGS.fullmatch(settings):
        return StepFile(target, batch)
    found: dict[str, int] = {}
    for setting in settings.split(","):
        name, _, text = setting.partition("=")
        if not re.fullmatch(r"[0-9]{1,13}", text) or int(text) > _LARGEST:
            raise InputError(
                f"{setting!r} is not understood; write it like batch=32, a whole number up to "
                f"{_LARGEST}",
                where=target,
            )
        if name in found or (name == "batch" and batch is not None):
            raise InputError(f"{name} is given twice; leave one out", where=target)
        found[name] = int(text)
    step = found.pop("profiler-step", None)
    return StepFile(path, found.pop("batch", batch), found, step)

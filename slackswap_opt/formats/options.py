"""What a reader may need beside the file: a machine to price on, sizes, which step of several."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from slackswap_opt.machine.model import Machine


@dataclass(frozen=True, slots=True)
class ReadOptions:
    """Settings for formats that do not hold a whole step with its times.

    Attributes:
        machine: what operations are priced on, for files without durations.
        batch: size of the first axis of a model's inputs.
        dimensions: sizes of a model's symbolic dimensions, by name.
        profiler_step: number of the profiler step to read from a trace.
    """

    machine: Machine | None = None
    batch: int | None = None
    dimensions: Mapping[str, int] = field(default_factory=dict)
    profiler_step: int | None = None

    def given(self) -> dict[str, str]:
        """The options that change what is read, by field, as the command line spells them.

        The machine is not among them: every command has one.
        """
        spelled = {
            "batch": "--batch",
            "dimensions": ",".join(f"{name}={n}" for name, n in self.dimensions.items()),
            "profiler_step": f"profiler-step={self.profiler_step}",
        }
        there = {
            "batch": self.batch is not None,
            "dimensions": bool(self.dimensions),
            "profiler_step": self.profiler_step is not None,
        }
        return {name: text for name, text in spelled.items() if there[name]}


NO_OPTIONS = ReadOptions()
"""Nothing beside the file."""

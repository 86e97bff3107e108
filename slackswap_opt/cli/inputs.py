"""From what the user typed to steps, machines, budgets and settings."""

from __future__ import annotations

import difflib
import math
import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from slackswap_opt.errors import InputError
from slackswap_opt.formats import StepFile, format_of, graph_names, graph_path, step_file
from slackswap_opt.machine import Machine
from slackswap_opt.plan import Problem, parse_budget
from slackswap_opt.planners import ON_REQUEST, PLANNERS, Planner
from slackswap_opt.step import Parts, TrainingStep, liveness
from slackswap_opt.study import DeviceMemory, Settings, device_memory
from slackswap_opt.study.chain import Budgets
from slackswap_opt.study.quantities import PARTS_ABOVE, parse_bytes, parse_share
from slackswap_opt.study.static_memory import RESERVE
from slackswap_opt.workloads import Workload, build_step, load_workload, workload_names

SOLVERS = ("cbc", "highs")
_FILE_ENDINGS = (
    ".json", ".yaml", ".yml", ".graphml", ".xml", ".gz", ".txt", ".dot", ".gv", ".onnx",
)  # fmt: skip


@dataclass(frozen=True)
class Overrides:
    """Changes of a workload's shape."""

    batch: int | None = None
    sequence: int | None = None
    layers: int | None = None

    def given(self) -> list[str]:
        """The options used."""
        return [f"--{name}" for name, value in vars(self).items() if value is not None]


def step_of(target: str, machine: Machine, overrides: Overrides) -> TrainingStep:
    """The step that a workload's name or a file means.

    Raises:
        InputError: if there is no such thing, it is faulty, or a file's shape is to be changed.
    """
    return built(source_of(target, overrides), machine)


Source = Workload | StepFile
"""What steps are made of."""


def built(source: Source, machine: Machine) -> TrainingStep:
    """The step of a source on a machine.

    Raises:
        InputError: if a file is faulty.
    """
    return build_step(source, machine) if isinstance(source, Workload) else source.on(machine)


def source_of(target: str, overrides: Overrides) -> Source:
    """The workload or the file that the user means.

    Raises:
        InputError: as `step_of`.
    """
    if target in graph_names():
        target = str(graph_path(target))
    file = step_file(target, overrides.batch)
    target = file.path
    if target in workload_names() or target.endswith(".toml") or not _is_file(target):
        _refuse_unknown(target)
        return load_workload(
            target,
            batch=overrides.batch,
            sequence=overrides.sequence,
            layers=overrides.layers,
        )
    fixed = [option for option in overrides.given() if option != "--batch"]
    if fixed:
        raise InputError(
            f"{', '.join(fixed)}: a file holds one fixed step; only workloads can be changed",
            where=target,
        )
    return file


def kind_of(target: str) -> str:
    """What a target is, in words; for one that `step_of` has read."""
    if target in graph_names():
        return f"shipped graph {graph_path(target).name}"
    if target in workload_names() or target.endswith(".toml"):
        return "workload description"
    return format_of(step_file(target).path)


def _refuse_unknown(target: str) -> None:
    """For what looks like a name: say the names of workloads and graphs together."""
    known = [*workload_names(), *graph_names()]
    if Path(target).name == target and not target.endswith(".toml") and target not in known:
        raise InputError(unknown("workload or graph", target, known))


def _is_file(target: str) -> bool:
    return (
        os.path.lexists(target)
        or Path(target).name != target
        or target.lower().endswith(_FILE_ENDINGS)
    )


def unlimited(step: TrainingStep, machine: Machine, *, swaps: bool = True) -> Problem:
    """The problem with a budget of all that the step can use."""
    problem = Problem(step, machine, 1, swaps)
    return problem.with_budget(max(1, problem.liveness.ideal_peak_bytes))


@dataclass(frozen=True)
class Memory(Budgets):
    """The budgets that the user means, and problems made of them."""

    def problems(
        self, source: Source, machine: Machine, parts: Parts | None = None, *, swaps: bool = True
    ) -> list[tuple[Problem, DeviceMemory | None]]:
        """A problem per budget, each with what it was derived from.

        Args:
            source: what the step is made of.
            machine: where it runs.
            parts: how it is put in parts; budgets in percent are of the step as it was before.
            swaps: whether tensors may be copied to the host.

        Raises:
            InputError: for a size that is not understood, static memory that is not known, or a
                step of which nothing may be in parts.
        """
        step = built(source, machine)
        given = step if parts is None else parts.of(step, machine.device.launch_ns)
        whole = unlimited(given, machine, swaps=swaps)
        if not self.of_device:
            peak = liveness(step).ideal_peak_bytes
            return [(whole.with_budget(parse_budget(text, peak)), None) for text in self.texts]
        divided = [self.divided(source, step, machine, text) for text in self.texts]
        return [(whole.with_budget(memory.budget_bytes), memory) for memory in divided]

    def divided(
        self, source: Source, step: TrainingStep, machine: Machine, text: str
    ) -> DeviceMemory:
        """A device's memory, divided."""
        workload = source if isinstance(source, Workload) else None
        size = machine.device.memory_bytes
        return device_memory(step, workload, size, text, self.reserve, self.static)


def memory_of(
    budgets: Sequence[str],
    devices: Sequence[str],
    reserve: str | None,
    static: str | None,
    default: Sequence[str],
) -> Memory:
    """What `--budget`, `--device-memory`, `--reserve` and `--static-memory` say together.

    Args:
        budgets: of `--budget`.
        devices: of `--device-memory`.
        reserve: of `--reserve`.
        static: of `--static-memory`.
        default: budgets where neither of the first two is given.

    Raises:
        InputError: if options are given that do not go together.
    """
    if budgets and devices:
        raise InputError("--budget and --device-memory are both given; give one of the two")
    if devices:
        return Memory(tuple(devices), True, RESERVE if reserve is None else reserve, static)
    for option, value in (("--reserve", reserve), ("--static-memory", static)):
        if value is not None:
            raise InputError(f"{option} needs --device-memory, from which it is taken")
    return Memory(tuple(budgets or default))


def memory_one(
    budget: str | None, device: str | None, reserve: str | None, static: str | None
) -> Memory:
    """The same for commands that take one budget, 50 % by default."""
    budgets, devices = (([] if text is None else [text]) for text in (budget, device))
    return memory_of(budgets, devices, reserve, static, default=["50%"])


def parts_of(count: int | None, above: str | None) -> Parts | None:
    """What `--parts` and `--parts-above` say together.

    Raises:
        InputError: naming the option that is wrong, or alone.
    """
    if count is None:
        if above is not None:
            raise InputError("--parts-above needs --parts, the number of parts")
        return None
    if count < 2:
        raise InputError(f"--parts is {count}; give 2 or more")
    return Parts(count, parse_bytes(PARTS_ABOVE if above is None else above, "--parts-above"))


def settings_of(gap: str, seconds: float, solver: str) -> Settings:
    """Settings from their options.

    Raises:
        InputError: naming the option that is wrong.
    """
    fraction = parse_share(gap)
    if fraction is None or fraction >= 1:
        raise InputError(f"--gap {gap!r} is not understood; write it like 0.1% or 0.001")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--time-limit is {seconds:g}; give a positive number of seconds")
    if solver not in SOLVERS:
        raise InputError(unknown("solver", solver, SOLVERS))
    return Settings(float(fraction), seconds, solver)


def planners_of(names: Sequence[str]) -> dict[str, Planner]:
    """Planners by name, from lists with commas; if none is named, all but those for small steps.

    Raises:
        InputError: for an unknown name.
    """
    known = {**PLANNERS, **ON_REQUEST}
    wanted = [part.strip() for name in names for part in name.split(",") if part.strip()]
    for name in wanted:
        if name not in known:
            raise InputError(unknown("planner", name, known))
    if names and not wanted:
        raise InputError(f"--planners names no planner; choose from {', '.join(known)}")
    return {name: known[name] for name in wanted or PLANNERS}


def planner_of(name: str) -> str:
    """The one planner that `--planner` names.

    Raises:
        InputError: for an unknown name, or several.
    """
    chosen = planners_of([name])
    if len(chosen) != 1:
        raise InputError(f"--planner {name!r} names several; give one")
    return next(iter(chosen))


def share_of(option: str, text: str, most: int | None = 1) -> Fraction:
    """The share that an option says, like 5% or 0.05.

    Raises:
        InputError: naming the option, if it is none or above `most`.
    """
    share = parse_share(text)
    if share is None or (most is not None and share > most):
        raise InputError(f"{option} {text!r} is not understood; write it like 5% or 0.05")
    return share


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message for a name that is not known."""
    available = list(known)
    close = difflib.get_close_matches(name.lower(), available, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {what} {name!r}; {hint}available: {', '.join(available)}"

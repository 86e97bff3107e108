"""From what the user typed to steps, machines, budgets and settings."""

from __future__ import annotations

import difflib
import math
import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step
from slackswap_opt.machine import Machine
from slackswap_opt.plan import Problem, parse_budget
from slackswap_opt.planners import PLANNERS, Planner
from slackswap_opt.step import TrainingStep
from slackswap_opt.study import Settings
from slackswap_opt.workloads import build_step, load_workload, workload_names

SOLVERS = ("cbc", "highs")
_FILE_ENDINGS = (".json", ".gz", ".txt", ".dot", ".gv")


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
    if target in workload_names() or target.endswith(".toml") or not _is_file(target):
        workload = load_workload(
            target,
            batch=overrides.batch,
            sequence=overrides.sequence,
            layers=overrides.layers,
        )
        return build_step(workload, machine)
    if overrides.given():
        raise InputError(
            f"{', '.join(overrides.given())}: a file holds one fixed step; "
            "only workloads can be changed",
            where=target,
        )
    return read_step(target)


def _is_file(target: str) -> bool:
    return (
        os.path.lexists(target)
        or Path(target).name != target
        or target.lower().endswith(_FILE_ENDINGS)
    )


def unlimited(step: TrainingStep, machine: Machine) -> Problem:
    """The problem with a budget of all that the step can use."""
    problem = Problem(step, machine, 1)
    return problem.with_budget(max(1, problem.liveness.ideal_peak_bytes))


def with_budget(problem: Problem, text: str) -> Problem:
    """The problem under the budget that the user wrote."""
    return problem.with_budget(parse_budget(text, problem.liveness.ideal_peak_bytes))


def settings_of(gap: str, seconds: float, solver: str) -> Settings:
    """Settings from their options.

    Raises:
        InputError: naming the option that is wrong.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+(?:[eE]-?[0-9]{1,3})?)\s*(%?)\s*", gap)
    fraction = Fraction(match[1]) / (100 if match[2] else 1) if match else None
    if fraction is None or fraction >= 1:
        raise InputError(f"--gap {gap!r} is not understood; write it like 0.1% or 0.001")
    if not (math.isfinite(seconds) and seconds > 0):
        raise InputError(f"--time-limit is {seconds:g}; give a positive number of seconds")
    if solver not in SOLVERS:
        raise InputError(unknown("solver", solver, SOLVERS))
    return Settings(float(fraction), seconds, solver)


def planners_of(names: Sequence[str]) -> dict[str, Planner]:
    """Planners by name, from lists with commas; all of them if none is named.

    Raises:
        InputError: for an unknown name.
    """
    wanted = [part.strip() for name in names for part in name.split(",") if part.strip()]
    for name in wanted:
        if name not in PLANNERS:
            raise InputError(unknown("planner", name, PLANNERS))
    if names and not wanted:
        raise InputError(f"--planners names no planner; choose from {', '.join(PLANNERS)}")
    return {name: PLANNERS[name] for name in wanted or PLANNERS}


def unknown(what: str, name: str, known: Iterable[str]) -> str:
    """A message for a name that is not known."""
    available = list(known)
    close = difflib.get_close_matches(name.lower(), available, n=1)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return f"unknown {what} {name!r}; {hint}available: {', '.join(available)}"

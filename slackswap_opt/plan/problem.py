"""A planning problem: a step, a machine and a budget."""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from slackswap_opt.errors import InputError
from slackswap_opt.machine import Machine
from slackswap_opt.plan.blocks import Blocks, find_blocks
from slackswap_opt.step import Liveness, TrainingStep, ideal_step_ns, liveness

_UNITS = {
    "": 1, "B": 1,
    "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12,
    "KIB": 2**10, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40,
}  # fmt: skip


@dataclass(frozen=True)
class Problem:
    """What a planner is asked.

    Attributes:
        step: the training step.
        machine: where it runs.
        budget_bytes: device memory for everything that is not static.
        swaps: whether tensors may be copied to the host; False for plans that only recompute, and
            for a bound on those.
    """

    step: TrainingStep
    machine: Machine
    budget_bytes: int
    swaps: bool = True

    @classmethod
    def at(
        cls, step: TrainingStep, machine: Machine, budget: str, *, swaps: bool = True
    ) -> Problem:
        """A problem whose budget is written as on the command line, such as `60%` or `20GiB`.

        A share is one of the ideal peak: the most that the step needs without a limit, for
        activations, their gradients and workspaces.

        Raises:
            InputError: if the budget is not understood, or not positive.
        """
        whole = cls(step, machine, 0, swaps)
        return whole.with_budget(parse_budget(budget, whole.liveness.ideal_peak_bytes))

    @cached_property
    def liveness(self) -> Liveness:
        """Lifetimes in the ideal step."""
        return liveness(self.step)

    @cached_property
    def blocks(self) -> Blocks:
        """What can be evicted and how it is rebuilt; not what is too small to be worth it."""
        found = find_blocks(self.step, self.liveness)
        least, moved = self.machine.link.min_swap_bytes, self.step.index.transfer_bytes
        return replace(found, evictable=tuple(t for t in found.evictable if moved[t] >= least))

    @cached_property
    def ideal_step_ns(self) -> int:
        """Duration of the step without a memory limit."""
        return ideal_step_ns(self.step)

    def with_budget(self, budget_bytes: int) -> Problem:
        """The same step and machine with another budget."""
        other = replace(self, budget_bytes=budget_bytes)
        other.__dict__.update(
            {k: v for k, v in self.__dict__.items() if k in {"liveness", "blocks"}}
        )
        return other


def parse_budget(text: str, ideal_peak_bytes: int) -> int:
    """A budget in bytes from `50%`, `0.5`, `20GiB`, `20GB` or a number of bytes.

    A number without a unit is a fraction of the ideal peak if it has a decimal point or is at most
    1, else bytes. Fractions are rounded down.

    Raises:
        InputError: if the text is none of these, or not positive.
    """
    match = re.fullmatch(r"\s*([0-9]*\.?[0-9]+)\s*(%|[A-Za-z]*)\s*", text)
    unit = match.group(2).upper() if match else ""
    if match is None or (unit != "%" and unit not in _UNITS):
        raise InputError(
            f"budget {text!r} is not understood; write it like 50%, 0.5, 20GiB or 20GB"
        )
    number = Fraction(match.group(1))
    if unit == "%":
        size = number * ideal_peak_bytes / 100
    elif unit == "" and ("." in match.group(1) or number <= 1):
        size = number * ideal_peak_bytes
    else:
        size = number * _UNITS[unit]
    if size < 1:
        raise InputError(f"budget {text!r} comes to no bytes; give a positive one")
    return int(size)

"""A step on a machine, described by plain values so that it can be a key and cross processes."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from pathlib import Path

from slackswap_opt.formats import read_step
from slackswap_opt.machine import DEFAULT_MACHINE, Link, Machine, load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.step import TrainingStep
from slackswap_opt.workloads import build_step, load_workload

GB = 10**9


@dataclass(frozen=True)
class Case:
    """What is planned, where.

    Attributes:
        workload: a shipped workload, or the path of a step file (anything with a suffix).
        machine: a name of the catalogue.
        layers: number of layers; the workload's own by default, as are the next two.
        batch: sequences per device.
        sequence: tokens per sequence.
        link_gb_per_s: device-to-host rate in GB/s while nothing moves the other way; the other
            three rates change in proportion. The machine's own by default.
        attained_flops: fraction of the arithmetic peak that large kernels reach; the machine's own
            by default.
    """

    workload: str
    machine: str = DEFAULT_MACHINE
    layers: int | None = None
    batch: int | None = None
    sequence: int | None = None
    link_gb_per_s: float | None = None
    attained_flops: float | None = None

    @property
    def is_file(self) -> bool:
        """Whether the step is read from a file."""
        return bool(Path(self.workload).suffix)

    def problem(self) -> Problem:
        """Step and machine, with a budget of all that the step can use.

        Raises:
            InputError: for an unknown name or a faulty file.
        """
        machine = self.place()
        problem = Problem(self.step(machine), machine, 1)
        return problem.with_budget(max(1, problem.liveness.ideal_peak_bytes))

    def step(self, machine: Machine) -> TrainingStep:
        """The step, with durations of the machine where it is built and not read."""
        if self.is_file:
            return read_step(self.workload)
        return build_step(
            load_workload(
                self.workload, layers=self.layers, batch=self.batch, sequence=self.sequence
            ),
            machine,
        )

    def place(self) -> Machine:
        """The machine, with its changes."""
        machine = load_machine(self.machine)
        if self.link_gb_per_s is not None:
            machine = replace(machine, link=scaled(machine.link, self.link_gb_per_s * GB))
        if self.attained_flops is not None:
            device = replace(machine.device, attained_flops=self.attained_flops)
            machine = replace(machine, device=device)
        return machine

    def digest(self) -> str:
        """What of the case is not in its fields: the content of its file."""
        if not self.is_file:
            return ""
        return hashlib.sha256(Path(self.workload).read_bytes()).hexdigest()


def scaled(link: Link, d2h_bytes_per_s: float) -> Link:
    """The link with another device-to-host rate, and the other rates in proportion."""
    factor = d2h_bytes_per_s * link.shared_by / link.d2h_bytes_per_s
    return replace(
        link,
        d2h_bytes_per_s=link.d2h_bytes_per_s * factor,
        h2d_bytes_per_s=link.h2d_bytes_per_s * factor,
        d2h_duplex_bytes_per_s=link.d2h_duplex_bytes_per_s * factor,
        h2d_duplex_bytes_per_s=link.h2d_duplex_bytes_per_s * factor,
    )

"""What is on the device whatever is planned, and the budget that it leaves.

A budget is the memory for everything that is not static. This module goes the other way: from the
memory of a device to the budget, by taking away parameters, gradients, optimizer state and batch
(*static memory*) and a *reserve* that no planner may count on.

Bytes on one device, for `p` parameters of one group (a layer, the embedding, the head), stored with
`e` bytes each, `m` bytes of optimizer state each and `N` devices that share:

    what                  not shared     shared (ZeRO)
    parameters            p e            ceil(p / N) e, stage 3
    gradients             p g            ceil(p / N) g, stages 2 and 3
    master parameters     4 p            4 ceil(p / N), stages 1 to 3
    moments               p m            ceil(p / N) m, stages 1 to 3
    gathered              0              stages 2 and 3: gradients of one group, whole; stage 3:
                                         parameters of two (the one in use and the next one), whole

S. Rajbhandari et al., ZeRO: Memory Optimizations Toward Training Trillion Parameter Models, 2020.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from fractions import Fraction
from typing import Literal, cast, get_args

from slackswap_opt.errors import InputError
from slackswap_opt.step import Phase, TrainingStep
from slackswap_opt.study.quantities import parse_size
from slackswap_opt.workloads import Workload
from slackswap_opt.workloads.describe import ELEMENT_BYTES
from slackswap_opt.workloads.optimizer import MASTER_BYTES, parameter_groups

RESERVE = "10%"
"""Share of the device's memory that is left alone by default.

It stands for the device's context and libraries (0.3 to 1 GiB) and for fragmentation: in a public
report of a run out of memory, 3.80 GiB of a card of 38.52 GiB (9.9 %) were held by the allocator
and not used.
"""

Moments = Literal["fp32", "bf16", "8bit"]

QUANTIZATION_BLOCK = 256
"""8-bit states keep one fp32 scale for so many values, as bitsandbytes does."""

MOMENTS: dict[str, int] = {
    "none": 0, "sgd": 0, "momentum": 1, "lion": 1, "adam": 2, "adamw": 2, "adamw-8bit": 2,
}  # fmt: skip
"""Moments that each kind of optimizer keeps per parameter."""

_MOMENT_BYTES: dict[str, Fraction] = {
    "fp32": Fraction(4),
    "bf16": Fraction(2),
    "8bit": 1 + Fraction(4, QUANTIZATION_BLOCK),
}
_EXAMPLE = "write it like 20GiB, adamw or adamw-8bit,master=none,zero=2,shards=8"


@dataclass(frozen=True)
class TrainingState:
    """How parameters, gradients and optimizer state are held.

    Attributes:
        optimizer: a key of `MOMENTS`; with "none" there is no state and no master copy.
        master: whether an fp32 copy of 16-bit parameters is kept. fp32 ones are their own.
        moments: type of each moment.
        fp32_gradients: whether gradients are fp32; otherwise they are as the parameters.
        zero: stage of sharded data parallelism, 0 to 3.
        shards: devices that share; 1 shares nothing, whatever the stage.
    """

    optimizer: str = "adamw"
    master: bool = True
    moments: Moments = "fp32"
    fp32_gradients: bool = False
    zero: int = 0
    shards: int = 1

    def __str__(self) -> str:
        parts = [self.optimizer]
        if self.optimizer != "none":
            parts += [f"master={'fp32' if self.master else 'none'}", f"moments={self.moments}"]
        parts += ["gradients=fp32"] if self.fp32_gradients else []
        return ",".join([*parts, f"zero={self.zero}", f"shards={self.shards}"])


@dataclass(frozen=True)
class StaticMemory:
    """Bytes on the device whatever is planned.

    Attributes:
        parameters_bytes: what forward and backward compute with.
        gradients_bytes: of parameters.
        master_bytes: fp32 copies of 16-bit parameters.
        moments_bytes: the optimizer's moments.
        gathered_bytes: whole groups for a moment, where parameters or gradients are shared.
        inputs_bytes: the batch.
        other_bytes: what is known as a sum only.
        source: one sentence on where the figures are from.
    """

    parameters_bytes: int = 0
    gradients_bytes: int = 0
    master_bytes: int = 0
    moments_bytes: int = 0
    gathered_bytes: int = 0
    inputs_bytes: int = 0
    other_bytes: int = 0
    source: str = ""

    @property
    def total_bytes(self) -> int:
        """The sum."""
        return sum(self.parts().values())

    def parts(self) -> dict[str, int]:
        """Bytes by what they are for."""
        return {
            "parameters": self.parameters_bytes,
            "gradients": self.gradients_bytes,
            "master parameters": self.master_bytes,
            "moments": self.moments_bytes,
            "gathered": self.gathered_bytes,
            "inputs": self.inputs_bytes,
            "other": self.other_bytes,
        }


@dataclass(frozen=True)
class DeviceMemory:
    """How the memory of a device is divided.

    Attributes:
        device_bytes: all of it.
        reserve_bytes: left alone.
        static: there whatever is planned.
    """

    device_bytes: int
    reserve_bytes: int
    static: StaticMemory

    @property
    def budget_bytes(self) -> int:
        """What is left for everything that is planned; negative if static memory does not fit."""
        return self.device_bytes - self.reserve_bytes - self.static.total_bytes


def device_memory(
    step: TrainingStep,
    workload: Workload | None,
    machine_bytes: int,
    size: str = "100%",
    reserve: str = RESERVE,
    static: str | None = None,
) -> DeviceMemory:
    """Divide a device's memory.

    Args:
        step: what runs.
        workload: what the step was built from; None for a step from a file.
        machine_bytes: memory of the machine's device.
        size: how much of it there is: a size, or a share of the machine's.
        reserve: a size, or a share of that.
        static: as in `static_memory`.

    Raises:
        InputError: for a text that is not understood, or if static memory is not known.
    """
    whole = parse_size(size, machine_bytes, "device memory")
    return DeviceMemory(
        whole, parse_size(reserve, whole, "reserve"), static_memory(step, workload, static)
    )


def static_memory(
    step: TrainingStep, workload: Workload | None = None, given: str | None = None
) -> StaticMemory:
    """Account for static memory.

    Args:
        step: what runs.
        workload: what the step was built from; None for a step from a file.
        given: a size, or how parameters and optimizer are held (`parse_state`). By default a
            workload's own description, or the static tensors of a file.

    Raises:
        InputError: for a text that is not understood; for a step from a file that names no size
            and has no operations of the optimizer, so that its gradients and states are unknown.
    """
    if given is not None and given.lstrip()[:1].isdigit():
        size = parse_size(given, 0, "static memory")
        return StaticMemory(other_bytes=size, source="as given")
    state = None if given is None else parse_state(given)
    if workload is not None:
        inputs = sum(t.size_bytes for t in step.tensors if t.static and t.name.startswith("batch."))
        return replace(workload_memory(workload, state), inputs_bytes=inputs)
    if state is not None:
        raise InputError(
            f"static memory {given!r}: a step file does not say how many parameters there are; "
            "give a size, like 20GiB",
            where=step.name,
        )
    known = sum(t.size_bytes for t in step.tensors if t.static)
    if not known or all(op.phase is not Phase.OPTIMIZER for op in step.operations):
        raise InputError(
            f"the static memory of this step is not known: its static tensors add up to {known} "
            "bytes, and no operation of the phase 'optimizer' shows that gradients and optimizer "
            "states are among them; give the size with --static-memory (static_memory in a sweep)",
            where=step.name,
        )
    return StaticMemory(other_bytes=known, source="the static tensors of the file")


def state_of(workload: Workload) -> TrainingState:
    """How a workload file says that parameters and optimizer are held."""
    training = workload.training
    shards = training.optimizer_shards
    return TrainingState(training.optimizer, zero=1 if shards > 1 else 0, shards=shards)


def workload_memory(workload: Workload, state: TrainingState | None = None) -> StaticMemory:
    """Parameters, gradients and optimizer state of a workload on one device, without the batch.

    Tensor parallelism is that of the workload. With its own state (the default) the sum is that
    of the static tensors of its step.
    """
    held = state or state_of(workload)
    element = ELEMENT_BYTES[workload.training.dtype]
    gradient = 4 if held.fp32_gradients else element
    trains = held.optimizer != "none"
    master = MASTER_BYTES if trains and held.master and element < MASTER_BYTES else 0
    moment = MOMENTS[held.optimizer] * _MOMENT_BYTES[held.moments]
    counts = [count for count in parameter_groups(workload).values() if count]
    shared = [-(-count // held.shards) for count in counts]
    stage = held.zero if held.shards > 1 else 0
    largest = sorted(counts, reverse=True)
    gathered = largest[0] * gradient if stage >= 2 else 0
    gathered += sum(largest[:2]) * element if stage >= 3 else 0
    states = shared if stage >= 1 else counts
    return StaticMemory(
        parameters_bytes=element * sum(shared if stage >= 3 else counts),
        gradients_bytes=gradient * sum(shared if stage >= 2 else counts),
        master_bytes=master * sum(states),
        moments_bytes=sum(_up(moment * count) for count in states),
        gathered_bytes=gathered,
        source=f"{held}; parameters in {workload.training.dtype}"
        + (
            f", one of {workload.tensor_parallel.degree} tensor-parallel shards"
            if workload.tensor_parallel.degree > 1
            else ""
        ),
    )


def parse_state(text: str) -> TrainingState:
    """A training state from `adamw-8bit,master=none,moments=bf16,gradients=fp32,zero=2,shards=8`.

    Everything after the kind of optimizer may be left out.

    Raises:
        InputError: with every fault found.
    """
    kind, *options = (part.strip() for part in text.split(","))
    faults = []
    if kind not in MOMENTS:
        faults.append(f"unknown optimizer {kind!r}; available: {', '.join(MOMENTS)}")
    found = TrainingState(kind, moments="8bit" if kind.endswith("-8bit") else "fp32")
    for option in options:
        name, _, value = (part.strip() for part in option.partition("="))
        if name == "master" and value in ("fp32", "none"):
            found = replace(found, master=value == "fp32")
        elif name == "moments" and value in get_args(Moments):
            found = replace(found, moments=cast("Moments", value))
        elif name == "gradients" and value in ("fp32", "same"):
            found = replace(found, fp32_gradients=value == "fp32")
        elif name == "zero" and value in ("0", "1", "2", "3"):
            found = replace(found, zero=int(value))
        elif name == "shards" and value.isascii() and value.isdigit() and int(value) > 0:
            found = replace(found, shards=int(value))
        else:
            faults.append(
                f"{option!r} is not understood; use master=fp32|none, moments=fp32|bf16|8bit, "
                "gradients=same|fp32, zero=0|1|2|3, shards=N"
            )
    if found.zero and found.shards == 1 and not faults:
        faults.append(f"zero={found.zero} shares nothing without shards=N")
    if found.shards > 1 and not found.zero and not faults:
        faults.append(f"shards={found.shards} shares nothing without zero=1, 2 or 3")
    if faults:
        raise InputError(*(f"static memory {text!r}: {fault}; {_EXAMPLE}" for fault in faults))
    return found


def _up(size: Fraction) -> int:
    return -(-size.numerator // size.denominator)

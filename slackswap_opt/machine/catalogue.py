"""The machine catalogue: TOML files, each figure with its source.

A file has the tables `[device]`, `[device.peak_flops_per_s]`, `[link]`, `[host]` and `[sources]`,
whose fields are those of `slackswap_opt.machine.model`. A key of `[sources]` is a field ("link.
latency_ns") or a table ("device.peak_flops_per_s"), which then stands for every figure in it.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from slackswap_opt.errors import InputError
from slackswap_opt.machine.model import Device, Host, Link, Machine
from slackswap_opt.resources import locate, models_dir, names_in, read_description

DEFAULT_MACHINE = "a100-80gb-pcie4"
"""The machine used where none is named."""

Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class _Table(BaseModel):
    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)


class PeakTable(_Table):
    """Peak dense arithmetic rates in operations per second, by data type."""

    fp32: Positive
    tf32: Positive | None = None
    fp16: Positive | None = None
    bf16: Positive | None = None


class DeviceTable(_Table):
    """The `[device]` table; see `slackswap_opt.machine.Device`."""

    memory_bytes: Annotated[int, Field(gt=0)]
    memory_bytes_per_s: Positive
    attained_flops: Fraction
    attained_bandwidth: Fraction
    launch_ns: Count
    peak_flops_per_s: PeakTable


class LinkTable(_Table):
    """The `[link]` table; see `slackswap_opt.machine.Link`."""

    d2h_bytes_per_s: Positive
    h2d_bytes_per_s: Positive
    d2h_duplex_bytes_per_s: Positive
    h2d_duplex_bytes_per_s: Positive
    latency_ns: Count = 0
    shared_by: Annotated[int, Field(ge=1)] = 1
    overlap: Annotated[float, Field(ge=0, le=1)] = 1.0
    contention: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.0
    min_swap_bytes: Count = 0


class HostTable(_Table):
    """The `[host]` table; see `slackswap_opt.machine.Host`."""

    pinned_bytes: Annotated[int, Field(gt=0)] | None = None
    round_to_power_of_two: bool = False


class MachineFile(_Table):
    """A whole machine file."""

    description: str = ""
    device: DeviceTable
    link: LinkTable
    host: HostTable = HostTable()
    sources: dict[str, str] = {}


def machines_dir() -> Path:
    """The folder of the machine files shipped with the package."""
    return models_dir() / "machines"


def machine_names() -> tuple[str, ...]:
    """Names in the catalogue, sorted."""
    return names_in(machines_dir())


def load_machine(name_or_path: str | Path = DEFAULT_MACHINE) -> Machine:
    """A machine of the catalogue, or of a TOML file of the user's.

    To change a figure, replace it: `dataclasses.replace(machine.device, attained_flops=0.6)`.

    Raises:
        InputError: for an unknown name (the known ones are listed) or a faulty file.
    """
    path = locate(name_or_path, machines_dir(), "machine")
    described = read_description(path, MachineFile)
    device = described.device.model_dump()
    peaks = {k: v for k, v in device.pop("peak_flops_per_s").items() if v is not None}
    try:
        link = Link(**described.link.model_dump())
    except InputError as error:
        raise error.at(str(path)) from None
    name = path.stem if path.parent == machines_dir() else str(name_or_path)
    return Machine(
        name=name,
        device=Device(peak_flops_per_s=peaks, **device),
        link=link,
        host=Host(**described.host.model_dump()),
        sources=dict(described.sources),
    )


def unsourced_figures(path: Path) -> tuple[str, ...]:
    """The figures of a machine file that `[sources]` says nothing about."""
    described = read_description(path, MachineFile)
    given = described.model_dump(exclude_unset=True, exclude={"description", "sources"})
    return tuple(
        field
        for field in _leaves(given)
        if not any(field == key or field.startswith(f"{key}.") for key in described.sources)
    )


def _leaves(table: dict[str, object], prefix: str = "") -> Iterator[str]:
    for key, value in table.items():
        if isinstance(value, dict):
            yield from _leaves(value, f"{prefix}{key}.")
        else:
            yield f"{prefix}{key}"

"""Specifications of sweeps: TOML files that span a grid (docs/sweeps.md)."""

from __future__ import annotations

import tomllib
from collections.abc import Callable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    ValidationInfo,
    field_validator,
)

from slackswap_opt.errors import InputError
from slackswap_opt.formats import StepFile, graph_names, graph_path, read_text, step_file
from slackswap_opt.machine import DEFAULT_MACHINE, Machine, load_machine
from slackswap_opt.plan import parse_budget
from slackswap_opt.planners import PLANNERS
from slackswap_opt.resources import validated
from slackswap_opt.step import Parts, TrainingStep
from slackswap_opt.study.chain import (
    Budgets,
    Chain,
    Point,
    axes_of,
    with_attained_flops,
    with_link,
)
from slackswap_opt.study.quantities import PARTS_ABOVE, parse_bytes, parse_share, parse_size
from slackswap_opt.study.static_memory import RESERVE, parse_state
from slackswap_opt.study.sweep import Settings
from slackswap_opt.workloads import Workload, load_workload, with_changes, workload_names

DEFAULT_BUDGETS = ("100%", "90%", "80%", "70%", "60%", "50%", "40%", "30%", "20%")
_ANY_PEAK = 2**60


def _checked(check: Callable[[str], object]) -> AfterValidator:
    """A validator that takes what `check` takes, with all its faults in one sentence."""

    def validate(text: str) -> str:
        try:
            check(text)
        except InputError as error:
            where = f"{error.where}: " if error.where else ""
            raise ValueError(where + "; ".join(error.faults)) from None
        return text

    return AfterValidator(validate)


def _planner(text: str) -> None:
    if text not in PLANNERS:
        raise InputError(f"unknown planner {text!r}; available: {', '.join(PLANNERS)}")


def _size(text: str) -> None:
    parse_size(text, _ANY_PEAK, "size")


def _bytes(text: str) -> None:
    parse_bytes(text, "size")


def _static(text: str) -> None:
    if text.lstrip()[:1].isdigit():
        _size(text)
    else:
        parse_state(text)


def _gap(text: str) -> None:
    share = parse_share(text)
    if share is None or share >= 1:
        raise InputError(f"{text!r} is not understood; write it like 0.1% or 0.001")


def _budget(text: str) -> None:
    parse_budget(text, _ANY_PEAK)


_Whole = Annotated[int, Field(ge=1)]
_Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
_Axis = Annotated[tuple[_Whole, ...], Field(strict=False)]


class SweepSpec(BaseModel):
    """A grid: the product of all axes, and how each point is solved.

    An axis that is left out has one value, that of the workload or machine itself.

    Attributes:
        workloads: shipped workloads, workload files or step files, `FILE@NAME=VALUE,...` for what
            a step file leaves open; a file without durations is priced on each machine.
        machines: names of the catalogue or files.
        budgets: like `50%`, `20GiB` or bytes.
        device_memory: like `40GiB` or `100%` of the machine's: the budget is what static memory and
            reserve leave. In place of `budgets`.
        reserve: size, or share of the device's memory, that is left alone.
        static_memory: size, or how parameters and optimizer are held.
        planners: by name; all if left out.
        batch: sequences per device and step.
        sequence: tokens per sequence.
        layers: number of layers.
        link_gb_per_s: rate of the link to the host, alone, in 10^9 bytes per second; the other
            rates keep their ratio to it.
        attained_flops: fraction of the arithmetic peak that large kernels reach.
        parts: parts along the batch in which large tensors are held; whole if left out.
        parts_above: tensors from this size on are in parts.
        swaps: whether tensors may be copied to the host; false for recomputation only.
        gap: certified gap at which the ILP stops.
        time_limit: of the ILP per budget, in seconds.
        solver: LP and ILP solver.
    """

    model_config = ConfigDict(strict=True, extra="forbid", frozen=True)

    schema_: Literal["slackswap.sweep-spec/1"] = Field("slackswap.sweep-spec/1", alias="schema")
    workloads: Annotated[
        tuple[Annotated[str, _checked(load_source)], ...],
        Field(strict=False, min_length=1),
    ]
    machines: Annotated[
        tuple[Annotated[str, _checked(load_machine)], ...], Field(strict=False, min_length=1)
    ] = (DEFAULT_MACHINE,)
    budgets: Annotated[
        tuple[Annotated[str, _checked(_budget)], ...], Field(strict=False, min_length=1)
    ] = DEFAULT_BUDGETS
    device_memory: (
        Annotated[tuple[Annotated[str, _checked(_size)], ...], Field(strict=False, min_length=1)]
        | None
    ) = None
    reserve: Annotated[str, _checked(_size)] = RESERVE
    static_memory: Annotated[str, _checked(_static)] | None = None
    planners: Annotated[
        tuple[Annotated[str, _checked(_planner)], ...], Field(strict=False, min_length=1)
    ] = tuple(PLANNERS)
    batch: _Axis = ()
    sequence: _Axis = ()
    layers: _Axis = ()
    link_gb_per_s: Annotated[tuple[_Positive, ...], Field(strict=False)] = ()
    attained_flops: Annotated[
        tuple[Annotated[float, Field(gt=0, le=1)], ...], Field(strict=False)
    ] = ()
    parts: Annotated[int, Field(ge=2)] | None = None
    parts_above: Annotated[str, _checked(_bytes)] = PARTS_ABOVE
    swaps: bool = True
    gap: Annotated[str, _checked(_gap)] = "0.1%"
    time_limit: _Positive = 60.0
    solver: Literal["cbc", "highs"] = "cbc"

    @field_validator(
        "workloads", "machines", "budgets", "device_memory", "planners", "batch", "sequence",
        "layers", "link_gb_per_s", "attained_flops",
    )  # fmt: skip
    @classmethod
    def _once(cls, values: Sequence[Any] | None) -> Sequence[Any] | None:
        repeated = sorted({str(v) for v in values or () if (values or ()).count(v) > 1})
        if repeated:
            raise ValueError(f"{', '.join(repeated)} is given more than once; once is enough")
        return values

    @field_validator("device_memory")
    @classmethod
    def _one_of_two(
        cls, values: tuple[str, ...] | None, info: ValidationInfo
    ) -> tuple[str, ...] | None:
        if values and info.data.get("budgets", DEFAULT_BUDGETS) is not DEFAULT_BUDGETS:
            raise ValueError("is given beside budgets; give one of the two")
        return values

    @field_validator("parts_above")
    @classmethod
    def _of_parts(cls, text: str, info: ValidationInfo) -> str:
        if info.data.get("parts", 0) is None:
            raise ValueError("needs parts, the number of parts")
        return text

    @field_validator("batch", "sequence", "layers")
    @classmethod
    def _of_workloads(cls, values: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        fixed = [name for name in info.data.get("workloads", ()) if is_step_file(name)]
        if values and fixed:
            raise ValueError(
                f"{', '.join(fixed)} is a step, which has one fixed shape; put it in a "
                "specification of its own"
            )
        return values

    @property
    def in_parts(self) -> Parts | None:
        """How steps are put in parts."""
        if self.parts is None:
            return None
        return Parts(self.parts, parse_bytes(self.parts_above, "parts_above"))

    @property
    def settings(self) -> Settings:
        """How planners and bound are run."""
        return Settings(float(parse_share(self.gap) or 0), self.time_limit, self.solver)


def is_step_file(text: str) -> bool:
    """Whether a text means a shipped graph or a file with a step, and not a workload."""
    if text in graph_names():
        return True
    text = _file(text).path
    if text in workload_names() or text.endswith(".toml"):
        return False
    path = Path(text)
    return path.exists() or path.name != text or path.suffix[1:].isalpha()


def load_source(text: str, machine: Machine | None = None) -> Workload | TrainingStep:
    """The workload or the step that a text means.

    Args:
        text: name of a workload or graph, a file, or `FILE@NAME=VALUE,...` for what it leaves open.
        machine: what a file without durations is priced on; the default machine if left out.

    Raises:
        InputError: if there is no such thing or it is faulty.
    """
    if is_step_file(text):
        return _file(text).on(machine or load_machine())
    return load_workload(text)


def _file(text: str) -> StepFile:
    return StepFile(str(graph_path(text))) if text in graph_names() else step_file(text)


def is_spec(path: str | Path) -> bool:
    """Whether a file is a specification of a sweep rather than a workload or a step."""
    if Path(path).suffix != ".toml" or not Path(path).is_file():
        return False
    try:
        found = tomllib.loads(Path(path).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return False
    return "workloads" in found or str(found.get("schema", "")).startswith("slackswap.sweep")


def read_spec(path: str | Path) -> SweepSpec:
    """Read a specification.

    Files that it names are looked for next to it, then in the working directory.

    Raises:
        InputError: with every fault found, each with its field.
    """
    where = Path(path)
    try:
        data = tomllib.loads(read_text(where))
    except tomllib.TOMLDecodeError as error:
        raise InputError(f"is not valid TOML: {error}", where=str(path)) from None
    return spec_of(data, str(path), where.parent)


def spec_of(data: dict[str, Any], where: str = "", folder: Path | None = None) -> SweepSpec:
    """A specification from its fields.

    Args:
        data: as in the file.
        where: what messages begin with.
        folder: where files that it names are looked for first.

    Raises:
        InputError: with every fault found.
    """
    if folder is not None:
        data = {
            field: [_beside(entry, folder) for entry in value]
            if field in ("workloads", "machines") and isinstance(value, list)
            else value
            for field, value in data.items()
        }
    return validated(SweepSpec, data, where)


def _beside(entry: object, folder: Path) -> object:
    if not isinstance(entry, str) or not entry:
        return entry
    path = entry.rpartition("@")[0] or entry  # FILE@NAME=VALUE
    found = (folder / entry).is_file() or (folder / path).is_file()
    return str(folder / entry) if found else entry


def chains_of(spec: SweepSpec) -> tuple[Chain, ...]:
    """The chains of a grid: workloads, then machines, then the other axes in the order of rows.

    A combination that makes no workload is a chain with a fault.
    """
    budgets = Budgets(
        spec.device_memory or spec.budgets,
        of_device=spec.device_memory is not None,
        reserve=spec.reserve,
        static=spec.static_memory,
    )
    chains = []
    machines = {name: load_machine(name) for name in spec.machines}
    sources = {name: _on_each(name, machines) for name in spec.workloads}
    shapes = [spec.batch or (None,), spec.sequence or (None,), spec.layers or (None,)]
    for (workload, on), machine in product(sources.items(), machines.items()):
        for shape in product(*shapes):
            for rate, fraction in product(
                spec.link_gb_per_s or (None,), spec.attained_flops or (None,)
            ):
                chains.append(
                    _chain(
                        (workload, on[machine[0]]), machine, shape, rate, fraction, budgets, spec
                    )
                )  # fmt: skip
    return tuple(chains)


def _on_each(name: str, machines: Mapping[str, Machine]) -> dict[str, Workload | TrainingStep]:
    """A source by machine: read once, but for files that each machine prices anew."""
    if is_step_file(name) and _file(name).priced:
        return {machine: load_source(name, there) for machine, there in machines.items()}
    return dict.fromkeys(machines, load_source(name))


def _chain(
    named: tuple[str, Workload | TrainingStep],
    machine: tuple[str, Machine],
    shape: tuple[int | None, ...],
    rate: float | None,
    fraction: float | None,
    budgets: Budgets,
    spec: SweepSpec,
) -> Chain:
    name, source = named
    changed: Workload | TrainingStep | None = source
    fault, axes = "", axes_of(source)
    batch, sequence, layers = shape
    if isinstance(source, Workload):
        try:
            changed = with_changes(source, batch=batch, sequence=sequence, layers=layers)
            axes = axes_of(changed)
        except InputError as error:
            changed, fault = None, " ".join(str(error).split())
            axes = (batch or axes[0], sequence or axes[1], layers or axes[2])
    where = machine[1]
    try:
        if rate is not None:
            where = with_link(where, rate)
        if fraction is not None:
            where = with_attained_flops(where, fraction)
    except InputError as error:
        changed, fault = None, " ".join(str(error).split())
    point = Point(
        name,
        machine[0],
        *axes,
        link_gb_per_s=rate if rate is not None else where.link.d2h_bytes_per_s / 1e9,
        attained_flops=fraction if fraction is not None else where.device.attained_flops,
    )
    return Chain(
        point, changed, where, budgets, spec.planners, spec.settings, fault, spec.in_parts,
        spec.swaps,
    )  # fmt: skip

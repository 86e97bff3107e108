"""Plan files, `slackswap.plan/1`: a schedule with everything needed to play it again.

A file holds the step in its native format, the machine, the budget, the complete schedule by
names, the action of each activation, what the simulator said and the bound. Nothing in it is
believed on reading: `slackswap_opt.study.replay` plays it and compares.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, SkipValidation, ValidationError

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, native, strict_json
from slackswap_opt.formats.native_schema import StepFields
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.machine import Device, Host, Link, Machine
from slackswap_opt.plan.actions import Action
from slackswap_opt.plan.schedule import Copy, Schedule
from slackswap_opt.step import TrainingStep

SCHEMA = "slackswap.plan/1"
_MOST_FAULTS = 20

Count = Annotated[int, Field(ge=0, le=2**63)]
Name = Annotated[str, Field(min_length=1)]
Positive = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(gt=0, le=1)]


@dataclass(frozen=True)
class RecordedBound:
    """The bound that was found with the plan.

    Attributes:
        step_ns: no schedule of this problem is faster.
        cut: the operation at whose start it was found; None where it is the ideal step.
        solver: name and version of the solver whose multipliers were verified; empty for none.
    """

    step_ns: int
    cut: str | None
    solver: str


@dataclass(frozen=True)
class Figures:
    """What the simulator said of the schedule at the budget.

    Attributes:
        step_ns: simulated step time.
        ideal_step_ns: duration without a memory limit.
        peak_bytes: largest memory in use.
        ideal_peak_bytes: the same without a limit.
        stall_ns: time the compute stream waited.
        recompute_ns: time of all re-executions.
        host_bytes: largest pinned memory in use.
    """

    step_ns: int
    ideal_step_ns: int
    peak_bytes: int
    ideal_peak_bytes: int
    stall_ns: int
    recompute_ns: int
    host_bytes: int


@dataclass(frozen=True)
class PlanFile:
    """All that a plan file says.

    Attributes:
        package: name and version of the program that wrote it.
        planner: name of the planner.
        status: how the planner's run ended.
        reason: how the result came about.
        solver: name and version of the solver it rests on, None for none.
        time_limited: whether a wall-clock limit ended the search.
        machine: where it runs.
        budget_bytes: device memory for everything that is not static.
        bound: the limit that no schedule beats.
        simulated: what the simulator said.
        actions: by tensor name, for each activation.
        schedule: the program.
        step: what is run.
        swaps: whether tensors might be copied to the host; the bound is for that, too.
    """

    package: str
    planner: str
    status: str
    reason: str
    solver: str | None
    time_limited: bool
    machine: Machine
    budget_bytes: int
    bound: RecordedBound
    simulated: Figures
    actions: Mapping[str, Action]
    schedule: Schedule
    step: TrainingStep
    swaps: bool = True


def write_plan(plan: PlanFile, path: str | Path, *, force: bool = False) -> None:
    """Write a plan file, which is replaced only if `force` is set.

    Raises:
        InputError: if the file exists and `force` is not set, or it cannot be written.
    """
    files.write_text(path, dumps(plan), force=force)


def read_plan(path: str | Path) -> PlanFile:
    """Read a plan file, plain or gzip; nothing it claims is checked by playing it.

    Raises:
        InputError: if it cannot be read or is faulty; every line begins with the path.
    """
    text = files.read_text(path)
    try:
        return loads(text)
    except InputError as error:
        raise error.at(str(path)) from None


def dumps(plan: PlanFile) -> str:
    """A plan as JSON text, one line for each action, event, copy, tensor and operation."""
    names = [tensor.name for tensor in plan.step.tensors]
    ops = [op.name for op in plan.step.operations]
    program = plan.schedule
    head = {
        "schema": SCHEMA,
        "package": plan.package,
        "planner": plan.planner,
        "status": plan.status,
        "reason": plan.reason,
        "solver": plan.solver,
        "time_limited": plan.time_limited,
        "budget_bytes": plan.budget_bytes,
        **({} if plan.swaps else {"swaps": False}),
        "machine": _machine_entry(plan.machine),
        "bound": dataclasses.asdict(plan.bound),
        "simulated": dataclasses.asdict(plan.simulated),
    }
    actions = (f"{_json(name)}: {_json(action.value)}" for name, action in plan.actions.items())
    compute = (
        _json({"run": ops[op], "frees": [names[t] for t in frees]} if frees else {"run": ops[op]})
        for op, frees in zip(program.compute, program.frees, strict=True)
    )

    def copies(queue: Iterable[Copy]) -> Iterator[str]:
        return (_json({"tensor": names[copy.tensor], "after": copy.after}) for copy in queue)

    lines = [f"  {_json(key)}: {_json(value)}," for key, value in head.items()]
    lines += _block("actions", "{}", actions)
    lines += ['  "schedule": {']
    lines += [f"  {line}" for line in _block("compute", "[]", compute)]
    lines += [f"  {line}" for line in _block("copies_out", "[]", copies(program.copies_out))]
    copies_in = [f"  {line}" for line in _block("copies_in", "[]", copies(program.copies_in))]
    lines += [*copies_in[:-1], copies_in[-1].removesuffix(","), "  },"]
    step = native.dumps(plan.step).rstrip("\n").replace("\n", "\n  ")
    return "\n".join(["{", *lines, f'  "step": {step}', "}"]) + "\n"


def loads(text: str) -> PlanFile:
    """Read a plan from JSON text.

    Raises:
        InputError: with every fault found.
    """
    document, faults = strict_json.parse(text)
    _refuse_other_schema(document)
    try:
        fields = _PlanFields.model_validate(document)
    except ValidationError as error:
        raise InputError(*faults, *_faults_of(error)) from None
    if faults:
        raise InputError(*faults)
    try:
        step = native.from_document(document["step"])
    except InputError as error:
        raise error.at("step") from None
    return PlanFile(
        package=fields.package,
        planner=fields.planner,
        status=fields.status,
        reason=fields.reason,
        solver=fields.solver,
        time_limited=fields.time_limited,
        machine=_machine(fields.machine),
        budget_bytes=fields.budget_bytes,
        bound=RecordedBound(**fields.bound.model_dump()),
        simulated=Figures(**fields.simulated.model_dump()),
        actions=_actions(fields, step),
        schedule=_schedule(fields.schedule, step),
        step=step,
        swaps=fields.swaps,
    )


def json_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of plan files; `docs/plan.schema.json` is a copy."""
    schema = _PlanFields.model_json_schema(by_alias=True)
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **schema}


# The fields


class _Strict(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False, frozen=True)


class _DeviceFields(_Strict):
    memory_bytes: Count
    peak_flops_per_s: dict[Name, Positive]
    memory_bytes_per_s: Positive
    attained_flops: Fraction
    attained_bandwidth: Fraction
    launch_ns: Count


class _LinkFields(_Strict):
    d2h_bytes_per_s: Positive
    h2d_bytes_per_s: Positive
    d2h_duplex_bytes_per_s: Positive
    h2d_duplex_bytes_per_s: Positive
    latency_ns: Count
    shared_by: Annotated[int, Field(ge=1)]
    overlap: Annotated[float, Field(ge=0, le=1)] = 1.0
    contention: Annotated[float, Field(ge=0)] = 0.0
    min_swap_bytes: Count = 0


class _HostFields(_Strict):
    pinned_bytes: Count | None
    round_to_power_of_two: bool


class _MachineFields(_Strict):
    name: str
    device: _DeviceFields
    link: _LinkFields
    host: _HostFields
    sources: dict[str, str] = Field(default={}, description="Where the figures come from.")


class _BoundFields(_Strict):
    step_ns: Count = Field(description="No schedule of this problem is faster.")
    cut: str | None = Field(description="Operation where it was found; null for the ideal step.")
    solver: str = Field(description="Solver whose multipliers were verified; empty for none.")


class _FiguresFields(_Strict):
    step_ns: Count
    ideal_step_ns: Count
    peak_bytes: Count
    ideal_peak_bytes: Count
    stall_ns: Count
    recompute_ns: Count
    host_bytes: Count


class _EventFields(_Strict):
    run: Name = Field(description="Name of the operation; again for a re-execution.")
    frees: list[Name] = Field(
        default=[], description="Tensors whose device memory is given up at the event's end."
    )


class _CopyFields(_Strict):
    tensor: Name
    after: Annotated[int, Field(ge=-1)] = Field(
        description="Index of the compute event whose end allows the copy to start; -1 for none."
    )


class _ScheduleFields(_Strict):
    compute: list[_EventFields] = Field(description="Compute events in order, counted from 0.")
    copies_out: list[_CopyFields] = Field(description="Device-to-host queue.")
    copies_in: list[_CopyFields] = Field(description="Host-to-device queue.")


class _PlanFields(_Strict):
    """A plan: a schedule with the step, the machine and the budget it was made for."""

    model_config = ConfigDict(title=SCHEMA)

    schema_: Literal["slackswap.plan/1"] = Field(alias="schema", description="Format, version.")
    package: str = Field(description="Program that wrote the file, with its version.")
    planner: str
    status: Literal["optimal-within-gap", "feasible", "fallback"]
    reason: str = ""
    solver: str | None = Field(description="Solver that the plan rests on, with its version.")
    time_limited: bool = Field(description="Whether a wall-clock limit ended the search.")
    budget_bytes: Annotated[int, Field(ge=1, le=2**63)]
    swaps: bool = Field(
        default=True, description="Whether tensors might be copied to the host, in bound and plan."
    )
    machine: _MachineFields
    bound: _BoundFields
    simulated: _FiguresFields = Field(description="What the simulator said at the budget.")
    actions: dict[Name, Literal["keep", "swap", "recompute", "drop"]] = Field(
        description="What the schedule does with each activation, by name."
    )
    schedule: _ScheduleFields
    step: SkipValidation[StepFields] = Field(description="The training step, as slackswap.step/1.")


def _refuse_other_schema(document: object) -> None:
    found = document.get("schema") if isinstance(document, dict) else None
    if isinstance(document, dict) and found == SCHEMA:
        return
    if isinstance(found, str) and found.startswith("slackswap.plan/"):
        raise InputError(
            f"schema is {shown(found)}; this version reads {shown(SCHEMA)}: upgrade slackswap-opt"
        )
    what = f"schema is {shown(found)}" if found is not None else "there is no field 'schema'"
    raise InputError(f"{what}: this is not a plan file; expected {shown(SCHEMA)}")


def _faults_of(error: ValidationError) -> Iterator[str]:
    faults = error.errors(include_url=False)
    for fault in faults[:_MOST_FAULTS]:
        where = ".".join(str(part) for part in fault["loc"])
        if fault["type"] == "missing":
            yield f"{where}: is missing; the file is not complete, write the plan again"
        elif fault["type"] == "extra_forbidden":
            yield f"{where}: is not a field of a plan file; remove it"
        else:
            expected = fault["msg"].replace("Input should be", "expected")
            yield f"{where}: {expected}, got {shown(fault['input'])}"
    if len(faults) > _MOST_FAULTS:
        yield f"and {len(faults) - _MOST_FAULTS} more faults"


# Machine, actions and schedule


def _machine_entry(machine: Machine) -> dict[str, Any]:
    return {
        "name": machine.name,
        "device": {
            **{f.name: getattr(machine.device, f.name) for f in dataclasses.fields(machine.device)},
            "peak_flops_per_s": dict(machine.device.peak_flops_per_s),
        },
        "link": dataclasses.asdict(machine.link),
        "host": dataclasses.asdict(machine.host),
        "sources": dict(machine.sources),
    }


def _machine(fields: _MachineFields) -> Machine:
    try:
        link = Link(**fields.link.model_dump())
    except InputError as error:
        raise error.at("machine") from None
    return Machine(
        name=fields.name,
        device=Device(**fields.device.model_dump()),
        link=link,
        host=Host(**fields.host.model_dump()),
        sources=dict(fields.sources),
    )


def _actions(fields: _PlanFields, step: TrainingStep) -> dict[str, Action]:
    known = {tensor.name for tensor in step.tensors}
    strangers = [name for name in fields.actions if name not in known]
    if strangers:
        raise InputError(f"actions: {shown(strangers[0])} is not a tensor of the step")
    return {name: Action(action) for name, action in fields.actions.items()}


def _schedule(fields: _ScheduleFields, step: TrainingStep) -> Schedule:
    operation = {op.name: index for index, op in enumerate(step.operations)}
    tensor = {known.name: index for index, known in enumerate(step.tensors)}
    faults: list[str] = []

    def at(known: Mapping[str, int], name: str, what: str, where: str) -> int:
        if name not in known:
            faults.append(f"schedule.{where}: {shown(name)} is not {what} of the step")
        return known.get(name, -1)

    def copies(queue: list[_CopyFields], where: str) -> tuple[Copy, ...]:
        return tuple(
            Copy(at(tensor, copy.tensor, "a tensor", f"{where}.{number}"), copy.after)
            for number, copy in enumerate(queue)
        )

    schedule = Schedule(
        compute=tuple(
            at(operation, event.run, "an operation", f"compute.{number}")
            for number, event in enumerate(fields.compute)
        ),
        frees=tuple(
            tuple(at(tensor, name, "a tensor", f"compute.{number}.frees") for name in event.frees)
            for number, event in enumerate(fields.compute)
        ),
        copies_out=copies(fields.copies_out, "copies_out"),
        copies_in=copies(fields.copies_in, "copies_in"),
    )
    if faults:
        raise InputError(*faults[:_MOST_FAULTS])
    return schedule


# Text


def _block(key: str, brackets: str, entries: Iterable[str]) -> list[str]:
    lines = [f"    {entry}," for entry in entries]
    if not lines:
        return [f"  {_json(key)}: {brackets},"]
    lines[-1] = lines[-1].removesuffix(",")
    return [f"  {_json(key)}: {brackets[0]}", *lines, f"  {brackets[1]},"]


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

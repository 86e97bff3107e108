"""Several steps in a row, micro-batches, several devices on a link, and other traffic on it.

A repetition is a transformation: the step and its schedule are written out again and again into one
long program, which the simulator plays by the same rules. Every repetition has tensors and
operations of its own; parameters and other static tensors are the same in all.

* Queues go on: the copies of a repetition stand behind those of the one before, so that a copy out
  which is not complete at the end of a step delays the next step's.
* What a schedule leaves on the device at its end is freed there, where another repetition follows.
* A host buffer is freed after the last copy in of its tensor. Under a host limit the copy out that
  needs it waits for that: a buffer is never overwritten before it has been read.
* Micro-batches: forward and backward run once per micro-batch, and gradients of parameters are
  accumulated in place (they are static). The optimizer runs once, after the last one, and what it
  reads of activations is that of the last one.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from slackswap_opt.errors import InputError
from slackswap_opt.machine import Machine
from slackswap_opt.plan import START, Copy, Schedule
from slackswap_opt.simulator import Verdict
from slackswap_opt.simulator.shared import Device, Traffic, simulate_shared
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value

MOST_REPETITIONS = 1000


@dataclass(frozen=True)
class Repeated:
    """One long program.

    Attributes:
        step: all repetitions.
        schedule: its program.
        last_events: per step, its last compute event.
    """

    step: TrainingStep
    schedule: Schedule
    last_events: tuple[int, ...]


@dataclass(frozen=True)
class SteadyState:
    """A schedule in steady state.

    Attributes:
        steps: how many steps each device ran.
        micro_batches: per step.
        offsets_ns: when each device started.
        verdicts: of each device, of its long program.
        step_ends_ns: per device, the end of each step, from its own start; empty where it did not
            finish.
    """

    steps: int
    micro_batches: int
    offsets_ns: tuple[int, ...]
    verdicts: tuple[Verdict, ...]
    step_ends_ns: tuple[tuple[int, ...], ...]

    @property
    def fits(self) -> bool:
        """Whether every device ran to the end."""
        return all(verdict.fits for verdict in self.verdicts)

    def step_times_ns(self, device: int = 0) -> tuple[int, ...]:
        """The time of each step of a device."""
        ends = self.step_ends_ns[device]
        return tuple(end - begin for begin, end in zip((0, *ends), ends, strict=False))


def steady_state(
    step: TrainingStep,
    machine: Machine,
    schedule: Schedule,
    capacity_bytes: int,
    *,
    steps: int = 1,
    micro_batches: int = 1,
    offsets_ns: Sequence[int] = (0,),
    traffic: Sequence[Traffic] = (),
) -> SteadyState:
    """Play repetitions of a schedule on one or more devices that share the machine's link.

    Args:
        step: one step, of one micro-batch.
        machine: where it runs; its link is shared by the devices.
        schedule: the program of one step.
        capacity_bytes: memory of each device for everything that is not static.
        steps: in a row.
        micro_batches: per step.
        offsets_ns: when each device starts; its length is the number of devices.
        traffic: what else moves over the link.

    Raises:
        InputError: if a number is out of range or the schedule cannot be repeated.
        ScheduleError: if the schedule is wrong.
    """
    if not offsets_ns or min(offsets_ns) < 0:
        raise InputError("give at least one device, each with an offset of 0 or more")
    whole = repeat(step, schedule, steps=steps, micro_batches=micro_batches)
    devices = [Device(whole.step, whole.schedule, capacity_bytes, at) for at in offsets_ns]
    verdicts = simulate_shared(machine, devices, traffic)
    ends = tuple(
        tuple(int(verdict.timeline.compute_end_ns[event]) for event in whole.last_events)
        if verdict.fits
        else ()
        for verdict in verdicts
    )
    return SteadyState(steps, micro_batches, tuple(offsets_ns), verdicts, ends)


def repeat(
    step: TrainingStep, schedule: Schedule, *, steps: int = 1, micro_batches: int = 1
) -> Repeated:
    """Write a schedule out several times.

    Raises:
        InputError: if a number is out of range, or a micro-batch that is not the last would have
            to bring back a tensor for the optimizer only.
    """
    if steps < 1 or micro_batches < 1 or steps * micro_batches > MOST_REPETITIONS:
        raise InputError(
            f"{steps} steps of {micro_batches} micro-batches: give at least one of each, "
            f"{MOST_REPETITIONS} together at most"
        )
    if steps == micro_batches == 1:
        return Repeated(step, schedule, (len(schedule.compute) - 1,))
    writer = _Writer(step, schedule)
    for number in range(steps):
        for part in range(micro_batches):
            writer.append(
                f"#{number + 1}" if micro_batches == 1 else f"#{number + 1}.{part + 1}",
                whole=part == micro_batches - 1,
                last=part == micro_batches - 1 and number == steps - 1,
            )
    return writer.repeated()


class _Writer:
    def __init__(self, step: TrainingStep, schedule: Schedule) -> None:
        self.step, self.schedule = step, schedule
        self.first_tail = next(
            (
                event
                for event, op in enumerate(schedule.compute)
                if step.operations[op].phase is Phase.OPTIMIZER
            ),
            len(schedule.compute),
        )
        self.body_operations = sum(op.phase is not Phase.OPTIMIZER for op in step.operations)
        self.tensors: list[Tensor] = [t for t in step.tensors if t.static]
        self.operations: list[Operation] = []
        self.compute: list[str] = []
        self.frees: list[list[str]] = []
        self.outs: list[tuple[str, int]] = []
        self.ins: list[tuple[str, int]] = []
        self.last_events: list[int] = []

    def append(self, mark: str, *, whole: bool, last: bool) -> None:
        """One more repetition; `whole` with the optimizer, `last` with nothing after it."""
        step, program, base = self.step, self.schedule, len(self.compute)
        events = len(program.compute) if whole else self.first_tail
        operations = step.operations if whole else step.operations[: self.body_operations]

        def renamed(value: Value) -> Value:
            own = not step.tensors[index[value.tensor]].static
            return replace(value, tensor=value.tensor + mark) if own else value

        index = {tensor.name: number for number, tensor in enumerate(step.tensors)}
        for op in operations:
            self.operations.append(
                replace(
                    op,
                    name=op.name + mark,
                    reads=tuple(map(renamed, op.reads)),
                    writes=tuple(map(renamed, op.writes)),
                )
            )
        written = {value.tensor for op in operations for value in op.writes}
        self.tensors += [
            replace(tensor, name=tensor.name + mark, aliases=())
            for tensor in step.tensors
            if tensor.name in written
        ]

        def name(tensor: int) -> str:
            return step.tensors[tensor].name + mark

        for event in range(events):
            self.compute.append(step.operations[program.compute[event]].name + mark)
            self.frees.append([name(tensor) for tensor in program.frees[event]])
        for queue, copies in ((self.outs, program.copies_out), (self.ins, program.copies_in)):
            queue += [(name(c.tensor), base + c.after) for c in copies if c.after < events]
        if not last:
            self.frees[-1] += [name(tensor) for tensor in self._left(events)]
        if whole:
            self.last_events.append(len(self.compute) - 1)

    def _left(self, events: int) -> list[int]:
        """Tensors that the first events leave on the device."""
        index, program = self.step.index, self.schedule
        arriving: dict[int, list[int]] = {}
        for copy in program.copies_in:
            arriving.setdefault(copy.after, []).append(copy.tensor)
        here: dict[int, bool] = dict.fromkeys(arriving.get(START, ()), False)
        for event in range(events):
            op = program.compute[event]
            for tensor, _ in (*index.reads[op], *index.writes[op]):
                here[tensor] = True
            for tensor in program.frees[event]:
                here.pop(tensor, None)
            here.update(dict.fromkeys(arriving.get(event, ()), False))
        idle = [tensor for tensor, used in here.items() if not used]
        if idle:
            name = self.step.tensors[idle[0]].name
            raise InputError(
                f"the schedule cannot be repeated: it copies {name!r} in and does not read it "
                "before the end of the repetition"
            )
        return sorted(here)

    def repeated(self) -> Repeated:
        """All that was appended, as one program."""
        step = TrainingStep.build(self.step.name, self.operations, self.tensors)
        operation = {op.name: number for number, op in enumerate(step.operations)}
        tensor = {known.name: number for number, known in enumerate(step.tensors)}
        return Repeated(
            step,
            Schedule(
                tuple(operation[name] for name in self.compute),
                tuple(tuple(tensor[name] for name in names) for names in self.frees),
                tuple(Copy(tensor[name], after) for name, after in self.outs),
                tuple(Copy(tensor[name], after) for name, after in self.ins),
            ),
            tuple(self.last_events),
        )

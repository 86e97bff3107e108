"""Hypothesis strategies: random training steps, machines and complete programs.

Numbers are small (bytes and nanoseconds in the tens and thousands) with rates of a few bytes per
microsecond, so that copies last about as long as operations and everything competes.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import NamedTuple

from hypothesis import strategies as st

from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import Device, Host, Link, Machine
from slackswap_opt.plan import START, Copy, Schedule
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value, working_set_bytes
from tests.oracle import play

DEVICE = Device(
    memory_bytes=10**6,
    peak_flops_per_s={"fp32": 1e9},
    memory_bytes_per_s=1e9,
    attained_flops=1.0,
    attained_bandwidth=1.0,
    launch_ns=0,
)
MB_PER_S = 10**6
"""One byte per microsecond, the unit of link rates."""

DURATIONS = st.one_of(st.integers(1, 2500), st.sampled_from((0, 0, 500, 1000)))
SIZES = st.one_of(st.integers(1, 20), st.sampled_from((0, 4, 8, 8)))
WORKSPACES = st.sampled_from((0, 0, 0, 3, 11))
SELDOM = st.sampled_from((False,) * 9 + (True,))
OFTEN = st.sampled_from((True,) * 6 + (False,))


class Program(NamedTuple):
    """Everything that the simulator takes."""

    step: TrainingStep
    machine: Machine
    schedule: Schedule
    capacity: int


# --- Training steps ---------------------------------------------------------------------------


@st.composite
def training_steps(draw: st.DrawFn, max_activations: int = 10) -> TrainingStep:
    """A forward DAG, its backward operations in reverse order, and an optimizer now and then.

    With residual reads, several outputs, overwrites in place, accumulated gradients, unconnected
    parts, operations that may not run again, static tensors and sizes and durations of 0.
    """
    tensors: list[Tensor] = [Tensor.of("weights", 50, static=True)]
    operations: list[Operation] = []
    version: dict[str, int] = {}

    def make(name: str) -> Value:
        size = draw(SIZES)
        moved = draw(st.sampled_from((size, size, size, size // 2, size + 3)))
        tensors.append(Tensor(name, size, moved))
        version[name] = 0
        return Value(name)

    def operation(name: str, phase: Phase, reads: list[Value], writes: list[Value]) -> None:
        recomputable = not draw(SELDOM)
        operations.append(
            Operation(
                name, phase, draw(DURATIONS), tuple(dict.fromkeys(reads)), tuple(writes),
                draw(WORKSPACES), recomputable=recomputable,
            )
        )  # fmt: skip

    def latest(names: list[str]) -> list[Value]:
        return [Value(name, version[name]) for name in names]

    activations: list[str] = []
    budget = draw(st.integers(1, max_activations))
    while len(activations) < budget:
        number = len(operations)
        kind = draw(st.sampled_from(("chain", "chain", "chain", "skip", "two", "place", "root")))
        if not activations or kind == "root":
            inputs = []
        elif kind == "skip":
            count = min(3, len(activations))
            inputs = draw(
                st.lists(st.sampled_from(activations), min_size=1, max_size=count, unique=True)
            )
        else:
            inputs = activations[-1:]
        reads = latest(inputs) + ([Value("weights")] if draw(SELDOM) else [])
        if kind == "place" and inputs and inputs[0] in version:
            target = inputs[0]
            version[target] += 1
            operation(f"f{number}", Phase.FORWARD, reads, latest([target]))
            if number > 2 * budget:
                break
            continue
        made = [f"a{len(activations)}"]
        if kind == "two" and len(activations) + 1 < budget:
            made.append(f"a{len(activations) + 1}")
        operation(f"f{number}", Phase.FORWARD, reads, [make(name) for name in made])
        activations += made

    last_gradient: list[str] = []
    for forward in operations[::-1]:
        if draw(SELDOM):
            continue
        outputs = [value.tensor for value in forward.writes]
        inputs = [value.tensor for value in forward.reads if value.tensor in version]
        arriving = [f"g{name}" for name in outputs if f"g{name}" in version]
        saved = [name for name in dict.fromkeys(inputs + outputs) if draw(OFTEN)]
        reads, writes = latest(arriving + saved), []
        for name in inputs:
            gradient = f"g{name}"
            if gradient in arriving:  # an overwrite in place has its gradient in place, too
                version[gradient] += 1
                writes += latest([gradient])
            elif gradient in version:
                reads += latest([gradient])
                version[gradient] += 1
                writes += latest([gradient])
            else:
                writes.append(make(gradient))
        last_gradient = [value.tensor for value in writes] or last_gradient
        operation(f"b{forward.name}", Phase.BACKWARD, reads, writes)
    if draw(st.booleans()):
        reads = [*latest(last_gradient[:1]), Value("weights")]
        writes = [make("norm")] if draw(st.booleans()) else []
        operation("optimizer", Phase.OPTIMIZER, reads, writes)
    return TrainingStep.build("random", operations, tensors)


# --- Machines ---------------------------------------------------------------------------------


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    """Slow links, duplex rates at or below the rates alone, latency, host limits and rounding."""
    out, back = draw(st.integers(1, 40)), draw(st.integers(1, 40))
    if draw(st.booleans()):
        out_duplex, back_duplex = out, back
    else:
        out_duplex, back_duplex = draw(st.integers(1, out)), draw(st.integers(1, back))
    link = Link(
        d2h_bytes_per_s=out * MB_PER_S,
        h2d_bytes_per_s=back * MB_PER_S,
        d2h_duplex_bytes_per_s=out_duplex * MB_PER_S,
        h2d_duplex_bytes_per_s=back_duplex * MB_PER_S,
        latency_ns=draw(st.sampled_from((0, 0, 1, 70, 1000))),
        overlap=draw(st.sampled_from((1.0,) * 6 + (0.9, 0.5, 0.0))),
        contention=draw(st.sampled_from((0.0,) * 4 + (0.05, 0.3, 7.0))),
    )
    limit = draw(st.one_of(st.none(), st.none(), st.integers(0, 60)))
    return Machine("random", DEVICE, link, Host(limit, draw(st.booleans())))


# --- Schedules --------------------------------------------------------------------------------


@dataclass
class Lowering:
    """Writes a program for a step, choosing at random what happens to each tensor.

    It keeps in mind what would be on the device in sequential execution, so most of what it
    writes is valid; what cannot be rebuilt becomes a wrong schedule, which is welcome, too.
    """

    draw: st.DrawFn
    step: TrainingStep
    present: dict[int, int] = field(default_factory=dict)
    host: dict[int, int] = field(default_factory=dict)
    gone_after: dict[int, int] = field(default_factory=dict)
    compute: list[int] = field(default_factory=list)
    frees: list[list[int]] = field(default_factory=list)
    copies_out: list[Copy] = field(default_factory=list)
    copies_in: list[Copy] = field(default_factory=list)
    longest: int = 60

    def program(self) -> Schedule:
        index = self.step.index
        policies = st.sampled_from(("keep", "swap", "swap", "swap", "recompute", "mixed"))
        policy = [self.draw(policies) for _ in range(index.tensors)]
        tidy = [self.draw(OFTEN) for _ in range(index.tensors)]
        uses = [sorted({*index.writers[t], *index.readers[t]}) for t in range(index.tensors)]
        for op in range(index.operations):
            needed = {tensor for tensor, _ in index.reads[op]}
            self.provide(op, needed)
            self.emit(op)
            for tensor in sorted(self.present):
                later = [use for use in uses[tensor] if use > op]
                touched = tensor in needed or any(t == tensor for t, _ in index.writes[op])
                if not later:
                    if tidy[tensor]:
                        self.drop(tensor)
                elif (touched and later[0] > op + 1) or not touched:
                    self.apply(policy[tensor], tensor, not touched)
        return Schedule(
            tuple(self.compute),
            tuple(map(tuple, self.frees)),
            tuple(self.copies_out),
            tuple(self.copies_in),
        )

    def apply(self, policy: str, tensor: int, by_the_way: bool) -> None:
        if policy == "mixed":
            policy = self.draw(st.sampled_from(("keep", "keep", "swap", "recompute")))
        elif by_the_way and policy != "keep" and self.draw(OFTEN):
            return
        index = self.step.index
        if policy == "swap":
            if self.host.get(tensor) != self.present[tensor]:
                self.copy_out(tensor)
            self.drop(tensor)
        elif policy == "recompute" and all(
            index.recomputable[op] for op in index.writers[tensor][: self.present[tensor] + 1]
        ):
            self.drop(tensor)

    def copy_out(self, tensor: int) -> None:
        self.copies_out.append(Copy(tensor, len(self.compute) - 1))
        self.host[tensor] = self.present[tensor]

    def drop(self, tensor: int) -> None:
        del self.present[tensor]
        self.frees[-1].append(tensor)
        self.gone_after[tensor] = len(self.compute) - 1

    def emit(self, op: int) -> None:
        self.compute.append(op)
        self.frees.append([])
        for tensor, version in self.step.index.writes[op]:
            if version > 0 or tensor not in self.present:
                self.present[tensor] = version

    def provide(self, op: int, needed: set[int]) -> None:
        """Bring what an operation reads onto the device, at the right version."""
        index = self.step.index
        for tensor, version in index.reads[op]:
            if self.present.get(tensor) == version or len(self.compute) > self.longest:
                continue
            if self.present.get(tensor, -1) > version and self.compute:
                self.drop(tensor)
            if tensor not in self.present and self.host.get(tensor) == version:
                self.copy_in(tensor)
                continue
            writer = index.writers[tensor][version]
            self.provide(writer, needed | {t for t, _ in index.reads[writer]})
            self.emit(writer)
            for extra in sorted(self.present):
                if extra not in needed and self.draw(SELDOM):
                    self.drop(extra)

    def copy_in(self, tensor: int) -> None:
        last = len(self.compute) - 1
        first = min(self.gone_after.get(tensor, last), last)
        before = next((c.after for c in self.copies_in[::-1]), START)
        after = self.draw(st.integers(max(first, min(before, last)), last))
        self.copies_in.append(Copy(tensor, after))
        self.present[tensor] = self.host[tensor]


@st.composite
def schedules(draw: st.DrawFn, step: TrainingStep) -> Schedule:
    """A program for a step, valid more often than not."""
    schedule = Lowering(draw, step).program()
    for _ in range(draw(st.sampled_from((0, 0, 0, 0, 0, 1, 2)))):
        schedule = _disturbed(draw, step, schedule)
    return schedule


def _disturbed(draw: st.DrawFn, step: TrainingStep, schedule: Schedule) -> Schedule:
    """The schedule with one random change, which may well make it wrong."""
    events = len(schedule.compute)
    change = draw(
        st.sampled_from(("trigger", "swap", "copy again", "rerun", "free", "hold", "forget"))
    )
    side = draw(st.sampled_from(("copies_out", "copies_in")))
    queue = list(getattr(schedule, side))
    if change == "rerun":
        at, op = draw(st.integers(1, events)), draw(st.integers(0, step.index.operations - 1))
        compute, frees = list(schedule.compute), list(schedule.frees)
        if op not in compute[:at]:
            return schedule
        compute.insert(at, op)
        frees.insert(at, ())
        moved = {
            name: tuple(Copy(c.tensor, c.after + (c.after >= at)) for c in getattr(schedule, name))
            for name in ("copies_out", "copies_in")
        }
        return Schedule(tuple(compute), tuple(frees), **moved)
    if change in ("free", "hold"):
        at = draw(st.integers(0, events - 1))
        frees = list(schedule.frees)
        if change == "hold":
            frees[at] = frees[at][1:]
        else:
            frees[at] += (draw(st.integers(0, step.index.tensors - 1)),)
        return replace(schedule, frees=tuple(frees))
    if not queue:
        return schedule
    at = draw(st.integers(0, len(queue) - 1))
    if change == "trigger":
        queue[at] = Copy(queue[at].tensor, draw(st.integers(START, events - 1)))
    elif change == "swap":
        queue[at - 1], queue[at] = queue[at], queue[at - 1]
    elif change == "copy again":
        after = draw(st.integers(queue[at].after, events - 1))
        queue.insert(at + 1, Copy(queue[at].tensor, after))
    else:
        del queue[at]
    return replace(schedule, **{side: tuple(queue)})


def keep_all(step: TrainingStep) -> Schedule:
    """Everything stays from its producer to its last access."""
    index = step.index
    frees: list[list[int]] = [[] for _ in range(index.operations)]
    for tensor in range(index.tensors):
        if index.writers[tensor]:
            frees[max(index.writers[tensor] + index.readers[tensor])].append(tensor)
    return Schedule(tuple(range(index.operations)), tuple(map(tuple, frees)))


@st.composite
def programs(draw: st.DrawFn, max_activations: int = 6) -> Program:
    """A step, a machine, a schedule and a capacity around what the schedule needs."""
    step = draw(training_steps(max_activations))
    machine = draw(machines())
    schedule = draw(schedules(step))
    least = int(working_set_bytes(step).max())
    try:
        most = play(step, machine, schedule, 10**9).peak_bytes
    except ScheduleError:
        most = 2 * least
    low, high = min(least, most), max(least, most)
    kind = draw(st.sampled_from(("tight", "tight", "near", "between", "any")))
    if kind == "tight":
        capacity = _least_that_fits(step, machine, schedule, low, high)
        capacity += draw(st.sampled_from((0, 0, 1, 3)))
    elif kind == "near":
        capacity = draw(st.integers(max(0, high - 4), high))
    elif kind == "between":
        capacity = draw(st.integers(low, high))
    else:
        capacity = draw(st.integers(0, high + 1))
    return Program(step, machine, schedule, capacity)


def _least_that_fits(
    step: TrainingStep, machine: Machine, schedule: Schedule, low: int, high: int
) -> int:
    """By bisection, as if what fits always fits with more: where copies wait and compute stalls."""
    while low < high:
        middle = (low + high) // 2
        try:
            fits = play(step, machine, schedule, middle).step_ns is not None
        except ScheduleError:
            fits = False
        low, high = (low, middle) if fits else (middle + 1, high)
    return high

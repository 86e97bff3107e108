"""The work of a profiler step: forward operations, backward operations, loss, optimizer.

A forward operation and its backward operation share autograd's sequence number. Calls are split
until each holds one such number; what is left without one is work beside autograd.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from slackswap_opt.formats.kineto_events import Call, ProfilerStep, Shape, within
from slackswap_opt.formats.kineto_rules import function_name, of_engine

_SUMS = frozenset({"aten::add", "aten::add_"})


@dataclass(eq=False, slots=True)
class Unit:
    """A forward operation, a backward operation, or other work of the forward phase.

    Attributes:
        call: what it runs.
        number: autograd's, by which forward and backward operation are tied; None for other work.
        kernel_us: kernel time, of the loose work behind a backward operation too.
        function: the autograd function of a backward operation.
        gradients: shapes of the gradients that come in, of a backward operation.
        arguments: shapes of what its first inner operation reads.
        sums: shapes of the gradients that were summed right after it, and how often.
        memory: allocations and frees on the device while it ran.
    """

    call: Call
    number: int | None
    kernel_us: float
    function: str = ""
    gradients: tuple[Shape, ...] = ()
    arguments: tuple[Shape, ...] = ()
    sums: dict[Shape, int] = field(default_factory=dict)
    memory: list[int] = field(default_factory=list)

    @property
    def duration_ns(self) -> int:
        """Kernel time, rounded once."""
        return round(self.kernel_us * 1000)

    @property
    def workspace_bytes(self) -> int:
        """The most that it held at once of what it allocated and freed again."""
        return transient_bytes(self.memory)


@dataclass(frozen=True, slots=True)
class Work:
    """The work of a profiler step.

    Attributes:
        forward: in the order of the compute stream.
        backward: in the order of the compute stream.
        loss_us: kernel time between and beside them.
        optimizer_us: kernel time after the backward phase.
        parameters: shapes whose gradients were accumulated, with how often.
    """

    forward: list[Unit]
    backward: list[Unit]
    loss_us: float
    optimizer_us: float
    parameters: Counter[Shape]

    @property
    def kernel_us(self) -> float:
        """All of it."""
        units = sum(unit.kernel_us for unit in (*self.forward, *self.backward))
        return units + self.loss_us + self.optimizer_us


def work_of(step: ProfilerStep) -> Work:
    """Sort the calls of a profiler step into the work of a training step."""
    roots = [root for found in step.roots.values() for root in found]
    splits = _Splits(roots)
    pieces = sorted(
        (piece for root in roots for piece in splits.pieces(root)), key=lambda call: call.start_us
    )
    begins: dict[str, float] = {}
    for piece in pieces:
        if splits.is_backward(piece):
            begins.setdefault(piece.thread, piece.start_us)
    first = min(begins.values(), default=math.inf)
    last = max((p.end_us for p in pieces if splits.is_backward(p)), default=math.inf)
    forward: list[Unit] = []
    backward: dict[int, Unit] = {}
    latest: dict[str, Unit] = {}
    computing: dict[str, Unit] = {}  # the latest that launched kernels itself
    parameters: Counter[Shape] = Counter()
    loss_us, optimizer_us = step.loose_us, 0.0
    for call in pieces:
        main = call.thread == step.thread
        if splits.is_backward(call):
            unit = _backward_unit(call)
            earlier = backward.setdefault(call.sequence or 0, unit)
            if earlier is not unit:  # the same function again: a retained graph
                earlier.kernel_us += unit.kernel_us
            latest[call.thread] = earlier
            if call.kernels or call.thread not in computing:
                computing[call.thread] = earlier
            _note_parameters(call, parameters)
        elif call.thread in latest and not (main and call.start_us >= last):
            computing[call.thread].kernel_us += call.kernel_us
            _note_parameters(call, parameters)
            _note_sum(latest[call.thread], call)
        elif main and call.start_us < first:
            if call.kernels or splits.number(call) is not None:
                unit = Unit(call, splits.number(call), call.kernel_us)
                unit.memory = _memory(call)
                forward.append(unit)
        elif main and call.start_us >= last:
            optimizer_us += call.kernel_us
        else:
            loss_us += call.kernel_us
    _leave_the_last(forward)
    forward = [unit for unit in forward if unit.number is not None or unit.call.kernels]
    return Work(
        _by_stream(forward), _by_stream(backward.values()), loss_us, optimizer_us, parameters
    )


def transient_bytes(memory: Iterable[int]) -> int:
    """The most that was held at once of what was both allocated and freed.

    A free belongs to the latest allocation of its size.
    """
    events = list(memory)
    if not events:
        return 0
    waiting: dict[int, list[int]] = defaultdict(list)
    paired = [False] * len(events)
    for position, size in enumerate(events):
        if size > 0:
            waiting[size].append(position)
        elif waiting.get(-size):
            paired[position] = paired[waiting[-size].pop()] = True
    held = most = 0
    for size, counts in zip(events, paired, strict=True):
        held += size if counts else 0
        most = max(most, held)
    return most


class _Splits:
    """Which calls are backward operations, and which tied numbers each call holds."""

    def __init__(self, roots: Iterable[Call]) -> None:
        order = [call for root in roots for call in within(root)]
        self._backward = {
            call
            for call in order
            if call.sequence is not None and function_name(call.name) is not None
        }
        tied = {call.sequence for call in self._backward}
        self._lowest: dict[Call, int] = {}
        self._highest: dict[Call, int] = {}
        self._holds: set[Call] = set()
        for call in reversed(order):
            if call.sequence in tied and call.sequence is not None:
                self._widen(call, call.sequence, call.sequence)
            if call in self._backward:
                self._holds.add(call)
            if call.parent is not None:
                if call in self._lowest:
                    self._widen(call.parent, self._lowest[call], self._highest[call])
                if call in self._holds:
                    self._holds.add(call.parent)

    def is_backward(self, call: Call) -> bool:
        """Whether a call is a backward operation."""
        return call in self._backward

    def number(self, call: Call) -> int | None:
        """The one tied number that a piece holds, if any."""
        return self._lowest.get(call)

    def pieces(self, root: Call) -> Iterator[Call]:
        """A call, or what it encloses, so that no piece holds two tied numbers."""
        waiting = [root]
        while waiting:
            call = waiting.pop()
            several = self._lowest.get(call) != self._highest.get(call)
            if call in self._backward or not (call.annotation or several or call in self._holds):
                yield call
                continue
            own = call.kernels - sum(child.kernels for child in call.children)
            if own:
                own_us = call.kernel_us - sum(child.kernel_us for child in call.children)
                yield Call(
                    call.name, call.thread, call.start_us, call.start_us, False, None, (),
                    kernel_us=own_us, kernels=own, first_kernel_us=call.first_kernel_us,
                )  # fmt: skip
            waiting.extend(reversed(call.children))

    def _widen(self, call: Call, lowest: int, highest: int) -> None:
        self._lowest[call] = min(lowest, self._lowest.get(call, lowest))
        self._highest[call] = max(highest, self._highest.get(call, highest))


def _backward_unit(call: Call) -> Unit:
    function = call
    if of_engine(call.name):
        inner = (child for child in call.children if function_name(child.name) is not None)
        function = next(inner, call)
    arguments = next((child.shapes for child in function.children if child.shapes), ())
    unit = Unit(
        call,
        call.sequence,
        call.kernel_us,
        function_name(call.name) or "",
        tuple(shape for shape in function.shapes if shape.floating),
        arguments,
        memory=_memory(call),
    )
    if function is not call:
        for child in call.children:
            _note_sum(unit, child)
    return unit


def _note_sum(unit: Unit, call: Call) -> None:
    if call.name in _SUMS and len(call.shapes) > 1 and call.shapes[0] == call.shapes[1]:
        unit.sums[call.shapes[0]] = unit.sums.get(call.shapes[0], 0) + 1


def _note_parameters(call: Call, parameters: Counter[Shape]) -> None:
    for inner in within(call):
        if inner.name.endswith("AccumulateGrad"):
            shapes = [shape for found in within(inner) for shape in found.shapes]
            if shapes:
                parameters[shapes[0]] += 1
                return


def _memory(call: Call) -> list[int]:
    if not call.children:
        return call.memory
    return [size for inner in within(call) for size in inner.memory]


def _leave_the_last(forward: list[Unit]) -> None:
    """Keep a number only at the last unit that has it: calls before it only saw the counter."""
    seen: set[int] = set()
    for unit in reversed(forward):
        if unit.number in seen:
            unit.number = None
        elif unit.number is not None:
            seen.add(unit.number)


def _by_stream(units: Iterable[Unit]) -> list[Unit]:
    """The order in which their first kernels run; those without follow the call before."""
    listed = list(units)
    keys: list[float] = []
    for unit in listed:
        first = unit.call.first_kernel_us
        keys.append(first if math.isfinite(first) else (keys[-1] if keys else -math.inf))
    order = sorted(range(len(listed)), key=keys.__getitem__)
    return [listed[position] for position in order]

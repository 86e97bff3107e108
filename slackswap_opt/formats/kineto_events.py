"""The events of a profiler trace: calls on threads, kernels on streams, one profiler step.

A trace is a flat list of events. This module checks them, chooses a profiler step, nests the calls
of each thread by time, and gives every kernel to the call that launched it: the runtime call with
the same correlation number, and what encloses it on its thread.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from statistics import median_low
from typing import Any, NamedTuple, TypeGuard

from slackswap_opt.errors import InputError
from slackswap_opt.formats.kineto_rules import function_name
from slackswap_opt.formats.strict_json import shown

CALLS = frozenset({"Operator", "cpu_op", "user_annotation"})
RUNTIME = frozenset({"Runtime", "cuda_runtime", "cuda_driver"})
DEVICE = frozenset(
    {"Kernel", "kernel", "Memcpy", "gpu_memcpy", "Memset", "gpu_memset"}
)  # names of old and new profilers
FLOWS = frozenset({"fwdbwd", "forward_backward"})
MAX_US = 2**53
MAX_ELEMENTS = 2**50
FAULTS_SHOWN = 20
DEVICE_MEMORY = 1
"""The `Device Type` of memory events on a GPU."""

ELEMENT_BYTES = {
    "float": 4, "double": 8, "half": 2, "c10::half": 2, "c10::bfloat16": 2, "bfloat16": 2,
    "long": 8, "long int": 8, "int": 4, "short": 2, "short int": 2, "char": 1, "signed char": 1,
    "unsigned char": 1, "bool": 1, "c10::complex<float>": 8, "c10::complex<double>": 16,
    "c10::float8_e4m3fn": 1, "c10::float8_e5m2": 1,
}  # fmt: skip
FLOATS = frozenset(
    {"float", "double", "half", "c10::half", "c10::bfloat16", "bfloat16", "c10::complex<float>",
     "c10::complex<double>", "c10::float8_e4m3fn", "c10::float8_e5m2"}
)  # fmt: skip

_ONLY_INTEGERS = frozenset({int})
_IDENTITY = int | str
"""What numbers of kernels and arrows are, in some traces as text."""
_STEP = re.compile(r"ProfilerStep\s*#?\s*([0-9]{1,15})")
_HOST_COPY = re.compile(r"HtoD|DtoH|HtoH|Host", re.IGNORECASE)


class Shape(NamedTuple):
    """A tensor argument: its dimensions and element type."""

    dims: tuple[int, ...]
    dtype: str

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return math.prod(self.dims) * ELEMENT_BYTES[self.dtype]

    @property
    def floating(self) -> bool:
        """Whether gradients can flow to it."""
        return self.dtype in FLOATS


@dataclass(eq=False, slots=True)
class Call:
    """A call on a thread of the host.

    Attributes:
        name: as the profiler wrote it.
        thread: where it ran.
        start_us: when it began.
        end_us: when it ended.
        annotation: it only marks a stretch of time.
        sequence: autograd's number of the operation, if given.
        shapes: tensor arguments, lists of tensors flattened.
        parent: the call that encloses it.
        children: calls that it encloses, in order.
        kernel_us: time of the kernels that it, or what it encloses, launched on the compute stream.
        kernels: how many those are.
        first_kernel_us: when the first of them began; infinite without any.
        memory: allocations (positive) and frees (negative) on the device, in order.
    """

    name: str
    thread: str
    start_us: float
    end_us: float
    annotation: bool
    sequence: int | None
    shapes: tuple[Shape, ...]
    parent: Call | None = None
    children: list[Call] = field(default_factory=list)
    kernel_us: float = 0.0
    kernels: int = 0
    first_kernel_us: float = math.inf
    memory: list[int] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class ProfilerStep:
    """The calls of one profiler step.

    Attributes:
        title: `ProfilerStep#7`, or a description of the whole trace.
        number: its number; None for the whole trace.
        others: the numbers of all steps in the trace.
        wall_us: how long it took.
        thread: the one it ran on.
        roots: outermost calls by thread, in order.
        beside_us: kernel time on other streams than the compute stream.
        copies_us: time of copies between host and device.
        loose_us: kernel time on the compute stream that no call launched.
        shapes_known: whether any call has shapes.
    """

    title: str
    number: int | None
    others: tuple[int, ...]
    wall_us: float
    thread: str
    roots: dict[str, list[Call]]
    beside_us: float
    copies_us: float
    loose_us: float
    shapes_known: bool


def profiler_step(document: Any, wanted: int | None) -> ProfilerStep:
    """Check the events of a trace and collect those of one profiler step.

    Without a wanted one, the step whose duration is the median is taken: the first ones warm up,
    and the last one may be cut.

    Raises:
        InputError: with every fault of the events, up to a number.
    """
    events = document.get("traceEvents") if isinstance(document, dict) else document
    if not isinstance(events, list):
        raise InputError(
            f"traceEvents is {shown(events)}, expected a list of events; "
            "export the trace with export_chrome_trace"
        )
    trace = _Trace()
    for position, event in enumerate(events):
        trace.add(position, event)
    trace.check()
    return trace.choose(wanted)


@dataclass(slots=True)
class _Kernel:
    start_us: float
    duration_us: float
    stream: str
    copy: bool


class _Trace:
    """What the events have said so far."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.more_faults = 0
        self.calls: list[tuple[str, Call]] = []  # with the process
        self.runtime: list[tuple[str, str, float, Any]] = []
        self.kernels: dict[Any, list[_Kernel]] = defaultdict(list)
        self.memory: list[tuple[str, float, int]] = []
        self.flow_start: dict[Any, tuple[str, float]] = {}
        self.flow_end: dict[Any, tuple[str, float]] = {}

    def add(self, position: int, event: Any) -> None:
        if not isinstance(event, dict):
            self._fault(f"traceEvents[{position}] is {shown(event)}, expected an object")
            return
        category, phase = event.get("cat"), event.get("ph")
        if phase == "X" and isinstance(category, str):
            if category in CALLS:
                self._add_call(position, event, category)
            elif category in RUNTIME:
                self._add_runtime(position, event)
            elif category in DEVICE:
                self._add_kernel(position, event)
        elif phase == "i" and event.get("name") == "[memory]":
            self._add_memory(position, event)
        elif phase in ("s", "f") and isinstance(category, str) and category in FLOWS:
            self._add_flow(position, event)

    def check(self) -> None:
        if self.more_faults:
            self.faults.append(f"and {self.more_faults} more faults of this kind")
        if self.faults:
            raise InputError(*self.faults)
        if not self.calls:
            raise InputError(
                "the trace has no calls of operators (category cpu_op or Operator); record it "
                "with ProfilerActivity.CPU and ProfilerActivity.CUDA"
            )
        if not self.kernels:
            raise InputError(
                "the trace has no GPU kernels; record it on a GPU with ProfilerActivity.CUDA"
            )

    def choose(self, wanted: int | None) -> ProfilerStep:
        marks: dict[int, tuple[str, Call]] = {}
        for process, call in self.calls:
            match = _STEP.fullmatch(call.name)
            if match:
                marks.setdefault(int(match[1]), (process, call))
        numbers = sorted(marks)
        if wanted is not None and wanted not in marks:
            there = ", ".join(map(str, numbers)) or "none"
            raise InputError(f"there is no ProfilerStep#{wanted} in the trace; it has: {there}")
        if not marks:
            start = min(call.start_us for _, call in self.calls)
            end = max(call.end_us for _, call in self.calls)
            ranked = Counter((p, c.thread) for p, c in self.calls if _looks_forward(c))
            ranked = ranked or Counter((p, c.thread) for p, c in self.calls)
            process, thread = ranked.most_common(1)[0][0]
            whole = Call("the whole trace", thread, start, end, True, None, ())
            return self._collect(process, whole, None, ())
        if wanted is None:
            duration = {n: call.end_us - call.start_us for n, (_, call) in marks.items()}
            middle = median_low(duration.values())
            wanted = next(n for n in numbers if duration[n] == middle)
        process, mark = marks[wanted]
        return self._collect(process, mark, wanted, tuple(numbers))

    def _collect(
        self, process: str, mark: Call, number: int | None, others: tuple[int, ...]
    ) -> ProfilerStep:
        def inside(time: float) -> bool:
            return mark.start_us <= time < mark.end_us or time == mark.start_us == mark.end_us

        calls = [
            call
            for owner, call in self.calls
            if owner == process
            and call is not mark
            and inside(call.start_us)
            and not _STEP.fullmatch(call.name)
        ]
        launches = [
            (thread, time, self.kernels[correlation])
            for owner, thread, time, correlation in self.runtime
            if owner == process and inside(time) and correlation in self.kernels
        ]
        streams: Counter[str] = Counter()
        for _, _, kernels in launches:
            for kernel in kernels:
                streams[kernel.stream] += 0 if kernel.copy else 1 + round(kernel.duration_us * 1000)
        if not streams or not max(streams.values()):
            raise InputError(
                f"no kernel was launched in {mark.name}; choose another, FILE@profiler-step=N, of: "
                + (", ".join(map(str, others)) or "none")
            )
        compute = max(streams, key=lambda stream: (streams[stream], stream))
        self._use_flows(calls)
        points: dict[str, list[tuple[float, _Kernel | int]]] = defaultdict(list)
        beside_us = copies_us = 0.0
        for thread, time, kernels in launches:
            for kernel in kernels:
                if kernel.copy:
                    copies_us += kernel.duration_us
                elif kernel.stream != compute:
                    beside_us += kernel.duration_us
                else:
                    points[thread].append((time, kernel))
        for thread, time, size in self.memory:
            if inside(time):
                points[thread].append((time, size))
        by_thread: dict[str, list[Call]] = defaultdict(list)
        for call in calls:
            by_thread[call.thread].append(call)
        loose_us = sum(
            point.duration_us
            for thread, found in points.items()
            if thread not in by_thread
            for _, point in found
            if isinstance(point, _Kernel)
        )
        roots = {}
        for thread, found_calls in by_thread.items():
            roots[thread], lost_us = _nest(found_calls, points.get(thread, []))
            loose_us += lost_us
        return ProfilerStep(
            mark.name, number, others, mark.end_us - mark.start_us, mark.thread, roots,
            beside_us, copies_us, loose_us, any(call.shapes for call in calls),
        )  # fmt: skip

    def _use_flows(self, calls: list[Call]) -> None:
        """Number the calls that arrows tie, where autograd's numbers are missing."""
        if not self.flow_start or any(call.sequence is not None for call in calls):
            return
        starts = {place: key for key, place in self.flow_start.items() if key in self.flow_end}
        ends = {self.flow_end[key]: key for key in starts.values()}
        numbers = {key: number for number, key in enumerate(starts.values())}
        for call in calls:
            place = (call.thread, call.start_us)
            key = starts.get(place, ends.get(place))
            call.sequence = numbers.get(key) if key is not None else None

    # Single events

    def _add_call(self, position: int, event: dict[str, Any], category: str) -> None:
        times = self._times(position, event)
        name = event.get("name")
        if not isinstance(name, str):
            self._fault(f"traceEvents[{position}]: name is {shown(name)}, expected text")
            return
        if times is None:
            return
        given = event.get("args")
        arguments = given if isinstance(given, dict) else {}
        number = arguments.get("Sequence number")
        sequence = number if type(number) is int and number >= 0 else None
        annotation = category == "user_annotation"
        call = Call(
            name[:300], str(event.get("tid")), times[0], times[0] + times[1], annotation,
            sequence, self._shapes(position, arguments),
        )  # fmt: skip
        self.calls.append((str(event.get("pid")), call))

    def _shapes(self, position: int, arguments: dict[str, Any]) -> tuple[Shape, ...]:
        key = "Input Dims" if "Input Dims" in arguments else "Input dims"
        dims = arguments.get(key)
        if dims is None:
            return ()
        types = arguments.get("Input type")
        if not isinstance(dims, list) or not (types is None or isinstance(types, list)):
            self._fault(f"traceEvents[{position}]: {key} is {shown(dims)}, expected a list")
            return ()
        found: list[Shape] = []
        for number, shape in enumerate(dims):
            text = types[number] if types and number < len(types) else None
            dtype = text.lower() if isinstance(text, str) and text[:1].islower() else ""
            if types is None and shape:
                dtype = "float"
            if _is_list_of_lists(shape):
                for inner in shape:  # a list of tensors has no type
                    self._add_shape(position, key, "float", inner, found)
            else:
                self._add_shape(position, key, dtype, shape, found)
        return tuple(found)

    def _add_shape(
        self, position: int, key: str, dtype: str, sizes: Any, found: list[Shape]
    ) -> None:
        if dtype not in ELEMENT_BYTES:
            return
        if not isinstance(sizes, list) or not _ONLY_INTEGERS.issuperset(map(type, sizes)):
            self._fault(
                f"traceEvents[{position}]: {key} holds {shown(sizes)}, "
                "expected a list of whole numbers"
            )
            return
        if min(sizes, default=0) < 0 or math.prod(sizes[:32]) > MAX_ELEMENTS:
            self._fault(
                f"traceEvents[{position}]: {key} holds a tensor of {str(sizes)[:60]}, expected "
                f"sizes of 0 or more and at most {MAX_ELEMENTS} elements"
            )
            return
        if len(sizes) <= 32:
            found.append(Shape(tuple(sizes), dtype))

    def _add_runtime(self, position: int, event: dict[str, Any]) -> None:
        times = self._times(position, event)
        correlation = _correlation(event)
        if times is not None and correlation is not None:
            place = (str(event.get("pid")), str(event.get("tid")))
            self.runtime.append((*place, times[0], correlation))

    def _add_kernel(self, position: int, event: dict[str, Any]) -> None:
        times = self._times(position, event)
        correlation = _correlation(event)
        if times is None or correlation is None:
            return
        arguments = event["args"]
        name = event.get("name")
        copy = (
            event.get("cat") in ("Memcpy", "gpu_memcpy")
            and isinstance(name, str)
            and _HOST_COPY.search(name) is not None
        )
        stream = f"{arguments.get('device')}/{arguments.get('stream', event.get('tid'))}"
        self.kernels[correlation].append(_Kernel(*times, stream, copy))

    def _add_memory(self, position: int, event: dict[str, Any]) -> None:
        arguments = event.get("args")
        if not isinstance(arguments, dict) or arguments.get("Device Type") != DEVICE_MEMORY:
            return
        size, time = arguments.get("Bytes"), event.get("ts")
        if type(size) is not int or abs(size) > MAX_ELEMENTS or not _is_time(time):
            self._fault(
                f"traceEvents[{position}]: a memory event of {shown(size)} bytes at {shown(time)}, "
                "expected a whole number and a time"
            )
            return
        self.memory.append((str(event.get("tid")), float(time), size))

    def _add_flow(self, position: int, event: dict[str, Any]) -> None:
        key, time = event.get("id"), event.get("ts")
        if isinstance(key, _IDENTITY) and _is_time(time):
            place = (str(event.get("tid")), float(time))
            (self.flow_start if event["ph"] == "s" else self.flow_end)[key] = place
        else:
            self._fault(
                f"traceEvents[{position}]: an arrow with id {shown(key)} at {shown(time)}, "
                "expected a number or text, and a time"
            )

    def _times(self, position: int, event: dict[str, Any]) -> tuple[float, float] | None:
        start, duration = event.get("ts"), event.get("dur")
        if _is_time(start) and _is_time(duration):
            return float(start), float(duration)
        for key, value in (("ts", start), ("dur", duration)):
            if not _is_time(value):
                self._fault(
                    f"traceEvents[{position}] ({shown(event.get('name'))}): {key} is "
                    f"{shown(value)}, expected microseconds, 0 to {MAX_US}"
                )
        return None

    def _fault(self, text: str) -> None:
        if len(self.faults) < FAULTS_SHOWN:
            self.faults.append(text)
        else:
            self.more_faults += 1


def _looks_forward(call: Call) -> bool:
    """Whether autograd numbered a call, and it is no backward operation."""
    return call.sequence is not None and function_name(call.name) is None


def _correlation(event: dict[str, Any]) -> int | str | None:
    arguments = event.get("args")
    if not isinstance(arguments, dict):
        return None
    found = arguments.get("correlation")
    return found if isinstance(found, _IDENTITY) else None


def _is_list_of_lists(value: Any) -> bool:
    whole = isinstance(value, list) and bool(value) and isinstance(value[0], list)
    return whole and all(isinstance(inner, list) for inner in value)


def _is_time(value: Any) -> TypeGuard[float]:
    return type(value) in (int, float) and 0 <= value <= MAX_US


def _nest(
    calls: list[Call], points: Iterable[tuple[float, _Kernel | int]]
) -> tuple[list[Call], float]:
    """Nest the calls of a thread by time and give them their kernels.

    Returns:
        The outermost calls, and the time of kernels that no call launched.
    """
    entries: list[tuple[float, int, float, int, Call | _Kernel | int]] = [
        (call.start_us, 0, -call.end_us, number, call) for number, call in enumerate(calls)
    ]
    entries += [(time, 1, 0.0, number, point) for number, (time, point) in enumerate(points)]
    entries.sort()  # their first four parts are never the same
    roots: list[Call] = []
    order: list[Call] = []
    stack: list[Call] = []
    lost_us = 0.0
    for time, _, _, _, thing in entries:
        if isinstance(thing, Call):
            while stack and stack[-1].end_us <= time:
                stack.pop()
            if stack:
                thing.parent = stack[-1]
                stack[-1].children.append(thing)
            else:
                roots.append(thing)
            order.append(thing)
            stack.append(thing)
            continue
        while stack and stack[-1].end_us < time:
            stack.pop()
        if isinstance(thing, _Kernel):
            if not stack:
                lost_us += thing.duration_us
                continue
            stack[-1].kernel_us += thing.duration_us
            stack[-1].kernels += 1
            stack[-1].first_kernel_us = min(stack[-1].first_kernel_us, thing.start_us)
        elif stack:
            stack[-1].memory.append(thing)
    for call in reversed(order):
        if call.parent is not None:
            call.parent.kernel_us += call.kernel_us
            call.parent.kernels += call.kernels
            call.parent.first_kernel_us = min(call.parent.first_kernel_us, call.first_kernel_us)
    return roots, lost_us


def within(call: Call) -> Iterator[Call]:
    """A call and all that it encloses, outermost first, in order of time."""
    waiting = [call]
    while waiting:
        found = waiting.pop()
        yield found
        waiting.extend(reversed(found.children))

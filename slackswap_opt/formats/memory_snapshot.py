"""Memory snapshots of PyTorch: the segments and blocks of its caching allocator, and a history.

`torch.cuda.memory._dump_snapshot` writes them as a pickle of plain data: `segments` with their
`blocks` as they are at the end, and `device_traces`, for each device the last allocations and
frees in order. They are read by `slackswap_opt.formats.plain_pickle`, which runs nothing that a
file names.

A snapshot is not a training step: it has no operations and no durations. It is described
(`summary`), and replayed by `slackswap_opt.allocator.history`.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.formats import plain_pickle

NAME = "PyTorch memory snapshot (pickle)"
MOST_FAULTS = 20
MAX_ENTRIES = 2**22
"""Most blocks and events read."""
LARGEST_SHOWN = 10
_LIMIT = 2**63
_INNER = ("torch/", "/torch/", "<string>")
"""Python files that are not where a user allocated something."""


class State(StrEnum):
    """What a block is doing."""

    ACTIVE = "active"
    PENDING = "pending"
    """Freed, but a stream may still use it."""
    FREE = "free"


_STATES = {
    "active_allocated": State.ACTIVE,
    "active_pending_free": State.PENDING,
    "active_awaiting_free": State.PENDING,
    "inactive": State.FREE,
}


class Action(StrEnum):
    """What an entry of the history tells; others than these change no memory and are left out."""

    ALLOC = "alloc"
    FREE_REQUESTED = "free_requested"
    FREE_COMPLETED = "free_completed"
    SEGMENT_ALLOC = "segment_alloc"
    SEGMENT_FREE = "segment_free"
    SEGMENT_MAP = "segment_map"
    SEGMENT_UNMAP = "segment_unmap"


_ACTIONS = {action.value: action for action in Action}


@dataclass(frozen=True, slots=True)
class SnapshotBlock:
    """A part of a segment.

    Attributes:
        address: where it begins.
        size_bytes: bytes it takes up.
        requested_bytes: bytes asked for; 0 where it is free.
        state: what it is doing.
        where: the innermost line of Python that allocated it, empty if none was recorded.
    """

    address: int
    size_bytes: int
    requested_bytes: int
    state: State
    where: str


@dataclass(frozen=True, slots=True)
class SnapshotSegment:
    """Memory that the allocator has from the driver.

    Attributes:
        device: its number.
        address: where it begins.
        size_bytes: its size.
        stream: the stream whose allocations it serves.
        small: whether it serves the small ones.
        expandable: whether it can grow.
        pool: identity of the private pool (of a graph) it belongs to, (0, 0) for none.
        blocks: its parts, in order of addresses, without a gap.
    """

    device: int
    address: int
    size_bytes: int
    stream: int
    small: bool
    expandable: bool
    pool: tuple[int, int]
    blocks: tuple[SnapshotBlock, ...]


@dataclass(frozen=True, slots=True)
class SnapshotEvent:
    """An entry of the history.

    Attributes:
        action: what happened.
        address: to which block or segment.
        size_bytes: bytes asked for; for segments, their size.
        stream: on which stream.
        time_us: when, in microseconds since 1970, None in snapshots that do not record it.
        where: as of `SnapshotBlock`.
    """

    action: Action
    address: int
    size_bytes: int
    stream: int
    time_us: int | None
    where: str


@dataclass(frozen=True)
class Snapshot:
    """A whole snapshot.

    Attributes:
        name: what to call it.
        segments: in order of device and address, as they are at the end.
        history: by device, what led there, oldest first; it may begin anywhere.
        settings: the allocator's options as far as recorded.
    """

    name: str
    segments: tuple[SnapshotSegment, ...]
    history: tuple[tuple[SnapshotEvent, ...], ...]
    settings: Mapping[str, object]


@dataclass(frozen=True)
class Allocation:
    """Live allocations of one size from one place.

    Attributes:
        count: how many there are.
        size_bytes: of each.
        where: the innermost line of Python, empty if none was recorded.
    """

    count: int
    size_bytes: int
    where: str


@dataclass(frozen=True)
class SnapshotSummary:
    """What a snapshot says, of all devices together unless noted.

    Attributes:
        name: of the snapshot.
        devices: how many have memory or a history.
        segments: their number.
        small_segments: those that serve small allocations.
        expandable: whether any segment can grow.
        reserved_bytes: size of all segments.
        allocated_bytes: in blocks that are in use or waiting for a stream.
        requested_bytes: what was asked for of these.
        free_bytes: in free blocks.
        largest_free_bytes: the largest of them.
        live_blocks: number of blocks in use or waiting.
        history_events: entries that change memory.
        history_us: time from the first to the last of them; None where it is not recorded.
        start_bytes: bytes asked for and live when the history begins.
        peak_bytes: most bytes asked for and live at once during the history (per device, summed).
        largest: live allocations that take most memory, by size and place.
    """

    name: str
    devices: int
    segments: int
    small_segments: int
    expandable: bool
    reserved_bytes: int
    allocated_bytes: int
    requested_bytes: int
    free_bytes: int
    largest_free_bytes: int
    live_blocks: int
    history_events: int
    history_us: int | None
    start_bytes: int
    peak_bytes: int
    largest: tuple[Allocation, ...]


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a pickle, as snapshots are."""
    return plain_pickle.looks_like_pickle(head)


def read_snapshot(content: bytes, name: str) -> Snapshot:
    """Read a memory snapshot.

    Raises:
        InputError: if the pickle is refused (see `plain_pickle.loads`), is no snapshot, or is
            faulty; with every fault found, up to twenty.
    """
    document = plain_pickle.loads(content)
    if not isinstance(document, dict) or not {"segments", "device_traces"} <= document.keys():
        raise InputError(
            "the pickle is not a memory snapshot: there is no 'segments' and 'device_traces'; "
            "write one with torch.cuda.memory._dump_snapshot"
        )
    return _Reader().snapshot(document, name)


def summary(snapshot: Snapshot) -> SnapshotSummary:
    """Add up what a snapshot says."""
    blocks = [block for segment in snapshot.segments for block in segment.blocks]
    live = [block for block in blocks if block.state is not State.FREE]
    free = [block.size_bytes for block in blocks if block.state is State.FREE]
    times = [e.time_us for events in snapshot.history for e in events if e.time_us is not None]
    start, peak = _over_history(snapshot)
    with_memory = {segment.device for segment in snapshot.segments}
    with_history = {device for device, events in enumerate(snapshot.history) if events}
    return SnapshotSummary(
        name=snapshot.name,
        devices=len(with_memory | with_history),
        segments=len(snapshot.segments),
        small_segments=sum(segment.small for segment in snapshot.segments),
        expandable=any(segment.expandable for segment in snapshot.segments),
        reserved_bytes=sum(segment.size_bytes for segment in snapshot.segments),
        allocated_bytes=sum(block.size_bytes for block in live),
        requested_bytes=sum(block.requested_bytes for block in live),
        free_bytes=sum(free),
        largest_free_bytes=max(free, default=0),
        live_blocks=len(live),
        history_events=sum(map(len, snapshot.history)),
        history_us=max(times) - min(times) if times else None,
        start_bytes=start,
        peak_bytes=peak,
        largest=_largest(live),
    )


def _over_history(snapshot: Snapshot) -> tuple[int, int]:
    """Bytes asked for and live at the start of the history, and at most, summed over devices."""
    start_sum = peak_sum = 0
    for device in sorted(
        {segment.device for segment in snapshot.segments} | set(range(len(snapshot.history)))
    ):
        used = peak = sum(
            block.requested_bytes
            for segment in snapshot.segments
            if segment.device == device
            for block in segment.blocks
            if block.state is not State.FREE
        )
        events = snapshot.history[device] if device < len(snapshot.history) else ()
        for event in reversed(events):
            if event.action is Action.ALLOC:
                used -= event.size_bytes
            elif event.action is Action.FREE_COMPLETED:
                used += event.size_bytes
                peak = max(peak, used)
        start_sum, peak_sum = start_sum + used, peak_sum + peak
    return start_sum, peak_sum


def _largest(live: list[SnapshotBlock]) -> tuple[Allocation, ...]:
    counts: dict[tuple[int, str], int] = {}
    for block in live:
        key = (block.requested_bytes, block.where)
        counts[key] = counts.get(key, 0) + 1
    found = [Allocation(count, size, where) for (size, where), count in counts.items()]
    found.sort(key=lambda a: (-a.count * a.size_bytes, -a.size_bytes, a.where))
    return tuple(found[:LARGEST_SHOWN])


class _Reader:
    """Checks field by field; collects faults."""

    def __init__(self) -> None:
        self.faults: list[str] = []
        self.visited = 0
        self.places: dict[int, str] = {}

    def snapshot(self, document: Mapping[str, Any], name: str) -> Snapshot:
        segments = [
            segment
            for number, entry in enumerate(self.list_at(document, "segments", "segments"))
            if (segment := self.segment(entry, f"segments[{number}]")) is not None
        ]
        history = tuple(
            tuple(self.events(trace, f"device_traces[{device}]"))
            for device, trace in enumerate(self.list_at(document, "device_traces", "device_traces"))
        )
        settings = document.get("allocator_settings", {})
        if not isinstance(settings, dict):
            self.fault("allocator_settings", "expected a dictionary", settings)
        segments.sort(key=lambda segment: (segment.device, segment.address))
        for left, right in pairwise(segments):
            if left.device == right.device and left.address + left.size_bytes > right.address:
                self.add(f"segments: the one at {left.address} overlaps the one at {right.address}")
        if self.faults:
            raise InputError(*self.faults)
        return Snapshot(name, tuple(segments), history, settings)

    def segment(self, entry: object, where: str) -> SnapshotSegment | None:
        if not isinstance(entry, dict):
            self.fault(where, "expected a dictionary", entry)
            return None
        before = len(self.faults)
        address = self.integer(entry, "address", where)
        kind = entry.get("segment_type")
        if kind not in ("small", "large"):
            self.fault(f"{where}.segment_type", "expected 'small' or 'large'", kind)
        segment = SnapshotSegment(
            device=self.integer(entry, "device", where, 0),
            address=address,
            size_bytes=self.integer(entry, "total_size", where),
            stream=self.integer(entry, "stream", where, 0),
            small=kind == "small",
            expandable=entry.get("is_expandable") is True,
            pool=self.pool(entry, where),
            blocks=tuple(self.blocks(entry, address, where)),
        )
        held = sum(block.size_bytes for block in segment.blocks)
        if len(self.faults) == before and held != segment.size_bytes:
            self.add(
                f"{where}: its blocks add up to {held} bytes, its total_size is "
                f"{segment.size_bytes}"
            )
        return segment if len(self.faults) == before else None

    def pool(self, entry: Mapping[str, Any], where: str) -> tuple[int, int]:
        pool = entry.get("segment_pool_id", (0, 0))
        if isinstance(pool, tuple) and len(pool) == 2 and all(type(n) is int for n in pool):
            return pool[0], pool[1]
        self.fault(f"{where}.segment_pool_id", "expected a pair of integers", pool)
        return (0, 0)

    def blocks(self, entry: Mapping[str, Any], address: int, where: str) -> Iterator[SnapshotBlock]:
        for number, block in enumerate(self.list_at(entry, "blocks", f"{where}.blocks")):
            self.visit()
            place = f"{where}.blocks[{number}]"
            if not isinstance(block, dict):
                self.fault(place, "expected a dictionary", block)
                continue
            state = block.get("state")
            if not isinstance(state, str) or state not in _STATES:
                self.fault(f"{place}.state", f"expected one of {', '.join(_STATES)}", state)
                state = "inactive"
            size = self.integer(block, "size", place)
            at = self.integer(block, "address", place, address)
            if at != address:
                self.add(
                    f"{place}.address: expected {address}, where the block before it ends, got {at}"
                )
            free = _STATES[state] is State.FREE
            asked = 0 if free else self.integer(block, "requested_size", place, size)
            if asked > size:
                self.add(f"{place}: {asked} bytes asked for in a block of {size}")
            yield SnapshotBlock(at, size, asked, _STATES[state], self.python_line(block))
            address = at + size

    def events(self, trace: object, where: str) -> Iterator[SnapshotEvent]:
        if not isinstance(trace, list):
            self.fault(where, "expected a list", trace)
            return
        for number, entry in enumerate(trace):
            self.visit()
            place = f"{where}[{number}]"
            action = entry.get("action") if isinstance(entry, dict) else None
            if not isinstance(action, str):
                self.fault(place, "expected an entry with an action", entry)
            elif action in _ACTIONS:
                yield SnapshotEvent(
                    action=_ACTIONS[action],
                    address=self.integer(entry, "addr", place),
                    size_bytes=self.integer(entry, "size", place),
                    stream=self.integer(entry, "stream", place, 0),
                    time_us=self.integer(entry, "time_us", place) if "time_us" in entry else None,
                    where=self.python_line(entry),
                )

    def integer(
        self, entry: Mapping[str, Any], key: str, where: str, otherwise: int | None = None
    ) -> int:
        value = entry.get(key, otherwise)
        if type(value) is int and 0 <= value < _LIMIT:
            return value
        self.fault(f"{where}.{key}", "expected an integer from 0 to 2**63 - 1", value)
        return 0

    def list_at(self, entry: Mapping[str, Any], key: str, where: str) -> list[Any]:
        value = entry.get(key)
        if isinstance(value, list):
            return value
        self.fault(where, "expected a list", value)
        return []

    def fault(self, where: str, expected: str, value: object) -> None:
        got = repr(value)[:40] if isinstance(value, str | int | float) else type(value).__name__
        self.add(f"{where}: {expected}, got {'nothing' if value is None else got}")

    def add(self, fault: str) -> None:
        if len(self.faults) == MOST_FAULTS:
            raise InputError(*self.faults, "and more faults")
        self.faults.append(fault)

    def visit(self) -> None:
        """Count an entry: lists may share entries, so that a small file can unfold without end."""
        self.visited += 1
        if self.visited > MAX_ENTRIES:
            raise InputError(f"more than {MAX_ENTRIES} blocks and events; record a shorter history")

    def python_line(self, entry: Mapping[str, Any]) -> str:
        """The innermost Python frame outside of torch, `file.py:12 function`."""
        frames = entry.get("frames")
        if not isinstance(frames, list):
            return ""
        known = self.places.get(id(frames))  # many entries share one list
        if known is None:
            known = self.places[id(frames)] = next(filter(None, map(_python_line, frames)), "")
        return known


def _python_line(frame: object) -> str:
    if not isinstance(frame, dict):
        return ""
    file, line, function = (frame.get(key) for key in ("filename", "line", "name"))
    if not isinstance(file, str) or not file.endswith(".py"):
        return ""
    if file.startswith(_INNER) or "/torch/" in file:
        return ""
    name = function[:60] if isinstance(function, str) else "?"
    return f"{PurePosixPath(file).name}:{line if type(line) is int else '?'} {name}"

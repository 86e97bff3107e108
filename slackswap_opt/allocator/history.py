"""The model against what PyTorch did: the history of a memory snapshot, played again.

A snapshot shows the end and lists the events before it. The state at its first event is found by
undoing them backwards; from there the model decides for itself, and every address that it gives is
compared with the one recorded.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from dataclasses import dataclass

from slackswap_opt.allocator.blocks import Block, PoolKey
from slackswap_opt.allocator.caching import (
    SMALL_REQUEST,
    SMALL_SEGMENT,
    CachingAllocator,
    Usage,
    block_bytes,
)
from slackswap_opt.errors import InputError
from slackswap_opt.formats.memory_snapshot import Action, Snapshot, SnapshotEvent, State

_EXPECTED = {
    "max_split_size": -1,
    "garbage_collection_threshold": 0.0,
    "expandable_segments": False,
}
"""Options that the model assumes."""
_ELSEWHERE = 2**62
"""Addresses of segments that only the model allocates."""


@dataclass(frozen=True, slots=True)
class HistoryUse:
    """Bytes after an event.

    Attributes:
        requested: asked for and live.
        reserved: size of all segments.
    """

    requested: int
    reserved: int


@dataclass(frozen=True)
class HistoryReplay:
    """How the model did.

    Attributes:
        device: whose history.
        events: number of events played.
        start: memory before the first event, in the model.
        allocations: how many of the events allocate.
        same_address: how many of these got the recorded address relative to their segment.
        segments_recorded: allocations for which a segment was recorded to be allocated, by event.
        segments: allocations for which the model allocated one, by event.
        segments_agree: whether the model asked for each recorded segment at the allocation that it
            was recorded for, with its size, and for no other.
        end_agrees: whether every block of every segment is at the end as the snapshot shows it.
        recorded: memory after each event, from the end backwards.
        model: the same in the model, from the start forwards.
    """

    device: int
    events: int
    start: Usage
    allocations: int
    same_address: int
    segments_recorded: tuple[int, ...]
    segments: tuple[int, ...]
    segments_agree: bool
    end_agrees: bool
    recorded: tuple[HistoryUse, ...]
    model: tuple[HistoryUse, ...]

    @property
    def allocated_exact(self) -> bool:
        """Whether allocated bytes agree after every event."""
        return all(
            ours.requested == theirs.requested
            for ours, theirs in zip(self.model, self.recorded, strict=True)
        )

    @property
    def address_share(self) -> float:
        """Share of allocations at the recorded address; 1 where there are none."""
        return self.same_address / self.allocations if self.allocations else 1.0


def replay_history(snapshot: Snapshot, device: int = 0) -> HistoryReplay:
    """Play a snapshot's history with the model.

    Raises:
        InputError: if the snapshot was recorded with options that are not modelled, its history
            has parts that are not, or the two do not fit together.
    """
    _check(snapshot, device)
    history = snapshot.history[device] if device < len(snapshot.history) else ()
    past = _Backward(snapshot, device)
    end = past.blocks()
    recorded = []
    for number in reversed(range(len(history))):
        recorded.append(past.use())
        past.undo(history[number], f"device_traces[{device}][{number}]")
    return _Forward(past.ranges, history, device).run(tuple(reversed(recorded)), end)


def _check(snapshot: Snapshot, device: int) -> None:
    faults = [
        f"allocator_settings.{key} is {snapshot.settings[key]!r}; only {usual!r} is modelled"
        for key, usual in _EXPECTED.items()
        if snapshot.settings.get(key, usual) != usual
    ]
    divisions = snapshot.settings.get("roundup_power2_divisions")
    if isinstance(divisions, dict) and any(divisions.values()):
        faults.append("allocator_settings.roundup_power2_divisions is set; it is not modelled")
    here = [segment for segment in snapshot.segments if segment.device == device]
    if any(segment.expandable for segment in here):
        faults.append("its segments are expandable; only histories without them are replayed")
    if any(segment.pool != (0, 0) for segment in here):
        faults.append("it has private pools, which are not modelled")
    if faults:
        raise InputError(*faults)


# Backwards


@dataclass(slots=True)
class _Live:
    """A live block."""

    address: int
    size: int
    requested: int


@dataclass
class _Range:
    """A segment with its live blocks in order of address; everything else in it is free."""

    address: int
    size: int
    pool: PoolKey
    live: list[_Live]

    def at(self, address: int) -> int | None:
        """Position of the live block that begins at an address."""
        position = bisect_left(self.live, address, key=_address)
        found = position < len(self.live) and self.live[position].address == address
        return position if found else None

    def room(self, position: int) -> int:
        """Bytes from the start of a live block to the next one, or to the segment's end."""
        following = position + 1
        end = self.address + self.size
        if following < len(self.live):
            end = self.live[following].address
        return end - self.live[position].address

    def revive(self, address: int, requested: int) -> bool:
        """Make a block live that was freed; its size follows from the rules. False if it cannot be.

        A large block keeps a rest of up to 1 MiB, and no large block is that small: a gap of up to
        1 MiB between live blocks is a part of the first. Of a larger gap the block may have had a
        part too, which cannot be known; it is taken for free.
        """
        position = bisect_left(self.live, address, key=_address)
        self.live.insert(position, _Live(address, block_bytes(requested), requested))
        for changed in range(max(0, position - 1), position + 1):
            block, room = self.live[changed], self.room(changed)
            if block.size > room:
                return False
            if not self.pool.small and room - block.size <= SMALL_REQUEST:
                block.size = room
        return True


def _address(thing: _Live | _Range) -> int:
    return thing.address


class _Backward:
    """The state of a device, going back in time."""

    def __init__(self, snapshot: Snapshot, device: int) -> None:
        self.ranges = [
            _Range(
                segment.address,
                segment.size_bytes,
                PoolKey(segment.stream, segment.small),
                [
                    _Live(block.address, block.size_bytes, block.requested_bytes)
                    for block in segment.blocks
                    if block.state is not State.FREE
                ],
            )
            for segment in snapshot.segments
            if segment.device == device
        ]
        self.requested = sum(b.requested for found in self.ranges for b in found.live)
        self.reserved = sum(found.size for found in self.ranges)

    def use(self) -> HistoryUse:
        """Memory now."""
        return HistoryUse(self.requested, self.reserved)

    def blocks(self) -> list[tuple[int, int]]:
        """Address and size of every live block."""
        return [(block.address, block.size) for found in self.ranges for block in found.live]

    def undo(self, event: SnapshotEvent, where: str) -> None:
        """Go back before an event.

        Raises:
            InputError: if the state after it is not what it leads to.
        """
        position = bisect_right(self.ranges, event.address, key=_address) - 1
        within = self.ranges[position] if position >= 0 else None
        if within is not None and event.address >= within.address + within.size:
            within = None
        if event.action is Action.SEGMENT_FREE:
            self._return_segment(event, position + 1, where, taken=within is not None)
        elif event.action in (Action.SEGMENT_MAP, Action.SEGMENT_UNMAP):
            raise InputError(f"{where}: {event.action.value} is not modelled")
        elif within is None:
            raise InputError(f"{where}: no segment holds address {event.address}")
        elif event.action is Action.SEGMENT_ALLOC:
            if within.live or within.address != event.address or within.size != event.size_bytes:
                raise InputError(
                    f"{where}: the segment allocated at {event.address} is not empty then"
                )
            del self.ranges[position]
            self.reserved -= event.size_bytes
        elif event.action is Action.ALLOC:
            found = within.at(event.address)
            if found is None or within.live[found].requested != event.size_bytes:
                raise InputError(
                    f"{where}: {event.size_bytes} bytes allocated at {event.address} are not "
                    "there afterwards"
                )
            del within.live[found]
            self.requested -= event.size_bytes
        elif event.action is Action.FREE_COMPLETED:
            if not within.revive(event.address, event.size_bytes):
                raise InputError(
                    f"{where}: {event.size_bytes} bytes freed at {event.address} overlap others"
                )
            self.requested += event.size_bytes

    def _return_segment(
        self, event: SnapshotEvent, position: int, where: str, *, taken: bool
    ) -> None:
        following = self.ranges[position] if position < len(self.ranges) else None
        if taken or (following and event.address + event.size_bytes > following.address):
            raise InputError(f"{where}: the segment freed at {event.address} overlaps another")
        pool = PoolKey(event.stream, event.size_bytes <= SMALL_SEGMENT)
        self.ranges.insert(position, _Range(event.address, event.size_bytes, pool, []))
        self.reserved += event.size_bytes


# Forwards


class _Forward:
    """The model, beside what is recorded."""

    def __init__(
        self, ranges: list[_Range], history: tuple[SnapshotEvent, ...], device: int
    ) -> None:
        self.history, self.device = history, device
        self.segments: list[tuple[int, int]] = []
        self.recorded: list[tuple[int, int]] = []
        self.announced: list[SnapshotEvent] = []
        self.elsewhere = _ELSEWHERE
        self.number = 0
        self.allocator = CachingAllocator(place=self._place)
        self.live: dict[int, Block] = {}
        for state in ranges:
            free = self.allocator.adopt(state.address, state.size, state.pool).first
            for block in state.live:
                used = self.allocator.occupy(free, block.address, block.size, block.requested)
                self.live[block.address] = used
                if used.next is not None:
                    free = used.next
        self.start = self.allocator.usage()

    def run(self, recorded: tuple[HistoryUse, ...], end: list[tuple[int, int]]) -> HistoryReplay:
        """Play every event."""
        allocations = same = 0
        uses = []
        for number, event in enumerate(self.history):
            self.number = number
            if event.action is Action.ALLOC:
                block = self.allocator.allocate(event.size_bytes, event.stream, event.where)
                assert block is not None, "there is no limit"
                self.live[event.address] = block
                allocations += 1
                same += block.address == event.address
                self.recorded += [(number, found.size_bytes) for found in self.announced]
                self.announced.clear()
            elif event.action is Action.FREE_COMPLETED:
                self.allocator.free(self.live.pop(event.address))
            elif event.action is Action.SEGMENT_ALLOC:
                self.announced.append(event)
            elif event.action is Action.SEGMENT_FREE:
                self.allocator.give_back(event.address)
            use = self.allocator.usage()
            uses.append(HistoryUse(use.requested, use.reserved))
        return HistoryReplay(
            device=self.device,
            events=len(self.history),
            start=self.start,
            allocations=allocations,
            same_address=same,
            segments_recorded=tuple(number for number, _ in self.recorded),
            segments=tuple(number for number, _ in self.segments),
            segments_agree=self.recorded == self.segments,
            end_agrees=sorted((b.address, b.size) for b in self.live.values()) == end,
            recorded=recorded,
            model=tuple(uses),
        )

    def _place(self, size: int) -> int:
        """The recorded address of a segment if one of this size is due, else one of no other."""
        self.segments.append((self.number, size))
        for event in self.announced:
            if event.size_bytes == size:
                return event.address
        self.elsewhere += size
        return self.elsewhere - size

"""Blocks, segments and pools: the memory of a caching allocator as data."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator
from dataclasses import dataclass
from enum import StrEnum


class BlockState(StrEnum):
    """What a block is doing."""

    FREE = "free"
    USED = "used"
    PENDING = "pending"
    """Freed, but a copy that reads it has not completed."""
    UNMAPPED = "unmapped"
    """Addresses of an expandable segment that have no memory."""


@dataclass(frozen=True, slots=True, order=True)
class PoolKey:
    """Whose blocks may serve a request: those of the same stream and kind.

    Attributes:
        stream: number of the stream that allocates.
        small: whether for requests of at most 1 MiB.
    """

    stream: int
    small: bool


class Segment:
    """A range of addresses from the driver, cut into blocks."""

    __slots__ = ("address", "expandable", "first", "number", "pool", "size")

    def __init__(
        self, number: int, address: int, size: int, pool: PoolKey, *, expandable: bool
    ) -> None:
        self.number = number
        self.address = address
        self.size = size
        self.pool = pool
        self.expandable = expandable
        state = BlockState.UNMAPPED if expandable else BlockState.FREE
        self.first = Block(self, address, size, state)

    def blocks(self) -> Iterator[Block]:
        """Its blocks in order of addresses."""
        block: Block | None = self.first
        while block is not None:
            yield block
            block = block.next

    def mapped_bytes(self) -> int:
        """Bytes of memory behind its addresses."""
        return sum(b.size for b in self.blocks() if b.state is not BlockState.UNMAPPED)


class Block:
    """A part of a segment; knows its neighbours."""

    __slots__ = ("address", "next", "owner", "prev", "requested", "segment", "size", "state")

    def __init__(self, segment: Segment, address: int, size: int, state: BlockState) -> None:
        self.segment = segment
        self.address = address
        self.size = size
        self.state = state
        self.requested = 0
        self.owner: object = None
        self.prev: Block | None = None
        self.next: Block | None = None

    @property
    def whole(self) -> bool:
        """Whether it is all of its segment."""
        return self.prev is None and self.next is None

    def cut(self, size: int) -> Block:
        """Split the block; it keeps its first `size` bytes, the rest is a block of its state."""
        rest = Block(self.segment, self.address + size, self.size - size, self.state)
        rest.prev, rest.next = self, self.next
        if self.next is not None:
            self.next.prev = rest
        self.next = rest
        self.size = size
        return rest

    def absorb_next(self) -> None:
        """Take over the neighbour to the right."""
        gone = self.next
        assert gone is not None, "there is no neighbour to the right"
        self.size += gone.size
        self.next = gone.next
        if gone.next is not None:
            gone.next.prev = self


class Pool:
    """The free blocks of one stream and kind, and its expandable addresses without memory."""

    __slots__ = ("_free", "_unmapped", "key")

    def __init__(self, key: PoolKey) -> None:
        self.key = key
        self._free: list[tuple[int, int, Block]] = []
        self._unmapped: list[tuple[int, Block]] = []

    def add(self, block: Block) -> None:
        """Remember a free or an unmapped block; its address and size may not change any more."""
        if block.state is BlockState.UNMAPPED:
            insort(self._unmapped, (block.address, block), key=lambda e: e[0])
        else:
            insort(self._free, (block.size, block.address, block), key=lambda e: e[:2])

    def remove(self, block: Block) -> None:
        """Forget a block that is to be used, or changed."""
        if block.state is BlockState.UNMAPPED:
            del self._unmapped[bisect_left(self._unmapped, block.address, key=lambda e: e[0])]
        else:
            wanted = (block.size, block.address)
            del self._free[bisect_left(self._free, wanted, key=lambda e: e[:2])]

    def best_fit(self, size: int) -> Block | None:
        """The smallest free block of at least `size` bytes, and of these that of lowest address."""
        at = bisect_left(self._free, (size, 0), key=lambda e: e[:2])
        return self._free[at][2] if at < len(self._free) else None

    def best_expandable_fit(self, size: int) -> Block | None:
        """The same where a block next to unmapped addresses counts with these.

        Blocks are walked by size for as long as the next one, with its room to grow, is smaller.
        """
        at = bisect_left(self._free, (size, 0), key=lambda e: e[:2])
        if at == len(self._free):
            return None
        while at + 1 < len(self._free) and _growable(self._free[at + 1][2]) < _growable(
            self._free[at][2]
        ):
            at += 1
        return self._free[at][2]

    def free(self) -> list[Block]:
        """Its free blocks, smallest first."""
        return [block for _, _, block in self._free]

    def unmapped(self) -> list[Block]:
        """Addresses without memory, lowest first."""
        return [block for _, block in self._unmapped]


def _growable(block: Block) -> int:
    grows = block.next is not None and block.next.state is BlockState.UNMAPPED
    return block.size + (block.next.size if block.next is not None and grows else 0)

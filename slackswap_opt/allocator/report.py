"""Where reserved memory goes: what is in use, rounding, holes, and which blocks pin them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from slackswap_opt.allocator.blocks import Block, BlockState, PoolKey, Segment

LARGEST_HOLES = 10
"""How many holes a report lists."""


@dataclass(frozen=True)
class Hole:
    """Free memory between blocks in use: it serves smaller requests only, and cannot be given back.

    Attributes:
        size_bytes: its size.
        pool: whose requests it can serve.
        segment: number of the segment it is in.
        segment_bytes: memory of that segment.
        before: who owns the block before it, None at the segment's start.
        after: who owns the block after it, None at the segment's end.
    """

    size_bytes: int
    pool: PoolKey
    segment: int
    segment_bytes: int
    before: str | None
    after: str | None


@dataclass(frozen=True)
class PoolUse:
    """What the memory of one pool is used for.

    Reserved is requested, rounding, holes and cached together.

    Attributes:
        pool: stream and kind.
        segments: number of segments.
        reserved_bytes: their memory.
        requested_bytes: asked for and not free again.
        rounding_bytes: what the blocks that hold it are larger.
        pending_bytes: those of these blocks that were given back, but that a copy still reads.
        hole_bytes: free in segments that also have blocks in use.
        cached_bytes: free in segments of which nothing is in use.
        holes: number of holes.
    """

    pool: PoolKey
    segments: int
    reserved_bytes: int
    requested_bytes: int
    rounding_bytes: int
    pending_bytes: int
    hole_bytes: int
    cached_bytes: int
    holes: int


@dataclass(frozen=True)
class Fragmentation:
    """The memory of an allocator at one moment.

    Attributes:
        pools: by stream and kind.
        holes: the largest ones.
    """

    pools: tuple[PoolUse, ...]
    holes: tuple[Hole, ...]

    @property
    def reserved_bytes(self) -> int:
        """Memory from the driver."""
        return sum(pool.reserved_bytes for pool in self.pools)

    @property
    def requested_bytes(self) -> int:
        """Memory asked for and not free again."""
        return sum(pool.requested_bytes for pool in self.pools)


def fragmentation(segments: Iterable[Segment]) -> Fragmentation:
    """Describe the segments of an allocator as they are."""
    by_pool: dict[PoolKey, list[Segment]] = {}
    for segment in segments:
        by_pool.setdefault(segment.pool, []).append(segment)
    holes = [hole for found in by_pool.values() for segment in found for hole in _holes(segment)]
    holes.sort(key=lambda hole: (-hole.size_bytes, hole.segment, hole.before or ""))
    pools = tuple(_pool_use(pool, by_pool[pool]) for pool in sorted(by_pool))
    return Fragmentation(pools, tuple(holes[:LARGEST_HOLES]))


def _pool_use(pool: PoolKey, segments: list[Segment]) -> PoolUse:
    requested = rounding = pending = hole = cached = holes = 0
    for segment in segments:
        blocks = list(segment.blocks())
        in_use = any(_occupied(block) for block in blocks)
        for block in blocks:
            if _occupied(block):
                requested += block.requested
                rounding += block.size - block.requested
                pending += block.size if block.state is BlockState.PENDING else 0
            elif block.state is BlockState.FREE and in_use:
                hole += block.size
                holes += 1
            elif block.state is BlockState.FREE:
                cached += block.size
    reserved = requested + rounding + hole + cached
    return PoolUse(pool, len(segments), reserved, requested, rounding, pending, hole, cached, holes)


def _holes(segment: Segment) -> list[Hole]:
    blocks = list(segment.blocks())
    if not any(_occupied(block) for block in blocks):
        return []
    mapped = segment.mapped_bytes()
    return [
        Hole(
            block.size, segment.pool, segment.number, mapped, _owner(block.prev), _owner(block.next)
        )
        for block in blocks
        if block.state is BlockState.FREE
    ]


def _occupied(block: Block) -> bool:
    return block.state in (BlockState.USED, BlockState.PENDING)


def _owner(block: Block | None) -> str | None:
    if block is None or not _occupied(block):
        return None
    return str(block.owner) if block.owner is not None else "(unknown)"

"""A model of PyTorch's CUDA caching allocator, with its default options.

The rules are those of `c10/cuda/CUDACachingAllocator.cpp` in PyTorch 2; `docs/allocator.md` lists
them. Not modelled: `max_split_size_mb`, `roundup_power2_divisions`, garbage collection, private
pools of CUDA graphs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable
from dataclasses import dataclass

from slackswap_opt.allocator.blocks import Block, BlockState, Pool, PoolKey, Segment

MIN_BLOCK = 512
"""Requests are rounded up to multiples of this."""
SMALL_REQUEST = 2**20
"""Largest request that small pools serve, and largest rest that a large block keeps."""
SMALL_SEGMENT = 2 * 2**20
"""Size of a segment of a small pool."""
LARGE_SEGMENT = 20 * 2**20
"""Size of a segment for a request below `OWN_SEGMENT`, and granule of large expandable ones."""
OWN_SEGMENT = 10 * 2**20
"""From this size on a request gets a segment of its own size, rounded up to `ROUND_SEGMENT`."""
ROUND_SEGMENT = 2 * 2**20
EXPANDABLE_ADDRESSES = 2**46
"""Addresses that an expandable segment sets aside: more than any device has memory."""
_FIRST_ADDRESS = 2**33


def block_bytes(requested_bytes: int) -> int:
    """What a request is rounded up to."""
    return max(MIN_BLOCK, _up(requested_bytes, MIN_BLOCK))


def segment_bytes(block_size: int) -> int:
    """Size of the segment that is asked of the driver for a block of this size."""
    if block_size <= SMALL_REQUEST:
        return SMALL_SEGMENT
    if block_size < OWN_SEGMENT:
        return LARGE_SEGMENT
    return _up(block_size, ROUND_SEGMENT)


def _granule(pool: PoolKey) -> int:
    """What expandable segments grow and shrink by."""
    return SMALL_SEGMENT if pool.small else LARGE_SEGMENT


def _up(size: int, granule: int) -> int:
    return -(-size // granule) * granule


@dataclass(frozen=True, slots=True)
class Usage:
    """Memory in use at one moment, in bytes.

    Attributes:
        requested: what was asked for and is not free again.
        blocks: the blocks that hold it.
        pending: those of these blocks that were given back, but that a copy still reads.
        reserved: what the allocator has from the driver.
    """

    requested: int = 0
    blocks: int = 0
    pending: int = 0
    reserved: int = 0


class CachingAllocator:
    """Serves requests from cached segments, as PyTorch does.

    Deterministic: addresses of new segments grow, unless `place` gives them.

    Attributes:
        flushes: how often cached blocks were given back to the driver for want of memory; on a
            device each one waits for all work.
    """

    def __init__(
        self,
        *,
        expandable: bool = False,
        capacity_bytes: int | None = None,
        place: Callable[[int], int] | None = None,
    ) -> None:
        """Begin without any segment.

        Args:
            expandable: whether segments grow (`expandable_segments:True`).
            capacity_bytes: most memory that the driver gives, None for no limit.
            place: the address of a new segment by its size.
        """
        self.expandable = expandable
        self.capacity = capacity_bytes
        self.flushes = 0
        self._place = place or self._next_address
        self._address = _FIRST_ADDRESS
        self._numbers = 0
        self._pools: dict[PoolKey, Pool] = {}
        self._segments: dict[int, Segment] = {}
        self._waiting: dict[Block, set[Hashable]] = {}
        self._completed: set[Hashable] = set()
        self._news = False
        self._requested = self._in_blocks = self._pending = self._reserved = 0

    # -- what callers ask -----------------------------------------------------------------

    def allocate(self, requested_bytes: int, stream: int = 0, owner: object = None) -> Block | None:
        """A block for a request, None if memory runs out even after the cache was flushed.

        Args:
            requested_bytes: at least 1.
            stream: the stream that allocates.
            owner: whom reports name.
        """
        self._free_completed()
        size = block_bytes(requested_bytes)
        pool = self._pool(PoolKey(stream, size <= SMALL_REQUEST))
        fit = pool.best_expandable_fit if self.expandable else pool.best_fit
        block = fit(size)
        if block is not None:
            pool.remove(block)
        else:
            block = self._from_driver(pool, size)
            if block is None:
                self._flush()
                block = self._from_driver(pool, size)
            if block is None:
                return None
        if self._splits(pool, block.size - size):
            pool.add(block.cut(size))
        block.state = BlockState.USED
        block.requested, block.owner = requested_bytes, owner
        self._requested += requested_bytes
        self._in_blocks += block.size
        return block

    def free(self, block: Block, after: Iterable[Hashable] = ()) -> None:
        """Give a block back, once the events named have completed.

        As in PyTorch, completed events are noticed at the next allocation.
        """
        events = set(after) - self._completed
        if events:
            block.state = BlockState.PENDING
            self._pending += block.size
            self._waiting[block] = events
        else:
            self._release(block)

    def complete(self, event: Hashable) -> None:
        """An event that frees may wait for has completed."""
        self._completed.add(event)
        self._news = True

    def usage(self) -> Usage:
        """Memory in use now."""
        return Usage(self._requested, self._in_blocks, self._pending, self._reserved)

    def segments(self) -> tuple[Segment, ...]:
        """Its segments in order of address."""
        return tuple(self._segments[address] for address in sorted(self._segments))

    # -- a given state --------------------------------------------------------------------

    def adopt(self, address: int, size: int, pool: PoolKey) -> Segment:
        """Take over a segment that exists already; it is one free block."""
        segment = self._new_segment(address, size, pool, expandable=False)
        self._reserved += size
        self._pool(pool).add(segment.first)
        return segment

    def occupy(self, free: Block, address: int, size: int, requested_bytes: int) -> Block:
        """Put a block in use at an address within a free block."""
        pool = self._pool(free.segment.pool)
        pool.remove(free)
        block = free
        if address > free.address:
            block = free.cut(address - free.address)
            pool.add(free)
        if block.size > size:
            pool.add(block.cut(size))
        block.state, block.requested = BlockState.USED, requested_bytes
        self._requested += requested_bytes
        self._in_blocks += block.size
        return block

    def give_back(self, address: int) -> bool:
        """Return the segment at an address to the driver; False if none is there and free."""
        segment = self._segments.get(address)
        if segment is None or not segment.first.whole or segment.first.state is not BlockState.FREE:
            return False
        self._pool(segment.pool).remove(segment.first)
        del self._segments[address]
        self._reserved -= segment.size
        return True

    # -- segments -------------------------------------------------------------------------

    def _pool(self, key: PoolKey) -> Pool:
        return self._pools.setdefault(key, Pool(key))

    def _splits(self, pool: Pool, rest: int) -> bool:
        if pool.key.small or self.expandable:
            return rest >= MIN_BLOCK
        return rest > SMALL_REQUEST

    def _has_room(self, size: int) -> bool:
        return self.capacity is None or self._reserved + size <= self.capacity

    def _from_driver(self, pool: Pool, size: int) -> Block | None:
        """A free block of at least this size, outside of its pool, from new memory."""
        if self.expandable:
            return self._grow(pool, size)
        wanted = segment_bytes(size)
        if not self._has_room(wanted):
            return None
        self._reserved += wanted
        return self._new_segment(self._place(wanted), wanted, pool.key, expandable=False).first

    def _new_segment(self, address: int, size: int, key: PoolKey, *, expandable: bool) -> Segment:
        segment = Segment(self._numbers, address, size, key, expandable=expandable)
        self._numbers += 1
        self._segments[address] = segment
        return segment

    def _next_address(self, size: int) -> int:
        address = self._address
        self._address += _up(size, ROUND_SEGMENT)
        return address

    def _flush(self) -> None:
        """Give all cached memory back to the driver, after waiting for every copy."""
        self.flushes += 1
        for block in list(self._waiting):
            self._end_wait(block)
        for key in sorted(self._pools):
            pool = self._pools[key]
            for block in pool.free():
                if block.segment.expandable:
                    self._unmap(pool, block)
                elif block.whole:
                    pool.remove(block)
                    del self._segments[block.segment.address]
                    self._reserved -= block.size

    # -- expandable segments --------------------------------------------------------------

    def _grow(self, pool: Pool, size: int) -> Block | None:
        """Map memory behind the lowest addresses with enough room, with a free block before them.

        If the driver refuses half-way, what was mapped stays as a free block.
        """
        at = self._growth(pool, size)
        if at.state is BlockState.UNMAPPED:
            mapped = self._map(pool, at, min(at.size, size))
            if mapped is None:
                return None
            at = mapped
        while at.size < size:
            hole = at.next
            assert hole is not None, "the addresses were found to be enough"
            mapped = self._map(pool, hole, min(size - at.size, hole.size))
            if mapped is None:
                return None
            at = mapped
        pool.remove(at)
        return at

    def _growth(self, pool: Pool, size: int) -> Block:
        for hole in pool.unmapped():
            before = hole.prev
            start = before if before is not None and before.state is BlockState.FREE else hole
            room, block = 0, start
            while room < size:
                room += block.size
                after = block.next
                if after is None or after.state not in (BlockState.FREE, BlockState.UNMAPPED):
                    break
                block = after
            if room >= size:
                return start
        size = _up(EXPANDABLE_ADDRESSES, _granule(pool.key))
        fresh = self._new_segment(self._place(size), size, pool.key, expandable=True)
        pool.add(fresh.first)
        return fresh.first

    def _map(self, pool: Pool, hole: Block, size: int) -> Block | None:
        """Put memory, in whole granules, behind the first addresses of an unmapped block.

        Returns:
            The free block that results, merged with its neighbours and in its pool.
        """
        size = _up(size, _granule(pool.key))
        if not self._has_room(size):
            return None
        pool.remove(hole)
        if size < hole.size:
            pool.add(hole.cut(size))
        hole.state = BlockState.FREE
        self._reserved += size
        return self._merge(pool, hole)

    def _unmap(self, pool: Pool, block: Block) -> None:
        """Take the memory behind the whole granules of a free block away."""
        granule = _granule(pool.key)
        start = block.segment.address
        first = start + _up(block.address - start, granule)
        last = start + (block.address + block.size - start) // granule * granule
        if last <= first:
            return
        pool.remove(block)
        if first > block.address:
            rest = block.cut(first - block.address)
            pool.add(block)
            block = rest
        if last < block.address + block.size:
            pool.add(block.cut(last - block.address))
        self._reserved -= block.size
        block.state = BlockState.UNMAPPED
        whole = self._merge(pool, block)
        if whole.whole:
            pool.remove(whole)
            del self._segments[whole.segment.address]

    # -- frees ----------------------------------------------------------------------------

    def _merge(self, pool: Pool, block: Block) -> Block:
        """Join a block with neighbours of its state, and put the result into its pool."""
        if block.next is not None and block.next.state is block.state:
            pool.remove(block.next)
            block.absorb_next()
        before = block.prev
        if before is not None and before.state is block.state:
            pool.remove(before)
            before.absorb_next()
            block = before
        pool.add(block)
        return block

    def _release(self, block: Block) -> None:
        self._requested -= block.requested
        self._in_blocks -= block.size
        block.state = BlockState.FREE
        block.requested, block.owner = 0, None
        self._merge(self._pool(block.segment.pool), block)

    def _end_wait(self, block: Block) -> None:
        self._pending -= block.size
        del self._waiting[block]
        self._release(block)

    def _free_completed(self) -> None:
        if not self._news:
            return
        for block, events in list(self._waiting.items()):
            events -= self._completed
            if not events:
                self._end_wait(block)
        self._news = False

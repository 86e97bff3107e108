"""The allocator: PyTorch's rules one by one, laws of any run, schedules, and a recorded history."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.allocator import (
    CachingAllocator,
    Kind,
    fragmentation,
    replay_history,
    requests,
    reserve,
)
from slackswap_opt.allocator.blocks import Block, BlockState, PoolKey
from slackswap_opt.allocator.caching import block_bytes, segment_bytes
from slackswap_opt.allocator.requests import Allocate, Complete, Free
from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.formats.memory_snapshot import (
    Action,
    Snapshot,
    SnapshotBlock,
    SnapshotEvent,
    SnapshotSegment,
    State,
    read_snapshot,
)
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.planners import HEURISTICS, greedy
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from slackswap_opt.study.reserved import fit_reserved
from slackswap_opt.workloads import build_step, load_workload
from tests.strategies import Program, programs
from tests.test_simulator_properties import RELAXED

KIB, MIB = 2**10, 2**20
EXPLORED = settings(RELAXED, max_examples=50)


def sizes(allocator: CachingAllocator) -> list[int]:
    return [segment.size for segment in allocator.segments()]


def take(allocator: CachingAllocator, size: int, stream: int = 0, owner: str = "") -> Block:
    block = allocator.allocate(size, stream, owner)
    assert block is not None
    return block


# The rules


@pytest.mark.parametrize(
    ("requested", "block", "segment"),
    [
        (1, 512, 2 * MIB),
        (512, 512, 2 * MIB),
        (513, 1024, 2 * MIB),
        (MIB, MIB, 2 * MIB),
        (MIB + 1, MIB + 512, 20 * MIB),
        (10 * MIB - 512, 10 * MIB - 512, 20 * MIB),
        (10 * MIB, 10 * MIB, 10 * MIB),
        (11 * MIB, 11 * MIB, 12 * MIB),
        (64 * MIB + 1, 64 * MIB + 512, 66 * MIB),
    ],
)
def test_requests_are_rounded_and_get_segments_by_size(requested, block, segment):
    assert block_bytes(requested) == block
    assert segment_bytes(block) == segment
    allocator = CachingAllocator()
    take(allocator, requested)
    assert allocator.usage().reserved == segment
    assert allocator.usage().requested == requested


def test_small_and_large_requests_never_share_a_segment():
    allocator = CachingAllocator()
    small, large = take(allocator, MIB), take(allocator, MIB + 1)
    assert sizes(allocator) == [2 * MIB, 20 * MIB]
    allocator.free(large)
    assert take(allocator, 512).segment is small.segment


def test_a_small_block_is_split_down_to_512_bytes():
    allocator = CachingAllocator()
    blocks = [take(allocator, 1) for _ in range(4096)]
    assert allocator.usage().reserved == 2 * MIB
    assert [b.address - blocks[0].address for b in blocks] == list(range(0, 2 * MIB, 512))
    take(allocator, 1)
    assert allocator.usage().reserved == 4 * MIB


@pytest.mark.parametrize(("rest", "split"), [(MIB, False), (MIB + 512, True)])
def test_a_large_block_keeps_a_rest_of_up_to_one_mib(rest, split):
    allocator = CachingAllocator()
    block = take(allocator, 40 * MIB - rest)
    assert sizes(allocator) == [(40 if not split or rest <= 2 * MIB else 38) * MIB]
    assert (block.next is not None) == split
    assert allocator.usage().blocks == (40 * MIB - rest if split else 40 * MIB)


def test_the_smallest_block_that_fits_is_taken_and_of_these_the_lowest():
    allocator = CachingAllocator()
    held = [take(allocator, size * MIB) for size in (30, 20, 20, 40)]
    for block in held:
        allocator.free(block)
    assert take(allocator, 15 * MIB).address == held[1].address
    assert take(allocator, 20 * MIB).address == held[2].address
    assert take(allocator, 20 * MIB).address == held[0].address


def test_freed_neighbours_become_one_block_again():
    allocator = CachingAllocator()
    blocks = [take(allocator, 5 * MIB) for _ in range(4)]
    for block in (blocks[1], blocks[3], blocks[2], blocks[0]):
        allocator.free(block)
    (segment,) = allocator.segments()
    assert [b.size for b in segment.blocks()] == [20 * MIB]
    assert take(allocator, 19 * MIB).address == blocks[0].address


def test_free_memory_in_pieces_serves_no_larger_request_and_the_report_says_who_pins_it():
    allocator = CachingAllocator()
    blocks = [take(allocator, 5 * MIB, owner=name) for name in "abcd"]
    allocator.free(blocks[0])
    allocator.free(blocks[2])
    take(allocator, 9 * MIB, owner="e")
    assert sizes(allocator) == [20 * MIB, 20 * MIB]
    found = fragmentation(allocator.segments())
    assert [(h.size_bytes, h.before, h.after) for h in found.holes] == [
        (11 * MIB, "e", None),
        (5 * MIB, None, "b"),
        (5 * MIB, "b", "d"),
    ]
    (pool,) = found.pools
    assert (pool.reserved_bytes, pool.requested_bytes) == (40 * MIB, 19 * MIB)
    assert (pool.hole_bytes, pool.cached_bytes, pool.holes) == (21 * MIB, 0, 3)


def test_a_segment_of_which_nothing_is_in_use_is_cached_and_not_a_hole():
    allocator = CachingAllocator()
    allocator.free(take(allocator, 30 * MIB))
    (pool,) = fragmentation(allocator.segments()).pools
    assert (pool.cached_bytes, pool.hole_bytes) == (30 * MIB, 0)


def test_streams_do_not_share_blocks():
    allocator = CachingAllocator()
    allocator.free(take(allocator, 20 * MIB, stream=0))
    other = take(allocator, 20 * MIB, stream=2)
    assert allocator.usage().reserved == 40 * MIB
    allocator.free(other)
    assert take(allocator, 20 * MIB, stream=2).address == other.address


def test_a_block_that_a_copy_reads_is_not_reused_before_the_copy_completes():
    allocator = CachingAllocator()
    read = take(allocator, 20 * MIB)
    allocator.free(read, after=["copy"])
    assert allocator.usage().pending == 20 * MIB
    assert take(allocator, 20 * MIB).address != read.address
    allocator.complete("copy")
    assert take(allocator, 20 * MIB).address == read.address
    assert allocator.usage().pending == 0


def test_a_copy_that_completed_before_the_free_is_not_waited_for():
    allocator = CachingAllocator()
    read = take(allocator, 20 * MIB)
    allocator.complete("copy")
    allocator.free(read, after=["copy"])
    assert allocator.usage().pending == 0


def test_cached_segments_are_given_back_before_memory_runs_out():
    allocator = CachingAllocator(capacity_bytes=60 * MIB)
    allocator.free(take(allocator, 20 * MIB))
    pinned = [take(allocator, 5 * MIB) for _ in range(2)]  # from the cached segment
    waiting = take(allocator, 20 * MIB)
    allocator.free(waiting, after=["copy"])
    assert take(allocator, 40 * MIB).size == 40 * MIB
    assert (allocator.flushes, allocator.usage().reserved) == (1, 60 * MIB)
    assert allocator.allocate(11 * MIB) is None
    assert allocator.flushes == 2
    assert take(allocator, 10 * MIB - 512).segment is pinned[0].segment


def test_expandable_segments_grow_by_their_granules():
    allocator = CachingAllocator(expandable=True)
    take(allocator, 1)
    assert allocator.usage().reserved == 2 * MIB
    first = take(allocator, 21 * MIB)
    assert allocator.usage().reserved == 42 * MIB
    second = take(allocator, 19 * MIB)
    assert allocator.usage().reserved == 42 * MIB
    assert second.address == first.address + 21 * MIB
    assert len(allocator.segments()) == 2


def test_a_free_end_of_an_expandable_segment_grows_instead_of_a_new_segment():
    plain, growing = CachingAllocator(), CachingAllocator(expandable=True)
    for allocator in (plain, growing):
        kept = take(allocator, 40 * MIB)
        allocator.free(take(allocator, 40 * MIB))
        assert take(allocator, 60 * MIB).size == 60 * MIB
        assert kept.state is BlockState.USED
    assert plain.usage().reserved == 140 * MIB
    assert growing.usage().reserved == 100 * MIB


def test_whole_granules_of_expandable_segments_are_given_back_for_want_of_memory():
    allocator = CachingAllocator(expandable=True, capacity_bytes=100 * MIB)
    blocks = [take(allocator, 30 * MIB) for _ in range(3)]
    assert allocator.usage().reserved == 100 * MIB
    allocator.free(blocks[1])  # from 30 to 60 MiB: the granule from 40 to 60 is free
    other = take(allocator, MIB)
    assert allocator.flushes == 1
    assert allocator.usage().reserved == 82 * MIB
    allocator.free(other)
    assert take(allocator, 30 * MIB).address == blocks[1].address
    assert allocator.usage().reserved == 100 * MIB
    assert allocator.allocate(11 * MIB) is None


def test_a_refused_growth_leaves_a_sound_allocator():
    allocator = CachingAllocator(expandable=True, capacity_bytes=50 * MIB)
    take(allocator, 15 * MIB)
    assert allocator.allocate(60 * MIB) is None
    assert take(allocator, 20 * MIB).size == 20 * MIB
    check(allocator)


# Laws of any run, and a plain allocator to compare with


STEPS = st.lists(
    st.one_of(
        st.tuples(
            st.just("take"),
            st.one_of(
                st.integers(1, 4 * KIB),
                st.sampled_from([MIB, MIB + 1, 3 * MIB, 9 * MIB, 10 * MIB, 15 * MIB, 33 * MIB]),
                st.integers(1, 30 * MIB),
            ),
            st.sampled_from([0, 0, 0, 2]),
        ),
        st.tuples(st.just("free"), st.integers(0, 10**6), st.booleans()),
        st.tuples(st.just("complete"), st.integers(0, 10**6), st.none()),
    ),
    max_size=60,
)


def check(allocator: CachingAllocator) -> None:
    """Blocks tile segments, free neighbours are one, and the sums are right."""
    requested = blocks = pending = reserved = 0
    for segment in allocator.segments():
        address, before = segment.address, None
        for block in segment.blocks():
            assert block.address == address
            assert block.prev is before
            assert block.size > 0
            assert block.size % 512 == 0
            if before is not None and before.state is block.state:
                assert block.state in (BlockState.USED, BlockState.PENDING)
            if block.state in (BlockState.USED, BlockState.PENDING):
                assert 0 < block.requested <= block.size
                requested += block.requested
                blocks += block.size
                pending += block.size if block.state is BlockState.PENDING else 0
            address, before = address + block.size, block
        assert address == segment.address + segment.size
        reserved += segment.mapped_bytes()
    use = allocator.usage()
    assert (use.requested, use.blocks, use.pending) == (requested, blocks, pending)
    assert use.reserved == reserved
    assert allocator.capacity is None or reserved <= allocator.capacity
    found = fragmentation(allocator.segments())
    assert (found.reserved_bytes, found.requested_bytes) == (reserved, requested)


@EXPLORED
@given(STEPS, st.booleans(), st.sampled_from([None, 64 * MIB, 200 * MIB]))
def test_memory_is_accounted_for_after_every_step(steps, expandable, capacity):
    allocator = CachingAllocator(expandable=expandable, capacity_bytes=capacity)
    live: list[Block] = []
    events = 0
    for what, number, extra in steps:
        if what == "take":
            block = allocator.allocate(number, extra)
            if block is None:
                assert capacity is not None
            else:
                live.append(block)
        elif what == "free" and live:
            after = [events] if extra else []
            events += bool(extra)
            allocator.free(live.pop(number % len(live)), after)
        elif what == "complete" and events:
            allocator.complete(number % events)
        check(allocator)
        assert all(block.state is BlockState.USED for block in live)


class Plain:
    """The caching allocator without a limit, by looking through everything each time."""

    def __init__(self) -> None:
        self.blocks: dict[int, list[list[int]]] = {}
        """By segment: [start, size, whether free], in order."""
        self.kind: dict[int, tuple[int, bool]] = {}

    def take(self, size: int, stream: int) -> tuple[int, int]:
        size = -(-size // 512) * 512
        kind = (stream, size <= MIB)
        fits = [
            (block[1], segment, block[0])
            for segment, blocks in self.blocks.items()
            if self.kind[segment] == kind
            for block in blocks
            if block[2] and block[1] >= size
        ]
        if not fits:
            total = 2 * MIB if size <= MIB else 20 * MIB
            if size >= 10 * MIB:
                total = -(-size // (2 * MIB)) * 2 * MIB
            fits = [(total, len(self.blocks), 0)]
            self.kind[len(self.blocks)] = kind
            self.blocks[len(self.blocks)] = [[0, total, True]]
        whole, segment, start = min(fits)
        blocks = self.blocks[segment]
        at = next(n for n, block in enumerate(blocks) if block[0] == start)
        blocks[at][2] = False
        rest = whole - size
        if rest >= 512 if kind[1] else rest > MIB:
            blocks[at][1] = size
            blocks.insert(at + 1, [start + size, rest, True])
        return segment, start

    def free(self, segment: int, start: int) -> None:
        merged: list[list[int]] = []
        for block in self.blocks[segment]:
            if block[0] == start:
                block = [block[0], block[1], True]
            if merged and merged[-1][2] and block[2]:
                merged[-1][1] += block[1]
            else:
                merged.append(block)
        self.blocks[segment] = merged


@EXPLORED
@given(STEPS)
def test_addresses_are_those_of_a_plain_allocator(steps):
    allocator, simple = CachingAllocator(), Plain()
    live: list[tuple[Block, tuple[int, int]]] = []
    for what, number, extra in steps:
        if what == "take":
            block, expected = take(allocator, number, extra), simple.take(number, extra)
            offset = block.address - block.segment.address
            assert (block.segment.number, offset) == expected
            live.append((block, expected))
        elif what == "free" and live:
            block, expected = live.pop(number % len(live))
            allocator.free(block)
            simple.free(*expected)


# Schedules


def played(program: Program) -> Verdict | None:
    try:
        return simulate(*program)
    except ScheduleError:
        return None


@settings(RELAXED, max_examples=60)
@given(programs())
def test_a_schedule_asks_for_the_memory_that_it_is_simulated_to_use(program: Program):
    asks_for_what_is_simulated(program)


@pytest.mark.slow
@settings(RELAXED, max_examples=1500)
@given(programs())
def test_many_schedules_ask_for_the_memory_that_they_are_simulated_to_use(program: Program):
    asks_for_what_is_simulated(program)


def asks_for_what_is_simulated(program: Program) -> None:
    verdict = played(program)
    if verdict is None:
        return
    found = requests(program.step, program.schedule, verdict)  # compares the two itself
    times = [request.at_ns for request in found]
    assert times == sorted(times)
    live: set[int] = set()
    leaving: dict[int, int] = {}
    for request in found:
        if isinstance(request, Allocate):
            assert request.size_bytes > 0
            live.add(request.key)
        elif isinstance(request, Free):
            live.remove(request.key)
            if request.after is not None:
                leaving[request.after] = request.key
        else:
            del leaving[request.copy]


@settings(RELAXED, max_examples=25)
@given(programs(), st.booleans())
def test_every_allocator_is_asked_for_the_simulated_peak(program: Program, own_pool):
    verdict = played(program)
    if verdict is None:
        return
    for kind in Kind:
        held = reserve(program.step, program.schedule, verdict, kind, steps=2, own_pool=own_pool)
        assert held.requested_peak_bytes == verdict.peak_bytes
        assert held.reserved_peak_bytes >= verdict.peak_bytes
        assert held.fits
        assert held.reserved_bytes.max(initial=0) <= held.reserved_peak_bytes
        if kind is Kind.IDEAL:
            assert held.reserved_peak_bytes == verdict.peak_bytes
            assert held.fragmentation == 0
        elif held.reserved_peak_bytes:
            assert held.at_peak is not None
            assert held.at_peak.reserved_bytes == held.reserved_peak_bytes


FORWARD, BACKWARD = Phase.FORWARD, Phase.BACKWARD
STEP = TrainingStep.build(
    "pieces",
    [
        Operation("f1", FORWARD, 1000, writes=(Value("a"),)),
        Operation("f2", FORWARD, 1000, (Value("a"),), (Value("b"),)),
        Operation("f3", FORWARD, 1000, (Value("b"),), (Value("c"),), workspace_bytes=12 * MIB),
        Operation("b3", BACKWARD, 1000, (Value("c"), Value("b")), (Value("d"),)),
        Operation("b2", BACKWARD, 90_000, (Value("d"), Value("a"))),
    ],
    [Tensor.of("a", 5 * MIB), Tensor.of("b", 5 * MIB), Tensor.of("c", 5 * MIB),
     Tensor.of("d", 10 * MIB)],
)  # fmt: skip
A, B, C, D = range(4)
SWAPPED = Schedule(
    compute=(0, 1, 2, 3, 4),
    frees=((), (A,), (), (B, C), (A, D)),
    copies_out=(Copy(A, 0),),
    copies_in=(Copy(A, 3),),
)


def swapped() -> Verdict:
    verdict = simulate(STEP, load_machine(), SWAPPED, 200 * MIB)
    assert verdict.fits
    return verdict


def test_a_tensor_that_leaves_is_freed_when_its_copy_completes():
    found = requests(STEP, SWAPPED, swapped())
    out_end = int(swapped().timeline.out_end_ns[0])
    first = next(r for r in found if isinstance(r, Allocate) and r.owner == "a")
    free = next(r for r in found if isinstance(r, Free) and r.key == first.key)
    done = next(r for r in found if isinstance(r, Complete))
    assert (free.at_ns, free.after) == (2000, 0)
    assert (done.at_ns, done.copy) == (out_end, 0)
    again = [r for r in found if isinstance(r, Allocate) and r.owner == "a"][1]
    assert (again.at_ns, again.stream.name) == (int(swapped().timeline.in_start_ns[0]), "H2D")


def test_buffers_of_copies_in_may_have_a_pool_of_their_own():
    shared = reserve(STEP, SWAPPED, swapped())
    own = reserve(STEP, SWAPPED, swapped(), own_pool=True)
    assert own.reserved_peak_bytes == shared.reserved_peak_bytes + 20 * MIB
    assert own.at_peak is not None
    assert [pool.pool for pool in own.at_peak.pools] == [PoolKey(0, False), PoolKey(2, False)]


def test_without_room_the_request_that_was_refused_is_named():
    held = reserve(STEP, SWAPPED, swapped(), capacity_bytes=30 * MIB)
    assert not held.fits
    assert held.refused is not None
    assert (held.refused.owner, held.refused.operation) == ("workspace of f3", "f3")
    assert held.refused.size_bytes == 12 * MIB
    ideal = reserve(STEP, SWAPPED, swapped(), Kind.IDEAL, capacity_bytes=26 * MIB)
    assert ideal.refused is not None
    assert ideal.refused.owner == "workspace of f3"
    assert ideal.refused.requested_bytes == 15 * MIB


def test_a_verdict_of_another_schedule_is_refused():
    kept = Schedule((0, 1, 2, 3, 4), ((), (), (), (B, C), (A, D)))
    with pytest.raises(ValueError, match="other events"):
        requests(STEP, kept, swapped())
    later = replace(SWAPPED, frees=((), (), (A,), (B, C), (A, D)))
    with pytest.raises(ValueError, match="their memory differs"):
        requests(STEP, later, replace(swapped(), timeline=replace(swapped().timeline,
                 out_end_ns=swapped().timeline.out_end_ns + 10)))  # fmt: skip


@pytest.mark.parametrize("kind", [Kind.CACHING, Kind.EXPANDABLE])
def test_planners_keep_reserved_memory_within_the_budget(kind):
    machine = load_machine()
    step = build_step(load_workload("bert-large", layers=2), machine)
    problem = Problem(step, machine, 1)
    problem = problem.with_budget(problem.liveness.ideal_peak_bytes * 7 // 10)
    naive = greedy(problem)
    assert naive.schedule is not None
    verdict = simulate(step, machine, naive.schedule, problem.budget_bytes)
    assert reserve(step, naive.schedule, verdict, kind).reserved_peak_bytes > problem.budget_bytes
    fitted = fit_reserved(problem, {"greedy": greedy}, kind)
    judged = fitted.cell.judged["greedy"]
    assert fitted.reserved is not None
    assert judged.verdict is not None
    assert judged.result.schedule is not None
    again = reserve(step, judged.result.schedule, judged.verdict, kind)
    assert again.reserved_peak_bytes == fitted.reserved.reserved_peak_bytes
    assert again.reserved_peak_bytes <= problem.budget_bytes
    assert judged.capacity_bytes < problem.budget_bytes
    assert fitted.cell.bound.step_ns <= judged.step_ns
    assert fitted.tried[0][0] == problem.budget_bytes


def test_a_plan_that_fits_at_once_is_asked_for_once():
    machine = load_machine()
    step = build_step(load_workload("bert-large", layers=1), machine)
    problem = Problem(step, machine, 10**12)
    fitted = fit_reserved(problem, {"keep-all": HEURISTICS["keep-all"]})
    assert len(fitted.tried) == 1
    assert fitted.cell.judged["keep-all"].step_ns == problem.ideal_step_ns


def test_where_no_plan_stays_within_the_budget_the_least_reserved_is_named():
    problem = Problem(STEP, load_machine(), 27 * MIB)
    fitted = fit_reserved(problem, {"swap-all": HEURISTICS["swap-all"]})
    assert fitted.none_stays_within
    assert fitted.reserved is None
    judged = fitted.cell.judged["swap-all"]
    assert judged.result.schedule is None
    assert str(min(size for _, size in fitted.tried if size)) in judged.result.reason


def test_where_there_is_no_plan_at_all_that_is_the_reason():
    fitted = fit_reserved(Problem(STEP, load_machine(), MIB), {"greedy": greedy})
    assert not fitted.none_stays_within
    assert fitted.cell.proven_infeasible


# Recorded histories


def recorded(steps, first: int) -> Snapshot:
    """A snapshot of the model's own doing, whose history begins at a step."""
    allocator = CachingAllocator()
    live: list[Block] = []
    history: list[SnapshotEvent] = []

    def note(action: Action, address: int, size: int, stream: int) -> None:
        history.append(SnapshotEvent(action, address, size, stream, None, ""))

    starts = [0]
    for what, number, extra in steps:
        if what == "take":
            known = {segment.address for segment in allocator.segments()}
            block = take(allocator, number, extra)
            if block.segment.address not in known:
                note(Action.SEGMENT_ALLOC, block.segment.address, block.segment.size, extra)
            note(Action.ALLOC, block.address, number, extra)
            live.append(block)
        elif what == "free" and live:
            block = live.pop(number % len(live))
            for action in (Action.FREE_REQUESTED, Action.FREE_COMPLETED):
                note(action, block.address, block.requested, block.segment.pool.stream)
            allocator.free(block)
        starts.append(len(history))
    segments = tuple(
        SnapshotSegment(
            0, s.address, s.size, s.pool.stream, s.pool.small, False, (0, 0),
            tuple(
                SnapshotBlock(
                    b.address, b.size, b.requested,
                    State.ACTIVE if b.state is BlockState.USED else State.FREE, "",
                )
                for b in s.blocks()
            ),
        )
        for s in allocator.segments()
    )  # fmt: skip
    return Snapshot("own", segments, (tuple(history[starts[first % len(starts)] :]),), {})


@EXPLORED
@given(STEPS, st.integers(0, 60))
def test_the_state_before_a_history_is_found_by_going_back(steps, first):
    snapshot = recorded(steps, 0)
    whole = replay_history(snapshot)
    assert (whole.start.requested, whole.start.reserved) == (0, 0)
    assert whole.allocated_exact
    assert whole.address_share == 1
    assert whole.segments_agree
    assert whole.end_agrees
    late = replay_history(recorded(steps, first))
    assert late.allocated_exact
    assert late.events <= whole.events
    assert late.recorded == whole.recorded[whole.events - late.events :]


def small_history() -> Snapshot:
    return recorded([("take", 5 * MIB, 0), ("take", 5 * MIB, 0), ("free", 0, False)], 0)


def changed(snapshot: Snapshot, number: int, **fields: object) -> Snapshot:
    events = list(snapshot.history[0])
    events[number] = replace(events[number], **fields)
    return replace(snapshot, history=(tuple(events),))


@pytest.mark.parametrize(
    ("number", "fields", "message"),
    [
        (1, {"size_bytes": 4 * MIB}, r"\[1\]: 4194304 bytes allocated"),
        (1, {"address": 5}, r"\[1\]: no segment holds address 5"),
        (0, {"size_bytes": 4 * MIB}, r"\[0\]: the segment allocated"),
        (4, {"size_bytes": 6 * MIB}, r"\[4\]: 6291456 bytes freed at .* overlap"),
        (3, {"action": Action.SEGMENT_MAP}, r"\[3\]: segment_map is not modelled"),
    ],
)
def test_a_history_that_does_not_lead_to_the_end_is_refused(number, fields, message):
    with pytest.raises(InputError, match=message):
        replay_history(changed(small_history(), number, **fields))


@pytest.mark.parametrize(
    "settings_",
    [
        {"max_split_size": 10**8},
        {"expandable_segments": True},
        {"roundup_power2_divisions": {"1": 4}},
    ],
)
def test_options_that_are_not_modelled_are_refused(settings_):
    with pytest.raises(InputError, match="modelled"):
        replay_history(replace(small_history(), settings=settings_))


def test_segments_given_back_in_the_history_are_followed():
    allocator_history = small_history().history[0]
    base = allocator_history[0].address
    events = [
        *allocator_history,
        SnapshotEvent(Action.FREE_COMPLETED, base + 5 * MIB, 5 * MIB, 0, None, ""),
        SnapshotEvent(Action.SEGMENT_FREE, base, 20 * MIB, 0, None, ""),
    ]
    replayed = replay_history(Snapshot("gone", (), (tuple(events),), {}))
    assert replayed.allocated_exact
    assert replayed.end_agrees
    assert replayed.model[-1].reserved == replayed.recorded[-1].reserved == 0


TRACES = Path(os.environ.get("SLACKSWAP_DATA", "")) / "traces"


@pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
def test_a_recorded_training_step_of_gpt2_medium_is_reproduced():
    (path,) = TRACES.glob("10_*")
    snapshot = read_snapshot(path.read_bytes(), "gpt2-medium")
    replayed = replay_history(snapshot)
    assert replayed.events == 22_332
    assert replayed.allocated_exact
    assert replayed.allocations == 7591
    assert replayed.same_address == replayed.allocations
    assert replayed.segments_recorded == (3738,)
    assert replayed.segments_agree
    assert replayed.end_agrees
    assert replayed.model[-1].reserved == 12_660_506_624

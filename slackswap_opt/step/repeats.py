"""Repeated blocks: the layers of a step, found in its operations and not in their names.

A *repeat* is a stretch of operations of one phase that consists of equal blocks, at least two.
Two operations are alike if they agree in phase, duration, workspace, in whether they may run again
and draw random numbers, and in the sizes of what they read and write, one by one (a write makes a
tensor, or overwrites one in place whatever the version). Corresponding
operations of the blocks are alike, and so is what they read:

* What the stretch itself has written is, from block to block, written one block later.
* What was written before the stretch is for each block the same distance away from what the block
  before reads: none for what all of them share (a mask) or what one operation wrote for each of
  them in turn, one layer back in the backward phase, which walks through the layers in reverse.
* At both ends this cannot hold: the first block reads what came before it where the others read
  what the block before them wrote, and the last one of a backward phase the input of the first
  layer. There it is enough that sizes agree.

The stretches in which operations are alike are the maximal repetitions of a string, whose letters
are the classes of alike operations. To find them all: a repetition of period p covers some multiple
a of p together with a + p, and reaches from there as far to either side as the two agree. There are
n/1 + n/2 + ... = O(n log n) such pairs for n operations, and equal classes of stretches of 1, 2, 4,
... operations (prefix doubling: R. Karp, R. Miller, A. Rosenberg, STOC 1972) tell in O(log n) how
far each agrees; all pairs are compared at once, as arrays. Then the dependencies are read once per
candidate, those that save most operations first, and each operation belongs to one repeat at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.indexed import IndexedStep
from slackswap_opt.step.model import Operation, Phase

Ints = NDArray[np.int64]

_CHUNK = 2**20
"""Pairs that are compared at once."""
_NOWHERE = -1
"""Position of the writer of what no operation writes: parameters and inputs."""


@dataclass(frozen=True, slots=True)
class Repeat:
    """Equal blocks, one after the other.

    Attributes:
        start: the first operation.
        length: operations of a block.
        count: number of blocks, at least two.
    """

    start: int
    length: int
    count: int

    @property
    def end(self) -> int:
        """The operation after the last one."""
        return self.start + self.length * self.count

    @property
    def saved(self) -> int:
        """Operations that are known from the first block."""
        return self.length * (self.count - 1)

    def starts(self) -> range:
        """The first operation of each block, and the one after the last block."""
        return range(self.start, self.end + 1, self.length)


def find_repeats(step: TrainingStep, tolerance: float = 0.0) -> tuple[Repeat, ...]:
    """The repeats of a step, in order; no two overlap.

    Where they compete, the one that saves more operations wins, then the one with shorter blocks.
    Where a stretch is longer than its blocks, these begin where the fewest bytes pass from one to
    the next, as layers do.

    Args:
        step: the step.
        tolerance: for measured steps, durations of operations that agree in all else count as equal
            if they differ by at most this fraction of the longer one, or are joined by others of
            which each differs from the next by no more.
    """
    letters = _letters(step, tolerance)
    reads = _writers(step)
    passing = _passing_bytes(step)
    free = np.ones(len(step.operations), dtype=bool)
    found: list[Repeat] = []
    for start, end, period in sorted(
        repetitions(letters), key=lambda run: (-_saved(*run), run[2], run[0])
    ):
        for low, high in _free_parts(free, start, end):
            for first, last in _matching(reads, low, high, period):
                repeat = _placed(passing, first, last, period)
                found.append(repeat)
                free[repeat.start : repeat.end] = False
    return tuple(sorted(found, key=lambda repeat: repeat.start))


def layers_of(step: TrainingStep, repeats: Sequence[Repeat] | None = None) -> tuple[str, ...]:
    """A label per operation: the block of its repeat, or the stretch between two of them.

    Args:
        step: the step.
        repeats: what `find_repeats` gave, if it is known already.
    """
    found = find_repeats(step) if repeats is None else repeats
    labels = [""] * len(step.operations)
    before = 0
    for number, repeat in enumerate([*found, Repeat(len(labels), 1, 0)]):
        labels[before : repeat.start] = [f"between.{number}"] * (repeat.start - before)
        for block, start in enumerate(repeat.starts()[:-1]):
            labels[start : start + repeat.length] = [f"repeat.{number}.{block}"] * repeat.length
        before = repeat.end
    return tuple(labels)


# The string


def repetitions(letters: Sequence[int]) -> list[tuple[int, int, int]]:
    """Every maximal repetition of a string: start, end and smallest period.

    The part from start to end repeats with that period at least once in full, and neither end can
    be moved outwards.
    """
    count = len(letters)
    if count < 2:
        return []
    ranks = _ranks(np.asarray(letters, dtype=np.int64))
    runs = [_runs(ranks, left, period, count) for left, period in _pairs(count)]
    every = np.concatenate(runs)
    every = every[np.lexsort((every[:, 2], every[:, 1], every[:, 0]))]
    new = np.ones(len(every), dtype=bool)
    new[1:] = (every[1:, :2] != every[:-1, :2]).any(axis=1)
    return [(int(a), int(b), int(p)) for a, b, p in every[new]]


def _pairs(count: int) -> Iterator[tuple[Ints, Ints]]:
    """Multiples a of each period p with a + p inside of the string: arrays of a and of p."""
    lefts: list[Ints] = []
    periods: list[Ints] = []
    size = 0
    for period in range(1, count // 2 + 1):
        left = np.arange(0, count - period, period, dtype=np.int64)
        lefts.append(left)
        periods.append(np.full(len(left), period, dtype=np.int64))
        size += len(left)
        if size >= _CHUNK or period == count // 2:
            yield np.concatenate(lefts), np.concatenate(periods)
            lefts, periods, size = [], [], 0


def _ranks(letters: Ints) -> list[Ints]:
    """By k, the class of the stretch of 2**k letters that begins at each position."""
    ranks = [np.unique(letters, return_inverse=True)[1].astype(np.int64)]
    width = 1
    while 2 * width <= len(letters):
        short = ranks[-1]
        both = short[:-width] * len(letters) + short[width:]
        ranks.append(np.unique(both, return_inverse=True)[1].astype(np.int64))
        width *= 2
    return ranks


def _runs(ranks: Sequence[Ints], left: Ints, period: Ints, count: int) -> Ints:
    """(n, 3) start, end and period of the repetitions around pairs of positions."""
    letters = ranks[0]
    equal = letters[left] == letters[left + period]
    equal[1:] |= letters[left[1:] - 1] == letters[left[1:] + period[1:] - 1]
    left, period = left[equal], period[equal]
    right = left + period
    ahead, behind = np.zeros_like(left), np.zeros_like(left)
    for k in reversed(range(len(ranks))):
        width, rank = 2**k, ranks[k]
        inside = np.flatnonzero(right + ahead + width <= count)
        at = left[inside] + ahead[inside]
        ahead[inside] += width * (rank[at] == rank[at + period[inside]])
        inside = np.flatnonzero(left - behind - width >= 0)
        at = left[inside] - behind[inside] - width
        behind[inside] += width * (rank[at] == rank[at + period[inside]])
    whole = ahead + behind >= period
    return np.stack([left - behind, right + ahead, period], axis=1)[whole]


def _saved(start: int, end: int, period: int) -> int:
    return ((end - start) // period - 1) * period


# Operations and what they read


def _letters(step: TrainingStep, tolerance: float) -> list[int]:
    """A number per operation, the same for operations that are alike."""
    tensors = {tensor.name: tensor for tensor in step.tensors}

    def of(name: str) -> tuple[int, int, bool, int]:
        tensor = tensors[name]
        return tensor.size_bytes, tensor.transfer_bytes, tensor.static, tensor.samples

    kinds: dict[object, list[int]] = defaultdict(list)
    for position, op in enumerate(step.operations):
        key = (
            op.phase,
            op.workspace_bytes,
            op.recomputable,
            op.random,
            op.per_sample,
            tuple(of(v.tensor) for v in op.reads),
            tuple((*of(v.tensor), v.version > 0) for v in op.writes),
        )
        kinds[key].append(position)
    letters = [0] * len(step.operations)
    letter = 0
    for positions in kinds.values():
        positions.sort(key=lambda position: step.operations[position].duration_ns)
        before = step.operations[positions[0]].duration_ns
        for position in positions:
            duration = step.operations[position].duration_ns
            letter += duration - before > tolerance * duration
            letters[position] = letter
            before = duration
        letter += 1
    return letters


def _writers(step: TrainingStep) -> list[tuple[tuple[int, int], ...]]:
    """Per operation and value that it reads: the position of its writer, and which output it is."""
    made = {
        value: (position, number)
        for position, op in enumerate(step.operations)
        for number, value in enumerate(op.writes)
    }
    nowhere = (_NOWHERE, 0)
    return [tuple(made.get(value, nowhere) for value in op.reads) for op in step.operations]


def _matching(
    reads: Sequence[tuple[tuple[int, int], ...]], low: int, high: int, period: int
) -> Iterator[tuple[int, int]]:
    """The parts of a stretch of alike operations in which what they read corresponds, too."""
    start = low
    while start + 2 * period <= high:
        end, again = _agreement(reads, start, high, period)
        if end - start >= 2 * period:
            yield start, end
            start = end
        else:
            start = again


def _agreement(
    reads: Sequence[tuple[tuple[int, int], ...]], start: int, high: int, period: int
) -> tuple[int, int]:
    """How far a repeat that begins at `start` reaches, and where the next may begin if it is none.

    What was written before the stretch may break the rule in one block, which is then the last.
    """
    end = high
    again = high
    for op in range(start, high - period):
        if op + period >= end:
            break
        if not _follows(reads[op], reads[op + period], start, period):
            return op + period, op + 1
        older = reads[op - period] if op - period >= start else None
        if (
            end == high
            and older is not None
            and not _steady(older, reads[op], reads[op + period], start)
        ):
            end = min(high, op + 2 * period)
            again = op + 1
    return end, min(again, end)


def _follows(
    first: Sequence[tuple[int, int]],
    second: Sequence[tuple[int, int]],
    start: int,
    period: int,
) -> bool:
    """Whether an operation reads what its counterpart one block before does, one block later."""
    for (writer, output), (later, later_output) in zip(first, second, strict=True):
        if (writer == _NOWHERE) != (later == _NOWHERE):
            return False
        if later - writer == period and output == later_output:
            continue
        if writer >= start:
            return False
    return True


def _steady(
    first: Sequence[tuple[int, int]],
    second: Sequence[tuple[int, int]],
    third: Sequence[tuple[int, int]],
    start: int,
) -> bool:
    """Whether what was written before the stretch is read at one distance from block to block."""
    return all(
        a >= start or c >= start or (b - a == c - b and y - x == z - y)
        for (a, x), (b, y), (c, z) in zip(first, second, third, strict=True)
    )


# Where blocks begin


def _free_parts(free: NDArray[np.bool_], start: int, end: int) -> list[tuple[int, int]]:
    """The parts of a stretch that belong to no repeat yet."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], free[start:end], [False]))))
    return [(start + int(a), start + int(b)) for a, b in edges.reshape(-1, 2)]


def _placed(passing: Ints, start: int, end: int, period: int) -> Repeat:
    """As many blocks as fit, placed where the fewest bytes pass from one to the next."""
    count, spare = divmod(end - start, period)

    def cost(shift: int) -> int:
        return int(passing[start + shift : start + shift + count * period + 1 : period].sum())

    shift = min(range(spare + 1), key=lambda s: (cost(s), s))
    return Repeat(start + shift, period, count)


def _passing_bytes(step: TrainingStep) -> Ints:
    """(N + 1,) bytes that go from before each operation to it or a later one of the same phase."""
    index = step.index
    change = np.zeros(index.operations + 1, dtype=np.int64)
    for positions in _phases(step.operations):
        last: dict[int, int] = {}
        first: dict[int, int] = {}
        for op in positions:
            for tensor in _written(index, op):
                first.setdefault(tensor, op)
            for tensor in index.touches[op]:
                last[tensor] = op
        for tensor, op in first.items():
            change[op + 1] += index.size_bytes[tensor]
            change[last[tensor] + 1] -= index.size_bytes[tensor]
    return np.cumsum(change)


def _phases(ops: Sequence[Operation]) -> list[list[int]]:
    return [[n for n, op in enumerate(ops) if op.phase is phase] for phase in Phase]


def _written(index: IndexedStep, op: int) -> list[int]:
    return [tensor for tensor, _ in index.writes[op]]

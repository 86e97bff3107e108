"""The compute side of a schedule: which events run in which order, and what must be fetched."""

from __future__ import annotations

from bisect import bisect_right
from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slackswap_opt.errors import SlackSwapError
from slackswap_opt.plan.actions import Action, Plan
from slackswap_opt.plan.blocks import Block
from slackswap_opt.plan.problem import Problem
from slackswap_opt.plan.schedule import Schedule


class UnbuildablePlanError(SlackSwapError):
    """The plan drops a tensor that is needed again and that no block can rebuild."""


@dataclass(frozen=True, slots=True)
class Rerun:
    """One re-execution of a block.

    Attributes:
        block: what runs again.
        first: its first event.
        last: its last event.
    """

    block: Block
    first: int
    last: int


@dataclass(frozen=True)
class Program:
    """Compute events with the re-executions among them, and the copies in that they rely on.

    Blocks may run again any number of times, and a tensor may be fetched any number of times.
    What is not said follows: a tensor stays from each time that it is written, rebuilt or
    fetched to its last need before the next such time.

    Attributes:
        compute: operation of each event.
        original: event of each operation's first execution.
        reruns: in order of events.
        fetches: tensor and the event by which it must be back, in order of events.
    """

    compute: tuple[int, ...]
    original: tuple[int, ...]
    reruns: tuple[Rerun, ...]
    fetches: tuple[tuple[int, int], ...]
    _touched: dict[int, list[int]] = field(default_factory=dict, repr=False, compare=False)

    def touched(self, problem: Problem) -> Mapping[int, list[int]]:
        """By tensor, the events that read or write it, ascending.

        Args:
            problem: the one that this program is for: the answer is kept.
        """
        if self._touched:
            return self._touched
        touches = problem.step.index.touches
        found: defaultdict[int, list[int]] = defaultdict(list)
        for event, op in enumerate(self.compute):
            for tensor in touches[op]:
                found[tensor].append(event)
        self._touched.update(found)
        return self._touched

    def with_fetches(self, fetches: Iterable[tuple[int, int]]) -> Program:
        """The same events with other fetches, in any order."""
        in_order = sorted(fetches, key=lambda fetch: (fetch[1], fetch[0]))
        return replace(self, fetches=tuple(in_order))


class _Writer:
    """Appends operations and blocks."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.compute: list[int] = []
        self.original: list[int] = []
        self.reruns: list[Rerun] = []

    def run(self, op: int) -> None:
        self.original.append(len(self.compute))
        self.compute.append(op)

    def run_again(self, number: int) -> None:
        block = self.problem.blocks.blocks[number]
        first = len(self.compute)
        self.compute.extend(block.operations)
        self.reruns.append(Rerun(block, first, len(self.compute) - 1))

    def program(self) -> Program:
        return Program(tuple(self.compute), tuple(self.original), tuple(self.reruns), ())


def program_of(problem: Problem, plan: Plan) -> Program:
    """A plan's program: each block that is needed again runs once, just before its first need.

    Raises:
        UnbuildablePlanError: if a dropped tensor is needed and cannot be rebuilt.
    """
    index, blocks, live = problem.step.index, problem.blocks, problem.liveness
    evictable = set(blocks.evictable)
    gone = {t for t in blocks.evictable if plan.of(t) in (Action.RECOMPUTE, Action.DROP)}
    last_forward: list[int] = live.last_forward.tolist()
    writer = _Writer(problem)
    rebuilt: set[int] = set()

    def rebuild(tensors: Iterable[int]) -> None:
        stack = [(t, False) for t in reversed(list(tensors))]
        while stack:
            tensor, inputs_ready = stack.pop()
            if tensor not in gone or tensor in rebuilt:
                continue
            number = blocks.block_of[tensor]
            if number < 0:
                raise UnbuildablePlanError(
                    f"{problem.step.tensors[tensor].name!r} is dropped, needed again, "
                    "and cannot be rebuilt"
                )
            block = blocks.blocks[number]
            if not inputs_ready:
                stack.append((tensor, True))
                stack.extend((t, False) for t in reversed(block.inputs))
                continue
            writer.run_again(number)
            rebuilt.update(block.outputs)

    for op in range(index.operations):
        rebuild(t for t, _ in index.reads[op] if t in evictable and op > last_forward[t])
        writer.run(op)
    program = writer.program()
    touched = program.touched(problem)
    fetches = []
    for tensor in blocks.evictable:
        if plan.of(tensor) is Action.SWAP:
            done = program.original[int(live.last_forward[tensor])]
            wanted = needs_after(problem, program, touched, tensor, done)
            if wanted:
                fetches.append((tensor, wanted[0]))
    return program.with_fetches(fetches)


def program_with(
    problem: Problem,
    reruns: Mapping[int, Iterable[int]],
    fetches: Iterable[tuple[int, int]] = (),
) -> Program:
    """A program with given re-executions and fetches.

    Args:
        problem: the problem.
        reruns: by operation, the numbers of the blocks that run again just before it, in order
            (see `in_order`).
        fetches: pairs of an operation and a tensor that is to be back for the first of what runs
            before the operation that reads it, or for the operation itself. Those that nothing
            needs before the tensor is fetched or rebuilt again are left out.
    """
    index = problem.step.index
    writer = _Writer(problem)
    begins: list[int] = []
    for op in range(index.operations):
        begins.append(len(writer.compute))
        for number in reruns.get(op, ()):
            writer.run_again(number)
        writer.run(op)
    program = writer.program()
    touched = program.touched(problem)

    def needed(op: int, tensor: int) -> int:
        own, end = set(index.writers[tensor]), writer.original[op]
        events = (e for e in touched[tensor] if begins[op] <= e <= end)
        return next((e for e in events if writer.compute[e] not in own), end)

    asked = [(tensor, needed(op, tensor)) for op, tensor in fetches]
    return program.with_fetches(_without_idle(problem, program, asked))


def _without_idle(
    problem: Problem, program: Program, fetches: Iterable[tuple[int, int]]
) -> list[tuple[int, int]]:
    """The fetches after which something reads the tensor before it is provided again."""
    touched = program.touched(problem)
    by_tensor: dict[int, set[int]] = defaultdict(set)
    for tensor, event in fetches:
        by_tensor[tensor].add(event)
    kept = []
    for tensor, events in by_tensor.items():
        reruns = [rerun for rerun in program.reruns if tensor in rerun.block.outputs]
        again = sorted([*events, *(rerun.first for rerun in reruns), len(program.compute)])
        for event in events:
            following = again[bisect_right(again, event)]
            reads = needs_after(problem, program, touched, tensor, event - 1)
            rebuilt = any(rerun.first <= event <= rerun.last for rerun in reruns)
            if not rebuilt and reads and reads[0] < following:
                kept.append((tensor, event))
    return kept


def in_order(problem: Problem, numbers: Collection[int]) -> list[int]:
    """Blocks such that each comes after those that rebuild its inputs."""
    blocks = problem.blocks
    ordered: dict[int, None] = {}
    for number in sorted(numbers):
        stack = [(number, False)]
        while stack:
            n, ready = stack.pop()
            if ready:
                ordered.setdefault(n)
            elif n not in ordered:
                makers = {blocks.block_of[t] for t in blocks.blocks[n].inputs} - {n}
                stack.append((n, True))
                stack.extend((m, False) for m in sorted(makers.intersection(numbers), reverse=True))
    return list(ordered)


def needs_after(
    problem: Problem,
    program: Program,
    touched: Mapping[int, list[int]],
    tensor: int,
    event: int,
) -> list[int]:
    """Events after one that read the tensor (not those that merely rebuild it)."""
    own = set(problem.step.index.writers[tensor])
    return [e for e in touched[tensor] if e > event and program.compute[e] not in own]


def program_in(problem: Problem, schedule: Schedule) -> Program | None:
    """The program that a schedule carries out; None if it re-executes parts of blocks.

    A fetch counts for the first event after its trigger that touches the tensor.
    """
    index, blocks = problem.step.index, problem.blocks
    number_of = {op: n for n, block in enumerate(blocks.blocks) for op in block.operations}
    writer = _Writer(problem)
    compute, event = schedule.compute, 0
    while event < len(compute):
        op = compute[event]
        if op == len(writer.original):
            writer.run(op)
            event += 1
            continue
        number = number_of.get(op, -1)
        operations = blocks.blocks[number].operations if number >= 0 else ()
        if not operations or compute[event : event + len(operations)] != operations:
            return None
        writer.run_again(number)
        event += len(operations)
    program = writer.program()
    touched = program.touched(problem)
    fetches = []
    for copy in schedule.copies_in:
        own = set(index.writers[copy.tensor])
        events = (e for e in touched[copy.tensor] if e > copy.after and compute[e] not in own)
        need = next(events, None)
        if need is not None:
            fetches.append((copy.tensor, need))
    return program.with_fetches(fetches)

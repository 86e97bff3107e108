"""Evict when memory is full, rebuild on demand: feasible where one action per tensor is not.

The idea of dynamic rematerialization (Kirisame et al., ICLR 2021), with the rest of the step
known: of what is on the device and can be rebuilt, the tensor goes that is cheap to rebuild,
large, and needed late. Operations run again as often as it takes, in the forward phase too.
"""

from __future__ import annotations

import random
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace

from slackswap_opt.plan import PlanResult, Problem, Program, Status, program_with
from slackswap_opt.planners.realize import realize_program


@dataclass(frozen=True)
class Taste:
    """How evictions are chosen: the lowest  w_t cost_t^a / (bytes_t distance_t^b)  goes.

    Attributes:
        cost: a, the exponent of the time to rebuild.
        distance: b, the exponent of the operations to the next need.
        weights: w_t by tensor; 1 where not given.
    """

    cost: float = 1.0
    distance: float = 1.0
    weights: Mapping[int, float] = field(default_factory=dict)


TASTES = tuple(Taste(1.0, b) for b in (0.5, 1.0, 0.25, 0.75, 0.0, 2.0))
"""What is tried."""
QUICK = 2
"""How many of them the planner tries."""
FACTORS = (0.1, 0.3, 0.6, 1.6, 3.0, 10.0)
"""Changes of a weight."""
LENGTHS = (1, 1, 2, 4, 8, 20)
"""Consecutive tensors whose weights change together."""


class _FullError(Exception):
    """Nothing more can be evicted."""


def on_demand(problem: Problem) -> PlanResult:
    """The best of a few tastes; nothing is swapped."""
    began = time.perf_counter()
    found = best_taste(problem, TASTES[:QUICK])
    if found is None:
        reason = "evicting what can be rebuilt did not make room for every operation"
        result = PlanResult("on-demand", Status.INFEASIBLE, reason=reason)
    else:
        result = realize_program(problem, found[1]).result("on-demand")
    return replace(result, planning_s=time.perf_counter() - began)


def best_taste(problem: Problem, tastes: Iterable[Taste]) -> tuple[Taste, Program] | None:
    """The taste whose program is the fastest, with its program; None if none fits."""
    found = [(taste, run) for taste in tastes if (run := run_on_demand(problem, taste))]
    return min(found, key=lambda pair: rerun_ns(pair[1]), default=None)


def refined(
    problem: Problem, taste: Taste, program: Program, go_on: Callable[[int], bool], seed: int = 0
) -> Program:
    """Change weights of a few tensors at a time, and keep what makes the program faster.

    Args:
        problem: the problem.
        taste: where to start.
        program: its program.
        go_on: asked before each trial, with its number.
        seed: of the choice of changes.
    """
    chance = random.Random(seed)
    tensors = problem.blocks.evictable
    trial = 0
    while go_on(trial):
        trial += 1
        begin, length = chance.randrange(len(tensors)), chance.choice(LENGTHS)
        weights = dict(taste.weights)
        for t in tensors[begin : begin + length]:
            weights[t] = weights.get(t, 1.0) * chance.choice(FACTORS)
        changed = replace(taste, weights=weights)
        candidate = run_on_demand(problem, changed)
        if candidate is not None and rerun_ns(candidate) <= rerun_ns(program):
            taste, program = changed, candidate
    return program


def rerun_ns(program: Program) -> int:
    """Time of all re-executions."""
    return sum(rerun.block.duration_ns for rerun in program.reruns)


def run_on_demand(problem: Problem, taste: Taste) -> Program | None:
    """The program of one run; None where memory runs out whatever is evicted."""
    run = _Run(problem, taste)
    try:
        for op in range(problem.step.index.operations):
            run.step(op)
    except _FullError:
        return None
    return program_with(problem, run.reruns)


class _Run:
    """One run: what is on the device, and what has run again so far."""

    def __init__(self, problem: Problem, taste: Taste) -> None:
        self.problem, self.taste = problem, taste
        index, live = problem.step.index, problem.liveness
        self.index, self.live = index, live
        self.blocks, self.block_of = problem.blocks.blocks, problem.blocks.block_of
        self.size: list[int] = index.size_bytes.tolist()
        self.evictable = {
            t for t in problem.blocks.evictable if self.block_of[t] >= 0 and self.size[t] > 0
        }
        self.later = set(problem.blocks.evictable)
        self.readers: dict[int, list[int]] = defaultdict(list)
        for n, block in enumerate(self.blocks):
            for t in block.inputs:
                self.readers[t].append(n)
        self.here: set[int] = set()
        self.used = 0
        self.now = 0
        self.reruns: dict[int, list[int]] = defaultdict(list)

    def step(self, op: int) -> None:
        """Run one operation of the step."""
        self.now = op
        reads = [t for t, _ in self.index.reads[op]]
        fresh = [t for t, version in self.index.writes[op] if version == 0]
        held = {*reads, *(t for t, _ in self.index.writes[op])}
        self.rebuild([t for t in reads if t in self.later], held)
        self.make_room(sum(self.size[t] for t in fresh) + int(self.index.workspace_bytes[op]), held)
        self.add(fresh)
        for t in held:
            if self.live.last_access[t] <= op and t not in self.evictable:
                self.drop(t)

    def rebuild(self, wanted: Iterable[int], held: Collection[int]) -> None:
        """Bring tensors back, and before them what their blocks read."""
        for tensor in wanted:
            if tensor not in self.here:
                self.run_again(self.block_of[tensor], set(held))

    def run_again(self, first: int, held: set[int]) -> None:
        """Run a block again, and before it those that rebuild its inputs."""
        stack = [(first, frozenset(held))]
        while stack:
            number, kept = stack[-1]
            if number < 0 or len(stack) > len(self.blocks):
                raise _FullError
            block = self.blocks[number]
            missing = next((t for t in block.inputs if t not in self.here), None)
            if missing is not None:
                stack.append((self.block_of[missing], kept | set(block.inputs)))
                continue
            stack.pop()
            kept = kept | set(block.inputs) | set(block.outputs)
            new = sum(self.size[t] for t in block.outputs)
            self.make_room(new + block.workspace_bytes, kept)
            self.reruns[self.now].append(number)
            self.add(block.outputs)

    def add(self, tensors: Iterable[int]) -> None:
        for t in tensors:
            if t not in self.here:
                self.here.add(t)
                self.used += self.size[t]

    def drop(self, tensor: int) -> None:
        if tensor in self.here:
            self.here.remove(tensor)
            self.used -= self.size[tensor]

    def make_room(self, more: int, held: Collection[int]) -> None:
        """Evict until so many bytes fit."""
        if self.used + more <= self.problem.budget_bytes:
            return
        needed, costs = self._next_needs(), dict[int, int]()
        candidates = sorted(t for t in self.here & self.evictable if t not in held)
        for t in candidates:
            if needed[t] == self.index.operations:
                self.drop(t)
        candidates = [t for t in candidates if t in self.here]
        while self.used + more > self.problem.budget_bytes:
            if not candidates:
                raise _FullError
            victim = min(candidates, key=lambda t: self._score(t, needed[t], costs))
            candidates.remove(victim)
            self.drop(victim)
            self._raise_costs(victim, costs)
            self._hurry_inputs(victim, needed)

    def _next_needs(self) -> dict[int, int]:
        """By tensor, the next operation that needs it, or a tensor that is rebuilt from it.

        The number of operations where none does.
        """
        never = self.index.operations
        needed: dict[int, int] = {}
        for t in self.evictable:
            readers = self.index.readers[t]
            position = bisect_left(readers, self.now)
            needed[t] = readers[position] if position < len(readers) else never
        for t in reversed(self.problem.blocks.evictable):
            if t in self.evictable and t not in self.here and self.live.last_write[t] < self.now:
                self._hurry_inputs(t, needed)
        return needed

    def _hurry_inputs(self, tensor: int, needed: dict[int, int]) -> None:
        """What rebuilds a tensor that is not here is needed when the tensor is."""
        stack = [tensor]
        while stack:
            t = stack.pop()
            for u in self.blocks[self.block_of[t]].inputs:
                if u in needed and needed[u] > needed[t]:
                    needed[u] = needed[t]
                    if u not in self.here:
                        stack.append(u)

    def _score(self, tensor: int, needed: int, costs: dict[int, int]) -> float:
        taste = self.taste
        gain = self.size[tensor] * float(max(1, needed - self.now)) ** taste.distance
        weight = taste.weights.get(tensor, 1.0)
        return float(weight * self._cost(tensor, costs) ** taste.cost / gain)

    def _cost(self, tensor: int, costs: dict[int, int]) -> int:
        """Time to rebuild a tensor from what is here, in nanoseconds."""
        stack = [tensor]
        while stack:
            t = stack[-1]
            if t in costs:
                stack.pop()
                continue
            block = self.blocks[self.block_of[t]]
            missing = [u for u in block.inputs if u not in self.here and self.block_of[u] >= 0]
            unknown = [u for u in missing if u not in costs]
            if unknown:
                stack.extend(unknown)
                continue
            costs[t] = max(1, block.duration_ns) + sum(costs[u] for u in missing)
            stack.pop()
        return costs[tensor]

    def _raise_costs(self, gone: int, costs: dict[int, int]) -> None:
        """Forget the costs of what is rebuilt from a tensor that is not here any more."""
        stack = [gone]
        while stack:
            for n in self.readers[stack.pop()]:
                dearer = [t for t in self.blocks[n].outputs if costs.pop(t, None) is not None]
                stack.extend(t for t in dearer if t not in self.here)

"""The state of an ILP search, and how a model with part of its decisions fixed is solved."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cached_property

from slackswap_opt.formulation._pulp import Answer, Limits, Outcome, solve
from slackswap_opt.formulation.bound import NODES as NODES_OF_PROOF
from slackswap_opt.formulation.bound import Bound, Prover
from slackswap_opt.formulation.linear import LinearModel, restrict
from slackswap_opt.plan import Plan, PlanResult, Problem, Program, Status
from slackswap_opt.planners.eviction import Taste
from slackswap_opt.planners.realize import Realized, realize, realize_program

SOLVE_S = 20.0
"""Longest single solve; node limits end most of them long before, whatever the clock says."""
NODES = 300
"""Branch-and-bound nodes per solve, a limit that does not depend on the clock."""
INTEGRAL = 1e-6
"""What counts as whole in a relaxation."""
STRETCHES = 4
STRETCH = 12
"""A neighbourhood opens this many stretches of this many tensors."""
PATIENCE = 4
"""Neighbourhoods without improvement before the search goes on to another model."""
LESSONS = 12
"""Tightenings per model."""
KEEP_ALL = Plan({})
WIDE = 0.01
"""Certified gap from which on eviction on demand with copies may lead somewhere."""


@dataclass(frozen=True)
class IlpOptions:
    """How the ILP planner searches.

    Attributes:
        gap: stop once (simulated step - bound) / simulated step is at most this.
        seconds: wall-clock limit for the whole search.
        solver: "cbc" or "highs".
        bound: the problem's bound, if it is known already.
        starts: results of other planners for this problem, never to be worse than; if there are
            none, the heuristics are run.
    """

    gap: float = 0.001
    seconds: float = 60.0
    solver: str = "cbc"
    bound: Bound | None = None
    starts: tuple[PlanResult, ...] = ()


@dataclass
class Search:
    """The best schedule so far and what is known of the search.

    Attributes:
        problem: what is planned.
        options: when to stop.
        bound: the proven lower limit; `prove` makes it better.
        deadline: when the time is over, on the clock of `time.perf_counter`.
        best: the best result so far.
        by_solver: whether the best one came from a model.
        solver: name and version of the solver behind the bound or the last model.
        time_limited: whether the clock has ended anything.
        failures: the solver's complaints.
        remark: what a model proves of the best schedule.
        taste: how to evict on demand with copies, as far as that is known;
        taste_ns: and the step that this leads to.
    """

    problem: Problem
    options: IlpOptions
    bound: Bound
    deadline: float
    best: PlanResult | None = None
    by_solver: bool = False
    solver: str | None = None
    time_limited: bool = False
    failures: list[str] = field(default_factory=list)
    remark: str = ""
    taste: Taste | None = None
    taste_ns: int | None = None

    @cached_property
    def decisions(self) -> list[int]:
        """Tensors about which there is something to decide."""
        live, size = self.problem.liveness, self.problem.step.index.size_bytes
        return [t for t in self.problem.blocks.evictable if live.saved[t] and size[t] > 0]

    def start(self, results: Sequence[PlanResult]) -> None:
        """Take the best of what other planners found."""
        self.judge(KEEP_ALL, by_solver=False)
        for result in results:
            if result.schedule is not None:
                self._take(result)

    def take(self, result: PlanResult) -> None:
        """Take a model's schedule, which the referee has accepted, if it is the best."""
        if self._take(result):
            self.by_solver = True

    def judge(self, plan: Plan, *, by_solver: bool = True) -> Realized | None:
        """Lower and simulate a plan, and take it if it is the best."""
        realized = realize(self.problem, plan)
        if realized is not None:
            self._judged(realized, by_solver=by_solver)
        return realized

    def judge_program(self, program: Program, *, by_solver: bool = True) -> Realized:
        """The same for a program."""
        realized = realize_program(self.problem, program)
        self._judged(realized, by_solver=by_solver)
        return realized

    def _judged(self, realized: Realized, *, by_solver: bool) -> None:
        planner = "ilp" if by_solver or realized.plan == KEEP_ALL else "eviction on demand"
        if realized.verdict.fits and self._take(realized.result(planner)):
            self.by_solver = by_solver

    def _take(self, result: PlanResult) -> bool:
        assert result.step_ns is not None
        if self.best_ns is None or result.step_ns < self.best_ns:
            self.best, self.remark = result, ""
            return True
        return False

    @property
    def best_ns(self) -> int | None:
        """Step time of the best schedule."""
        return None if self.best is None else self.best.step_ns

    @property
    def gap(self) -> float:
        """Certified gap of the best schedule; 1 while there is none."""
        if self.best_ns is None:
            return 1.0
        return (self.best_ns - self.bound.step_ns) / max(1, self.best_ns)

    @property
    def tolerance_ns(self) -> int:
        """A tenth of the gap asked for: to what models are solved, and taken at their word."""
        return int(self.options.gap * self.problem.ideal_step_ns / 10)

    def wide(self) -> bool:
        """Whether plans that run nothing more than twice seem not to be enough."""
        return self.problem.swaps and self.gap > WIDE

    def repeats(self) -> bool:
        """Whether the best schedule runs an operation more than twice."""
        return (
            self.best is not None
            and self.best.schedule is not None
            and (max(Counter(self.best.schedule.compute).values()) > 2)
        )

    def done(self) -> bool:
        """Whether the gap is reached or the time is over."""
        if self.gap <= self.options.gap:
            return True
        if self.seconds_left() <= 0:
            self.time_limited = True
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        """Until the deadline; negative after it."""
        return self.deadline - time.perf_counter()

    @contextmanager
    def share(self, part: float) -> Iterator[None]:
        """Let what is inside take at most this part of the time that is left."""
        whole = self.deadline
        self.deadline = time.perf_counter() + part * max(0.0, self.seconds_left())
        try:
            yield
        finally:
            self.deadline = whole

    def prove(self, nodes: int = NODES_OF_PROOF) -> None:
        """Better the bound until the best schedule is near enough to it, or time is over.

        Args:
            nodes: relaxations to solve at most, earlier ones included.
        """
        if self.best_ns is None or self.done():
            return
        enough = self.best_ns - int(self.options.gap * self.best_ns)
        self.bound = self._prover.run(enough, self.seconds_left(), nodes)
        self.time_limited |= self.bound.timed_out
        self.failures += self._prover.complaints
        self._prover.complaints.clear()

    @cached_property
    def _prover(self) -> Prover:
        return Prover(self.problem, self.bound, self.options.solver)

    def relax(self, model: LinearModel) -> Answer:
        """Solve the relaxation of a model."""
        return self._solve(model, Limits(max(0.5, self.seconds_left())), relax=True)

    def decide(
        self,
        model: LinearModel,
        nodes: int,
        start: Sequence[float] | None = None,
        longest_s: float = SOLVE_S,
    ) -> Answer:
        """Solve a model to a tenth of the gap asked for, from decisions that are known to work."""
        seconds = max(0.5, min(longest_s, self.seconds_left()))
        limits = Limits(seconds, self.tolerance_ns, nodes)
        return self._solve(model, limits, start)

    def _solve(
        self,
        model: LinearModel,
        limits: Limits,
        start: Sequence[float] | None = None,
        *,
        relax: bool = False,
    ) -> Answer:
        answer = solve(model, limits, self.options.solver, start, relax=relax)
        self.solver = answer.solver
        self.time_limited |= answer.timed_out
        if answer.outcome is Outcome.FAILED:
            self.failures.append(answer.note)
        return answer

    def result(self, seconds: float) -> PlanResult:
        """What the search comes to."""
        if self.best is None:
            reason = "no schedule that fits was found; that none exists is not proven"
            return PlanResult(
                "ilp", Status.INFEASIBLE, reason=reason, solver=self.solver, planning_s=seconds,
                time_limited=self.time_limited, proven_ns=self.bound.step_ns,
            )  # fmt: skip
        within = self.gap <= self.options.gap
        if within:
            status, reason = Status.OPTIMAL, "certified within the gap asked for"
        elif self.failures and not self.by_solver:
            status, reason = Status.FALLBACK, f"the solver failed ({self.failures[0]})"
        elif not self.by_solver and self.time_limited:
            status, reason = Status.FALLBACK, "the ILP found nothing better in the time given"
        else:
            status, reason = Status.FEASIBLE, self.remark or "the best schedule found"
        if not self.by_solver and self.best.planner != "ilp":
            reason += f"; it is the schedule of {self.best.planner}"
        return PlanResult(
            "ilp", status, self.best.schedule, self.best.step_ns, self.best.plan, reason,
            self.solver, seconds, self.time_limited, self.bound.step_ns,
        )  # fmt: skip


def round_relaxation(
    search: Search,
    model: LinearModel,
    choices: Iterable[int],
    start: Mapping[int, int] | None = None,
) -> list[float] | None:
    """Fix the choices that the relaxation leaves integral, and decide the rest.

    Where that is impossible, everything is decided at once, starting from known decisions.
    """
    relaxed = search.relax(model).values
    if relaxed is None:
        return None
    whole = {x: round(relaxed[x]) for x in choices}
    fixed = {x: value for x, value in whole.items() if abs(relaxed[x] - value) < INTEGRAL}
    return complete(search, model, fixed) or complete(search, model, {}, start)


def stretches(tensors: Sequence[int], chance: random.Random) -> set[int]:
    """A few stretches of tensors in order of production."""
    opened: set[int] = set()
    for _ in range(STRETCHES):
        begin = chance.randrange(len(tensors))
        opened.update(tensors[begin : begin + STRETCH])
    return opened


def complete(
    search: Search,
    model: LinearModel,
    fixed: Mapping[int, int],
    start: Mapping[int, int] | None = None,
    nodes: int = NODES,
    longest_s: float = SOLVE_S,
) -> list[float] | None:
    """Solve a model with some variables fixed, starting from known decisions if there are any.

    Returns one value per variable of the whole model, None if there is no solution.
    """
    restriction = restrict(model, fixed)
    if restriction.contradiction is not None:
        return None
    known = [float(start.get(x, 0)) for x in restriction.variables] if start else None
    answer = search.decide(restriction.model, nodes, known, longest_s)
    if answer.values is None:
        return None
    values = [0.0] * len(model.variables)
    for x, decided in fixed.items():
        values[x] = decided
    for x, found in zip(restriction.variables, answer.values, strict=True):
        values[x] = found
    return values

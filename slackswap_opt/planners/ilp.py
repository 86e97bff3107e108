"""The ILP planner: optimal within a certified gap, or the best plan found and how far it may be.

1. Start from the heuristics, and from the bound.
2. Long steps: solve the boundary ILP at the cut that gives the bound, first with what its
   relaxation leaves integral fixed, then by opening some stretches of the step at a time.
   Short steps, and medium ones after that: solve the compact ILP as a whole.
3. Each solution is lowered and simulated. Where memory runs out or a stall comes that the model did
   not plan, the model is tightened by what the verdict says, and solved again.
4. Stop at the gap asked for, when nothing improves any more, or at the time limit.

Whatever the solver says or fails to say, the result is the best schedule that the referee accepted.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from dataclasses import dataclass, field

from slackswap_opt.formulation._pulp import Answer, Limits, Outcome, solve
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.formulation.compact import (
    WORK,
    CompactModel,
    Sets,
    Tightening,
    assignment,
    compact_model,
    neighbourhood,
)
from slackswap_opt.formulation.cut_plan import CutPlanner, LearnedRow, narrow_tensors
from slackswap_opt.formulation.linear import LinearModel, restrict
from slackswap_opt.plan import Action, Plan, PlanResult, Problem, Status
from slackswap_opt.planners.baselines import recompute_all, selective, sqrt_n, swap_all
from slackswap_opt.planners.greedy import capuchin, greedy
from slackswap_opt.planners.realize import Realized, realize
from slackswap_opt.simulator import Cause
from slackswap_opt.step import working_set_bytes

SHORT = 60
"""Steps with at most this many decisions are given to the compact ILP at once, and whole."""
MEDIUM = 240
"""Steps with at most this many are given to it whole after the boundary ILP."""
SPACINGS = (None, 16, 48, 8, 96)
"""Distances of narrow places, in operations, in the order in which they are tried; None: none."""
SOLVE_S = 20.0
"""Longest single solve; node limits end most of them long before, whatever the clock says."""
NODES = 300
"""Branch-and-bound nodes per neighbourhood."""
STRETCHES = 4
STRETCH = 12
"""A neighbourhood opens this many stretches of this many tensors."""
PATIENCE = 4
"""Neighbourhoods without improvement before another spacing is tried."""
LESSONS = 12
"""Tightenings per spacing."""


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


def ilp(problem: Problem, options: IlpOptions | None = None) -> PlanResult:
    """Plan with the ILP.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    options = options or IlpOptions()
    began = time.perf_counter()
    if problem.budget_bytes < int(working_set_bytes(problem.step).max()):
        reason = "no schedule exists: one operation alone needs more memory than the budget"
        return PlanResult("ilp", Status.INFEASIBLE, reason=reason)
    limit = options.bound or bound(problem, solver=options.solver)
    search = _Search(problem, options, limit, began + options.seconds)
    search.start(options.starts or tuple(plan(problem) for plan in _HEURISTICS))
    if not search.done():
        if len(search.decisions) > SHORT:
            _cut_search(search)
        if len(search.decisions) <= MEDIUM and not search.done():
            _compact_search(search)
            _polish(search)
    return search.result(time.perf_counter() - began)


_HEURISTICS = (recompute_all, sqrt_n, selective, swap_all, greedy, capuchin)


@dataclass
class _Search:
    """The best schedule so far and what is known of the search."""

    problem: Problem
    options: IlpOptions
    bound: Bound
    deadline: float
    best: PlanResult | None = None
    by_solver: bool = False
    solver: str | None = None
    time_limited: bool = False
    failures: list[str] = field(default_factory=list)

    @property
    def decisions(self) -> list[int]:
        """Tensors about which there is something to decide."""
        live, size = self.problem.liveness, self.problem.step.index.size_bytes
        return [t for t in self.problem.blocks.evictable if live.saved[t] and size[t] > 0]

    def start(self, results: Sequence[PlanResult]) -> None:
        """Take the best of what other planners found."""
        plans = [Plan({})] if self.problem.budget_bytes else []
        for result in results:
            if result.schedule is not None:
                self._take(result)
        for plan in plans:
            self.judge(plan, by_solver=False)

    def judge(self, plan: Plan, *, by_solver: bool = True) -> Realized | None:
        """Lower and simulate a plan, and take it if it is the best."""
        realized = realize(self.problem, plan)
        if realized is not None and realized.verdict.fits:
            result = PlanResult("ilp", Status.FEASIBLE, realized.schedule, realized.step_ns, plan)
            if self._take(result):
                self.by_solver = by_solver
        return realized

    def _take(self, result: PlanResult) -> bool:
        assert result.step_ns is not None
        if self.best is None or self.best.step_ns is None or result.step_ns < self.best.step_ns:
            self.best = result
            return True
        return False

    @property
    def gap(self) -> float:
        """Certified gap of the best schedule."""
        if self.best is None or self.best.step_ns is None:
            return 1.0
        return (self.best.step_ns - self.bound.step_ns) / max(1, self.best.step_ns)

    def done(self) -> bool:
        """Whether the gap is reached or the time is over."""
        if self.gap <= self.options.gap:
            return True
        if self.seconds_left() <= 0:
            self.time_limited = True
        return self.seconds_left() <= 0

    def seconds_left(self) -> float:
        return self.deadline - time.perf_counter()

    def solve(
        self, model: LinearModel, seconds: float, gap_ns: int, *, relax: bool = False
    ) -> Answer:
        """Solve within what time is left, and note how it went."""
        limits = Limits(max(0.5, min(seconds, self.seconds_left())), gap_ns, NODES)
        answer = solve(model, limits, self.options.solver, relax=relax)
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
                time_limited=self.time_limited,
            )  # fmt: skip
        within = self.gap <= self.options.gap
        if within:
            status, reason = Status.OPTIMAL, "certified within the gap asked for"
        elif self.failures and not self.by_solver:
            status, reason = Status.FALLBACK, f"the solver failed ({self.failures[0]})"
        elif not self.by_solver and self.time_limited:
            status, reason = Status.FALLBACK, "the ILP found nothing better in the time given"
        else:
            status, reason = Status.FEASIBLE, "the best schedule found"
        if not self.by_solver and self.best.planner != "ilp":
            reason += f"; it is the schedule of {self.best.planner}"
        return PlanResult(
            "ilp", status, self.best.schedule, self.best.step_ns, self.best.plan, reason,
            self.solver, seconds, self.time_limited,
        )  # fmt: skip


# -- long steps: the boundary ILP ---------------------------------------------------------------


def _cut_search(search: _Search) -> None:
    """The boundary ILP at the cut of the bound, with narrow places at several distances."""
    problem = search.problem
    cut = search.bound.cut if search.bound.cut >= 0 else problem.liveness.peak_operation
    learned: list[LearnedRow] = []
    medium = len(search.decisions) <= MEDIUM
    for number, spacing in enumerate(SPACINGS[:2] if medium else SPACINGS):
        narrow = narrow_tensors(problem, spacing) if spacing else set()
        _descend(search, cut, narrow, learned, random.Random(number))
        if search.done():
            return


def _descend(
    search: _Search,
    cut: int,
    narrow: set[int],
    learned: list[LearnedRow],
    chance: random.Random,
) -> None:
    """Solve, simulate, tighten; then open one neighbourhood after another."""
    lessons = idle = 0
    planner = CutPlanner(search.problem, cut, narrow, learned)
    values = _round_relaxation(search, planner)
    while values is not None and not search.done() and idle < PATIENCE:
        before = search.best.step_ns if search.best else None
        realized = search.judge(planner.plan(values))
        row = _lesson(search.problem, realized) if realized else None
        if row is not None and lessons < LESSONS:
            lessons += 1
            learned.append(row)
            planner = CutPlanner(search.problem, cut, narrow, learned)
            values = _round_relaxation(search, planner)
            continue
        after = search.best.step_ns if search.best else None
        idle = 0 if after != before else idle + 1
        values = _open_stretches(search, planner, values, chance)


def _round_relaxation(search: _Search, planner: CutPlanner) -> list[float] | None:
    """Fix what the relaxation leaves integral, and decide the rest; or all, if that cannot be."""
    answer = search.solve(planner.model, search.options.seconds, 0, relax=True)
    if answer.values is None:
        return None
    fixed = {
        x: round(answer.values[x])
        for variables in planner.decisions.values()
        for x in variables
        if abs(answer.values[x] - round(answer.values[x])) < 1e-6
    }
    return _complete(search, planner.model, fixed) or _complete(search, planner.model, {})


def _open_stretches(
    search: _Search, planner: CutPlanner, values: Sequence[float], chance: random.Random
) -> list[float] | None:
    """Decide a few stretches of the step anew, all else as it is; the values kept if it fails."""
    opened = _stretches(list(planner.decisions), chance)
    fixed = {
        x: round(values[x])
        for t, variables in planner.decisions.items()
        if t not in opened
        for x in variables
    }
    return _complete(search, planner.model, fixed) or list(values)


def _stretches(tensors: Sequence[int], chance: random.Random) -> set[int]:
    """A few stretches of tensors in order of production."""
    opened: set[int] = set()
    for _ in range(STRETCHES):
        begin = chance.randrange(len(tensors))
        opened.update(tensors[begin : begin + STRETCH])
    return opened


def _complete(search: _Search, model: LinearModel, fixed: dict[int, int]) -> list[float] | None:
    """Solve a model with some variables fixed; one value per variable of the whole model."""
    restriction = restrict(model, fixed)
    if restriction.contradiction is not None:
        return None
    gap_ns = int(search.options.gap * search.problem.ideal_step_ns / 10)
    answer = search.solve(restriction.model, SOLVE_S, gap_ns)
    if answer.values is None:
        return None
    values = [0.0] * len(model.variables)
    for x, decided in fixed.items():
        values[x] = decided
    for x, found in zip(restriction.variables, answer.values, strict=True):
        values[x] = found
    return values


def _lesson(problem: Problem, realized: Realized) -> LearnedRow | None:
    """What an out-of-memory verdict says of memory at the operation where it happened."""
    verdict = realized.verdict.out_of_memory
    if verdict is None or verdict.missing_bytes == 0:
        return None
    compute = realized.schedule.compute
    position = max(compute[: verdict.event + 1])
    if compute[verdict.event] != position:
        position += 1
    live, size = problem.liveness, problem.step.index.size_bytes
    later = [
        t
        for t in verdict.resident
        if (live.saved[t] and live.first_later[t] > position)
        or (not live.saved[t] and live.activation[t] and live.last_forward[t] < position)
    ]
    kept = tuple(t for t in later if realized.plan.of(t) is Action.KEEP)
    rebuilt = tuple(t for t in later if realized.plan.of(t) in (Action.RECOMPUTE, Action.DROP))
    held = sum(int(size[t]) for t in kept + rebuilt)
    if not held:
        return None
    everyone = tuple(
        t
        for t in problem.blocks.evictable
        if (live.saved[t] and live.first_later[t] > position) or t in kept
    )
    return LearnedRow(everyone, rebuilt, held - verdict.missing_bytes)


# -- short and medium steps: the compact ILP -----------------------------------------------------


def _compact_search(search: _Search) -> None:
    """The compact ILP, tightened by what simulations show.

    With and without the rule that copies out are over at the turn: with it the model promises
    no more than whole copies can do, without it nothing is lost.
    """
    whole = len(search.decisions) <= SHORT
    for drained in (False, True):
        tightening = Tightening()
        chance = random.Random(0)
        plan: Plan | None = None
        lessons = idle = 0
        while lessons < LESSONS and idle < PATIENCE:
            sets = Sets(search.problem, tightening, [plan] if plan else [], drained=drained)
            cm = compact_model(sets)
            fixed = {} if whole else _fixed_for(search, cm, sets, plan, chance)
            values = _complete(search, cm.model, fixed) if fixed is not None else None
            if values is None and fixed:
                values = _complete(search, cm.model, {}) if plan is None else None
            if values is None:
                idle = idle + 1 if plan else PATIENCE
                if search.done():
                    return
                continue
            before = search.best.step_ns if search.best else None
            proposal = cm.plan(values)
            realized = search.judge(proposal)
            if search.done() or realized is None:
                break
            learned = _tightened(tightening, cm, sets, values, realized)
            if learned is not None:
                tightening, lessons = learned, lessons + 1
            elif whole:
                break
            if realized.verdict.fits:
                after = search.best.step_ns if search.best else None
                idle = 0 if after != before else idle + 1
                plan = proposal if plan is None or after != before else plan
        if search.done():
            return


def _fixed_for(
    search: _Search,
    cm: CompactModel,
    sets: Sets,
    plan: Plan | None,
    chance: random.Random,
) -> dict[int, int] | None:
    """All but a few stretches of the last plan; at first, what the relaxation makes integral."""
    if plan is not None:
        opened = _stretches(sorted(cm.keep, key=lambda t: (sets.done[t], t)), chance)
        left = neighbourhood(cm, sets, plan, opened)
        return {x: v for x, v in assignment(cm, sets, plan).items() if x not in left}
    answer = search.solve(cm.model, search.options.seconds, 0, relax=True)
    if answer.values is None:
        return None
    values = answer.values
    decisions = (*cm.keep.values(), *cm.swap.values())
    return {x: round(values[x]) for x in decisions if abs(values[x] - round(values[x])) < 1e-6}


def _polish(search: _Search) -> None:
    """Change one action at a time, as long as the referee likes it better.

    The models round a few things to the safe side; this takes back what single actions can.
    """
    tensors = [
        t for t in search.problem.blocks.evictable if search.problem.step.index.size_bytes[t]
    ]
    improved = True
    while improved and search.best is not None and search.best.plan is not None:
        improved = False
        for t in tensors:
            for action in (Action.KEEP, Action.SWAP, Action.RECOMPUTE):
                if search.done():
                    return
                plan = search.best.plan
                assert plan is not None
                before = search.best.step_ns
                if plan.of(t) is not action:
                    search.judge(Plan({**plan.actions, t: action}))
                improved |= search.best.step_ns != before


def _tightened(
    tightening: Tightening,
    cm: CompactModel,
    sets: Sets,
    values: Sequence[float],
    realized: Realized,
) -> Tightening | None:
    """Leave memory free where it ran out, or where a copy out had to be waited for."""
    compute = realized.schedule.compute
    verdict = realized.verdict.out_of_memory
    if verdict is not None:
        operation = max(compute[: verdict.event + 1])
        return tightening.with_reserve(operation, max(1, verdict.missing_bytes))
    waits = [s for s in realized.verdict.timeline.stalls if s.cause is Cause.SWAP_OUT]
    planned = sum(values[x] for x in cm.stall)
    if not waits or realized.verdict.stall_ns <= planned * 1.001 + 1:
        return None
    worst = max(waits, key=lambda s: s.end_ns - s.start_ns)
    operation = max(compute[: worst.event + 1])
    still_out = (worst.end_ns - worst.start_ns) * sets.rates.d2h // WORK
    return tightening.with_reserve(operation, max(1, sets.size[worst.tensor] - still_out))

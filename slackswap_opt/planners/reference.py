"""The reference planner: the time-indexed ILP, for small steps only.

It decides every re-execution and every copy at every stage (see `formulation/time_indexed.py`),
so that other planners can be held against it. Its size grows with the square of the number of
operations; steps above a stated size are refused.

`reference` is a planner like others. `reference_plan` says more: what the model claims and whether
a solver proved it, and it can price copies additively, in the manner of POET (Patil et al. 2022).
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from slackswap_opt.errors import InputError
from slackswap_opt.formulation._pulp import Answer, Limits, Outcome, available_solvers, solve
from slackswap_opt.formulation.bound import Prover, bound
from slackswap_opt.formulation.time_indexed import Copies, StageModel, stage_model
from slackswap_opt.plan import Action, Plan, PlanResult, Problem, Schedule, Status
from slackswap_opt.planners.baselines import recompute_all, selective, sqrt_n
from slackswap_opt.planners.greedy import capuchin, greedy
from slackswap_opt.planners.staged_program import program_of, timed
from slackswap_opt.step import working_set_bytes

LARGEST = {Copies.NONE: 40 * 40, Copies.ADDITIVE: 30 * 30, Copies.OVERLAPPED: 25 * 25}
"""Stages times operations up to which a step is taken, by how copies are modelled."""
GAP = 0.001
"""Certified gap at which a schedule counts as optimal even if the model's optimum is lower."""

_STARTS = (recompute_all, sqrt_n, selective, greedy, capuchin)


@dataclass(frozen=True)
class ReferenceOptions:
    """How the reference planner works.

    Attributes:
        seconds: wall-clock limit of the solver.
        solver: "cbc" or "highs".
        additive: each copy costs its time at the link's rate, nothing overlaps, and copies happen
            between stages: POET's transfers. Otherwise copies run beside compute. Where the
            problem allows no swaps there are none either way.
    """

    seconds: float = 60.0
    solver: str = "cbc"
    additive: bool = False


@dataclass(frozen=True)
class ReferencePlan:
    """What the reference model says, and the schedule that it stands for.

    Attributes:
        copies: how transfers were modelled.
        outcome: why the solver stopped.
        model_ns: step time by the model's account; None without a solution. Without copies it is
            the simulated time, with additive ones compute plus the time of each copy, with
            overlapped ones a relaxation of the simulated time.
        proven: the solver says that no schedule of the kind modelled has less than `model_ns`; or,
            without a solution, that there is no such schedule (two solvers, if there are two).
        schedule: the program; None without a solution, or if no timing of its copies fits.
        step_ns: its simulated step time.
        solver: names and versions of the solvers behind it.
        seconds: wall time.
        time_limited: whether the clock stopped the solver.
    """

    copies: Copies
    outcome: Outcome
    model_ns: int | None
    proven: bool
    schedule: Schedule | None
    step_ns: int | None
    solver: str
    seconds: float
    time_limited: bool

    @property
    def equal(self) -> bool:
        """Whether the simulator confirms the model (copies end at whole nanoseconds)."""
        if self.step_ns is None or self.model_ns is None or self.schedule is None:
            return False
        rounded = len(self.schedule.copies_out) + len(self.schedule.copies_in)
        return self.step_ns <= self.model_ns + rounded


def reference_plan(
    problem: Problem,
    options: ReferenceOptions | None = None,
    *,
    most_overhead_ns: int | None = None,
) -> ReferencePlan:
    """Solve the time-indexed model and carry out its solution.

    Args:
        problem: a small one; with `swaps=False` only recomputation is planned.
        options: how.
        most_overhead_ns: overhead of a schedule that is known (waits longer than that are left
            out of the model).

    Raises:
        InputError: if the step is too large.
        SolverUnavailableError: if the solver cannot be started.
    """
    options = options or ReferenceOptions()
    began = time.perf_counter()
    copies = _copies(problem, options)
    refuse_large(problem, copies)
    sm = stage_model(problem, copies, most_overhead_ns)
    answer = solve(sm.model, Limits(options.seconds), options.solver)
    proven, names = answer.outcome is Outcome.OPTIMAL, answer.solver
    if answer.outcome is Outcome.INFEASIBLE:
        proven, names = _confirmed(sm, answer, options)
    model_ns = step_ns = schedule = None
    if answer.values is not None:
        model_ns = problem.ideal_step_ns + sm.overhead_ns(answer.values)
        found = timed(problem, program_of(sm, answer.values), model_ns)
        if found is not None:
            schedule, step_ns = found[0], found[1].step_ns
    return ReferencePlan(
        copies, answer.outcome, model_ns, proven, schedule, step_ns, names,
        time.perf_counter() - began, answer.timed_out,
    )  # fmt: skip


def reference(problem: Problem, options: ReferenceOptions | None = None) -> PlanResult:
    """Plan a small step with the time-indexed ILP; never worse than the heuristics.

    "optimal-within-gap" means here that the solver proved the optimum of the model and the
    simulator confirms it, or that the verified bound is near; the reason says which.

    Raises:
        InputError: if the step is too large; the message names the sizes.
        SolverUnavailableError: if the solver cannot be started.
    """
    options = options or ReferenceOptions()
    began = time.perf_counter()
    copies = _copies(problem, options)
    refuse_large(problem, copies)
    if problem.budget_bytes < int(working_set_bytes(problem.step).max()):
        reason = "no schedule exists: one operation alone needs more memory than the budget"
        return PlanResult("reference", Status.INFEASIBLE, reason=reason)
    start = _best_start(problem)
    if start is not None and start.step_ns == problem.ideal_step_ns:
        return replace(
            start, planner="reference", status=Status.OPTIMAL,
            reason="it takes no longer than without a memory limit",
            planning_s=time.perf_counter() - began,
        )  # fmt: skip
    overhead = None
    if start is not None and start.step_ns is not None:
        overhead = start.step_ns - problem.ideal_step_ns
    found = reference_plan(problem, options, most_overhead_ns=overhead)
    result = _judged(problem, options, found, start)
    return replace(result, planning_s=time.perf_counter() - began)


def is_small(problem: Problem) -> bool:
    """Whether the step is one that the model is made for."""
    count = problem.step.index.operations
    return count * count <= LARGEST[_copies(problem, ReferenceOptions())]


def refuse_large(problem: Problem, copies: Copies) -> None:
    """Refuse steps that the model is not made for.

    Raises:
        InputError: naming the step's size and the largest one.
    """
    count, largest = problem.step.index.operations, LARGEST[copies]
    if count * count > largest:
        raise InputError(
            f"the reference planner takes small steps only: {problem.step.name!r} has {count} "
            f"operations, {count} stages x {count} operations = {count * count}, "
            f"and at most {largest} are taken "
            f"({int(largest**0.5)} operations, copies: {copies.value}); use the planner ilp"
        )


def _copies(problem: Problem, options: ReferenceOptions) -> Copies:
    if not problem.swaps:
        return Copies.NONE
    return Copies.ADDITIVE if options.additive else Copies.OVERLAPPED


def _confirmed(sm: StageModel, answer: Answer, options: ReferenceOptions) -> tuple[bool, str]:
    """Whether a second solver, if there is one, calls the model infeasible as well."""
    names = answer.solver
    for other in available_solvers():
        if other != options.solver:
            second = solve(sm.model, Limits(options.seconds), other)
            names = f"{names}, {second.solver}"
            if second.outcome is not Outcome.INFEASIBLE:
                return False, names
    return True, names


def _best_start(problem: Problem) -> PlanResult | None:
    results = [plan(problem) for plan in _STARTS]
    fitting = [result for result in results if result.step_ns is not None]
    return min(fitting, key=lambda result: result.step_ns or 0, default=None)


def _judged(
    problem: Problem, options: ReferenceOptions, found: ReferencePlan, start: PlanResult | None
) -> PlanResult:
    """The better of the model's schedule and the heuristics', with what is proven of it."""
    mine = start is None or (
        found.step_ns is not None and start.step_ns is not None and found.step_ns <= start.step_ns
    )
    result = PlanResult(
        "reference", Status.FEASIBLE, solver=found.solver, time_limited=found.time_limited
    )
    if mine:
        if found.schedule is None or found.step_ns is None:
            return replace(result, status=Status.INFEASIBLE, reason=_why_none(found))
        plan = summary(problem, found.schedule)
        result = replace(result, schedule=found.schedule, step_ns=found.step_ns, plan=plan)
    else:
        assert start is not None
        result = replace(
            result, status=Status.FALLBACK, schedule=start.schedule, step_ns=start.step_ns,
            plan=start.plan, reason=f"the schedule of {start.planner}",
        )  # fmt: skip
    return _with_proof(problem, options, found, result)


def _with_proof(
    problem: Problem, options: ReferenceOptions, found: ReferencePlan, result: PlanResult
) -> PlanResult:
    assert result.step_ns is not None
    modelled = found.model_ns if found.proven else None
    own = result.schedule is found.schedule
    if modelled is not None and (result.step_ns <= modelled or (own and found.equal)):
        reason = f"the optimum of the time-indexed model, proven by {found.solver}"
        return replace(result, status=Status.OPTIMAL, reason=reason)
    prover = Prover(problem, bound(problem, solver=options.solver), options.solver)
    enough = result.step_ns - int(GAP * result.step_ns)
    limit = prover.run(enough, max(1.0, options.seconds - found.seconds))
    result = replace(result, proven_ns=limit.step_ns)
    if limit.step_ns >= enough:
        return replace(result, status=Status.OPTIMAL, reason="certified by the verified bound")
    said = f"has no proven optimum ({found.outcome.value})"
    if modelled is not None:
        said = f"has its optimum at {modelled} ns, which its schedule does not reach"
    prefix = f"{result.reason}; " if result.reason else ""
    return replace(result, reason=f"{prefix}the time-indexed model {said}")


def _why_none(found: ReferencePlan) -> str:
    if found.outcome is Outcome.INFEASIBLE and found.proven:
        return f"the time-indexed model has no solution, say {found.solver}"
    if found.model_ns is not None:
        return "no timing of the copies of the model's solution fits; none is proven not to exist"
    return f"no schedule was found ({found.outcome.value}); that none exists is not proven"


def summary(problem: Problem, schedule: Schedule) -> Plan:
    """One action per evictable tensor, as far as one word tells what a schedule does with it."""
    index, live = problem.step.index, problem.liveness
    returned = {copy.tensor for copy in schedule.copies_in}
    again = {t for op in schedule.reexecutions() for t, _ in index.writes[op]}
    actions = {}
    for t in problem.blocks.evictable:
        if t in returned:
            actions[t] = Action.SWAP
        elif t in again:
            actions[t] = Action.RECOMPUTE
        elif not live.saved[t]:
            actions[t] = Action.DROP
    return Plan(actions)

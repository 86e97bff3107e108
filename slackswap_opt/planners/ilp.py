"""The ILP planner: optimal within a certified gap, or the best plan found and how far it may be.

1. Start from the heuristics, and from the bound.
2. Solve the boundary ILP at the cut that gives the bound, first with what its relaxation leaves
   integral fixed, then by opening some stretches of the step at a time. Long steps take long at it,
   others a short while, and go on with the compact ILP: short ones solve it as a whole, medium
   ones in the same manner; both try single changes at the end. (Not where only schedules that
   run operations more than twice are known: the compact ILP has none.) While the gap is wide,
   plans that do not fit are followed by eviction on demand. What is left of the time goes to
   programs that run operations again any number of times: eviction on demand with copies and
   without, and the windowed ILP around the best program.
   Small steps are given to the time-indexed ILP, which decides every stage, in between.
3. Each solution is lowered and simulated. Where memory runs out or a stall comes that the model did
   not plan, the model is tightened by what the verdict says, and solved again.
4. Where that leaves a gap, better the bound by branching on the integers of its cut.
5. Stop at the gap asked for, when nothing improves any more, or at the time limit.

Whatever the solver says or fails to say, the result is the best schedule that the referee accepted.
"""

from __future__ import annotations

import time
import warnings

from slackswap_opt.errors import ScheduleError
from slackswap_opt.formulation.bound import bound
from slackswap_opt.plan import PlanResult, Problem, Status
from slackswap_opt.planners.baselines import recompute_all, selective, sqrt_n, swap_all
from slackswap_opt.planners.compact_search import compact_search, polish, recompute_search
from slackswap_opt.planners.copies_search import change_tastes, evict_with_copies
from slackswap_opt.planners.cut_search import cut_search
from slackswap_opt.planners.greedy import capuchin, greedy
from slackswap_opt.planners.on_demand import on_demand
from slackswap_opt.planners.reference import ReferenceOptions, is_small, reference_plan, summary
from slackswap_opt.planners.search import IlpOptions, Search
from slackswap_opt.planners.windowed_search import windowed_search
from slackswap_opt.step import working_set_bytes

TINY = 20
"""Steps with at most this many decisions go without the boundary ILP."""
SHORT = 60
"""Steps with at most this many decisions are given to the compact ILP at once, and whole."""
MEDIUM = 240
"""Steps with at most this many are given to it after a short search with the boundary ILP, and to
the windowed ILP at the end."""
LONG = 480
"""Steps with at most this many are given to the windowed ILP if nothing may be swapped."""
RECOMPUTED = 400
"""Where nothing may be swapped, steps with at most this many are given to the compact ILP at once,
and whole: without queues it is a small model, and its relaxation a strong one."""
NEAR = (8, 16)
"""How far downstream, in blocks, needs may lie where nothing is swapped: near ones first."""
FIRST_LOOK = 40
"""Relaxations for a better bound before the longer searches, which it may spare."""
SHARE = 0.5
"""Part of the time that is left which the compact ILP may take, and then the bound; the boundary
ILP a quarter of it before, but all of it on long steps."""

_HEURISTICS = (recompute_all, sqrt_n, selective, swap_all, greedy, capuchin, on_demand)


def ilp(problem: Problem, options: IlpOptions | None = None) -> PlanResult:
    """Plan with the ILP.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    options = options or IlpOptions()
    began = time.perf_counter()
    if problem.budget_bytes < int(working_set_bytes(problem.step).max()):
        return PlanResult("ilp", Status.INFEASIBLE, reason=_too_little(problem))
    limit = options.bound or bound(problem, solver=options.solver)
    deadline = began + options.seconds
    search = Search(problem, options, limit, deadline, solver=limit.solver or None)
    search.start(options.starts or tuple(plan(problem) for plan in _HEURISTICS))
    decisions = len(search.decisions)
    plan = _with_swaps if problem.swaps else _without_swaps
    try:
        plan(search, decisions)
    except ScheduleError as error:
        search.failures.append(f"a proposal is no schedule: {error}")
        warnings.warn(
            f"a bug of this package ended the search early ({error}); the plan is the best one "
            "that was accepted before. Please report it with the step and the budget.",
            RuntimeWarning,
            stacklevel=2,
        )
    search.prove()
    return search.result(time.perf_counter() - began)


def _too_little(problem: Problem) -> str:
    needs = working_set_bytes(problem.step)
    operation = int(needs.argmax())
    return (
        f"no schedule exists: operation {problem.step.operations[operation].name!r} alone needs "
        f"{int(needs[operation])} bytes, more than the budget of {problem.budget_bytes}"
    )


def _with_swaps(search: Search, decisions: int) -> None:
    if decisions > TINY and not search.done():
        with search.share(1.0 if decisions > MEDIUM else SHARE / 2 if search.wide() else SHARE / 4):
            cut_search(search, eager=decisions <= MEDIUM)
    if decisions <= MEDIUM:
        with search.share(SHARE / 2):
            search.prove(FIRST_LOOK)
    if search.wide() and not search.done():
        with search.share(SHARE):
            evict_with_copies(search)
    if decisions <= MEDIUM and not search.repeats() and not search.done():
        with search.share(SHARE):
            compact_search(search, whole=decisions <= SHORT)
            polish(search)
    _every_stage(search)
    if decisions <= MEDIUM and not search.remark and not search.done():
        with search.share(SHARE):
            search.prove()
        windowed_search(search)
    if search.wide() and not search.done():
        change_tastes(search, seed=1)


def _every_stage(search: Search) -> None:
    """Small steps: the model that decides every re-execution and copy at every stage."""
    problem = search.problem
    if not is_small(problem) or search.done():
        return
    most = None if search.best_ns is None else search.best_ns - problem.ideal_step_ns
    with search.share(SHARE):
        options = ReferenceOptions(search.seconds_left(), search.options.solver)
        found = reference_plan(problem, options, most_overhead_ns=most)
    search.solver = found.solver
    search.time_limited |= found.time_limited
    if found.schedule is not None:
        plan = summary(problem, found.schedule)
        search.take(PlanResult("ilp", Status.FEASIBLE, found.schedule, found.step_ns, plan))
    optimum = found.model_ns if found.proven else None
    if optimum is not None and search.best_ns is not None and search.best_ns <= optimum:
        search.remark = f"the optimum of the time-indexed model, proven by {found.solver}"


def _without_swaps(search: Search, decisions: int) -> None:
    """Near needs first, then programs that run anything twice, then farther needs."""
    if decisions > RECOMPUTED and not search.done():
        with search.share(SHARE / 2):
            cut_search(search)
    for number, hops in enumerate(NEAR):
        if not search.done():
            with search.share(1.0 if number else SHARE):
                recompute_search(search, hops, whole=decisions <= RECOMPUTED)
                polish(search)
        if decisions <= LONG and not number and not search.done():
            windowed_search(search)

"""The bound against every kind of schedule: no simulated step may be faster than what it proves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest
from hypothesis import HealthCheck, assume, given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError, ScheduleError
from slackswap_opt.formulation import _pulp
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.formulation.boundary import LONGEST_OVERHEAD, CutModel, boundary_model
from slackswap_opt.formulation.linear import certified_minimum
from slackswap_opt.machine import Host, Link, Machine
from slackswap_opt.plan import Copy, Problem, Schedule
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.step import working_set_bytes
from tests.brute_force import TooManyError, best_schedule
from tests.hand import machine_of, step_of
from tests.strategies import DEVICE, MB_PER_S, Program, machines, programs, training_steps

SOLVER = "highs" if "highs" in _pulp.available_solvers() else "cbc"
"""The bound must not depend on it; HiGHS runs in this process and is the faster one here."""
RELAXED = settings(
    deadline=None, suppress_health_check=[HealthCheck.too_slow, HealthCheck.filter_too_much]
)
EVERY_CUT = 1000


# --- Every schedule is a point of every boundary model ----------------------------------------


def point_of(cm: CutModel, problem: Problem, cut: int, schedule: Schedule, verdict: Verdict):
    """The model's variables for what a simulated schedule did, and the objective.

    Read off the timeline as the module's docstring words it, in exact integers.
    """
    index, line = problem.step.index, verdict.timeline
    event = schedule.compute.index(cut)
    starts, ends = line.compute_start_ns.tolist(), line.compute_end_ns.tolist()
    tau = starts[event]
    there = _residents(problem, schedule, verdict, event)
    came = _availability(problem, schedule, verdict, event, tau)
    again = {op for op in schedule.compute[event + 1 :] if op in cm.rerun}
    x: list[int] = [0] * len(cm.model.variables)
    for tensor, variable in cm.keep.items():
        x[variable] = int(tensor in there)
    for value, variable in cm.swap.items():
        x[variable] = int(value[0] not in there and came.get(value) == "in")
    for value, variable in cm.rebuild.items():
        x[variable] = int(value[0] not in there and came.get(value) == "rerun")
    for op, variable in cm.rerun.items():
        x[variable] = int(op in again)
    durations = index.duration_ns.tolist()
    before, after = (v for v in cm.model.objective if v not in set(cm.rerun.values()))
    x[before] = tau - sum(durations[:cut])
    x[after] = ends[-1] - tau - sum(durations[cut:]) - sum(durations[op] for op in again)
    for row in cm.model.rows:
        if row.family in ("running total", "reruns"):
            (sign, column), *others = row.terms
            x[column] = -sign * sum(c * x[v] for c, v in others)
    return x, sum(cost * x[v] for v, cost in cm.model.objective.items())


def _residents(problem: Problem, schedule: Schedule, verdict: Verdict, event: int) -> set[int]:
    """Tensors in device memory when compute event `event` starts, arriving and leaving included."""
    line, index = verdict.timeline, problem.step.index
    tau = int(line.compute_start_ns[event])
    happenings: list[tuple[int, int, str, int]] = []
    for e in range(event):
        op = schedule.compute[e]
        for tensor, version in index.writes[op]:
            if version == 0:
                happenings.append((int(line.compute_start_ns[e]), 2 * e, "hold", tensor))
        for tensor in schedule.frees[e]:
            outs = [
                int(line.out_end_ns[n])
                for n, copy in enumerate(schedule.copies_out)
                if copy.tensor == tensor and copy.after <= e and line.out_start_ns[n] >= 0
            ]
            late = [end for end in outs if end < 0 or end > line.compute_end_ns[e]]
            if any(end < 0 or end > tau for end in late):
                continue  # still leaving
            when = max([int(line.compute_end_ns[e]), *late])
            happenings.append((when, 2 * e + 1, "free", tensor))
    for number, copy in enumerate(schedule.copies_in):
        if 0 <= line.in_start_ns[number] < tau:
            # after the events that have ended by then
            start = int(line.in_start_ns[number])
            happenings.append((start, 2 * event, "hold", copy.tensor))
    held: set[int] = set()
    for _, _, what, tensor in sorted(happenings, key=lambda h: h[:2]):
        (held.add if what == "hold" else held.discard)(tensor)
    return held


def _availability(
    problem: Problem, schedule: Schedule, verdict: Verdict, event: int, tau: int
) -> dict[tuple[int, int], str]:
    """How each value first became available after compute event `event` started."""
    line, index = verdict.timeline, problem.step.index
    # At one instant a copy in ends before an operation of no duration runs and a copy out starts.
    happenings = [
        (int(end), 0, (schedule.copies_in[n].tensor, -1), "in", n)
        for n, end in enumerate(line.in_end_ns)
        if end >= 0
    ]
    happenings += [
        (int(line.compute_end_ns[e]), 1, (tensor, version), "write", e)
        for e, op in enumerate(schedule.compute)
        for tensor, version in index.writes[op]
        if version > 0
        or op not in schedule.compute[:e]
        or tensor not in _residents(problem, schedule, verdict, e)  # else it is scratch
    ]
    happenings += [
        (int(start), 2, (schedule.copies_out[n].tensor, -1), "out", n)
        for n, start in enumerate(line.out_start_ns)
        if start >= 0
    ]
    device: dict[int, int] = {}
    host: dict[int, int] = {}
    came: dict[tuple[int, int], str] = {}
    for _, _, (tensor, version), what, number in sorted(happenings, key=lambda h: h[:2]):
        if what == "out":
            host[tensor] = device[tensor]
        elif what == "in":
            device[tensor] = host[tensor]
            if line.in_start_ns[number] >= tau:
                came.setdefault((tensor, host[tensor]), "in")
        else:
            device[tensor] = version
            if number > event:
                came.setdefault((tensor, version), "rerun")
    return came


def is_a_point(program: Program) -> None:
    """Whatever the schedule does, each boundary model allows it, at its overhead."""
    try:
        verdict = simulate(*program)
    except ScheduleError:
        assume(False)
    line = verdict.timeline
    copies = [*zip(line.out_start_ns, line.out_end_ns, strict=True)]
    copies += zip(line.in_start_ns, line.in_end_ns, strict=True)
    assume(verdict.fits)
    assume(all(start != end or start < 0 for start, end in copies))  # else their order is unclear
    has_its_points(program, verdict)


def has_its_points(program: Program, verdict: Verdict) -> None:
    problem = Problem(program.step, program.machine, program.capacity)
    overhead = int(verdict.timeline.compute_end_ns[-1]) - problem.ideal_step_ns
    assert overhead >= 0
    for cut in range(program.step.index.operations):
        cm = boundary_model(problem, cut)
        point, objective = point_of(cm, problem, cut, program.schedule, verdict)
        assert objective == overhead
        assert min(point, default=0) >= 0
        broken = cm.model.violated(point)
        assert broken is None, f"cut {cut}: {broken.family} refuses a schedule that runs"


@settings(RELAXED, max_examples=100)
@given(programs())
def test_every_schedule_that_fits_is_a_point_of_every_boundary_model(program: Program):
    is_a_point(program)


@pytest.mark.slow
@settings(RELAXED, max_examples=1500)
@given(programs(max_activations=8))
def test_thousands_of_schedules_are_points_of_every_boundary_model(program: Program):
    is_a_point(program)


# --- The bound itself -------------------------------------------------------------------------


def verified(problem: Problem, solver: str = SOLVER) -> int:
    return bound(problem, solver=solver, cuts=EVERY_CUT).step_ns


@settings(RELAXED, max_examples=60)
@given(programs())
def test_no_schedule_that_fits_is_faster_than_the_bound(program: Program):
    no_faster(program, verified)


@pytest.mark.slow
@settings(RELAXED, max_examples=800)
@given(programs(max_activations=8))
def test_thousands_of_schedules_are_not_faster_than_the_bound(program: Program):
    no_faster(program, verified)


def no_faster(program: Program, prove: Callable[[Problem], int]) -> None:
    """A program that fits takes as long as is proven, at least."""
    try:
        verdict = simulate(*program)
    except ScheduleError:
        assume(False)
    assume(verdict.fits)
    problem = Problem(program.step, program.machine, program.capacity)
    assert problem.ideal_step_ns <= prove(problem) <= verdict.step_ns


@st.composite
def problems(draw: st.DrawFn, max_activations: int, *, pinned: bool = True) -> Problem:
    """Budgets from the largest working set to the ideal peak."""
    step, machine = draw(training_steps(max_activations)), draw(machines())
    if not pinned:
        machine = replace(machine, host=Host())
    problem = Problem(step, machine, 0)
    least, most = int(working_set_bytes(step).max()), problem.liveness.ideal_peak_bytes
    return problem.with_budget(draw(st.integers(least, max(least, most - 1))))


def nothing_beats(problem: Problem, proven: int, limit: int) -> None:
    assume(problem.ideal_step_ns)
    for planner in HEURISTICS.values():
        result = planner(problem)
        assert result.step_ns is None or result.step_ns >= proven, result.planner
    try:
        best = best_schedule(problem, limit=limit)
    except TooManyError:
        return
    assert best is None or best[0] >= proven


@settings(RELAXED, max_examples=40)
@given(problems(4))
def test_neither_brute_force_nor_heuristics_beat_the_bound(problem: Problem):
    nothing_beats(problem, verified(problem), 3000)


@pytest.mark.slow
@settings(RELAXED, max_examples=250)
@given(problems(6))
def test_neither_brute_force_nor_heuristics_beat_many_bounds(problem: Problem):
    nothing_beats(problem, verified(problem), 30_000)


@settings(RELAXED, max_examples=25)
@given(problems(6), st.integers(0, 5))
def test_at_the_ideal_peak_the_bound_is_the_ideal_step(problem: Problem, more: int):
    problem = problem.with_budget(problem.liveness.ideal_peak_bytes + more)
    assert bound(problem, solver=SOLVER) == Bound(
        problem.ideal_step_ns, -1, "", pytest.approx(0, abs=1)
    )


def nearly(limit_ns: int) -> float:
    """A little above a limit: what rounding in a solver's multipliers may lose."""
    return limit_ns * (1 + 1e-6) + 2


def about(limit_ns: int):
    """A limit in exact arithmetic from multipliers in floating point: at most 2 ns below."""
    return pytest.approx(limit_ns - 1, abs=1)


def tame(problem: Problem) -> bool:
    """Whether every linear program has a solution: no copies that dwarf the step."""
    index, link = problem.step.index, problem.machine.link
    moved = int(index.transfer_bytes.sum()) * 1000 // link.rates().slowest()
    copies = moved + index.tensors * link.latency_ns
    return copies < LONGEST_OVERHEAD * problem.ideal_step_ns


@settings(RELAXED, max_examples=25)
@given(problems(6, pinned=False), st.integers(1, 10))
def test_more_memory_never_raises_the_bound(problem: Problem, more: int):
    assume(tame(problem))
    roomier = problem.with_budget(problem.budget_bytes + more)
    assert verified(roomier) <= nearly(verified(problem))


@settings(RELAXED, max_examples=25)
@given(problems(6, pinned=False), st.sampled_from(("d2h", "h2d")), st.integers(1, 40))
def test_a_faster_link_never_raises_the_bound(problem: Problem, direction: str, more: int):
    assume(tame(problem))
    name = f"{direction}_bytes_per_s"
    link = problem.machine.link
    faster = replace(link, **{name: getattr(link, name) + more * MB_PER_S})
    other = replace(problem, machine=replace(problem.machine, link=faster))
    assert verified(other) <= nearly(verified(problem))


@settings(RELAXED, max_examples=20)
@given(problems(6, pinned=False))
@pytest.mark.skipif(SOLVER == "cbc", reason="HiGHS is not installed")
def test_both_solvers_lead_to_the_same_bound(problem: Problem):
    assume(tame(problem))
    assert verified(problem, "cbc") == pytest.approx(verified(problem, "highs"), rel=1e-6, abs=2)


@pytest.mark.parametrize("solver", _pulp.available_solvers())
@pytest.mark.parametrize(("out", "limit_ns"), [(1, 2055), (40, 1079)])
def test_bytes_and_nanoseconds_are_not_lost_in_the_tolerances_of_a_solver(
    solver: str, out: int, limit_ns: int
):
    """One byte must leave and return, 1000 ns back at 1 MB/s, in a step of 58 ns."""
    step = step_of(
        ("f0", 1, "", "a0"), ("f1", 1, "a0", "a1"), ("f2", 1, "a1", "a2"), ("F3", 1, "", "a3"),
        ("f4", 1, "a0", "a4"), ("b4", 1, "a0 a4", "g"), ("b3", 1, "a3", ""),
        ("b2", 1, "a1 a2", "h"), ("b1", 1, "h a0 a1 g", "g@1"), ("b0", 48, "g@1 a0", ""),
        a0=1, a1=1, a2=1, a3=1, a4=1, g=1, h=0,
    )  # fmt: skip
    link = Link(out * MB_PER_S, MB_PER_S, out * MB_PER_S, MB_PER_S)
    problem = Problem(step, Machine("hand", DEVICE, link), 3)
    assert verified(problem, solver) == about(limit_ns)


# --- What the solver says is not believed -----------------------------------------------------

TURNED = step_of(
    ("f0", 1000, "", "a"), ("f1", 2000, "a", "b"), ("f2", 500, "b", "c"),
    ("b2", 700, "c b", "gb"), ("b1", 900, "gb a", "ga"),
    a=8, b=8, c=4, gb=8, ga=4,
)  # fmt: skip


@pytest.mark.parametrize(
    "duals",
    [None, "zero", "negative", "huge", "nan", "infinite"],
)
def test_wrong_multipliers_only_weaken_the_bound(monkeypatch, duals):
    problem = Problem(TURNED, machine_of(), 20)
    best = best_schedule(problem)
    assert best is not None
    honest = verified(problem)
    assert problem.ideal_step_ns < honest <= best[0]
    number = {
        "zero": 0.0, "negative": -5.0, "huge": 1e30, "nan": float("nan"), "infinite": float("inf"),
    }  # fmt: skip

    def lie(model, limits, solver, *, relax):
        wrong = None if duals is None else (number[duals],) * len(model.rows)
        return _pulp.Answer(_pulp.Outcome.OPTIMAL, None, wrong, solver="liar", seconds=0.0)

    monkeypatch.setattr("slackswap_opt.formulation.bound.solve", lie)
    assert verified(problem) == problem.ideal_step_ns


@settings(RELAXED, max_examples=50)
@given(st.data())
def test_no_multipliers_whatsoever_raise_the_limit_above_a_schedule(data):
    problem = Problem(TURNED, machine_of(), data.draw(st.integers(20, 27)))
    best = best_schedule(problem)
    assert best is not None
    model = boundary_model(problem, data.draw(st.integers(1, 4))).model
    number = st.one_of(st.sampled_from((0.0, 0.0, 1.0, 1000.0)), st.floats(0, 1e6))
    duals = [data.draw(number) for _ in model.rows]
    assert problem.ideal_step_ns + certified_minimum(model, duals) <= best[0]


def test_a_solver_that_calls_everything_infeasible_proves_nothing(monkeypatch):
    monkeypatch.setattr(
        "slackswap_opt.formulation.bound.solve",
        lambda *_, **__: _pulp.Answer(
            _pulp.Outcome.INFEASIBLE, None, None, solver="liar", seconds=0.0
        ),
    )
    problem = Problem(TURNED, machine_of(), 20)
    assert verified(problem) == problem.ideal_step_ns


def test_an_ample_budget_needs_no_solver(monkeypatch):
    monkeypatch.setattr("slackswap_opt.formulation.bound.solve", None)
    problem = Problem(TURNED, machine_of(), 10**6)
    assert verified(problem) == problem.ideal_step_ns == 5100


# --- By hand ----------------------------------------------------------------------------------

AWAY = (
    ("F0", 1000, "", "a"), ("f1", 3000, "", "", 10), ("b0", 1000, "a", ""),
)  # fmt: skip
"""f1 needs all the memory there is, so the 8 bytes of a must be away meanwhile."""


@pytest.mark.parametrize("solver", _pulp.available_solvers())
def test_a_tensor_that_must_be_swapped(solver):
    problem = Problem(step_of(*AWAY, a=8), machine_of(), 10)
    # Out: 8000 ns between F0 and f1. Back: 8000 ns, of which at most the 3000 of f1 hide.
    assert bound(problem, solver=solver).step_ns == about(5000 + 8000 + 5000)
    # In truth nothing hides: f1 leaves no room for the buffer.
    assert best_schedule(problem)[0] == 5000 + 8000 + 8000


@pytest.mark.parametrize("solver", _pulp.available_solvers())
def test_a_tensor_that_is_better_rebuilt(solver):
    rows = (("f0", *AWAY[0][1:]), *AWAY[1:])
    problem = Problem(step_of(*rows, a=8), machine_of(), 10)
    assert bound(problem, solver=solver).step_ns == about(5000 + 1000)
    assert best_schedule(problem)[0] == 5000 + 1000


def test_the_latency_counts_and_the_loaded_link_does_not():
    problem = Problem(step_of(*AWAY, a=8), machine_of(latency_ns=500), 10)
    assert verified(problem) == about(5000 + 8500 + 5500)
    slow = replace(problem.machine.link, d2h_duplex_bytes_per_s=MB_PER_S / 1, shared_by=1)
    other = replace(problem, machine=replace(problem.machine, link=slow))
    assert verified(other) == verified(problem)


def test_a_pinned_limit_forbids_the_swap():
    rows = (("f0", *AWAY[0][1:]), *AWAY[1:])
    step = step_of(*(("f0", 90_000, "", "a"), *rows[1:]), a=8)
    free = Problem(step, machine_of(), 10)
    tight = Problem(step, machine_of(pinned_bytes=7), 10)
    assert best_schedule(free)[0] == 94_000 + 8000 + 8000
    assert 94_000 < verified(free) < 94_000 + 8000 + 8000
    # One buffer does not fit, but the relaxation swaps seven eighths of it.
    assert verified(free) < verified(tight) < 94_000 + 90_000
    assert best_schedule(tight)[0] == 94_000 + 90_000


def test_a_tensor_may_leave_twice_and_be_there_in_between():
    """Why each cut has variables of its own.

    a and c fit together at the turn, but X and Y each need all memory but one byte: around each of
    them c is away. Its copies hide, so the step is ideal; a model that tied the cuts together (c is
    either kept or swapped once) would charge for a second trip or forbid the first.
    """
    step = step_of(
        ("F0", 1000, "", "c"),
        ("F1", 9000, "", ""), ("FX", 1000, "", "", 10), ("F2", 9000, "", ""),
        ("B0", 1000, "c", "g"),
        ("B1", 9000, "g", ""), ("BY", 1000, "", "", 10), ("B2", 9000, "", ""),
        ("B3", 1000, "c", ""),
        c=8, g=1,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 10)
    frees: list[tuple[int, ...]] = [()] * 9
    frees[1], frees[4], frees[5], frees[8] = (0,), (0,), (1,), (0,)
    schedule = Schedule(
        tuple(range(9)), tuple(frees),
        (Copy(0, 0), Copy(0, 4)), (Copy(0, 2), Copy(0, 6)),
    )  # fmt: skip
    verdict = simulate(step, problem.machine, schedule, problem.budget_bytes)
    assert verdict.step_ns == problem.ideal_step_ns
    assert verified(problem) == problem.ideal_step_ns
    has_its_points(Program(step, problem.machine, schedule, problem.budget_bytes), verdict)


def test_copies_that_dwarf_the_step_are_not_overcharged():
    """Overheads of more than `LONGEST_OVERHEAD` ideal steps: the bound is capped, not wrong.

    Swapping `a` alone costs 1700 ns, swapping the nine empty transfers 1800 ns, but the copy
    out of `a` is longer than the model's variable for it may be.
    """
    small = [f"t{i}" for i in range(9)]
    step = step_of(
        ("F", 0, "", "a"), *((f"F{name.upper()}", 0, "", name) for name in small),
        ("BX", 0, "", "x"), ("BY", 1, " ".join(["a", *small]), ""),
        a=(9, 1400), **dict.fromkeys(small, (1, 0)), x=9,
    )  # fmt: skip
    rates = (1000 * MB_PER_S, 14_000 * MB_PER_S)
    machine = Machine("hand", DEVICE, Link(*rates, *rates, latency_ns=100))
    at = {tensor.name: number for number, tensor in enumerate(step.tensors)}
    frees: list[tuple[int, ...]] = [()] * 12
    frees[9], frees[10] = (at["a"],), (at["x"],)
    frees[11] = tuple(at[name] for name in ("a", *small))
    schedule = Schedule(tuple(range(12)), tuple(frees), (Copy(at["a"], 0),), (Copy(at["a"], 10),))
    verdict = simulate(step, machine, schedule, 18)
    assert verdict.step_ns == 1701
    assert verified(Problem(step, machine, 18)) <= 1701


@pytest.mark.parametrize("direction", ["d2h", "h2d"])
def test_a_link_that_is_faster_when_loaded_is_refused(direction):
    rates = dict.fromkeys(
        (f"{d}{load}_bytes_per_s" for d in ("d2h", "h2d") for load in ("", "_duplex")), 1e9
    )
    rates[f"{direction}_duplex_bytes_per_s"] = 1.1e9
    with pytest.raises(InputError, match="a busy link is never faster"):
        Link(**rates)

"""What public bug reports say of solvers and of plans, at the level of planners and commands.

The solver layer by itself is in test_solver.py, heuristics are in test_planners.py.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from dataclasses import replace
from multiprocessing import get_context
from pathlib import Path

import pulp
import pytest

from slackswap_opt.formulation import _cbc, _highs, _pulp
from slackswap_opt.formulation._answers import Outcome, Reply
from slackswap_opt.formulation._pulp import available_solvers
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.formulation.boundary import boundary_model
from slackswap_opt.formulation.compact import compact_model
from slackswap_opt.formulation.sets import Sets, Tightening
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import PlanResult, Problem, Schedule, Status
from slackswap_opt.planners import HEURISTICS, PLANNERS, IlpOptions, greedy, ilp
from slackswap_opt.simulator import simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep
from slackswap_opt.study import Settings, compare
from slackswap_opt.workloads import build_step, load_workload
from tests.brute_force import best_schedule
from tests.hand import machine_of, step_of, values
from tests.processes import children

SOLVERS = available_solvers()
CBC = pytest.mark.skipif("cbc" not in SOLVERS, reason="no CBC program")
each_solver = pytest.mark.parametrize("solver", SOLVERS)
ROOT = Path(__file__).parent.parent
GIB = 2**30


def chain(layers: int, size: int = 8, forward_ns: int = 1000) -> TrainingStep:
    """Identical layers, whose activations are all saved."""
    rows = [(f"f{k}", forward_ns, f"a{k - 1}" if k else "", f"a{k}") for k in range(layers)]
    rows += [
        (f"b{k}", 2000, f"a{k} g{k + 1}" if k + 1 < layers else f"a{k}", f"g{k}")
        for k in reversed(range(layers))
    ]
    sizes = dict.fromkeys((f"a{k}" for k in range(layers)), size)
    sizes |= dict.fromkeys((f"g{k}" for k in reversed(range(layers))), 4)
    return step_of(*rows, **sizes)


def tight(layers: int, share: float = 0.6, rate: int = 4) -> Problem:
    problem = Problem(chain(layers), machine_of(rate), 1)
    return problem.with_budget(int(problem.liveness.ideal_peak_bytes * share))


def best_heuristic(problem: Problem) -> PlanResult:
    found = [planner(problem) for planner in HEURISTICS.values()]
    return min((r for r in found if r.step_ns is not None), key=lambda r: r.step_ns)


def confirmed(problem: Problem, result: PlanResult) -> None:
    """The referee agrees with the result, row by row and byte by byte."""
    assert result.schedule is not None
    verdict = simulate(problem.step, problem.machine, result.schedule, problem.budget_bytes)
    assert verdict.fits
    assert verdict.step_ns == result.step_ns
    assert verdict.peak_bytes <= problem.budget_bytes


# --- A solver that cannot be trusted ----------------------------------------------------------

LIES = {
    "dies": Reply(Outcome.FAILED, "liar 1.0", note="it ended with status 1"),
    "hangs": Reply(Outcome.FAILED, "liar 1.0", timed_out=True, note="it was stopped after 1 s"),
    "calls all infeasible": Reply(Outcome.INFEASIBLE, "liar 1.0"),
    "finds nothing": Reply(Outcome.NOTHING, "liar 1.0", timed_out=True),
    "everything is one": Reply(Outcome.OPTIMAL, "liar 1.0", dict.fromkeys(range(9999), 1.0)),
    "everything is zero": Reply(Outcome.OPTIMAL, "liar 1.0"),
    "wrong multipliers": Reply(Outcome.OPTIMAL, "liar 1.0", {}, dict.fromkeys(range(9999), 1e6)),
}


@pytest.mark.parametrize(
    ("lie", "layers"),
    [
        *((lie, 5) for lie in LIES),
        *(pytest.param(lie, 70, marks=pytest.mark.slow) for lie in LIES if lie != "dies"),
        ("dies", 70),
    ],
)
def test_whatever_a_solver_says_the_plan_is_the_best_verified_one(monkeypatch, lie, layers):
    """On short steps and on long ones, for which another model is used."""
    monkeypatch.setattr(_cbc, "run", lambda *_, **__: LIES[lie])
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: "/bin/liar")
    problem = tight(layers) if layers < 10 else tight(layers, share=0.4, rate=1)
    known = best_heuristic(problem)
    limit = bound(problem, solver="cbc")
    assert problem.ideal_step_ns <= limit.step_ns <= known.step_ns
    result = ilp(problem, IlpOptions(gap=0.0, seconds=1, bound=replace(limit, solver="")))
    confirmed(problem, result)
    assert result.step_ns <= known.step_ns
    assert result.status in (Status.FALLBACK, Status.FEASIBLE)
    # None: the time was over before it was asked; another one looks at "infeasible" again.
    assert result.solver is None or result.solver.split(", ")[0] == "liar 1.0"


def test_a_failure_is_named_in_the_result(monkeypatch):
    monkeypatch.setattr(_cbc, "run", lambda *_, **__: LIES["dies"])
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: "/bin/liar")
    problem = tight(5, share=0.5)
    best = best_heuristic(problem)
    options = IlpOptions(bound=Bound(problem.ideal_step_ns, -1, "", 0.0), starts=(best,))
    result = ilp(problem, options)
    assert result.status is Status.FALLBACK
    assert "it ended with status 1" in result.reason
    assert f"it is the schedule of {best.planner}" in result.reason


def test_a_wrong_optimum_costs_speed_and_never_the_certificate(monkeypatch):
    """A feasible answer that is called optimal and is not: the gap says how far it may be."""
    problem = tight(5)
    honest = ilp(problem)

    def first_feasible(program, path, limits, start, *, is_lp, options=()):
        return real(program, path, replace(limits, gap_ns=10**9, nodes=1), start, is_lp=is_lp)

    real = _cbc.run
    if "cbc" in SOLVERS:
        monkeypatch.setattr(_cbc, "run", first_feasible)
    result = ilp(problem)
    confirmed(problem, result)
    assert result.step_ns >= honest.step_ns >= bound(problem).step_ns


# --- Time ---------------------------------------------------------------------------------------


@each_solver
def test_many_identical_tensors_end_at_the_limit_with_the_better_plan(solver):
    """Symmetric models keep branch and bound busy closing the last hundredth of a percent."""
    problem = tight(100, share=0.4, rate=1)
    known = best_heuristic(problem)
    result = ilp(problem, IlpOptions(gap=0.0, seconds=2, solver=solver))  # without: hours
    confirmed(problem, result)
    assert result.step_ns <= known.step_ns


def test_a_result_that_the_clock_stopped_is_labelled():
    problem = tight(70, share=0.4, rate=1)
    result = ilp(problem, IlpOptions(gap=0.0, seconds=0.5))
    assert result.time_limited
    assert result.status is not Status.OPTIMAL
    (row,) = compare([problem], {"ilp": ilp}, Settings(gap=0.0, seconds=0.5))
    assert row.time_limited


@each_solver
def test_the_same_input_gives_the_same_plan(solver):
    """Where the gap or a limit on work stops it."""
    problem = tight(12)
    first, second = (ilp(problem, IlpOptions(seconds=900, solver=solver)) for _ in range(2))
    assert not first.time_limited
    assert (first.schedule, first.plan, first.step_ns) == (
        second.schedule,
        second.plan,
        second.step_ns,
    )


@each_solver
def test_the_solver_and_its_version_are_in_the_result(solver):
    problem = tight(5, share=0.5)
    result = ilp(problem, IlpOptions(solver=solver))
    name = {"cbc": "CBC", "highs": "HiGHS"}[solver]
    assert result.solver.split()[0] == name
    assert len(result.solver.split()) == 2
    (row,) = compare([problem], {"ilp": ilp}, Settings(solver=solver))
    assert row.solver == result.solver


# --- Several at once ----------------------------------------------------------------------------


def planned(task: tuple[int, str]) -> tuple[int, Schedule]:
    layers, solver = task
    result = ilp(tight(layers), IlpOptions(seconds=120, solver=solver))
    assert not result.time_limited
    return result.step_ns, result.schedule


TASKS = [(3 + n // 2 % 3, SOLVERS[n % len(SOLVERS)]) for n in range(16)]


@pytest.fixture(scope="module")
def alone() -> list[tuple[int, Schedule]]:
    """What one planner answers to each task."""
    known = {task: planned(task) for task in set(TASKS)}
    return [known[task] for task in TASKS]


def threads_of(tasks: list[tuple[int, str]]) -> list[tuple[int, Schedule]]:
    with ThreadPoolExecutor(len(tasks)) as pool:
        return list(pool.map(planned, tasks))


@pytest.mark.slow
def test_sixteen_planners_in_threads_give_the_answers_that_one_gives(alone):
    assert threads_of(TASKS) == alone


@pytest.mark.slow
def test_sixteen_planners_in_processes_and_threads_give_the_answers_that_one_gives(alone):
    parts = [TASKS[n : n + 4] for n in range(0, 16, 4)]
    with ProcessPoolExecutor(4, mp_context=get_context("spawn")) as pool:
        together = [answer for part in pool.map(threads_of, parts) for answer in part]
    assert together == alone


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork") or "highs" not in SOLVERS, reason="forks with HiGHS")
@pytest.mark.filterwarnings("ignore:.*multi-threaded, use of fork.*:DeprecationWarning")
def test_a_forked_planner_starts_a_solver_of_its_own():
    _highs.end_idle()
    before = planned((5, "highs"))
    (mine,) = {worker.process.pid for worker in _highs._pool.idle}
    with get_context("fork").Pool(2) as pool:
        assert pool.map(planned, [(5, "highs"), (6, "highs")])[0] == before
    assert planned((5, "highs")) == before
    assert mine in {worker.process.pid for worker in _highs._pool.idle}


# --- Interrupted --------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@each_solver
def test_ctrl_c_in_a_sweep_leaves_no_file_and_no_process(solver, tmp_path):
    command = [sys.executable, "-m", "slackswap_opt", "sweep", "bert-large", "--layers", "6"]
    with subprocess.Popen(
        [*command, "-b", "50%", "-b", "40%", "--gap", "0", "--solver", solver],
        stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=ROOT, start_new_session=True,
        env={**os.environ, "TMPDIR": str(tmp_path)}, text=True,
    ) as parent:  # fmt: skip
        deadline = time.monotonic() + 120
        started: set[int] = set()
        while not started:
            assert parent.poll() is None
            assert time.monotonic() < deadline
            started = children(parent.pid)
        os.killpg(parent.pid, signal.SIGINT)
        out, err = parent.communicate(timeout=120)
    assert (parent.returncode, out, err) == (130, "", "")
    deadline = time.monotonic() + 120
    while any(Path(f"/proc/{child}").exists() for child in started):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    assert not list(tmp_path.iterdir())


# --- Sizes --------------------------------------------------------------------------------------


def test_a_huge_tensor_next_to_tiny_ones():
    """60 GiB and 256 B under one budget: the plan is checked byte by byte."""
    step = step_of(
        ("f0", 10_000_000, "", "huge"), ("f1", 1000, "huge", "tiny"), ("f2", 1000, "tiny", "small"),
        ("b2", 1000, "small tiny", "g2"), ("b1", 1000, "g2 tiny", "g1"),
        ("b0", 10_000_000, "g1 huge", ""),
        huge=60 * GIB, tiny=256, small=300, g2=256, g1=256,
    )  # fmt: skip
    problem = Problem(step, machine_of(25_000), 1)
    peak = problem.liveness.ideal_peak_bytes
    for missing in (0, 1, 256, 300):
        at = problem.with_budget(peak - missing)
        result = ilp(at, IlpOptions(seconds=5))
        if result.schedule is not None:
            confirmed(at, result)
    assert ilp(problem.with_budget(peak)).step_ns == problem.ideal_step_ns


def test_models_grow_with_the_step_and_not_with_its_square():
    """48 layers of GPT-2 XL: no matrix of operations by operations."""
    machine = load_machine("a100-80gb-pcie4")
    size = {}
    for layers in (12, 48):
        problem = Problem(build_step(load_workload("gpt2-xl", layers=layers), machine), machine, 1)
        problem = problem.with_budget(problem.liveness.ideal_peak_bytes // 2)
        turn = int((~problem.step.index.forward).argmax())
        model = boundary_model(problem, turn).model
        size[layers] = sum(len(row.terms) for row in model.rows) + len(model.variables)
    assert size[48] < 4.2 * size[12]
    compact = {}
    for layers in (20, 40):
        problem = tight(layers)
        model = compact_model(Sets(problem, Tightening(), [], drained=False)).model
        compact[layers] = len(model.variables)
    assert compact[40] < 3 * compact[20]


# --- The next PuLP ------------------------------------------------------------------------------


def test_without_the_bundled_program_pulp_says_where_cbc_is(monkeypatch, tmp_path):
    """PuLP 4 has no PULP_CBC_CMD: COIN_CMD knows the program of its extra, or that on PATH."""
    monkeypatch.delattr(pulp, "PULP_CBC_CMD", raising=False)
    program = tmp_path / "cbc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)

    class Command:
        path = str(program)

        def __init__(self, **_: object) -> None:
            pass

    monkeypatch.setattr(pulp, "COIN_CMD", Command)
    assert _pulp._cbc_path() == str(program)
    monkeypatch.setattr(Command, "path", "cbc")
    monkeypatch.setenv("PATH", str(tmp_path))
    assert _pulp._cbc_path() == str(program)
    monkeypatch.setenv("PATH", "")
    assert _pulp._cbc_path() is None


def test_sums_are_built_as_the_next_pulp_wants_them():
    expected = getattr(pulp.LpAffineExpression, "from_list", pulp.LpAffineExpression)
    assert _pulp._sum == expected


# --- What recompute means -----------------------------------------------------------------------


@pytest.mark.parametrize("name", PLANNERS)
def test_a_collective_is_never_issued_again(name):
    """An all-gather is cheap and its result is big, and still only what follows it runs again."""
    step = step_of(
        ("f0", 5000, "", "a"), ("ALL_GATHER", 1, "a", "gathered"), ("f2", 3000, "gathered", "c"),
        ("f3", 100, "c", "d"), ("b3", 4000, "d", "g"), ("b2", 5000, "c gathered g", "h"),
        ("b0", 5000, "a h", ""),
        a=4, gathered=60, c=20, d=20, g=4, h=4,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 1)
    ran = 0
    for budget in (84, 92, 100, 108):
        result = PLANNERS[name](problem.with_budget(budget))
        if result.schedule is not None:
            confirmed(problem.with_budget(budget), result)
            again = result.schedule.reexecutions()
            assert 1 not in again
            ran += len(again)
    assert name not in ("recompute-all", "ilp") or ran > 0


@pytest.mark.parametrize("name", PLANNERS)
def test_a_recomputed_segment_counts_with_its_gradients(name):
    """One segment over the whole net: rebuilding it holds all of it at once, and a gradient."""
    step = chain(6)
    problem = Problem(step, machine_of(), 1)
    peak = problem.liveness.ideal_peak_bytes
    assert peak == 6 * 8 + 4
    for budget in (20, 32, 44):
        at = problem.with_budget(budget)
        result = PLANNERS[name](at)
        if result.schedule is not None:
            confirmed(at, result)
    if name == "recompute-all":
        result = HEURISTICS[name](problem.with_budget(peak))
        verdict = simulate(step, problem.machine, result.schedule, peak)
        assert len(result.schedule.reexecutions()) > 0
        assert verdict.peak_bytes > 3 * 8  # several activations are back at once


@each_solver
def test_near_the_ideal_peak_hardly_anything_is_lost(solver):
    """0.99, 1.0 and 1.01 of what keeping everything takes."""
    rows = [(f"f{k}", 1000, f"a{k - 1}" if k else "", f"a{k}") for k in range(20)]
    rows += [(f"b{k}", 2000, f"a{k}", "") for k in reversed(range(20))]
    problem = Problem(step_of(*rows, **{f"a{k}": 50 for k in range(20)}), machine_of(), 1)
    peak = problem.liveness.ideal_peak_bytes
    options = IlpOptions(gap=0.0, seconds=120, solver=solver)
    for share in (100, 101):
        at = problem.with_budget(peak * share // 100)
        assert ilp(at, options).step_ns == problem.ideal_step_ns
    result = ilp(problem.with_budget(peak * 99 // 100), options)
    assert problem.ideal_step_ns < result.step_ns <= problem.ideal_step_ns + 1000


@each_solver
def test_a_knapsack_of_three_with_room_for_one(solver):
    step = TrainingStep.build(
        "knapsack",
        [
            *(Operation(f"f{k}", Phase.FORWARD, 1000, (), values(f"t{k}")) for k in range(3)),
            Operation("bx", Phase.BACKWARD, 1000, (), (), 20),
            *(Operation(f"b{k}", Phase.BACKWARD, 1000, values(f"t{k}")) for k in range(3)),
        ],
        [Tensor.of(f"t{k}", 10) for k in range(3)],
    )
    problem = Problem(step, machine_of(), 30)
    result = ilp(problem, IlpOptions(solver=solver))
    confirmed(problem, result)
    assert result.step_ns == problem.ideal_step_ns + 2000 == best_schedule(problem)[0]
    assert greedy(problem).step_ns == result.step_ns


@each_solver
def test_less_than_the_logits_and_their_gradient_names_the_operation(solver):
    step = step_of(
        ("embed", 100, "", "x"), ("lm_head", 1000, "x", "logits"),
        ("bloss", 500, "logits", "dlogits"), ("bhead", 900, "dlogits x", "dx"),
        x=10, logits=100, dlogits=100, dx=10,
    )  # fmt: skip
    problem = Problem(step, machine_of(), 199)
    (row,) = compare([problem], {"ilp": ilp}, Settings(solver=solver))
    assert row.status == "infeasible"
    assert "'bloss'" in row.reason
    assert "200 bytes" in row.reason

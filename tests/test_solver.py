"""Solvers and what they are known to get wrong: each case was reported against one of them."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from multiprocessing import get_context
from pathlib import Path
from types import SimpleNamespace

import pulp
import pytest

from slackswap_opt.errors import InputError, SolverUnavailableError
from slackswap_opt.formulation import _cbc, _highs, _pulp
from slackswap_opt.formulation._answers import Reply
from slackswap_opt.formulation._pulp import Limits, Outcome, available_solvers, solve
from slackswap_opt.formulation.bound import Bound, bound
from slackswap_opt.formulation.linear import LinearModel
from slackswap_opt.machine import Link, Machine
from slackswap_opt.plan import Problem, Status
from slackswap_opt.planners import IlpOptions, greedy, ilp
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.processes import children
from tests.solver_models import MIB, eviction, market_split
from tests.strategies import DEVICE, MB_PER_S

SOLVERS = available_solvers()
CBC = pytest.mark.skipif("cbc" not in SOLVERS, reason="no CBC program")
HIGHS = pytest.mark.skipif("highs" not in SOLVERS, reason="HiGHS is not installed")
each_solver = pytest.mark.parametrize("solver", SOLVERS)
ROOT = Path(__file__).parent.parent


def objective(model: LinearModel, values) -> int:
    """The objective of the whole point next to what a solver says, after checking every row."""
    point = [round(v) for v in values]
    assert model.violated(point) is None
    return model.constant + sum(c * point[x] for x, c in model.objective.items())


def problem_of(names: list[str] | None = None, layers: int = 4, budget: int = 20) -> Problem:
    """A chain of `layers` activations of 8 bytes, whose operations and tensors may be named."""
    named = names or [f"f{k}" for k in range(layers)]
    layers = len(named)
    operations = [
        Operation(
            name, Phase.FORWARD, 1000, (Value(f"{named[k - 1]}!"),) if k else (),
            (Value(f"{name}!"),),
        )
        for k, name in enumerate(named)
    ]  # fmt: skip
    for k, name in reversed(list(enumerate(named))):
        gradient = (Value(f"d{named[k + 1]}"),) if k + 1 < layers else ()
        reads = (Value(f"{name}!"), *gradient)
        operations.append(Operation(f"b{name}", Phase.BACKWARD, 2000, reads, (Value(f"d{name}"),)))
    tensors = [Tensor.of(f"{name}!", 8) for name in named]
    tensors += [Tensor.of(f"d{name}", 4) for name in named]
    step = TrainingStep.build("chain", operations, tensors)
    machine = Machine("hand", DEVICE, Link.symmetric(4 * MB_PER_S))
    return Problem(step, machine, budget)


# --- Scale ------------------------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize("first", range(0, 200, 50))
def test_costs_of_microseconds_are_told_apart(solver, first):
    """With the objective in seconds CBC calls up to 27 of 30 such plans optimal that are not."""
    for seed in range(first, first + (30 if solver == "highs" else 15)):
        model, least = eviction(seed, tensors=5 + seed % 4)
        answer = solve(model, Limits(20), solver)
        assert answer.outcome is Outcome.OPTIMAL
        assert objective(model, answer.values) == least, seed


@CBC
@pytest.mark.slow
def test_costs_of_microseconds_are_told_apart_in_200_models():
    for seed in range(200):
        model, least = eviction(seed, tensors=5 + seed % 6)
        assert objective(model, solve(model, Limits(20), "cbc").values) == least, seed


@each_solver
@pytest.mark.parametrize(
    ("sizes", "costs", "budget", "least"),
    [
        ([20, 34, 13, 42], [41, 15, 6, 31], 49, 46),
        ([31, 39, 14, 51, 62], [14, 10, 9, 6, 30], 88, 30),
    ],
)
def test_reported_models_that_fail_in_seconds(solver, sizes, costs, budget, least):
    model = LinearModel()
    keep = [model.binary() for _ in sizes]
    model.constant = sum(costs) * 1000
    model.objective = {x: -cost * 1000 for x, cost in zip(keep, costs, strict=True)}
    model.at_most([(m * MIB, x) for m, x in zip(sizes, keep, strict=True)], budget * MIB, "memory")
    answer = solve(model, Limits(20), solver)
    assert objective(model, answer.values) == least * 1000


@each_solver
def test_a_huge_and_a_tiny_tensor_in_one_row(solver):
    """60 GiB next to 256 B: every byte counts when the answer is checked."""
    model = LinearModel()
    huge, tiny, middle = (model.binary() for _ in range(3))
    sizes = {huge: 60 * 2**30, tiny: 256, middle: 300 * MIB}
    model.objective = {huge: -5_000_000, tiny: -1000, middle: -40_000}
    model.constant = 5_041_000
    model.at_most(((m, x) for x, m in sizes.items()), 60 * 2**30 + 300 * MIB + 256, "memory")
    assert objective(model, solve(model, Limits(20), solver).values) == 0
    tight = LinearModel(list(model.variables), objective=dict(model.objective), constant=5_041_000)
    tight.at_most(((m, x) for x, m in sizes.items()), 60 * 2**30 + 200 * MIB, "memory")
    assert objective(tight, solve(tight, Limits(20), solver).values) == 40_000


@each_solver
def test_big_coefficients_do_not_make_a_feasible_model_infeasible(solver):
    """100.4534 x + 1e12 y <= 1e12, 100.4534 x - 1e12 y <= 0 has the solution (0, 0).

    HiGHS calls it infeasible as written; scaled rows and a second opinion make it feasible.
    """
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_most([(1_004_534, x), (10**16, y)], 10**16, "first")
    model.at_most([(1_004_534, x), (-(10**16), y)], 0, "second")
    assert model.violated([0, 0]) is None
    answer = solve(model, Limits(20), solver)
    assert answer.outcome is Outcome.OPTIMAL
    objective(model, answer.values)


# --- What the outcome means -------------------------------------------------------------------


def reported_infeasible() -> LinearModel:
    """Five binaries of which CBC says that they are infeasible; all x at 1 costs nothing."""
    model = LinearModel()
    x0, x1, x2, c0, c1 = (model.binary() for _ in range(5))
    model.objective = {c0: 1000, c1: 1000}
    model.equal([(1, x0), (1, c1)], 1, "a")
    model.at_least([(1, x0), (1, c0)], 1, "b")
    model.at_most([(1, x1), (1, c1)], 1, "c")
    model.at_most([(1, c0), (1, c1)], 1, "d")
    model.equal([(1, x2)], 1, "e")
    model.at_least([(9000, x1), (7200, x2), (10800, c1)], 16200, "f")
    assert model.violated([1, 1, 1, 0, 0]) is None
    return model


@each_solver
def test_a_feasible_model_that_cbc_calls_infeasible(solver):
    model = reported_infeasible()
    answer = solve(model, Limits(20), solver)
    assert answer.outcome is Outcome.OPTIMAL
    assert objective(model, answer.values) == 0


@CBC
def test_infeasible_is_asked_twice(monkeypatch):
    asked = []
    honest = _cbc.run

    def listen(*args, options=(), **more):
        asked.append(tuple(options))
        return honest(*args, options=options, **more)

    monkeypatch.setattr(_cbc, "run", listen)
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_least([(1, x), (1, y)], 2, "both")
    model.at_most([(1, x), (1, y)], 1, "one")
    assert solve(model, Limits(10), "cbc").outcome is Outcome.INFEASIBLE
    assert asked == [(), _cbc.PATIENT]


def test_a_claim_of_infeasibility_is_never_passed_on(monkeypatch):
    def claim(*_, **__):
        return Reply(Outcome.INFEASIBLE, "liar 1.0")

    monkeypatch.setattr(_cbc, "run", claim)
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: "/bin/liar")
    problem = problem_of()
    known = greedy(problem)
    assert known.schedule is not None
    result = ilp(problem, IlpOptions(seconds=120))
    assert result.status is not Status.INFEASIBLE
    assert result.step_ns <= known.step_ns
    assert bound(problem).step_ns == problem.ideal_step_ns


@each_solver
def test_a_time_limit_is_not_called_optimal(solver):
    model = market_split(5, 40, slack=True)
    for limit in (0.6, 5, 40):  # on a busy machine the first answer may take longer
        answer = solve(model, Limits(limit), solver)
        if answer.values is not None:
            break
    assert answer.outcome is Outcome.STOPPED
    assert answer.seconds > 0.2
    point = [round(v) for v in answer.values]
    assert model.violated(point) is None


@each_solver
def test_without_an_incumbent_there_are_no_values(solver):
    answer = solve(market_split(5, 40, slack=False), Limits(0.5), solver)
    assert answer.outcome in (Outcome.NOTHING, Outcome.FAILED)
    assert answer.values is None
    assert answer.duals is None


@each_solver
@pytest.mark.parametrize("limit", [0, -1, 0.0, float("nan")])
def test_a_limit_that_is_not_positive_is_refused(solver, limit):
    with pytest.raises(ValueError, match="time limit"):
        solve(LinearModel(), Limits(limit), solver)


def test_an_unknown_solver_is_refused():
    with pytest.raises(ValueError, match="choose from cbc, highs"):
        solve(LinearModel(), Limits(1), "gurobi")


@each_solver
def test_an_infeasible_model_has_no_values(solver):
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.objective = {x: 1}
    model.at_least([(1, x), (1, y)], 2, "both")
    model.at_most([(1, x), (1, y)], 1, "one")
    answer = solve(model, Limits(10), solver)
    assert answer.outcome is Outcome.INFEASIBLE
    assert answer.values is None


@each_solver
def test_a_variable_that_no_row_mentions_is_zero(solver):
    model = LinearModel()
    x, _, z = model.binary(), model.binary(), model.variable(7, unit=1000)
    model.objective = {x: 1000}
    model.at_least([(1, x), (0, z)], 1, "row")
    answer = solve(model, Limits(10), solver)
    assert [round(v) for v in answer.values] == [1, 0, 0]


@each_solver
def test_the_answer_names_the_solver_and_its_version(solver):
    model, _ = eviction(1, 4)
    answer = solve(model, Limits(10), solver)
    name, version = answer.solver.split()
    assert name == {"cbc": "CBC", "highs": "HiGHS"}[solver]
    assert version[0].isdigit() or version == "devel"  # what builds of CBC's next version say
    assert answer.seconds > 0


@each_solver
def test_units_do_not_change_the_answer(solver):
    answers = []
    for unit in (1, 1000, MIB):
        model = LinearModel()
        stall = model.variable(10**9, unit=unit, cost=3)
        swap = model.binary()
        model.objective[swap] = 500_000
        model.at_least([(7, stall), (5 * MIB, swap)], 2 * MIB, "work")
        answers.append(solve(model, Limits(10), solver).values)
    for values in answers:
        assert values[0] == pytest.approx(0, abs=1)
        assert values[1] == pytest.approx(1)


@each_solver
def test_a_start_is_used_and_never_makes_it_worse(solver):
    model, least = eviction(3, 8)
    start = [0.0] * len(model.variables)
    for again in list(model.objective):
        start[again] = 1.0
    assert model.violated([int(v) for v in start]) is None
    answer = solve(model, Limits(20), solver, start)
    assert objective(model, answer.values) == least


@each_solver
def test_a_start_is_an_incumbent_when_there_is_no_time_to_find_one(solver):
    """The only solution of a market split: without it, neither finds one (see above)."""
    rng = random.Random(5)
    model = LinearModel()
    x = [model.binary() for _ in range(40)]
    known = [rng.randint(0, 1) for _ in x]
    for _ in range(5):
        weights = [rng.randint(1, 99) for _ in x]
        total = sum(w * v for w, v in zip(weights, known, strict=True))
        model.equal(zip(weights, x, strict=True), total, "split")
    model.objective = {x[0]: 1000 if known[0] else -1000}
    answer = solve(model, Limits(0.6), solver, [float(v) for v in known])
    assert answer.outcome is Outcome.STOPPED
    assert [round(v) for v in answer.values] == known


# --- What is checked --------------------------------------------------------------------------


def replying(monkeypatch, values: dict[int, float], outcome: Outcome = Outcome.OPTIMAL) -> None:
    """Let every solver give these values."""
    reply = Reply(outcome, "liar 1.0", values)
    monkeypatch.setattr(_cbc, "run", lambda *_, **__: reply)
    monkeypatch.setattr(_highs, "run", lambda *_, **__: reply)


@pytest.mark.parametrize(
    ("values", "complaint"),
    [
        ({0: 1.0, 1: 1.0}, "breaks a row (memory)"),
        ({0: 0.4, 1: 0.0}, "leaves an integer variable at 0.4"),
        ({0: 2.0, 1: 0.0}, "puts a variable at 2, outside of 0 to 1"),
        ({0: -1.0, 1: 0.0}, "puts a variable at -1"),
        ({0: float("nan")}, "puts a variable at nan"),
    ],
    ids=["row", "fraction", "above", "below", "nan"],
)
@pytest.mark.parametrize("outcome", [Outcome.OPTIMAL, Outcome.STOPPED])
def test_an_answer_that_breaks_the_model_is_a_failure(monkeypatch, values, complaint, outcome):
    replying(monkeypatch, values, outcome)
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_most([(60 * 2**30, x), (256 * MIB, y)], 60 * 2**30 + 250 * MIB, "memory")
    answer = solve(model, Limits(5), SOLVERS[0])
    assert answer.outcome is Outcome.FAILED
    assert answer.values is None
    assert complaint in answer.note


def test_what_a_solver_rounds_is_no_failure(monkeypatch):
    replying(monkeypatch, {0: 0.9999999, 1: 1e-9})
    model = LinearModel()
    x, y = model.binary(), model.binary()
    model.at_least([(60 * 2**30, x), (256 * MIB, y)], 60 * 2**30, "memory")
    assert solve(model, Limits(5), SOLVERS[0]).values == (1.0, 0.0)


def test_a_plan_is_never_built_from_a_broken_answer(monkeypatch):
    """Everything kept, which is not possible: the result is a heuristic's, and says so."""
    replying(monkeypatch, dict.fromkeys(range(10_000), 1.0))
    problem = problem_of()
    result = ilp(problem, IlpOptions(seconds=120))
    assert result.status is Status.FALLBACK
    assert "the solver failed" in result.reason
    assert result.step_ns <= greedy(problem).step_ns


# --- Programs that misbehave ------------------------------------------------------------------


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """An empty temporary directory that this test alone uses."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@pytest.fixture
def fake(tmp_path, monkeypatch, temporary):
    """Put a shell script in the place of CBC, and take HiGHS away."""

    def write(body: str, *, executable: bool = True) -> Path:
        script = tmp_path / "cbc"
        script.write_text(f"#!/bin/sh\n{body}\n")
        script.chmod(0o755 if executable else 0o644)
        monkeypatch.setattr(_pulp, "_cbc_path", lambda: str(script))
        monkeypatch.setattr(_highs, "installed", lambda: False)
        return script

    return write


@pytest.fixture
def fake_highs(monkeypatch, temporary):
    """Put a Python script in the place of HiGHS."""
    _highs.end_idle()

    def write(body: str) -> None:
        hello = 'import sys, time, os, json; print(json.dumps({"version": "0.0"}), flush=True)\n'
        command = [sys.executable, "-c", hello + body]
        monkeypatch.setattr(_highs, "command", lambda: command)
        monkeypatch.setattr(_highs, "installed", lambda: True)

    yield write
    _highs.end_idle()


LAST = 'for last; do :; done; [ "$last" = -quit ] && exit 0; '
"""The last argument is the solution file, but where a program is only asked whether it runs."""
SOLUTION = LAST + 'printf "%s" '
"""Writes to the solution file."""


PATIENCE_S = 120.0
"""What a process may take for what it does at once where nothing else runs."""


def soon(holds) -> bool:
    """Whether something comes true, however busy the machine is."""
    deadline = time.monotonic() + PATIENCE_S
    while time.monotonic() < deadline:
        if holds():
            return True
        time.sleep(0.05)
    return False


def patient(ask, begun: Path):
    """An answer under the shortest limit within which the program writes that it has begun."""
    for limit in (0.3, 3, 30):
        answer = ask(limit)
        if begun.exists() and begun.read_text():
            break
    return answer


def gone(process: int) -> bool:
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return True
    return False


def test_a_program_that_never_ends_is_killed(fake, temporary, monkeypatch):
    fake("trap '' INT; echo $$ > ../../pid; while :; do sleep 0.05; done")
    monkeypatch.setattr(_cbc, "GRACE_S", 0.2)
    monkeypatch.setattr(_cbc, "STOPPING_S", 0.2)
    pid = temporary.parent / "pid"
    answer = patient(lambda limit: solve(eviction(1, 4)[0], Limits(limit), "cbc"), pid)
    assert answer.outcome is Outcome.FAILED
    assert answer.values is None
    assert answer.timed_out
    assert "stopped after" in answer.note
    assert gone(int((temporary.parent / "pid").read_text()))
    assert not list(temporary.iterdir())


@CBC
def test_an_overrunning_cbc_is_interrupted_and_gives_its_incumbent(monkeypatch):
    """Its own limit is far away; ours is not."""
    honest = subprocess.Popen

    limits = (0.5, 5.5, 50.5)  # a busy machine takes longer to begin

    def unhurried(command, **more):
        command = ["1000" if word in map(str, limits) else word for word in command]
        return honest(command, **more)

    monkeypatch.setattr(subprocess, "Popen", unhurried)
    monkeypatch.setattr(_cbc, "GRACE_S", 1.0)
    model = market_split(5, 40, slack=True)
    for limit in limits:
        answer = solve(model, Limits(limit), "cbc", [0.0] * len(model.variables))
        if answer.values is not None:
            break
    assert answer.outcome is Outcome.STOPPED
    assert answer.timed_out
    assert model.violated([round(v) for v in answer.values]) is None


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("exit 1", "status 1"),
        ("kill -9 $$", "status -9"),
        ("exit 0", "no solution"),
        (SOLUTION + '"" > "$last"', "cannot be read"),
        (SOLUTION + '"Optimal - objective value 0\nnonsense here" > "$last"', "cannot be read"),
        (SOLUTION + '"Optimal - objective value 0\n0 x0 one 0\n" > "$last"', "cannot be read"),
        (SOLUTION + '"Optimal - objective value 0\n0 x0 nan 0\n" > "$last"', "cannot be read"),
        (SOLUTION + '"Splendid\n" > "$last"', "its first line is 'Splendid"),
        (LAST + 'head -c 4000 /dev/urandom > "$last"', ""),
        (SOLUTION + '"Optimal - objective value 0\n" > "$last"', "breaks a row (state)"),
    ],
    ids=[
        "exit-1", "killed", "silent", "empty", "short-line", "not-a-number", "nan", "splendid",
        "binary", "wrong",
    ],
)  # fmt: skip
def test_a_program_that_fails_is_reported(fake, temporary, body, note):
    fake(body)
    answer = solve(eviction(1, 4)[0], Limits(5), "cbc")
    assert answer.outcome is Outcome.FAILED
    assert answer.values is None
    assert note in answer.note
    assert not list(temporary.iterdir())


@pytest.mark.parametrize(
    ("line", "outcome"),
    [
        ("Stopped on time (no integer solution - continuous used) - objective value 3", "NOTHING"),
        ("Stopped on time - objective value 1e+50", "NOTHING"),
        ("Stopped on iterations - objective value 3", "STOPPED"),
        ("Optimal (within gap tolerance) - objective value 3", "OPTIMAL"),
        ("Integer infeasible - objective value 3", "INFEASIBLE"),
        ("Infeasible - objective value 3", "INFEASIBLE"),
        ("Unbounded - objective value 3", "NOTHING"),
    ],
)
def test_the_first_line_of_a_solution(fake, line, outcome):
    fake(SOLUTION + f'"{line}\n 0 x0 1 0\n" > "$last"')
    model = LinearModel()
    x = model.binary()
    model.objective = {x: 3000}
    model.at_least([(1, x)], 1, "one")
    answer = solve(model, Limits(5), "cbc")
    assert answer.outcome is Outcome[outcome]
    assert (answer.values == (1.0,)) == (outcome in ("STOPPED", "OPTIMAL"))
    assert answer.timed_out == ("on time" in line)


def test_a_crash_while_it_is_asked_again_leaves_nothing_known(fake):
    """CBC 2.10 can crash where it is to write that a model has no solution."""
    again = 'case "$*" in *"-preprocess off"*) : > "$last"; kill -11 $$;; esac; '
    fake(LAST + again + SOLUTION + '"Infeasible - objective value 3\n" > "$last"')
    answer = solve(eviction(1, 4)[0], Limits(5), "cbc")
    assert answer.outcome is Outcome.NOTHING
    assert answer.values is None
    assert not answer.note


BROKEN = [
    "exit 1",
    SOLUTION + '"Optimal - objective value 0\n" > "$last"',
    SOLUTION + '"Infeasible - objective value 0\n" > "$last"',
    LAST + 'head -c 4000 /dev/urandom > "$last"',
]


@pytest.mark.parametrize("body", BROKEN, ids=["dies", "wrong", "infeasible", "garbage"])
def test_bound_and_planner_survive_a_broken_solver(fake, body):
    fake(body)
    problem = problem_of()
    assert bound(problem, solver="cbc").step_ns == problem.ideal_step_ns
    result = ilp(problem, IlpOptions(seconds=120, solver="cbc"))
    assert result.step_ns <= greedy(problem).step_ns
    assert result.solver.startswith("CBC")


def test_a_planner_whose_solver_hangs_returns_what_is_known(fake, monkeypatch):
    fake("exec sleep 1000")
    monkeypatch.setattr(_cbc, "GRACE_S", 0.2)
    monkeypatch.setattr(_cbc, "STOPPING_S", 0.2)
    problem = problem_of()
    limit = Bound(problem.ideal_step_ns, 4, "", 0.0)
    result = ilp(problem, IlpOptions(seconds=1, bound=limit, starts=(greedy(problem),)))
    assert result.status is Status.FALLBACK
    assert "the solver failed" in result.reason
    assert result.time_limited
    assert result.step_ns <= greedy(problem).step_ns


@pytest.mark.parametrize(
    ("body", "note"),
    [
        ("sys.exit(3)", "status 3"),
        ("sys.stdin.readline(); os.kill(os.getpid(), 9)", "status -9"),
        ('sys.stdin.readline(); print("nonsense", flush=True)', "cannot be read"),
        ("sys.stdin.readline(); print(3, flush=True)", "cannot be read"),
        ('sys.stdin.readline(); print("{}", flush=True)', "cannot be read"),
        (
            'sys.stdin.readline(); print(\'{"status": "kOptimal", "values": {"0": NaN}}\')\n'
            "sys.stdout.flush()",
            "cannot be read",
        ),
        (
            'sys.stdin.readline(); print(\'{"status": "kOptimal", "values": {}}\', flush=True)',
            "breaks a row",
        ),
        (
            'sys.stdin.readline(); print(\'{"status": "kModelError"}\', flush=True)',
            "kModelError",
        ),
    ],
    ids=["exit-3", "killed", "nonsense", "number", "empty", "nan", "wrong", "error"],
)
def test_a_highs_that_fails_is_reported(fake_highs, temporary, body, note):
    fake_highs(body)
    answer = solve(eviction(1, 4)[0], Limits(5), "highs")
    assert answer.outcome is Outcome.FAILED
    assert answer.values is None
    assert note in answer.note
    assert not list(temporary.iterdir())


def test_a_highs_that_never_ends_is_killed(fake_highs, tmp_path, monkeypatch):
    monkeypatch.setattr(_highs, "GRACE_S", 0.2)
    pid = tmp_path / "pid"
    fake_highs(f'open({str(pid)!r}, "w").write(str(os.getpid())); time.sleep(1000)')
    answer = patient(lambda limit: solve(eviction(1, 4)[0], Limits(limit), "highs"), pid)
    assert answer.outcome is Outcome.FAILED
    assert answer.timed_out
    assert "stopped after" in answer.note
    assert gone(int(pid.read_text()))


@HIGHS
def test_after_a_failure_highs_is_started_anew(fake_highs, monkeypatch):
    fake_highs("sys.exit(3)")
    model, least = eviction(1, 4)
    assert solve(model, Limits(5), "highs").outcome is Outcome.FAILED
    monkeypatch.undo()
    assert objective(model, solve(model, Limits(5), "highs").values) == least


@HIGHS
def test_highs_is_started_once_and_dies_with_us(tmp_path):
    """Not even a parent that is killed leaves it behind, in the middle of a solve."""
    script = (
        "import os, threading, time\n"
        "from slackswap_opt.formulation import _highs\n"
        "from slackswap_opt.formulation._pulp import Limits, solve\n"
        "from tests.solver_models import eviction, market_split\n"
        "for seed in range(3):\n"
        "    solve(eviction(seed, 4)[0], Limits(5), 'highs')\n"
        "(worker,) = _highs._pool.idle\n"
        "print(worker.process.pid, flush=True)\n"
        "solve(market_split(5, 40, slack=False), Limits(60), 'highs')\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, text=True, cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:  # fmt: skip
        worker = int(parent.stdout.readline())
        time.sleep(0.5)
        assert not gone(worker)
        parent.kill()
    assert soon(lambda: gone(worker))


# --- No solver --------------------------------------------------------------------------------


def place_of_cbc(monkeypatch, path: str) -> None:
    """Let PuLP, 3 or 4, name this program."""
    if hasattr(pulp, "PULP_CBC_CMD"):
        monkeypatch.setattr(pulp.PULP_CBC_CMD, "pulp_cbc_path", path)
    else:
        monkeypatch.setattr(pulp, "COIN_CMD", lambda **_: SimpleNamespace(path=path))


def without_solvers(monkeypatch) -> None:
    monkeypatch.setenv("PATH", "")
    place_of_cbc(monkeypatch, "/nowhere/cbc")
    monkeypatch.setattr(_highs, "installed", lambda: False)


def test_no_solver_at_all(monkeypatch):
    without_solvers(monkeypatch)
    assert available_solvers() == ()
    model = eviction(1, 4)[0]
    with pytest.raises(SolverUnavailableError, match="pip install"):
        solve(model, Limits(5), "cbc")
    with pytest.raises(SolverUnavailableError, match="pip install"):
        solve(model, Limits(5), "highs")
    assert greedy(problem_of()).schedule is not None


@HIGHS
def test_highs_takes_the_place_of_a_cbc_that_is_missing(monkeypatch):
    without_solvers(monkeypatch)
    monkeypatch.setattr(_highs, "installed", lambda: True)
    model, least = eviction(1, 4)
    answer = solve(model, Limits(5), "cbc")
    assert answer.solver.startswith("HiGHS")
    assert objective(model, answer.values) == least


def test_a_program_that_cannot_be_started(fake):
    script = fake("exit 0", executable=False)
    with pytest.raises(SolverUnavailableError, match="cannot be started"):
        solve(eviction(1, 4)[0], Limits(5), "cbc")
    script.unlink()
    with pytest.raises(SolverUnavailableError, match="cannot be started"):
        solve(eviction(1, 4)[0], Limits(5), "cbc")
    assert "cbc" not in available_solvers()


@HIGHS
def test_a_program_for_another_system_is_as_good_as_none(fake, monkeypatch):
    """The file is there and may be executed, and the system says "no such file" all the same."""
    script = fake("")
    script.write_text("#!/nowhere/ld-musl.so\n")
    monkeypatch.setattr(_highs, "installed", lambda: True)
    assert available_solvers() == ("highs",)
    model, least = eviction(1, 4)
    answer = solve(model, Limits(5), "cbc")
    assert answer.solver.startswith("HiGHS")
    assert objective(model, answer.values) == least


def test_a_bundled_program_that_may_not_be_touched(tmp_path, monkeypatch):
    """A program without its executable bit in a read-only installation is no crash."""
    program = tmp_path / "cbc"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o444)
    without_solvers(monkeypatch)
    place_of_cbc(monkeypatch, str(program))

    def refuse(*_, **__):
        raise PermissionError("read-only file system")

    monkeypatch.setattr(os, "chmod", refuse)
    assert available_solvers() == ()


def test_a_highs_that_cannot_be_imported(monkeypatch, tmp_path):
    _highs.end_idle()
    (tmp_path / "highspy.py").write_text("raise ImportError('libhighs.so: wrong ELF class')\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "highspy", raising=False)
    with pytest.raises(SolverUnavailableError, match="cannot be imported: libhighs"):
        solve(eviction(1, 4)[0], Limits(5), "highs")


@CBC
def test_an_interrupt_leaves_nothing_behind(temporary, monkeypatch):
    started = []
    honest = subprocess.Popen.wait

    def interrupted(self, timeout=None):
        if not started:
            started.append(self)
            raise KeyboardInterrupt
        return honest(self, timeout=timeout)

    monkeypatch.setattr(subprocess.Popen, "wait", interrupted)
    with pytest.raises(KeyboardInterrupt):
        solve(market_split(5, 40, slack=True), Limits(20), "cbc")
    assert started[0].returncode is not None
    assert not list(temporary.iterdir())


@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="reads /proc")
@pytest.mark.parametrize(
    ("solver", "group"),
    [
        pytest.param("cbc", False, marks=[CBC, pytest.mark.slow]),
        pytest.param("cbc", True, marks=CBC),
        pytest.param("highs", False, marks=HIGHS),
        pytest.param("highs", True, marks=[HIGHS, pytest.mark.slow]),
    ],
)
def test_ctrl_c_leaves_no_file_and_no_process(solver, group, tmp_path):
    """In a terminal, the solver gets the signal as well."""
    script = (
        "from slackswap_opt.formulation._pulp import Limits, solve\n"
        "from tests.solver_models import eviction, market_split\n"
        "print('ready', flush=True)\n"
        f"solve(market_split(5, 40, slack=False), Limits(60), {solver!r})\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
        text=True, cwd=ROOT, start_new_session=True, env={**os.environ, "TMPDIR": str(tmp_path)},
    ) as parent:  # fmt: skip
        assert parent.stdout.readline() == "ready\n"
        assert soon(lambda: children(parent.pid) and list(tmp_path.glob("slackswap-*/*")))
        started = children(parent.pid)
        assert started
        time.sleep(0.5)
        (os.killpg if group else os.kill)(parent.pid, signal.SIGINT)
        assert parent.wait(timeout=PATIENCE_S) != 0
    assert soon(lambda: all(map(gone, started)))
    assert not list(tmp_path.iterdir())


@each_solver
def test_a_solve_leaves_nothing_behind(solver, temporary, tmp_path, monkeypatch):
    monkeypatch.chdir(temporary)
    solve(eviction(1, 4)[0], Limits(5), solver)
    assert not list(temporary.iterdir())


# --- Names ------------------------------------------------------------------------------------


@each_solver
@pytest.mark.parametrize(
    "names",
    [
        ["relu+", "relu-", "relu*", "relu/"],
        ["a" * 300, "a" * 299 + "b", "a" * 298, "z" * 500],
        ["7", "e9", "free", "-1"],
        ["größe", "层", "a b", "a\tb"],
    ],
    ids=["signs", "long", "keywords", "unicode"],
)
def test_names_never_reach_the_solver(solver, names):
    plain, odd = problem_of(layers=4), problem_of(names)
    assert bound(odd, solver=solver).step_ns == bound(plain, solver=solver).step_ns
    results = [ilp(p, IlpOptions(seconds=120, solver=solver)).step_ns for p in (plain, odd)]
    assert results[0] == results[1]


def test_what_is_not_a_number_is_refused_before_any_solver():
    nan = float("nan")
    with pytest.raises(InputError, match="operation 'f': duration_ns is nan"):
        TrainingStep.build("s", [Operation("f", Phase.FORWARD, nan)], [])
    with pytest.raises(InputError, match="tensor 't': size_bytes is inf"):
        TrainingStep.build("s", [Operation("f", Phase.FORWARD, 1)], [Tensor.of("t", float("inf"))])
    with pytest.raises(InputError, match="d2h rates must be positive"):
        Link(nan, 1e9, 1e9, 1e9)


# --- Several at once --------------------------------------------------------------------------


def answer_of(task: tuple[int, str]) -> tuple[str, tuple[int, ...], int]:
    seed, solver = task
    model, least = eviction(seed, 5)
    answer = solve(model, Limits(60), solver)
    return answer.outcome, tuple(map(round, answer.values)), objective(model, answer.values) - least


@pytest.mark.parametrize(
    "solver",
    [
        pytest.param("cbc", marks=CBC),
        pytest.param("highs", marks=[HIGHS, pytest.mark.slow]),  # sixteen libraries to load
    ],
)
def test_sixteen_threads_do_not_mix_up_their_answers(solver):
    tasks = [(seed, solver) for seed in range(32)]
    with ThreadPoolExecutor(16) as pool:
        together = list(pool.map(answer_of, tasks))
    assert together == [answer_of(task) for task in tasks]
    assert all(excess == 0 for _, _, excess in together)


@pytest.mark.slow
def test_processes_do_not_mix_up_their_answers():
    tasks = [(seed, solver) for seed in range(4) for solver in SOLVERS]
    with ProcessPoolExecutor(2, mp_context=get_context("spawn")) as pool:
        together = list(pool.map(answer_of, tasks))
    assert together == [answer_of(task) for task in tasks]


@each_solver
def test_the_same_model_gives_the_same_answer_twice(solver):
    model, _ = eviction(11, 12)
    first, second = (solve(model, Limits(20), solver) for _ in range(2))
    assert first.values == second.values


# --- Standard output --------------------------------------------------------------------------


@each_solver
def test_standard_output_stays_clean(solver, capfd):
    solve(eviction(1, 4)[0], Limits(5), solver)
    solve(eviction(1, 4)[0], Limits(5), solver, relax=True)
    captured = capfd.readouterr()
    assert captured.out == ""
    assert captured.err == ""

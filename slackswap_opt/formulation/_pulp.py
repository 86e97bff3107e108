"""The only module that imports PuLP: hands a linear model to a solver and reads the answer.

What PuLP and the solvers are known to get wrong is handled here: the objective is passed in
microseconds and bytes in MiB with rows scaled near 1; variables have short names of our own; every
solve has a temporary directory of its own; the solver process is ours to kill when it overruns; the
status is read together with whether an incumbent exists. Answers are still only proposals:
callers check them against the exact model.
"""

from __future__ import annotations

import math
import os
import re
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

import pulp

from slackswap_opt.errors import SolverUnavailableError
from slackswap_opt.formulation.linear import LinearModel

GRACE_S = 10.0
"""How long a solver may overrun its own limit before it is killed."""


class Outcome(StrEnum):
    """Why the solver stopped, as far as it can be believed."""

    OPTIMAL = "optimal"
    STOPPED = "stopped with an incumbent"
    NOTHING = "stopped without an incumbent"
    INFEASIBLE = "called infeasible"
    FAILED = "failed"


@dataclass(frozen=True)
class Answer:
    """What a solver said.

    Attributes:
        outcome: why it stopped.
        values: one per variable, None unless there is an incumbent.
        duals: one per row (LPs only), in nanoseconds per row unit; None if it gave none.
        solver: name and version.
        seconds: wall time, writing and reading included.
        timed_out: whether the clock stopped it, so that another run may answer differently.
        note: the solver's complaint where it failed.
    """

    outcome: Outcome
    values: tuple[float, ...] | None
    duals: tuple[float, ...] | None
    solver: str
    seconds: float
    timed_out: bool = False
    note: str = ""


@dataclass(frozen=True)
class Limits:
    """When a solve may stop.

    Attributes:
        seconds: wall-clock limit.
        gap_ns: absolute gap of the objective at which it may stop.
        nodes: limit on branch-and-bound nodes, a measure of work that does not depend on the clock;
            None for no limit.
    """

    seconds: float
    gap_ns: int = 0
    nodes: int | None = None


SOLVERS = ("cbc", "highs")


def available_solvers() -> tuple[str, ...]:
    """The solvers that can be used here, the default one first."""
    found = []
    if _cbc_path() is not None:
        found.append("cbc")
    if _highs_available():
        found.append("highs")
    return tuple(found)


def solve(
    model: LinearModel,
    limits: Limits,
    solver: str = "cbc",
    start: Sequence[float] | None = None,
    *,
    relax: bool = False,
) -> Answer:
    """Solve a model.

    Args:
        model: what to minimize.
        limits: when to stop.
        solver: "cbc" or "highs".
        start: values of the integer variables to start from, where the solver can use them (those
            of other variables do not count).
        relax: ignore integrality.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
        ValueError: if the limit is not positive or the solver is unknown.
    """
    if solver not in SOLVERS:
        raise ValueError(f"unknown solver {solver!r}; choose from {', '.join(SOLVERS)}")
    if not limits.seconds > 0:
        raise ValueError(f"time limit {limits.seconds} s; give a positive one")
    began = time.perf_counter()
    problem = _Translated(model, relax=relax)
    run: Callable[..., Answer] = _solve_cbc if solver == "cbc" else _solve_highs
    return run(problem, limits, start, began)


class _Translated:
    """The PuLP problem of a model, and the way back."""

    def __init__(self, model: LinearModel, *, relax: bool) -> None:
        self.model = model
        self.is_lp = relax or not any(v.integer for v in model.variables)
        self.problem = pulp.LpProblem("model", pulp.LpMinimize)
        used = {x for row in model.rows for _, x in row.terms} | set(model.objective)
        self.columns = {
            x: self.problem.add_variable(
                f"x{x}",
                0,
                variable.upper / variable.unit,
                pulp.LpInteger if variable.integer and not relax else pulp.LpContinuous,
            )
            for x, variable in enumerate(model.variables)
            if x in used
        }
        self.problem.setObjective(
            pulp.LpAffineExpression(
                [
                    (self.columns[x], cost * model.variables[x].unit / 1000)
                    for x, cost in model.objective.items()
                ]
            )
        )
        self.scales: list[float] = []
        self.constraints: list[pulp.LpConstraint] = []
        for number, row in enumerate(model.rows):
            units = [(c * model.variables[x].unit, self.columns[x]) for c, x in row.terms]
            largest = max((abs(c) for c, _ in units), default=1)
            scale = 2.0 ** math.floor(math.log2(largest)) if largest else 1.0
            self.scales.append(scale)
            expression = pulp.LpAffineExpression([(column, c / scale) for c, column in units])
            constraint = pulp.LpConstraint(
                expression, pulp.LpConstraintGE, f"r{number}", row.lower / scale
            )
            self.problem.addConstraint(constraint)
            self.constraints.append(constraint)

    def values(self) -> tuple[float, ...]:
        return tuple(
            (self.columns[x].value() or 0.0) * variable.unit if x in self.columns else 0.0
            for x, variable in enumerate(self.model.variables)
        )

    def duals(self) -> tuple[float, ...] | None:
        found = [constraint.pi for constraint in self.constraints]
        if any(pi is None for pi in found):
            return None
        return tuple(float(pi) * 1000 / s for pi, s in zip(found, self.scales, strict=True))

    def start_from(self, start: Sequence[float]) -> None:
        for x, column in self.columns.items():
            column.setInitialValue(start[x] / self.model.variables[x].unit, check=False)


# -- CBC ----------------------------------------------------------------------------------------


def _cbc_path() -> str | None:
    """The bundled program (PuLP 3), or `cbc` on PATH."""
    bundled = getattr(pulp, "PULP_CBC_CMD", None)
    for path in (getattr(bundled, "pulp_cbc_path", None), None):
        try:
            candidate = pulp.COIN_CMD(msg=False, path=path)
            if candidate.available():
                return str(candidate.path)
        except (OSError, pulp.PulpSolverError):
            continue
    return None


def _solve_cbc(
    translated: _Translated, limits: Limits, start: Sequence[float] | None, began: float
) -> Answer:
    path = _cbc_path()
    if path is None:
        raise SolverUnavailableError(
            "no CBC program was found; install one with `pip install 'pulp<4'` (it is bundled), "
            "put `cbc` on PATH, or use another solver: `pip install highspy` and --solver highs"
        )
    reader = pulp.COIN_CMD(msg=False, path=path)
    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        mps, solution = Path(folder, "model.mps"), Path(folder, "model.sol")
        columns, names, rows, _ = translated.problem.writeMPS(str(mps), rename=1)
        command = [path, str(mps)]
        if start is not None and not translated.is_lp:
            translated.start_from(start)
            first = Path(folder, "model.mst")
            reader.writesol(str(first), translated.problem, columns, names, rows)
            command += ["-mips", str(first)]
        command += ["-sec", f"{limits.seconds:g}", "-timeMode", "elapsed"]
        if not translated.is_lp:
            command += ["-allow", f"{limits.gap_ns / 1000:.9g}", "-ratio", "0"]
            if limits.nodes is not None:
                command += ["-maxNodes", str(limits.nodes)]
        command += ["-initialSolve" if translated.is_lp else "-solve"]
        command += ["-printingOptions", "all", "-solution", str(solution)]
        log, complaint = _run(command, folder, limits.seconds + GRACE_S)
        version = re.search(r"^Version:\s*(\S+)", log, re.MULTILINE)
        name = f"CBC {version.group(1)}" if version else "CBC"

        def answer(outcome: Outcome, note: str = "") -> Answer:
            has_values = outcome in (Outcome.OPTIMAL, Outcome.STOPPED)
            return Answer(
                outcome,
                translated.values() if has_values else None,
                translated.duals() if has_values and translated.is_lp else None,
                name,
                time.perf_counter() - began,
                outcome is not Outcome.OPTIMAL and time.perf_counter() - began >= limits.seconds,
                note,
            )

        if not solution.exists():
            return answer(Outcome.FAILED, complaint or "it wrote no solution")
        try:
            status, values, costs, prices, _, found = reader.readsol_MPS(
                str(solution), translated.problem, columns, names, rows
            )
        except (ValueError, IndexError, KeyError) as error:
            return answer(Outcome.FAILED, f"its solution cannot be read ({error})")
        outcome = _outcome(status, found, limits, began)
        if outcome in (Outcome.OPTIMAL, Outcome.STOPPED):
            translated.problem.assignVarsVals(values)
            translated.problem.assignVarsDj(costs)
            translated.problem.assignConsPi(prices)
        return answer(outcome)


def _outcome(status: int, found: int, limits: Limits, began: float) -> Outcome:
    if found == pulp.LpSolutionOptimal:
        overran = time.perf_counter() - began > limits.seconds
        return Outcome.STOPPED if overran else Outcome.OPTIMAL
    if found == pulp.LpSolutionIntegerFeasible:
        return Outcome.STOPPED
    if status == pulp.LpStatusInfeasible:
        return Outcome.INFEASIBLE
    return Outcome.NOTHING


def _run(command: Sequence[str], folder: str, seconds: float) -> tuple[str, str]:
    """Run a program to its end or until it overruns; returns its output and a complaint."""
    log = Path(folder, "log.txt")
    complaint = ""
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
            )
        except OSError as error:
            raise SolverUnavailableError(f"{command[0]} cannot be started: {error}") from None
        try:
            if process.wait(timeout=seconds) != 0:
                complaint = f"it ended with status {process.returncode}"
        except subprocess.TimeoutExpired:
            complaint = f"it was stopped after {seconds:g} s"
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    return log.read_text(errors="replace"), complaint


# -- HiGHS --------------------------------------------------------------------------------------


_ONE_HIGHS_AT_A_TIME = threading.Lock()
"""Its banner cannot be turned off, only diverted, and standard output is one for all threads."""


def _highs_available() -> bool:
    return bool(pulp.HiGHS(msg=False).available())


def _solve_highs(
    translated: _Translated,
    limits: Limits,
    start: Sequence[float] | None,  # noqa: ARG001 - PuLP 3.3 does not pass it on to HiGHS
    began: float,
) -> Answer:
    if not _highs_available():
        raise SolverUnavailableError(
            "HiGHS is not installed; install it with `pip install 'slackswap-opt[highs]'`"
        )
    highs = pulp.HiGHS(
        msg=False,
        timeLimit=limits.seconds,
        gapAbs=limits.gap_ns / 1000,
        gapRel=0.0,
        threads=1,
        **({} if limits.nodes is None else {"mip_max_nodes": limits.nodes}),
    )
    with _ONE_HIGHS_AT_A_TIME, _quiet_stdout():
        translated.problem.solve(highs)
    version = translated.problem.solverModel.version()
    outcome = _outcome(translated.problem.status, translated.problem.sol_status, limits, began)
    has_values = outcome in (Outcome.OPTIMAL, Outcome.STOPPED)
    return Answer(
        outcome,
        translated.values() if has_values else None,
        translated.duals() if has_values and translated.is_lp else None,
        f"HiGHS {version}",
        time.perf_counter() - began,
        outcome is not Outcome.OPTIMAL and time.perf_counter() - began >= limits.seconds,
    )


@contextmanager
def _quiet_stdout() -> Iterator[None]:
    """Keep the solver library's banner out of our standard output."""
    try:
        saved = os.dup(1)
    except OSError:
        yield
        return
    with Path(os.devnull).open("wb") as nothing:
        os.dup2(nothing.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(saved, 1)
            os.close(saved)

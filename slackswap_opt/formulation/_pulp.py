"""The only module that imports PuLP: models a linear model in it, has it solved, checks the answer.

The objective is passed in microseconds and bytes in MiB with rows scaled near 1; variables have
short names of our own; every solve has a temporary directory of its own; solvers run in processes
that end when they overrun (`_cbc`, `_highs`). What comes back is held against the bounds and rows
of the exact model: an answer that breaks one is a failure, whatever its status says. Answers are
still only proposals: no step time and no bound is taken from them.
"""

from __future__ import annotations

import functools
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import pulp

from slackswap_opt.errors import SolverUnavailableError
from slackswap_opt.formulation import _cbc, _highs
from slackswap_opt.formulation._answers import Answer, Limits, Outcome, Reply
from slackswap_opt.formulation.linear import LinearModel

__all__ = [
    "SOLVERS", "Answer", "Limits", "Outcome", "Relaxation", "available_solvers", "pulp_problem",
    "relaxation", "solve",
]  # fmt: skip

SOLVERS = ("cbc", "highs")
WHOLE = 1e-5
"""How far from whole an integer variable may come back."""
ROW = 1e-4
"""By how much a row may be missed, as a fraction of its largest coefficient in the solver's units,
and
"""
DIGITS = 1e-7
"""as a fraction of the sum of its terms: CBC writes eight digits."""
_TRIAL = 60
"""Simplex iterations for a first look at what fixing a variable costs."""
_RESOLUTION = 1 << 40
"""Rows are added up in integers of this fraction of a unit."""


def available_solvers() -> tuple[str, ...]:
    """The solvers that can be used here, the default one first; each program is tried out."""
    found = []
    cbc = _cbc_path()
    if cbc is not None and _cbc_answers(cbc):
        found.append("cbc")
    if _highs.installed():
        found.append("highs")
    return tuple(found)


_cbc_answers = functools.cache(_cbc.answers)


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
        solver: "cbc" or "highs"; where there is no CBC, HiGHS takes its place, and the answer
            says so.
        start: values of the integer variables to start from (those of other variables do not
            count).
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
    is_lp = relax or not any(variable.integer for variable in model.variables)
    first = None if start is None or is_lp else _start(model, start)
    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        path = Path(folder, "model.mps")
        pulp_problem(model, relax=relax).writeMPS(str(path))
        ask = _ask_cbc if solver == "cbc" else _highs.run
        reply = ask(path, limits, first, is_lp=is_lp)
    values = duals = None
    if reply.outcome in (Outcome.OPTIMAL, Outcome.STOPPED):
        values, complaint = _checked(model, reply, relax=relax)
        if complaint:
            reply = replace(reply, outcome=Outcome.FAILED, note=complaint)
    if reply.duals and reply.outcome is not Outcome.FAILED:
        scales = map(model.scale, model.rows)
        duals = tuple(reply.duals.get(n, 0.0) * 1000 / scale for n, scale in enumerate(scales))
    seconds = time.perf_counter() - began
    late = reply.outcome is not Outcome.OPTIMAL and seconds >= limits.seconds
    return Answer(
        reply.outcome, values, duals, reply.solver, seconds, reply.timed_out or late, reply.note
    )


@dataclass(frozen=True)
class Relaxed:
    """A relaxation with some variables fixed.

    Attributes:
        values: one per variable; None where it has no solution, or the solver found none.
        duals: one per row: in nanoseconds per row unit with values, without them multipliers that
            should prove that there is no solution; None if there are none.
        timed_out: whether the clock stopped the solver.
    """

    values: tuple[float, ...] | None = None
    duals: tuple[float, ...] | None = None
    timed_out: bool = False


class Relaxation(Protocol):
    """The relaxation of a model, to be solved again and again with some variables fixed.

    Attributes:
        solver: name and version; empty before the first solve if it is not known.
        complaints: why solves failed.
    """

    solver: str
    complaints: list[str]

    def solve(self, fixed: Mapping[int, int], seconds: float) -> Relaxed:
        """The relaxation with these variables fixed."""

    def trials(
        self, fixed: Mapping[int, int], more: Sequence[tuple[int, int]], seconds: float
    ) -> Sequence[float]:
        """Objectives in microseconds, roughly, with one more variable fixed; infinite if none.

        Empty where trying takes as long as solving.
        """


@contextmanager
def relaxation(model: LinearModel, solver: str, seconds: float) -> Iterator[Relaxation]:
    """The relaxation of a model, to be solved with variables fixed.

    HiGHS keeps it open, and starts from the last basis. CBC is asked anew each time.

    Args:
        model: what to minimize.
        solver: "cbc" or "highs".
        seconds: how long opening it may take.

    Raises:
        SolverUnavailableError: if the solver cannot be started.
    """
    if solver == "cbc" and (_cbc_path() is not None or not _highs.installed()):
        yield _Anew(model, solver)
        return
    with tempfile.TemporaryDirectory(prefix="slackswap-") as folder:
        path = Path(folder, "model.mps")
        pulp_problem(model, relax=True).writeMPS(str(path))
        try:
            with _highs.relaxation(path, seconds) as opened:
                yield _Open(model, opened)
        except _highs.EndedError:
            yield _Anew(model, solver)


class _Open:
    """A relaxation that a process of HiGHS keeps open."""

    def __init__(self, model: LinearModel, opened: _highs.Relaxation) -> None:
        self.solver = opened.name
        self.complaints: list[str] = []
        self._opened = opened
        self._units = [variable.unit for variable in model.variables]
        self._scales = [model.scale(row) for row in model.rows]
        self._used = {x for row in model.rows for _, x in row.terms} | set(model.objective)

    def solve(self, fixed: Mapping[int, int], seconds: float) -> Relaxed:
        try:
            reply = self._opened.solve(self._columns(fixed), seconds)
        except (_highs.EndedError, KeyError, TypeError, ValueError) as error:
            self.complaints.append(str(error))
            return Relaxed(timed_out=isinstance(error, _highs.EndedError) and error.overran)
        duals = tuple(
            reply.duals.get(n, 0.0) * 1000 / scale for n, scale in enumerate(self._scales)
        )
        if reply.outcome is not Outcome.OPTIMAL:
            return Relaxed(duals=duals if any(duals) else None)
        values = (reply.values.get(x, 0.0) * unit for x, unit in enumerate(self._units))
        return Relaxed(tuple(fixed.get(x, value) for x, value in enumerate(values)), duals)

    def trials(
        self, fixed: Mapping[int, int], more: Sequence[tuple[int, int]], seconds: float
    ) -> Sequence[float]:
        known = [(x, value / self._units[x]) for x, value in more]
        try:
            return self._opened.trials(self._columns(fixed), known, _TRIAL, seconds)
        except (_highs.EndedError, KeyError, TypeError, ValueError):
            return ()

    def _columns(self, fixed: Mapping[int, int]) -> dict[int, float]:
        return {x: value / self._units[x] for x, value in fixed.items() if x in self._used}


class _Anew:
    """A relaxation that is handed to a solver anew each time."""

    def __init__(self, model: LinearModel, solver: str) -> None:
        self.solver = ""
        self.complaints: list[str] = []
        self._model, self._asked = model, solver

    def solve(self, fixed: Mapping[int, int], seconds: float) -> Relaxed:
        rows = len(self._model.rows)
        answer = self._answer(self._fixed(fixed), seconds)
        if answer.values is not None and answer.duals is not None:
            return Relaxed(answer.values, answer.duals[:rows], answer.timed_out)
        if answer.outcome is not Outcome.INFEASIBLE:
            return Relaxed(timed_out=answer.timed_out)
        duals = self._answer(self._elastic(fixed), seconds).duals
        return Relaxed(duals=None if duals is None else duals[:rows])

    def trials(self, *_: object) -> Sequence[float]:
        return ()

    def _answer(self, model: LinearModel, seconds: float) -> Answer:
        answer = solve(model, Limits(seconds), self._asked, relax=True)
        self.solver = answer.solver
        if answer.outcome is Outcome.FAILED:
            self.complaints.append(answer.note)
        return answer

    def _fixed(self, fixed: Mapping[int, int]) -> LinearModel:
        model = LinearModel(
            list(self._model.variables), list(self._model.rows), dict(self._model.objective)
        )
        for x, value in fixed.items():
            model.fix(x, value)
        return model

    def _elastic(self, fixed: Mapping[int, int]) -> LinearModel:
        """By how much the rows cannot be met: its multipliers prove that they cannot."""
        model = self._fixed(fixed)
        model.objective.clear()
        for number, row in enumerate(model.rows):
            unit = int(model.scale(row))
            missing = row.lower - sum(min(0, c) * model.variables[x].upper for c, x in row.terms)
            slack = model.variable(max(unit, missing), unit=unit)
            model.objective[slack] = 1000
            model.rows[number] = replace(row, terms=(*row.terms, (1, slack)))
        return model


# -- The model in PuLP ----------------------------------------------------------------------------


def pulp_problem(model: LinearModel, *, relax: bool = False) -> pulp.LpProblem:
    """The model as a PuLP problem, for any solver that PuLP knows.

    Column `xN` is variable N divided by its unit, the objective is in microseconds, row `rN` is
    row N divided by a power of two near its largest coefficient. Variables that play no part are
    left out.

    Args:
        model: what to minimize.
        relax: ignore integrality.
    """
    problem = pulp.LpProblem("model", pulp.LpMinimize)
    used = {x for row in model.rows for _, x in row.terms} | set(model.objective)
    units = [variable.unit for variable in model.variables]
    columns = {
        x: problem.add_variable(
            f"x{x}",
            0,
            variable.upper / variable.unit,
            pulp.LpInteger if variable.integer and not relax else pulp.LpContinuous,
        )
        for x, variable in enumerate(model.variables)
        if x in used
    }
    problem.setObjective(
        _sum([(columns[x], cost * units[x] / 1000) for x, cost in model.objective.items()])
    )
    for number, row in enumerate(model.rows):
        scale = model.scale(row)
        terms = [(columns[x], c * units[x] / scale) for c, x in row.terms]
        problem.addConstraint(_sum(terms) >= row.lower / scale, f"r{number}")
    return problem


_sum = getattr(pulp.LpAffineExpression, "from_list", pulp.LpAffineExpression)
"""A sum from pairs of a column and a factor; PuLP 4 has the first, PuLP 3 the second."""


def _start(model: LinearModel, start: Sequence[float]) -> dict[int, float]:
    return {
        x: start[x] / variable.unit
        for x, variable in enumerate(model.variables)
        if variable.integer
    }


# -- What came back -------------------------------------------------------------------------------


def _checked(
    model: LinearModel, reply: Reply, *, relax: bool
) -> tuple[tuple[float, ...] | None, str]:
    """The values, integer ones whole and all within their bounds, or what is wrong with them."""
    values = []
    for x, variable in enumerate(model.variables):
        value = reply.values.get(x, 0.0)
        most = variable.upper / variable.unit
        if not -WHOLE <= value <= most + WHOLE + DIGITS * most:
            return None, f"its answer puts a variable at {value:g}, outside of 0 to {most:g}"
        value = min(max(value * variable.unit, 0.0), float(variable.upper))
        if variable.integer and not relax:
            if abs(value - round(value)) > WHOLE:
                return None, f"its answer leaves an integer variable at {value:g}"
            value = float(round(value))
        values.append(value)
    exact = [round(value * _RESOLUTION) for value in values]
    for row in model.rows:
        missing = row.lower * _RESOLUTION - sum(c * exact[x] for c, x in row.terms)
        if missing > 0:
            size = sum(abs(c * exact[x]) for c, x in row.terms)
            if missing > ROW * model.scale(row) * _RESOLUTION + DIGITS * size:
                return None, f"its answer breaks a row ({row.family})"
    return tuple(values), ""


# -- CBC ------------------------------------------------------------------------------------------


def _cbc_path() -> str | None:
    """The program that PuLP brings (3: bundled; 4: its extra `cbc`), or `cbc` on PATH."""
    bundled = getattr(pulp, "PULP_CBC_CMD", None)
    known = bundled.pulp_cbc_path if bundled is not None else pulp.COIN_CMD(msg=False).path
    return shutil.which(known) or shutil.which("cbc")


def _ask_cbc(
    path: Path, limits: Limits, start: Mapping[int, float] | None, *, is_lp: bool
) -> Reply:
    """Ask CBC, twice where it says "infeasible"; HiGHS where there is no CBC."""
    program = _cbc_path()
    began = time.perf_counter()
    try:
        if program is None:
            raise SolverUnavailableError(
                "no CBC program was found; install one with `pip install 'pulp<4'` (it is "
                "bundled), put `cbc` on PATH, or use another solver: `pip install highspy` and "
                "--solver highs"
            )
        reply = _cbc.run(program, path, limits, start, is_lp=is_lp)
    except SolverUnavailableError:
        if not _highs.installed():
            raise
        return _highs.run(path, limits, start, is_lp=is_lp)
    left = limits.seconds - (time.perf_counter() - began)
    if reply.outcome is Outcome.INFEASIBLE and left > 0:
        more = replace(limits, seconds=left)
        second = _cbc.run(program, path, more, start, is_lp=is_lp, options=_cbc.PATIENT)
        # CBC 2.10 can crash where it is to write that a model has no solution
        died = second.outcome is Outcome.FAILED and not second.timed_out
        return replace(reply, outcome=Outcome.NOTHING) if died else second
    return reply

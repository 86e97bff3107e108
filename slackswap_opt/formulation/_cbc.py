"""Runs the CBC program on a model file and reads what it writes.

The process is ours to stop: at its limit and a grace it is interrupted, upon which CBC writes the
best solution that it has, and if that does not end it, it is killed. It never outlives the call.
"""

from __future__ import annotations

import math
import os
import re
import signal
import subprocess
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from slackswap_opt.errors import SolverUnavailableError
from slackswap_opt.formulation._answers import Limits, Outcome, Reply

GRACE_S = 2.0
"""How long CBC may overrun its own limit before it is interrupted."""
STOPPING_S = 5.0
"""How long it may then take to write what it has, before it is killed."""
PATIENT = ("-preprocess", "off", "-presolve", "off")
"""For a second opinion on "infeasible", which preprocessing has been seen to get wrong."""
DUMMY = "__dummy"
"""PuLP's column for models that minimize nothing."""
_NO_INCUMBENT = 1e50
"""The objective that stands for none."""


@dataclass(frozen=True)
class _Run:
    """How a process ended: what it printed, a complaint, and whether it had to be stopped."""

    log: str
    complaint: str
    stopped: bool


def run(
    path: str,
    model: Path,
    limits: Limits,
    start: Mapping[int, float] | None,
    *,
    is_lp: bool,
    options: Sequence[str] = (),
) -> Reply:
    """Solve a model file.

    Args:
        path: the program.
        model: an MPS file with columns `x0`, `x1` and rows `r0`, `r1` and so on; files of this
            call are written next to it.
        limits: when to stop.
        start: values by column to start from, for models with integers.
        is_lp: whether the model has no integers, and multipliers are wanted.
        options: further arguments.

    Raises:
        SolverUnavailableError: if the program cannot be started.
    """
    solution = model.with_name("model.sol")
    solution.unlink(missing_ok=True)
    command = [path, str(model)]
    if start is not None and not is_lp:
        first = model.with_name("model.mst")
        first.write_text(_start_file(start), encoding="ascii")
        command += ["-mips", str(first)]
    command += ["-sec", f"{limits.seconds:g}", "-timeMode", "elapsed", *options]
    if not is_lp:
        command += ["-allow", f"{limits.gap_ns / 1000:.9g}", "-ratio", "0"]
        if limits.nodes is not None:
            command += ["-maxNodes", str(limits.nodes)]
    command += ["-initialSolve" if is_lp else "-solve"]
    command += ["-printingOptions", "all", "-solution", str(solution)]
    ended = _run(command, model.parent, limits.seconds)
    version = re.search(r"^(?:Version:|CBC)\s+(\S+)", ended.log, re.MULTILINE)
    name = f"CBC {version[1]}" if version else "CBC"
    if not solution.exists():
        return _failed(name, ended, ended.complaint or "it wrote no solution")
    try:
        with solution.open(encoding="ascii") as lines:
            outcome, on_time = _status(next(lines, ""), is_lp=is_lp)
            values, duals = _columns_and_rows(lines)
    except (ValueError, IndexError) as error:
        return _failed(name, ended, ended.complaint or f"its solution cannot be read ({error})")
    has_values = outcome in (Outcome.OPTIMAL, Outcome.STOPPED)
    return Reply(
        outcome,
        name,
        values if has_values else {},
        duals if is_lp and outcome in (Outcome.OPTIMAL, Outcome.NOTHING) else {},
        on_time or ended.stopped,
    )


def _failed(name: str, ended: _Run, note: str) -> Reply:
    return Reply(Outcome.FAILED, name, timed_out=ended.stopped, note=note)


def _start_file(start: Mapping[int, float]) -> str:
    lines = [f"{n:>7} x{x} {value:>15.9g} {0:>23}" for n, (x, value) in enumerate(start.items())]
    return "\n".join(["Stopped on time - objective value 0", *lines, ""])


def _status(line: str, *, is_lp: bool) -> tuple[Outcome, bool]:
    """The outcome that the first line of a solution file tells, and whether time was the reason.

    Raises:
        ValueError: if it tells none.
    """
    said, _, objective = line.partition(" - objective value ")
    words = said.lower()
    if words.startswith("optimal"):
        return Outcome.OPTIMAL, False
    if words.startswith(("infeasible", "integer infeasible")):
        return Outcome.INFEASIBLE, False
    if words.startswith("unbounded"):
        return Outcome.NOTHING, False
    if words.startswith("stopped"):
        found = not (is_lp or "no integer solution" in words or _is_huge(objective))
        return Outcome.STOPPED if found else Outcome.NOTHING, "time" in words
    raise ValueError(f"its first line is {line[:40]!r}")


def _is_huge(objective: str) -> bool:
    return not abs(float(objective)) < _NO_INCUMBENT


def _columns_and_rows(lines: Iterator[str]) -> tuple[dict[int, float], dict[int, float]]:
    """Values by column and multipliers by row; lines are: number, name, value, cost or price.

    Raises:
        ValueError: if a line is not of this kind, or a number is not finite.
        IndexError: if it is too short.
    """
    values: dict[int, float] = {}
    prices: dict[int, float] = {}
    for line in lines:
        words = line.split()
        if words[0] == "**":  # a row that is broken
            del words[0]
        if words[1] == DUMMY:
            continue
        kind, number = words[1][0], int(words[1][1:])
        found = float(words[2 if kind == "x" else 3])
        if not math.isfinite(found):
            raise ValueError(f"{words[1]} is {found}")
        (values if kind == "x" else prices)[number] = found
    return values, prices


def _run(command: Sequence[str], folder: Path, seconds: float) -> _Run:
    """Run the program to its end, which may be one that we bring about."""
    log = folder / "log.txt"
    with log.open("wb") as output:
        try:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, cwd=folder
            )
        except OSError as error:
            raise SolverUnavailableError(f"{command[0]} cannot be started: {error}") from None
        try:
            with _watch(process, seconds) as stopped:
                process.wait()
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
    complaint = f"it ended with status {process.returncode}" if process.returncode else ""
    if stopped.is_set():
        complaint = f"it was stopped after {seconds + GRACE_S:g} s"
    return _Run(log.read_text(errors="replace"), complaint, stopped.is_set())


@contextmanager
def _watch(process: subprocess.Popen[bytes], seconds: float) -> Iterator[threading.Event]:
    """Interrupt the process when it overruns, then kill it; the event says that this was needed.

    Waiting with a timeout would poll, which costs more than small models take to solve.
    """
    stopped = threading.Event()

    def interrupt() -> None:
        stopped.set()
        if os.name == "nt":
            process.kill()
        else:
            process.send_signal(signal.SIGINT)

    def guard() -> None:
        if not over.wait(seconds + GRACE_S):
            interrupt()
            if not over.wait(STOPPING_S):
                process.kill()

    over = threading.Event()
    threading.Thread(target=guard, daemon=True).start()
    try:
        yield stopped
    finally:
        over.set()


def answers(path: str) -> bool:
    """Whether the program runs here: it may exist and yet be made for another system."""
    try:
        done = subprocess.run(
            [path, "-quit"], stdin=subprocess.DEVNULL, capture_output=True, timeout=30, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return False
    return done.returncode == 0

"""Asks HiGHS in processes of its own, which can be killed when they overrun.

A process is started when it is first wanted and kept for the next model, since loading the library
takes longer than most models. One process works for one caller at a time. All of them end with this
process: their input ends.
"""

from __future__ import annotations

import atexit
import contextlib
import importlib.util
import json
import math
import os
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from slackswap_opt.errors import SolverUnavailableError
from slackswap_opt.formulation import _highs_worker
from slackswap_opt.formulation._answers import Limits, Outcome, Reply

GRACE_S = 2.0
"""How long HiGHS may overrun its own limit before its process is killed, and"""
GRACE = 0.1
"""a part of the limit beside: unlike CBC, it has nothing to hand over when it is killed."""
STARTING_S = 60.0
"""How long its process may take to load the library."""
_OUTCOMES = {
    "kOptimal": Outcome.OPTIMAL,
    "kInfeasible": Outcome.INFEASIBLE,
    "kUnboundedOrInfeasible": Outcome.INFEASIBLE,  # our columns are all bounded
}
_STOPPED = {"kTimeLimit", "kSolutionLimit", "kIterationLimit", "kInterrupt", "kObjectiveBound"}


def command() -> list[str]:
    """What starts a process."""
    return [sys.executable, "-P", _highs_worker.__file__]


def installed() -> bool:
    """Whether the library can be found."""
    return importlib.util.find_spec("highspy") is not None


def end_idle() -> None:
    """End the processes that are kept for the next model."""
    _pool.end()


def _refuse_missing() -> None:
    if not installed():
        raise SolverUnavailableError(
            "HiGHS is not installed; install it with `pip install 'slackswap-opt[highs]'`"
        )


def run(model: Path, limits: Limits, start: Mapping[int, float] | None, *, is_lp: bool) -> Reply:
    """Solve a model file.

    Args:
        model: an MPS file with columns `x0`, `x1` and rows `r0`, `r1` and so on.
        limits: when to stop.
        start: values by column to start from, for models with integers; those not given are chosen.
        is_lp: whether the model has no integers, and multipliers are wanted.

    Raises:
        SolverUnavailableError: if there is no HiGHS, or it cannot be started.
    """
    _refuse_missing()
    options = {
        "time_limit": limits.seconds,
        "mip_abs_gap": limits.gap_ns / 1000,
        "mip_rel_gap": 0.0,
        **({} if limits.nodes is None else {"mip_max_nodes": limits.nodes}),
    }
    request = {"model": str(model), "options": options, "start": None if is_lp else start}
    worker = _pool.take()
    try:
        said = worker.ask(request, limits.seconds * (1 + GRACE) + GRACE_S)
        reply = _read(said, worker.name, is_lp=is_lp)
    except EndedError as error:
        return Reply(Outcome.FAILED, worker.name, timed_out=error.overran, note=str(error))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        worker.end()
        return Reply(Outcome.FAILED, worker.name, note=f"its answer cannot be read ({error!r})")
    except BaseException:
        worker.end()
        raise
    _pool.give_back(worker)
    return reply


class Relaxation:
    """A linear model that stays open in a process, to be solved with some columns fixed."""

    def __init__(self, worker: _Worker) -> None:
        self.name = worker.name
        self._worker = worker

    def solve(self, fixed: Mapping[int, float], seconds: float) -> Reply:
        """The optimum with these columns fixed; if there is none, multipliers that show it.

        Raises:
            EndedError: if the process gives no answer in time.
        """
        said = self._ask({"fixed": fixed, "seconds": seconds}, seconds)
        if said["status"] not in ("kOptimal", "kInfeasible"):
            raise EndedError(f"its status is {said['status']}", overran=said["status"] in _STOPPED)
        return _read(said, self.name, is_lp=True, ray=True)

    def trials(
        self,
        fixed: Mapping[int, float],
        more: Sequence[tuple[int, float]],
        iterations: int,
        seconds: float,
    ) -> list[float]:
        """Objectives with one more column fixed, after some iterations; infinite: infeasible.

        Raises:
            EndedError: if the process gives no answer in time.
        """
        request = {"fixed": fixed, "trials": more, "iterations": iterations, "seconds": seconds}
        found = self._ask(request, seconds)["objectives"]
        return [math.inf if objective is None else float(objective) for objective in found]

    def _ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        return self._worker.ask(request, seconds * (1 + GRACE) + GRACE_S)


@contextmanager
def relaxation(model: Path, seconds: float) -> Iterator[Relaxation]:
    """Open a model file without integers.

    Raises:
        SolverUnavailableError: if there is no HiGHS, or it cannot be started.
        EndedError: if it cannot read the model in time.
    """
    _refuse_missing()
    worker = _pool.take()
    try:
        said = worker.ask({"open": str(model)}, seconds + GRACE_S)
        if said.get("status") != "kNotset":
            raise EndedError(f"its status is {said.get('status')}")
        yield Relaxation(worker)
    except BaseException:
        worker.end()
        raise
    _pool.give_back(worker)


def _read(said: Mapping[str, Any], name: str, *, is_lp: bool, ray: bool = False) -> Reply:
    """What a reply means; raises what Python raises when it has not the shape of one."""
    status = said["status"]
    outcome = _OUTCOMES.get(status, Outcome.FAILED)
    if status in _STOPPED:
        outcome = Outcome.NOTHING if is_lp or not said["feasible"] else Outcome.STOPPED
    values = {int(x): float(value) for x, value in said.get("values", {}).items()}
    duals = {int(row): float(price) for row, price in said.get("duals", {}).items()}
    for number in (*values.values(), *duals.values()):
        if not math.isfinite(number):
            raise ValueError(f"a value is {number}")
    return Reply(
        outcome,
        name,
        values if outcome in (Outcome.OPTIMAL, Outcome.STOPPED) else {},
        duals if ray or (is_lp and outcome in (Outcome.OPTIMAL, Outcome.NOTHING)) else {},
        status == "kTimeLimit",
        f"its status is {status}" if outcome is Outcome.FAILED else "",
    )


class EndedError(Exception):
    """The process is no more; the text says how it ended.

    Attributes:
        overran: whether it was killed for taking too long.
    """

    def __init__(self, how: str, *, overran: bool = False) -> None:
        super().__init__(how)
        self.overran = overran


class _Worker:
    """One process; `name` is that of the library, with its version."""

    def __init__(self) -> None:
        path = os.pathsep.join(entry or os.curdir for entry in sys.path)
        try:
            self.process = subprocess.Popen(
                command(), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": path},
            )  # fmt: skip
        except OSError as error:
            raise SolverUnavailableError(f"HiGHS cannot be started: {error}") from None
        try:
            hello = self._reply(STARTING_S)
        except EndedError as error:
            raise SolverUnavailableError(f"HiGHS cannot be started: {error}") from None
        except BaseException:
            self.end()
            raise
        if "version" not in hello:
            self.end()
            raise SolverUnavailableError(f"HiGHS cannot be started: {hello.get('unavailable')}")
        self.name = f"HiGHS {hello['version']}"

    def ask(self, request: Mapping[str, Any], seconds: float) -> dict[str, Any]:
        """The reply to a request.

        Raises:
            EndedError: if there is none in time, or it is not JSON; the process has ended then.
        """
        assert self.process.stdin is not None
        try:
            self.process.stdin.write(json.dumps(request).encode() + b"\n")
            self.process.stdin.flush()
        except OSError:
            raise EndedError(self.end(1.0)) from None
        return self._reply(seconds)

    def _reply(self, seconds: float) -> dict[str, Any]:
        assert self.process.stdout is not None
        overran = threading.Event()

        def kill() -> None:
            overran.set()
            self.process.kill()

        timer = threading.Timer(seconds, kill)
        timer.daemon = True
        timer.start()
        try:
            line = self.process.stdout.readline()
        finally:
            timer.cancel()
        if overran.is_set():
            self.end()
            raise EndedError(f"it was stopped after {seconds:g} s", overran=True)
        if not line.endswith(b"\n"):
            raise EndedError(self.end(1.0))
        try:
            reply = json.loads(line)
        except ValueError:
            reply = None
        if not isinstance(reply, dict):
            self.end()
            raise EndedError("its answer cannot be read")
        return reply

    def end(self, patience: float = 0.0) -> str:
        """Kill the process unless it ends by itself in time; says how it ended."""
        try:
            self.process.wait(patience)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.close()
        return f"it ended with status {self.process.returncode}"

    def close(self) -> None:
        """Close our ends of the pipes."""
        for pipe in (self.process.stdin, self.process.stdout):
            with contextlib.suppress(OSError):  # what was left to write has no reader
                if pipe is not None:
                    pipe.close()


class _Pool:
    """Idle processes, at most one per processor."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.idle: list[_Worker] = []

    def take(self) -> _Worker:
        """One that is idle, or a new one."""
        with self.lock:
            while self.idle:
                worker = self.idle.pop()
                if worker.process.poll() is None:
                    return worker
                worker.close()
        return _Worker()

    def give_back(self, worker: _Worker) -> None:
        """Keep it for the next one who asks."""
        with self.lock:
            if len(self.idle) < (os.cpu_count() or 1):
                self.idle.append(worker)
                return
        worker.end()

    def end(self) -> None:
        """End all that are idle."""
        with self.lock:
            workers, self.idle = self.idle, []
        for worker in workers:
            worker.end()

    def forget(self) -> None:
        """In a forked child: the processes are those of the parent, and stay so."""
        self.lock = threading.Lock()
        workers, self.idle = self.idle, []
        for worker in workers:
            worker.close()
            worker.process.returncode = 0  # nothing for us to wait for


_pool = _Pool()
atexit.register(_pool.end)
if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_pool.forget)

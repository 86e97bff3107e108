"""A process of its own around the HiGHS library, run as a script: one line in, one line out.

It knows nothing of this package. A request names a model file and limits; the reply holds status,
values and multipliers by the numbers in the names of columns and rows. Or it opens a linear model,
which stays open to be solved again and again with some columns fixed, each time from the last
basis. The library's banner goes nowhere. The process ends with its standard input, so never
survives the one that asks.
"""

from __future__ import annotations

import json
import os
import queue
import signal
import sys
import threading
import time
from typing import Any, TextIO


def main() -> None:
    """Answer requests until there are no more."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the parent, which ends us
    replies = os.fdopen(os.dup(1), "w", encoding="utf-8")
    nowhere = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nowhere, 1)
    os.close(nowhere)
    requests: queue.SimpleQueue[str] = queue.SimpleQueue()
    threading.Thread(target=_listen, args=(requests,), daemon=True).start()
    try:
        import highspy
    except ImportError as error:
        _say(replies, {"unavailable": f"highspy cannot be imported: {error}"})
        return
    library: Any = highspy
    _say(replies, {"version": library.Highs().version()})
    relaxation: _Relaxation | None = None
    while True:
        request = json.loads(requests.get())
        if "open" in request:
            relaxation = _Relaxation(library, request["open"])
            _say(replies, {"status": relaxation.status})
        elif "fixed" in request:
            assert relaxation is not None
            _say(replies, relaxation.answer(request))
        else:
            relaxation = None
            _say(replies, _solved(library, request))


def _listen(requests: queue.SimpleQueue[str]) -> None:
    """Pass requests on; when the parent is gone, end at once, in the middle of a solve too."""
    for line in sys.stdin:
        requests.put(line)
    os._exit(0)


def _say(replies: TextIO, message: dict[str, Any]) -> None:
    replies.write(json.dumps(message) + "\n")
    replies.flush()


def _solved(highspy: Any, request: dict[str, Any]) -> dict[str, Any]:
    began = time.monotonic()
    highs = highspy.Highs()
    for name, value in {"output_flag": False, "threads": 1, **request["options"]}.items():
        highs.setOptionValue(name, value)
    if highs.readModel(request["model"]) == highspy.HighsStatus.kError:
        return {"status": "kLoadError"}
    lp = highs.getLp()
    columns = [_number(name) for name in lp.col_names_]
    if request["start"]:
        start = {int(x): value for x, value in request["start"].items()}
        chosen = [n for n, x in enumerate(columns) if x in start]
        highs.setSolution(len(chosen), chosen, [start[columns[n]] for n in chosen])
    limit = request["options"]["time_limit"]
    highs.setOptionValue("time_limit", max(0.01, limit - (time.monotonic() - began)))
    highs.run()
    if highs.getModelStatus() == highspy.HighsModelStatus.kInfeasible:
        highs.setOptionValue("presolve", "off")  # a second opinion
        highs.clearSolver()
        highs.run()
    solution = highs.getSolution()
    rows = [_number(name) for name in lp.row_names_]
    return {
        "status": highs.getModelStatus().name,
        "feasible": highs.getInfo().primal_solution_status == 2,
        "values": dict(zip(columns, solution.col_value, strict=False)),
        "duals": dict(zip(rows, solution.row_dual, strict=False)) if solution.dual_valid else {},
    }


class _Relaxation:
    """A linear model that stays open."""

    def __init__(self, highspy: Any, path: str) -> None:
        self.highspy, self.highs = highspy, highspy.Highs()
        for name, value in {"output_flag": False, "threads": 1, "presolve": "off"}.items():
            self.highs.setOptionValue(name, value)
        failed = self.highs.readModel(path) == highspy.HighsStatus.kError
        self.status = "kLoadError" if failed else "kNotset"
        lp = self.highs.getLp()
        self.columns = {_number(name): n for n, name in enumerate(lp.col_names_)}
        self.rows = [_number(name) for name in lp.row_names_]
        self.bounds = list(zip(lp.col_lower_, lp.col_upper_, strict=True))
        self.fixed: dict[int, float] = {}

    def answer(self, request: dict[str, Any]) -> dict[str, Any]:
        """The model with some columns fixed; what fixing one more would cost, if that is asked."""
        self.highs.setOptionValue("time_limit", self.highs.getRunTime() + request["seconds"])
        self._fix({int(x): value for x, value in request["fixed"].items()})
        if "trials" in request:
            return {"objectives": self._trials(request["trials"], request["iterations"])}
        self.highs.run()
        status = self.highs.getModelStatus()
        solution = self.highs.getSolution()
        reply: dict[str, Any] = {"status": status.name, "values": {}, "duals": {}}
        if status == self.highspy.HighsModelStatus.kOptimal:
            reply["values"] = {x: solution.col_value[n] for x, n in self.columns.items()}
            reply["duals"] = dict(zip(self.rows, solution.row_dual, strict=True))
        elif status == self.highspy.HighsModelStatus.kInfeasible:
            _, found, ray = self.highs.getDualRay()
            if found:
                reply["duals"] = dict(zip(self.rows, map(float, ray), strict=True))
        return reply

    def _trials(self, trials: list[list[Any]], iterations: int) -> list[float | None]:
        """Objectives with one more column fixed, each from the present basis; None: infeasible."""
        basis, before = self.highs.getBasis(), dict(self.fixed)
        infeasible = self.highspy.HighsModelStatus.kInfeasible
        self.highs.setOptionValue("simplex_iteration_limit", iterations)
        objectives = []
        for x, value in trials:
            self._fix({**before, x: value})
            self.highs.run()
            none = self.highs.getModelStatus() == infeasible
            objectives.append(None if none else self.highs.getInfo().objective_function_value)
            self._fix(before)
            self.highs.setBasis(basis)
        self.highs.setOptionValue("simplex_iteration_limit", self.highspy.kHighsIInf)
        return objectives

    def _fix(self, fixed: dict[int, float]) -> None:
        for x in self.fixed.keys() | fixed.keys():
            if self.fixed.get(x) != fixed.get(x):
                low, high = (fixed[x], fixed[x]) if x in fixed else self.bounds[self.columns[x]]
                self.highs.changeColBounds(self.columns[x], low, high)
        self.fixed = fixed


def _number(name: str) -> int:
    """The number in `x7` or `r7`; -1 for the modelling layer's own columns."""
    return int(name[1:]) if name[1:].isdigit() else -1


if __name__ == "__main__":
    main()

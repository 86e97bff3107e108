"""A process of its own around the HiGHS library, run as a script: one line in, one line out.

It knows nothing of this package. A request names a model file and limits; the reply holds status,
values and multipliers by the numbers in the names of columns and rows. The library's banner goes
nowhere. The process ends with its standard input, so never survives the one that asks.
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
    while True:
        _say(replies, _solved(library, json.loads(requests.get())))


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


def _number(name: str) -> int:
    """The number in `x7` or `r7`; -1 for the modelling layer's own columns."""
    return int(name[1:]) if name[1:].isdigit() else -1


if __name__ == "__main__":
    main()

"""The journal of a sweep: what is finished is on the disk before anything else happens.

An append-only text file, one JSON object per line, next to the output. Each line is forced to the
disk as it is written, so that a kill at any moment loses nothing that was finished. What a kill
leaves of the line it interrupted is cut off when the journal is opened again.

Lines belong to chains by their key (`slackswap_opt.study.chain.Chain.key`), a digest of the step,
the machine, the budgets, the planners, the settings and the code. A journal may hold chains of
other specifications and of earlier versions: they are left alone.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from pathlib import Path
from typing import Any, BinaryIO

from slackswap_opt.errors import InputError
from slackswap_opt.study.chain import Chain, Opened, Solved

SCHEMA = "slackswap.sweep-journal/1"


class Journal:
    """Finished parts of chains, remembered and written.

    Attributes:
        path: the file; None for a journal in memory only.
    """

    def __init__(self, path: Path | None = None, file: BinaryIO | None = None) -> None:
        self.path = path
        self._file = file
        self._opened: dict[str, Opened] = {}
        self._solved: dict[str, dict[int, Solved]] = {}
        if file is not None:
            self._read(file)

    def opened(self, chain: Chain) -> Opened | None:
        """What opening the chain gave, if that is known."""
        return self._opened.get(chain.key)

    def solved(self, chain: Chain) -> dict[int, Solved]:
        """What is known of a chain, by budget: its smallest budgets, without a gap."""
        found = self._solved.get(chain.key, {})
        opened = self._opened.get(chain.key)
        known: dict[int, Solved] = {}
        for budget in opened.ascending() if opened else ():
            if budget not in found:
                break
            known[budget] = found[budget]
        return known

    def forget_failures(self) -> None:
        """Take budgets with a failure as not done, and with them all larger ones.

        What a planner finds at the second try is a candidate at each larger budget.
        """
        for solved in self._solved.values():
            failed = [budget for budget, cell in solved.items() if cell.failed]
            for budget in [b for b in solved if failed and b >= min(failed)]:
                del solved[budget]

    def add_opened(self, chain: Chain, opened: Opened) -> None:
        """Remember and write what opening a chain gave."""
        self._opened[chain.key] = opened
        self._write({"chain": chain.key, "point": asdict(chain.point), "opened": opened.to_json()})

    def add_solved(self, chain: Chain, solved: Solved) -> None:
        """Remember and write a budget of a chain."""
        self._solved.setdefault(chain.key, {})[solved.budget_bytes] = solved
        self._write({"chain": chain.key, "solved": asdict(solved)})

    def _write(self, entry: dict[str, Any]) -> None:
        if self._file is None:
            return
        self._file.write(json.dumps(entry, separators=(",", ":")).encode() + b"\n")
        self._file.flush()
        os.fsync(self._file.fileno())

    def _read(self, file: BinaryIO) -> None:
        end = 0
        file.seek(0)
        for number, line in enumerate(file, 1):
            if not line.endswith(b"\n"):
                break  # a kill interrupted this one
            self._take(line, number)
            end += len(line)
        file.seek(end)
        file.truncate()
        if end == 0:
            self._write({"schema": SCHEMA})

    def _take(self, line: bytes, number: int) -> None:
        try:
            entry = json.loads(line)
            if number == 1:
                if entry["schema"] != SCHEMA:
                    raise ValueError(f"schema is {entry['schema']!r}, expected {SCHEMA!r}")
            elif "opened" in entry:
                self._opened[entry["chain"]] = Opened.of_json(entry["opened"])
            else:
                solved = Solved(**entry["solved"])
                self._solved.setdefault(entry["chain"], {})[solved.budget_bytes] = solved
        except (ValueError, KeyError, TypeError) as error:
            raise InputError(
                f"line {number} is not one of a sweep's journal ({error}); "
                "move the file away, or name another output",
                where=str(self.path),
            ) from None


@contextmanager
def journal_at(path: Path | None) -> Iterator[Journal]:
    """The journal in a file, new or continued; in memory only without a path.

    Raises:
        InputError: if the file is no journal, cannot be written, or another process has it.
    """
    if path is None:
        yield Journal()
        return
    try:
        file = path.open("a+b")
    except OSError as error:
        raise InputError(
            f"the journal cannot be written: {error.strerror}", where=str(path)
        ) from None
    with file:
        _lock(file, path)
        yield Journal(path, file)


def _lock(file: BinaryIO, path: Path) -> None:
    """Keep other sweeps off; the system lets go of the lock when the process ends, however."""
    if sys.platform == "win32":
        return
    import fcntl

    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        raise InputError(
            "another sweep is writing to this output; wait for it, or name another",
            where=str(path),
        ) from None

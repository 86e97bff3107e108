"""Sweeps over grids: many chains, in parallel, resumable, with failures recorded.

At any moment each chain has at most one task running: to open it, or to solve its next budget.
What a task returns is written to the journal before anything that depends on it starts.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from slackswap_opt.study.chain import (
    Chain,
    Opened,
    Solved,
    failed_rows,
    lost,
    open_chain,
    rows,
    solve_budget,
)
from slackswap_opt.study.journal import Journal, journal_at
from slackswap_opt.study.pools import Here, Pool
from slackswap_opt.study.results import FAILED, SweepRow
from slackswap_opt.study.sweep import described

Progress = Callable[[int, int, str], None]
"""Told how many rows are done, of how many, and what has just been finished."""


def _untold(done: int, total: int, what: str) -> None:
    """Progress that nobody watches."""


@dataclass(frozen=True)
class SweepResult:
    """Rows of a grid, and where they are from.

    Attributes:
        rows: workloads, machines, batch, sequence, layers, link, attained fraction, budgets and
            planners in the order of the specification, the last fastest.
        computed: rows computed now.
        reused: rows taken from the journal.
    """

    rows: tuple[SweepRow, ...]
    computed: int
    reused: int

    @property
    def failed(self) -> tuple[SweepRow, ...]:
        """The rows without an answer."""
        return tuple(row for row in self.rows if row.status == FAILED)


def run_sweep(
    chains: Sequence[Chain],
    pool: Pool | None = None,
    journal: Path | None = None,
    progress: Progress = _untold,
    *,
    retry_failed: bool = False,
) -> SweepResult:
    """Solve every chain.

    Args:
        chains: from `slackswap_opt.study.spec.chains_of`.
        pool: where tasks run; this process by default.
        journal: a file that holds what is finished; a sweep that was ended goes on from it.
        progress: told how far it is.
        retry_failed: whether failures in the journal are tried again.

    Returns:
        A row per chain, budget and planner, always in the same order. What fails is a row with the
        status "failed" and the reason.

    Raises:
        InputError: if the journal cannot be used.
    """
    with journal_at(journal) as book:
        if retry_failed:
            book.forget_failures()
        return _Run(chains, pool or Here(), book, progress).run()


@dataclass
class _State:
    """How far a chain is."""

    chain: Chain
    number: int
    opened: Opened | None
    solved: dict[int, Solved]
    fault: str = ""

    def left(self) -> list[int]:
        """The budgets that are not solved, the smallest first."""
        return [b for b in self.opened.ascending() if b not in self.solved] if self.opened else []

    def next_budget(self) -> int:
        """The smallest budget that is not solved."""
        return self.left()[0]

    @property
    def done(self) -> bool:
        return bool(self.fault) or (self.opened is not None and not self.left())

    def carried(self) -> Mapping[str, str]:
        """What the largest solved budget hands on."""
        return self.solved[max(self.solved)].carried if self.solved else {}

    def rows_at(self, budget: int) -> int:
        """How many rows a budget in bytes stands for."""
        sizes = self.opened.budget_bytes if self.opened else ()
        return sizes.count(budget) * len(self.chain.planners)

    @property
    def all_rows(self) -> int:
        return len(self.chain.budgets.texts) * len(self.chain.planners)


class _Run:
    """The state of a sweep while it runs."""

    def __init__(
        self, chains: Sequence[Chain], pool: Pool, journal: Journal, progress: Progress
    ) -> None:
        self.pool, self.journal, self.progress = pool, journal, progress
        self.states = [
            _State(c, n, journal.opened(c), journal.solved(c), c.fault)
            for n, c in enumerate(chains)
        ]
        self.total = sum(state.all_rows for state in self.states)
        self.reused = sum(s.rows_at(budget) for s in self.states for budget in s.solved)
        self.done = self.reused + sum(s.all_rows for s in self.states if s.fault)
        self.ready = deque(state for state in self.states if not state.done)
        self.suspects: deque[_State] = deque()
        self.running: dict[Future[Any], _State] = {}

    def run(self) -> SweepResult:
        self.progress(self.done, self.total, "")
        while self.ready or self.running or self.suspects:
            self._give_out()
            finished, _ = wait(self.running, return_when=FIRST_COMPLETED)
            dead = []
            for future in sorted(finished, key=lambda f: self.running[f].number):
                state = self.running.pop(future)
                if isinstance(future.exception(), BrokenExecutor):
                    dead.append(state)
                else:
                    self._take(future, state)
            if dead:
                self._worker_died([*dead, *self.running.values()])
        found = [row for state in self.states for row in _rows(state)]
        solved = sum(s.rows_at(budget) for s in self.states for budget in s.solved)
        return SweepResult(tuple(found), solved - self.reused, self.reused)

    def _give_out(self) -> None:
        """Start what can start; after the death of a worker, what it may be due to, one by one."""
        if self.suspects:
            self._start(self.suspects.popleft())
            return
        while self.ready and len(self.running) < self.pool.room:
            self._start(self.ready.popleft())

    def _start(self, state: _State) -> None:
        chain = state.chain
        if state.opened is None:
            self.running[self.pool.submit(open_chain, chain)] = state
            return
        budget = state.next_budget()
        bound = state.opened.bounds[budget]
        task = self.pool.submit(solve_budget, chain, budget, bound, dict(state.carried()))
        self.running[task] = state

    def _take(self, future: Future[Opened | Solved], state: _State) -> None:
        """Keep what a task gave."""
        error = future.exception()
        if error is not None:
            self._failed(state, described(error))
            return
        found = future.result()
        if isinstance(found, Opened):
            self.journal.add_opened(state.chain, found)
            state.opened = found
            self._go_on(state)
        else:
            self._solved(state, found)

    def _solved(self, state: _State, found: Solved) -> None:
        self.journal.add_solved(state.chain, found)
        state.solved[found.budget_bytes] = found
        self.done += state.rows_at(found.budget_bytes)
        point = state.chain.point
        self.progress(self.done, self.total, f"{point.workload} on {point.machine}")
        self._go_on(state)

    def _failed(self, state: _State, reason: str) -> None:
        """Record that a task gave nothing."""
        if state.opened is None:
            state.fault = reason
            self.done += state.all_rows
            self.progress(self.done, self.total, f"{state.chain.point.workload}: {reason}")
            return
        self._solved(state, lost(state.chain, state.next_budget(), reason, state.carried()))

    def _worker_died(self, involved: Sequence[_State]) -> None:
        """If several tasks were given out, whose fault it was is open: try each of them alone."""
        self.running.clear()
        self.pool.restart()
        if len(involved) == 1:
            self._failed(involved[0], "its worker process died; it may have run out of memory")
        else:
            self.suspects.extend(sorted(involved, key=lambda state: state.number))

    def _go_on(self, state: _State) -> None:
        if not state.done:
            self.ready.appendleft(state)  # what is begun is finished first


def _rows(state: _State) -> list[SweepRow]:
    if state.fault or state.opened is None:
        return failed_rows(state.chain, state.fault)
    return rows(state.chain, state.opened, state.solved)

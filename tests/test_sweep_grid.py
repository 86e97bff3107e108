"""Sweeps over grids: order, failures, the journal, and what a kill leaves."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from concurrent.futures import BrokenExecutor, Future
from concurrent.futures.process import BrokenProcessPool
from itertools import pairwise
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.planners import HEURISTICS, PLANNERS
from slackswap_opt.study import Settings, chains_of, pool_of, read_rows, run_sweep, spec_of, sweep
from slackswap_opt.study import chain as chain_module
from slackswap_opt.study.carry import pack, unpack
from slackswap_opt.study.compare import rows_of
from slackswap_opt.study.pools import Here, Processes
from slackswap_opt.workloads import build_step, load_workload
from tests.sweeps import SMALL, TINY, UNET, grid, timeless

ROOT = Path(__file__).parents[1]


def planners(monkeypatch: pytest.MonkeyPatch, **others: object) -> None:
    """Put other planners behind the names."""
    monkeypatch.setattr(chain_module, "PLANNERS", {**PLANNERS, **others})


def test_rows_are_in_the_order_of_the_specification():
    rows = run_sweep(grid()).rows
    assert [(r.workload, r.budget, r.planner) for r in rows] == [
        (workload, budget, planner)
        for workload in (TINY, UNET)
        for budget in ("80%", "20%", "95%")
        for planner in ("swap-all", "greedy")
    ]
    assert {r.status for r in rows if r.budget == "20%"} == {"infeasible"}


def test_a_grid_is_what_single_sweeps_give():
    (chain,) = grid(
        workloads=[TINY], budgets=["95%", "90%"], planners=["recompute-all", "greedy", "ilp"],
        gap="5%",
    )  # fmt: skip
    grid_rows = run_sweep([chain]).rows
    problem = Problem(chain.source, load_machine(), 1)
    peak = problem.liveness.ideal_peak_bytes
    cells = sweep(
        problem, [peak * 95 // 100, peak * 90 // 100],
        {name: PLANNERS[name] for name in chain.planners}, Settings(gap=0.05),
    )  # fmt: skip
    for ours, theirs in zip(grid_rows, [r for cell in cells for r in rows_of(cell)], strict=True):
        for name in ("planner", "status", "budget_bytes", "step_s", "bound_step_s", "peak_bytes",
                     "certified_gap", "kept_bytes", "swapped_bytes", "recomputed_bytes",
                     "bound_cut", "ideal_step_s"):  # fmt: skip
            assert getattr(ours, name) == getattr(theirs, name), name


def test_no_planner_gets_slower_with_more_memory(monkeypatch):
    def fickle(problem):
        """Good at small budgets, bad at large ones."""
        small = problem.budget_bytes < 0.85 * problem.liveness.ideal_peak_bytes
        return HEURISTICS["greedy" if small else "swap-all"](problem)

    planners(monkeypatch, greedy=fickle)
    rows = run_sweep(grid(workloads=[UNET], budgets=["95%", "75%", "85%", "65%"])).rows
    for planner in ("swap-all", "greedy"):
        own = sorted((r for r in rows if r.planner == planner), key=lambda r: r.budget_bytes)
        for smaller, larger in pairwise(own):
            assert larger.bound_step_s <= smaller.bound_step_s
            assert smaller.step_s is None or larger.step_s <= smaller.step_s


def test_what_is_carried_is_played_again():
    step = build_step(load_workload("gpt2-xl", layers=2), load_machine())
    problem = Problem(step, load_machine(), 1)
    problem = problem.with_budget(int(problem.liveness.ideal_peak_bytes * 0.9))
    (cell,) = sweep(problem, [problem.budget_bytes], {"greedy": PLANNERS["greedy"]})
    judged = cell.judged["greedy"]
    larger = problem.with_budget(problem.budget_bytes + 2**30)
    again = unpack(pack(judged), larger, cell.bound)
    assert again.result == judged.result
    assert again.step_ns == judged.step_ns
    assert again.capacity_bytes == problem.budget_bytes


# Failures


def test_failures_are_rows_and_the_others_are_there(monkeypatch):
    def broken(problem):
        raise ZeroDivisionError("no reason")

    planners(monkeypatch, greedy=broken)
    result = run_sweep(grid(workloads=[UNET]))
    failed = [r for r in result.rows if r.planner == "greedy" and r.budget != "20%"]
    assert {(r.status, r.reason) for r in failed} == {("failed", "ZeroDivisionError: no reason")}
    assert result.failed == tuple(failed)
    assert all(r.step_s is None and r.bound_step_s and r.ideal_peak_bytes for r in failed)
    others = [r for r in result.rows if r.planner == "swap-all" and r.budget != "20%"]
    assert all(r.step_s is not None for r in others)


def test_a_shape_or_machine_that_does_not_work_is_a_failed_row():
    chains = chains_of(
        spec_of({"workloads": ["bert-large"], "sequence": [64, 128], "layers": [1], "batch": [2],
                 "budgets": ["95%"], "planners": ["swap-all"]})
    )  # fmt: skip
    first, second = run_sweep(chains).rows
    assert first.status == "failed"
    assert "loss_positions" in first.reason
    assert first.budget_bytes is None
    assert second.status == "feasible"


def test_device_memory_in_place_of_budgets():
    chains = chains_of(
        spec_of({"workloads": ["gpt2-xl"], "layers": [2], "planners": ["swap-all"],
                 "device_memory": ["100%", "2GiB"], "reserve": "1GiB"})
    )  # fmt: skip
    large, small = run_sweep(chains).rows
    assert large.device_memory_bytes == load_machine().device.memory_bytes
    assert large.budget_bytes == large.device_memory_bytes - large.static_bytes - 2**30
    assert small.budget_bytes < 0
    assert small.status == "infeasible"
    assert "static memory and reserve" in small.reason


class Dying(Here):
    """A pool whose worker dies at some workload's tasks, and takes the next task with it."""

    room = 2

    def __init__(self, deadly: str) -> None:
        self.deadly, self.broken, self.restarts = deadly, False, 0

    def submit(self, task, /, *arguments):
        deadly = self.deadly in arguments[0].point.workload
        if not (deadly or self.broken):
            return super().submit(task, *arguments)
        self.broken = True
        future: Future[object] = Future()
        future.set_exception(BrokenProcessPool("killed"))
        return future

    def restart(self) -> None:
        self.broken = False
        self.restarts += 1


def test_a_worker_that_dies_costs_its_own_rows_only():
    chains = grid(workloads=[UNET, TINY])
    pool = Dying("unet")
    result = run_sweep(chains, pool)
    assert {r.workload for r in result.failed} == {UNET}
    assert {r.reason for r in result.failed} == {
        "its worker process died; it may have run out of memory"
    }
    assert timeless(result.rows[6:]) == timeless(run_sweep(chains).rows[6:])
    assert pool.restarts == 2  # with another at work, then alone


# The journal


def test_what_is_in_the_journal_is_not_computed_again(tmp_path, monkeypatch):
    journal = tmp_path / "j"
    first = run_sweep(grid(workloads=[TINY]), journal=journal)
    assert (first.computed, first.reused) == (6, 0)
    again = run_sweep(grid(workloads=[TINY]), journal=journal)
    assert (again.computed, again.reused) == (0, 6)
    assert again.rows == first.rows
    machines = ["a100-80gb-pcie4", "h100-pcie5"]
    wider = run_sweep(grid(workloads=[TINY], machines=machines), journal=journal)
    assert (wider.computed, wider.reused) == (6, 6)
    assert run_sweep(grid(workloads=[TINY], budgets=["80%", "95%"]), journal=journal).reused == 0
    monkeypatch.setattr(chain_module, "package_digest", lambda: "another version")
    assert run_sweep(grid(workloads=[TINY]), journal=journal).reused == 0


def test_a_journal_may_end_anywhere(tmp_path):
    chains = grid(workloads=[TINY])
    whole = tmp_path / "whole"
    expected = run_sweep(chains, journal=whole)
    content = whole.read_bytes()
    lines = [n for n, byte in enumerate(content) if byte == ord("\n")]
    solved_ends = lines[2:]
    cut = tmp_path / "cut"
    for end in sorted({1, len(content) // 2, *lines, *(n + 1 for n in lines)}):
        cut.write_bytes(content[:end])
        result = run_sweep(chains, journal=cut)
        assert result.reused == 2 * sum(n < end for n in solved_ends)
        assert timeless(result.rows) == timeless(expected.rows)
        assert run_sweep(chains, journal=cut).computed == 0


def test_failures_are_kept_until_they_are_to_be_tried_again(tmp_path, monkeypatch):
    calls = []

    def broken(problem):
        calls.append(problem.budget_bytes)
        raise RuntimeError("once")

    chains = grid(workloads=[UNET])
    with monkeypatch.context() as patched:
        planners(patched, greedy=broken)
        assert len(run_sweep(chains, journal=tmp_path / "j").failed) == 2
        assert run_sweep(chains, journal=tmp_path / "j").computed == 0
        assert len(calls) == 2
    result = run_sweep(chains, journal=tmp_path / "j", retry_failed=True)
    assert result.failed == ()
    assert result.reused == 2  # the budget that nothing fits
    assert timeless(result.rows) == timeless(run_sweep(chains).rows)


@pytest.mark.parametrize("content", ["results\n", '{"schema":"other"}\n', "[]\n"])
def test_a_file_that_is_no_journal_is_left_alone(content, tmp_path):
    path = tmp_path / "j"
    path.write_text(content, encoding="utf-8")
    with pytest.raises(InputError, match="line 1 is not one of a sweep's journal"):
        run_sweep(grid(), journal=path)
    assert path.read_text(encoding="utf-8") == content


def test_two_sweeps_cannot_write_one_journal(tmp_path):
    from slackswap_opt.study.journal import journal_at

    with journal_at(tmp_path / "j"), pytest.raises(InputError, match="another sweep"):
        run_sweep(grid(), journal=tmp_path / "j")
    assert run_sweep(grid(workloads=[TINY]), journal=tmp_path / "j").computed == 6


DRIVER = """
import os, signal, sys
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import chain

log, deadly = sys.argv[1], int(sys.argv[2])
calls = 0

def counted(problem):
    global calls
    calls += 1
    if calls == deadly:
        os.kill(os.getpid(), signal.SIGKILL)
    with open(log, "a") as file:
        file.write(f"{problem.step.name} {problem.budget_bytes}\\n")
    return PLANNERS["greedy"](problem)

chain.PLANNERS = {**PLANNERS, "greedy": counted}
chain.package_digest = lambda: "whatever happens to the code meanwhile"
from slackswap_opt.cli import main
sys.argv = ["slackswap", *sys.argv[3:]]
main()
"""


def test_after_a_kill_nothing_is_lost_and_nothing_computed_twice(tmp_path):
    spec, output, log = (tmp_path / name for name in ("grid.toml", "out.json", "log"))
    budgets = ["99%", "95%", "98%", "97%", "96%"]
    spec.write_text(
        f"workloads = [{TINY!r}]\nbudgets = {budgets}\nplanners = ['swap-all', 'greedy']\n",
        encoding="utf-8",
    )
    driver = tmp_path / "driver.py"
    driver.write_text(DRIVER, encoding="utf-8")

    def run(deadly: int) -> subprocess.CompletedProcess[str]:
        arguments = [str(a) for a in (driver, log, deadly, "sweep", spec, "-o", output)]
        return subprocess.run(
            [sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True, check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT)}, timeout=300,
        )  # fmt: skip

    killed = run(3)
    assert killed.returncode == -signal.SIGKILL
    assert not output.exists()
    done = run(0)
    assert done.returncode == 0, done.stderr
    assert "6 computed, 4 taken from the journal" in done.stdout
    expected = run_sweep(grid(workloads=[TINY], budgets=budgets)).rows
    assert timeless(read_rows(output)) == timeless(expected)
    calls = log.read_text(encoding="utf-8").splitlines()
    assert calls == [f"tiny-mlp {size}" for size in sorted(r.budget_bytes for r in expected[::2])]


# Where it runs


def test_fewer_than_one_job_is_refused():
    with pytest.raises(InputError, match="jobs is 0"), pool_of(0):
        pass


RATES = [5.0, 10.0, 15.0, 20.0]


@pytest.mark.slow
def test_processes_give_the_same_rows(tmp_path):
    chains = grid(workloads=[TINY], link_gb_per_s=RATES)
    with pool_of(2) as pool:
        parallel = run_sweep(chains, pool, tmp_path / "j")
    assert timeless(parallel.rows) == timeless(run_sweep(chains).rows)


class Deadly(Processes):
    """Real processes, some of which are made to die."""

    def submit(self, task, /, *arguments):
        if arguments[0].point.link_gb_per_s == RATES[1]:
            return super().submit(os._exit, 1)
        return super().submit(task, *arguments)


@pytest.mark.slow
def test_a_real_process_that_dies():
    chains = grid(workloads=[TINY], link_gb_per_s=RATES[:2], budgets=["95%"])
    pool = Deadly(2)
    try:
        result = run_sweep(chains, pool)
    finally:
        pool.close()
    assert {r.link_gb_per_s for r in result.failed} == {RATES[1]}
    expected = run_sweep(chains).rows
    assert [r for r in timeless(result.rows) if r.status != "failed"] == [
        r for r in timeless(expected) if r.link_gb_per_s != RATES[1]
    ]


def test_the_errors_of_the_executor_are_those_the_sweep_knows():
    from joblib.externals.loky.process_executor import TerminatedWorkerError

    assert issubclass(TerminatedWorkerError, BrokenExecutor)


def children(pid: int) -> list[str]:
    """The worker processes of a sweep, where the system can tell."""
    found = []
    for path in Path("/proc").glob("[0-9]*/stat"):
        try:
            status = path.read_text(encoding="utf-8").rpartition(")")[2].split()
            command = (path.parent / "cmdline").read_bytes()
        except OSError:
            continue
        if int(status[1]) == pid and b"LokyProcess" in command:
            found.append(path.parent.name)
    return found


@pytest.mark.slow
def test_a_kill_from_outside_with_several_processes(tmp_path):
    fields = {"workloads": [TINY], "link_gb_per_s": RATES, "budgets": ["99%", "95%"]}
    spec, output = tmp_path / "grid.toml", tmp_path / "out.csv"
    lines = [f"{name} = {value}" for name, value in {**SMALL, **fields}.items()]
    spec.write_text("\n".join(lines), encoding="utf-8")
    same_code = "from slackswap_opt.study import chain; chain.package_digest = lambda: 'same'"
    main = f"{same_code}; from slackswap_opt.cli import main; main()"
    command = [sys.executable, "-c", main, "sweep", str(spec), "-o", str(output), "-j", "2"]
    journal = tmp_path / "out.csv.journal"
    process = subprocess.Popen(
        command, cwd=ROOT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    while process.poll() is None and not (journal.exists() and b'"solved"' in journal.read_bytes()):
        time.sleep(0.01)
    workers = children(process.pid)
    process.kill()
    process.wait()
    deadline = time.monotonic() + 60
    while any(Path(f"/proc/{pid}").exists() for pid in workers):
        assert time.monotonic() < deadline, "workers outlive the sweep"
        time.sleep(0.1)
    whole = [line for line in journal.read_bytes().splitlines(True) if line.endswith(b"\n")]
    kept = sum(b'"solved"' in line for line in whole)
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"{2 * kept} taken from the journal" in done.stdout
    assert timeless(read_rows(output)) == timeless(run_sweep(grid(**fields)).rows)

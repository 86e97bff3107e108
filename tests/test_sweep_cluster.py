"""A sweep on a real Dask cluster on loopback is the local one."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.study import pool_of, read_rows, run_sweep
from tests.sweeps import TINY, grid, timeless
from tests.test_cli import slackswap

ROOT = Path(__file__).parents[1]
PATIENCE_S = 120.0

pytestmark = pytest.mark.slow


def start(*arguments: str) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        [sys.executable, "-m", *arguments], cwd=ROOT, env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip


@pytest.fixture(scope="module")
def cluster(tmp_path_factory) -> Iterator[str]:
    """A scheduler and two worker processes, as a user starts them."""
    pytest.importorskip("distributed")
    folder = tmp_path_factory.mktemp("dask")
    file = folder / "scheduler.json"
    loopback = ["--host", "127.0.0.1", "--no-dashboard"]
    processes = [
        start("distributed.cli.dask_scheduler", *loopback, "--port", "0",
              "--scheduler-file", str(file))
    ]  # fmt: skip
    try:
        deadline = time.monotonic() + PATIENCE_S
        while not file.exists():
            assert processes[0].poll() is None, "the scheduler has ended"
            assert time.monotonic() < deadline
            time.sleep(0.1)
        processes += [
            start("distributed.cli.dask_worker", "--scheduler-file", str(file), *loopback,
                  "--nworkers", "1", "--nthreads", "1", "--local-directory", str(folder))
            for _ in range(2)
        ]  # fmt: skip
        from distributed import Client

        with Client(scheduler_file=str(file), set_as_default=False) as client:
            client.wait_for_workers(2, timeout=PATIENCE_S)
            address = client.scheduler.address
        yield address
    finally:
        for process in reversed(processes):
            process.terminate()
        for process in processes:
            process.wait(30)


def test_the_rows_are_those_of_a_local_sweep(cluster, tmp_path):
    chains = (
        *grid(workloads=[TINY], planners=["swap-all", "greedy", "ilp"], gap="50%"),
        *grid(workloads=["gpt2-xl"], layers=[1, 2], budgets=["99%", "90%"]),
    )
    with pool_of(cluster=cluster) as pool:
        assert pool.room == 4
        remote = run_sweep(chains, pool, tmp_path / "j")
    local = run_sweep(chains)
    assert timeless(remote.rows) == timeless(local.rows)
    assert remote.failed == ()
    again = run_sweep(chains, journal=tmp_path / "j")
    assert (again.computed, again.rows) == (0, remote.rows)


def test_the_command_line_takes_the_address(cluster, tmp_path):
    output = tmp_path / "out.csv"
    slackswap(
        "sweep", TINY, "-b", "95%", "-p", "greedy", "-o", output, "--cluster", cluster
    )  # fmt: skip
    expected = run_sweep(grid(workloads=[TINY], budgets=["95%"], planners=["greedy"]))
    assert timeless(read_rows(output)) == timeless(expected.rows)


def test_workers_with_other_code_are_refused(cluster, monkeypatch):
    monkeypatch.setattr("slackswap_opt.study.pools.package_digest", lambda: "0.0+other")
    with pytest.raises(InputError, match="install the same version"), pool_of(cluster=cluster):
        pass


def test_an_address_where_nobody_answers(monkeypatch):
    monkeypatch.setattr("slackswap_opt.study.pools.ANSWER_S", 1)
    pytest.importorskip("distributed")
    for address in ("127.0.0.1", "tcp://127.0.0.1:9"):
        with pytest.raises(InputError, match="no Dask scheduler answers"), pool_of(cluster=address):
            pass

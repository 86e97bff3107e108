"""Where the tasks of a sweep run: here, in processes on this machine, or on a Dask cluster.

All three are one thing to the sweep, a pool that takes functions and gives futures.
"""

from __future__ import annotations

import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from slackswap_opt.errors import InputError
from slackswap_opt.study.chain import package_digest

T = TypeVar("T")

ANSWER_S = 20
"""How long a scheduler may take to answer."""

_AHEAD = 2
"""Tasks given out per worker: one that runs and one that waits."""


class Pool(Protocol):
    """Runs functions of plain data.

    Attributes:
        room: how many tasks to give it at a time, so that no worker waits.
    """

    room: int

    def submit(self, task: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Start a task."""

    def restart(self) -> None:
        """Begin anew after a worker process has died."""


class Here:
    """Runs each task at once, in this process."""

    room = 1

    def submit(self, task: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Run the task; the future is done."""
        future: Future[T] = Future()
        try:
            future.set_result(task(*arguments))
        except Exception as error:
            future.set_exception(error)
        return future

    def restart(self) -> None:
        """Nothing to do: there are no workers."""


class Processes:
    """Processes on this machine, through joblib's executor (loky)."""

    def __init__(self, jobs: int) -> None:
        self.room = _AHEAD * jobs
        self._jobs = jobs
        self._executor: Any = _loky(jobs)

    def submit(self, task: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Start a task in one of the processes."""
        future: Future[T] = self._executor.submit(task, *arguments)
        return future

    def restart(self) -> None:
        """New processes in place of broken ones."""
        self.close()
        self._executor = _loky(self._jobs)

    def close(self) -> None:
        """End the processes, whatever they are doing."""
        self._executor.shutdown(wait=True, kill_workers=True)


class Cluster:
    """Workers of a Dask cluster."""

    def __init__(self, client: Any) -> None:
        self.room = _AHEAD * max(1, sum(client.nthreads().values()))
        self._executor: Executor = client.get_executor()

    def submit(self, task: Callable[..., T], /, *arguments: Any) -> Future[T]:
        """Start a task on one of the workers."""
        return self._executor.submit(task, *arguments)

    def restart(self) -> None:
        """Nothing to do: the scheduler starts its workers."""

    def close(self) -> None:
        """Take back what has not begun."""
        self._executor.shutdown(wait=False)


@contextmanager
def pool_of(jobs: int = 1, cluster: str | None = None) -> Iterator[Pool]:
    """A pool, ended with its work when the block is left.

    Args:
        jobs: processes on this machine; 1 runs everything in this one.
        cluster: address of a Dask scheduler, such as `tcp://host:8786`, to use instead.

    Raises:
        InputError: for fewer than one job; if the extra `dask` is missing, the scheduler does not
            answer, it has no workers, or they run another version of this package.
    """
    if cluster is not None:
        with _cluster(cluster) as workers:
            yield workers
        return
    if jobs < 1:
        raise InputError(f"jobs is {jobs}; give 1 or more")
    if jobs == 1:
        yield Here()
        return
    pool = Processes(jobs)
    try:
        yield pool
    finally:
        pool.close()


def _loky(jobs: int) -> Any:
    from joblib.externals.loky import ProcessPoolExecutor

    return ProcessPoolExecutor(
        max_workers=jobs, timeout=None, initializer=_end_with, initargs=(os.getpid(),)
    )


def _end_with(parent: int) -> None:
    """In a worker: watch for the sweep to be killed, and end with it.

    An interrupt from the keyboard reaches workers too; it is the sweep that answers it.
    """
    signal.signal(signal.SIGINT, signal.SIG_IGN)

    def watch() -> None:
        while os.getppid() == parent:
            time.sleep(1)
        os._exit(1)

    threading.Thread(target=watch, daemon=True).start()


@contextmanager
def _cluster(address: str) -> Iterator[Cluster]:
    try:
        from distributed import Client
    except ImportError:
        raise InputError(
            "a cluster needs Dask; pip install 'slackswap-opt[dask]', here and on the workers"
        ) from None
    try:
        _knock(address)
        client: Any = Client(address, set_as_default=False, timeout=ANSWER_S)  # type: ignore[no-untyped-call]
    except (OSError, ValueError, TypeError) as error:
        raise InputError(
            f"no Dask scheduler answers at {address!r} ({error}); write it like tcp://host:8786"
        ) from None
    with client:
        _same_code(client, address)
        pool = Cluster(client)
        try:
            yield pool
        finally:
            pool.close()


def _knock(address: str) -> None:
    """Fail at once where nobody listens: a client would start an event loop and go on trying."""
    from distributed.comm.addressing import get_address_host_port, parse_address

    scheme, _ = parse_address(address)
    if scheme in {"tcp", "tls"}:
        socket.create_connection(get_address_host_port(address), ANSWER_S).close()


def _digest_here() -> str:
    """Runs on the workers."""
    return package_digest()


def _same_code(client: Any, address: str) -> None:
    """Results of workers with other code would be filed under this one's."""
    own = package_digest()
    try:
        theirs = client.run(_digest_here)
    except ImportError:
        raise InputError(
            f"the workers at {address} do not have slackswap-opt; install it there"
        ) from None
    if not theirs:
        raise InputError(f"the scheduler at {address} has no workers; start some")
    others = sorted({digest for digest in theirs.values() if digest != own})
    if others:
        raise InputError(
            f"workers at {address} run slackswap-opt {', '.join(others)}, this is {own}; "
            "install the same version"
        )

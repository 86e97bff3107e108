"""From a grid to figures: what is not in the cache is computed, in parallel; the rest is drawn."""

from __future__ import annotations

import csv
import io
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, wait
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.figures import Figure, paper, rendered
from slackswap_opt.formats.files import write_bytes
from slackswap_opt.paper.cache import Cache, Entry
from slackswap_opt.paper.catalogue import FIGURES
from slackswap_opt.paper.entry import Tables
from slackswap_opt.paper.grid import FULL, Grid
from slackswap_opt.paper.tasks import Task
from slackswap_opt.study import pool_of

Report = Callable[[str], None]


@dataclass(frozen=True)
class Made:
    """A figure with its data.

    Attributes:
        name: of its files.
        figure: drawn, at its printed size.
        tables: rows by table.
        caption: what it shows, of what, and the day its oldest data is from.
    """

    name: str
    figure: Figure
    tables: Tables
    caption: str


def make(
    names: Sequence[str] = (),
    grid: Grid = FULL,
    cache: Cache | None = None,
    *,
    graphs: Sequence[str] = (),
    jobs: int = 1,
    report: Report = lambda _: None,
) -> list[Made]:
    """Make figures.

    Args:
        names: which (keys of `FIGURES`); all by default.
        grid: their points.
        cache: where results are looked up and kept, each as soon as it is there; nowhere by
            default.
        graphs: step files to add to the maps over budget and link rate.
        jobs: how many processes compute.
        report: told what is being worked on.

    Raises:
        InputError: for an unknown name or a faulty file.
        SolverUnavailableError: if the solver cannot be started.
    """
    unknown = [name for name in names if name not in FIGURES]
    if unknown:
        available = ", ".join(FIGURES)
        raise InputError(*(f"unknown figure {name!r}; available: {available}" for name in unknown))
    for path in graphs:
        if not Path(path).is_file():
            raise InputError("there is no such file; check the path", where=path)
    wanted = [FIGURES[name] for name in names or FIGURES]
    needs = {figure.name: figure.needs(grid, tuple(graphs)) for figure in wanted}
    entries = computed(
        list(dict.fromkeys(task for tasks in needs.values() for task in tasks)),
        cache,
        jobs=jobs,
        report=report,
    )
    results = {task: entry.result for task, entry in entries.items()}
    made = []
    for spec in wanted:
        report(f"drawing {spec.name}")
        tasks = needs[spec.name]
        tables = spec.tables(tasks, results)
        with paper():
            figure = spec.draw(tables)
        oldest = min(entries[task].made for task in tasks)
        about = f"{spec.about(grid, tables)}; {grid.name} grid; computed on {oldest}."
        made.append(Made(spec.name, figure, tables, f"{spec.title}. {spec.caption} Data: {about}"))
    return made


def computed(
    tasks: Sequence[Task], cache: Cache | None, *, jobs: int = 1, report: Report = lambda _: None
) -> dict[Task, Entry]:
    """The results of tasks: from the cache, and what is not there computed and kept."""
    entries: dict[Task, Entry] = {}
    missing: list[Task] = []
    for task in tasks:
        found = cache.find(task) if cache is not None else None
        if found is None:
            missing.append(task)
        else:
            entries[task] = found
    missing.sort(key=lambda task: -task.effort)
    for done, (task, result) in enumerate(_run(missing, jobs), 1):
        report(f"{done} of {len(missing)} computed, {len(entries)} results ready")
        entries[task] = _kept(task, result, cache)
    return entries


def _kept(task: Task, result: Any, cache: Cache | None) -> Entry:
    return Entry.today(result) if cache is None else cache.keep(task, result)


def _run(tasks: Sequence[Task], jobs: int) -> Iterator[tuple[Task, Any]]:
    """Tasks and their results, as they come; the longest begin first."""
    waiting = deque(tasks)
    running: dict[Future[Any], Task] = {}
    with pool_of(max(1, min(jobs, len(tasks)))) as pool:
        while waiting or running:
            while waiting and len(running) < pool.room:
                task = waiting.popleft()
                running[pool.submit(task.run)] = task
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                yield running.pop(future), future.result()


def write(
    made: Sequence[Made],
    folder: Path,
    formats: Sequence[str] = ("pdf",),
    *,
    data: bool = False,
    force: bool = False,
) -> list[Path]:
    """Write figures, the caption of each as text, and its rows as CSV if asked for.

    A file that is there already with the same content is left alone.

    Args:
        made: the figures.
        folder: where; made if it is not there.
        formats: of `slackswap_opt.figures.style.FORMATS`.
        data: whether to write the rows of each table beside the figure.
        force: whether files with other content may be replaced.

    Returns:
        The files, in order.

    Raises:
        InputError: if files with other content are there and `force` is not set; then nothing is
            written. Or if the folder cannot be made.
    """
    contents: dict[Path, bytes] = {}
    for item in made:
        with paper():
            for kind in formats:
                contents[folder / f"{item.name}.{kind}"] = rendered(item.figure, kind)
        if data:
            for table, rows in item.tables.items():
                stem = table if table.startswith(item.name) else f"{item.name}-{table}"
                contents[folder / f"{stem}.csv"] = csv_of(rows).encode()
        contents[folder / f"{item.name}.txt"] = f"{item.caption}\n".encode()
    changed = {
        path: content
        for path, content in contents.items()
        if not path.is_file() or path.read_bytes() != content
    }
    taken = [path for path in changed if path.exists() and not force]
    if taken:
        raise InputError(
            *(f"{path}: the file exists and differs; overwrite it with --force" for path in taken)
        )
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(
            f"the folder cannot be made: {error.strerror or error}; name another one",
            where=str(folder),
        ) from None
    for path, content in changed.items():
        write_bytes(path, content, force=True)
    return list(contents)


def csv_of(rows: Sequence[Any]) -> str:
    """Rows as CSV: a column per field, None as nothing."""
    into = io.StringIO()
    if rows:
        writer = csv.DictWriter(into, list(asdict(rows[0])), lineterminator="\n")
        writer.writeheader()
        writer.writerows(asdict(row) for row in rows)
    return into.getvalue()

"""`slackswap figures`: the paper's figures, from results that are computed once and kept."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable


def figures(
    output: Annotated[
        Path, typer.Option("--output", "-o", metavar="DIR", help="Folder to write to.")
    ] = Path("figures"),
    only: Annotated[
        list[str] | None,
        typer.Option(
            "--only", metavar="NAME", show_default=False,
            help="Figures to make, with commas between; may be given again. (default: all)",
        ),
    ] = None,
    formats: Annotated[
        str, typer.Option("--format", metavar="pdf,png,svg", help="With commas between.")
    ] = "pdf",
    quick: Annotated[
        bool, typer.Option("--quick", help="Fewer points and shorter limits: minutes.")
    ] = False,
    data: Annotated[
        str | None,
        typer.Option("--data", metavar="csv", help="Write each figure's rows beside it."),
    ] = None,
    graph: Annotated[
        list[Path] | None,
        typer.Option(
            "--graph", metavar="FILE", show_default=False,
            help="A step file, such as a measured profile, to add to the maps; may be given again.",
        ),
    ] = None,
    cache: Annotated[
        Path | None,
        typer.Option(
            "--cache", metavar="DIR", show_default=False,
            help="Where results are kept. (default: the user's cache folder)",
        ),
    ] = None,
    jobs: Annotated[
        int | None,
        typer.Option(
            "--jobs", "-j", min=1, show_default=False,
            help="Processes that compute. (default: one per core)",
        ),
    ] = None,
    force: options.Force = False,
    list_: Annotated[bool, typer.Option("--list", help="List the figures and stop.")] = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:  # fmt: skip
    """Make the paper's figures.

    What was computed before is taken from the cache: the second run takes seconds, and one that
    was stopped goes on where it was. A file with the same content is left alone.
    """
    from slackswap_opt.cli import show
    from slackswap_opt.paper import FIGURES, FULL, QUICK, Cache, default_cache_dir, make, write

    if list_:
        show.print_table(
            "Figures",
            [show.Column("name", left=True), show.Column("shows", left=True)],
            [[name, spec.title] for name, spec in FIGURES.items()],
        )
        return Exit.DONE
    names = _parts(only or [])
    kinds = _formats(formats, data)
    _refuse_early(output)
    grid = QUICK if quick else FULL
    with show.progress() as report:
        made = make(
            names,
            grid,
            Cache(cache or default_cache_dir()),
            graphs=[str(path) for path in graph or []],
            jobs=jobs or os.cpu_count() or 1,
            report=report,
        )
        written = write(made, output, kinds, data=data is not None, force=force)
    show.print_lines(*(str(path) for path in written))
    return Exit.DONE


def _parts(texts: Iterable[str]) -> list[str]:
    return [part.strip() for text in texts for part in text.split(",") if part.strip()]


def _formats(formats: str, data: str | None) -> list[str]:
    from slackswap_opt.cli.inputs import unknown
    from slackswap_opt.errors import InputError
    from slackswap_opt.figures.style import FORMATS

    kinds = list(dict.fromkeys(_parts([formats.lower()])))
    faults = [unknown("--format", kind, FORMATS) for kind in kinds if kind not in FORMATS]
    if not kinds:
        faults.append(f"--format names no format; choose from {', '.join(FORMATS)}")
    if data is not None and data != "csv":
        faults.append(unknown("--data", data, ["csv"]))
    if faults:
        raise InputError(*faults)
    return kinds


def _refuse_early(output: Path) -> None:
    """Before minutes of computing, not after them."""
    from slackswap_opt.errors import InputError

    if output.exists() and not output.is_dir():
        raise InputError("this is a file; name a folder", where=str(output))
    if not output.parent.is_dir():
        raise InputError(
            f"the folder {str(output.parent)!r} does not exist; create it", where=str(output)
        )

"""Every error becomes one message on stderr and a documented exit code."""

from __future__ import annotations

import functools
import os
import sys
import traceback
from collections.abc import Callable
from enum import IntEnum
from typing import ParamSpec

import typer

from slackswap_opt.cli.streams import discard_stdout, plain
from slackswap_opt.errors import (
    CertificateError,
    InputError,
    ScheduleError,
    SlackSwapError,
    SolverUnavailableError,
)

P = ParamSpec("P")


class Exit(IntEnum):
    """What the process ends with."""

    DONE = 0
    DEFECT = 1
    """An error that this package did not foresee."""
    BAD_INPUT = 2
    NOTHING_FITS = 3
    """Proven: no plan fits the budget."""
    NOTHING_FOUND = 4
    INVALID_PLAN = 5
    NO_SOLVER = 6
    INTERRUPTED = 130


def guarded(command: Callable[P, Exit]) -> Callable[P, None]:
    """A command that ends the process with its exit code, whatever happens.

    With `verbose` among its arguments, errors are preceded by their traceback.
    """

    @functools.wraps(command)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        try:
            code = command(*args, **kwargs)
            sys.stdout.flush()
        except BrokenPipeError:
            discard_stdout()
            code = Exit.DONE
        except KeyboardInterrupt:
            code = Exit.INTERRUPTED
        except typer.Exit:
            raise
        except Exception as error:
            if kwargs.get("verbose"):
                traceback.print_exc(file=sys.stderr)
            code = _told(error)
        raise typer.Exit(int(code))

    return run


def complain(message: str) -> None:
    """An error message on stderr."""
    text = "".join(f"\n  {line}" if n else line for n, line in enumerate(message.splitlines()))
    typer.secho("error: ", fg="red", bold=True, nl=False, err=True, color=_colour())
    typer.echo(plain(text, keep="\n"), err=True)


def _colour() -> bool | None:
    return False if os.environ.get("NO_COLOR") else None


def _told(error: Exception) -> Exit:
    if isinstance(error, InputError):
        complain(str(error))
        return Exit.BAD_INPUT
    if isinstance(error, SolverUnavailableError):
        complain(f"no solver: {error}")
        return Exit.NO_SOLVER
    if isinstance(error, CertificateError):
        complain(f"a certificate failed, nothing is printed: {error}")
        return Exit.INVALID_PLAN
    if isinstance(error, ScheduleError) or type(error).__name__ == "InvalidPlanError":
        complain(str(error))
        return Exit.INVALID_PLAN
    if isinstance(error, SlackSwapError):
        complain(str(error))
        return Exit.BAD_INPUT
    if isinstance(error, OSError):
        complain(f"the system refuses: {error.strerror or error}")
        return Exit.BAD_INPUT
    complain(
        f"{type(error).__name__}: {error}\n"
        "this was not foreseen; please report it with what -v prints"
    )
    return Exit.DEFECT

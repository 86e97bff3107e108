"""The commands put together. Heavy modules are imported inside of commands: `--help` is instant."""

from __future__ import annotations

import os
import sys
from typing import Annotated

import typer

from slackswap_opt.cli.bound import bound
from slackswap_opt.cli.compare import compare
from slackswap_opt.cli.convert import convert
from slackswap_opt.cli.explain import explain
from slackswap_opt.cli.figures import figures
from slackswap_opt.cli.frontier import frontier
from slackswap_opt.cli.guard import guarded
from slackswap_opt.cli.inspect import inspect
from slackswap_opt.cli.machines import machines
from slackswap_opt.cli.max_batch import max_batch
from slackswap_opt.cli.models import models
from slackswap_opt.cli.plan import plan
from slackswap_opt.cli.simulate import simulate
from slackswap_opt.cli.sweep import sweep

app = typer.Typer(
    name="slackswap",
    help="Plan GPU activation memory for training: keep, swap or recompute each tensor, "
    "with a proof of how good the plan is.",
    epilog="Exit codes: 0 done; 2 bad input or usage; 3 no plan fits the budget (proven); "
    "4 no plan found; 5 a plan failed validation; 6 no solver.",
    add_completion=False,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    rich_markup_mode=None,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    compare,
    sweep,
    plan,
    simulate,
    explain,
    bound,
    inspect,
    convert,
    models,
    figures,
    max_batch,
    frontier,
    machines,
):
    app.command(command.__name__.replace("_", "-"))(guarded(command))


def _print_version(wanted: bool) -> None:
    if wanted:
        from slackswap_opt import __version__

        typer.echo(f"slackswap-opt {__version__}")
        raise typer.Exit


@app.callback()
def _options(
    version: Annotated[
        bool,
        typer.Option(
            "--version", callback=_print_version, is_eager=True, help="Print the version."
        ),
    ] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; ends the process with one of the documented exit codes."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:  # closed by the caller
            stream = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115, PTH123
            setattr(sys, name, stream)
        elif hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="replace")
    app()

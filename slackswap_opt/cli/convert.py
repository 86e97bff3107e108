"""`slackswap convert`: a step from any known file into another format."""

from __future__ import annotations

from typing import Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit


def convert(
    target: options.Target,
    output: Annotated[
        str,
        typer.Argument(
            metavar="OUT",
            help="File to write: .json, .yaml or .graphml, also with .gz; - for standard output.",
            show_default=False,
        ),
    ],
    to: Annotated[
        str | None,
        typer.Option(
            "--to",
            metavar="FORMAT",
            help="native, yaml, node-link or graphml. (default: as OUT ends)",
            show_default=False,
        ),
    ] = None,
    backward: Annotated[
        float | None,
        typer.Option(
            "--with-backward",
            metavar="RATIO",
            help="Add a backward phase to a forward-only step; its operations take RATIO times "
            "the forward time, for which 2 is usual.",
            show_default=False,
        ),
    ] = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    force: options.Force = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Write a workload, or the step of a file, in another format."""
    from pathlib import Path

    from slackswap_opt.cli import inputs, show
    from slackswap_opt.cli.plan import refuse_early
    from slackswap_opt.errors import InputError
    from slackswap_opt.formats import write_step
    from slackswap_opt.formats.writing import WRITERS, format_for
    from slackswap_opt.machine import load_machine

    to_stdout = output == "-"
    wanted = format_for(output, to or ("native" if to_stdout else None))
    if not to_stdout:
        refuse_early(Path(output), force=force)
    where = load_machine(machine)
    step = inputs.step_of(target, where, inputs.Overrides(batch, sequence, layers))
    if backward is not None:
        try:
            step = step.with_backward(backward)
        except InputError as error:
            raise error.at(target) from None
    if to_stdout:
        show.print_text(WRITERS[wanted](step))
        return Exit.DONE
    write_step(step, output, to=wanted, force=force)
    show.print_lines(
        f"{step.name}: {show.count(len(step.operations), 'operation')}, "
        f"{show.count(len(step.tensors), 'tensor')}, written to {output} ({wanted})"
    )
    return Exit.DONE

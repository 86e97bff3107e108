"""Reads a step from any known file, recognized by what it holds and not by its suffix.

A format is a module with `NAME`, `recognizes(head)` and `read(content, name)`. To add one, write
the module and list it in `FORMATS`; what it needs beyond the package's own dependencies it imports
inside of `read`.
"""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Protocol, runtime_checkable

from slackswap_opt.errors import InputError
from slackswap_opt.formats import (
    chakra,
    dnn_partitioning,
    dot,
    files,
    graphml,
    kineto,
    memory_snapshot,
    native,
    native_yaml,
    node_link,
    onnx_format,
    pipedream,
)
from slackswap_opt.formats.options import NO_OPTIONS, ReadOptions
from slackswap_opt.machine.model import Machine
from slackswap_opt.step.graph import TrainingStep

HEAD_BYTES = 2**20
"""How much of a file the formats see to recognize it."""


class StepFormat(Protocol):
    """What a module must offer to be a format."""

    NAME: str
    """What the format is called in messages."""

    def recognizes(self, head: bytes) -> bool:
        """Whether a file that begins with these bytes is of this format, sound or not."""

    def read(self, content: bytes, name: str) -> TrainingStep:
        """The step a file holds; `name` names it where the file does not.

        Raises:
            InputError: with every fault found.
        """


@runtime_checkable
class StepFormatWithOptions(Protocol):
    """The same for a format that needs a machine, or whose files hold more than one step."""

    NAME: str
    """What the format is called in messages."""
    USES: frozenset[str]
    """The fields of `ReadOptions` that it looks at; the machine is not counted."""

    def recognizes(self, head: bytes) -> bool:
        """As in `StepFormat`."""

    def read(self, content: bytes, name: str, options: ReadOptions) -> TrainingStep:
        """As in `StepFormat`, with options."""


FORMATS: list[StepFormat | StepFormatWithOptions] = [
    onnx_format,
    native,
    kineto,
    chakra,
    dnn_partitioning,
    node_link,
    graphml,
    native_yaml,
    dot,
    pipedream,
]
"""In the order in which they are asked."""


def read_step(
    path: str | Path,
    *,
    machine: Machine | None = None,
    batch: int | None = None,
    dimensions: Mapping[str, int] | None = None,
    profiler_step: int | None = None,
) -> TrainingStep:
    """Read a training step from a file, plain or gzip.

    Args:
        path: of the file.
        machine: what operations are priced on; needed for files without durations (ONNX).
        batch: size of the first axis of a model's inputs (ONNX).
        dimensions: sizes of a model's symbolic dimensions (ONNX).
        profiler_step: number of the profiler step to read (Kineto traces).

    Raises:
        InputError: if the file cannot be read, no format recognizes it, or it is faulty; every
            line of the message begins with the path.
    """
    content = files.read_bytes(path)
    try:
        options = ReadOptions(machine, batch, dimensions or {}, profiler_step)
        return read_content(content, _stem(Path(path)), options)
    except InputError as error:
        raise error.at(str(path)) from None


def format_of(path: str | Path) -> str:
    """What the format of a file is called, or an empty text if none recognizes it.

    Raises:
        InputError: if the file cannot be read.
    """
    head = files.read_bytes(path)[:HEAD_BYTES]
    return next((known.NAME for known in FORMATS if known.recognizes(head)), "")


def priced_on_machine(path: str | Path) -> bool:
    """Whether a file's operations have no times, so that they are priced on a machine.

    Raises:
        InputError: if the file cannot be read.
    """
    return format_of(path) == onnx_format.NAME


def read_content(content: bytes, name: str, options: ReadOptions = NO_OPTIONS) -> TrainingStep:
    """Read a training step from the content of a file.

    Raises:
        InputError: as `read_step`, without the path.
    """
    head = content[:HEAD_BYTES]
    for known in FORMATS:
        if known.recognizes(head):
            with _everything_stays(), _readable_number_of_faults():
                return _read(known, content, name, options)
    if content.startswith(files.UTF16_MARKS):
        files.decode(content)
    if memory_snapshot.recognizes(head):
        raise InputError(
            "this is a pickle, as PyTorch's memory snapshots are: it records allocations, but "
            "neither operations nor their durations, so there is nothing to plan; `slackswap "
            "inspect` says what it holds"
        )
    names = "; ".join(known.NAME for known in FORMATS)
    raise InputError(f"the format is not recognized; known formats: {names}")


def _read(
    known: StepFormat | StepFormatWithOptions, content: bytes, name: str, options: ReadOptions
) -> TrainingStep:
    uses = known.USES if isinstance(known, StepFormatWithOptions) else frozenset()
    unused = [text for field, text in options.given().items() if field not in uses]
    if unused:
        raise InputError(
            f"{', '.join(unused)}: a file holds one fixed step if its format is {known.NAME}; "
            "leave it out"
        )
    if isinstance(known, StepFormatWithOptions):
        return known.read(content, name, options)
    return known.read(content, name)


@contextmanager
def _everything_stays() -> Iterator[None]:
    """No search for unused cycles: reading makes millions of objects, and all of them stay."""
    searching = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if searching:
            _take_as_old()
            gc.enable()


def _take_as_old() -> None:
    """Count what has been made as searched, or the first new object starts a search of it all."""
    if not gc.get_freeze_count():  # what somebody else has frozen stays so
        gc.freeze()
        gc.unfreeze()


@contextmanager
def _readable_number_of_faults() -> Iterator[None]:
    try:
        yield
    except InputError as error:
        more = len(error.faults) - files.MOST_FAULTS
        if more <= 0:
            raise
        raise InputError(
            *error.faults[: files.MOST_FAULTS], f"and at least {more} more faults; mend these first"
        ) from None


def _stem(path: Path) -> str:
    return path.name.removesuffix(".gz").rsplit(".", 1)[0] or path.name

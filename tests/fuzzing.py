"""Fuzzing: whatever bytes a reader gets, it gives a sound step or an `InputError`, nothing else."""

from __future__ import annotations

from collections.abc import Callable

from hypothesis import given, note, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError
from slackswap_opt.step import TrainingStep, liveness

BATCH = 25
"""Inputs for each seed that hypothesis draws, which takes longer than reading one."""
Read = Callable[[bytes], TrainingStep]


def read_or_refused(content: bytes, read: Read) -> bool:
    """Whether a step was read.

    Anything but a sound step or an `InputError` with faults that a person can read fails the test.
    """
    try:
        step = read(content)
    except InputError as error:
        faults = error.faults
    else:
        assert step.operations
        assert (liveness(step).memory_bytes >= 0).all()
        return True
    assert faults
    assert all(fault and len(fault) < 2_000 for fault in faults)
    return False


def fuzz(make: Callable[[int], bytes], read: Read, seed: int) -> None:
    """Read a batch of inputs, each made from a seed of its own; a failure names its input."""
    for number in range(seed, seed + BATCH):
        content = make(number)
        try:
            read_or_refused(content, read)
        except BaseException:
            note(f"seed {number}, input: {content!r}")
            raise


def fuzzing(inputs: int) -> settings:
    """So many examples, none of them kept for the next run."""
    return settings(max_examples=inputs, deadline=None, database=None)


def batches_of(inputs: int) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """So many inputs: the test gets the `seed` of each batch."""

    def decorated(test: Callable[..., None]) -> Callable[..., None]:
        return fuzzing(inputs // BATCH)(given(seed=st.integers(0, 2**60))(test))

    return decorated

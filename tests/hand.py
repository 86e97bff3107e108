"""Steps, machines and refusals written by hand: short words for what many tests say."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.machine import Host, Link, Machine
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.strategies import DEVICE, MB_PER_S


def values(text: str) -> tuple[Value, ...]:
    """`"x y@1"` as values."""
    found = []
    for word in text.split():
        name, _, version = word.partition("@")
        found.append(Value(name, int(version or 0)))
    return tuple(found)


def step_of(
    *rows: tuple[Any, ...] | Operation, layered: bool = False, **sizes: int | tuple[int, int]
) -> TrainingStep:
    """A step whose tensors are numbered in the order in which they are written.

    Rows are operations or (name, duration, reads, writes[, workspace]). Of these, names in capitals
    run once only, those that begin with b are backward ones, and each is a layer of its own if they
    are `layered`. A size may be (held, moved) bytes.
    """
    operations = [
        row if isinstance(row, Operation) else _operation(*row, layer=row[0] if layered else "")
        for row in rows
    ]
    tensors = [
        Tensor.of(name, size) if isinstance(size, int) else Tensor(name, *size)
        for name, size in sizes.items()
    ]
    step = TrainingStep.build("hand", operations, tensors)
    assert [t.name for t in step.tensors] == list(sizes), "give the sizes in order of writing"
    return step


def _operation(
    name: str, duration_ns: int, reads: str, writes: str, workspace: int = 0, *, layer: str
) -> Operation:
    phase = Phase.BACKWARD if name.lower().startswith("b") else Phase.FORWARD
    return Operation(
        name, phase, duration_ns, values(reads), values(writes), workspace, layer,
        recomputable=name.islower(),
    )  # fmt: skip


def machine_of(
    rate: int = 1,
    latency_ns: int = 0,
    pinned_bytes: int | None = None,
    power_of_two: bool = False,
) -> Machine:
    """A machine whose link moves so many bytes per microsecond, in both directions at once."""
    link = Link.symmetric(rate * MB_PER_S, latency_ns)
    return Machine("hand", DEVICE, link, Host(pinned_bytes, power_of_two))


CHAIN = step_of(
    ("f0", 1000, "", "a0"), ("f1", 1000, "a0", "a1"), ("f2", 1000, "a1", "a2"),
    ("b2", 2000, "a2", "g2"), ("b1", 2000, "a1 g2", "g1"), ("b0", 2000, "a0 g1", "g0"),
    a0=8, a1=8, a2=8, g2=4, g1=4, g0=4,
)  # fmt: skip
CHAIN_BY_HAND = (
    (28, 1, 9000),  # everything fits
    (24, 8, 9000),  # a0 leaves during f1 and returns during b1
    (20, 8, 10_000),  # there is no room for it during b1: 1000 ns of copying or of f0
    (20, 1, 10_000),  # the link is slow: run f0 again
)
"""Budgets in bytes, rates in bytes per microsecond, and the best step of the chain in ns."""


def named(names: Sequence[str], notes: Sequence[str]) -> TrainingStep:
    """A step whose operations, tensors, layers and aliases have these two names or more."""
    first, second, *rest = names
    return TrainingStep.build(
        first,
        [
            Operation(first, Phase.FORWARD, 1, (Value(second),), (Value(first),), layer=second),
            Operation(second, Phase.BACKWARD, 2, (Value(first),), (Value(first, 1),)),
        ],
        [Tensor(first, 8, 3, aliases=tuple(rest)), Tensor.of(second, 1, static=True)],
        notes,
    )


def flows(step: TrainingStep) -> Iterator[tuple[Operation, str]]:
    """Operations with what they read and write, as `reads -> writes`, static tensors left out."""
    static = {tensor.name for tensor in step.tensors if tensor.static}
    for op in step.operations:
        reads = [str(value) for value in op.reads if value.tensor not in static]
        yield op, " ".join((*reads, "->", *map(str, op.writes)))


def faults_in(read: Callable[..., object], *given: object, **options: object) -> tuple[str, ...]:
    """The faults for which something is refused."""
    with pytest.raises(InputError) as error:
        read(*given, **options)
    return error.value.faults

"""Instances of other planners: reading them, and stating them as our problems.

One JSON file per instance:

* `name`, `no_budget_cost`, and `ops`: `id` (0, 1, ... in execution order), `name`, `phase`
  ("fwd" or "bwd"), `compute_time`, `output_size`, `reads` (ids whose outputs it needs);
* `recompute_cases`: `memory_budget`, and what the peer reached: `optimum` (null if the case has
  `feasible` false), or `published_cost`;
* `recompute_and_swap_cases`: the same with `cost_per_size_unit_swapped_out` and `..._in`, the price
  of copying one unit of size.

Units are the peer's own. Here a unit of time becomes `TIME` nanoseconds and a unit of size `SIZE`
bytes, so that everything is a whole number.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

from slackswap_opt import Operation, Phase, Problem, Tensor, TrainingStep, Value
from slackswap_opt.errors import InputError
from slackswap_opt.machine import Device, Link, Machine

TIME = 10**6
"""Nanoseconds per unit of time."""
SIZE = 10**6
"""Bytes per unit of size."""
PHASES = {"fwd": Phase.FORWARD, "bwd": Phase.BACKWARD}
DEVICE = Device(2**50, {"fp32": 1e12}, 1e12, 1.0, 1.0, 0)

Number = int | float


@dataclass(frozen=True)
class Op:
    """One operation of a peer's graph, in the peer's units.

    Attributes:
        name: what it is called.
        phase: "fwd" or "bwd".
        time: cost of running it once.
        size: memory of its output.
        reads: operations whose outputs it needs.
    """

    name: str
    phase: str
    time: Fraction
    size: Fraction
    reads: tuple[int, ...]


@dataclass(frozen=True)
class Prices:
    """What copying one unit of size costs, in units of time: POET's transfers."""

    out: Fraction
    back: Fraction


@dataclass(frozen=True)
class Case:
    """One budget of an instance, and what the peer says of it.

    Attributes:
        instance: name of the instance.
        kind: "recompute" or "recompute-and-swap".
        budget: memory, in the peer's units.
        peer_cost: the peer's optimum or published cost; None if it is infeasible.
        optimal: whether the peer's cost is its proven optimum.
        prices: of copies; None if there are none.
    """

    instance: str
    kind: str
    budget: Fraction
    peer_cost: Fraction | None
    optimal: bool
    prices: Prices | None


@dataclass(frozen=True)
class Instance:
    """A peer's graph with its cases."""

    name: str
    ops: tuple[Op, ...]
    cases: tuple[Case, ...]


def find(folder: Path) -> list[Path]:
    """Files of instances in a folder and the folders in it, by name.

    Raises:
        InputError: if there is none.
    """
    found = sorted(path for path in folder.rglob("*.json") if path.is_file())
    if not found:
        raise InputError(
            "no *.json files in it; name a folder of peer instances", where=str(folder)
        )
    return found


def read(path: Path) -> Instance:
    """Read an instance.

    Raises:
        InputError: naming the file and the field that is wrong.
    """
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InputError(f"this is no JSON file ({error})", where=str(path)) from None
    try:
        ops = tuple(_op(n, entry) for n, entry in enumerate(document["ops"]))
        cases = tuple(_cases(str(document["name"]), document))
        return Instance(str(document["name"]), ops, cases)
    except KeyError as error:
        raise InputError(f"the field {error} is missing", where=str(path)) from None
    except (TypeError, ValueError, AttributeError) as error:
        raise InputError(f"this is no peer instance: {error}", where=str(path)) from None


def _op(number: int, entry: Mapping[str, Any]) -> Op:
    if entry["id"] != number:
        raise ValueError(f"ops[{number}] has the id {entry['id']!r}, expected {number}")
    if entry["phase"] not in PHASES:
        raise ValueError(f"ops[{number}].phase is {entry['phase']!r}, expected fwd or bwd")
    reads = tuple(dict.fromkeys(entry["reads"]))
    if any(not isinstance(r, int) or not 0 <= r < number for r in reads):
        raise ValueError(f"ops[{number}].reads is {entry['reads']}, expected ids of earlier ops")
    time = _number(f"ops[{number}].compute_time", entry["compute_time"])
    size = _number(f"ops[{number}].output_size", entry["output_size"])
    return Op(str(entry["name"]), entry["phase"], time, size, reads)


def _cases(name: str, document: Mapping[str, Any]) -> Iterator[Case]:
    for number, entry in enumerate(document.get("recompute_cases", ())):
        budget = _number(f"recompute_cases[{number}].memory_budget", entry["memory_budget"])
        if "published_cost" in entry:
            cost = _number("published_cost", entry["published_cost"])
            yield Case(name, "recompute", budget, cost, False, None)
        else:
            yield Case(name, "recompute", budget, _optimum(entry), True, None)
    for number, entry in enumerate(document.get("recompute_and_swap_cases", ())):
        where = f"recompute_and_swap_cases[{number}]"
        budget = _number(f"{where}.memory_budget", entry["memory_budget"])
        prices = Prices(
            _number(where, entry["cost_per_size_unit_swapped_out"]),
            _number(where, entry["cost_per_size_unit_swapped_in"]),
        )
        yield Case(name, "recompute-and-swap", budget, _optimum(entry), True, prices)


def _optimum(entry: Mapping[str, Any]) -> Fraction | None:
    return None if entry["optimum"] is None else _number("optimum", entry["optimum"])


def _number(where: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or value < 0:
        raise ValueError(f"{where} is {value!r}, expected a number from 0 on")
    return Fraction(str(value))


def problem_of(instance: Instance, case: Case) -> Problem:
    """Our problem for a case: an output is a tensor, and every operation may run again.

    Raises:
        InputError: if a number is no multiple of a millionth of the peer's unit.
    """
    operations = [
        Operation(
            f"{n}:{op.name}",
            PHASES[op.phase],
            whole(op.time * TIME),
            tuple(Value(f"t{r}") for r in op.reads),
            (Value(f"t{n}"),),
        )
        for n, op in enumerate(instance.ops)
    ]
    tensors = [Tensor.of(f"t{n}", whole(op.size * SIZE)) for n, op in enumerate(instance.ops)]
    step = TrainingStep.build(instance.name, operations, tensors)
    prices = case.prices or Prices(Fraction(1), Fraction(1))
    out, back = (SIZE * 10**9 / (price * TIME) for price in (prices.out, prices.back))
    link = Link(float(out), float(back), float(out), float(back))
    machine = Machine("peer", DEVICE, link)
    return Problem(step, machine, int(case.budget * SIZE), swaps=case.prices is not None)


def whole(number: Fraction) -> int:
    """A number that is whole.

    Raises:
        InputError: if it is not.
    """
    if number.denominator != 1:
        raise InputError(f"{float(number)} is not whole; times and sizes go to a millionth")
    return int(number)


def units(ns: int) -> Fraction:
    """A time in the peer's units."""
    return Fraction(ns, TIME)

"""`slackswap explain`: what limits a plan, what more of it would save, and why each tensor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from slackswap_opt.study.explain import Choice, Explanation, Limit

MOST_LIMITS = 5
"""Rows shown per resource."""
_GB_S = 1e9


def explain(
    path: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan file.", show_default=False)
    ],
    tensors: Annotated[
        int, typer.Option("--tensors", "-n", min=0, help="How many of the largest tensors to show.")
    ] = 20,
    solver: options.Solver = "cbc",
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Explain a plan file: what binds, what more would save, why each tensor.

    Prices come from the relaxation behind the bound. They hold for small changes, and explain a
    plan as far as it comes near its bound.
    """
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.plan.files import read_plan
    from slackswap_opt.study import InvalidPlanError
    from slackswap_opt.study import explain as explain_plan

    settings = inputs.settings_of("0", 60.0, solver)
    plan = read_plan(path)
    try:
        found = explain_plan(plan, solver=settings.solver)
    except InvalidPlanError as error:
        raise InvalidPlanError(f"{path}: {error}") from error
    if json:
        show.print_json(_document(found, tensors))
    else:
        _print(found, tensors)
    return Exit.DONE


def _document(found: Explanation, most: int) -> dict[str, object]:
    import dataclasses

    facts = {
        field.name: getattr(found, field.name)
        for field in dataclasses.fields(found)
        if field.name not in {"limits", "choices", "elsewhere"}
    }
    return {
        "schema": "slackswap.explain/1",
        **facts,
        "limits": [dataclasses.asdict(limit) for limit in found.limits],
        "tensors": [
            {**dataclasses.asdict(choice), "action": choice.action.value}
            for choice in found.choices[:most]
        ],
        "tensors_at_cut": len(found.choices),
        "tensors_elsewhere": found.elsewhere,
    }


def _print(found: Explanation, most: int) -> None:
    from slackswap_opt.cli import show

    show.print_lines(" ".join(_words(found)))
    if found.cut is None:
        return
    show.print_lines("")
    show.print_table(
        "What binds",
        [
            show.Column("constraint", left=True),
            show.Column("where", left=True),
            show.Column("easing it saves"),
        ],
        [
            [limit.resource, place_of(limit), saving_of(limit)]
            for limit in dearest(found.limits, MOST_LIMITS)
        ],
    )
    if not most or not found.choices:
        return
    show.print_lines("")
    show.print_table(
        f"Tensors, the largest {min(most, len(found.choices))} of {len(found.choices)} that must "
        f"get past {found.cut}; ms of a step at the prices",
        [
            show.Column("tensor", left=True),
            show.Column("size"),
            show.Column("action", left=True),
            show.Column("keep"),
            show.Column("swap"),
            show.Column("recompute"),
            show.Column("excess", 1),
            show.Column("break-even GB/s", 2),
            show.Column("why", 3, left=True),
        ],
        [_row(choice) for choice in found.choices[:most]],
    )
    if found.elsewhere:
        show.print_lines(
            f"{show.count(found.elsewhere, 'further saved activation')} need not get past it"
        )


def dearest(limits: Iterable[Limit], most: int) -> Iterator[Limit]:
    """The dearest few of each resource; they come in order of price."""
    shown: dict[str, int] = {}
    for limit in limits:
        shown[limit.resource] = shown.get(limit.resource, 0) + 1
        if shown[limit.resource] <= most:
            yield limit


def _words(found: Explanation) -> Iterator[str]:
    """The first paragraph."""
    from slackswap_opt.cli import show

    ideal = found.ideal_step_ns
    yield (
        f"{found.workload} on {found.machine} with {show.memory(found.budget_bytes)}, planned by "
        f"{found.planner}: a step takes {_ms(found.step_ns)} ms, {_ms(found.step_ns - ideal)} ms "
        f"more than without a memory limit; no plan takes less than {_ms(found.bound_step_ns)} ms."
    )
    if found.cut is None:
        yield "That is the ideal step: nothing binds, and more of anything would save nothing."
        return
    if not found.limits:
        yield f"At {found.cut}, where that limit was found, nothing has a price."
        return
    yield f"What limits it is decided at the start of {found.cut}."
    yield (
        f"One more GiB of device memory would save at most {_ms(found.device_ns_per_gib)} ms a "
        f"step; one more GB/s to the host about {_ms(found.out_ns_per_gb_s)} ms, to the device "
        f"about {_ms(found.in_ns_per_gb_s)} ms;"
    )
    if found.host_ns_per_gib is None:
        yield "host memory has no limit."
    else:
        yield f"one more GiB of host memory at most {_ms(found.host_ns_per_gib)} ms."
    yield f"These are prices of the bound ({found.solver}), for small changes."


def place_of(limit: Limit) -> str:
    """Where a constraint binds, in words."""
    resource, operation = limit.resource, limit.operation
    if resource == "device memory":
        return f"at the start of {operation}"
    if resource == "link to the host":
        return f"for what is written by {operation} or later"
    if resource == "link to the device":
        return f"for what is needed by {operation}" if operation else "up to the end of the step"
    return "over the whole step"


def saving_of(limit: Limit) -> str:
    """What easing a constraint saves, in words."""
    if "memory" in limit.resource:
        return f"{_ms(limit.saves_ns)} ms a step per GiB"
    return f"{_ms(limit.saves_ns / 1000)} ms a step per ms of copying"


def _row(choice: Choice) -> list[str]:
    from slackswap_opt.cli import show

    rate = choice.break_even_out_bytes_per_s
    return [
        choice.tensor,
        show.memory(choice.size_bytes),
        choice.action.value,
        _ms(choice.keep_ns),
        _ms(choice.swap_ns),
        _ms(choice.recompute_ns),
        _ms(choice.excess_ns),
        "-" if rate is None else show.number(rate / _GB_S),
        choice.why,
    ]


def _ms(nanoseconds: float | None) -> str:
    from slackswap_opt.cli import show

    return show.milliseconds(None if nanoseconds is None else nanoseconds / 1e9)

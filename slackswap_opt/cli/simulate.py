"""`slackswap simulate`: play a plan file and check what it says."""

from __future__ import annotations

import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from slackswap_opt.cli import options, scenarios
from slackswap_opt.cli.guard import Exit, complain
from slackswap_opt.cli.plan import refuse_early

if TYPE_CHECKING:
    from slackswap_opt.cli.reserved import Held
    from slackswap_opt.study import Replay

MOST_STALLS = 10


def simulate(
    path: Annotated[
        Path, typer.Argument(metavar="PLAN.json", help="A plan file.", show_default=False)
    ],
    capacity: Annotated[
        str | None,
        typer.Option(
            "--capacity",
            "-c",
            help="Play it at another capacity: 60%, 20GiB or bytes. (default: its budget)",
            show_default=False,
        ),
    ] = None,
    allocator: options.Allocator = None,
    allocator_limit: Annotated[
        str | None,
        typer.Option(
            "--allocator-limit",
            help="What the allocator may reserve: 60%, 20GiB or bytes. (default: the capacity)",
            show_default=False,
        ),
    ] = None,
    own_pool: Annotated[
        bool,
        typer.Option("--own-pool", help="Copies in have a pool of their own in the allocator."),
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option(
            "--trace",
            metavar="TRACE.json",
            help="Write a trace for Perfetto or chrome://tracing.",
            show_default=False,
        ),
    ] = None,
    picture: Annotated[bool, typer.Option("--show", help="Draw streams and memory.")] = False,
    jitter: scenarios.Jitter = None,
    link_jitter: scenarios.LinkJitter = None,
    trials: scenarios.Trials = 1000,
    seed: scenarios.Seed = 0,
    steps: scenarios.Steps = 1,
    micro_batches: scenarios.MicroBatches = 1,
    devices: scenarios.Devices = 1,
    load: scenarios.Load = None,
    force: options.Force = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Play a plan file in the simulator.

    All that the file says is compared with what happens; where the two differ, or the schedule does
    not fit, the exit code is 5. With --allocator also where it does not fit into that allocator.
    Noise, steps in a row, micro-batches, several devices and traffic are played beside it.
    """
    from slackswap_opt.cli import reserved, show
    from slackswap_opt.errors import InputError, SlackSwapError
    from slackswap_opt.plan import Problem, parse_budget
    from slackswap_opt.plan.files import read_plan
    from slackswap_opt.study import InvalidPlanError, replay

    noise = scenarios.noise_of(jitter, link_jitter, trials, seed)
    asked = scenarios.asked(noise, steps, micro_batches, devices, load)
    kind = None if allocator is None else reserved.kind_of(allocator)
    if picture and json:
        raise InputError("--show draws for people and --json prints one document; give one of them")
    for option, given in (("--own-pool", own_pool), ("--allocator-limit", allocator_limit)):
        if given and kind is None:
            raise InputError(f"{option} says how an allocator is used; give --allocator too")
    if trace is not None:
        refuse_early(trace, force=force)
    plan = read_plan(path)
    peak = Problem(plan.step, plan.machine, plan.budget_bytes).liveness.ideal_peak_bytes
    size = None if capacity is None else parse_budget(capacity, peak)
    try:
        played = replay(plan, size)
    except SlackSwapError as error:
        raise InvalidPlanError(f"{path}: {error}") from error
    held = None
    if kind is not None:
        limit = parse_budget(allocator_limit, peak) if allocator_limit else None
        held = reserved.held(
            plan.step, plan.schedule, played.verdict, kind, limit_bytes=limit, own_pool=own_pool
        )
    answer = scenarios.answer(asked, played)
    if trace is not None:
        _write_trace(trace, played, held, force=force)
    if json:
        document = _document(played) | scenarios.document(answer)
        show.print_json(
            document if held is None else document | {"allocator": reserved.document(held)}
        )
    else:
        _print(played, held)
        scenarios.print_answer(answer)
        if picture:
            _draw(played)
        if trace is not None:
            show.print_lines("", f"trace written to {trace}")
    if held is not None and held.limited.refused is not None:
        complain(reserved.out_of_memory(held.limited))
        return Exit.INVALID_PLAN
    return Exit.DONE


def _write_trace(path: Path, played: Replay, held: Held | None, *, force: bool) -> None:
    from slackswap_opt.export import chrome_trace
    from slackswap_opt.formats import write_text

    plan = played.plan
    counters = {}
    if held is not None:
        free = held.free
        counters[f"reserved ({free.kind.value})"] = (free.reserved_ns, free.reserved_bytes)
    text = chrome_trace(
        plan.step,
        plan.schedule,
        played.verdict,
        machine=plan.machine.name,
        budget_bytes=plan.budget_bytes,
        counters=counters,
    )
    write_text(path, text, force=force)


def _draw(played: Replay) -> None:
    from slackswap_opt.cli import show, timeline

    marks = timeline.marks_for(sys.stdout.encoding)
    plan, width = played.plan, timeline.terminal_width()
    lines = timeline.draw(plan.step, plan.schedule, played.verdict, width, marks)
    show.print_text("\n".join(["", *lines]) + "\n")


def _document(played: Replay) -> dict[str, object]:
    from slackswap_opt.study.compare import NS_PER_S, gap, ratio

    plan, verdict = played.plan, played.verdict
    step_ns = verdict.step_ns or 0
    tensors, ops = plan.step.tensors, plan.step.operations
    return {
        "schema": "slackswap.simulate/1",
        "workload": plan.step.name,
        "machine": plan.machine.name,
        "planner": plan.planner,
        "budget_bytes": plan.budget_bytes,
        "capacity_bytes": verdict.capacity_bytes,
        "agrees_with_file": True,
        "peak_bytes": verdict.peak_bytes,
        "ideal_peak_bytes": plan.simulated.ideal_peak_bytes,
        "host_bytes": verdict.timeline.host_bytes,
        "ideal_step_s": plan.simulated.ideal_step_ns / NS_PER_S,
        "step_s": step_ns / NS_PER_S,
        "throughput_retained": ratio(plan.simulated.ideal_step_ns, step_ns),
        "recorded_bound_step_s": plan.bound.step_ns / NS_PER_S,
        "recorded_gap": gap(step_ns, plan.bound.step_ns) if _bound_holds(played) else None,
        "stall_s": verdict.stall_ns / NS_PER_S,
        "recompute_s": played.account.recompute_ns / NS_PER_S,
        "kept_bytes": played.account.total.kept_bytes,
        "swapped_bytes": played.account.total.swapped_bytes,
        "recomputed_bytes": played.account.total.recomputed_bytes,
        "utilization": {name: ratio(busy, step_ns) for name, busy in played.busy_ns.items()},
        "stalls": [
            {
                "operation": ops[plan.schedule.compute[stall.event]].name,
                "event": stall.event,
                "start_s": stall.start_ns / NS_PER_S,
                "seconds": (stall.end_ns - stall.start_ns) / NS_PER_S,
                "cause": stall.cause.value,
                "tensor": tensors[stall.tensor].name,
            }
            for stall in verdict.timeline.stalls
        ],
    }


def _bound_holds(played: Replay) -> bool:
    """A bound for a budget is one for each smaller capacity, not for a larger one."""
    return played.verdict.capacity_bytes <= played.plan.budget_bytes


def _print(played: Replay, held: Held | None) -> None:
    from slackswap_opt.cli import reserved, show
    from slackswap_opt.study.compare import NS_PER_S, gap, ratio

    plan, verdict = played.plan, played.verdict
    step_ns, ideal_ns = verdict.step_ns or 0, plan.simulated.ideal_step_ns
    limit = show.milliseconds(plan.bound.step_ns / NS_PER_S)
    facts = {
        "plan": f"{plan.step.name} on {plan.machine.name}, by {plan.planner} ({plan.status})",
        "check": "the schedule is valid, fits, and does what the file says",
        "capacity": f"{show.memory(verdict.capacity_bytes)}"
        + (
            ""
            if verdict.capacity_bytes == plan.budget_bytes
            else f" (its budget is {show.memory(plan.budget_bytes)})"
        ),
        "peak": f"{show.memory(verdict.peak_bytes)}, "
        f"{show.memory(verdict.timeline.host_bytes)} on the host",
        **({} if held is None else reserved.facts(held)),
        "step": f"{show.milliseconds(step_ns / NS_PER_S)} ms, "
        f"{show.percent_down(ratio(ideal_ns, step_ns))} of the throughput of the ideal "
        f"{show.milliseconds(ideal_ns / NS_PER_S)} ms",
        "gap": f"{show.percent_up(gap(step_ns, plan.bound.step_ns))} to the bound recorded in the "
        f"file, {limit} ms"
        if _bound_holds(played)
        else "unknown: the bound in the file is for a smaller budget",
        "overhead": f"{show.milliseconds(played.account.recompute_ns / NS_PER_S)} ms recomputing, "
        f"{show.milliseconds(verdict.stall_ns / NS_PER_S)} ms waiting",
        "utilization": ", ".join(
            f"{name} {show.percent_down(ratio(busy, step_ns))}"
            for name, busy in played.busy_ns.items()
        ),
    }
    show.print_facts(facts)
    if held is not None:
        reserved.print_holes(held)
    if verdict.timeline.stalls:
        _print_stalls(played)


def _print_stalls(played: Replay) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.study.compare import NS_PER_S

    plan, stalls = played.plan, played.verdict.timeline.stalls
    by_cause: dict[str, int] = defaultdict(int)
    for stall in stalls:
        by_cause[stall.cause.value] += stall.end_ns - stall.start_ns
    causes = ", ".join(
        f"{show.milliseconds(ns / NS_PER_S)} ms for a {cause}" for cause, ns in by_cause.items()
    )
    longest = sorted(stalls, key=lambda s: (s.start_ns - s.end_ns, s.start_ns))[:MOST_STALLS]
    show.print_lines("")
    show.print_table(
        f"{show.count(len(stalls), 'wait')}: {causes}; the longest are",
        [
            show.Column("ms"),
            show.Column("before", left=True),
            show.Column("waits for", left=True),
            show.Column("of tensor", left=True),
            show.Column("at ms", 1),
        ],
        [
            [
                show.milliseconds((stall.end_ns - stall.start_ns) / NS_PER_S),
                plan.step.operations[plan.schedule.compute[stall.event]].name,
                stall.cause.value,
                plan.step.tensors[stall.tensor].name,
                show.milliseconds(stall.start_ns / NS_PER_S),
            ]
            for stall in longest
        ],
    )

"""`slackswap inspect`: what a step is made of."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit

if TYPE_CHECKING:
    from slackswap_opt.study import Inspection


def inspect(
    target: options.Target,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Show what a step is made of.

    Operations, tensors, memory and slack: is swapping worth it on this machine? Of a PyTorch memory
    snapshot: what it holds.
    """
    import dataclasses

    from slackswap_opt.cli import inputs, show, snapshot
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import inspect as inspect_problem

    if snapshot.is_snapshot(target):
        snapshot.inspect_snapshot(target, json=json)
        return Exit.DONE
    where = load_machine(machine)
    step = inputs.step_of(target, where, inputs.Overrides(batch, sequence, layers))
    facts = inspect_problem(inputs.unlimited(step, where))
    what = inputs.kind_of(target)
    if json:
        show.print_json(
            {"schema": "slackswap.inspect/1", "source": what, **dataclasses.asdict(facts)}
        )
    else:
        _print(what, facts)
    return Exit.DONE


def _print(what: str, facts: Inspection) -> None:
    from slackswap_opt.cli import show

    peak = facts.ideal_peak_bytes

    def share(size: int) -> str:
        return f"{show.memory(size)} ({size / peak:.1%} of the peak)" if peak else "0 B"

    phases = ", ".join(
        f"{p.phase} {p.operations} in {show.milliseconds(p.duration_ns / 1e9)} ms"
        for p in facts.phases
    )
    show.print_facts(
        {
            "step": f"{facts.name} on {facts.machine}",
            "read as": what,
            "operations": f"{facts.operations}: {phases}"
            + (f"; in {facts.components} parts" if facts.components > 1 else ""),
            "tensors": f"{facts.tensors}: {facts.activations} activations, of which {facts.saved} "
            f"saved; {show.memory(facts.static_bytes)} static beside them",
            "ideal step": f"{show.milliseconds(facts.ideal_step_ns / 1e9)} ms",
            "ideal peak": f"{show.memory(peak)}, at {facts.peak_operation}",
            "saved": f"{share(facts.saved_bytes)}; {show.memory(facts.movable_bytes)} can be "
            f"swapped, {show.memory(facts.rebuildable_bytes)} recomputed",
            "slack": f"about {show.memory(facts.slack_bytes)} hide under compute (out "
            f"{show.memory(facts.slack_out_bytes)} in the forward phase, back "
            f"{show.memory(facts.slack_in_bytes)} after it)",
            "swapping": _worth(facts),
            "critical": _critical(facts),
            "repeats": _repeats(facts),
            "smallest budget": f"never below {share(facts.smallest.budget_bytes)}, which "
            f"{facts.smallest.operation} needs at once",
        }
    )
    unit, scale = show.unit_of(peak)
    show.print_lines("")
    show.print_table(
        "Layers",
        [
            show.Column("layer", left=True),
            show.Column("layers"),
            show.Column("operations"),
            show.Column("forward ms"),
            show.Column(f"saved {unit}"),
        ],
        [
            [
                layer.kind,
                str(layer.layers),
                str(layer.operations),
                show.milliseconds(layer.forward_ns / 1e9),
                show.in_unit(layer.saved_bytes, scale),
            ]
            for layer in facts.layers
        ],
    )
    show.print_lines("")
    show.print_table(
        "Largest tensors",
        [
            show.Column("tensor", left=True),
            show.Column("size"),
            show.Column("layer", 1, left=True),
            show.Column("saved", left=True),
        ],
        [
            [tensor.name, show.memory(tensor.size_bytes), tensor.layer, "yes" if tensor.saved
             else "no"]
            for tensor in facts.largest
        ],
    )  # fmt: skip
    if facts.notes:
        show.print_lines("", "Notes", *(f"- {note}" for note in facts.notes))


def _worth(facts: Inspection) -> str:
    """The estimate and the criterion; the planner decides."""
    from slackswap_opt.cli import show
    from slackswap_opt.study.swap_value import WORTH_IT

    value = facts.swapping
    if not facts.movable_bytes:
        return value.verdict
    if not value.leave_bytes:
        return f"{value.verdict}: nothing fits below the ideal peak, so nothing can leave"

    def time(ns: int | None) -> str:
        return "cannot do it" if ns is None else f"costs {show.milliseconds(ns / 1e9)} ms or more"

    hidden = facts.slack_bytes / facts.movable_bytes
    saved = (
        ""
        if value.saved_fraction is None
        else f", {value.saved_fraction:.2%} of the step less (worth it from {WORTH_IT:.0%})"
    )
    return (
        f"{value.verdict}: for a budget of {value.budget_bytes / facts.ideal_peak_bytes:.0%}, "
        f"{show.memory(value.leave_bytes)} must leave; "
        f"recomputing alone {time(value.recompute_ns)}, with {hidden:.0%} of the swappable bytes "
        f"hidden by the link it {time(value.remaining_ns)}{saved}"
    )


def _repeats(facts: Inspection) -> str:
    """Layers as the operations show them; operations are counted from 1."""
    from slackswap_opt.cli import show

    if not facts.repeats:
        return "no block of operations is repeated"
    return ", ".join(
        f"{r.count} layers of {show.count(r.length, 'operation')} ({r.phase} {r.start + 1} to "
        f"{r.start + r.length * r.count}"
        + (f", durations within {r.tolerance:.0%}" if r.tolerance else "")
        + ")"
        for r in facts.repeats
    )


def _critical(facts: Inspection) -> str:
    """The layers that produce faster than the link takes away."""
    from slackswap_opt.cli import show

    per_gib = f"{show.milliseconds(facts.swapping.swap_ns_per_gib / 1e9)} ms for a GiB"
    rebuild = facts.swapping.rebuild_ns_per_gib
    if rebuild is not None:
        per_gib += f", rebuilding {show.milliseconds(rebuild / 1e9)} ms"
    if not facts.critical_layers:
        return f"no layer saves faster than the link takes away ({per_gib})"
    worst = ", ".join(
        f"{layer.layer} ({show.memory(layer.saved_bytes)} in "
        f"{show.milliseconds(layer.forward_ns / 1e9)} ms, "
        f"{show.milliseconds(layer.late_ns / 1e9)} ms late)"
        for layer in facts.critical[:3]
    )
    return (
        f"{show.count(facts.critical_layers, 'layer')} "
        f"save{'s' if facts.critical_layers == 1 else ''} faster than the link takes away "
        f"({per_gib}): {worst}"
    )

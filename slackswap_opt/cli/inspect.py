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

    Operations, tensors, memory and slack: is swapping worth it on this machine?
    """
    import dataclasses

    from slackswap_opt.cli import inputs, show
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import inspect as inspect_problem

    where = load_machine(machine)
    step = inputs.step_of(target, where, inputs.Overrides(batch, sequence, layers))
    facts = inspect_problem(inputs.unlimited(step, where))
    if json:
        show.print_json({"schema": "slackswap.inspect/1", **dataclasses.asdict(facts)})
    else:
        _print(facts)
    return Exit.DONE


def _print(facts: Inspection) -> None:
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
            "operations": f"{facts.operations}: {phases}",
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
    """An estimate in words; the planner decides."""
    if not facts.movable_bytes:
        return "nothing can be swapped"
    share = facts.slack_bytes / facts.movable_bytes
    hidden = f"the link hides about {share:.0%} of the swappable bytes"
    if share >= 0.9:
        return f"{hidden}: worth it, little needs recomputing"
    if share >= 0.1:
        return f"{hidden}: worth it for a part, recompute the rest"
    return f"{hidden}: hardly worth it, recompute"

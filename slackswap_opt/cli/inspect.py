"""`slackswap inspect`: what a step is made of."""

from __future__ import annotations

from collections.abc import Iterator
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
    from slackswap_opt.study.account import NO_LAYER

    show.print_lines(f"{facts.name} on {facts.machine}", f"read as: {what}")
    for title, lines in (
        ("Step", _step(facts)),
        ("Memory", _memory(facts)),
        ("Is swapping worth it? An estimate, before anything is planned", _worth(facts)),
    ):
        show.print_lines("")
        show.print_title(title)
        show.print_pairs(lines)
    if any(layer.kind != NO_LAYER for layer in facts.layers):
        _print_critical(facts)
        _print_layers(facts)
    else:
        show.print_lines("", "No operation names its layer, so there are no layers to compare.")
    if facts.largest:
        _print_largest(facts)
    if facts.notes:
        show.print_lines("")
        show.print_title("Notes")
        show.print_lines(*(f"- {note}" for note in facts.notes))


Pairs = list[tuple[str, str]]
"""Lines to print: what each is about, and what it says."""


def _step(facts: Inspection) -> Pairs:
    """Operations and tensors."""
    from slackswap_opt.cli import show

    def of(operations: int, duration_ns: int) -> str:
        return f"{operations} in {show.milliseconds(duration_ns / 1e9)} ms"

    whole = of(facts.operations, facts.ideal_step_ns)
    pairs = [("operations", f"{whole} without a memory limit")]
    pairs += [(f"  {p.phase}", of(p.operations, p.duration_ns)) for p in facts.phases]
    if facts.components > 1:
        pairs.append(("separate parts", f"{facts.components}, which pass each other no tensor"))
    repeated = [*_repeats(facts)] or ["no block of operations is repeated"]
    pairs += [("repeats" if not n else "", text) for n, text in enumerate(repeated)]
    return [
        *pairs,
        ("tensors", f"{facts.tensors}, of them {facts.activations} activations (written in the "
         "forward phase)"),
        ("static", f"{show.memory(facts.static_bytes)} of parameters and the like, which no "
         "budget counts"),
    ]  # fmt: skip


def _repeats(facts: Inspection) -> Iterator[str]:
    """Layers as the operations show them; operations are counted from 1."""
    from slackswap_opt.cli import show

    for r in facts.repeats:
        near = f", durations within {r.tolerance:.0%}" if r.tolerance else ""
        yield (
            f"{r.count} layers of {show.count(r.length, 'operation')} ({r.phase} {r.start + 1} to "
            f"{r.start + r.length * r.count}{near})"
        )


def _memory(facts: Inspection) -> Pairs:
    """What is held, and what can be done about it."""
    from slackswap_opt.cli import show

    peak = facts.ideal_peak_bytes

    def share(size: int) -> str:
        return f"{show.memory(size)} ({size / peak:.1%} of the peak)" if peak else "0 B"

    pairs = [
        ("ideal peak", f"{show.memory(peak)} with everything kept, at {facts.peak_operation}"),
        ("saved", f"{share(facts.saved_bytes)} in {show.count(facts.saved, 'activation')} that a "
         "later phase reads"),
        ("  can be swapped", show.memory(facts.movable_bytes)),
        ("  can be recomputed", show.memory(facts.rebuildable_bytes)),
        ("smallest budget", f"{share(facts.smallest.budget_bytes)} or more: "
         f"{facts.smallest.operation} alone needs that much at once"),
    ]  # fmt: skip
    unread = facts.unread
    raised = [
        f"the {what} by {show.memory(size)}"
        for what, size in (
            ("peak", unread.raises_peak_bytes), ("smallest budget", unread.raises_least_bytes),
        )
        if size
    ]  # fmt: skip
    if raised:
        one = unread.tensors == 1
        largest = f"{unread.largest}, written by {unread.writer},"
        who = f"{largest} is" if one else f"{unread.tensors} tensors, such as {largest} are"
        what = "it raises" if one else "they raise"
        pairs.append(("warning", f"{who} never read; {what} {' and '.join(raised)}"))
    return pairs


def _worth(facts: Inspection) -> Pairs:
    """The estimate and the criterion; the planner decides."""
    from slackswap_opt.cli import show
    from slackswap_opt.study.swap_value import WORTH_IT

    value = facts.swapping
    verdict = value.verdict
    if value.saved_fraction is not None and facts.slack_bytes:
        verdict += f": it saves {value.saved_fraction:.2%} of the step (worth it from "
        verdict += f"{WORTH_IT:.0%})"
    pairs = [("verdict", verdict)]
    if facts.movable_bytes and value.leave_bytes:

        def time(ns: int | None) -> str:
            if ns is None:
                return "not possible: too little can be recomputed"
            return f"adds {show.milliseconds(ns / 1e9)} ms or more to the step"

        hidden = facts.slack_bytes / facts.movable_bytes
        pairs += [
            ("example", f"a budget of {value.budget_bytes / facts.ideal_peak_bytes:.0%} of the "
             f"peak: {show.memory(value.leave_bytes)} must leave the device's memory"),
            ("  recomputing only", time(value.recompute_ns)),
            ("  swapping as well", time(value.remaining_ns)),
            ("slack", f"about {show.memory(facts.slack_bytes)} ({hidden:.0%} of what can be "
             "swapped) can be copied out and back while the device computes"),
            ("  out", f"{show.memory(facts.slack_out_bytes)} in the forward phase"),
            ("  back", f"{show.memory(facts.slack_in_bytes)} after it"),
        ]  # fmt: skip
    elif facts.movable_bytes:
        pairs.append(("why", "nothing fits below the ideal peak, so nothing can leave"))
    pairs.append(("copying 1 GiB", f"{show.milliseconds(value.swap_ns_per_gib / 1e9)} ms, one way"))
    if value.rebuild_ns_per_gib is not None:
        rebuilt = show.milliseconds(value.rebuild_ns_per_gib / 1e9)
        pairs.append(("recomputing 1 GiB", f"{rebuilt} ms on average"))
    return pairs


def _print_critical(facts: Inspection) -> None:
    """The layers that produce faster than the link takes away."""
    from slackswap_opt.cli import show

    if not facts.critical_layers:
        if facts.saved_bytes:
            show.print_lines("")
            show.print_title("Critical layers")
            show.print_lines(
                "None: whatever a layer saves can be copied to the host while it computes."
            )
        return
    shown = len(facts.critical)
    most = f", the {shown} worst" if shown < facts.critical_layers else ""
    one = facts.critical_layers == 1
    show.print_lines("")
    show.print_table(
        f"Critical layers ({facts.critical_layers}{most})",
        [
            show.Column("layer", left=True),
            show.Column("saves"),
            show.Column("forward ms"),
            show.Column("copy ms"),
            show.Column("late ms"),
        ],
        [
            [
                layer.layer,
                show.memory(layer.saved_bytes),
                show.milliseconds(layer.forward_ns / 1e9),
                show.milliseconds((layer.forward_ns + layer.late_ns) / 1e9),
                show.milliseconds(layer.late_ns / 1e9),
            ]
            for layer in facts.critical
        ],
        f"{'It saves' if one else 'They save'} more than can be copied to the host while "
        f"{'it computes' if one else 'they compute'}; the rest is copied under other layers, "
        "recomputed or kept.",
    )


def _print_layers(facts: Inspection) -> None:
    from slackswap_opt.cli import show
    from slackswap_opt.study.account import NO_LAYER

    unit, scale = show.unit_of(facts.ideal_peak_bytes)
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
                "-" if layer.kind == NO_LAYER else str(layer.layers),
                str(layer.operations),
                show.milliseconds(layer.forward_ns / 1e9),
                show.in_unit(layer.saved_bytes, scale),
            ]
            for layer in facts.layers
        ],
        "* stands for a number: layers that differ in numbers only are one row."
        if any("*" in layer.kind for layer in facts.layers)
        else "",
    )


def _print_largest(facts: Inspection) -> None:
    from slackswap_opt.cli import show

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
            [tensor.name, show.memory(tensor.size_bytes), tensor.layer or "-", "yes" if tensor.saved
             else "no"]
            for tensor in facts.largest
        ],
    )  # fmt: skip

"""`slackswap bound`: what no plan can beat."""

from __future__ import annotations

from typing import TYPE_CHECKING

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit, complain

if TYPE_CHECKING:
    from collections.abc import Iterable

    from slackswap_opt.formulation.bound import Bound
    from slackswap_opt.study.explain import Limit


def bound(
    target: options.Target,
    budget: options.Budget = None,
    device_memory: options.DeviceMemory = None,
    reserve: options.Reserve = None,
    static_memory: options.StaticMemory = None,
    machine: options.MachineName = options.DEFAULT_MACHINE,
    nodes: options.Nodes = 0,
    time_limit: options.ProofLimit = 60.0,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    parts: options.Parts = None,
    parts_above: options.PartsAbove = None,
    no_swaps: options.NoSwaps = False,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Prove how fast a step can be.

    No schedule in this operation order is faster under this budget and link. The
    solver's multipliers are checked in exact arithmetic. With --nodes the proof goes
    on: at other cuts, and by branching on what is kept, swapped and rebuilt.
    """
    import dataclasses

    from slackswap_opt.cli import inputs, show
    from slackswap_opt.cli.device_memory import entry, line
    from slackswap_opt.formulation.bound import Prover
    from slackswap_opt.formulation.bound import bound as bound_of
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import limits_at, lower_limit
    from slackswap_opt.study.compare import NS_PER_S, ratio

    settings = inputs.settings_of("0", time_limit, solver)
    memory = inputs.memory_one(budget, device_memory, reserve, static_memory)
    in_parts = inputs.parts_of(parts, parts_above)
    where = load_machine(machine)
    source = inputs.source_of(target, inputs.Overrides(batch, sequence, layers))
    ((problem, divided),) = memory.problems(source, where, in_parts, swaps=not no_swaps)
    step = problem.step
    peak, ideal = problem.liveness.ideal_peak_bytes, problem.ideal_step_ns
    least = lower_limit(step)
    if problem.budget_bytes < least.budget_bytes:
        complain(
            f"no plan fits a budget of {problem.budget_bytes} bytes; this is proven: operation "
            f"{least.operation!r} needs {least.budget_bytes} bytes at once"
            + (f"\ndevice memory: {line(divided)}" if divided else "")
        )
        return Exit.NOTHING_FITS
    with show.progress() as report:
        report(f"{step.name}: bound")
        limit = bound_of(problem, solver=settings.solver)
        if nodes:
            report(f"{step.name}: more relaxations")
            prover = Prover(problem, limit, settings.solver)
            limit = prover.run(seconds=settings.seconds, nodes=nodes)
        binding = limits_at(problem, limit.cut, solver=settings.solver) if limit.cut >= 0 else ()
    cut = step.operations[limit.cut].name if limit.cut >= 0 else None
    if json:
        show.print_json(
            {
                "schema": "slackswap.bound/1",
                "workload": step.name,
                "machine": where.name,
                "budget_bytes": problem.budget_bytes,
                "budget_fraction": problem.budget_bytes / peak if peak else 1.0,
                "ideal_peak_bytes": peak,
                "ideal_step_s": ideal / NS_PER_S,
                "bound_step_s": limit.step_ns / NS_PER_S,
                "best_throughput_retained": ratio(ideal, limit.step_ns),
                "bound_cut": cut,
                "solver": limit.solver or None,
                "seconds": limit.seconds,
                "nodes": limit.nodes,
                "time_limited": limit.timed_out,
                "swaps": problem.swaps,
                "limits": [dataclasses.asdict(one) for one in binding],
                **({"device_memory": entry(divided)} if divided else {}),
            }
        )
        return Exit.DONE
    show.print_facts(
        {
            "problem": f"{step.name} on {where.name}, {show.memory(problem.budget_bytes)} of "
            f"{show.memory(peak)}{show.only(problem.swaps)}",
            "bound": f"{show.milliseconds(limit.step_ns / NS_PER_S)} ms a step; the ideal step "
            f"takes {show.milliseconds(ideal / NS_PER_S)} ms",
            "best possible": f"{show.percent_up(ratio(ideal, limit.step_ns))} of the throughput",
            "where": f"memory at the start of {cut}" if cut else "the ideal step: no limit is met",
            **({"binds": _words(binding)} if binding else {}),
            **({"more proof": _more(limit)} if limit.nodes else {}),
            "solver": f"{limit.solver or 'none needed'}; its multipliers verified in exact "
            f"arithmetic, {show.number(limit.seconds)} s",
            **({"device memory": line(divided)} if divided else {}),
        }
    )
    return Exit.DONE


def _more(limit: Bound) -> str:
    stopped = "; stopped by the clock" if limit.timed_out else ""
    return f"{limit.nodes} relaxations, each verified{stopped}"


def _words(binding: Iterable[Limit]) -> str:
    """The dearest constraint of each resource."""
    from slackswap_opt.cli.explain import dearest, place_of, saving_of

    return "; ".join(
        f"{limit.resource} {place_of(limit)} ({saving_of(limit)})" for limit in dearest(binding, 1)
    )

"""`slackswap bound`: what no plan can beat."""

from __future__ import annotations

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit, complain


def bound(
    target: options.Target,
    budget: options.Budget = "50%",
    machine: options.MachineName = options.DEFAULT_MACHINE,
    solver: options.Solver = "cbc",
    batch: options.Batch = None,
    sequence: options.Sequence = None,
    layers: options.Layers = None,
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """Prove how fast a step can be.

    No schedule in this operation order is faster under this budget and link. The
    solver's multipliers are checked in exact arithmetic.
    """
    from slackswap_opt.cli import inputs, show
    from slackswap_opt.formulation.bound import bound as bound_of
    from slackswap_opt.machine import load_machine
    from slackswap_opt.study import lower_limit
    from slackswap_opt.study.compare import NS_PER_S, ratio

    settings = inputs.settings_of("0", 60.0, solver)
    where = load_machine(machine)
    step = inputs.step_of(target, where, inputs.Overrides(batch, sequence, layers))
    problem = inputs.with_budget(inputs.unlimited(step, where), budget)
    peak, ideal = problem.liveness.ideal_peak_bytes, problem.ideal_step_ns
    least = lower_limit(step)
    if problem.budget_bytes < least.budget_bytes:
        complain(
            f"no plan fits a budget of {problem.budget_bytes} bytes; this is proven: operation "
            f"{least.operation!r} needs {least.budget_bytes} bytes at once"
        )
        return Exit.NOTHING_FITS
    with show.progress() as report:
        report(f"{step.name}: bound")
        limit = bound_of(problem, solver=settings.solver)
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
            }
        )
        return Exit.DONE
    show.print_facts(
        {
            "problem": f"{step.name} on {where.name}, {show.memory(problem.budget_bytes)} of "
            f"{show.memory(peak)}",
            "bound": f"{show.milliseconds(limit.step_ns / NS_PER_S)} ms a step; the ideal step "
            f"takes {show.milliseconds(ideal / NS_PER_S)} ms",
            "best possible": f"{show.percent_up(ratio(ideal, limit.step_ns))} of the throughput",
            "where": f"memory at the start of {cut}" if cut else "the ideal step: no limit is met",
            "solver": f"{limit.solver or 'none needed'}; its multipliers verified in exact "
            f"arithmetic, {show.number(limit.seconds)} s",
        }
    )
    return Exit.DONE

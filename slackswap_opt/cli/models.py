"""`slackswap models`: what is shipped."""

from __future__ import annotations

import re

from slackswap_opt.cli import options
from slackswap_opt.cli.guard import Exit


def models(
    json: options.Json = False,
    verbose: options.Verbose = False,  # noqa: ARG001 - read by the guard
) -> Exit:
    """List the shipped workloads, graphs and machines."""
    from slackswap_opt.cli import show
    from slackswap_opt.formats import graph_names, graph_path, read_step
    from slackswap_opt.machine import load_machine, machine_names
    from slackswap_opt.step import ideal_step_ns, liveness
    from slackswap_opt.workloads import load_workload, workload_names
    from slackswap_opt.workloads.optimizer import parameter_groups

    workloads = [
        {
            "name": name,
            "description": workload.description,
            "layers": workload.architecture.layers,
            "batch": workload.training.batch,
            "sequence": workload.training.sequence,
            "dtype": workload.training.dtype,
            "tensor_parallel": workload.tensor_parallel.degree,
            "parameters_per_device": sum(parameter_groups(workload).values()),
        }
        for name in workload_names()
        for workload in [load_workload(name)]
    ]
    graphs = [
        {
            "name": name,
            "description": step.notes[0] if step.notes else "",
            "operations": len(step.operations),
            "ideal_peak_bytes": liveness(step).ideal_peak_bytes,
            "ideal_step_s": ideal_step_ns(step) / 1e9,
        }
        for name in graph_names()
        for step in [read_step(graph_path(name))]
    ]
    machines = [
        {
            "name": name,
            "memory_bytes": machine.device.memory_bytes,
            "peak_flops_per_s": dict(machine.device.peak_flops_per_s),
            "d2h_bytes_per_s": machine.link.d2h_bytes_per_s,
            "h2d_bytes_per_s": machine.link.h2d_bytes_per_s,
            "d2h_duplex_bytes_per_s": machine.link.d2h_duplex_bytes_per_s,
            "h2d_duplex_bytes_per_s": machine.link.h2d_duplex_bytes_per_s,
            "shared_by": machine.link.shared_by,
            "default": name == options.DEFAULT_MACHINE,
        }
        for name in machine_names()
        for machine in [load_machine(name)]
    ]
    if json:
        show.print_json(
            {
                "schema": "slackswap.models/1",
                "workloads": workloads,
                "graphs": graphs,
                "machines": machines,
            }
        )
        return Exit.DONE
    show.print_table(
        "Workloads",
        [
            show.Column("name", left=True),
            show.Column("layers"),
            show.Column("batch x sequence"),
            show.Column("type", 1, left=True),
            show.Column("parameters"),
            show.Column("description", 2, left=True),
        ],
        [
            [
                str(w["name"]),
                str(w["layers"]),
                f"{w['batch']} x {w['sequence']}",
                str(w["dtype"]),
                _billions(int(str(w["parameters_per_device"])))
                + ("" if w["tensor_parallel"] == 1 else f" of 1/{w['tensor_parallel']}"),
                str(w["description"]),
            ]
            for w in workloads
        ],
    )
    show.print_lines("")
    show.print_table(
        "Graphs",
        [
            show.Column("name", left=True),
            show.Column("operations"),
            show.Column("ms a step"),
            show.Column("peak"),
            show.Column("description", 2, left=True),
        ],
        [
            [
                str(g["name"]),
                str(g["operations"]),
                show.milliseconds(float(str(g["ideal_step_s"]))),
                show.memory(int(str(g["ideal_peak_bytes"]))),
                re.split("[,;]", str(g["description"]))[0],
            ]
            for g in graphs
        ],
    )
    show.print_lines("")
    show.print_table(
        "Machines (link rates in GB/s: alone, and with both directions busy)",
        [
            show.Column("name", left=True),
            show.Column("memory"),
            show.Column("fp16 TFLOP/s", 1),
            show.Column("to host"),
            show.Column("from host"),
        ],
        [
            [
                name + (" (default)" if name == options.DEFAULT_MACHINE else ""),
                show.memory(machine.device.memory_bytes),
                _tera(machine.device.peak_flops_per_s.get("fp16")),
                f"{machine.link.d2h_bytes_per_s / 1e9:g}, "
                f"{machine.link.d2h_duplex_bytes_per_s / 1e9:g}",
                f"{machine.link.h2d_bytes_per_s / 1e9:g}, "
                f"{machine.link.h2d_duplex_bytes_per_s / 1e9:g}",
            ]
            for name in machine_names()
            for machine in [load_machine(name)]
        ],
    )
    return Exit.DONE


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 1e9 else f"{parameters / 1e6:.0f} M"


def _tera(rate: float | None) -> str:
    return "-" if rate is None else f"{rate / 1e12:g}"

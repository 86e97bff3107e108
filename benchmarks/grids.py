"""Grids of problems over workloads, shipped graphs and measured profiles, kept in a journal."""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from benchmarks.command import DATA, names_in
from slackswap_opt.formats import graph_names, graph_path, read_step
from slackswap_opt.machine import Machine
from slackswap_opt.step import TrainingStep
from slackswap_opt.study import Settings, SweepRow, pool_of, run_sweep
from slackswap_opt.study.chain import Budgets, Chain, Point, axes_of, with_link
from slackswap_opt.workloads import Workload, load_workload

LEFT_OUT = ("tiny-mlp",)
"""Shipped graphs that are examples of the format and no networks."""
MEASURED = {
    "resnet50-pipedream": "graphs/pipedream_resnet50.txt",
    "gnmt-pipedream": "graphs/pipedream_gnmt.txt",
    "resnet50-dnnpart": "graphs/dnnpart_resnet50_training.json",
    "bert24-dnnpart": "graphs/dnnpart_bert24_training.json",
    "resnet50-onnx": "graphs/onnx_light_resnet50.onnx",
    "resnet50-kineto": "traces/01_kineto_resnet50_v100_train.pt.trace.json.gz",
}
"""Names in the table to files in the folder that `SLACKSWAP_DATA` names."""
GREEDY = ("greedy", "capuchin", "on-demand")
"""The planners that choose by a rule, step by step; the best of them is the greedy one."""


@dataclass(frozen=True)
class Source:
    """A step, or what it is built from.

    Attributes:
        name: in tables.
        kind: "workload", "graph" or "measured".
        step: the step or the workload.
    """

    name: str
    kind: str
    step: TrainingStep | Workload


def sources(
    machine: Machine,
    workloads: Iterable[str],
    graphs: Iterable[str] | None = None,
    data: str | None = None,
) -> list[Source]:
    """Workloads, shipped graphs, and the profiles in a folder as far as they are there."""
    found = [Source(name, "workload", load_workload(name)) for name in workloads]
    names = [n for n in graph_names() if n not in LEFT_OUT] if graphs is None else graphs
    found += [Source(name, "graph", read_step(graph_path(name))) for name in names]
    if data:
        there = [(name, Path(data) / path) for name, path in MEASURED.items()]
        found += [
            Source(name, "measured", read_step(path, machine=machine))
            for name, path in there
            if path.is_file()
        ]
    return found


def chain_of(
    source: Source,
    machine: Machine,
    link_gb_per_s: float | None,
    budgets: Sequence[str],
    settings: Settings,
) -> Chain:
    """All budgets of a step on the machine with another link."""
    where = machine if link_gb_per_s is None else with_link(machine, link_gb_per_s)
    rate = where.link.d2h_bytes_per_s / 1e9
    point = Point(
        source.name, machine.name, *axes_of(source.step), rate, where.device.attained_flops
    )
    planners = (*GREEDY, "ilp")
    return Chain(point, source.step, where, Budgets(tuple(budgets)), planners, settings)


def add_grid_options(parser: argparse.ArgumentParser, workloads: Iterable[str]) -> None:
    """Which steps there are (the given workloads unless others are named), and how they are run."""
    parser.add_argument("--workloads", default=",".join(workloads), help="names")
    parser.add_argument("--graphs", default=None, help="names of shipped graphs (default: all)")
    parser.add_argument("--data", default=os.environ.get(DATA), help="folder of profiles")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--journal", type=Path, help="what is finished (default: a temporary file)")


def asked_sources(asked: argparse.Namespace, machine: Machine) -> list[Source]:
    """The steps that the grid's options name."""
    graphs = None if asked.graphs is None else names_in(asked.graphs)
    return sources(machine, names_in(asked.workloads), graphs, asked.data)


def asked_rows(asked: argparse.Namespace, name: str, chains: Sequence[Chain]) -> Sequence[SweepRow]:
    """Run a grid as its options say, with progress on standard error.

    Args:
        asked: the options.
        name: of the script, for the journal that is kept unless another is named.
        chains: what is run; what the journal holds is not run again.
    """
    journal = asked.journal or Path(tempfile.gettempdir()) / f"slackswap-{name}.journal"

    def told(done: int, total: int, what: str) -> None:
        print(f"  {done} of {total} rows: {what}", file=sys.stderr)

    with pool_of(asked.jobs) as pool:
        return run_sweep(chains, pool, journal, told).rows

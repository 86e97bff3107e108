"""Arguments and options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

DEFAULT_MACHINE = "a100-80gb-pcie4"

Target = Annotated[
    str,
    typer.Argument(
        metavar="WORKLOAD|FILE",
        help="A shipped workload (see `slackswap models`), a workload's .toml, or a step file.",
        show_default=False,
    ),
]
MachineName = Annotated[
    str, typer.Option("--machine", "-m", metavar="NAME|TOML", help="Where the step runs.")
]
Budget = Annotated[
    str | None,
    typer.Option(
        "--budget",
        "-b",
        help="Activation memory: 50%, 0.5, 20GiB, 20GB or bytes. (default: 50%)",
        show_default=False,
    ),
]
Batch = Annotated[int | None, typer.Option("--batch", help="Sequences per device, for workloads.")]
Sequence = Annotated[
    int | None, typer.Option("--sequence", help="Tokens per sequence, for workloads.")
]
Layers = Annotated[int | None, typer.Option("--layers", help="Number of layers, for workloads.")]
Parts = Annotated[
    int | None,
    typer.Option(
        "--parts",
        metavar="N",
        help="Hold large tensors in N parts along the batch, which leave and return separately.",
        show_default=False,
    ),
]
PartsAbove = Annotated[
    str | None,
    typer.Option(
        "--parts-above",
        metavar="SIZE",
        help="Tensors from this size on are in parts. (default: 256MiB)",
        show_default=False,
    ),
]
NoSwaps = Annotated[
    bool,
    typer.Option("--no-swaps", help="Only recompute: nothing may be copied to the host."),
]
Gap = Annotated[str, typer.Option("--gap", help="Certified gap at which the ILP stops.")]
TimeLimit = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", help="For the ILP, per problem.")
]
Solver = Annotated[str, typer.Option("--solver", metavar="cbc|highs", help="LP and ILP solver.")]
Nodes = Annotated[
    int, typer.Option("--nodes", min=0, help="Relaxations to solve for a better proof.")
]
ProofLimit = Annotated[
    float, typer.Option("--time-limit", metavar="SECONDS", help="For a better proof.")
]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document.")]
Force = Annotated[bool, typer.Option("--force", "-f", help="Replace an existing file.")]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Print tracebacks of errors.")]
Output = Annotated[
    Path | None,
    typer.Option("--output", "-o", help="Plan file to write; - for standard output."),
]
Budgets = Annotated[
    list[str] | None,
    typer.Option(
        "--budget",
        "-b",
        help="Activation memory: 50%, 0.5, 20GiB, 20GB or bytes; may be given again. "
        "(default: 50%; for a sweep, 100% down to 20%)",
        show_default=False,
    ),
]
DeviceMemory = Annotated[
    str | None,
    typer.Option(
        "--device-memory",
        metavar="SIZE",
        help="In place of a budget: 40GiB, or 100% of the machine's. The budget is what static "
        "memory and reserve leave.",
        show_default=False,
    ),
]
DeviceMemories = Annotated[
    list[str] | None,
    typer.Option(
        "--device-memory",
        metavar="SIZE",
        help="In place of a budget: 40GiB, or 100% of the machine's; may be given again. The "
        "budget is what static memory and reserve leave.",
        show_default=False,
    ),
]
Reserve = Annotated[
    str | None,
    typer.Option(
        "--reserve",
        metavar="SIZE",
        help="Device memory left alone, for context and fragmentation: 4GiB or a share. "
        "(default: 10%)",
        show_default=False,
    ),
]
StaticMemory = Annotated[
    str | None,
    typer.Option(
        "--static-memory",
        metavar="SIZE|STATE",
        help="A size, or how parameters and optimizer are held, like "
        "adamw-8bit,master=none,zero=2,shards=8. (default: as the workload says)",
        show_default=False,
    ),
]
PlannerName = Annotated[str, typer.Option("--planner", "-p", help="Who plans.")]
Planners = Annotated[
    list[str] | None,
    typer.Option(
        "--planners", "-p", help="Names with commas between. (default: all)", show_default=False
    ),
]
Allocator = Annotated[
    str | None,
    typer.Option(
        "--allocator",
        metavar="caching|expandable|ideal",
        help="What this model of PyTorch's allocator reserves counts too.",
        show_default=False,
    ),
]

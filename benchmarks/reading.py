"""How long it takes to read steps, and how much memory, by format and size.

    python -m benchmarks.reading [--sizes 1000,100000] [--formats native,graphml,...] [--write]

Each reading runs in a process of its own, which reports its processor time and its peak memory,
both without what the start of Python and the imports take. `--write` puts the table into
docs/formats.md.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from benchmarks.command import ROOT, parser_of, rewrite
from benchmarks.trace_files import TRACES
from slackswap_opt.formats import write_step
from slackswap_opt.formats.writing import WRITERS
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value

READ = """
import json, resource, sys, time
from slackswap_opt.formats import read_step
from slackswap_opt.machine import load_machine
machine = load_machine()
def peak():
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss // 1024
read_step(sys.argv[2], machine=machine)
before, begin = peak(), time.process_time()
step = read_step(sys.argv[1], machine=machine)
print(json.dumps([len(step.operations), time.process_time() - begin, peak() - before]))
"""


def chain(count: int) -> TrainingStep:
    """Forward and backward operations of a chain of layers, half of each."""
    layers = count // 2
    operations = [
        Operation(
            f"layer.{n}.forward",
            Phase.FORWARD,
            1000 + n,
            (Value(f"a{n - 1}"),) if n else (),
            (Value(f"a{n}"),),
            layer=f"layer.{n // 10}",
        )
        for n in range(layers)
    ]
    operations += [
        Operation(
            f"layer.{n}.backward",
            Phase.BACKWARD,
            2000 + n,
            (*((Value(f"g{n + 1}"),) if n + 1 < layers else ()), Value(f"a{n}")),
            (Value(f"g{n}"),),
            layer=f"layer.{n // 10}",
        )
        for n in reversed(range(layers))
    ]
    tensors = [Tensor.of(f"{kind}{n}", 2**20) for kind in "ag" for n in range(layers)]
    return TrainingStep.build("chain", operations, tensors)


def write_pipedream(count: int, path: Path) -> None:
    """A profile with as many operations, half of them layers."""
    lines = []
    for n in range(1, count // 2 + 1):
        lines.append(
            f"node{n} -- Linear(1, 1) -- forward_compute_time=0.100, backward_compute_time=0.200, "
            "activation_size=1048576.0, parameter_size=4096.0"
        )
        lines += [f"\tnode{n - 1} -- node{n}"] if n > 1 else []
    path.write_text("\n".join(lines) + "\n")


def write_dnn_partitioning(count: int, path: Path) -> None:
    """A layer graph with as many nodes, half of them backward."""
    layers = count // 2
    nodes = [
        {"name": f"node{n}", "id": n + back * layers, "fpgaLatency": 0.1, "isBackwardNode": back,
         "colorClass": n, "size": 1048576.0}
        for n in range(layers)
        for back in (0, 1)
    ]  # fmt: skip
    edges = [
        {"sourceId": n + back * layers, "destId": n + 1 + back * layers, "size": 524288.0}
        for n in range(layers - 1)
        for back in (0, 1)
    ]
    path.write_text(json.dumps({"nodes": nodes, "edges": edges}))


FORMATS = [*WRITERS, "pipedream", "dnn-partitioning", *TRACES]


def measured(kind: str, count: int, folder: Path) -> tuple[int, float, int, int]:
    """Operations, seconds, MiB of memory and bytes of the file."""
    small, path = folder / f"{kind}.small", folder / f"{kind}.{count}"
    for size, target in ((20, small), (count, path)):
        if kind == "pipedream":
            write_pipedream(size, target)
        elif kind == "dnn-partitioning":
            write_dnn_partitioning(size, target)
        elif kind in TRACES:
            TRACES[kind](size, target)
        else:
            write_step(chain(size), target, to=kind, force=True)
    done = subprocess.run(
        [sys.executable, "-c", READ, str(path), str(small)],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(done.stderr)
    operations, seconds, mebibytes = json.loads(done.stdout)
    return operations, seconds, mebibytes, path.stat().st_size


def main() -> None:
    """Print the table, and write it if asked to."""
    parser = parser_of(__doc__, write="update docs/formats.md")
    parser.add_argument("--sizes", default="1000,10000,100000")
    parser.add_argument("--formats", default=",".join(FORMATS))
    arguments = parser.parse_args()
    lines = [
        "| format | operations | file MB | seconds | us an operation | MiB |",
        "|---|---:|---:|---:|---:|---:|",
    ]
    print("\n".join(lines))
    with tempfile.TemporaryDirectory() as folder:
        for kind in arguments.formats.split(","):
            for count in map(int, arguments.sizes.split(",")):
                operations, seconds, mebibytes, size = measured(kind, count, Path(folder))
                lines.append(
                    f"| {kind} | {operations:,} | {size / 1e6:.1f} | {seconds:.2f} | "
                    f"{seconds / operations * 1e6:.0f} | {mebibytes} |"
                )
                print(lines[-1], flush=True)
    if arguments.write:
        rewrite(ROOT / "docs" / "formats.md", "reading", "\n".join(lines))


if __name__ == "__main__":
    main()

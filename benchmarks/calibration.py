"""Predicted against published step times: how good the cost model is.

    python -m benchmarks.calibration [--write]

Every row runs with the attained fractions of its machine's file: one pair per device, none per
workload. What the rows say, and why some miss, is in docs/cost-model.md, whose tables `--write`
updates.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cache
from typing import TypedDict

from benchmarks.command import ROOT, parser_of, rewrite, table_lines
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.step import TrainingStep, ideal_step_ns
from slackswap_opt.step.model import Phase
from slackswap_opt.workloads import build_step, load_workload

A80, A40, H100 = "a100-80gb-pcie4", "a100-40gb-pcie4", "h100-pcie5"
MARGIN = 0.15
"""What is claimed for the rows that are."""
RECOMPUTED = ("bert-large", "bert-large-eager", "gpt2-xl", "llama-7b", "mpt-7b", "internlm-7b")
"""Workloads of the table of full recomputation."""

BERT = "NVIDIA DeepLearningExamples, BERT for PyTorch, README"
MPT = "MosaicML llm-foundry, scripts/train/benchmarking/README.md"
INTERN = "InternEvo, doc/en/train_performance.md"
TINY = "TinyLlama, README"
COURSE = "timings of a GPT-2 XL shape in a public course repository"


class Changes(TypedDict, total=False):
    """Fields of a workload that rows change; see `slackswap_opt.workloads.describe`."""

    batch: int
    sequence: int
    layers: int
    width: int
    heads: int
    feed_forward: int
    accumulation: int
    dtype: str
    attention: str
    optimizer: str


@dataclass(frozen=True)
class Row:
    """One published measurement.

    Attributes:
        label: what the table calls it.
        machine: name in the catalogue.
        workload: name of the workload.
        published_ms: measured time of one step (of one micro-batch).
        source: where it was published.
        changes: fields of the workload that differ in that run.
        checkpointing: whether each layer's forward ran twice.
        claimed: whether the prediction is claimed to be within `MARGIN`.
    """

    label: str
    machine: str
    workload: str
    published_ms: float
    source: str
    changes: Changes = field(default_factory=Changes, hash=False)
    checkpointing: bool = False
    claimed: bool = True


def per_tokens(tokens: int, tokens_per_s: float) -> float:
    """Milliseconds that a device takes for so many tokens."""
    return 1e3 * tokens / tokens_per_s


def gpt2_fp32(sequence: int, seconds: float, *, claimed: bool) -> Row:
    """A row of the course's timings: forward and backward only, fp32, scores in memory."""
    changes: Changes = {
        "batch": 4, "sequence": sequence, "dtype": "fp32", "attention": "stored",
        "optimizer": "none",
    }  # fmt: skip
    label = f"GPT-2 XL fp32, 4 x {sequence}"
    return Row(label, A40, "gpt2-xl", 1e3 * seconds, COURSE, changes, claimed=claimed)


ROWS = (
    Row(
        "BERT-Large, 32 x 512", A80, "bert-large", 1e3 * 32 / 210, BERT,
        {"accumulation": 1024},
    ),
    Row(
        "BERT-Large, 256 x 128", A80, "bert-large-128", 1e3 * 256 / 580, BERT,
        {"accumulation": 256}, claimed=False,
    ),
    Row(
        "MPT-7B, 6 x 2048", A80, "mpt-7b", per_tokens(6 * 2048, 4641), MPT,
        {"batch": 6, "accumulation": 2},
    ),
    Row(
        "MPT-7B, 16 x 4096, checkpointing", A80, "mpt-7b", per_tokens(16 * 4096, 3684), MPT,
        {"batch": 16, "sequence": 4096, "accumulation": 2}, checkpointing=True,
    ),
    Row(
        "MPT-350M, 128 x 512", A80, "mpt-7b", per_tokens(128 * 512, 69330), MPT,
        {
            "layers": 24, "width": 1024, "heads": 16, "feed_forward": 4096, "sequence": 512,
            "batch": 128, "accumulation": 2,
        }, claimed=False,
    ),
    Row(
        "InternLM-7B, 2 x 2048", A80, "internlm-7b", per_tokens(2 * 2048, 4103), INTERN,
        {"accumulation": 4},
    ),
    Row(
        "InternLM-7B, 8 x 2048, checkpointing", A80, "internlm-7b",
        per_tokens(8 * 2048, 3314), INTERN, {"batch": 8}, checkpointing=True,
    ),
    Row("TinyLlama 1.1B, 8 x 2048", A40, "tinyllama-1.1b", per_tokens(8 * 2048, 24e3), TINY),
    Row(
        "MPT-7B, 6 x 2048", H100, "mpt-7b", per_tokens(6 * 2048, 10643), MPT, {"batch": 6},
    ),
    Row(
        "MPT-7B, 16 x 4096, checkpointing", H100, "mpt-7b", per_tokens(16 * 4096, 8611), MPT,
        {"batch": 16, "sequence": 4096, "accumulation": 2}, checkpointing=True,
    ),
    gpt2_fp32(128, 0.461, claimed=True),
    gpt2_fp32(256, 0.874, claimed=True),
    gpt2_fp32(512, 1.713, claimed=True),
)  # fmt: skip


def layer_forward_ns(step: TrainingStep) -> int:
    """What full recomputation adds: the forward phase of every layer, once more."""
    return sum(
        op.duration_ns
        for op in step.operations
        if op.phase is Phase.FORWARD and op.layer.startswith("layer.")
    )


def predicted_ms(row: Row, machine: Machine | None = None) -> float:
    """Predicted step time of a row.

    Args:
        row: the measurement.
        machine: replaces the row's machine, to try other fractions.
    """
    return _predicted_ms(row, machine)


@cache
def _predicted_ms(row: Row, machine: Machine | None) -> float:
    workload = load_workload(row.workload, **row.changes)
    step = build_step(workload, machine or load_machine(row.machine))
    again = layer_forward_ns(step) if row.checkpointing else 0
    return (ideal_step_ns(step) + again) / 1e6


def error(row: Row, machine: Machine | None = None) -> float:
    """Relative error of the prediction; positive where it is too slow."""
    return predicted_ms(row, machine) / row.published_ms - 1


@cache
def recompute_overhead(name: str) -> float:
    """Predicted extra step time of recomputing every layer, as a fraction."""
    step = build_step(load_workload(name), load_machine(A80))
    return layer_forward_ns(step) / ideal_step_ns(step)


def accuracy_table() -> str:
    """Published and predicted times of every row, as Markdown."""
    heads = ("run", "machine", "published ms", "predicted ms", "error", "claimed", "source")
    rows = [
        (
            row.label,
            row.machine,
            f"{row.published_ms:.0f}",
            f"{predicted_ms(row):.0f}",
            f"{100 * error(row):+.1f} %",
            "yes" if row.claimed else "no",
            row.source,
        )
        for row in ROWS
    ]
    return "\n".join(table_lines(heads, rows))


def recompute_table() -> str:
    """What recomputing every layer is predicted to cost, as Markdown."""
    rows = [(name, f"{100 * recompute_overhead(name):+.1f} %") for name in RECOMPUTED]
    return "\n".join(table_lines(("workload", "extra step time"), rows))


def main() -> None:
    """Print both tables, and write them if asked to."""
    parser = parser_of(__doc__, write="update docs/cost-model.md")
    asked = parser.parse_args()
    tables = {"accuracy": accuracy_table(), "recomputation": recompute_table()}
    print("\n\n".join(tables.values()))
    if asked.write:
        for name, text in tables.items():
            rewrite(ROOT / "docs/cost-model.md", name, text)


if __name__ == "__main__":
    main()

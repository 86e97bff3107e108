"""The paper's figures in the documentation: pictures, captions, grids.

    python -m benchmarks.paper [--quick] [--cache DIR] [--jobs N] [--write]

Makes every figure (from the cache, where results are there), with the measured ResNet-50 in the
maps where SLACKSWAP_DATA names a folder that has it. `--write` puts the pictures in
docs/images/paper/, and updates docs/figures.md, the grids in docs/howto-figures.md and, if the
cache was empty, the time that the grid took.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Sequence
from dataclasses import fields
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.command import DATA, ROOT, parser_of, rewrite
from benchmarks.results_tables import PROFILE
from slackswap_opt.figures import paper, rendered
from slackswap_opt.paper import FIGURES, FULL, QUICK, Cache, Grid, Made, default_cache_dir, make

PICTURES = ROOT / "docs/images/paper"
DPI = 200
"""Of the pictures on the page; the files of `slackswap figures` have more."""
TOOK = {"full": "took-full", "quick": "took-quick"}
"""Where the page says how long a grid took."""
SHOWN = {
    "workloads": "workloads of *budgets*, *published*, *prices*",
    "budgets": "budgets of *budgets*, %",
    "reduced": "steps of *gains* and *phases*",
    "map_budgets": "their budgets, %",
    "map_links": "their link rates, GB/s",
    "sensitive": "step of *sensitivity*",
    "links": "its link rates, GB/s",
    "batches": "its batches",
    "sequences": "its sequence lengths",
    "attained": "its attained fractions",
    "scaled": "workload of *scaling*",
    "depths": "its numbers of layers",
    "prices": "budgets of *prices*, %",
    "pictured": "workload of the figures of one plan",
    "shown": "budget of the figures that have one, %",
    "seconds": "limit of the ILP, seconds a point",
    "map_seconds": "the same in *gains*, *phases* and *sensitivity*",
    "jitters": "amounts of jitter, %",
    "trials": "trials of each",
}
"""What the table of grids says of each field, in its order."""


def grids(columns: Sequence[Grid] = (FULL, QUICK)) -> str:
    """The grids as a table."""
    known = {field.name for field in fields(Grid)}
    lines = [
        "| |" + "".join(f" {grid.name} |" for grid in columns),
        "|---|" + "---|" * len(columns),
    ]
    lines += [
        f"| {label} |" + "".join(f" {_text(getattr(grid, name))} |" for grid in columns)
        for name, label in SHOWN.items()
        if name in known
    ]
    return "\n".join(lines)


def _text(value: object) -> str:
    if isinstance(value, tuple):
        return ", ".join(_text(item) for item in value)
    if hasattr(value, "layers"):
        return f"{value.workload}, {value.layers} layers"
    return f"{value:g}" if isinstance(value, float) else str(value)


def gallery(made: Sequence[Made]) -> str:
    """A section per figure: the picture and its caption."""
    sections = []
    for item in made:
        title, _, rest = item.caption.partition(". ")
        alt = FIGURES[item.name].title
        sections.append(
            f"### {item.name}\n\n![{alt}](images/paper/{item.name}.png)\n\n**{title}.** {rest}"
        )
    return "\n\n".join(sections)


def took(grid: Grid, seconds: float, jobs: int, graphs: Sequence[str]) -> str:
    """How long a grid took, in a sentence."""
    more = ", the measured profile included" if graphs else ""
    return (
        f"The {grid.name} grid took {seconds / 60:.1f} minutes with {jobs} processes on "
        f"{datetime.now(UTC).date().isoformat()}{more}."
    )


def main() -> int:
    """Make, and write if asked to."""
    parser = parser_of(__doc__, write="update pictures and pages")
    parser.add_argument("--quick", action="store_true", help="the quick grid")
    parser.add_argument("--cache", type=Path, default=default_cache_dir())
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1)
    asked = parser.parse_args()

    def report(message: str) -> None:
        print(message, file=sys.stderr)

    grid = QUICK if asked.quick else FULL
    data = os.environ.get(DATA)
    graphs = [str(Path(data) / PROFILE)] if data else []
    fresh = not asked.cache.is_dir() or not any(asked.cache.iterdir())
    began = time.monotonic()
    made = make((), grid, Cache(asked.cache), graphs=graphs, jobs=asked.jobs, report=report)
    said = took(grid, time.monotonic() - began, asked.jobs, graphs)
    print(gallery(made))
    report(said if fresh else f"{said} The cache was not empty.")
    if asked.write:
        PICTURES.mkdir(parents=True, exist_ok=True)
        for item in made:
            with paper():
                (PICTURES / f"{item.name}.png").write_bytes(rendered(item.figure, "png", dpi=DPI))
        rewrite(ROOT / "docs/figures.md", "figures", gallery(made))
        page = ROOT / "docs/howto-figures.md"
        rewrite(page, "grids", grids())
        if fresh:
            rewrite(page, TOOK[grid.name], said)
    return 0


if __name__ == "__main__":
    sys.exit(main())

"""What the tests of sweeps share: a small grid, and rows without what differs between runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from slackswap_opt.resources import models_dir
from slackswap_opt.study import SweepRow, chains_of, spec_of
from slackswap_opt.study.chain import Chain

TINY = str(models_dir() / "graphs" / "tiny-mlp.json")
UNET = str(models_dir() / "graphs" / "unet.json")

SMALL = {
    "workloads": [TINY, UNET],
    "budgets": ["80%", "20%", "95%"],
    "planners": ["swap-all", "greedy"],
}


def grid(**fields: object) -> tuple[Chain, ...]:
    """The chains of a small grid, with other fields on top."""
    return chains_of(spec_of({**SMALL, **fields}))


def timeless(rows: Sequence[SweepRow]) -> list[SweepRow]:
    """Rows without the time that planning took."""
    return [replace(row, planning_s=None) for row in rows]

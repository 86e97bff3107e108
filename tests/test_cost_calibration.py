"""What the cost model claims about published runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from benchmarks import calibration

ROOT = Path(__file__).resolve().parent.parent


def row_id(row):
    return f"{row.label} on {row.machine}"


@pytest.mark.parametrize("row", [r for r in calibration.ROWS if r.claimed], ids=row_id)
def test_claimed_rows_are_within_the_margin(row):
    assert abs(calibration.error(row)) <= calibration.MARGIN


@pytest.mark.parametrize("row", [r for r in calibration.ROWS if not r.claimed], ids=row_id)
def test_rows_that_are_not_claimed_miss_as_documented(row):
    assert -0.30 < calibration.error(row) < -calibration.MARGIN
    table = (ROOT / "docs/cost-model.md").read_text(encoding="utf-8")
    assert row.label in table


@pytest.mark.parametrize("name", ["bert-large", "gpt2-xl", "llama-7b", "mpt-7b", "internlm-7b"])
def test_full_recomputation_costs_what_is_measured(name):
    assert 0.24 <= calibration.recompute_overhead(name) <= 0.33


def test_the_documented_tables_are_those_computed():
    text = (ROOT / "docs/cost-model.md").read_text(encoding="utf-8")
    tables = {
        "accuracy": calibration.accuracy_table(),
        "recomputation": calibration.recompute_table(),
    }
    for name, table in tables.items():
        assert f"<!-- {name} -->\n{table}\n<!-- /{name} -->" in text

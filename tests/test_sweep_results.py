"""Rows of a sweep in CSV, JSON and Parquet: the same columns, read back as they were."""

from __future__ import annotations

import csv
import io
import json
from dataclasses import fields

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.study import SweepRow, read_rows, run_sweep, write_rows
from slackswap_opt.study.results import COLUMNS
from tests.sweeps import grid

PARQUET = pytest.param(".parquet", marks=pytest.mark.slow)
"""Importing pyarrow takes seconds."""


@pytest.fixture(scope="module")
def rows() -> tuple[SweepRow, ...]:
    found = run_sweep(grid()).rows
    odd = SweepRow('a,b\n"c"', "m", 1, None, 2, 0.1 + 0.2, 1e-9, "0", "p", "failed", "é, ü", 0)
    return (*found, odd)


@pytest.mark.parametrize("ending", [".csv", ".json", PARQUET])
def test_rows_come_back_exactly(rows, ending, tmp_path):
    if ending == ".parquet":
        pytest.importorskip("pyarrow")
    path = tmp_path / f"results{ending}"
    write_rows(path, rows)
    assert read_rows(path) == rows
    write_rows(path.with_stem("none"), ())
    assert read_rows(path.with_stem("none")) == ()
    with pytest.raises(InputError, match="--force"):
        write_rows(path, rows)
    before = path.read_bytes()
    write_rows(path, rows, force=True)
    assert path.read_bytes() == before


def test_columns_are_plain(rows, tmp_path):
    path = tmp_path / "r.csv"
    write_rows(path, rows[:1])
    head, line = csv.reader(io.StringIO(path.read_text(encoding="utf-8")))
    assert head == list(COLUMNS) == [field.name for field in fields(SweepRow)]
    assert dict(zip(head, line, strict=True))["time_limited"] == "false"
    write_rows(tmp_path / "r.json", rows[:1])
    document = json.loads((tmp_path / "r.json").read_text(encoding="utf-8"))
    assert document["schema"] == "slackswap.sweep/1"
    assert list(document["rows"][0]) == head


@pytest.mark.parametrize(
    ("name", "change", "fault"),
    [
        ("r.csv", lambda t: t.replace("planner", "planer", 1), "'planer' is not known"),
        ("r.csv", lambda t: t.replace("workload,", "", 1), "fields, the header"),
        ("r.csv", lambda t: t.replace(",25.0,", ",fast,", 1), "line 2: link_gb_per_s is 'fast'"),
        ("r.json", lambda t: t.replace("sweep/1", "compare/1"), "not the result of a sweep"),
        ("r.json", lambda t: t[:-20], "not valid JSON"),
        ("r.json", lambda t: t.replace('"greedy"', "7", 1), "planner is 7, expected str"),
    ],
)
def test_a_faulty_file_is_refused_with_its_place(rows, name, change, fault, tmp_path):
    path = tmp_path / name
    write_rows(path, rows)
    path.write_text(change(path.read_text(encoding="utf-8")), encoding="utf-8")
    with pytest.raises(InputError, match=fault) as caught:
        read_rows(path)
    assert str(caught.value).startswith(str(path))


def test_another_ending_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"\.csv, \.json, \.parquet"):
        write_rows(tmp_path / "r.xlsx", ())


def test_without_pyarrow_the_extra_is_named(tmp_path, monkeypatch):
    import sys

    monkeypatch.setitem(sys.modules, "pyarrow", None)
    with pytest.raises(InputError, match=r"slackswap-opt\[parquet\]"):
        write_rows(tmp_path / "r.parquet", ())


@pytest.mark.slow
def test_a_damaged_parquet_file_is_refused(tmp_path):
    pytest.importorskip("pyarrow")
    (tmp_path / "r.parquet").write_bytes(b"PAR1 and nothing else")
    with pytest.raises(InputError, match="not a Parquet file"):
        read_rows(tmp_path / "r.parquet")

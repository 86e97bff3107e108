"""The engines of the benchmark say the same, so that their times can be compared."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks import simulator as bench
from slackswap_opt.simulator import FixedOrder


@pytest.fixture(scope="module")
def waiting() -> bench.Task:
    pytest.importorskip("simpy", reason="pip install 'slackswap-opt[bench]'")
    return bench.task(400)


def test_all_engines_of_the_benchmark_agree(waiting: bench.Task):
    fixed = FixedOrder(waiting.step, waiting.machine, waiting.schedule)
    bench.check(waiting, fixed, waiting.scenarios(3))


def test_the_transfers_of_the_benchmark_are_three_in_five_of_its_operations(waiting: bench.Task):
    assert waiting.step.index.operations == 400
    assert waiting.transfers == 240


def test_rows_say_engine_batch_size_and_times(capsys, monkeypatch, waiting: bench.Task):
    monkeypatch.setattr(bench, "SECONDS", 0.0)
    monkeypatch.setattr(bench, "cpu_us", lambda run: float(run() is not None))
    bench.main(["--quick", "--json", "--batches", "1,16"])
    rows = json.loads(capsys.readouterr().out)
    keys = {
        "engine", "batch", "operations", "transfers", "timing_us_per_schedule",
        "memory_us_per_schedule",
    }  # fmt: skip
    assert all(keys <= row.keys() for row in rows)
    assert [row["batch"] for row in rows if row["engine"] == "batch"] == [1, 16]


def test_what_is_measured_goes_into_the_page(monkeypatch, tmp_path, waiting: bench.Task):
    page = tmp_path / "simulator.md"
    page.write_text(bench.PAGE.read_text(encoding="utf-8"), encoding="utf-8")
    monkeypatch.setattr(bench, "PAGE", page)
    monkeypatch.setattr(bench, "task", lambda _: waiting)
    monkeypatch.setattr(bench, "cpu_us", lambda run: float(run() is not None))
    monkeypatch.setattr(bench, "slope", lambda _: 1.25)
    bench.main(["--quick", "--batches", "1,16", "--write"])
    section = page.read_text(encoding="utf-8").partition("<!-- speed -->\n")[2]
    section = section.partition("<!-- /speed -->")[0]
    assert "| batch | 16 | 0.1 | 0.1 |" in section
    assert "| a batch of 16 is faster than | timing | memory |" in section
    assert "| simpy, counts | - | 16 times |" in section
    assert "The log-log slope is 1.25." in section


def test_the_slope_is_that_of_the_logarithms():
    rows = [bench.Row("x", 1, n, 0, None, float(3 * n**1.5)) for n in (10, 100, 1000)]
    assert bench.slope(rows) == pytest.approx(1.5)
    assert np.isfinite(bench.slope(rows))

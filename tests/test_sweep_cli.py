"""`slackswap sweep` with a specification: files, journal, table, progress, faults."""

from __future__ import annotations

import io
import json
import re
from pathlib import Path

import pytest
from rich.console import Console

from slackswap_opt.cli.sweep import bar
from slackswap_opt.resources import models_dir
from slackswap_opt.study import chains_of, read_rows, read_spec, run_sweep
from slackswap_opt.study.results import COLUMNS
from tests.sweeps import TINY, grid, timeless
from tests.test_cli import slackswap

ROOT = Path(__file__).parents[1]


@pytest.fixture
def spec(tmp_path: Path) -> Path:
    path = tmp_path / "grid.toml"
    path.write_text(
        f"workloads = [{TINY!r}]\nmachines = ['a100-80gb-pcie4', 'h100-pcie5']\n"
        "budgets = ['95%', '20%']\nplanners = ['swap-all', 'greedy']\n",
        encoding="utf-8",
    )
    return path


def test_a_specification_becomes_a_file_and_a_table(spec, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    output = tmp_path / "results.csv"
    done = slackswap("sweep", spec, "-o", output)
    expected = run_sweep(
        grid(workloads=[TINY], machines=["a100-80gb-pcie4", "h100-pcie5"], budgets=["95%", "20%"])
    ).rows
    assert timeless(read_rows(output)) == timeless(expected)
    for word in ("machine", "h100-pcie5", "greedy", "no plan fits", "8 rows: 8 computed, 0 taken"):
        assert word in done.stdout
    assert "batch" not in done.stdout.splitlines()[1]
    assert done.stderr == ""
    assert "--force" in slackswap("sweep", spec, "-o", output, expected=2).stderr
    again = slackswap("sweep", spec, "-o", output, "--force")
    assert "0 computed, 8 taken from the journal" in again.stdout
    document = json.loads(slackswap("sweep", spec, "-o", output, "--force", "--json").stdout)
    assert document["schema"] == "slackswap.sweep/1"
    assert len(document["rows"]) == 8


def test_the_example_in_the_documentation_runs(tmp_path, monkeypatch):
    page = (ROOT / "docs" / "sweeps.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    (toml,) = re.findall(r"^```toml\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    monkeypatch.chdir(tmp_path)
    exec(compile(code, "sweeps.md", "exec"), {})
    assert len(read_rows("results.csv")) == 1
    (tmp_path / "mine.toml").write_bytes((models_dir() / "gpt2-xl.toml").read_bytes())
    (tmp_path / "grid.toml").write_text(toml, encoding="utf-8")
    assert len(chains_of(read_spec(tmp_path / "grid.toml"))) == 2 * 2 * 2 * 3
    for name in COLUMNS:
        assert f"`{name}`" in page or name in ("stall_s", "recompute_s")


def test_the_example_of_the_largest_batch_runs(capsys):
    page = (ROOT / "docs" / "howto-memory.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    exec(compile(code, "howto-memory.md", "exec"), {})
    batch, unplanned, impossible, _ = map(int, capsys.readouterr().out.split())
    assert unplanned <= batch < impossible


def test_one_workload_can_be_written_too(tmp_path):
    output = tmp_path / "results.json"
    slackswap("sweep", TINY, "-b", "95%", "-p", "greedy", "-o", output)
    (row,) = read_rows(output)
    assert (row.workload, row.machine, row.planner) == (TINY, "a100-80gb-pcie4", "greedy")
    assert output.with_name("results.json.journal").is_file()


def test_without_an_output_nothing_is_kept(spec, tmp_path):
    slackswap("sweep", spec)
    assert [path.name for path in tmp_path.iterdir()] == ["grid.toml"]


def test_failures_are_told_and_not_fatal(tmp_path):
    spec = tmp_path / "grid.toml"
    spec.write_text(
        "workloads = ['bert-large']\nlayers = [1]\nbatch = [1]\nsequence = [64, 128]\n"
        "budgets = ['95%']\nplanners = ['swap-all']\n",
        encoding="utf-8",
    )
    done = slackswap("sweep", spec)
    assert "1 failed" in done.stdout
    assert "loss_positions" in done.stdout
    text = spec.read_text(encoding="utf-8").replace("[64, 128]", "[64]")
    spec.write_text(text, encoding="utf-8")
    slackswap("sweep", spec, expected=4)


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["-b", "50%"], "budgets: with a specification these are fields of the file"),
        (["-o", "out.xlsx"], ".parquet"),
        (["-o", "none/out.csv"], "does not exist"),
        (["--jobs", "0"], "jobs"),
    ],
)
def test_bad_usage(spec, arguments, fault, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert fault in slackswap("sweep", spec, *arguments, expected=2).stderr


def test_all_faults_of_a_specification_are_told(tmp_path):
    path = tmp_path / "grid.toml"
    path.write_text("workloads = ['lama-7b']\nplanners = ['gredy']\nx = 1\n", encoding="utf-8")
    message = slackswap("sweep", path, expected=2).stderr
    for fault in ("workloads.0", "planners.0", "x: is not a field", str(path)):
        assert fault in message


def test_a_workload_file_is_not_taken_for_a_specification():
    path = models_dir() / "gpt2-xl.toml"
    done = slackswap("sweep", path, "--layers", "1", "-b", "100%", "-p", "keep-all")
    assert "gpt2-xl on" in done.stdout


def test_the_bar_shows_rows_done_and_an_estimate():
    text = io.StringIO()
    with bar(Console(file=text, force_terminal=True, width=120)) as told:
        told(4, 24, "")
        told(14, 24, "gpt2-xl on a100")
    shown = text.getvalue()
    assert "10/20" in shown
    assert "left about" in shown
    assert "gpt2-xl on a100" in shown


def test_no_bar_without_a_terminal():
    text = io.StringIO()
    with bar(Console(file=text)) as told:
        told(1, 2, "x")
    assert text.getvalue() == ""

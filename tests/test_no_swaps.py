"""`--no-swaps`: recomputation only, from the command line to rows and plan files."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import write_step
from slackswap_opt.plan import files
from slackswap_opt.planners import on_demand
from slackswap_opt.study import replay, spec_of, sweep
from slackswap_opt.study.judge import InvalidPlanError
from slackswap_opt.study.results import read_rows
from slackswap_opt.study.sweep import Settings
from tests.test_cli import slackswap
from tests.test_windowed import chain, recompute_only

PLANNERS = "recompute-all,swap-all,greedy,on-demand"


@pytest.fixture
def step_file(tmp_path: Path) -> str:
    path = tmp_path / "chain.json"
    write_step(chain(8), path)
    return str(path)


def printed(*arguments: str) -> dict:
    return json.loads(slackswap(*arguments, "--json").stdout)


def test_rows_of_a_comparison_say_it_and_swap_nothing(step_file: str):
    found = printed("compare", step_file, "-b", "6", "--no-swaps", "-p", PLANNERS)["rows"]
    assert [row["swaps"] for row in found] == [False] * 4
    assert all(row["swapped_bytes"] in (0, None) for row in found)
    by = {row["planner"]: row for row in found}
    assert by["swap-all"]["step_s"] is None
    assert by["on-demand"]["recompute_s"] > 0
    allowed = printed("compare", step_file, "-b", "6", "-p", "greedy")["rows"]
    assert [row["swaps"] for row in allowed] == [True]


@pytest.mark.parametrize(
    "command",
    [
        ("compare", "-b", "6", "-p", "on-demand"),
        ("sweep", "-b", "6", "-p", "on-demand"),
        ("bound", "-b", "6"),
        ("plan", "-b", "6", "-p", "on-demand"),
        ("frontier", "-s", "50%", "-p", "on-demand"),
    ],
    ids=lambda command: command[0],
)
def test_every_table_says_it(command: tuple[str, ...], step_file: str):
    name, *rest = command
    assert "recompute only" in slackswap(name, step_file, *rest, "--no-swaps").stdout
    assert "recompute only" not in slackswap(name, step_file, *rest).stdout


def test_the_bound_is_that_of_plans_without_swaps(step_file: str):
    without = printed("bound", step_file, "-b", "6", "--no-swaps")
    assert not without["swaps"]
    assert without["bound_step_s"] > 8 * 2 * 1e-6
    assert printed("bound", step_file, "-b", "6")["swaps"]


def test_a_plan_file_keeps_it_and_is_played_again(step_file: str, tmp_path: Path):
    path = tmp_path / "plan.json"
    options = ("-b", "6", "-p", "on-demand", "--no-swaps")
    slackswap("plan", step_file, *options, "-o", str(path))
    plan = files.read_plan(path)
    assert not plan.swaps
    assert not replay(plan).problem.swaps
    slackswap("simulate", str(path))
    text = path.read_text(encoding="utf-8")
    assert files.dumps(files.loads(text)) == text
    with pytest.raises(InputError, match="swaps: expected a valid boolean"):
        files.loads(text.replace('"swaps": false', '"swaps": 0'))


def test_a_file_that_says_it_and_copies_is_refused(step_file: str, tmp_path: Path):
    path = tmp_path / "plan.json"
    slackswap("plan", step_file, "-b", "6", "-p", "swap-all", "-o", str(path))
    plan = files.read_plan(path)
    assert plan.swaps
    assert '"swaps"' not in path.read_text(encoding="utf-8")
    with pytest.raises(InvalidPlanError, match="swaps is false in the file"):
        replay(dataclasses.replace(plan, swaps=False))


def test_a_grid_has_it_in_every_row(step_file: str, tmp_path: Path):
    path = tmp_path / "rows.csv"
    options = ("-b", "6", "-b", "1", "-p", "on-demand", "--no-swaps", "-o", str(path))
    assert "recompute only" in slackswap("sweep", step_file, *options).stdout
    assert [row.swaps for row in read_rows(path)] == [False, False]
    older = tmp_path / "older.csv"
    lines = path.read_text(encoding="utf-8").splitlines()
    older.write_text("".join(f"{line.rpartition(',')[0]}\n" for line in lines), encoding="utf-8")
    assert [row.swaps for row in read_rows(older)] == [True, True]
    assert not spec_of({"workloads": [step_file], "swaps": False}).swaps


def test_the_settings_reach_the_reference_planner(monkeypatch):
    """Time limit and solver, through compare and sweep alike: both solve cells."""
    seen = []

    def reference(problem, options=None):
        seen.append(options)
        return on_demand(problem)

    monkeypatch.setattr(sys.modules[Settings.__module__], "reference", reference)
    sweep(
        recompute_only(chain(4), 5), [5, 6], {"reference": reference}, Settings(0.0, 7.0, "highs")
    )
    assert [(options.seconds, options.solver) for options in seen] == [(7.0, "highs")] * 2

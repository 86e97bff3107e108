"""The tables and sentences of the results, from a small sweep and by hand."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import results
from benchmarks import results_tables as tables
from slackswap_opt.machine import Machine, load_machine
from slackswap_opt.planners import PLANNERS

ROOT = Path(__file__).resolve().parent.parent
GRAPH = ROOT / "models/graphs/tiny-mlp.json"


@pytest.fixture(scope="module")
def machine() -> Machine:
    return load_machine("a100-80gb-pcie4")


@pytest.fixture(scope="module")
def found(machine: Machine) -> list[tables.Result]:
    step = results.load(str(GRAPH), machine)
    return results.results("tiny-mlp", step, machine, [100, 90, 10], 1.0)


def rows(text: str) -> list[list[str]]:
    lines = [line for line in text.splitlines() if line.startswith("|")]
    return [[cell.strip(" *") for cell in line.strip("|").split("|")] for line in lines]


def retaining(result: tables.Result, **values: float | None) -> tables.Result:
    """A result in which planners retain other shares of the throughput."""
    changed = {
        name: replace(row, throughput_retained=values[name.replace("-", "_")])
        if name.replace("-", "_") in values
        else row
        for name, row in result.rows.items()
    }
    return replace(result, rows=changed)


def test_nothing_is_wrong_with_what_was_found(found: list[tables.Result]) -> None:
    assert not list(results.faults(found))
    assert found[0].retained(tables.BEST) == 1
    assert found[2].retained(tables.BEST) is None


def test_a_planner_above_the_ilp_and_one_that_gets_slower_are_faults(
    found: list[tables.Result],
) -> None:
    whole, tight, _ = found
    odd = retaining(tight, greedy=1.0, ilp=0.9)
    assert any("better than the ILP" in fault for fault in results.faults([odd]))
    slower = [retaining(whole, ilp=0.8), retaining(tight, ilp=0.9)]
    assert any("slower than at 90 %" in fault for fault in results.faults(slower))


def test_tables_have_a_row_per_problem_and_all_planners(found: list[tables.Result]) -> None:
    head, _, *body = rows(tables.full_table(found))
    assert head == ["step", "budget %", *PLANNERS, "bound", "gap"]
    assert [row[:2] for row in body] == [
        ["tiny-mlp", "100"],
        ["tiny-mlp", "90"],
        ["tiny-mlp", "10"],
    ]
    for row, result in zip(body, found, strict=True):
        for name, cell in zip(PLANNERS, row[2:-2], strict=True):
            value = result.retained(name)
            assert cell == ("-" if value is None else f"{100 * value:.2f}")
    head, _, *body = rows(tables.shown_table(found[:1]))
    assert head == ["workload", *tables.COLUMNS, "bound", "ilp gap"]
    assert len(body) == 1
    assert len(tables.table(found).splitlines()) == 1 + len(found)


def test_sentences_say_what_the_rows_say(found: list[tables.Result]) -> None:
    lows = dict.fromkeys((name.replace("-", "_") for name in tables.OTHERS), 0.5)
    gained = retaining(found[1], **{**lows, "greedy": 0.75}, ilp=0.95)
    alone = retaining(found[2], ilp=0.5)
    measured = replace(gained, workload=next(iter(tables.MEASURED.values())))
    text = tables.reading([gained, alone, measured])
    assert "up to 20.00 points above `greedy` (tiny-mlp at 90 %)" in text
    assert "up to 45.00 points above `on-demand` (tiny-mlp at 90 %)" in text
    assert "up to 20.00 points above the best of all others" in text
    assert "only the ILP has a plan: tiny-mlp at 10 %." in text
    assert "on the measured profile" in text
    body = rows(text)
    assert body[0] == ["step", "90 %", "10 %"]
    assert body[2] == ["tiny-mlp", "20.00", "-"]


def test_at_tight_budgets_it_is_told_what_limits_the_plan(found: list[tables.Result]) -> None:
    whole, tight, tightest = found
    assert tables.limits([tight]).count("\n") == 1  # head and rule alone
    (row,) = rows(tables.limits([tightest]))[2:]
    assert row[:3] == ["tiny-mlp", "10", "-"]
    assert row[3].startswith("nothing fits: ")
    best, cell = whole.rows[tables.BEST], whole.cell
    met = replace(cell, bound=replace(cell.bound, cut=0))
    for at, gap, words in (
        (met, 0.0005, "the bound, reached within 0.1 %: memory at "),
        (met, 0.02, "open: the plan or the bound, which is that of memory at "),
        (met, None, "open: no plan was found"),
        (cell, 0.0005, "nothing: all is hidden"),
        (cell, 0.02, "open: plan or bound"),
    ):
        changed = {**whole.rows, tables.BEST: replace(best, certified_gap=gap)}
        told = replace(whole, percent=20, cell=at, rows=changed)
        assert rows(tables.limits([told]))[2][3].startswith(words)


def test_the_origin_names_machine_solver_and_limits(
    found: list[tables.Result], machine: Machine
) -> None:
    text = tables.origin(found, machine, 30.0)
    assert "`a100-80gb-pcie4`" in text
    assert "at most 30 seconds a problem" in text
    solver = found[1].rows[tables.BEST].solver
    assert (solver or "no solver") in text

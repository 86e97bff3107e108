"""The scripts behind docs/scaling.md and docs/gains.md, on small cases."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from benchmarks import gains, grids, monotone, scaling
from benchmarks.command import ROOT
from slackswap_opt.figures import rendered
from slackswap_opt.formats import graph_path, read_step
from slackswap_opt.machine import load_machine
from slackswap_opt.step import liveness
from slackswap_opt.study import SweepRow, lower_limit


def page_of(
    script: ModuleType, section: str, monkeypatch: pytest.MonkeyPatch, folder: Path
) -> Path:
    """A page with an old section, which the script writes into instead of its own page."""
    page = folder / "page.md"
    page.write_text(f"before\n<!-- {section} -->\nold\n<!-- /{section} -->\nafter\n")
    monkeypatch.setattr(script, "PAGE", page)
    return page


# Scaling


def row(layers: int, seconds: float, **changed: object) -> scaling.Row:
    made = scaling.Row(
        "net", layers, 31 * layers, seconds, seconds / 2, 100.0 + layers, seconds, "feasible", 0.99,
        0.001, False,
    )  # fmt: skip
    return replace(made, **changed)  # type: ignore[arg-type]


def test_a_power_law_has_its_exponent_as_slope() -> None:
    rows = [row(n, 3.0 * n**1.5) for n in (12, 24, 48, 126)]
    assert scaling.slopes(rows)["net"] == pytest.approx({"seconds": 1.5, "cpu_s": 1.5})
    assert scaling.slopes(rows[:1]) == {}
    with pytest.raises(ValueError, match="two different sizes"):
        scaling.slope([3, 3], [1, 2])


def test_each_workload_of_several_sizes_has_its_line() -> None:
    other = [row(12, 1.0, workload="other"), row(48, 16.0, workload="other")]
    rows = [row(12, 1.0), row(24, 2.0), *other, row(96, 999.0, workload="single")]
    found = scaling.slopes(rows)
    assert {name: line["seconds"] for name, line in found.items()} == pytest.approx(
        {"net": 1.0, "other": 2.0}
    )
    assert "12 to 48 layers of other planning time grows" in scaling.markdown(rows)


def test_what_is_asked_for_is_held_against_the_rows() -> None:
    good = [row(12, 1.0), row(96, 8.0), row(126, 10.0)]
    assert not list(scaling.missed(good))
    assert "From 96 layers on every plan took at most 60 s and 2 GiB" in scaling.markdown(good)
    bad = [
        row(12, 0.5, gap=None, retained=None),
        row(96, 61.0, gap=0.003),
        row(126, 70.0, peak_mib=2049.0),
    ]
    sentences = list(scaling.missed(bad))
    assert [s.partition(":")[0] for s in sentences] == [
        "net with 12 layers", "net with 96 layers", "net with 96 layers", "net with 126 layers",
        "net with 126 layers", "net",
    ]  # fmt: skip
    assert sentences[-1].startswith("net: a slope of 2.")
    assert all(sentence in scaling.markdown(bad) for sentence in sentences)


def test_equal_rows_give_equal_pictures() -> None:
    rows = [row(n, float(n), time_limited=n == 24) for n in (12, 48)]
    first, again = scaling.picture(rows), scaling.picture(rows)
    assert rendered(first, "png", dpi=40) == rendered(again, "png", dpi=40)
    left, middle, right = first.axes
    assert [text.get_text() for text in left.get_legend().get_texts()] == ["slope 1.00"]
    assert [text.get_text() for text in right.get_legend().get_texts()] == ["net"]
    assert list(left.lines[0].get_ydata()) == [12.0, 48.0]
    assert list(middle.lines[0].get_ydata()) == [0.1, 0.1]
    assert list(right.lines[0].get_ydata()) == [112.0, 148.0]


def test_a_workload_of_one_size_is_a_point_without_a_line() -> None:
    rows = [row(96, 9.0, workload="single"), row(12, 1.0), row(24, 2.0)]
    times, _, memory = scaling.picture(rows).axes
    assert [text.get_text() for text in times.get_legend().get_texts()] == ["slope 1.00"]
    assert [text.get_text() for text in memory.get_legend().get_texts()] == ["single", "net"]
    assert scaling.picture(rows[:1]).axes[0].get_legend() is None


def test_cases_are_workloads_with_layers() -> None:
    assert scaling.cases_of(["a:1,2", "b:3"]) == [("a", 1), ("a", 2), ("b", 3)]
    for wrong in ("a", "a:", "a:0", "a:x"):
        with pytest.raises(ValueError, match="write it like"):
            scaling.cases_of([wrong])


def test_a_case_is_measured_in_a_process_of_its_own(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = page_of(scaling, "scaling", monkeypatch, tmp_path)
    monkeypatch.setattr(scaling, "PICTURE", tmp_path / "scaling.png")
    arguments = ["--cases", "bert-large:1", "--seconds", "1", "--json", "--write"]
    assert scaling.main(arguments) == 0
    (found,) = json.loads(capsys.readouterr().out)["rows"]
    assert (found["layers"], found["workload"]) == (1, "bert-large")
    assert 0 < found["planning_s"] <= found["seconds"]
    assert found["cpu_s"] > 0
    assert found["peak_mib"] > 20
    assert re.fullmatch(r"before\n<!-- scaling -->\n\|.*\nafter\n", page.read_text(), re.DOTALL)
    assert (tmp_path / "scaling.png").read_bytes().startswith(b"\x89PNG")


def test_the_python_on_the_page_runs() -> None:
    text = (ROOT / "docs/scaling.md").read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    assert len(blocks) == 1
    exec(compile(blocks[0], "scaling.md", "exec"), {})


# Gains


def rows_for(
    step: str, link: float, budget: str, retained: dict[str, float | None], gap: float = 0.0005
) -> list[SweepRow]:
    """Rows of one problem with an ideal step of a second."""
    return [
        SweepRow(
            step, "m", None, None, None, link, 0.5, budget, planner, "feasible",
            ideal_step_s=1.0, bound_step_s=1.0 if value is None else (1 - gap) / value,
            step_s=None if value is None else 1 / value, throughput_retained=value,
            certified_gap=None if value is None else gap, bound_cut="op", time_limited=False,
            budget_bytes=1,
        )
        for planner, value in retained.items()
    ]  # fmt: skip


def cells(rows: Sequence[SweepRow]) -> list[gains.Cell]:
    names = {row.workload: "graph" for row in rows}
    return gains.cells_of(rows, names, ["slow", "fast"])


ILP_WINS = {"greedy": 0.80, "capuchin": 0.90, "on-demand": None, "ilp": 0.95}
NO_DIFFERENCE = {"greedy": 0.99, "capuchin": 0.9, "on-demand": 0.9, "ilp": 0.9905}
ILP_ALONE = {"greedy": None, "capuchin": None, "on-demand": None, "ilp": 0.7}
NOBODY = {"greedy": None, "capuchin": None, "on-demand": None, "ilp": None}


def test_the_best_greedy_is_compared() -> None:
    (cell,) = cells(rows_for("a", 6.0, "50%", ILP_WINS))
    assert (cell.rule, cell.link, cell.budget) == ("capuchin", "slow", 50)
    assert cell.gain == pytest.approx(5)
    assert cell.limit == "memory at op"
    (open_cell,) = cells(rows_for("a", 6.0, "50%", ILP_WINS, gap=0.02))
    assert open_cell.limit == "open: plan or bound"


def test_the_summary_counts_what_the_rows_say() -> None:
    found = cells(
        [
            *rows_for("a", 6.0, "50%", ILP_WINS),
            *rows_for("a", 6.0, "20%", ILP_ALONE),
            *rows_for("a", 50.0, "50%", NO_DIFFERENCE),
            *rows_for("a", 50.0, "20%", NOBODY),
        ]
    )
    assert [cell.link for cell in found] == ["slow", "slow", "fast", "fast"]
    text = gains.summary(found)
    for part in (
        "4 problems; for 0 of them",
        "on 1 of the 2 on which both find a plan, by 5.0 points",
        "at most (a at 50 % with slow)",
        "On 1 more it alone finds a plan (a at 20 %)",
        "on 1 nobody does",
        "On the other 1 the best greedy is as good",
        "| slow | 1 | 1 | 5.00 | 5.00 | 1 |",
    ):
        assert part in text
    assert len(gains.table(found).splitlines()) == 2 + 4


def test_a_better_greedy_or_a_failure_is_a_fault() -> None:
    worse = rows_for("a", 6.0, "50%", {**ILP_WINS, "greedy": 0.96})
    assert list(gains.faults(worse, cells(worse))) == [
        "a at 50 % with slow: greedy is better than the ILP"
    ]
    failed = [replace(worse[0], status="failed", reason="it broke")]
    assert list(gains.faults(failed, [])) == ["a at 50%, greedy: failed: it broke"]


def test_gains_are_worked_out_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = page_of(gains, "gains", monkeypatch, tmp_path)
    arguments = [
        "--workloads", "", "--graphs", "tiny-mlp", "--data", "", "--links", "6,450", "--budgets",
        "95,50", "--seconds", "1", "--jobs", "1", "--journal", str(tmp_path / "journal"),
    ]  # fmt: skip
    assert gains.main([*arguments, "--write"]) == 0
    assert "| tiny-mlp | NVLink-C2C | 95 |" in page.read_text()
    assert "| tiny-mlp | PCIe 3.0, shared | 50 | - | - | - | - |" in page.read_text()
    capsys.readouterr()
    assert gains.main([*arguments, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["cells"]
    assert [(cell["link"], cell["budget"]) for cell in found] == [
        ("PCIe 3.0, shared", 95), ("PCIe 3.0, shared", 50), ("NVLink-C2C", 95), ("NVLink-C2C", 50),
    ]  # fmt: skip


def test_profiles_are_taken_as_far_as_they_are_there(tmp_path: Path) -> None:
    machine = load_machine()
    assert grids.sources(machine, [], [], str(tmp_path)) == []
    profile = tmp_path / grids.MEASURED["gnmt-pipedream"]
    profile.parent.mkdir()
    profile.write_text(
        "node1 -- A(1) -- forward_compute_time=1.0, backward_compute_time=2.0, "
        "activation_size=10.0, parameter_size=0.0\n"
    )
    (found,) = grids.sources(machine, [], [], str(tmp_path))
    assert (found.name, found.kind) == ("gnmt-pipedream", "measured")


# Monotone


def test_budgets_go_from_the_smallest_possible_to_the_peak() -> None:
    step = read_step(graph_path("unet"))
    budgets = monotone.budgets_of(step, 40)
    assert len(budgets) == 40
    assert budgets[0] == lower_limit(step).budget_bytes
    assert budgets[-1] == liveness(step).ideal_peak_bytes
    assert budgets == sorted(budgets)


def curve(*steps: float | None, planner: str = "ilp") -> monotone.Curve:
    budgets = tuple(range(1, len(steps) + 1))
    return monotone.Curve("a", planner, budgets, steps, 1.0, (1.0,) * len(steps), 0)


def test_a_slower_step_or_a_lost_plan_is_not_monotone() -> None:
    assert not list(curve(None, 2.0, 1.5, 1.0).faults())
    assert list(curve(1.5, 2.0, 1.0).faults()) == ["a, ilp: slower at 2 bytes than at 1"]
    assert list(curve(1.5, None, 1.0).faults()) == ["a, ilp: slower at 2 bytes than at 1"]
    assert list(curve(2.0, 1.5).faults()) == ["a, ilp: it loses time at the full peak"]
    assert not list(curve(2.0, 1.5, planner="greedy").faults())
    rising = replace(curve(2.0, 1.0), bound_step_s=(1.0, 1.5))
    assert list(rising.faults()) == ["a, ilp: the bound at 2 bytes is above that at 1"]


def test_a_curve_is_drawn_from_none_to_the_largest_overhead() -> None:
    assert curve(None, 2.0, 1.5, 1.0).drawn() == "·█▅▁"
    assert curve(1.0, 1.0).drawn() == "▁▁"


def test_curves_are_checked_and_written(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    page = page_of(monotone, "monotone", monkeypatch, tmp_path)
    arguments = [
        "--workloads", "bert-large", "--layers", "1", "--graphs", "tiny-mlp", "--data", "",
        "--budgets", "3", "--seconds", "0.5", "--jobs", "1", "--journal", str(tmp_path / "j"),
        "--write",
    ]  # fmt: skip
    assert monotone.main(arguments) == 0
    text = page.read_text()
    assert "| bert-large, 1 layer |" in text
    assert "No step got longer with more memory on any of 2 steps" in text
    assert "(24 problems)" in text
    assert capsys.readouterr().out.strip() in text

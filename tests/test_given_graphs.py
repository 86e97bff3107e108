"""The table of given files: planned at half, at the smallest budget, or refused for a reason."""

from __future__ import annotations

from pathlib import Path

from benchmarks.given_graphs import HALF, files_of, lines, outcome
from slackswap_opt.formats import graph_path
from slackswap_opt.machine import load_machine

MACHINE = load_machine()


def test_a_file_is_planned_at_half_of_its_peak() -> None:
    found = outcome(graph_path("rnn"), MACHINE, 1, 1.0)
    assert found.problem is not None
    assert found.rows is not None
    assert found.problem.budget_bytes == found.problem.liveness.ideal_peak_bytes // HALF
    assert not found.reason
    gap = found.rows["ilp"].certified_gap
    assert gap is not None
    assert 0 <= gap < 1
    assert f"| {gap:.2%} |" in "\n".join(lines([found], 5.0))


def test_where_half_is_infeasible_the_smallest_budget_and_its_reason_are_shown() -> None:
    found = outcome(graph_path("tiny-mlp"), MACHINE, 1, 5.0)
    assert found.problem is not None
    assert found.rows is not None
    assert found.problem.budget_bytes == 50_331_648
    assert found.rows["ilp"].certified_gap is not None
    assert "alone needs 50,331,648 bytes" in found.reason
    assert found.reason in "\n".join(lines([found], 5.0))


def test_files_that_are_no_steps_are_listed_with_the_reason(tmp_path: Path) -> None:
    (tmp_path / "a.dot").write_text("digraph {\n a -> b\n}\n")
    (tmp_path / "b.pickle").write_bytes(b"\x80\x04\x95")
    (tmp_path / "README.md").write_text("about the others")
    assert [path.name for path in files_of([tmp_path])] == ["a.dot", "b.pickle"]
    text = "\n".join(lines([outcome(p, MACHINE, 1, 1.0) for p in files_of([tmp_path])], 1.0))
    assert text.count("refused, see below") == 2
    assert "* `a.dot`: this is a DOT graph" in text
    assert "* `b.pickle`: this is a pickle, as PyTorch's memory snapshots are" in text

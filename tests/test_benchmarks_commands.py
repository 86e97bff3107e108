"""Every benchmark is a command that tells what it does, and writes into its place of a page."""

from __future__ import annotations

import importlib
import sys
from pathlib import Path

import pytest

from benchmarks.command import ROOT, failed, names_in, parser_of, rewrite

SCRIPTS = [
    path.stem
    for path in sorted((ROOT / "benchmarks").glob("*.py"))
    if "\ndef main(" in path.read_text(encoding="utf-8")
]


@pytest.mark.parametrize("name", SCRIPTS)
def test_every_script_says_what_it_takes(
    name: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    module = importlib.import_module(f"benchmarks.{name}")
    monkeypatch.setattr(sys, "argv", [name, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as ended:
        module.main()
    assert ended.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert (module.__doc__ or "").splitlines()[0] in shown
    assert "--write" in shown


def test_scripts_take_the_options_that_they_ask_for() -> None:
    parser = parser_of("What it does.\n\nMore.", write="update a page", seconds=3.0, json=True)
    asked = parser.parse_args(["--json"])
    assert vars(asked) == {"seconds": 3.0, "json": True, "write": False}
    assert parser.description == "What it does."
    with pytest.raises(SystemExit):
        parser.parse_args(["--machine", "m"])


def test_names_are_parted_by_commas() -> None:
    assert names_in("a,b-c,,") == ["a", "b-c"]
    assert names_in("") == []


def test_faults_are_told_on_standard_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert not failed([])
    assert failed(fault for fault in ("one", "two"))
    assert capsys.readouterr() == ("", "one\ntwo\n")


def test_a_section_of_a_page_is_replaced_and_must_be_there(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("a\n<!-- x -->\nold\n<!-- /x -->\nb\n", encoding="utf-8")
    rewrite(page, "x", "new")
    assert page.read_text(encoding="utf-8") == "a\n<!-- x -->\nnew\n<!-- /x -->\nb\n"
    with pytest.raises(ValueError, match="has no section 'y'"):
        rewrite(page, "y", "new")

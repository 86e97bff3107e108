"""The documentation site builds without a warning; its pages hold what scripts produce."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
PAGES = ("tutorial", "howto-compare", "howto-figures", "howto-own-graph")


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text(encoding="utf-8")


@pytest.mark.parametrize("name", PAGES)
def test_the_python_of_a_page_runs(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = re.findall(r"^```python\n(.*?)^```", page(name), re.MULTILINE | re.DOTALL)
    assert blocks
    for block in blocks:
        exec(compile(block, f"{name}.md", "exec"), {})


def test_the_grids_on_the_page_are_those_of_the_code() -> None:
    from benchmarks.paper import grids

    shown = page("howto-figures").partition("<!-- grids -->\n")[2].partition("<!-- /grids -->")[0]
    assert shown.strip() == grids()


def test_every_figure_has_its_picture_caption_and_ticks() -> None:
    from slackswap_opt.paper import FIGURES

    text = page("figures")
    ticks = dict(re.findall(r"^\| (\w+) \|((?: ✓ \|){6})$", text, re.MULTILINE))
    for name, spec in FIGURES.items():
        assert f"### {name}\n\n![{spec.title}](images/paper/{name}.png)" in text
        assert f"**{spec.title}.** " in text
        assert name in ticks
    assert set(ticks) == set(FIGURES)


def test_outputs_on_pages_come_from_commands() -> None:
    from benchmarks.pages import BLOCK, pages, refreshed

    shown = pages()
    assert {"tutorial", "command-line", "explain", "traces"} <= set(shown)
    for path in sorted((ROOT / "docs").glob("*.md")):
        text = outside_markers(path.read_text(encoding="utf-8"))
        blocks = BLOCK.findall(text)
        assert len(blocks) == len(re.findall(r"^```text$", text, re.MULTILINE)), path.name
        assert bool(blocks) == (path.stem in shown)
        for block in blocks:
            commands = [line for line in block.splitlines() if line.startswith("$ ")]
            assert len(block.splitlines()) > len(commands)
    assert refreshed("no command\n", ROOT) == "no command\n"


def outside_markers(text: str) -> str:
    """A page without what scripts write between `<!-- name -->` and `<!-- /name -->`."""
    return re.sub(r"^<!-- (\S+) -->\n.*?^<!-- /\1 -->$", "", text, flags=re.MULTILINE | re.DOTALL)


def test_every_marked_part_of_a_page_has_a_script_that_writes_it() -> None:
    scripts = "".join(path.read_text("utf-8") for path in (ROOT / "benchmarks").glob("*.py"))
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = path.read_text(encoding="utf-8")
        begun, ended = (
            re.findall(rf"^<!-- {end}([\w-]+) -->$", text, re.MULTILINE) for end in ("", "/")
        )
        assert begun == ended, path.name
        for name in begun:
            assert f'"{name}"' in scripts, f"nothing writes {name!r} of {path.name}"


def test_tables_of_results_are_written_by_scripts() -> None:
    """A table whose cells are mostly decimals has been computed, and can be computed again."""
    for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]:
        text = outside_markers(path.read_text(encoding="utf-8"))
        for table in re.findall(r"(?:^\|.*\|\n)+", text, re.MULTILINE):
            cells = [cell.strip(" *") for row in table.splitlines()[2:] for cell in row.split("|")]
            decimals = [cell for cell in cells if re.fullmatch(r"[-+<=]*\s*\d+\.\d+( \S+)?", cell)]
            assert len(decimals) < 0.4 * len(cells), f"{path.name} has a table by hand:\n{table}"


def test_a_refreshed_page_shows_what_the_command_prints(tmp_path: Path) -> None:
    from benchmarks.pages import refreshed

    old = "a\n```text\n$ slackswap --version\nold\n$ slackswap -h\nx\n...\n$ echo $?\n```\nb\n"
    new = refreshed(old, tmp_path).splitlines()
    assert re.fullmatch(r"slackswap-opt \S+", new[3])
    assert new[:3] == old.splitlines()[:3]
    assert [new[4], *new[6:]] == ["$ slackswap -h", "...", "$ echo $?", "0", "```", "b"]


@pytest.mark.slow
def test_the_site_builds_without_a_warning(tmp_path: Path) -> None:
    pytest.importorskip("furo")
    pytest.importorskip("myst_parser")
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-b", "html"]
    done = subprocess.run(
        [*command, ROOT / "docs", tmp_path / "site"],
        capture_output=True, text=True, check=False,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    index = (tmp_path / "site/index.html").read_text(encoding="utf-8")
    for name in (*PAGES, "api", "command-line", "formulation", "assumptions", "figures"):
        assert f'href="{name}.html"' in index
    assert "slackswap_opt.ilp" in (tmp_path / "site/api.html").read_text(encoding="utf-8")

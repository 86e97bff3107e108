"""Notebooks hold no outputs, run, and are what the pages show."""

from __future__ import annotations

import importlib.util
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest

nbformat = pytest.importorskip("nbformat")
pytest.importorskip("nbclient")

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOKS = sorted((ROOT / "notebooks").glob("*.ipynb"))
PAGES = ROOT / "docs/notebooks"


def renderer() -> ModuleType:
    """notebooks/render.py, which is no module of a package."""
    spec = importlib.util.spec_from_file_location("render", ROOT / "notebooks/render.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["render"] = module
    spec.loader.exec_module(module)
    return module


def test_there_are_three() -> None:
    assert [path.stem[:2] for path in NOTEBOOKS] == ["01", "02", "03"]


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_are_valid_and_hold_no_outputs(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    nbformat.validate(notebook)
    code = [cell for cell in notebook.cells if cell.cell_type == "code"]
    assert code
    for cell in code:
        assert cell.outputs == []
        assert cell.execution_count is None
    assert "widgets" not in notebook.metadata


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_the_rendered_copy_shows_the_same_code_and_pictures_that_are_there(path: Path) -> None:
    notebook = nbformat.read(path, as_version=4)
    page = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
    code = [cell.source.strip() for cell in notebook.cells if cell.cell_type == "code"]
    assert re.findall(r"^```python\n(.*?)\n```$", page, re.MULTILINE | re.DOTALL) == code
    for cell in notebook.cells:
        if cell.cell_type == "markdown":
            assert cell.source.strip() in page
    pictures = re.findall(r"!\[[^\]]*\]\(([^)]+)\)", page)
    assert pictures
    assert {name for name in pictures if (PAGES / name).is_file()} == set(pictures)


def test_links_of_rendered_copies_lead_somewhere() -> None:
    for path in NOTEBOOKS:
        text = (PAGES / f"{path.stem}.md").read_text(encoding="utf-8")
        prose = re.sub(r"^```.*?^```", "", text, flags=re.MULTILINE | re.DOTALL)
        for target in re.findall(r"\]\(([^)#\s]+)\)", prose):
            assert (PAGES / target).is_file(), f"{path.stem} links to {target}"


def hurried(path: Path, folder: Path) -> Path:
    """A copy in which no ILP searches for longer than a second: the story is the same."""
    text, changed = re.subn(r"seconds=\d+", "seconds=1", path.read_text(encoding="utf-8"))
    assert changed or path.stem.startswith("03")
    copy = folder / path.name
    copy.write_text(text, encoding="utf-8")
    return copy


@pytest.mark.slow
@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebooks_run_and_show_pictures(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("ipykernel")
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    render = renderer()
    page = render.rendered(render.executed(hurried(path, tmp_path), tmp_path), path.stem)
    assert page.pictures
    for content in page.pictures.values():
        assert content.startswith(b"\x89PNG")

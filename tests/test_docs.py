"""Documentation holds: the import rules, links, and what the README shows."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from slackswap_opt.formats import read_step
from slackswap_opt.plan import Status

ROOT = Path(__file__).resolve().parent.parent
PACKAGE = ROOT / "slackswap_opt"
PAGES = [ROOT / "README.md", ROOT / "CHANGELOG.md", *sorted((ROOT / "docs").glob("*.md"))]
README = (ROOT / "README.md").read_text(encoding="utf-8")
ONLY_IN = {
    "pulp": {"formulation/_pulp.py"},
    "highspy": {"formulation/_highs_worker.py"},
    "matplotlib": {"figures"},
    "typer": {"cli"},
    "rich": {"cli"},
    "joblib": {"study/pools.py"},
    "distributed": {"study/pools.py"},
    "pyarrow": {"study/results.py"},
}
"""Outside packages that one place alone may import."""


def rooms() -> dict[str, set[str]]:
    """Room to what it may import, from the table in docs/architecture.md."""
    text = (ROOT / "docs/architecture.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `(\w+)` \|.*\|([^|]*)\|$", text, re.MULTILINE)
    return {room: set(re.findall(r"\w+", imports)) for room, imports in rows}


def modules() -> list[str]:
    return [str(path.relative_to(PACKAGE)) for path in sorted(PACKAGE.rglob("*.py"))]


def imports(module: str) -> Iterator[tuple[str, list[str]]]:
    """Every module imported anywhere in a file, with the names taken from it."""
    for node in ast.walk(ast.parse((PACKAGE / module).read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from ((alias.name, []) for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{module}: relative import"
            yield node.module or "", [alias.name for alias in node.names]


def room_of(module: str) -> str:
    return Path(module).parts[0].removesuffix(".py")


def inner(module: str) -> Iterator[str]:
    """Rooms of the package that a file imports."""
    for name, taken in imports(module):
        if name == "slackswap_opt":
            yield from (item for item in taken if not item.startswith("__"))
        elif name.startswith("slackswap_opt."):
            yield name.split(".")[1]


def test_every_room_is_in_the_table() -> None:
    there = {room_of(module) for module in modules()} - {"__init__", "__main__"}
    assert there | {"models"} == set(rooms())


@pytest.mark.parametrize(
    "module", [m for m in modules() if room_of(m) not in {"__init__", "__main__"}]
)
def test_rooms_import_only_what_the_table_allows(module: str) -> None:
    room = room_of(module)
    assert set(inner(module)) - {room} <= rooms()[room]


def test_arrows_never_point_up() -> None:
    order: list[str] = []
    left = {room: set(allowed) for room, allowed in rooms().items()}
    while left:
        free = [room for room, allowed in left.items() if allowed <= set(order)]
        assert free, f"a circle among {sorted(left)}"
        order += free
        left = {room: allowed for room, allowed in left.items() if room not in free}


def test_the_referee_knows_neither_planners_nor_models() -> None:
    assert not rooms()["simulator"] & {"planners", "formulation", "study"}


@pytest.mark.parametrize("module", modules())
def test_outside_packages_are_imported_in_one_place(module: str) -> None:
    for name, _ in imports(module):
        places = ONLY_IN.get(name.split(".")[0])
        assert places is None or places & {module, room_of(module)}, f"{module} imports {name}"


@pytest.mark.parametrize("module", [m for m in modules() if room_of(m) == "figures"])
def test_figures_compute_no_results(module: str) -> None:
    taken = {item for _, names in imports(module) for item in names}
    assert not taken & {"simulate", "lower", "realize", "judge", "bound", "ideal_step_ns"}
    assert not set(inner(module)) & {"planners", "formulation", "study", "workloads"}


@pytest.mark.parametrize(
    "module", [m for m in modules() if m.endswith("/__init__.py") and m != "__init__.py"]
)
def test_inits_hand_names_on(module: str) -> None:
    tree = ast.parse((PACKAGE / module).read_text(encoding="utf-8"))
    code = (ast.FunctionDef, ast.ClassDef, ast.For, ast.While, ast.If, ast.With, ast.Try)
    assert not [node for node in tree.body if isinstance(node, code)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_somewhere(page: Path) -> None:
    text = re.sub(
        r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL
    )
    for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", text):
        if "://" not in target:
            assert (page.parent / target).is_file(), f"{page.name} links to {target}"


def test_every_page_is_in_the_index() -> None:
    index = (ROOT / "docs/index.md").read_text(encoding="utf-8")
    for page in (ROOT / "docs").glob("*.md"):
        assert page.name == "index.md" or f"]({page.name})" in index


def test_the_readme_has_one_command_to_run_and_one_to_test() -> None:
    whole = re.findall(r"^python3 -m venv \.venv && .*$", README, re.MULTILINE)
    assert [line.rsplit("/", 1)[1] for line in whole] == ["slackswap compare", "pytest -n 2"]
    assert len(README.splitlines()) < 150


def test_the_results_in_the_readme_are_consistent() -> None:
    section = README.partition("<!-- results -->\n")[2].partition("<!-- /results -->")[0]
    head, _, *rows = (
        [cell.strip(" *%") for cell in line.strip("|").split("|")] for line in section.splitlines()
    )
    assert rows
    for row in rows:
        found = dict(zip(head[1:], (0.0 if c == "-" else float(c) for c in row[1:]), strict=True))
        best, limit, gap = found.pop("ilp"), found.pop("bound"), found.pop("ilp gap")
        assert max(found.values()) <= best <= limit <= 100
        assert gap == pytest.approx(100 * (1 - best / limit), abs=0.02)


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", README, re.MULTILINE | re.DOTALL)


def test_the_json_and_the_python_in_the_readme_are_the_same_step(tmp_path: Path) -> None:
    (text,) = blocks("json")
    (tmp_path / "mine.json").write_text(text, encoding="utf-8")
    names: dict[str, object] = {}
    exec(compile(blocks("python")[0].partition("result =")[0], "README.md", "exec"), names)
    assert read_step(tmp_path / "mine.json") == names["step"]


def test_the_python_in_the_readme_runs() -> None:
    (code,) = blocks("python")
    names: dict[str, object] = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["result"].status is not Status.INFEASIBLE  # type: ignore[attr-defined]

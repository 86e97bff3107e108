"""The wheel: what is in it, and that it works where nothing else of the project is."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
MAIN_JOB_SECONDS = 120
"""What the main job may take on two ordinary cores, in processor time: load does not count."""


def run(*command: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """A command in a folder, without anything of this environment's Python."""
    plain = {k: v for k, v in os.environ.items() if not k.startswith(("PYTHON", "VIRTUAL_ENV"))}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=plain, text=True, capture_output=True,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
    return done


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    run(sys.executable, "-m", "build", "--wheel", "--outdir", folder, ROOT, cwd=folder)
    (path,) = folder.glob("*.whl")
    return path


@pytest.mark.slow
def test_the_wheel_works_in_an_empty_environment(wheel: Path, tmp_path: Path) -> None:
    names = set(zipfile.ZipFile(wheel).namelist())
    check_contents(names)

    home = tmp_path / "environment"
    venv.create(home, with_pip=True)
    binaries = home / ("Scripts" if os.name == "nt" else "bin")
    run(binaries / "python", "-m", "pip", "install", wheel, cwd=tmp_path)

    where = run(
        binaries / "python", "-c", "import slackswap_opt as s; print(s.__file__, s.__version__)",
        cwd=tmp_path,
    ).stdout  # fmt: skip
    assert str(home) in where
    assert wheel.name.split("-")[1] in where

    models = json.loads(run(binaries / "slackswap", "models", "--json", cwd=tmp_path).stdout)
    shown = json.dumps(models)
    for name in ("gpt2-xl", "llama-7b", "bert-large", "a100-80gb-pcie4"):
        assert f'"{name}"' in shown

    before = os.times()
    table = run(binaries / "slackswap", "compare", cwd=tmp_path).stdout
    after = os.times()
    if os.name != "nt":
        assert after.children_user - before.children_user < MAIN_JOB_SECONDS
    for word in ("bert-large", "gpt2-xl", "llama-7b", "greedy", "ilp"):
        assert word in table


def check_contents(names: set[str]) -> None:
    """All data, the marker of types, the licence; nothing of tests, benchmarks or pages."""
    data = {
        "slackswap_opt/models/" + path.relative_to(ROOT / "models").as_posix()
        for path in (ROOT / "models").rglob("*")
        if path.is_file()
    }
    code = {path.relative_to(ROOT).as_posix() for path in (ROOT / "slackswap_opt").rglob("*.py")}
    assert data
    assert data | code | {"slackswap_opt/py.typed"} <= names
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in names)
    tops = {name.split("/")[0] for name in names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"slackswap_opt"}
    assert not [name for name in names if "test" in name.lower() or "__pycache__" in name]

"""From a grid to files: cached, resumable, reproducible."""

from __future__ import annotations

import csv
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import matplotlib as mpl
import pytest
from typer.testing import CliRunner

from slackswap_opt.cli.app import app
from slackswap_opt.errors import InputError, SlackSwapError
from slackswap_opt.machine import load_machine
from slackswap_opt.paper import FIGURES, FULL, QUICK, Cache, Case, cache, make, write
from slackswap_opt.paper import grid as grids
from slackswap_opt.paper.cache import default_cache_dir, fingerprint, key_of
from slackswap_opt.paper.grid import Grid, Reduced
from slackswap_opt.paper.make import computed
from slackswap_opt.paper.residents import residents_at_peak
from slackswap_opt.paper.tasks import Solve
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.resources import models_dir
from slackswap_opt.simulator import simulate

mpl.use("Agg")

TINY = replace(
    QUICK,
    name="tiny",
    workloads=("bert-large",),
    budgets=(100,),
    pictured="bert-large",
    pictured_layers=1,
    reduced=(Reduced("bert-large", 1),),
    map_budgets=(100,),
    map_links=(25,),
    sensitive=Reduced("bert-large", 1),
    links=(25,),
    batches=(32,),
    sequences=(512,),
    attained=(0.7,),
    scaled="bert-large",
    depths=(1,),
    shown=100,
    scaled_budget=100,
    prices=(100,),
    seconds=1,
    map_seconds=1,
)
"""Nothing to decide anywhere: what is tested is the way from tasks to files."""


@dataclass(frozen=True)
class Counted:
    """A task that leaves a trace of each run."""

    case: Case
    name: str
    fails: bool = False

    @property
    def effort(self) -> float:
        return 1.0

    def run(self) -> Any:
        if self.fails:
            raise KeyboardInterrupt
        RUNS.append(self.name)
        return {"name": self.name}


RUNS: list[str] = []
CASE = Case("bert-large", layers=1)


@pytest.fixture(autouse=True)
def _no_runs() -> None:
    RUNS.clear()


def test_results_are_computed_once(tmp_path: Path) -> None:
    kept = Cache(tmp_path / "cache")
    one, two = Counted(CASE, "one"), Counted(CASE, "two")
    first = computed([one, two], kept)
    assert RUNS == ["one", "two"]
    assert computed([two, one], kept) == first
    assert RUNS == ["one", "two"]


def test_what_was_finished_before_a_kill_is_not_computed_again(tmp_path: Path) -> None:
    kept = Cache(tmp_path / "cache")
    tasks = [Counted(CASE, "one"), Counted(CASE, "two", fails=True), Counted(CASE, "three")]
    with pytest.raises(KeyboardInterrupt):
        computed(tasks, kept)
    computed([tasks[0], tasks[2]], kept)
    assert RUNS == ["one", "three"]


def test_a_damaged_entry_is_computed_again(tmp_path: Path) -> None:
    kept = Cache(tmp_path / "cache")
    task = Counted(CASE, "one")
    computed([task], kept)
    (path,) = (tmp_path / "cache").iterdir()
    path.write_text(path.read_text(encoding="utf-8")[:-20], encoding="utf-8")
    computed([task], kept)
    assert RUNS == ["one", "one"]


def test_keys_know_inputs_files_version_and_code(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = tmp_path / "step.json"
    step.write_text("1", encoding="utf-8")
    of_file = Counted(Case(str(step)), "one")
    before = json.dumps(key_of(of_file))
    step.write_text("2", encoding="utf-8")
    assert json.dumps(key_of(of_file)) != before
    task = Counted(CASE, "one")
    assert key_of(task) != key_of(Counted(replace(CASE, layers=2), "one"))
    assert key_of(task) != key_of(Counted(CASE, "two"))
    before = json.dumps(key_of(task))
    monkeypatch.setattr(cache, "__version__", "9")
    assert json.dumps(key_of(task)) != before
    assert len(fingerprint()) == 16


@pytest.mark.parametrize(
    ("platform", "variable", "folder"),
    [
        ("linux", "XDG_CACHE_HOME", "slackswap-opt"),
        ("win32", "LOCALAPPDATA", "slackswap-opt"),
        ("darwin", "XDG_CACHE_HOME", "Library/Caches/slackswap-opt"),
    ],
)
def test_the_cache_is_where_the_platform_keeps_caches(
    platform: str, variable: str, folder: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.platform", platform)
    monkeypatch.setattr(Path, "home", lambda: tmp_path)
    monkeypatch.setenv(variable, str(tmp_path))
    assert default_cache_dir() == tmp_path / folder


def test_a_case_scales_all_four_rates_of_the_link_and_nothing_else() -> None:
    plain, scaled = Case("bert-large").place(), Case("bert-large", link_gb_per_s=50).place()
    before, after = plain.link.rates(), scaled.link.rates()
    for direction in ("d2h", "h2d", "d2h_duplex", "h2d_duplex"):
        assert getattr(after, direction) == 2 * getattr(before, direction)
    assert scaled.link.latency_ns == plain.link.latency_ns
    assert scaled.device == plain.device


def test_the_grids_are_complete_and_the_quick_one_is_a_part() -> None:
    assert isinstance(FULL, Grid)
    for name in ("workloads", "budgets", "links", "batches", "sequences", "attained", "depths"):
        assert len(getattr(QUICK, name)) <= len(getattr(FULL, name))
    assert QUICK.seconds < FULL.seconds
    assert min(FULL.links) == 6
    assert max(FULL.links) == 450
    assert FULL.workloads == grids.PUBLISHED


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> Cache:
    return Cache(tmp_path_factory.mktemp("cache"))


@pytest.mark.slow
def test_every_figure_is_made() -> None:
    assert [item.name for item in make(grid=TINY)] == list(FIGURES)


def test_figures_have_captions_and_are_written_once(kept: Cache, tmp_path: Path) -> None:
    made = make(["scaling", "prices"], TINY, kept)
    for item in made:
        assert item.caption.startswith(FIGURES[item.name].title)
        for word in ("bert-large", "a100", "% of the ideal peak", "tiny grid; computed on 20"):
            assert word in item.caption, item.name
    folder = tmp_path / "figures"
    files = write(made[-2:], folder, ["svg"], data=True)
    assert sorted(files) == sorted(folder.iterdir())
    assert {path.suffix for path in files} == {".svg", ".csv", ".txt"}
    before = {path: path.stat().st_mtime_ns for path in files}
    write(make([item.name for item in made[-2:]], TINY, kept), folder, ["svg"], data=True)
    assert {path: path.stat().st_mtime_ns for path in files} == before


def test_rows_in_csv_are_what_is_drawn(kept: Cache, tmp_path: Path) -> None:
    (made,) = make(["scaling"], TINY, kept)
    write([made], tmp_path, ["png"], data=True)
    with (tmp_path / "scaling.csv").open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    points = made.tables["scaling"]
    assert len(rows) == len(points)
    for row, point in zip(rows, points, strict=True):
        assert row["planner"] == point.planner
        assert float(row["throughput_retained"]) == point.throughput_retained


def test_files_with_other_content_are_not_replaced_and_nothing_is_written(
    kept: Cache, tmp_path: Path
) -> None:
    made = make(["scaling", "prices"], TINY, kept)
    mine = tmp_path / "prices.svg"
    mine.write_text("mine", encoding="utf-8")
    with pytest.raises(InputError, match=r"prices\.svg.*--force"):
        write(made, tmp_path, ["svg"])
    assert [path.name for path in tmp_path.iterdir()] == ["prices.svg"]
    write(made, tmp_path, ["svg"], force=True)
    assert mine.read_text(encoding="utf-8") != "mine"


def test_an_unknown_figure_names_those_there_are() -> None:
    with pytest.raises(InputError, match=r"unknown figure 'nothing'; available: budgets, "):
        make(["nothing"], TINY)


@pytest.mark.parametrize("planner", ["keep-all", "recompute-all", "swap-all", "greedy"])
def test_what_is_held_at_the_peak_adds_up_to_the_simulated_peak(planner: str) -> None:
    problem = Case("bert-large", layers=2).problem()
    if planner != "keep-all":
        problem = problem.with_budget(problem.budget_bytes * 6 // 10)
    schedule = HEURISTICS[planner](problem).schedule
    assert schedule is not None
    verdict = simulate(problem.step, problem.machine, schedule, problem.budget_bytes)
    held = residents_at_peak(problem, schedule, verdict)
    assert sum(row.bytes for row in held) == verdict.peak_bytes
    assert {row.group for row in held} <= {"activations", "gradients", "workspace"}
    if planner == "keep-all":
        kinds = {row.kind: row.bytes for row in held}
        assert kinds["inner"] == 2 * 128 * 2**20


def test_a_peak_that_does_not_add_up_is_a_defect() -> None:
    problem = Case("bert-large", layers=1).problem()
    schedule = HEURISTICS["keep-all"](problem).schedule
    assert schedule is not None
    verdict = simulate(problem.step, load_machine(), schedule, problem.budget_bytes)
    with pytest.raises(SlackSwapError, match="please report"):
        residents_at_peak(problem, schedule, replace(verdict, peak_bytes=verdict.peak_bytes + 1))


def test_points_carry_the_shape_of_their_case() -> None:
    case = Case("bert-large", layers=1, batch=4, sequence=128, link_gb_per_s=50, attained_flops=0.5)
    for point in Solve(case, (100,), ("keep-all",), 1.0, 0.001).run():
        assert (point["layers"], point["batch"], point["sequence"]) == (1, 4, 128)
        assert (point["link_gb_per_s"], point["attained_flops"]) == (50, 0.5)
        assert point["throughput_retained"] == point["bound_retained"] == 1


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--only", "nothing"], "unknown figure 'nothing'"),
        (["--format", "gif"], "unknown --format 'gif'"),
        (["--data", "xls"], "unknown --data 'xls'"),
        (["--graph", "no-such.json"], "no-such.json: there is no such file"),
        (["-o", "no/such/folder"], "does not exist"),
    ],
)
def test_bad_arguments_are_told_before_anything_is_computed(
    arguments: list[str], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["figures", "--cache", str(tmp_path / "c"), *arguments])
    assert result.exit_code == 2
    assert message in result.output
    assert not list(tmp_path.iterdir())


def test_the_command_lists_the_figures() -> None:
    output = CliRunner().invoke(app, ["figures", "--list"]).output
    assert all(name in output for name in FIGURES)


def test_the_command_makes_figures_from_the_cache(
    kept: Cache, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("slackswap_opt.paper.QUICK", TINY)
    target = tmp_path / "out"
    arguments = ["figures", "--quick", "--only", "prices", "--format", "png,svg", "-o", str(target)]
    result = CliRunner().invoke(app, [*arguments, "--cache", str(kept.folder), "--jobs", "1"])
    assert result.exit_code == 0, result.output
    assert sorted(path.name for path in target.iterdir()) == [
        "prices.png", "prices.svg", "prices.txt",
    ]  # fmt: skip


@pytest.mark.slow
def test_processes_compute_the_same_as_one(tmp_path: Path) -> None:
    grid = replace(TINY, depths=(1, 2), scaled_budget=70, gap=0.03, seconds=600)  # ends by the gap
    alone = make(["scaling"], grid, Cache(tmp_path / "one"), jobs=1)
    together = make(["scaling"], grid, Cache(tmp_path / "two"), jobs=2)
    (one,), (two,) = alone, together

    def timeless(item: Any) -> list[Any]:
        return [replace(point, planning_s=0.0) for point in item.tables["scaling"]]

    assert timeless(one) == timeless(two)


def test_step_files_join_the_maps(kept: Cache) -> None:
    path = models_dir() / "graphs/tiny-mlp.json"
    (made,) = make(["phases"], replace(TINY, reduced=()), kept, graphs=[str(path)])
    assert {point.workload for point in made.tables["phases"]} == {"tiny-mlp"}
    assert {point.layers for point in made.tables["phases"]} == {None}
    assert "tiny-mlp" in made.caption

"""Figures draw what they are given."""

from __future__ import annotations

from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib.axes import Axes
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from slackswap_opt.figures import Panel, comparison, published, save, sweep, timeline
from slackswap_opt.figures.style import BLACK, BLUE, PLANNER_COLOURS, colours_of
from slackswap_opt.figures.timeline import COLOURS, LANES
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Copy, Schedule
from slackswap_opt.simulator import Verdict, simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value

mpl.use("Agg")

MIB = 2**20
RETAINED = {"one": {"greedy": 0.9, "ilp": 0.95}, "two": {"greedy": None, "ilp": 0.5}}
BOUNDS = {"one": 0.96, "two": 0.7}


def played() -> tuple[TrainingStep, Schedule, Verdict]:
    """`a` is swapped, `b` is rebuilt, and both are waited for."""
    sizes = {"a": 50 * MIB, "b": 10 * MIB, "c": 10 * MIB}
    step = TrainingStep.build(
        "figure",
        [
            Operation("f1", Phase.FORWARD, 100_000, writes=(Value("a"),)),
            Operation("f2", Phase.FORWARD, 100_000, reads=(Value("a"),), writes=(Value("b"),)),
            Operation("f3", Phase.FORWARD, 9_000_000, reads=(Value("b"),), writes=(Value("c"),)),
            Operation("b3", Phase.BACKWARD, 100_000, reads=(Value("c"), Value("b"), Value("a"))),
            Operation("o", Phase.OPTIMIZER, 100_000),
        ],
        [Tensor.of(name, size) for name, size in sizes.items()],
    )
    schedule = Schedule(
        compute=(0, 1, 2, 1, 3, 4),
        frees=((), (0,), (1,), (), (0, 1, 2), ()),
        copies_out=(Copy(0, 0),),
        copies_in=(Copy(0, 2),),
    )
    verdict = simulate(step, load_machine("plain-a100"), schedule, 100 * MIB)
    assert verdict.fits
    return step, schedule, verdict


def axes_of(figure: Figure, count: int) -> list[Axes]:
    assert isinstance(figure, Figure)
    assert len(figure.axes) == count
    return figure.axes


def legend(ax: Axes) -> list[str]:
    box = ax.get_legend()
    return [text.get_text() for text in box.get_texts()] if box else []


def heights(ax: Axes) -> list[float]:
    return [patch.get_height() for patch in ax.patches]  # type: ignore[attr-defined]


def test_comparison_has_a_bar_per_result_and_a_cross_where_nothing_fits() -> None:
    (ax,) = axes_of(comparison(RETAINED, BOUNDS), 1)
    assert sorted(heights(ax)) == pytest.approx([50, 90, 95])
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert len(crosses) == 1
    assert legend(ax) == ["greedy", "ilp", "proven limit of any plan", "does not fit"]
    assert [tick.get_text() for tick in ax.get_xticklabels()] == ["one", "two"]


def test_comparison_draws_each_bound_over_its_own_group() -> None:
    (ax,) = axes_of(comparison(RETAINED, BOUNDS), 1)
    levels = {}
    for line in ax.lines:
        x, y = line.get_xdata(), line.get_ydata()
        if line.get_color() == BLACK and len(x) == 2:
            levels[round(sum(x) / 2)] = y[0]
    assert levels == pytest.approx({0: 96, 1: 70})


def test_comparison_says_nothing_of_misfits_where_all_fit() -> None:
    (ax,) = axes_of(comparison({"one": {"ilp": 1.0}}, {}), 1)
    assert legend(ax) == ["ilp", "proven limit of any plan"]


def test_timeline_shows_every_kind_of_work_in_its_lane() -> None:
    step, schedule, verdict = played()
    streams, memory = axes_of(timeline(step, schedule, verdict), 2)
    colours = {to_hex(c.get_facecolor()[0]).upper() for c in streams.collections}
    expected = {k for k in COLOURS if k != "waiting" or verdict.timeline.stalls}
    assert colours == {COLOURS[kind].upper() for kind in expected}
    assert legend(streams) == [kind for kind in COLOURS if kind in expected]
    assert [tick.get_text() for tick in streams.get_yticklabels()] == list(LANES)
    assert legend(memory) == ["in use", "budget"]


def test_timeline_bars_last_as_long_as_the_events() -> None:
    step, schedule, verdict = played()
    streams, _ = axes_of(timeline(step, schedule, verdict), 2)
    again = next(
        c for c in streams.collections
        if to_hex(c.get_facecolor()[0]).upper() == COLOURS["re-executed"].upper()
    )  # fmt: skip
    (path,) = again.get_paths()
    x = path.vertices[:, 0]
    assert x.max() - x.min() == pytest.approx(0.1)
    assert x.min() == pytest.approx(verdict.timeline.compute_start_ns[3] / 1e6)


def test_timeline_memory_stays_under_the_budget_line() -> None:
    step, schedule, verdict = played()
    _, memory = axes_of(timeline(step, schedule, verdict, unlimited=verdict), 2)
    lines = {line.get_label(): line for line in memory.lines}
    assert set(lines) == {"in use", "budget", "all kept"}
    highest = max(lines["in use"].get_ydata())
    assert highest == pytest.approx(verdict.peak_bytes / 2**30)
    assert highest <= lines["budget"].get_ydata()[0]


def test_timeline_can_show_a_part() -> None:
    step, schedule, verdict = played()
    for ax in axes_of(timeline(step, schedule, verdict, between_ms=(1, 3)), 2):
        assert ax.get_xlim() == (1, 3)


def test_sweep_breaks_its_lines_where_nothing_fits() -> None:
    (ax,) = axes_of(sweep([0.2, 0.5, 1.0], {"ilp": [None, 0.9, 1.0]}, [0.8, 0.95, 1.0]), 1)
    (line,) = ax.lines
    assert list(line.get_xdata()) == [20, 50, 100]
    assert line.get_ydata()[0] != line.get_ydata()[0]  # not a number
    assert line.get_color() == BLUE


def test_published_marks_the_published_value_in_each_panel() -> None:
    panels = [
        Panel("A", 0.963, {"ilp": [0.97, 0.95]}, [0.98, 0.96]),
        Panel("B", 0.996, {"ilp": [0.99, None]}, [0.99, 0.98]),
    ]
    drawn = axes_of(published([0.4, 0.8], panels), 2)
    for ax, panel in zip(drawn, panels, strict=True):
        marked = next(line for line in ax.lines if line.get_label() == "published")
        assert marked.get_ydata()[0] == pytest.approx(100 * panel.published)
        assert ax.get_title() == panel.title


def test_figures_draw_into_given_axes_and_return_their_figure() -> None:
    step, schedule, verdict = played()
    own = Figure()
    top = own.subfigures(2, 1)
    one = top[0].subplots()
    two = top[1].subplots(2, 1)
    assert comparison(RETAINED, BOUNDS, one) is own
    assert timeline(step, schedule, verdict, (two[0], two[1])) is own
    assert sweep([0.5, 1.0], {"ilp": [0.9, 1.0]}, [0.9, 1.0], one) is own
    assert len(own.axes) == 3


@pytest.mark.parametrize("suffix", ["pdf", "svg", "png"])
def test_saved_files_are_reproducible(tmp_path: Path, suffix: str) -> None:
    contents = []
    for name in ("first", "second"):
        path = tmp_path / f"{name}.{suffix}"
        save(comparison(RETAINED, BOUNDS), path, dpi=60)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]


def test_text_in_pdf_files_stays_text(tmp_path: Path) -> None:
    save(comparison(RETAINED, BOUNDS), tmp_path / "figure.pdf")
    content = (tmp_path / "figure.pdf").read_bytes()
    assert b"/Type3" not in content
    assert b"/FontFile2" in content


def test_planners_have_distinct_colours_and_unknown_ones_get_some() -> None:
    assert len(set(PLANNER_COLOURS.values())) == len(PLANNER_COLOURS)
    mine = colours_of(["ilp", "mine", "yours"])
    assert mine["mine"] != mine["yours"]
    assert mine["ilp"] == BLUE

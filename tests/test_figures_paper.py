"""The paper's figures, from made-up rows: what they say, and that they look as they did."""

from __future__ import annotations

import io
import re
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from PIL import Image

from slackswap_opt import figures
from slackswap_opt.figures import Point, paper, points_of, rendered
from slackswap_opt.figures.maps import REGIONS, region_of, shares
from slackswap_opt.figures.style import (
    ACTION_LOOKS,
    ONE_COLUMN,
    PLANNER_COLOURS,
    PLANNER_MARKERS,
    TWO_COLUMNS,
)
from slackswap_opt.planners import PLANNERS
from tests import figure_rows as rows

mpl.use("Agg")

BASELINES = Path(__file__).parent / "baselines"
DPI = 50
LARGEST_RMS = 12.0
"""Of 255; another version of a font renderer stays below, a line that is missing does not."""
DRAWN: dict[str, Callable[[], Figure]] = {
    "budgets": lambda: figures.budgets(rows.BUDGETS, rows.LIMITS),
    "budget": lambda: figures.budget(rows.BUDGETS[:15], rows.LIMITS[0]),
    "bars": lambda: figures.bars(rows.BARS),
    "gains": lambda: figures.gains(rows.MAP),
    "phases": lambda: figures.phases(figures.of(rows.MAP, "ilp")),
    "decisions": lambda: figures.decisions(rows.DECISIONS),
    "timeline": lambda: figures.step_timeline(rows.SPANS, rows.MEMORY[20:], rows.MEMORY[:10]),
    "memory": lambda: figures.memory(rows.MEMORY),
    "peaks": lambda: figures.peaks(rows.PEAKS),
    "reserved": lambda: figures.reserved(rows.RESERVED),
    "sensitivity": lambda: figures.sensitivity(rows.SENSITIVITY),
    "scaling": lambda: figures.scaling(rows.SCALING),
    "prices": lambda: figures.prices(rows.PRICES),
    "jitter": lambda: figures.jitter(rows.SPREADS),
}
NAMES = sorted(DRAWN)


@cache
def drawn(name: str) -> Figure:
    """A figure, laid out; to be looked at, not rendered."""
    with paper():
        figure = DRAWN[name]()
        figure.draw_without_rendering()
    return figure


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)).convert("RGB"), dtype=float)


@pytest.mark.parametrize("name", NAMES)
def test_figures_look_as_they_did(name: str) -> None:
    """To renew a baseline after a change that was looked at: delete it and run this test twice."""
    with paper():
        content = rendered(DRAWN[name](), "png", dpi=DPI)
    path = BASELINES / f"{name}.png"
    if not path.is_file():
        path.write_bytes(content)
        pytest.fail(f"{path} was missing and is written; look at it and run the test again")
    now, before = pixels(content), pixels(path.read_bytes())
    assert now.shape == before.shape
    assert np.sqrt(np.mean((now - before) ** 2)) < LARGEST_RMS


@pytest.mark.parametrize("name", NAMES)
def test_figures_have_the_width_of_one_or_two_columns(name: str) -> None:
    width, height = drawn(name).get_size_inches()
    assert width in (ONE_COLUMN, TWO_COLUMNS)
    assert height < 4


@pytest.mark.parametrize("name", NAMES)
def test_no_text_is_too_small_or_outside_of_the_figure(name: str) -> None:
    with paper():
        figure = drawn(name)
        frame = figure.bbox.padded(2)
        for text in shown_texts(figure):
            assert text.get_fontsize() >= 4.5, text
            box = text.get_window_extent()
            assert frame.x0 <= box.x0, text
            assert box.x1 <= frame.x1, text
            assert frame.y0 <= box.y0, text
            assert box.y1 <= frame.y1, text


def shown_texts(figure: Figure) -> Iterator[mpl.text.Text]:
    """All that is written, without the labels of ticks beyond an axis's ends."""
    hidden = set()
    for ax in figure.axes:
        for axis in (ax.xaxis, ax.yaxis):
            low, high = sorted(axis.get_view_interval())
            ticks = [*axis.get_major_ticks(), *axis.get_minor_ticks()]
            hidden |= {tick.label1 for tick in ticks if not low <= tick.get_loc() <= high}
    for text in figure.findobj(mpl.text.Text):
        if text.get_text().strip() and text.get_visible() and text not in hidden:
            yield text


@pytest.mark.parametrize("name", NAMES)
def test_labels_of_an_axis_do_not_overlap(name: str) -> None:
    with paper():
        figure = drawn(name)
        for ax in figure.axes:
            for axis in (ax.xaxis, ax.yaxis):
                labels = set(axis.get_ticklabels())
                boxes = [
                    text.get_window_extent()
                    for text in shown_texts(figure)
                    if text in labels and not text.get_rotation()
                ]
                for n, box in enumerate(boxes):
                    assert not any(box.overlaps(other) for other in boxes[n + 1 :]), name


@pytest.mark.parametrize("name", NAMES)
def test_every_axis_with_numbers_says_its_unit(name: str) -> None:
    unit = re.compile(r"%|GiB|ms|, s$|GB/s|layer|sequences|tokens|FLOP")
    for ax in drawn(name).axes:
        if ax.get_subplotspec() is None:
            continue
        for axis, outer in ((ax.xaxis, ax.get_subplotspec().is_last_row()),
                            (ax.yaxis, ax.get_subplotspec().is_first_col())):  # fmt: skip
            texts = [label.get_text() for label in axis.get_ticklabels()]
            numbers = [text for text in texts if re.fullmatch(r"[−\d.]+", text)]
            if numbers and outer:
                assert unit.search(axis.get_label_text()), (name, axis.get_label_text())


@pytest.mark.parametrize("kind", ["pdf", "svg", "png"])
def test_equal_rows_give_equal_bytes(kind: str) -> None:
    with paper():
        one, other = DRAWN["prices"](), DRAWN["prices"]()
        assert rendered(one, kind, dpi=60) == rendered(other, kind, dpi=60)


def test_pdf_files_embed_truetype_fonts_and_no_date() -> None:
    with paper():
        content = rendered(DRAWN["prices"](), "pdf")
    assert b"/FontFile2" in content
    assert b"/Type3" not in content
    assert b"/CreationDate" not in content


def test_every_planner_has_a_marker_of_its_own_and_every_action_a_hatch() -> None:
    assert set(PLANNER_MARKERS) == set(PLANNER_COLOURS) == set(PLANNERS)
    assert len(set(PLANNER_MARKERS.values())) == len(PLANNER_MARKERS)
    hatches = [ACTION_LOOKS[name][1] for name in ("keep", "swap", "recompute")]
    assert len(set(hatches)) == 3


def legend(figure: Figure) -> list[str]:
    boxes = figure.findobj(mpl.legend.Legend)
    return [text.get_text() for box in boxes for text in box.get_texts()]


def texts(ax: Axes) -> list[str]:
    return [text.get_text() for text in ax.texts]


def test_budgets_mark_unproven_points_infeasible_budgets_and_planners_without_a_plan() -> None:
    figure = drawn("budgets")
    said = legend(figure)
    for wanted in ("ilp, gap above the target", "proven infeasible", "planner has no plan"):
        assert wanted in said
    ax = figure.axes[0]
    hollow = [line for line in ax.lines if line.get_markerfacecolor() == "white"]
    assert [round(float(line.get_xdata()[0])) for line in hollow] == [30]
    crosses = [line for line in ax.lines if line.get_marker() == "x"]
    assert sorted(round(x) for line in crosses for x in line.get_xdata()) == [30, 50]


def test_budgets_below_the_panel_are_told_in_words() -> None:
    assert any("swap-all 20 %" in text for text in texts(drawn("budgets").axes[0]))


def test_budgets_without_anything_to_mark_say_nothing_of_it() -> None:
    proven = [rows.point("one", "ilp", 0.5, 0.9, bound=0.9), rows.point("one", "ilp", 1.0, 1.0)]
    assert legend(figures.budgets(proven)) == ["ilp", "proven out of reach"]


def test_bars_show_published_values_only_where_there_are_some() -> None:
    (ax,) = drawn("bars").axes
    shown = [text.strip("°") for text in texts(ax)]
    assert shown == ["96.3", "95.0", "96.5", "88.0"]
    assert [line.get_marker() for line in ax.lines].count("x") == 1


def test_gains_are_shares_of_the_greedys_step() -> None:
    ax = drawn("gains").axes[0]
    shown = texts(ax)
    assert "5.9" in shown  # 1 - 0.80 / 0.85
    assert "ILP\nonly" in shown
    assert shown.count("no\nplan") == 2


def test_phases_tell_swapping_and_recomputing_by_their_shares() -> None:
    def made_of(swapped: int, recomputed: int) -> str:
        return REGIONS[region_of(rows.point("one", "ilp", 0.5, 0.9, swapped=swapped,
                                            recomputed=recomputed))][0]  # fmt: skip

    assert made_of(0, 0) == "keep everything"
    assert made_of(20, 0) == "swap only"
    assert made_of(20, 20) == "swap and recompute"
    assert made_of(0, 20) == "recompute only"
    assert shares(Point("a", "m", "ilp", "feasible", 0.5, 1.0, 1.0)) == (0, 0)


def test_phases_separate_regions_but_not_cells_without_a_plan() -> None:
    ax = drawn("phases").axes[0]
    thick = [line for line in ax.lines if line.get_linewidth() > 1]
    ends = {(tuple(line.get_xdata()), tuple(line.get_ydata())) for line in thick}
    assert ((1, 1), (1, 2)) in ends
    assert all(y != (1, 1) for _, y in ends)


def test_decisions_have_a_row_per_kind_worth_one_and_the_shares_in_the_title() -> None:
    left, right = drawn("decisions").axes
    assert [label.get_text() for label in left.get_yticklabels()] == [
        "qkv  75 MiB",
        "inner  100 MiB",
    ]
    assert left.get_title().startswith("greedy: keep 57 %")
    assert right.get_title() == "ilp: keep 29 %, swap 14 %, recompute 57 %"


def test_memory_says_which_plan_does_not_fit() -> None:
    titles = [ax.get_title() for ax in drawn("memory").axes]
    assert titles == ["keep-all: 100 ms, does not fit", "greedy: 100 ms", "ilp: 100 ms"]


def test_peaks_add_up() -> None:
    (ax,) = drawn("peaks").axes
    assert texts(ax) == [" 8.0, does not fit", " 5.0"]


def test_sensitivity_marks_searches_above_the_target_and_missing_plans() -> None:
    figure = drawn("sensitivity")
    upper = figure.axes[0]
    hollow = [line for line in upper.lines if line.get_markerfacecolor() == "white"]
    assert [list(line.get_xdata()) for line in hollow] == [[6.0]]
    crosses = [line for line in figure.axes[1].lines if line.get_marker() == "x"]
    assert [x for line in crosses for x in line.get_xdata()] == [0.8]


def test_scaling_marks_searches_that_the_clock_ended() -> None:
    assert "ilp, ended by the clock" in legend(drawn("scaling"))


def test_jitter_says_how_many_trials_ran_out_of_memory() -> None:
    (ax,) = drawn("jitter").axes
    assert texts(ax) == ["25 % OOM", "25 % OOM", "100 % OOM"]


def test_figures_draw_into_given_axes() -> None:
    own = Figure()
    one, two, three = own.subplots(1, 3)
    assert figures.budget(rows.BUDGETS[:15], ax=one) is own
    assert figures.gains(rows.MAP, [two]) is own
    assert figures.phases(figures.of(rows.MAP, "ilp"), [three]) is own
    other = Figure()
    flat = list(other.subplots(2, 5).flat)
    assert figures.bars(rows.BARS, ax=flat[0]) is other
    assert figures.prices(rows.PRICES, flat[1]) is other
    assert figures.jitter(rows.SPREADS, flat[2]) is other
    assert figures.reserved(rows.RESERVED, flat[3]) is other
    assert figures.peaks(rows.PEAKS, ax=flat[4]) is other
    assert figures.scaling(rows.SCALING, (flat[5], flat[6])) is other
    assert figures.step_timeline(rows.SPANS, rows.MEMORY[20:], (), (flat[7], flat[8])) is other
    assert len(other.axes) == 10


def test_rows_of_comparisons_and_sweeps_become_points() -> None:
    row = {
        "workload": "one", "machine": "m", "planner": "ilp", "status": "feasible", "reason": "",
        "budget_fraction": 0.5, "throughput_retained": 0.9, "ideal_step_s": 0.9, "step_s": 1.0,
        "bound_step_s": 0.95, "layers": None, "solver": "a solver", "link_gb_per_s": 25.0,
    }  # fmt: skip
    nothing = {
        **row, "status": "infeasible", "throughput_retained": None, "step_s": None,
        "reason": "proven: too small",
    }  # fmt: skip
    failed = {**row, "status": "failed", "bound_step_s": None}
    one, none = points_of([row, nothing, failed])
    assert one.bound_retained == pytest.approx(0.9 / 0.95)
    assert (one.throughput_retained, one.link_gb_per_s, one.layers) == (0.9, 25.0, None)
    assert none.throughput_retained is None
    assert none.proven_infeasible
    assert not one.proven_infeasible

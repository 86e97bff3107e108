"""`slackswap simulate` with an allocator, traces and pictures; `plan --allocator`; the picture."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from slackswap_opt.cli import timeline
from slackswap_opt.cli.app import app
from slackswap_opt.cli.timeline import ASCII, BLOCKS, draw, marks_for
from slackswap_opt.errors import ScheduleError
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Copy, Schedule
from slackswap_opt.simulator import Cause, simulate
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from slackswap_opt.study import reserved
from tests.strategies import Program, programs
from tests.test_simulator_properties import RELAXED

MIB = 2**20


def slackswap(*arguments: str | Path, expected: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments], catch_exceptions=False)
    assert result.exit_code == expected, result.output[-2000:]
    return result


@pytest.fixture(scope="module")
def plan(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    slackswap("plan", "bert-large", "--layers", "2", "-b", "70%", "-p", "greedy", "-o", path)
    return path


@pytest.fixture(scope="module")
def fitted(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict]:
    path = tmp_path_factory.mktemp("plans") / "fitted.json"
    done = slackswap(
        "plan", "bert-large", "--layers", "2", "-b", "70%", "-p", "greedy",
        "--allocator", "expandable", "-o", path, "--json",
    )  # fmt: skip
    return path, json.loads(done.stdout)


# The allocator


def test_the_ideal_allocator_reserves_what_is_in_use(plan):
    document = json.loads(slackswap("simulate", plan, "--allocator", "ideal", "--json").stdout)
    found = document["allocator"]
    assert found["kind"] == "ideal"
    assert found["reserved_peak_bytes"] == document["peak_bytes"]
    assert found["fragmentation"] == 0
    assert found["fits"]
    assert found["out_of_memory"] is None


def test_a_plan_that_fragments_runs_out_of_memory(plan):
    done = slackswap("simulate", plan, "--allocator", "caching", "--json", expected=5)
    document = json.loads(done.stdout)
    found = document["allocator"]
    assert found["reserved_peak_bytes"] > document["capacity_bytes"] == found["limit_bytes"]
    assert found["requested_peak_bytes"] == document["peak_bytes"]
    assert not found["fits"]
    refused = found["out_of_memory"]
    assert refused["size_bytes"] > 0
    assert f"{refused['size_bytes']} bytes for {refused['tensor']!r}" in done.stderr
    assert found["reserved_peak_bytes"] == sum(p["reserved_bytes"] for p in found["pools"])
    for pool in found["pools"]:
        parts = ("requested_bytes", "rounding_bytes", "hole_bytes", "cached_bytes")
        assert pool["reserved_bytes"] == sum(pool[part] for part in parts)
    sizes = [hole["size_bytes"] for hole in found["holes"]]
    assert sizes == sorted(sizes, reverse=True) != []


def test_reserved_memory_is_printed_next_to_the_peak_with_the_largest_holes(plan):
    done = slackswap("simulate", plan, "--allocator", "caching", expected=5)
    names = [line.split("  ")[0] for line in done.stdout.splitlines()]
    at = names.index("peak")
    assert names[at + 1 : at + 4] == ["reserved", "at its peak", "allocator"]
    assert "Largest holes at the reserved peak" in done.stdout
    assert "out of memory at" in done.stdout


def test_a_larger_limit_lets_it_fit(plan):
    done = slackswap(
        "simulate", plan, "--allocator", "caching", "--allocator-limit", "100%", "--json"
    )
    assert json.loads(done.stdout)["allocator"]["fits"]


def test_buffers_of_copies_in_with_a_pool_of_their_own_reserve_more(plan):
    def peak(*options: str) -> int:
        done = slackswap("simulate", plan, "--allocator", "expandable", "--allocator-limit",
                         "200%", "--json", *options)  # fmt: skip
        return json.loads(done.stdout)["allocator"]["reserved_peak_bytes"]

    assert peak("--own-pool") > peak()


def test_a_plan_made_for_an_allocator_fits_into_it(fitted):
    path, summary = fitted
    made = summary["allocator"]
    assert made["reserved_peak_bytes"] <= summary["budget_bytes"]
    assert made["planned_bytes"] < summary["budget_bytes"]
    assert made["tried"][0]["budget_bytes"] == summary["budget_bytes"]
    assert made["tried"][0]["reserved_peak_bytes"] > summary["budget_bytes"]
    assert summary["certified_gap"] >= 0
    done = slackswap(
        "simulate", path, "--allocator", "expandable",
        "--allocator-limit", f"{summary['budget_bytes']}B", "--json",
    )  # fmt: skip
    found = json.loads(done.stdout)["allocator"]
    assert found["reserved_peak_bytes"] == made["reserved_peak_bytes"]
    assert (found["fits"], found["flushes"]) == (True, 0)


def test_plan_says_what_is_reserved():
    done = slackswap(
        "plan", "bert-large", "--layers", "1", "-b", "100%", "-p", "keep-all",
        "--allocator", "ideal",
    )  # fmt: skip
    assert "by the ideal allocator, 0.00 % of it fragmentation" in done.stdout


def test_where_no_plan_reserves_little_enough_that_is_said(monkeypatch):
    monkeypatch.setattr(reserved, "ROUNDS", 2)
    monkeypatch.setattr(reserved, "SCANNED", 1)
    done = slackswap(
        "plan", "bert-large", "--layers", "2", "-b", "60%", "-p", "greedy",
        "--allocator", "caching", expected=4,
    )  # fmt: skip
    assert "the caching allocator reserves within" in done.stderr


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--allocator", "cachin"), "unknown allocator 'cachin'; did you mean 'caching'?"),
        (("--own-pool",), "--own-pool says how an allocator is used"),
        (("--allocator-limit", "5GiB"), "--allocator-limit says how an allocator is used"),
        (("--allocator", "ideal", "--allocator-limit", "much"), "'much' is not understood"),
        (("--show", "--json"), "give one of them"),
        (("--trace", "nowhere/at/all.json"), "does not exist"),
    ],
)
def test_wrong_options_are_explained(plan, options, message):
    assert message in slackswap("simulate", plan, *options, expected=2).stderr


# Traces


def test_a_trace_is_written_whole_and_never_over_a_file(plan, tmp_path):
    path = tmp_path / "trace.json"
    done = slackswap("simulate", plan, "--trace", path)
    assert f"trace written to {path}" in done.stdout
    document = json.loads(path.read_text(encoding="utf-8"))
    assert document["otherData"]["workload"] == "bert-large"
    before = path.read_bytes()
    path.write_text("mine", encoding="utf-8")
    assert "--force" in slackswap("simulate", plan, "--trace", path, expected=2).stderr
    assert path.read_text(encoding="utf-8") == "mine"
    slackswap("simulate", plan, "--trace", path, "--force")
    assert path.read_bytes() == before
    assert [entry.name for entry in tmp_path.iterdir()] == ["trace.json"]


def test_reserved_memory_is_a_counter_of_the_trace(plan, tmp_path):
    path = tmp_path / "trace.json"
    slackswap(
        "simulate", plan, "--trace", path, "--allocator", "caching", "--allocator-limit", "100%"
    )
    events = json.loads(path.read_text(encoding="utf-8"))["traceEvents"]
    sizes = [e["args"]["bytes"] for e in events if e["name"] == "reserved (caching)"]
    assert sizes[0] == 0
    assert max(sizes) > 0


# The picture


def test_show_draws_below_the_figures(plan):
    done = slackswap("simulate", plan, "--show")
    lines = done.stdout.splitlines()
    start = next(n for n, line in enumerate(lines) if line.lstrip().startswith("compute "))
    assert max(map(len, lines[start:])) <= timeline.PIPED
    assert "─" * 20 in done.stdout
    assert "░ forward" in done.stdout


@pytest.mark.parametrize(
    ("encoding", "marks"),
    [("utf-8", BLOCKS), ("ascii", ASCII), ("latin-1", ASCII), (None, ASCII), ("nonsense", ASCII)],
)
def test_ascii_is_drawn_where_the_encoding_has_no_blocks(encoding, marks):
    assert marks_for(encoding) is marks


STEP = TrainingStep.build(
    "small",
    [
        Operation("f1", Phase.FORWARD, 10_000, writes=(Value("a"),)),
        Operation("f2", Phase.FORWARD, 20_000, (Value("a"),), (Value("b"),)),
        Operation("b2", Phase.BACKWARD, 40_000, (Value("b"),), (Value("d"),)),
        Operation("b1", Phase.BACKWARD, 10_000, (Value("d"), Value("a"))),
        Operation("update", Phase.OPTIMIZER, 30_000),
    ],
    [Tensor.of("a", MIB), Tensor.of("b", MIB), Tensor.of("d", 2 * MIB)],
)
A, B, D = range(3)
MACHINE = load_machine()


def picture(schedule: Schedule, capacity: int, width: int = 80, marks=ASCII) -> dict[str, str]:
    verdict = simulate(STEP, MACHINE, schedule, capacity)
    lines = draw(STEP, schedule, verdict, width, marks)
    assert all(len(line) <= min(max(width, 40), 200) for line in lines)
    rows = [line.split(marks.side, 1) for line in lines if marks.side in line]
    return {label.strip(): cells.ljust(min(max(width, 40), 200) - 9) for label, cells in rows}


def test_phases_take_their_share_of_the_width():
    kept = Schedule((0, 1, 2, 3, 4), ((), (), (B,), (A, D), ()))
    rows = picture(kept, 8 * MIB, width=64)
    assert rows["compute"] == "f" * 15 + "b" * 25 + "u" * 15
    assert set(rows["re-runs"] + rows["waits"] + rows["D2H"] + rows["H2D"]) == {" "}


def test_re_executions_waits_and_copies_are_marked():
    again = Schedule((0, 1, 2, 0, 3, 4), ((), (A,), (B,), (), (A, D), ()))
    rows = picture(again, 8 * MIB, width=69)
    assert rows["compute"] == "f" * 15 + "b" * 20 + "r" * 5 + "b" * 5 + "u" * 15
    assert rows["re-runs"].strip() == "#" * 5
    swapped = Schedule((0, 1, 2, 3, 4), ((), (A,), (B,), (A, D), ()), (Copy(A, 0),), (Copy(A, 2),))
    rows = picture(swapped, 8 * MIB)
    assert "i" in rows["waits"]
    assert rows["compute"].count(" ") > 10
    assert "#" in rows["D2H"]
    assert "#" in rows["H2D"]
    verdict = simulate(STEP, MACHINE, swapped, 8 * MIB)
    assert {stall.cause for stall in verdict.timeline.stalls} == {Cause.SWAP_IN}


def test_memory_is_drawn_to_scale_under_the_budget():
    kept = Schedule((0, 1, 2, 3, 4), ((), (), (B,), (A, D), ()))
    verdict = simulate(STEP, MACHINE, kept, 8 * MIB)
    lines = draw(STEP, kept, verdict, 64, BLOCKS)
    bars = [line.split("│")[1].ljust(55) for line in lines if "│" in line][7:]
    assert len(bars) == timeline.ROWS
    heights = [sum(bar[column] == "█" for bar in bars) for column in range(55)]
    assert heights == [1] * 5 + [2] * 10 + [4] * 20 + [3] * 5 + [0] * 15
    (budget,) = [line for line in lines if "budget │" in line]
    assert budget.split("│")[1] == "─" * 55


def test_the_line_is_at_the_budget_and_bars_pass_it():
    kept = Schedule((0, 1, 2, 3, 4), ((), (), (B,), (A, D), ()))
    verdict = simulate(STEP, MACHINE, kept, 8 * MIB)
    lines = draw(STEP, kept, replace(verdict, capacity_bytes=3 * MIB), 64, ASCII)
    at = next(n for n, line in enumerate(lines) if " budget |" in line)
    assert lines[at].split("|")[1] == "-" * 15 + "#" * 20 + "-" * 20
    assert "#" * 20 in lines[at - 1]
    assert "#" * 25 in lines[at + 1]


@settings(RELAXED, max_examples=20)
@given(programs(), st.integers(0, 300), st.sampled_from([ASCII, BLOCKS]))
def test_every_picture_keeps_to_its_width(program: Program, width, marks):
    try:
        verdict = simulate(*program)
    except ScheduleError:
        return
    if not verdict.fits:
        return
    lines = draw(program.step, program.schedule, verdict, width, marks)
    assert max(map(len, lines)) <= min(max(width, 40), 200)
    rows = dict(line.split(marks.side, 1) for line in lines if marks.side in line)
    waits = next(cells for label, cells in rows.items() if label.strip() == "waits")
    assert bool(waits.strip()) == bool(verdict.stall_ns)
    if marks is ASCII:
        assert "\n".join(lines).isascii()


def test_a_row_shows_the_highest_memory_of_its_time():
    grid = timeline._Grid(100, 4)
    at, values = np.array([0, 10, 11, 60]), np.array([1, 9, 2, 5])
    assert grid.highest(at, values).tolist() == [9, 2, 5, 5]
    assert np.allclose(grid.cover([(0, 25), (30, 40), (90, 100)]), [1, 0.4, 0, 0.4])

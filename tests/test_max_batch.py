"""The largest batch: what is found, what is proven, and what was tried."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import pytest

from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem
from slackswap_opt.plan.files import read_plan
from slackswap_opt.resources import models_dir
from slackswap_opt.simulator import simulate
from slackswap_opt.study import device_memory, lower_limit, max_batch
from slackswap_opt.study.attempt import Outcome
from slackswap_opt.study.max_batch import MaxBatch
from slackswap_opt.workloads import build_step, load_workload, with_changes
from tests.test_cli import slackswap

UNET = str(models_dir() / "graphs" / "unet.json")
WORKLOAD = load_workload("gpt2-xl", layers=1, sequence=256)
MACHINE = load_machine()


def divide(size: str, reserve: str = "10%"):
    return lambda step, workload: device_memory(
        step, workload, MACHINE.device.memory_bytes, size, reserve
    )


def problem_of(batch: int, size: str) -> Problem:
    workload = with_changes(WORKLOAD, batch=batch)
    step = build_step(workload, MACHINE)
    return Problem(step, MACHINE, divide(size)(step, workload).budget_bytes)


@pytest.fixture(scope="module")
def found() -> MaxBatch:
    return max_batch(WORKLOAD, MACHINE, divide("5GiB"), Fraction(95, 100), "greedy")


def test_the_largest_batch_is_fast_enough_and_fits(found):
    assert found.batch is not None
    cell, memory = found.cell, found.memory
    assert cell.problem.budget_bytes == memory.budget_bytes
    assert memory.device_bytes == 5 * 2**30
    verdict = simulate(
        cell.problem.step, MACHINE, cell.judged["greedy"].result.schedule, memory.budget_bytes
    )
    assert verdict.fits
    assert cell.problem.ideal_step_ns / verdict.step_ns >= 0.95
    assert verdict.step_ns >= cell.bound.step_ns


def test_what_was_tried_is_said(found):
    outcomes = {trial.batch: trial.outcome for trial in found.trials}
    assert outcomes[found.batch] is Outcome.MET
    assert max(b for b, o in outcomes.items() if o is Outcome.MET) == found.batch
    next_up = outcomes.get(found.batch + 1)
    assert found.first_impossible == found.batch + 1 or next_up is not Outcome.MET
    for trial in found.trials:
        if trial.retained is not None:
            assert trial.retained <= trial.best_possible
        assert (trial.outcome is Outcome.TOO_SLOW) == (
            trial.best_possible is not None and trial.best_possible < 0.95
        )


def test_the_ends_are_proofs(found):
    unplanned = problem_of(found.unplanned, "5GiB")
    assert unplanned.liveness.ideal_peak_bytes <= unplanned.budget_bytes
    one_more = problem_of(found.unplanned + 1, "5GiB")
    assert one_more.liveness.ideal_peak_bytes > one_more.budget_bytes
    assert found.unplanned <= found.batch < found.first_impossible
    impossible = problem_of(found.first_impossible, "5GiB")
    assert lower_limit(impossible.step).budget_bytes > impossible.budget_bytes
    fits = problem_of(found.first_impossible - 1, "5GiB")
    assert lower_limit(fits.step).budget_bytes <= fits.budget_bytes


def test_less_throughput_never_gives_a_smaller_batch(found):
    relaxed = max_batch(WORKLOAD, MACHINE, divide("5GiB"), Fraction(1, 2), "greedy")
    assert relaxed.batch >= found.batch
    strict = max_batch(WORKLOAD, MACHINE, divide("5GiB"), Fraction(1), "keep-all")
    assert strict.batch == strict.unplanned == found.unplanned


def test_a_planner_that_works_at_some_batches_only_is_not_taken_for_monotone(monkeypatch):
    module = "slackswap_opt.study.attempt.PLANNERS"
    from slackswap_opt.planners import PLANNERS

    def odd(problem):
        """Fails at small batches."""
        small = problem.liveness.ideal_peak_bytes < problem_of(3, "5GiB").liveness.ideal_peak_bytes
        return PLANNERS["keep-all"](problem.with_budget(1) if small else problem)

    monkeypatch.setattr(module, {**PLANNERS, "greedy": odd})
    result = max_batch(WORKLOAD, MACHINE, divide("5GiB"), Fraction(95, 100), "greedy")
    assert result.trials[0].outcome is Outcome.MISSED
    assert result.batch == result.unplanned


def test_a_device_for_not_even_one_sequence():
    result = max_batch(WORKLOAD, MACHINE, divide("2GiB"), Fraction(95, 100), "greedy")
    assert (result.batch, result.cell, result.unplanned) == (None, None, 0)
    assert result.first_impossible == 1
    assert result.trials == ()


def test_the_document_says_it_all(found, tmp_path):
    arguments = [
        "max-batch", "gpt2-xl", "--layers", "1", "--sequence", "256", "--device-memory", "5GiB",
        "--min-throughput", "95%", "-p", "greedy",
    ]  # fmt: skip
    path = tmp_path / "plan.json"
    document = json.loads(slackswap(*arguments, "--json", "-o", path).stdout)
    assert document["schema"] == "slackswap.max-batch/1"
    assert document["batch"] == found.batch
    assert document["unplanned_batch"] == found.unplanned
    assert document["first_impossible_batch"] == found.first_impossible
    assert [t["batch"] for t in document["tried"]] == [t.batch for t in found.trials]
    row = document["plan"]
    assert row["throughput_retained"] >= 0.95
    assert row["certified_gap"] >= 0
    assert document["sequences_per_s"] == pytest.approx(found.batch / row["step_s"])
    assert document["tokens_per_s"] == pytest.approx(256 * document["sequences_per_s"])
    assert read_plan(path).budget_bytes == row["budget_bytes"]
    text = slackswap(*arguments, "--json", "-o", path, expected=2).stderr
    assert "--force" in text


def test_the_table_says_it_all():
    shown = slackswap(
        "max-batch", "gpt2-xl", "--layers", "1", "--sequence", "64", "--device-memory", "2GiB",
        "-p", "greedy", "-t", "50%",
    ).stdout  # fmt: skip
    for word in ("largest batch", "without a plan", "moments", "reserve", "tried", "found"):
        assert word in shown


def test_the_plan_goes_to_standard_output_alone(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = [
        "max-batch", "gpt2-xl", "--layers", "1", "--sequence", "64", "--device-memory", "2GiB",
        "-p", "recompute-all", "-t", "50%",
    ]  # fmt: skip
    written = slackswap(*arguments, "-o", "-").stdout
    assert not list(tmp_path.iterdir())
    Path("plan.json").write_text(written, encoding="utf-8")
    assert read_plan("plan.json").planner == "recompute-all"


@pytest.mark.parametrize(
    ("arguments", "code", "fault"),
    [
        ([UNET], 2, "one fixed batch"),
        (["gpt2-xl", "--min-throughput", "0"], 2, "above 0"),
        (["gpt2-xl", "--min-throughput", "120%"], 2, "--min-throughput '120%'"),
        (["gpt2-xl", "-p", "greedy,ilp"], 2, "give one"),
        (["gpt2-xl", "--layers", "2", "--device-memory", "1GiB"], 3, "this is proven"),
    ],
)
def test_bad_input_and_no_answer(arguments, code, fault):
    assert fault in slackswap("max-batch", *arguments, expected=code).stderr


def test_no_batch_is_fast_enough():
    done = slackswap(
        "max-batch", "gpt2-xl", "--layers", "1", "--sequence", "64", "--device-memory", "2GiB",
        "-p", "swap-all", "-t", "100%", expected=4,
    )  # fmt: skip
    assert "no batch was found" in done.stderr

"""The smallest memory for a slowdown, with its proof; and machines side by side."""

from __future__ import annotations

import json
from fractions import Fraction
from itertools import pairwise

import pytest

from slackswap_opt.formulation.bound import bound
from slackswap_opt.machine import load_machine, machine_names
from slackswap_opt.plan import Problem
from slackswap_opt.simulator import simulate
from slackswap_opt.study import Settings, frontier, lower_limit, static_memory
from slackswap_opt.study.attempt import Outcome, attempt
from slackswap_opt.study.frontier import Frontier
from slackswap_opt.workloads import build_step, load_workload
from tests.sweeps import TINY
from tests.test_cli import slackswap

SLOWDOWNS = [Fraction(1, 20), Fraction(0), Fraction(2)]
RESOLUTION = Fraction(1, 10)


@pytest.fixture(scope="module")
def problem() -> Problem:
    machine = load_machine()
    step = build_step(load_workload("bert-large", layers=2, batch=8, sequence=128), machine)
    return Problem(step, machine, 1)


@pytest.fixture(scope="module")
def found(problem) -> Frontier:
    return frontier(problem, SLOWDOWNS, "greedy", resolution=RESOLUTION)


def test_each_point_is_a_schedule_that_keeps_its_word(problem, found):
    assert [point.slowdown for point in found.points] == SLOWDOWNS
    for point in found.points:
        schedule = point.judged.result.schedule
        verdict = simulate(problem.step, problem.machine, schedule, point.budget_bytes)
        assert verdict.fits
        assert verdict.peak_bytes == point.budget_bytes
        assert verdict.step_ns <= problem.ideal_step_ns * (1 + point.slowdown)


def test_each_limit_is_proven(problem, found):
    least = lower_limit(problem.step).budget_bytes
    for point in found.points:
        assert least <= point.limit_bytes <= point.budget_bytes
        if point.limit_bytes > least:
            below = problem.with_budget(point.limit_bytes - 1)
            assert bound(below).step_ns > point.target_ns


def test_more_slowdown_never_takes_more_memory(found):
    ordered = sorted(found.points, key=lambda point: point.slowdown)
    for less, more in pairwise(ordered):
        assert more.budget_bytes <= less.budget_bytes
        assert more.limit_bytes <= less.limit_bytes
    assert ordered[-1].budget_bytes < ordered[0].budget_bytes


def test_an_attempt_stops_at_what_is_known(problem):
    whole = problem.with_budget(problem.liveness.ideal_peak_bytes)
    ideal = problem.ideal_step_ns
    kept = attempt(whole, ideal, "ilp", Settings())
    assert (kept.outcome, kept.planner) == (Outcome.MET, "keep-all")
    tight = problem.with_budget(whole.budget_bytes // 2)
    assert attempt(tight, ideal, "ilp", Settings()).outcome is Outcome.TOO_SLOW
    assert attempt(problem, 10 * ideal, "ilp", Settings()).outcome is Outcome.TOO_LITTLE
    missed = attempt(tight, 2 * ideal, "keep-all", Settings())
    assert (missed.outcome, missed.judged) == (Outcome.MISSED, None)


@pytest.mark.slow
def test_the_ilp_needs_no_more_than_the_greedy(problem, found):
    settings = Settings(seconds=3.0)
    ilp = frontier(problem, SLOWDOWNS[:1], "ilp", settings, resolution=RESOLUTION)
    assert (
        ilp.points[0].budget_bytes
        <= found.points[0].budget_bytes + found.problem.budget_bytes // 20
    )


def test_the_command():
    arguments = [
        "frontier", TINY, "-p", "greedy", "-s", "5%", "-s", "50%", "--resolution", "5%",
    ]  # fmt: skip
    document = json.loads(slackswap(*arguments, "--json").stdout)
    assert document["schema"] == "slackswap.frontier/1"
    assert [point["slowdown"] for point in document["points"]] == [0.05, 0.5]
    for point in document["points"]:
        assert document["least_bytes"] <= point["limit_bytes"] <= point["budget_bytes"]
        assert point["step_s"] <= document["ideal_step_s"] * (1 + point["slowdown"]) * (1 + 1e-12)
    text = slackswap(*arguments).stdout
    for word in ("5 %", "proven: not below", "nothing runs with less"):
        assert word in text


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        (["-s", "fast"], "--slowdown 'fast'"),
        (["--resolution", "0%"], "--resolution is 0"),
        (["-p", "gredy"], "did you mean 'greedy'"),
    ],
)
def test_bad_input(arguments, fault):
    assert fault in slackswap("frontier", "gpt2-xl", *arguments, expected=2).stderr


# Machines


def test_machines_in_one_table():
    arguments = ["machines", "gpt2-xl", "--layers", "2", "-p", "greedy"]
    document = json.loads(slackswap(*arguments, "--json").stdout)
    assert document["schema"] == "slackswap.machines/1"
    assert [row["machine"] for row in document["rows"]] == list(machine_names())
    workload = load_workload("gpt2-xl", layers=2)
    for row in document["rows"]:
        machine = load_machine(row["machine"])
        static = static_memory(build_step(workload, machine), workload).total_bytes
        size = machine.device.memory_bytes
        assert row["budget_bytes"] == size - size // 10 - static
        assert row["device_memory"]["static_bytes"] == static
    text = slackswap(*arguments, "-m", "h100-pcie5", "-m", "rtx4090-pcie4", "-b", "90%").stdout
    assert text.index("h100-pcie5") < text.index("rtx4090-pcie4")
    assert "a100" not in text
    assert "sequences/s" in text


def test_machines_on_which_nothing_fits():
    done = slackswap("machines", "gpt2-xl", "-m", "rtx4090-pcie4", "-p", "greedy", expected=3)
    assert "does not fit" in done.stdout
    both = ("-b", "50%", "--device-memory", "5GiB")
    assert "give one of the two" in slackswap("machines", "gpt2-xl", *both, expected=2).stderr

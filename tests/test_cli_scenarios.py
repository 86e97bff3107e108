"""Noise, repetitions, devices and traffic on the command line."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from slackswap_opt.cli import scenarios
from slackswap_opt.cli.app import app
from slackswap_opt.errors import InputError

PLAN = ("plan", "gpt2-xl", "--layers", "4", "-b", "85%", "-p", "greedy")


def run(*arguments: str) -> tuple[int, str]:
    result = CliRunner().invoke(app, list(arguments))
    return result.exit_code, result.output


@pytest.fixture(scope="module")
def plan_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("plans") / "plan.json"
    code, output = run(*PLAN, "-o", str(path))
    assert code == 0, output
    return path


def test_noise_is_played_beside_the_plan(plan_file: Path):
    options = ("--jitter", "5%", "--link-jitter", "0.1", "--trials", "50", "--seed", "3")
    code, output = run("simulate", str(plan_file), *options)
    assert code == 0
    assert "5 % on durations, 10 % on copies" in output
    assert "50 trials, seed 3" in output
    code, output = run("simulate", str(plan_file), *options, "--json")
    found = json.loads(output)["robustness"]
    assert (found["jitter"], found["link_jitter"], found["trials"]) == (0.05, 0.1, 50)
    times = list(found["percentiles_s"].values())
    assert times == sorted(times)
    assert times[0] <= found["mean_step_s"] <= times[-1]
    assert json.loads(run("simulate", str(plan_file), *options, "--json")[1])["robustness"] == found


def test_steps_devices_and_load_make_a_steady_state(plan_file: Path):
    options = ("--steps", "2", "--micro-batches", "2", "--devices", "2", "--load", "5GB/s")
    code, output = run("simulate", str(plan_file), *options, "--json")
    assert code == 0
    found = json.loads(output)
    steady = found["steady_state"]
    assert (steady["steps"], steady["micro_batches"], steady["fits"]) == (2, 2, True)
    first, second = steady["devices"]
    assert first["offset_s"] == 0 < second["offset_s"]
    assert len(first["step_s"]) == 2
    assert min(first["step_s"]) > 1.9 * found["step_s"]
    code, output = run("simulate", str(plan_file), *options)
    assert "steps: 2, micro-batches in each: 2" in output


def test_a_plan_for_a_confidence_says_what_was_shown():
    options = ("--confidence", "95%", "--jitter", "5%", "--trials", "80", "--json")
    code, output = run(*PLAN, *options)
    assert code == 0
    margin = json.loads(output)["margin"]
    assert margin["confidence"] == 0.95
    assert margin["robustness"]["fits_at_least"] >= 0.95
    assert margin["planned_bytes"] == json.loads(output)["budget_bytes"]


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--jitter", "5x"), "--jitter '5x' is not understood"),
        (("--jitter", "900%"), "jitter is 9; give a fraction"),
        (("--load", "5"), "write it like 5GB/s"),
        (("--load", "0GB/s"), "write it like 5GB/s"),
        (("--steps", "2000"), "1000 together at most"),
    ],
)
def test_options_that_say_nothing_are_refused(
    plan_file: Path, options: tuple[str, ...], message: str
):
    code, output = run("simulate", str(plan_file), *options)
    assert code == 2
    assert message in output


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--jitter", "5%"), "noise needs a --confidence"),
        (("--confidence", "99%", "--trials", "20"), "give at least 299"),
        (("--confidence", "99%", "--allocator", "caching"), "give one of them"),
        (("--confidence", "many"), "--confidence 'many' is not understood"),
    ],
)
def test_plans_refuse_confidences_they_cannot_show(options: tuple[str, ...], message: str):
    code, output = run(*PLAN, *options)
    assert code == 2
    assert message in output


def test_no_margin_is_a_plan_that_was_not_found():
    tight = ("plan", "gpt2-xl", "--layers", "4", "-b", "5%", "-p", "keep-all")
    code, output = run(*tight, "--confidence", "90%", "--trials", "50")
    assert code == 4
    assert "was shown to fit with a probability of 90" in output


@pytest.mark.parametrize(("text", "found"), [("5GB/s", 5000), ("0.8 GB/s", 800), ("1MB/s", 1)])
def test_rates(text: str, found: int):
    assert scenarios.rate(text) == found


def test_rates_below_a_megabyte_are_none():
    with pytest.raises(InputError):
        scenarios.rate("0.1MB/s")

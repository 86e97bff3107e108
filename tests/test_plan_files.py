"""Plan files: nothing is lost on the way, and every fault is named."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given, settings

from slackswap_opt.errors import CertificateError, InputError
from slackswap_opt.formats import read_step
from slackswap_opt.machine import load_machine
from slackswap_opt.plan import Problem, files, parse_budget
from slackswap_opt.planners import HEURISTICS
from slackswap_opt.resources import models_dir
from slackswap_opt.step import TrainingStep
from slackswap_opt.study import InvalidPlanError, plan_file, replay, sweep
from tests.strategies import training_steps

DOCS = Path(__file__).parents[1] / "docs"


def planned(step: TrainingStep, budget: str = "75%", planner: str = "swap-all") -> files.PlanFile:
    problem = Problem(step, load_machine(), 1)
    size = parse_budget(budget, problem.liveness.ideal_peak_bytes)
    (cell,) = sweep(problem, [size], {planner: HEURISTICS[planner]})
    return plan_file(cell, planner, "test 1")


@pytest.fixture(scope="module")
def unet() -> files.PlanFile:
    return planned(read_step(models_dir() / "graphs" / "unet.json"))


def test_a_plan_survives_the_file(unet, tmp_path):
    path = tmp_path / "plan.json"
    files.write_plan(unet, path)
    again = files.read_plan(path)
    assert again == unet
    assert unet.schedule.copies_in
    played = replay(again)
    assert played.verdict.step_ns == unet.simulated.step_ns
    with pytest.raises(InputError, match="--force"):
        files.write_plan(unet, path)


@settings(max_examples=20, deadline=None)
@given(training_steps())
def test_any_step_survives_the_file(step):
    if Problem(step, load_machine(), 1).liveness.ideal_peak_bytes == 0:
        return
    plan = planned(step, "100%", "keep-all")
    again = files.loads(files.dumps(plan))
    assert again == plan
    replay(again)


def test_the_schema_is_published_and_accepts_what_is_written(unet):
    schema = json.loads((DOCS / "plan.schema.json").read_text(encoding="utf-8"))
    assert schema == files.json_schema()
    jsonschema.validate(json.loads(files.dumps(unet)), schema)


def changed(plan: files.PlanFile, change) -> str:
    document = json.loads(files.dumps(plan))
    change(document)
    return json.dumps(document)


def set_at(*path, to):
    def change(document):
        for part in path[:-1]:
            document = document[part]
        document[path[-1]] = to

    return change


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_at("schema", to="slackswap.plan/2"), "upgrade"),
        (set_at("schema", to="slackswap.step/1"), "not a plan file"),
        (lambda d: d.pop("schema"), "no field 'schema'"),
        (lambda d: d.pop("machine"), "machine: is missing"),
        (set_at("budget_bytes", to=-1), "budget_bytes: expected greater"),
        (set_at("budget_bytes", to="5"), "budget_bytes: expected a valid integer|budget_bytes"),
        (set_at("status", to="infeasible"), "status: expected 'optimal"),
        (set_at("colour", to="red"), "colour: is not a field"),
        (set_at("actions", "e1", to="burn"), "actions.e1: expected 'keep'"),
        (set_at("actions", "ghost", to="keep"), 'actions: "ghost" is not a tensor'),
        (set_at("schedule", "compute", 0, "run", to="nothing"), 'compute.0: "nothing" is not an'),
        (set_at("schedule", "compute", 0, "frees", to=["x"]), 'compute.0.frees: "x" is not a'),
        (set_at("schedule", "copies_in", 0, "tensor", to="x"), 'copies_in.0: "x" is not a'),
        (set_at("machine", "link", "shared_by", to=10**9), "machine: link: each rate"),
        (set_at("machine", "device", "launch_ns", to=1.5), "machine.device.launch_ns"),
        (set_at("step", "operations", 0, "phase", to="foward"), "step: operation .*forward"),
        (set_at("step", to=3), "step: "),
    ],
)
def test_faults_are_named(unet, change, expected):
    with pytest.raises(InputError, match=expected):
        files.loads(changed(unet, change))


def test_a_file_that_is_not_json_is_named(tmp_path):
    path = tmp_path / "plan.json"
    path.write_text('{"schema": ', encoding="utf-8")
    with pytest.raises(InputError) as error:
        files.read_plan(path)
    assert str(error.value).startswith(str(path))


def drop_copy(document):
    document["schedule"]["copies_in"].pop()


def free_early(document):
    first = document["schedule"]["compute"][0]
    first["frees"] = [*first.get("frees", []), "e1"]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (set_at("simulated", "step_ns", to=42_770_000), "simulated.step_ns is 42770000"),
        (set_at("simulated", "peak_bytes", to=1), "simulated.peak_bytes is 1"),
        (set_at("actions", "e1", to="keep"), "actions: 'e1' is keep in the file, swap in"),
        (lambda d: d["actions"].pop("e1"), "'e1' is not listed"),
        (set_at("budget_bytes", to=840_000_000), "runs out of memory|invalid|does not say"),
        (set_at("bound", "cut", to="nowhere"), "bound.cut: 'nowhere'"),
        (set_at("machine", "link", "latency_ns", to=0), "simulated"),
        (drop_copy, "invalid"),
        (free_early, "invalid"),
    ],
)
def test_tampering_is_found_by_playing(unet, change, expected):
    plan = files.loads(changed(unet, change))
    with pytest.raises(InvalidPlanError, match=expected):
        replay(plan)


def test_a_bound_above_the_schedule_is_refused(unet):
    plan = files.loads(changed(unet, set_at("bound", "step_ns", to=10**12)))
    with pytest.raises(CertificateError, match="less than the bound"):
        replay(plan)


def test_other_capacities(unet):
    assert replay(unet, 10**12).verdict.capacity_bytes == 10**12
    with pytest.raises(InvalidPlanError, match="out of memory at a capacity of 300000000 bytes"):
        replay(unet, 300_000_000)

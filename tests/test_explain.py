"""`slackswap explain`: what limits a plan, and why each tensor was kept, swapped or recomputed."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import jsonschema
import pytest
from typer.testing import CliRunner, Result

from slackswap_opt.cli.app import app
from slackswap_opt.formulation import _cbc, _highs, _pulp
from slackswap_opt.formulation._answers import Outcome, Reply
from slackswap_opt.machine import Host, load_machine
from slackswap_opt.plan import Action, Problem
from slackswap_opt.plan.files import PlanFile, read_plan, write_plan
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import Explanation, Settings, explain, plan_file, sweep
from slackswap_opt.workloads import build_step, load_workload

SOLVER = _pulp.available_solvers()[0]
MIB = 2**20
MACHINE = load_machine("a100-80gb-pcie4")
NUMBER, WHOLE, TEXT = {"type": "number"}, {"type": "integer"}, {"type": "string"}
NULL = {"type": "null"}


def or_null(schema: dict[str, object]) -> dict[str, object]:
    return {"anyOf": [schema, NULL]}


def closed(**fields: dict[str, object]) -> dict[str, object]:
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


DOCUMENT = closed(
    schema={"const": "slackswap.explain/1"},
    workload=TEXT,
    machine=TEXT,
    planner=TEXT,
    budget_bytes=WHOLE,
    ideal_step_ns=WHOLE,
    step_ns=WHOLE,
    bound_step_ns=WHOLE,
    cut=or_null(TEXT),
    priced_step_ns=WHOLE,
    solver=TEXT,
    device_ns_per_gib=NUMBER,
    host_ns_per_gib=or_null(NUMBER),
    out_ns_per_gb_s=NUMBER,
    in_ns_per_gb_s=NUMBER,
    limits={
        "type": "array",
        "items": closed(
            resource={
                "enum": ["device memory", "link to the host", "link to the device", "host memory"]
            },
            operation=or_null(TEXT),
            saves_ns={"type": "number", "exclusiveMinimum": 0},
        ),
    },
    tensors={
        "type": "array",
        "items": closed(
            tensor=TEXT,
            layer=TEXT,
            size_bytes=WHOLE,
            action={"enum": ["keep", "swap", "recompute", "drop"]},
            keep_ns=NUMBER,
            swap_ns=or_null(NUMBER),
            recompute_ns=or_null(NUMBER),
            excess_ns={"type": "number", "minimum": 0},
            break_even_out_bytes_per_s=or_null(NUMBER),
            break_even_in_bytes_per_s=or_null(NUMBER),
            why=TEXT,
        ),
    },
    tensors_at_cut=WHOLE,
    tensors_elsewhere=WHOLE,
)


def planned(share: float, planner: str = "greedy", host: Host | None = None) -> PlanFile:
    machine = MACHINE if host is None else replace(MACHINE, host=host)
    problem = Problem(build_step(load_workload("bert-large", layers=2), machine), machine, 1)
    budget = int(problem.liveness.ideal_peak_bytes * share)
    chosen = {planner: PLANNERS[planner]}
    (cell,) = sweep(problem, [budget], chosen, Settings(solver=SOLVER))
    return plan_file(cell, planner, "slackswap-opt test")


@pytest.fixture(scope="module")
def plan() -> PlanFile:
    return planned(0.5)


@pytest.fixture(scope="module")
def explained(plan) -> Explanation:
    return explain(plan, solver=SOLVER)


@pytest.fixture
def path(plan, tmp_path) -> Path:
    where = tmp_path / "plan.json"
    write_plan(plan, where)
    return where


def slackswap(*arguments: object, expected: int = 0) -> Result:
    result = CliRunner().invoke(app, [str(a) for a in arguments])
    assert result.exit_code == expected, (result.stdout, result.stderr)
    return result


# --- What it says -----------------------------------------------------------------------------


def test_it_says_what_binds_and_where(plan, explained):
    assert explained.cut == plan.bound.cut
    memory = explained.limits[0]
    assert (memory.resource, memory.operation) == ("device memory", plan.bound.cut)
    assert memory.saves_ns == explained.device_ns_per_gib > 0
    links = {limit.resource for limit in explained.limits[1:]}
    assert links <= {"link to the host", "link to the device"}
    assert bool(links) == (explained.out_ns_per_gb_s + explained.in_ns_per_gb_s > 0)
    assert explained.host_ns_per_gib is None
    assert explained.ideal_step_ns < explained.priced_step_ns <= explained.step_ns


def test_the_prices_prove_the_limit_in_the_file(plan, explained):
    """Where the file's bound was found at this cut, so are the prices."""
    assert explained.priced_step_ns <= explained.bound_step_ns * (1 + 1e-9) + 2
    overhead = explained.bound_step_ns - explained.ideal_step_ns
    assert explained.priced_step_ns - explained.ideal_step_ns > 0.5 * overhead


def test_every_tensor_that_crosses_the_cut_is_explained_once(plan, explained):
    names = [choice.tensor for choice in explained.choices]
    assert len(set(names)) == len(names)
    problem = Problem(plan.step, plan.machine, plan.budget_bytes)
    saved = {plan.step.tensors[t].name for t in problem.liveness.saved.nonzero()[0]}
    assert explained.elsewhere == len(saved - set(names))
    assert [c.size_bytes for c in explained.choices] == sorted(
        (c.size_bytes for c in explained.choices), reverse=True
    )
    assert all(choice.action is plan.actions[choice.tensor] for choice in explained.choices)


def cost(choice, action):
    return {
        Action.KEEP: choice.keep_ns,
        Action.SWAP: choice.swap_ns,
        Action.RECOMPUTE: choice.recompute_ns,
    }.get(action)


def test_excess_and_reason_follow_from_the_costs(explained):
    for choice in explained.choices:
        ways = [c for c in (choice.keep_ns, choice.swap_ns, choice.recompute_ns) if c is not None]
        taken = cost(choice, choice.action)
        if taken is not None:
            least = min(ways)
            same = taken - least <= max(1.0, 0.001 * taken)
            assert choice.excess_ns == pytest.approx(0.0 if same else taken - least)
        if choice.why.startswith("cheapest"):
            assert choice.excess_ns == 0
        if "looks cheaper" in choice.why:
            assert choice.excess_ns > 0
    assert {choice.why.split()[0] for choice in explained.choices} & {"cheapest,", "as"}


def test_at_the_break_even_rate_swapping_costs_what_the_action_costs(plan, explained):
    """The time of the bytes goes with 1 / rate, latency and host memory do not."""
    checked = 0
    rates, latency = plan.machine.link.rates(), plan.machine.link.latency_ns
    size = {tensor.name: tensor.transfer_bytes for tensor in plan.step.tensors}
    for choice in explained.choices:
        if choice.break_even_out_bytes_per_s is None:
            continue
        factor = choice.break_even_out_bytes_per_s / (rates.d2h * 1e6)
        assert choice.break_even_in_bytes_per_s == pytest.approx(factor * rates.h2d * 1e6)
        others = [c for c in (choice.keep_ns, choice.recompute_ns) if c is not None]
        target = min(others) if choice.action is Action.SWAP else cost(choice, choice.action)
        # Where one direction alone has a price, bytes and latency share it: 1000 x / R to L.
        bytes_ns = size[choice.tensor] * 1000 / rates.d2h
        moving = choice.swap_ns * bytes_ns / (bytes_ns + latency)
        if explained.in_ns_per_gb_s == 0:
            assert moving / factor + choice.swap_ns - moving == pytest.approx(target, rel=1e-4)
            checked += 1
    assert checked > 5


def test_what_is_swapped_stays_so_down_to_its_break_even_rate(explained):
    for choice in explained.choices:
        if choice.action is Action.SWAP and choice.break_even_out_bytes_per_s is not None:
            rate = MACHINE.link.d2h_bytes_per_s
            cheapest = choice.excess_ns == 0
            assert (choice.break_even_out_bytes_per_s <= rate * 1.0011) == cheapest


def test_a_host_limit_has_a_price():
    found = explain(planned(0.5, "recompute-all", Host(pinned_bytes=40 * MIB)), solver=SOLVER)
    assert found.host_ns_per_gib > 0
    assert found.limits[-1].resource == "host memory"
    assert found.limits[-1].saves_ns == found.host_ns_per_gib


def test_where_all_fits_nothing_binds():
    found = explain(planned(1.0), solver=SOLVER)
    assert found.cut is None
    assert found.limits == found.choices == ()
    assert found.device_ns_per_gib == found.out_ns_per_gb_s == found.in_ns_per_gb_s == 0
    assert found.step_ns == found.ideal_step_ns == found.priced_step_ns


def test_the_planner_does_not_change_the_prices(plan, explained):
    other = explain(planned(0.5, "recompute-all"), solver=SOLVER)
    assert other.limits == explained.limits
    assert {c.action for c in other.choices} <= {Action.RECOMPUTE, Action.KEEP}
    assert sum(c.excess_ns for c in other.choices) > sum(c.excess_ns for c in explained.choices)


def test_twice_is_the_same(plan, explained):
    assert explain(plan, solver=SOLVER) == explained


# --- The command ------------------------------------------------------------------------------


def test_the_command_speaks_first_and_then_shows_tables(path, explained, monkeypatch):
    monkeypatch.setenv("COLUMNS", "160")
    text = slackswap("explain", path, "--solver", SOLVER, "--tensors", 7).stdout
    first, _, rest = text.partition("\n")
    for word in ("bert-large", "greedy", "no plan takes less", explained.cut, "GiB", "GB/s"):
        assert word in first
    assert rest.index("What binds") < rest.index("Tensors, the largest 7 of")
    assert f"at the start of {explained.cut}" in rest
    for choice in explained.choices[:7]:
        assert choice.tensor in rest
    assert explained.choices[7].tensor not in rest


def test_without_tensors_there_is_no_table_of_them(path):
    text = slackswap("explain", path, "--solver", SOLVER, "--tensors", 0).stdout
    assert "What binds" in text
    assert "Tensors" not in text


def test_the_document(path, explained):
    run = slackswap("explain", path, "--solver", SOLVER, "--json", "-n", 3)
    document = json.loads(run.stdout)
    jsonschema.validate(document, DOCUMENT)
    assert [t["tensor"] for t in document["tensors"]] == [c.tensor for c in explained.choices[:3]]
    assert document["tensors_at_cut"] == len(explained.choices)
    assert document["device_ns_per_gib"] == explained.device_ns_per_gib


def test_the_bound_says_what_binds():
    arguments = ("bound", "bert-large", "--layers", "2", "-b", "50%", "--solver", SOLVER)
    document = json.loads(slackswap(*arguments, "--json").stdout)
    jsonschema.validate(document["limits"], DOCUMENT["properties"]["limits"])
    first = document["limits"][0]
    assert (first["resource"], first["operation"]) == ("device memory", document["bound_cut"])
    text = slackswap(*arguments).stdout
    assert f"device memory at the start of {document['bound_cut']}" in text
    ample = slackswap(*arguments[:4], "-b", "100%", "--json")
    assert json.loads(ample.stdout)["limits"] == []


def test_an_ample_plan_in_words(tmp_path):
    where = tmp_path / "plan.json"
    write_plan(planned(1.0), where)
    text = slackswap("explain", where, "--solver", SOLVER).stdout
    assert "nothing binds" in text
    document = json.loads(slackswap("explain", where, "--json").stdout)
    jsonschema.validate(document, DOCUMENT)


def test_a_plan_that_lies_is_not_explained(path, tmp_path):
    lie = read_plan(path)
    where = tmp_path / "lie.json"
    faster = replace(lie.simulated, step_ns=lie.simulated.step_ns - 1)
    write_plan(replace(lie, simulated=faster), where)
    run = slackswap("explain", where, expected=5)
    assert str(where) in run.stderr
    assert "simulated.step_ns" in run.stderr
    assert run.stdout == ""


def test_a_file_that_is_no_plan(tmp_path):
    where = tmp_path / "no.json"
    where.write_text("{}")
    assert "not a plan file" in slackswap("explain", where, expected=2).stderr
    assert "unknown solver" in slackswap("explain", where, "--solver", "x", expected=2).stderr


def test_without_a_solver_the_code_is_six(path, monkeypatch):
    monkeypatch.setattr(_pulp, "_cbc_path", lambda: None)
    monkeypatch.setattr(_highs, "installed", lambda: False)
    run = slackswap("explain", path, expected=6)
    assert "pip install" in run.stderr
    assert run.stdout == ""


def test_a_solver_that_fails_is_no_explanation(path, monkeypatch):
    reply = Reply(Outcome.FAILED, "liar 1.0", note="it ended with status 1")
    monkeypatch.setattr(_cbc, "run", lambda *_, **__: reply)
    monkeypatch.setattr(_highs, "run", lambda *_, **__: reply)
    run = slackswap("explain", path, expected=2)
    assert "no prices" in run.stderr
    assert run.stdout == ""

"""Static memory: what it is made of, and the budget that a device leaves."""

from __future__ import annotations

import json

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step
from slackswap_opt.machine import load_machine
from slackswap_opt.resources import models_dir
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from slackswap_opt.study import device_memory, static_memory
from slackswap_opt.study.static_memory import parse_state, workload_memory
from slackswap_opt.workloads import build_step, load_workload, workload_names
from slackswap_opt.workloads.optimizer import parameter_groups
from tests.test_cli import slackswap

UNET = str(models_dir() / "graphs" / "unet.json")


@pytest.fixture(scope="module")
def gpt2():
    workload = load_workload("gpt2-xl", layers=2)
    return workload, build_step(workload, load_machine())


@pytest.mark.parametrize("name", workload_names())
def test_the_account_of_a_workload_is_the_static_memory_of_its_step(name):
    workload = load_workload(name, layers=2)
    step = build_step(workload, load_machine())
    memory = static_memory(step, workload)
    assert memory.total_bytes == sum(t.size_bytes for t in step.tensors if t.static)
    assert memory.parameters_bytes == memory.gradients_bytes
    assert memory.gathered_bytes == memory.other_bytes == 0


@pytest.mark.parametrize(
    ("state", "bytes_per_parameter"),
    [
        ("none", 2 + 2),
        ("sgd,master=none", 2 + 2),
        ("sgd", 2 + 2 + 4),
        ("momentum", 2 + 2 + 4 + 4),
        ("lion,master=none,moments=bf16", 2 + 2 + 2),
        ("adamw", 2 + 2 + 4 + 8),
        ("adam,gradients=fp32", 2 + 4 + 4 + 8),
        ("adamw,master=none,moments=bf16", 2 + 2 + 4),
        ("adamw-8bit,master=none", 2 + 2 + 2 * (1 + 4 / 256)),
    ],
)
def test_bytes_per_parameter_of_16_bit_training(gpt2, state, bytes_per_parameter):
    workload, _ = gpt2
    parameters = sum(parameter_groups(workload).values())
    memory = workload_memory(workload, parse_state(state))
    assert memory.total_bytes == pytest.approx(bytes_per_parameter * parameters, abs=4)


def test_fp32_parameters_are_their_own_master(gpt2):
    workload = load_workload("gpt2-xl", layers=2, dtype="fp32")
    parameters = sum(parameter_groups(workload).values())
    assert workload_memory(workload, parse_state("adamw")).total_bytes == 16 * parameters


def test_sharding_divides_what_its_stage_says(gpt2):
    workload, _ = gpt2
    whole = workload_memory(workload, parse_state("adamw"))
    stages = [workload_memory(workload, parse_state(f"adamw,zero={n},shards=8")) for n in (1, 2, 3)]
    for stage, memory in enumerate(stages, 1):
        for shared_from, part in (
            (1, "master_bytes"), (1, "moments_bytes"), (2, "gradients_bytes"),
            (3, "parameters_bytes"),
        ):  # fmt: skip
            divisor = 8 if stage >= shared_from else 1
            assert getattr(memory, part) == pytest.approx(getattr(whole, part) / divisor, rel=1e-6)
    largest = sorted(parameter_groups(workload).values(), reverse=True)
    assert [m.gathered_bytes for m in stages] == [
        0,
        2 * largest[0],
        2 * largest[0] + 2 * (largest[0] + largest[1]),
    ]
    assert stages[0].total_bytes > stages[1].total_bytes > stages[2].total_bytes


def test_tensor_parallel_shards_are_those_of_the_workload():
    one = workload_memory(load_workload("llama3-70b", layers=4, degree=1))
    eighth = workload_memory(load_workload("llama3-70b", layers=4))
    assert eighth.total_bytes == pytest.approx(one.total_bytes / 8, rel=0.01)
    assert "one of 8 tensor-parallel shards" in eighth.source


def test_a_device_is_divided_to_the_byte(gpt2):
    workload, step = gpt2
    memory = device_memory(step, workload, 80 * 2**30, "50%", "2GiB", "10GB")
    assert memory.device_bytes == 40 * 2**30
    assert memory.reserve_bytes == 2 * 2**30
    assert memory.budget_bytes == 38 * 2**30 - 10**10
    by_default = device_memory(step, workload, 80 * 2**30)
    assert by_default.reserve_bytes == 8 * 2**30
    assert device_memory(step, workload, 2**30, reserve="0").reserve_bytes == 0
    assert device_memory(step, workload, 2**30).budget_bytes < 0


def test_a_file_with_an_optimizer_knows_its_static_memory():
    step = read_step(UNET)
    memory = static_memory(step)
    assert memory.total_bytes == sum(t.size_bytes for t in step.tensors if t.static) > 0


@pytest.mark.parametrize("static", [True, False])
def test_a_file_without_one_must_be_told(static):
    w, h = Tensor.of("w", 100, static=static), Tensor.of("h", 10)
    reads = (Value("w"),) if static else ()
    step = TrainingStep.build(
        "mine",
        [
            Operation("f", Phase.FORWARD, 1, reads=reads, writes=(Value("h"),)),
            Operation("b", Phase.BACKWARD, 1, reads=(Value("h"),)),
        ],
        [w, h],
    )
    with pytest.raises(InputError, match=f"add up to {100 * static} bytes.*--static-memory"):
        static_memory(step)
    assert static_memory(step, given="20GiB").total_bytes == 20 * 2**30
    with pytest.raises(InputError, match="give a size"):
        static_memory(step, given="adamw")


def test_every_fault_of_a_state_is_named():
    with pytest.raises(InputError) as caught:
        parse_state("adamx,master=fp64,zero=4,shards=0,colour=red")
    text = str(caught.value)
    for fault in ("'adamx'", "adamw-8bit", "'master=fp64'", "'zero=4'", "'shards=0'", "colour"):
        assert fault in text
    assert len(caught.value.faults) == 5
    for half in ("adamw,zero=2", "adamw,shards=8"):
        with pytest.raises(InputError, match="shares nothing"):
            parse_state(half)


# The option


def test_device_memory_takes_the_place_of_a_budget_everywhere():
    shape = ("gpt2-xl", "--layers", "2", "--device-memory", "9GiB", "--reserve", "1GiB")
    static = static_memory(*reversed(_gpt2())).total_bytes
    budget = 8 * 2**30 - static
    plan = json.loads(slackswap("plan", *shape, "-p", "greedy", "--json").stdout)
    assert plan["budget_bytes"] == plan["device_memory"]["budget_bytes"] == budget
    assert (
        plan["device_memory"]["static"]["moments"]
        == 2 * plan["device_memory"]["static"]["master_parameters"]
    )
    compared = json.loads(
        slackswap("compare", *shape, "--device-memory", "100%", "-p", "greedy", "--json").stdout
    )
    assert [r["budget_bytes"] for r in compared["rows"]] == [
        entry["budget_bytes"] for entry in compared["device_memory"]
    ]
    assert compared["rows"][0]["budget_bytes"] == budget
    bound = json.loads(slackswap("bound", *shape, "--json").stdout)
    assert bound["budget_bytes"] == budget
    text = slackswap("sweep", *shape, "-p", "greedy").stdout
    assert "reserve leave a budget of" in text
    assert "moments" in text


def _gpt2():
    workload = load_workload("gpt2-xl", layers=2)
    return workload, build_step(workload, load_machine())


def test_a_device_that_is_too_small_is_a_proof():
    done = slackswap("plan", "gpt2-xl", "--layers", "2", "--device-memory", "2GiB", expected=3)
    assert "this is proven" in done.stderr
    assert "are missing" in done.stderr
    done = slackswap(
        "compare", "gpt2-xl", "--layers", "2", "--device-memory", "2GiB", "-p", "greedy", expected=3
    )
    assert "static memory and reserve exceed the device" in done.stdout
    assert "proven" in slackswap(
        "bound", "gpt2-xl", "--layers", "2", "--device-memory", "2GiB", expected=3
    ).stderr  # fmt: skip


@pytest.mark.parametrize(
    ("options", "fault"),
    [
        (["--device-memory", "5GiB", "--budget", "50%"], "give one of the two"),
        (["--reserve", "1GiB"], "--reserve needs --device-memory"),
        (["--static-memory", "adamw"], "--static-memory needs --device-memory"),
        (["--device-memory", "big"], "device memory 'big' is not understood"),
        (["--device-memory", "5GiB", "--reserve", "some"], "reserve 'some' is not understood"),
        (["--device-memory", "5GiB", "--static-memory", "adamx"], "unknown optimizer 'adamx'"),
    ],
)
def test_options_that_do_not_go_together(options, fault):
    done = slackswap("plan", "gpt2-xl", "--layers", "1", *options, expected=2)
    assert fault in done.stderr
    assert done.stdout == ""

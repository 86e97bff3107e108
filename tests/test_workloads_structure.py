"""The steps built from workloads are what a framework would run."""

from __future__ import annotations

import dataclasses

import networkx as nx
import pytest

from slackswap_opt.machine import load_machine
from slackswap_opt.step import Phase, ideal_step_ns, liveness
from slackswap_opt.workloads import build_step, load_workload, workload_names
from slackswap_opt.workloads.optimizer import parameter_groups

MACHINE = load_machine()
SMALL = {
    name: build_step(load_workload(name, layers=2, batch=1), MACHINE) for name in workload_names()
}


@pytest.fixture(params=workload_names())
def small(request):
    return SMALL[request.param]


def test_the_promised_workloads_are_there():
    assert set(workload_names()) >= {
        "bert-large", "bert-large-128", "bert-large-eager", "gpt2-xl", "gpt3-175b",
        "internlm-7b", "llama-7b", "llama3-405b", "llama3-70b", "mpt-7b", "tinyllama-1.1b",
    }  # fmt: skip


def test_it_is_a_dag_in_phase_order(small):
    assert nx.is_directed_acyclic_graph(small.graph)
    order = {Phase.FORWARD: 0, Phase.BACKWARD: 1, Phase.OPTIMIZER: 2}
    phases = [order[op.phase] for op in small.operations]
    assert phases == sorted(phases)
    assert set(phases) == {0, 1, 2}


def test_layer_labels_are_the_documented_ones(small):
    labels = list(dict.fromkeys(op.layer for op in small.operations))
    assert labels == ["embed", "layer.0", "layer.1", "head", "optimizer"]


def test_nothing_is_made_for_nobody(small):
    read = {value.tensor for op in small.operations for value in op.reads}
    for op in small.operations:
        for value in op.writes:
            assert value.tensor in read or value.tensor == "head.loss"


def test_every_forward_operation_has_time_and_a_layer(small):
    assert all(op.duration_ns > 0 and op.layer for op in small.operations)


def test_backward_runs_in_reverse(small):
    layers = [op.layer for op in small.operations if op.phase is Phase.BACKWARD]
    assert list(dict.fromkeys(layers)) == ["head", "layer.1", "layer.0", "embed"]


def test_each_backward_operation_has_a_forward_one(small):
    forward = {op.name for op in small.operations if op.phase is Phase.FORWARD}
    for op in small.operations:
        if op.phase is Phase.BACKWARD and op.name.endswith(".backward"):
            name = op.name.removesuffix(".backward")
            assert name in forward or name.endswith("all_reduce")


def test_only_collectives_never_run_again(small):
    for op in small.operations:
        collective = "all_reduce" in op.name or op.name == "head.loss.cross_entropy"
        assert op.recomputable or collective


@pytest.mark.parametrize("kernels", ["eager", "fused"])
@pytest.mark.parametrize("attention", ["stored", "fused"])
@pytest.mark.parametrize(
    "changes",
    [
        {"norm": "rmsnorm", "loss_positions": 100, "head_transform": True, "norm_position": "post"},
        {"projections": "separate", "kv_heads": 5, "dtype": "fp32", "dropout": 0.1},
        {"activation": "swiglu", "positions": "rotary", "projections": "separate", "head_dim": 32},
        {"norm": "rmsnorm", "dtype": "tf32", "embedding_norm": True, "tied_embeddings": False},
        {"degree": 5, "projections": "separate", "norm": "rmsnorm", "dropout": 0.2},
    ],
)
def test_options_go_together(kernels, attention, changes):
    workload = load_workload(
        "gpt2-xl", layers=2, batch=1, kernels=kernels, attention=attention, **changes
    )
    step = build_step(workload, MACHINE)
    test_it_is_a_dag_in_phase_order(step)
    test_nothing_is_made_for_nobody(step)
    test_backward_runs_in_reverse(step)
    test_each_backward_operation_has_a_forward_one(step)
    sizes = {tensor.name: tensor.size_bytes for tensor in step.tensors}
    for op in step.operations:
        for value in op.writes:
            source = value.tensor.split(".grad")[0]
            if source != value.tensor and source in sizes:
                assert sizes[value.tensor] == sizes[source], value.tensor


def test_identical_layers_cost_the_same():
    step = build_step(load_workload("gpt2-xl", layers=4), MACHINE)
    cost = {op.name: op.duration_ns for op in step.operations}
    for name, duration in cost.items():
        if name.startswith("layer.1."):
            assert cost[name.replace("layer.1.", "layer.2.")] == duration


def test_building_is_deterministic():
    workload = load_workload("llama-7b", layers=2)
    assert build_step(workload, MACHINE) == build_step(workload, MACHINE)


@pytest.mark.parametrize(
    ("name", "millions"),
    [
        ("bert-large", 335.1),
        ("gpt2-xl", 1557.6),
        ("llama-7b", 6738.4),
        ("mpt-7b", 6649.3),
        ("tinyllama-1.1b", 1100.0),
    ],
)
def test_parameters_are_the_published_counts(name, millions):
    assert sum(parameter_groups(load_workload(name)).values()) / 1e6 == pytest.approx(
        millions, abs=0.1
    )


@pytest.mark.parametrize(("name", "billions"), [("llama3-70b", 70.6), ("llama3-405b", 405.9)])
def test_shards_add_up_to_the_published_counts(name, billions):
    counts = parameter_groups(load_workload(name))
    assert 8 * sum(counts.values()) / 1e9 == pytest.approx(billions, rel=0.001)


def test_arithmetic_is_six_flops_per_parameter_and_token_plus_attention():
    workload = load_workload("llama-7b", kernels="fused", optimizer="none", batch=1)
    rate = 1e15
    device = dataclasses.replace(
        MACHINE.device, peak_flops_per_s={"bf16": rate, "fp32": 1e30}, attained_flops=1.0,
        memory_bytes_per_s=1e30, attained_bandwidth=1.0, launch_ns=0,
    )  # fmt: skip
    step = build_step(workload, dataclasses.replace(MACHINE, device=device))
    tokens, layers, width, sequence = 2048, 32, 4096, 2048
    matrices = layers * (4 * width**2 + 3 * width * 11008) + 32000 * width
    causal_attention = layers * 4 * tokens * sequence * width / 2
    flops = 6 * tokens * matrices + 3.5 * causal_attention
    assert ideal_step_ns(step) == pytest.approx(flops / rate * 1e9, rel=1e-5)


def test_grouped_queries_shrink_keys_and_values_only():
    step = SMALL["tinyllama-1.1b"]
    size = {tensor.name: tensor.size_bytes for tensor in step.tensors}
    assert size["layer.0.q"] == 8 * size["layer.0.k"] == 8 * size["layer.0.v"]
    assert size["layer.0.context"] == size["layer.0.q"]


def test_a_shard_holds_an_eighth_of_what_is_split():
    size = {t.name: t.size_bytes for t in SMALL["llama3-70b"].tensors}
    whole = build_step(load_workload("llama3-70b", layers=2, batch=1, degree=1), MACHINE)
    full = {t.name: t.size_bytes for t in whole.tensors}
    for name in ("layer.0.q", "layer.0.k", "layer.0.gate.out", "head.logits.out"):
        assert 8 * size[name] == full[name]
    for name in ("layer.0.h1", "layer.0.residual1", "layer.0.out"):
        assert size[name] == full[name]


def test_a_shard_sums_twice_per_layer_and_direction():
    for phase in (Phase.FORWARD, Phase.BACKWARD):
        sums = [
            op
            for op in SMALL["llama3-70b"].operations
            if op.phase is phase and op.layer == "layer.1" and "all_reduce" in op.name
        ]
        assert len(sums) == 2
        assert all(not op.recomputable for op in sums)


def test_dropout_is_random_with_its_state_saved():
    step = SMALL["bert-large-eager"]
    drops = [op for op in step.operations if op.random]
    assert len(drops) == 1 + 2 * 3
    assert all(op.recomputable for op in drops)
    assert any("generator's state" in note for note in step.notes)


def test_residual_gradients_are_summed():
    operations = {op.name: op for op in SMALL["gpt2-xl"].operations}
    total = operations["layer.1.residual1.accumulate.norm2"]
    assert {v.tensor for v in total.reads} == {
        "layer.1.out.grad.norm",
        "layer.1.residual1.grad.norm2",
    }


def test_accumulation_shares_the_optimizer_and_adds_gradients():
    once = build_step(load_workload("gpt2-xl", layers=1), MACHINE)
    often = build_step(load_workload("gpt2-xl", layers=1, accumulation=4), MACHINE)
    cost = {op.name: op.duration_ns for op in once.operations}
    for op in often.operations:
        if op.name == "optimizer.layer.0":
            assert op.duration_ns < cost[op.name] / 3
        elif op.name == "layer.0.fc1.backward":
            assert op.duration_ns > cost[op.name]


@pytest.mark.parametrize("name", ["bert-large", "gpt2-xl", "llama-7b"])
def test_the_published_workloads_fit_an_80_gib_device(name):
    step = build_step(load_workload(name), MACHINE)
    live = liveness(step)
    assert live.ideal_peak_bytes < MACHINE.device.memory_bytes
    assert step.operations[live.peak_operation].layer == "head"

"""Saved activations, counted tensor by tensor against published figures."""

from __future__ import annotations

import pytest

from slackswap_opt.machine import load_machine
from slackswap_opt.workloads import build_step, load_workload, saved_by_layer, saved_tensors
from slackswap_opt.workloads.saved import STATISTICS

MACHINE = load_machine()
GPT = {"attention": "stored", "dropout": 0.1, "dtype": "fp16", "layers": 3}


def layer_bytes(step, layer="layer.1", *, statistics=False):
    tensors = saved_by_layer(step)[layer]
    return sum(t.size_bytes for t in tensors if statistics or not t.statistic)


@pytest.mark.parametrize("kernels", ["eager", "fused"])
@pytest.mark.parametrize("batch", [1, 3])
def test_a_gpt_layer_saves_the_published_formula_to_the_byte(kernels, batch):
    step = build_step(load_workload("gpt2-xl", batch=batch, kernels=kernels, **GPT), MACHINE)
    s, h, a = 1024, 1600, 25
    assert layer_bytes(step) == s * batch * h * 34 + 5 * a * s * s * batch


def test_a_post_norm_layer_saves_the_same():
    step = build_step(load_workload("bert-large-eager", layers=3), MACHINE)
    s, b, h, a = 512, 32, 1024, 16
    assert layer_bytes(step) == s * b * h * 34 + 5 * a * s * s * b


def test_a_tensor_parallel_layer_saves_the_published_formula_to_the_byte():
    step = build_step(load_workload("gpt3-175b", layers=3), MACHINE)
    s, h, a, t = 2048, 12288, 96, 8
    assert layer_bytes(step) == 10 * s * h + 24 * s * h // t + 5 * a * s * s // t


def test_only_the_named_statistics_are_left_out():
    step = build_step(load_workload("gpt2-xl", **GPT), MACHINE)
    left_out = [t.name for t in saved_by_layer(step)["layer.1"] if t.statistic]
    assert left_out == [f"layer.1.norm{n}.{part}" for n in (1, 2) for part in ("mean", "rstd")]
    assert {"mean", "rstd", "logsumexp"} == STATISTICS


def test_fused_attention_saves_no_scores():
    changes = {**GPT, "attention": "fused"}
    step = build_step(load_workload("gpt2-xl", batch=1, **changes), MACHINE)
    assert layer_bytes(step) == 34 * 1024 * 1600


@pytest.mark.parametrize(
    ("name", "storages", "static", "gib"),
    [("gpt2-xl", 633, 3, 2.55), ("llama-7b", 552, 2, 11.69)],
)
def test_storages_match_what_an_eager_framework_saves(name, storages, static, gib):
    """The measured counts include indices, which are static here (docs/workloads.md)."""
    saved = saved_tensors(build_step(load_workload(name, batch=1), MACHINE))
    assert len(saved) == storages - static
    assert sum(t.size_bytes for t in saved) / 2**30 == pytest.approx(gib, abs=0.005)


def test_a_gpt_layer_saves_thirteen_storages():
    step = build_step(load_workload("gpt2-xl", layers=2, batch=1), MACHINE)
    names = [t.name for t in saved_by_layer(step)["layer.1"]]
    assert names == [
        "layer.0.out", "layer.1.h1", "layer.1.norm1.mean", "layer.1.norm1.rstd", "layer.1.qkv",
        "layer.1.context", "layer.1.attn.logsumexp", "layer.1.residual1", "layer.1.h2",
        "layer.1.norm2.mean", "layer.1.norm2.rstd", "layer.1.inner", "layer.1.activated",
    ]  # fmt: skip


def test_an_eager_llama_layer_saves_seventeen_storages_and_not_its_input():
    step = build_step(load_workload("llama-7b", layers=2, batch=1), MACHINE)
    names = [t.name for t in saved_by_layer(step)["layer.1"]]
    assert len(names) == 17
    assert "layer.0.out" not in names
    assert {"layer.1.norm1.float", "layer.1.norm1.normalized"} <= set(names)


def test_a_fused_llama_layer_saves_less():
    eager, fused = (
        build_step(load_workload("llama-7b", layers=2, batch=1, kernels=kernels), MACHINE)
        for kernels in ("eager", "fused")
    )
    assert layer_bytes(fused, statistics=True) < 0.8 * layer_bytes(eager, statistics=True)


@pytest.mark.parametrize("name", ["bert-large", "bert-large-eager", "gpt2-xl", "llama-7b"])
def test_every_saved_tensor_is_read_by_the_rule_that_needs_it(name):
    """What each kernel's backward reads, by the last part of the tensor's name."""
    readers = {
        "context": {"attn.backward", "attn.context.backward", "proj.backward"},
        "logsumexp": {"attn.backward", "cross_entropy.backward"},
        "qkv": {"attn.backward", "attn.scores.backward", "attn.context.backward"},
        "probabilities": {"softmax.backward"},
        "mask": {"dropout.backward", "1.backward", "2.backward", "_add.backward"},
        "inner": {"gelu.backward"},
        "activated": {"fc2.backward", "transform_norm.backward"},
        "h2": {"fc1.backward", "gate.backward", "up.backward"},
        "rotated": {"attn.backward"},
        "log_probabilities": {"log_softmax.backward"},
        "residual1": {"norm1.backward", "norm2.backward"},
    }
    for tensor in saved_tensors(build_step(load_workload(name, layers=2), MACHINE)):
        allowed = readers.get(tensor.name.rsplit(".", 1)[-1])
        if allowed is not None:
            for reader in tensor.readers:
                assert reader.endswith(tuple(allowed)), (tensor.name, reader)


def test_offloading_a_layers_input_frees_sequence_x_width_x_two():
    changes = {"layers": 8, "sequence": 8192, "batch": 1, "width": 1024, "heads": 16}
    step = build_step(load_workload("gpt2-xl", **changes), MACHINE)
    inputs = [t for t in step.tensors if t.name.startswith("layer.") and t.name.endswith(".out")]
    outputs = [t for t in inputs if t.name.count(".") == 2]
    assert sum(t.size_bytes for t in outputs) == 128 * 2**20

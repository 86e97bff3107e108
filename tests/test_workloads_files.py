"""Workload files: overrides, sources, and clear errors."""

from __future__ import annotations

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.resources import models_dir
from slackswap_opt.workloads import load_workload, with_changes, workload_names


def edited(tmp_path, old, new, name="gpt2-xl"):
    text = (models_dir() / f"{name}.toml").read_text(encoding="utf-8")
    assert old in text
    path = tmp_path / "mine.toml"
    path.write_text(text.replace(old, new), encoding="utf-8")
    return path


@pytest.mark.parametrize("name", workload_names())
def test_every_workload_says_where_its_figures_come_from(name):
    workload = load_workload(name)
    assert workload.name == name
    assert "architecture" in workload.sources
    assert any(key.startswith("training") for key in workload.sources)
    if workload.tensor_parallel.degree > 1:
        assert "tensor_parallel.all_reduce_bytes_per_s" in workload.sources


def test_shapes_can_be_overridden():
    workload = load_workload("llama-7b", batch=8, sequence=4096, layers=2, kernels="fused")
    assert (workload.training.batch, workload.training.sequence) == (8, 4096)
    assert workload.architecture.layers == 2
    assert workload.training.kernels == "fused"
    assert workload.name == "llama-7b"


def test_a_users_file_is_named_after_itself(tmp_path):
    path = edited(tmp_path, "layers = 48", "layers = 2")
    assert load_workload(path).name == "mine"
    assert load_workload(str(path)).architecture.layers == 2


def test_an_unknown_name_suggests_and_lists():
    with pytest.raises(InputError, match=r"did you mean 'gpt2-xl'\?.*llama-7b"):
        load_workload("gpt2_xl")


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("layers = 48", "layers = 0", "architecture.layers: expected greater than or equal to 1"),
        ("layers = 48", "layer = 48", "did you mean 'layers'"),
        ("layers = 48", "", "architecture.layers: is missing"),
        ("heads = 25", "heads = 24", "width is 1600, not a multiple of heads (24)"),
        ("heads = 25", "heads = 25\nkv_heads = 3", "expected a multiple of kv_heads"),
        ('"gelu"', '"relu"', "architecture.activation: expected 'gelu' or 'swiglu'"),
        ('positions = "learned"', 'positions = "rotary"', "use projections = 'separate'"),
        ("batch = 8", "batch = 8\nloss_positions = 4096", "above the sequence length (1024)"),
        ("[training]", "[tensor_parallel]\ndegree = 7\n[training]", "expected a multiple of"),
        ("batch = 8", "batch = ", "is not valid TOML"),
    ],
)
def test_faults_name_file_field_and_expectation(tmp_path, old, new, message):
    path = edited(tmp_path, old, new)
    with pytest.raises(InputError) as caught:
        load_workload(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_changes_are_validated():
    workload = load_workload("gpt2-xl")
    with pytest.raises(InputError, match=r"training\.batch: expected"):
        with_changes(workload, batch=0)
    with pytest.raises(InputError, match=r"colour: is not a field of a workload; use one of"):
        with_changes(workload, colour="red")


def test_post_norm_is_refused_with_tensor_parallelism():
    with pytest.raises(InputError, match=r"norm_position 'post'"):
        load_workload("bert-large", degree=2)

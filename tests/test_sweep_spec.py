"""Specifications of sweeps: the grid they span, and every fault at once."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step
from slackswap_opt.machine import load_machine
from slackswap_opt.planners import PLANNERS
from slackswap_opt.study import chains_of, read_spec, spec_of
from slackswap_opt.study.spec import DEFAULT_BUDGETS, is_spec
from slackswap_opt.workloads import load_workload
from tests.sweeps import TINY


def test_the_grid_is_the_product_of_all_axes_in_the_order_written():
    chains = chains_of(
        spec_of(
            {
                "workloads": ["gpt2-xl", "llama-7b"],
                "machines": ["h100-pcie5", "a100-80gb-pcie4"],
                "batch": [4, 2],
                "layers": [3],
                "link_gb_per_s": [12, 50.0],
                "attained_flops": [0.5],
            }
        )
    )
    points = [c.point for c in chains]
    assert [(p.workload, p.machine, p.batch, p.link_gb_per_s) for p in points] == [
        (workload, machine, batch, rate)
        for workload in ("gpt2-xl", "llama-7b")
        for machine in ("h100-pcie5", "a100-80gb-pcie4")
        for batch in (4, 2)
        for rate in (12.0, 50.0)
    ]
    assert {(p.layers, p.attained_flops) for p in points} == {(3, 0.5)}
    assert [p.sequence for p in points[:: len(points) // 2]] == [1024, 2048]
    for chain in chains:
        assert chain.source.training.batch == chain.point.batch
        assert chain.machine.device.attained_flops == 0.5


def test_what_is_left_out_is_as_the_files_say():
    (chain,) = chains_of(spec_of({"workloads": ["gpt2-xl"]}))
    machine = load_machine()
    assert chain.source == load_workload("gpt2-xl")
    assert chain.machine == machine
    assert chain.planners == tuple(PLANNERS)
    assert chain.budgets.texts == DEFAULT_BUDGETS
    assert chain.point.link_gb_per_s == machine.link.d2h_bytes_per_s / 1e9


def test_a_link_rate_keeps_the_ratios_of_the_machine():
    (chain,) = chains_of(spec_of({"workloads": ["gpt2-xl"], "link_gb_per_s": [5]}))
    ours, theirs = chain.machine.link, load_machine().link
    assert ours.d2h_bytes_per_s == 5e9
    for name in ("h2d_bytes_per_s", "d2h_duplex_bytes_per_s", "h2d_duplex_bytes_per_s"):
        assert getattr(ours, name) == pytest.approx(getattr(theirs, name) / 5)


def test_every_fault_is_reported_with_its_field():
    with pytest.raises(InputError) as caught:
        spec_of(
            {
                "workloads": ["gpt2-xl", "lama-7b", "none.json"],
                "machines": ["a100-80gb", "h100-pcie5", "h100-pcie5"],
                "budgets": ["half"],
                "planners": ["gredy"],
                "batch": [0],
                "attained_flops": [1.5],
                "link_gb_per_s": [-1.0],
                "gap": "100%",
                "time_limit": 0.0,
                "solver": "gurobi",
                "static_memory": "adamx,zero=9",
                "reserve": "some",
                "bugdets": ["50%"],
            },
            "grid.toml",
        )
    text = str(caught.value)
    for fault in (
        "workloads.1", "llama-7b", "workloads.2", "no such file", "machines.0", "budgets.0",
        "planners.0", "greedy", "batch.0", "attained_flops.0", "link_gb_per_s.0", "gap", "0.1%",
        "time_limit", "solver", "static_memory", "adamw", "zero=9", "reserve", "bugdets",
        "did you mean budgets"[:12],
    ):  # fmt: skip
        assert fault in text, fault
    assert all(line.startswith("grid.toml: ") for line in text.splitlines())


@pytest.mark.parametrize(
    ("fields", "fault"),
    [
        ({}, "workloads"),
        ({"workloads": []}, "workloads"),
        ({"workloads": ["gpt2-xl", "gpt2-xl"]}, "more than once"),
        ({"workloads": ["gpt2-xl"], "budgets": ["50%"], "device_memory": ["5GiB"]}, "one of the"),
        ({"workloads": [TINY], "batch": [2]}, "one fixed shape"),
        ({"workloads": ["gpt2-xl"], "schema": "slackswap.sweep-spec/2"}, "schema"),
    ],
)
def test_what_does_not_go_together(fields, fault):
    with pytest.raises(InputError, match=fault):
        spec_of(fields)


def test_a_combination_that_makes_no_workload_is_a_chain_with_a_fault():
    chains = chains_of(spec_of({"workloads": ["bert-large"], "sequence": [64, 512]}))
    assert "loss_positions" in chains[0].fault
    assert chains[0].point.sequence == 64
    assert chains[1].fault == ""


def test_files_are_found_next_to_the_specification(tmp_path, monkeypatch):
    (tmp_path / "steps").mkdir()
    (tmp_path / "steps" / "mine.json").write_bytes(Path(TINY).read_bytes())
    path = tmp_path / "grid.toml"
    path.write_text('workloads = ["steps/mine.json"]\n', encoding="utf-8")
    (chain,) = chains_of(read_spec(path))
    assert chain.source == read_step(TINY)
    assert is_spec(path)


def test_a_specification_is_told_from_a_workload(tmp_path):
    workload, broken = tmp_path / "w.toml", tmp_path / "broken.toml"
    workload.write_text('description = "x"\n[architecture]\nlayers = 2\n', encoding="utf-8")
    broken.write_text("workloads = [", encoding="utf-8")
    assert not is_spec(workload)
    assert not is_spec(broken)
    assert not is_spec("gpt2-xl")
    with pytest.raises(InputError, match="not valid TOML"):
        read_spec(broken)


def test_the_key_of_a_chain_changes_with_all_that_results_depend_on(monkeypatch):
    def key(**fields):
        return chains_of(spec_of({"workloads": ["gpt2-xl"], "layers": [2], **fields}))[0].key

    keys = [
        key(),
        key(layers=[3]),
        key(machines=["h100-pcie5"]),
        key(budgets=["50%"]),
        key(device_memory=["40GiB"]),
        key(device_memory=["40GiB"], reserve="1GiB"),
        key(planners=["greedy"]),
        key(gap="1%"),
        key(link_gb_per_s=[10.0]),
        key(attained_flops=[0.5]),
    ]
    assert len(set(keys)) == len(keys)
    assert key() == keys[0]
    monkeypatch.setattr("slackswap_opt.study.chain.package_digest", lambda: "another version")
    assert key() != keys[0]


def test_models_without_durations_are_priced_on_each_machine(tmp_path: Path):
    pytest.importorskip("onnx")
    from tests.test_formats_onnx import model, n

    (tmp_path / "m.onnx").write_bytes(
        model([n("MatMul", "x w", "y")], {"x": ["batch", 2**10]}, {"w": [2**10, 2**10]})
    )
    (tmp_path / "grid.toml").write_text(
        'workloads = ["m.onnx@batch=8"]\nmachines = ["a100-80gb-pcie4", "v100-pcie3"]\n'
    )
    chains = chains_of(read_spec(tmp_path / "grid.toml"))
    assert [chain.point.machine for chain in chains] == ["a100-80gb-pcie4", "v100-pcie3"]
    for chain in chains:
        expected = read_step(tmp_path / "m.onnx", machine=chain.machine, batch=8)
        assert chain.source.operations == expected.operations
    assert chains[0].source.operations[0].duration_ns < chains[1].source.operations[0].duration_ns


def test_what_a_model_leaves_open_must_be_said(tmp_path: Path):
    pytest.importorskip("onnx")
    from tests.test_formats_onnx import model, n

    path = tmp_path / "m.onnx"
    path.write_bytes(model([n("Relu", "x", "y")], {"x": ["rows", 4]}))
    with pytest.raises(InputError, match="rows"):
        spec_of({"workloads": [str(path)]})
    with pytest.raises(InputError, match="rows=many"):
        spec_of({"workloads": ["m.onnx@rows=many"]}, folder=tmp_path)

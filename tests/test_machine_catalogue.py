"""The machine catalogue: complete, sourced, and clear about what is wrong with a file."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.machine import DEFAULT_MACHINE, load_machine, machine_names
from slackswap_opt.machine.catalogue import machines_dir, unsourced_figures

GOOD = """
description = "mine"
[device]
memory_bytes = 1_000_000
memory_bytes_per_s = 1e12
attained_flops = 0.5
attained_bandwidth = 0.8
launch_ns = 1000
[device.peak_flops_per_s]
fp32 = 1e13
[link]
d2h_bytes_per_s = 25e9
h2d_bytes_per_s = 25e9
d2h_duplex_bytes_per_s = 24e9
h2d_duplex_bytes_per_s = 12e9
"""


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "mine.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_catalogue_has_the_promised_machines():
    assert set(machine_names()) >= {
        "a100-40gb-pcie4",
        "a100-80gb-pcie4",
        "gh200-nvlink-c2c",
        "h100-pcie5",
        "h200-pcie5",
        "plain-a100",
        "rtx4090-pcie4",
        "v100-pcie3",
    }
    assert DEFAULT_MACHINE in machine_names()


@pytest.mark.parametrize("name", machine_names())
def test_every_machine_loads_with_a_source_for_every_figure(name):
    machine = load_machine(name)
    assert machine.name == name
    assert set(machine.device.peak_flops_per_s) == {"bf16", "fp16", "tf32", "fp32"}
    assert machine.link.rates().slowest() > 0
    assert unsourced_figures(machines_dir() / f"{name}.toml") == ()
    assert all(len(source) > 10 for source in machine.sources.values())


def test_the_default_has_the_measured_asymmetric_duplex_rates():
    rates = load_machine().link.rates()
    assert (rates.d2h, rates.h2d) == (25_000, 25_000)
    assert (rates.d2h_duplex, rates.h2d_duplex) == (24_000, 12_000)


def test_the_plain_machine_is_the_published_convention():
    plain = load_machine("plain-a100")
    assert plain.device.peak_flops_per_s["bf16"] * plain.device.attained_flops == 312e12 * 0.55
    assert plain.device.memory_bytes_per_s * plain.device.attained_bandwidth == 1.555e12 * 0.8
    assert plain.device.launch_ns == 4000
    rates = plain.link.rates()
    assert rates.d2h == rates.h2d == rates.d2h_duplex == rates.h2d_duplex == 25_000


def test_fractions_can_be_replaced():
    machine = load_machine()
    slower = dataclasses.replace(
        machine, device=dataclasses.replace(machine.device, attained_flops=0.3)
    )
    assert slower.device.attained_flops == 0.3
    assert machine.device.attained_flops > 0.3


def test_an_unknown_name_suggests_and_lists():
    with pytest.raises(InputError, match=r"did you mean 'a100-80gb-pcie4'\?.*plain-a100"):
        load_machine("a100-80gb-pcie")


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match=r"nowhere\.toml: no such machine file"):
        load_machine(tmp_path / "nowhere.toml")


def test_a_users_file_loads_without_sources(tmp_path):
    machine = load_machine(written(tmp_path, GOOD))
    assert machine.device.peak_flops_per_s == {"fp32": 1e13}
    assert machine.link.latency_ns == 0
    assert machine.host.pinned_bytes is None


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("launch_ns = 1000", "", "device.launch_ns: is missing"),
        ("launch_ns = 1000", "launch_ms = 1", "did you mean 'launch_ns'"),
        ("launch_ns = 1000", 'launch_ns = "1us"', "device.launch_ns: expected a valid integer"),
        ("attained_flops = 0.5", "attained_flops = 1.5", "less than or equal to 1, got 1.5"),
        ("fp32 = 1e13", "fp32 = nan", "device.peak_flops_per_s.fp32: expected"),
        ("d2h_duplex_bytes_per_s = 24e9", "d2h_duplex_bytes_per_s = 26e9", "never faster"),
        ("[link]", "[link", "is not valid TOML"),
    ],
)
def test_faults_name_file_field_and_remedy(tmp_path, old, new, message):
    path = written(tmp_path, GOOD.replace(old, new))
    with pytest.raises(InputError) as caught:
        load_machine(path)
    assert str(caught.value).startswith(str(path))
    assert message in str(caught.value)


def test_every_fault_is_reported_at_once(tmp_path):
    text = GOOD.replace("launch_ns = 1000", "").replace("memory_bytes = 1_000_000", "")
    with pytest.raises(InputError) as caught:
        load_machine(written(tmp_path, text))
    assert len(caught.value.faults) == 2

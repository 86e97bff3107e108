"""`FILE@NAME=VALUE,...`: what a file leaves open is said behind its name."""

from __future__ import annotations

from pathlib import Path

import pytest

from slackswap_opt.cli.inputs import Overrides, kind_of, step_of
from slackswap_opt.errors import InputError
from slackswap_opt.formats.step_files import StepFile, step_file
from slackswap_opt.machine import load_machine
from tests.test_formats_kineto import trace
from tests.test_formats_onnx import model, n

MACHINE = load_machine("a100-80gb-pcie4")


def test_settings_are_taken_off_the_name() -> None:
    assert step_file("m.onnx") == StepFile("m.onnx")
    assert step_file("m.onnx", 8) == StepFile("m.onnx", 8)
    assert step_file("m.onnx@batch=4,tokens=16") == StepFile("m.onnx", 4, {"tokens": 16})
    assert step_file("t.json@profiler-step=7") == StepFile("t.json", profiler_step=7)
    assert step_file("a@b/m.onnx@batch=2") == StepFile("a@b/m.onnx", 2)
    assert step_file("user@host.json") == StepFile("user@host.json")


def test_a_file_of_that_very_name_comes_first(tmp_path: Path) -> None:
    path = tmp_path / "m@batch=4"
    path.touch()
    assert step_file(str(path)) == StepFile(str(path))


@pytest.mark.parametrize(
    ("target", "batch", "expected"),
    [
        ("m.onnx@batch=many", None, "'batch=many' is not understood"),
        ("m.onnx@batch=-1", None, "'batch=-1' is not understood"),
        ("m.onnx@batch=9999999999999", None, "a whole number up to"),
        ("m.onnx@batch=1,batch=2", None, "batch is given twice"),
        ("m.onnx@batch=1", 2, "batch is given twice"),
    ],
)
def test_settings_that_make_no_sense_are_refused(
    target: str, batch: int | None, expected: str
) -> None:
    with pytest.raises(InputError, match=expected):
        step_file(target, batch)


def test_models_are_priced_on_the_machine_of_the_command(tmp_path: Path) -> None:
    path = tmp_path / "m.onnx"
    path.write_bytes(model([n("MatMul", "a w", "y")], {"a": ["rows", 256]}, {"w": [256, 256]}))
    target = f"{path}@rows=1024"
    fast, slow = (
        step_of(target, load_machine(name), Overrides()) for name in ("h100-pcie5", "v100-pcie3")
    )
    assert fast.operations[0].duration_ns < slow.operations[0].duration_ns
    assert step_of(str(path), MACHINE, Overrides(batch=1024)).tensors[0].size_bytes == 2**20
    assert kind_of(target) == "ONNX model"
    with pytest.raises(InputError, match="--layers: a file holds one fixed step"):
        step_of(target, MACHINE, Overrides(layers=2))


def test_a_profiler_step_is_chosen_behind_the_name(tmp_path: Path) -> None:
    path = tmp_path / "trace.json"
    path.write_bytes(trace().content())
    step = step_of(f"{path}@profiler-step=3", MACHINE, Overrides())
    assert step.notes[0].startswith("ProfilerStep#3")
    with pytest.raises(InputError, match="no ProfilerStep#4"):
        step_of(f"{path}@profiler-step=4", MACHINE, Overrides())
    with pytest.raises(InputError, match="tokens=4: a file holds one fixed step"):
        step_of(f"{path}@tokens=4", MACHINE, Overrides())

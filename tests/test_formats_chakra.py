"""Execution traces: storages, streams, phases, dangling references and cycles."""

from __future__ import annotations

import json
import os
import random
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import chakra, read_step
from slackswap_opt.step import Phase, TrainingStep, liveness
from tests.fuzzing import batches_of, fuzz
from tests.hand import faults_in

GRAPHS = Path(os.environ.get("SLACKSWAP_DATA", "")) / "graphs"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
Node = dict[str, Any]
FORWARD, BACKWARD = 0, 1


def tensor(storage: int, elements: int, offset: int = 0, device: str = "cuda:0") -> list[Any]:
    """A tensor of 4-byte elements in a storage; its own number is always another."""
    return [storage * 1000 + offset, storage, offset, elements, 4, device]


def values(*tensors: list[Any]) -> Node:
    return {
        "values": list(tensors),
        "shapes": [[t[3]] for t in tensors],
        "types": ["Tensor(float)"] * len(tensors),
    }


def operator(
    number: int, name: str, reads: list[list[Any]], writes: list[list[Any]], parent: int = 2,
    scope: int = FORWARD,
) -> Node:  # fmt: skip
    return {
        "id": number, "name": name, "ctrl_deps": parent, "inputs": values(*reads),
        "outputs": values(*writes), "attrs": [{"name": "scope", "type": "uint64", "value": scope}],
    }  # fmt: skip


def kernel(owner: Node, number: int, start: float, microseconds: float, stream: int = 7) -> Node:
    """A kernel as the linker adds it: a copy of its operator."""
    return {
        **owner, "id": number, "name": f"kernel{number}", "ctrl_deps": owner["id"],
        "cat": "kernel", "ph": "X", "ts": start, "exclusive_dur": microseconds, "stream": stream,
    }  # fmt: skip


ROOT = [
    {"id": 1, "name": "[pytorch|profiler|execution_trace|process]", "ctrl_deps": 1},
    {"id": 2, "name": "[pytorch|profiler|execution_trace|thread]", "ctrl_deps": 1},
]


def training_step() -> list[Node]:
    """conv -> relu_ -> view -> linear; back; optimizer. Storage 30 is used for two things."""
    conv = operator(10, "aten::conv2d", [tensor(1, 8), tensor(2, 4)], [tensor(30, 16)])
    relu = operator(11, "aten::relu_", [tensor(30, 16)], [tensor(30, 16)])
    view = operator(12, "aten::view", [tensor(30, 16)], [tensor(30, 16)])
    linear = operator(13, "aten::linear", [tensor(30, 16), tensor(3, 4)], [tensor(31, 4)])
    engine = operator(14, "autograd::engine::evaluate_function: AddmmBackward0", [], [])
    product = operator(15, "aten::mm", [tensor(31, 4), tensor(3, 4)], [tensor(32, 16)], 14)
    weight = operator(16, "aten::mm", [tensor(31, 4), tensor(30, 16)], [tensor(40, 4)], 14)
    mask = operator(17, "aten::threshold_backward", [tensor(32, 16), tensor(30, 16)],
                    [tensor(33, 16)], scope=BACKWARD)  # fmt: skip
    back = operator(18, "aten::convolution_backward", [tensor(33, 16), tensor(1, 8)],
                    [tensor(41, 4), tensor(30, 2)], scope=BACKWARD)  # fmt: skip
    update = operator(20, "aten::add_", [tensor(2, 4), tensor(41, 4)], [tensor(2, 4)], 19)
    update2 = operator(21, "aten::add_", [tensor(3, 4), tensor(40, 4)], [tensor(3, 4)], 19)
    optimizer = operator(19, "Optimizer.step#SGD.step", [], [])
    owners = [conv, relu, linear, product, weight, mask, back, update, update2]
    kernels = [
        kernel(owner, 100 + place, 1000.0 + 10 * place, 5.0 + place)
        for place, owner in enumerate(owners)
    ]
    kernels.append(kernel(conv, 200, 1001.0, 2.5))  # a second kernel of the first operator
    copy = operator(9, "aten::to", [tensor(50, 8, device="cpu")], [tensor(1, 8)])
    kernels.append({**kernel(copy, 201, 990.0, 3.0), "name": "Memcpy HtoD (Pinned -> Device)"})
    kernels.append(kernel(weight, 202, 1030.0, 6.0, stream=20))
    return [*ROOT, copy, conv, relu, view, linear, engine, product, weight, mask, back,
            optimizer, update, update2, *reversed(kernels)]  # fmt: skip


def content(nodes: Any, **more: Any) -> bytes:
    return json.dumps({"schema": "1.1.1-chakra.0.0.4", "pid": 1, "nodes": nodes, **more}).encode()


def read(nodes: Any) -> TrainingStep:
    return chakra.read(content(nodes), "trace")


def faults(nodes: Any) -> tuple[str, ...]:
    return faults_in(read, nodes)


def program(step: TrainingStep) -> list[str]:
    return [
        f"{op.phase.value[0]} {op.name} {op.duration_ns / 1000:g}: "
        f"{' '.join(map(str, op.reads))} -> {' '.join(map(str, op.writes))}".strip()
        for op in step.operations
    ]


def test_kernels_run_in_the_order_of_the_stream_on_tensors_grouped_by_storage() -> None:
    step = read(training_step())
    assert program(step) == [
        "f conv2d 7.5: storage1 storage2 -> storage30",
        "f relu_ 6: storage30 -> storage30@1",
        "f linear 7: storage30@1 storage3 -> storage31",
        "b mm 8: storage31 storage3 -> storage32",
        "b mm.2 9: storage31 storage30@1 ->",  # the gradient of a parameter is static
        "b threshold_backward 10: storage32 storage30@1 -> storage33",
        "b convolution_backward 11: storage33 storage1 -> storage30.2",
        "o add_ 12: storage2 storage41 ->",
        "o add_.2 13: storage3 storage40 ->",
    ]
    sizes = {t.name: (t.size_bytes, t.static) for t in step.tensors}
    assert sizes["storage30"] == (64, False)
    assert sizes["storage30.2"] == (8, False)
    assert sizes["storage1"] == (32, True)
    assert sizes["storage40"] == (16, True)
    live = liveness(step)
    assert [t.name for t, s in zip(step.tensors, live.saved, strict=True) if s] == [
        "storage30", "storage31"
    ]  # fmt: skip
    notes = " ".join(step.notes)
    assert "1 numbers were used again for new memory" in notes
    assert "Copies between host and device (0.00 ms)" in notes
    assert "Kernels on other streams (0.01 ms)" in notes


def test_many_names_of_one_storage_are_one_tensor_of_its_extent() -> None:
    nodes = training_step()
    for node in nodes:
        if node["id"] in (13, 102):
            node["inputs"] = values(tensor(30, 4, 12), tensor(30, 4, 0), tensor(30, 20, 12),
                                    tensor(3, 4))  # fmt: skip
    step = read(nodes)
    assert next(t for t in step.tensors if t.name == "storage30").size_bytes == 128
    assert program(step)[2].startswith("f linear 7: storage30@1 storage3 ->")


def test_memory_that_is_allocated_first_and_filled_later_is_written_there() -> None:
    nodes = training_step()
    empty = operator(5, "aten::empty", [], [tensor(60, 8)])
    fill = operator(6, "aten::fill_", [tensor(60, 8)], [tensor(60, 8)])
    nodes += [empty, fill, kernel(fill, 300, 900.0, 1.0)]
    step = read(nodes)
    assert program(step)[0] == "f fill_ 1:  -> storage60"


def test_lists_of_tensors_and_the_older_spelling_are_read() -> None:
    nodes = training_step()
    for node in nodes:
        if node["id"] in (13, 102):
            node["inputs"] = {
                "values": [[tensor(30, 16), tensor(3, 4)], 5, "x"],
                "shapes": [],
                "types": ["GenericList[Tensor(float),Tensor(float)]", "Int", "String"],
            }
        if node["id"] in (11, 101):
            for key in ("inputs", "outputs"):
                node[f"{key[:-1]}_types"] = node[key]["types"]
                node[key] = node[key]["values"]
    assert program(read(nodes)) == program(read(training_step()))


def test_a_trace_without_kernels_stands_by_the_operators_of_the_host() -> None:
    nodes = [
        {**node, "exclusive_dur": 4} for node in training_step() if "cat" not in node
    ]  # fmt: skip
    step = read(nodes)
    assert [op.phase for op in step.operations].count(Phase.BACKWARD) == 4
    assert any("no kernels of a device" in note for note in step.notes)


def test_recognized_by_content(tmp_path: Path) -> None:
    path = tmp_path / "trace.txt"
    path.write_bytes(content(training_step()))
    assert read_step(path).name == "trace"
    assert not chakra.recognizes(b'{"nodes": [{"id": 1}], "links": []}')
    assert not chakra.recognizes(b"graph {")


def test_a_cycle_is_printed() -> None:
    nodes = training_step()
    by_id = {node["id"]: node for node in nodes}
    by_id[10]["ctrl_deps"] = 12
    by_id[11]["ctrl_deps"] = 10
    by_id[12]["data_deps"] = [11]
    (fault,) = faults(nodes)
    assert fault == (
        'the nodes form a cycle: 12 ("aten::view") -> 10 ("aten::conv2d") -> 11 ("aten::relu_") '
        '-> 12 ("aten::view"); remove one dependency'
    )


def test_dangling_references_are_all_named() -> None:
    nodes = training_step()
    by_id = {node["id"]: node for node in nodes}
    by_id[10]["ctrl_deps"] = [77, 5_000, 2]
    by_id[11]["data_deps"] = ["9999"]
    assert faults(nodes) == (
        'node 10 ("aten::conv2d"): its control dependencies name 77, 5000, which no node defines; '
        "the trace is cut out of a larger one, export all of it",
        'node 11 ("aten::relu_"): its data dependencies name 9999, which no node defines; the '
        "trace is cut out of a larger one, export all of it",
    )


@needs_data
def test_the_small_chakra_file_is_refused_for_its_dangling_references() -> None:
    with pytest.raises(InputError) as error:
        read_step(GRAPHS / "chakra_small.json")
    found = "\n".join(error.value.faults)
    assert len(error.value.faults) == 8
    for unknown in (3, 429, 434):
        assert f"control dependencies name {unknown}, which no node defines" in found
    assert "no node has tensors with storages" in found


def without(key: str) -> list[Node]:
    return [{k: v for k, v in node.items() if k != key} for node in training_step()]


def with_change(number: int, **fields: Any) -> list[Node]:
    return [{**node, **fields} if node["id"] == number else node for node in training_step()]


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([], "expected a list of nodes with at least one"),
        ("x", 'nodes is "x", expected a list'),
        ([5], "nodes[0] is 5, expected an object"),
        (without("exclusive_dur"), "no node has a duration"),
        ([{k: v for k, v in node.items() if k not in ("inputs", "outputs")}
          for node in training_step()], "no node has tensors with storages"),
        (with_change(10, id=11), "the id is that of another node too"),
        (with_change(10, id=-3), "id is -3"),
        (with_change(10, name=None), "expected a whole number and text"),
        (with_change(10, ctrl_deps="first"), "expected ids of nodes"),
        (with_change(100, exclusive_dur=-1), "exclusive_dur is -1, expected microseconds"),
        (with_change(100, exclusive_dur=float("inf")), "exclusive_dur is Infinity, expected"),
        (with_change(100, exclusive_dur="long"), 'exclusive_dur is "long"'),
        (with_change(10, inputs=values(tensor(1, -8))), "expected [tensor, storage, offset"),
        (with_change(10, inputs=values(tensor(1, 2**60))), "too large"),
        ([node for node in training_step() if node["id"] not in (14, 15, 16, 17, 18)
          and not 103 <= node["id"] <= 106 and node["id"] != 202], "no backward operators"),
    ],
)  # fmt: skip
def test_faults_say_what_is_wrong(nodes: Any, expected: str) -> None:
    assert any(expected in fault for fault in faults(nodes))


VALUES: list[Any] = [None, -1, 0, 1, 2.5, 2**70, "x", "12", [], [11], [[1, 2, 3, 4, 4]], {}, True]
SOUND = content(training_step()).decode()
SMALL = content(
    [
        node
        for node in training_step()
        if {1, 2, 10, 11, 13, 14, 15, 18}
        & {node["id"], node["ctrl_deps"] if node["id"] > 99 else 0}
    ]
).decode()
"""Without the optimizer, a view, copies and some of the backward phase: quicker to read."""


def damaged_trace(seed: int) -> bytes:
    """A sound trace, changed here and there."""
    rng = random.Random(seed)
    document = json.loads(SOUND if rng.random() < 0.2 else SMALL)
    for _ in range(rng.randint(1, 5)):
        node = rng.choice(document["nodes"])
        target: Any = node
        if rng.random() < 0.4 and isinstance(node.get("inputs"), dict):
            target = rng.choice([node["inputs"], node.get("outputs")])
        if not isinstance(target, dict) or not target:
            continue
        key = rng.choice(list(target))
        what = rng.random()
        if what < 0.2:
            del target[key]
        elif what < 0.5:
            target[key] = rng.choice(VALUES)
        elif what < 0.7 and "ctrl_deps" in node:
            node["ctrl_deps"] = rng.randint(1, 22)
        elif what < 0.9:
            storage = tensor(rng.randint(1, 60), rng.randint(0, 99), rng.randint(0, 9))
            node[rng.choice(["inputs", "outputs"])] = values(storage)
        else:
            document["nodes"].remove(node)
    text = json.dumps(document)
    if rng.random() < 0.05:
        text = text[: rng.randrange(len(text))]
    return text.encode()


@batches_of(200)
def test_any_trace_is_read_or_refused(seed: int) -> None:
    fuzz(damaged_trace, partial(chakra.read, name="trace"), seed)


@pytest.mark.slow
@batches_of(10_000)
def test_ten_thousand_traces_are_read_or_refused(seed: int) -> None:
    fuzz(damaged_trace, partial(chakra.read, name="trace"), seed)

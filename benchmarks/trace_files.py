"""Traces and models of any size, to measure how fast they are read."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SHAPE = [32, 64, 56, 56]
"""Of every activation."""


def write_kineto(count: int, path: Path) -> None:
    """A profiler step of a chain with as many operations, half of them backward."""
    layers = count // 2
    events: list[dict[str, Any]] = []
    for n in range(layers):
        events += _call(f"aten::tanh{n % 10}", "1", 10 * n, n, n)
    for n in range(layers):
        events += _call("TanhBackward0", "2", 10 * (layers + n), layers - 1 - n, layers + n)
    events.append(
        {"ph": "X", "cat": "user_annotation", "name": "ProfilerStep#1", "pid": 1, "tid": "1",
         "ts": 0, "dur": 10 * count + 10, "args": {}}
    )  # fmt: skip
    path.write_text(json.dumps({"schemaVersion": 1, "traceEvents": events}))


def _call(
    name: str, thread: str, start: int, sequence: int, correlation: int
) -> Iterator[dict[str, Any]]:
    """A call, the launch in it and its kernel."""
    yield {
        "ph": "X", "cat": "cpu_op", "name": name, "pid": 1, "tid": thread, "ts": start, "dur": 8,
        "args": {"External id": correlation, "Sequence number": sequence,
                 "Input Dims": [SHAPE], "Input type": ["float"]},
    }  # fmt: skip
    yield {
        "ph": "X", "cat": "cuda_runtime", "name": "cudaLaunchKernel", "pid": 1, "tid": thread,
        "ts": start + 2, "dur": 3, "args": {"correlation": correlation},
    }  # fmt: skip
    yield {
        "ph": "X", "cat": "kernel", "name": "elementwise_kernel", "pid": 0, "tid": 7,
        "ts": start + 5, "dur": 6,
        "args": {"correlation": correlation, "device": 0, "stream": 7, "grid": [50, 1, 1]},
    }  # fmt: skip


def write_chakra(count: int, path: Path) -> None:
    """An execution trace with as many operators and a kernel for each."""
    layers = count // 2
    nodes = [_operator(n, "aten::tanh", [n + 1], n + 2, 0) for n in range(layers)]
    for n in range(layers):
        reads = [layers - n + 1, count + n]
        nodes.append(_operator(layers + n, "TanhBackward0", reads, count + n + 1, 1))
    kernels = [
        {**node, "id": count + node["id"], "name": "kernel", "ctrl_deps": node["id"],
         "cat": "kernel", "ts": 10.0 * n, "exclusive_dur": 6, "stream": 7}
        for n, node in enumerate(nodes)
    ]  # fmt: skip
    path.write_text(json.dumps({"schema": "1.1.1-chakra.0.0.4", "nodes": nodes + kernels}))


def _operator(number: int, name: str, reads: list[int], write: int, scope: int) -> dict[str, Any]:
    def tensors(storages: list[int]) -> dict[str, Any]:
        return {
            "values": [[storage, storage, 0, 2**20, 4, "cuda:0"] for storage in storages],
            "types": ["Tensor(float)"] * len(storages),
        }

    return {
        "id": number, "name": name, "ctrl_deps": None, "inputs": tensors(reads),
        "outputs": tensors([write]), "attrs": [{"name": "scope", "type": "uint64", "value": scope}],
    }  # fmt: skip


def write_onnx(count: int, path: Path) -> None:
    """A model of as many operations with its backward phase, in residual blocks."""
    from onnx import TensorProto, helper

    blocks = max(1, count // 5)
    nodes = [helper.make_node("MatMul", ["a", "w"], ["x0"])]
    for n in range(blocks):
        nodes.append(helper.make_node("Relu", [f"x{n}"], [f"r{n}"]))
        nodes.append(helper.make_node("Add", [f"r{n}", f"x{n}"], [f"x{n + 1}"]))
    inputs = [helper.make_tensor_value_info("a", TensorProto.FLOAT, [64, 64])]
    outputs = [helper.make_tensor_value_info(f"x{blocks}", TensorProto.FLOAT, None)]
    weight = helper.make_tensor("w", TensorProto.FLOAT, [64, 64], bytes(4 * 64 * 64), raw=True)
    graph = helper.make_graph(nodes, "blocks", inputs, outputs, [weight])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    path.write_bytes(model.SerializeToString())


TRACES: dict[str, Callable[[int, Path], None]] = {
    "kineto": write_kineto,
    "chakra": write_chakra,
    "onnx": write_onnx,
}
"""Writers of files that the package reads and does not write."""

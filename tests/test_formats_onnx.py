"""ONNX models: shapes, folding, prices, derived backward phases, refusals."""

from __future__ import annotations

import os
import random
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from slackswap_opt.errors import InputError
from slackswap_opt.formats import onnx_format, read_step
from slackswap_opt.formats.onnx_rules import RULES
from slackswap_opt.formats.options import ReadOptions
from slackswap_opt.machine import load_machine
from slackswap_opt.machine.cost import Kernel, duration_ns
from slackswap_opt.plan import Problem
from slackswap_opt.planners import greedy
from slackswap_opt.step import Phase, TrainingStep, liveness
from slackswap_opt.study import compare
from tests.fuzzing import batches_of, fuzz
from tests.hand import faults_in, flows

onnx = pytest.importorskip("onnx")
helper = onnx.helper
FLOAT, INT64 = 1, 7

GRAPHS = Path(os.environ.get("SLACKSWAP_DATA", "")) / "graphs"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)
MACHINE = load_machine("a100-80gb-pcie4")
Node = tuple[str, Sequence[str], Sequence[str], Mapping[str, Any]]


def n(kind: str, inputs: str, outputs: str, **attributes: Any) -> Any:
    """A node; `-` is an input left out."""
    names = ["" if name == "-" else name for name in inputs.split()]
    return helper.make_node(kind, names, outputs.split(), **attributes)


def model(
    nodes: Sequence[Any],
    inputs: Mapping[str, Sequence[Any]],
    weights: Mapping[str, Sequence[int]] | None = None,
    outputs: Sequence[str] = ("y",),
    integers: Mapping[str, Sequence[int] | int] | None = None,
    opset: int = 18,
    kind: int = FLOAT,
) -> bytes:
    """A model whose weights have no data beside their shapes' zeros."""
    initializers = [
        helper.make_tensor(name, kind, dims, b"\0" * (int(np.prod(dims)) * (4 if kind == 1 else 2)),
                           raw=True)
        for name, dims in (weights or {}).items()
    ]  # fmt: skip
    for name, values in (integers or {}).items():
        array = np.array(values, dtype=np.int64)
        initializers.append(onnx.numpy_helper.from_array(array, name))
    graph = helper.make_graph(
        list(nodes),
        "g",
        [
            helper.make_tensor_value_info(name, INT64 if name.startswith("ids") else kind, dims)
            for name, dims in inputs.items()
        ],
        [helper.make_tensor_value_info(name, kind, None) for name in outputs],
        initializers,
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)])
    content: bytes = made.SerializeToString()
    return content


def read(content: bytes, **options: Any) -> TrainingStep:
    return onnx_format.read(content, "model", ReadOptions(machine=MACHINE, **options))


def faults(content: bytes, **options: Any) -> tuple[str, ...]:
    return faults_in(read, content, **options)


def program(step: TrainingStep) -> list[str]:
    """Each operation as `name: reads -> writes`, static tensors left out."""
    return [f"{op.name}: {flow}" for op, flow in flows(step)]


def saved(step: TrainingStep) -> dict[str, int]:
    live = liveness(step)
    return {
        tensor.name: tensor.size_bytes
        for tensor, kept in zip(step.tensors, live.saved, strict=True)
        if kept
    }


def one(kind: str, inputs: str, **attributes: Any) -> TrainingStep:
    """One operator behind a convolution, whose output `x` (2, 4, 6, 6) can be trained."""
    nodes = [
        n("Conv", "image w", "x", name="conv", pads=[1, 1, 1, 1]),
        n(kind, inputs, "y", name="op", **attributes),
    ]
    weights = {"w": [4, 3, 3, 3], "vector": [4], "scale": [4, 1, 1], "square": [6, 6]}
    return read(model(nodes, {"image": [2, 3, 6, 6]}, weights, integers={"two": 2}))


X_BYTES = 2 * 4 * 6 * 6 * 4


def test_recognized_by_content_with_any_name(tmp_path: Path) -> None:
    path = tmp_path / "thing.bin"
    path.write_bytes(model([n("MatMul", "a w", "y")], {"a": [3, 4]}, {"w": [4, 5]}))
    step = read_step(path, machine=MACHINE)
    assert step.name == "thing"
    with pytest.raises(InputError, match="has no durations; name the machine"):
        read_step(path)


def test_a_chain_saves_what_each_rule_says() -> None:
    step = read(
        model(
            [
                n("Conv", "image w", "c", name="conv", pads=[1, 1, 1, 1]),
                n("BatchNormalization", "c s b m v", "n", name="norm"),
                n("Relu", "n", "r", name="relu"),
                n("MaxPool", "r", "p", name="pool", kernel_shape=[2, 2], strides=[2, 2]),
                n("Flatten", "p", "f", name="flat"),
                n("Gemm", "f k c0", "y", name="head"),
            ],
            {"image": [2, 3, 8, 8]},
            {"w": [4, 3, 3, 3], "s": [4], "b": [4], "m": [4], "v": [4], "k": [64, 10], "c0": [10]},
        )
    )
    assert program(step) == [
        "conv: -> c",
        "norm: c -> n n.mean n.rstd",
        "relu: n -> r",
        "pool: r -> p p.indices",
        "head: p -> y",
        "loss: y -> y.grad",
        "head.backward: y.grad p -> p.grad",
        "pool.backward: p.grad r p.indices -> r.grad",
        "relu.backward: r.grad r -> n.grad",
        "norm.backward: n.grad c n.mean n.rstd -> c.grad",
        "conv.backward: c.grad ->",
    ]
    assert saved(step) == {
        "c": 2 * 4 * 64 * 4, "n.mean": 16, "n.rstd": 16, "r": 2 * 4 * 64 * 4,
        "p": 2 * 64 * 4, "p.indices": 2 * 64 * 8, "y": 80,
    }  # fmt: skip
    assert {t.name for t in step.tensors if t.static} == {
        "image", "w", "s", "b", "m", "v", "k", "c0"
    }  # fmt: skip
    assert step.operations[0].recomputable


def test_a_convolution_is_priced_by_its_multiplications() -> None:
    step = one("Relu", "x")
    x, image, w = X_BYTES, 2 * 3 * 36 * 4, 4 * 27 * 4
    flops = 2 * (2 * 4 * 36) * 27
    kernel = Kernel(flops, x + image + w, "fp32")
    by_name = {op.name: op.duration_ns for op in step.operations}
    assert by_name["conv"] == duration_ns(MACHINE.device, [kernel])
    assert by_name["op"] == duration_ns(MACHINE.device, [Kernel(2 * 4 * 36, 2 * x)])
    # the image needs no gradient: only that of the weight is made
    assert by_name["conv.backward"] == by_name["conv"]


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes", "reads"),
    [
        ("Relu", "x", {}, ["y"]),
        ("Sigmoid", "x", {}, ["y"]),
        ("Softmax", "x", {}, ["y"]),
        ("LeakyRelu", "x", {}, ["x"]),
        ("Erf", "x", {}, ["x"]),
        ("Clip", "x", {}, ["x"]),
        ("Sqrt", "x", {}, ["y"]),
        ("Neg", "x", {}, []),
        ("Mul", "x scale", {}, ["x"]),
        ("Mul", "x x", {}, ["x"]),
        ("Div", "x scale", {}, ["x"]),
        ("MatMul", "x square", {}, ["x"]),
        ("MatMul", "x x", {}, ["x"]),
        ("Pow", "x vector1", {}, ["x", "y"]),
        ("PRelu", "x scale", {}, ["x"]),
        ("GlobalAveragePool", "x", {}, []),
        ("AveragePool", "x", {"kernel_shape": [2, 2]}, []),
        ("MaxPool", "x", {"kernel_shape": [2, 2]}, ["x", "y.indices"]),
        ("Dropout", "x", {}, ["y.mask"]),
        ("LRN", "x", {"size": 3}, ["x", "y"]),
        ("InstanceNormalization", "x vector vector", {}, ["x", "y.mean", "y.rstd"]),
        ("LayerNormalization", "x six six", {}, ["x", "y.mean", "y.rstd"]),
        ("Transpose", "x", {"perm": [0, 2, 3, 1]}, []),
        ("Pad", "x pads", {}, []),
        ("Tile", "x repeats", {}, []),
        ("ReduceMean", "x", {}, []),
        ("ReduceMax", "x", {}, ["x", "y"]),
        ("Where", "mask x scale", {}, []),
        ("Gather", "x rows", {}, []),
        ("Resize", "x - factors", {"mode": "nearest"}, []),
        ("ConvTranspose", "x up", {}, ["x"]),
        ("DepthToSpace", "x", {"blocksize": 2}, []),
        ("Einsum", "x square", {"equation": "bchw,wk->bchk"}, ["x"]),
        ("Cast", "x", {"to": 10}, []),
        ("Trilu", "x", {}, []),
    ],
)  # fmt: skip
def test_what_each_operator_saves(
    kind: str, inputs: str, attributes: dict[str, Any], reads: list[str]
) -> None:
    factors = onnx.numpy_helper.from_array(np.array([1, 1, 2, 2], dtype=np.float32), "factors")
    mask = onnx.numpy_helper.from_array(np.ones((6, 6), dtype=bool), "mask")
    content = onnx.load_from_string(
        model(
            [
                n("Conv", "image w", "x", name="conv", pads=[1, 1, 1, 1]),
                n(kind, inputs, "y", name="op", **attributes),
            ],
            {"image": [2, 3, 6, 6]},
            {"w": [4, 3, 3, 3], "vector": [4], "vector1": [6], "scale": [4, 1, 1],
             "square": [6, 6], "six": [6], "up": [4, 2, 2, 2]},
            integers={"pads": [0, 0, 1, 1, 0, 0, 1, 1], "repeats": [1, 1, 2, 1], "rows": [0, 1, 1]},
        )
    )  # fmt: skip
    content.graph.initializer.extend([factors, mask])
    step = read(content.SerializeToString())
    backward = next(op for op in step.operations if op.name == "op.backward")
    static = {t.name for t in step.tensors if t.static}
    others = [v.tensor for v in backward.reads[1:] if v.tensor not in static]
    assert sorted(others) == sorted(reads)
    assert backward.duration_ns > 0
    assert next(op for op in step.operations if op.name == "op").duration_ns > 0
    gradient = next(t for t in step.tensors if t.name.startswith("x.grad"))
    assert gradient.size_bytes == X_BYTES


CASES: dict[str, tuple[str, dict[str, Any], int]] = {
    **dict.fromkeys(["Add", "Sub", "Sum", "Mean", "Mul", "Div", "Pow", "Min", "Max", "Equal",
                     "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "PRelu"],
                    ("x scale", {}, 18)),
    **dict.fromkeys(["And", "Or", "Xor"], ("mask mask2", {}, 18)),
    "Not": ("mask2", {}, 18), "Mod": ("x scale", {"fmod": 1}, 18),
    "OneHot": ("rows depth ends", {}, 18), "CumSum": ("x zero", {}, 18),
    "Where": ("mask x scale", {}, 18), "Einsum": ("x square", {"equation": "bchw,wk->bchk"}, 18),
    "Conv": ("x kernel", {}, 18), "ConvTranspose": ("x kernel", {}, 18),
    "Gemm": ("flat square", {}, 18), "MatMul": ("x square", {}, 18),
    "Attention": ("x x x", {}, 23), "RMSNormalization": ("x six", {}, 23), "Swish": ("x", {}, 24),
    "BatchNormalization": ("x four four four four", {}, 18),
    "LayerNormalization": ("x six six", {}, 18),
    "InstanceNormalization": ("x four four", {}, 18),
    "GroupNormalization": ("x four four", {"num_groups": 2}, 21),
    "LRN": ("x", {"size": 3}, 18), "Gelu": ("x", {}, 20),
    **dict.fromkeys(["MaxPool", "AveragePool"], ("x", {"kernel_shape": [2, 2]}, 18)),
    "Resize": ("x - factors", {}, 18), "Upsample": ("x factors", {}, 9),
    "SoftmaxCrossEntropyLoss": ("flat target", {}, 18),
    "NegativeLogLikelihoodLoss": ("flat target", {}, 18),
    "Reshape": ("x whole", {}, 18), "Squeeze": ("x", {}, 18), "Unsqueeze": ("x zero1", {}, 18),
    "Split": ("x", {"axis": 1, "num_outputs": 2}, 18), "Slice": ("x zero1 one1", {}, 18),
    "Expand": ("x five", {}, 18), "Cast": ("x", {"to": 10}, 18), "CastLike": ("x half", {}, 18),
    "Pad": ("x pads", {}, 18), "Tile": ("x repeats", {}, 18),
    **dict.fromkeys(["DepthToSpace", "SpaceToDepth"], ("x", {"blocksize": 2}, 18)),
    "Concat": ("x x", {"axis": 1}, 18), "Gather": ("x rows", {}, 18),
    "GatherElements": ("flat deep", {}, 18), "GatherND": ("x deep", {}, 18),
}  # fmt: skip
"""Inputs, attributes and opset of each operator; others take `x` alone."""


@pytest.mark.parametrize("kind", RULES)
def test_every_operator_with_a_rule_is_priced(kind: str) -> None:
    inputs, attributes, opset = CASES.get(kind, ("x", {}, 18))
    if opset > onnx.defs.onnx_opset_version():
        pytest.skip("the installed onnx package does not know this opset")
    extra = {
        "mask": np.ones((6, 6), dtype=bool), "half": np.ones(1, dtype=np.float16),
        "factors": np.array([1, 1, 2, 2], dtype=np.float32), "ends": np.zeros(2, dtype=np.float32),
    }  # fmt: skip
    content = onnx.load_from_string(
        model(
            [
                n("Conv", "image w", "x", name="conv", pads=[1, 1, 1, 1]),
                n("Flatten", "x", "flat0", axis=3), n("MatMul", "flat0 square", "flat"),
                n("Greater", "x scale", "mask2"), n("Tanh", "x", "other"),
                n(kind, inputs, "y y2" if kind == "Split" else "y", name="op", **attributes),
            ],
            {"image": [2, 4, 6, 6], "ids": [2, 3]},
            {"w": [4, 4, 3, 3], "scale": [4, 1, 1], "square": [6, 6], "six": [6], "four": [4],
             "kernel": [4, 4, 2, 2]},
            outputs=["y", "other"],
            integers={"pads": [0, 0, 1, 1, 0, 0, 1, 1], "repeats": [1, 1, 2, 1], "rows": [0, 1],
                      "whole": [2, -1], "zero": 0, "zero1": [0], "one1": [1], "depth": 3,
                      "five": [5, 1, 1, 1, 1], "target": [0] * 48, "deep": [[0, 1], [1, 0]]},
            opset=opset,
        )
    )  # fmt: skip
    for name, array in extra.items():
        content.graph.initializer.append(onnx.numpy_helper.from_array(array, name))
    step = read(content.SerializeToString())
    times = {op.name: op.duration_ns for op in step.operations}
    view = kind in {"Reshape", "Flatten", "Squeeze", "Unsqueeze", "Identity", "Split", "Slice",
                    "Expand"}  # fmt: skip
    assert ("op" in times) is not view
    assert all(nanoseconds > 0 for nanoseconds in times.values())


@pytest.mark.parametrize(
    ("kind", "inputs", "attributes"),
    [("Add", "x scale", {}), ("Sub", "x scale", {}), ("Concat", "x x", {"axis": 1})],
)
def test_what_passes_its_gradient_on_saves_nothing_and_needs_no_memory(
    kind: str, inputs: str, attributes: dict[str, Any]
) -> None:
    step = one(kind, inputs, **attributes)
    assert set(saved(step)) == {"y"}  # for the loss
    names = {t.name for t in step.tensors}
    assert "y.grad" in names
    assert "x.grad" not in names


def test_dropout_without_rate_is_a_view_and_with_one_draws_and_keeps_its_mask() -> None:
    nodes = [n("MatMul", "a w", "h", name="fc"), n("Dropout", "h rate", "d", name="drop"),
             n("MatMul", "d w", "y", name="out")]  # fmt: skip
    steps = []
    for rate in (0.0, 0.5):
        made = onnx.load_from_string(model(nodes, {"a": [8, 4]}, {"w": [4, 4]}))
        made.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(rate, dtype=np.float32), "rate")
        )
        steps.append(read(made.SerializeToString()))
    assert program(steps[0])[:2] == ["fc: -> h", "out: h -> y"]
    drop = steps[1].operations[1]
    assert drop.random
    assert drop.recomputable
    assert saved(steps[1])["d.mask"] == 32
    assert "h" not in saved(steps[1])
    assert any("Dropout is active" in note for note in steps[1].notes)


def test_views_share_memory_and_gradients_pass_through_them() -> None:
    step = read(
        model(
            [
                n("MatMul", "a w", "h", name="fc"),
                n("Reshape", "h target", "r", name="reshape"),
                n("Unsqueeze", "r axes", "u", name="more"),
                n("Squeeze", "u axes", "s", name="less"),
                n("Identity", "s", "i", name="same"),
                n("Relu", "i", "y", name="relu"),
            ],
            {"a": [6, 4]},
            {"w": [4, 4]},
            integers={"target": [2, -1], "axes": [0]},
        )
    )
    assert program(step) == [
        "fc: -> h",
        "relu: h -> y",
        "loss: y -> y.grad",
        "relu.backward: y.grad y -> h.grad",
        "fc.backward: h.grad ->",
    ]


def test_parts_of_a_tensor_share_its_memory_and_their_gradients_are_joined() -> None:
    step = read(
        model(
            [
                n("MatMul", "a w", "qkv", name="fc"),
                n("Split", "qkv", "q k", name="split", axis=1, num_outputs=2),
                n("Mul", "q k", "y", name="mul"),
            ],
            {"a": [6, 4]},
            {"w": [4, 8]},
        )
    )
    assert program(step) == [
        "fc: -> qkv",
        "mul: qkv -> y",
        "loss: y -> y.grad",
        "mul.backward: y.grad qkv -> qkv.grad qkv.grad.2",
        "split.backward: qkv.grad qkv.grad.2 -> qkv.grad.3",
        "fc.backward: qkv.grad.3 ->",
    ]
    size = {t.name: t.size_bytes for t in step.tensors}
    assert size["qkv.grad"] == size["qkv.grad.2"] == size["qkv"] // 2
    assert size["qkv.grad.3"] == size["qkv"]


def test_a_residual_sum_passes_its_gradient_and_contributions_are_summed() -> None:
    step = read(
        model(
            [
                n("MatMul", "a w", "h", name="fc"),
                n("Relu", "h", "r", name="relu"),
                n("Add", "h r", "y", name="add"),
            ],
            {"a": [6, 4]},
            {"w": [4, 4]},
        )
    )
    assert program(step)[3:] == [
        "loss: y -> y.grad",
        "relu.backward: y.grad r -> h.grad",
        "h.grad.2.sum: y.grad h.grad -> h.grad.2",
        "fc.backward: h.grad.2 ->",
    ]
    assert next(op for op in step.operations if op.name == "h.grad.2.sum").duration_ns > 0


def test_shape_arithmetic_is_folded_and_fills_are_no_activations() -> None:
    fill = helper.make_tensor("value", FLOAT, [1], [0.5])
    step = read(
        model(
            [
                n("ConstantOfShape", "dims", "w", name="fill", value=fill),
                n("MatMul", "a w", "h", name="fc"),
                n("Shape", "h", "all", name="shape"),
                n("Gather", "all first", "batch", name="gather"),
                n("Unsqueeze", "batch zero", "batch1", name="unsqueeze"),
                n("Concat", "batch1 rest", "target", name="concat", axis=0),
                n("Reshape", "h target", "r", name="reshape"),
                n("Tanh", "r", "y", name="tanh"),
            ],
            {"a": ["rows", 4]},
            integers={"dims": [4, 6], "first": 0, "zero": [0], "rest": [2, 3]},
        ),
        dimensions={"rows": 10},
    )
    assert [op.name for op in step.operations if op.phase is Phase.FORWARD] == ["fc", "tanh"]
    sizes = {t.name: (t.size_bytes, t.static) for t in step.tensors}
    assert sizes["w"] == (96, True)
    assert sizes["y"] == (240, False)
    assert any("fills" in note for note in step.notes)


def test_a_transformer_block_as_exporters_write_it() -> None:
    tokens, width, heads = 16, 32, 4
    norm = [
        n("ReduceMean", "e", "mean", axes=[-1]), n("Sub", "e mean", "centred"),
        n("Pow", "centred square", "squared"), n("ReduceMean", "squared", "variance", axes=[-1]),
        n("Add", "variance tiny", "moved"), n("Sqrt", "moved", "root"),
        n("Div", "centred root", "normed"), n("Mul", "normed gain", "scaled"),
        n("Add", "scaled shift", "ln"),
    ]  # fmt: skip
    attention = [
        n("MatMul", "ln wqkv", "qkv"), n("Split", "qkv", "q k v", axis=2),
        n("Reshape", "q split", "q4"), n("Reshape", "k split", "k4"), n("Reshape", "v split", "v4"),
        n("Transpose", "q4", "qt", perm=[0, 2, 1, 3]),
        n("Transpose", "k4", "kt", perm=[0, 2, 3, 1]),
        n("Transpose", "v4", "vt", perm=[0, 2, 1, 3]),
        n("MatMul", "qt kt", "scores"), n("Div", "scores eight", "weighed"),
        n("Softmax", "weighed", "p", axis=-1), n("MatMul", "p vt", "context"),
        n("Transpose", "context", "ct", perm=[0, 2, 1, 3]), n("Reshape", "ct joined", "c3"),
        n("MatMul", "c3 wo", "o"), n("Add", "e o", "res"),
    ]  # fmt: skip
    feed_forward = [
        n("MatMul", "res w1", "up"), n("Div", "up root2", "u2"), n("Erf", "u2", "erf"),
        n("Add", "erf one", "erf1"), n("Mul", "up erf1", "m"), n("Mul", "m half", "gelu"),
        n("MatMul", "gelu w2", "down"), n("Add", "res down", "y"),
    ]  # fmt: skip
    scalars = {"square": 2.0, "tiny": 1e-5, "eight": 8.0, "root2": 1.4, "one": 1.0, "half": 0.5}
    made = onnx.load_from_string(
        model(
            [n("Gather", "table ids", "e", name="embed"), *norm, *attention, *feed_forward],
            {"ids": ["batch", tokens]},
            {"table": [100, width], "gain": [width], "shift": [width], "wqkv": [width, 3 * width],
             "wo": [width, width], "w1": [width, 64], "w2": [64, width]},
            integers={"split": [0, 0, heads, width // heads], "joined": [0, 0, width]},
            opset=12,
        )
    )  # fmt: skip
    for name, value in scalars.items():
        made.graph.initializer.append(
            onnx.numpy_helper.from_array(np.array(value, dtype=np.float32), name)
        )
    step = read(made.SerializeToString(), batch=8)
    stream = 8 * tokens * width * 4
    kept = saved(step)
    assert kept["ln"] == stream
    assert kept["p"] == 8 * heads * tokens * tokens * 4
    assert "weighed" not in kept  # a softmax saves its output
    assert "scores" not in kept  # nor does a division by a constant need its operand
    assert "e" not in kept  # the decomposed norm saves what is centred
    assert {"centred", "root", "normed"} <= set(kept)
    assert any(op.name == "embed.backward" for op in step.operations)
    problem = Problem(step, MACHINE, 1)
    result = greedy(problem.with_budget(int(0.8 * problem.liveness.ideal_peak_bytes)))
    assert result.schedule is not None


def test_sizes_of_symbolic_dimensions_must_be_given() -> None:
    content = model([n("MatMul", "a w", "y")], {"a": ["batch", "tokens", 4]}, {"w": [4, 4]})
    first, second = faults(content)
    assert '"batch" of the inputs is not fixed' in first
    assert "FILE@batch=32; batch=32 sets the first axis" in first
    assert '"tokens"' in second
    assert "FILE@tokens=32" in second
    step = read(content, batch=3, dimensions={"tokens": 5})
    assert next(t for t in step.tensors if t.name == "y").size_bytes == 3 * 5 * 4 * 4
    assert faults(content, batch=3, dimensions={"tokens": 5, "length": 2}) == (
        "length=2: no input has a dimension of this name; leave it out",
    )
    assert "give 1 or more" in faults(content, batch=0)[0]


def test_operators_without_a_rule_are_named_all_together_and_never_priced() -> None:
    content = model(
        [
            n("MatMul", "a w", "h"),
            n("GridSample", "h g", "s", name="grid"),
            n("Fancy", "h", "f", name="own", domain="my.company"),
            n("GridSample", "h g", "t", name="again"),
            n("Relu", "s", "y"),
        ],
        {"a": [4, 4], "g": [1, 2, 2, 2]},
        {"w": [4, 4]},
    )
    assert faults(content) == (
        'there is no rule for the operator "GridSample" (2 nodes, first "grid"), so it can '
        "neither be priced nor differentiated; express it in other operators",
        'there is no rule for the operator "my.company.Fancy" (node "own"), so it can neither be '
        "priced nor differentiated; express it in other operators",
    )


@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        ([n("Relu", "nothing", "y", name="r")], 'node "r" reads "nothing", which nothing makes'),
        (
            [n("Add", "a z", "x", name="p"), n("Relu", "x", "z", name="q"), n("Relu", "z", "y")],
            'the nodes form a cycle: "p" -> "q" -> "p"; remove one connection',
        ),
        (
            [n("Relu", "a", "y", name="p"), n("Tanh", "a", "y", name="q")],
            'node "q" makes "y", which is made already',
        ),
        ([n("MatMul", "a w2", "y", name="m")], 'node "m" (MatMul): its shapes do not fit'),
        ([n("Nonsense", "a", "y", name="m")], 'no rule for the operator "Nonsense"'),
        ([n("Relu", "a", "z")], 'output "y" is made by no node'),
        (
            [n("MatMul", "a w", "h"), n("Reshape", "h ids", "y", name="r")],
            "depends on data or cannot be inferred",
        ),
        ([n("Relu", "a", "y")], "no operator has a weight that can be trained"),
        ([n("Conv", "a w2", "y", name="c")], 'node "c" (Conv)'),
    ],
)
def test_faults_name_the_node_and_what_is_wrong(nodes: list[Any], expected: str) -> None:
    content = model(nodes, {"a": [4, 4], "ids": [2]}, {"w": [4, 4], "w2": [5, 5]})
    assert any(expected in fault for fault in faults(content))


def test_faults_of_a_file_are_reported_together() -> None:
    content = model(
        [n("Relu", "lost", "p", name="one"), n("Relu", "gone", "y", name="two")],
        {"a": ["n", 4]},
        {"w": [4, 4]},
    )
    found = faults(content)
    assert len(found) == 3
    assert '"n" of the inputs' in found[0]


@pytest.mark.parametrize(
    ("dims", "expected"),
    [
        ([2**62, 2**62], "holds more than"),
        ([-1, 4], "expected sizes of 0 or more"),
        ([1] * 40, "expected at most 32"),
    ],
)
def test_hostile_shapes_are_refused(dims: list[int], expected: str) -> None:
    content = model([n("Relu", "a", "y")], {"a": dims})
    assert expected in faults(content)[0]
    made = onnx.load_from_string(model([n("MatMul", "a w", "y")], {"a": [4, 4]}))
    weight = made.graph.initializer.add(name="w", data_type=FLOAT)
    weight.dims.extend(dims)
    assert expected in faults(made.SerializeToString())[0]


def test_a_fill_of_a_hostile_size_is_refused_without_being_made() -> None:
    content = model(
        [n("ConstantOfShape", "dims", "w", name="fill"), n("MatMul", "a w", "y")],
        {"a": [4, 4]},
        integers={"dims": [2**31, 2**31]},
    )
    assert 'node "fill" (ConstantOfShape)' in faults(content)[0]


def test_weights_in_other_files_are_never_opened(tmp_path: Path) -> None:
    made = onnx.load_from_string(model([n("MatMul", "a w", "y")], {"a": [4, 4]}))
    weight = made.graph.initializer.add(name="w", data_type=FLOAT, data_location=1)
    weight.dims.extend([4, 8])
    weight.external_data.add(key="location", value="/etc/passwd")
    step = read(made.SerializeToString())
    assert next(t for t in step.tensors if t.name == "w").size_bytes == 128


def test_a_damaged_file_an_unknown_opset_and_strange_data_are_refused() -> None:
    content = model([n("MatMul", "a w", "y")], {"a": [4, 4]}, {"w": [4, 4]})
    assert "damaged or cut short" in faults(content[:-5])[0]
    made = onnx.load_from_string(content)
    made.opset_import[0].version = 999
    assert "the model uses opset 999" in faults(made.SerializeToString())[0]
    made.opset_import[0].version = 18
    made.graph.initializer[0].raw_data = b"123"
    assert "do not fit its shape" in faults(made.SerializeToString())[0]
    made.graph.initializer[0].data_type = 8
    assert "not supported" in faults(made.SerializeToString())[0]


def test_an_output_that_nobody_reads_need_not_be_known() -> None:
    nodes = [n("MatMul", "a w", "h"), n("Dropout", "h", "y mask", name="drop", ratio=0.3)]
    content = model(nodes, {"a": [4, 4]}, {"w": [4, 4]}, opset=7)
    assert program(read(content))[1] == "drop: h -> y y.mask"
    nodes.append(n("Identity", "mask", "z", name="same"))
    content = model(nodes, {"a": [4, 4]}, {"w": [4, 4]}, opset=7)
    assert 'node "same" reads "mask", whose shape cannot be inferred' in faults(content)[0]
    nodes = [helper.make_node("Shape", ["a"], [""], name="nameless")]
    content = model(nodes, {"a": [4, 4]}, {"w": [4, 4]})
    assert 'node "nameless" ("Shape"): its first output has no name' in faults(content)[0]


def test_a_type_without_a_peak_is_refused() -> None:
    content = onnx.load_from_string(model([n("MatMul", "a w", "y")], {"a": [4, 4]}))
    content.graph.input[0].type.tensor_type.elem_type = 11
    content.graph.initializer.append(
        onnx.numpy_helper.from_array(np.zeros((4, 4), dtype=np.float64), "w")
    )
    assert "no peak_flops_per_s for 'fp64'" in faults(content.SerializeToString())[0]


def test_half_precision_halves_sizes_and_runs_at_its_own_peak() -> None:
    nodes = [n("MatMul", "a w", "y", name="fc")]
    shapes = {"a": [1024, 1024]}
    single, half = (
        read(model(nodes, shapes, {"w": [1024, 1024]}, kind=kind)) for kind in (FLOAT, 10)
    )
    assert single.operations[0].duration_ns > 5 * half.operations[0].duration_ns
    sizes = [next(t for t in s.tensors if t.name == "y").size_bytes for s in (single, half)]
    assert sizes[0] == 2 * sizes[1]


@needs_data
def test_resnet50_has_its_known_figures_and_is_planned_at_half() -> None:
    path = GRAPHS / "onnx_light_resnet50.onnx"
    step = read_step(path, machine=MACHINE)
    assert "8.2" in step.notes[0]  # 4.1 G multiply-adds, known of ResNet-50 at 224 x 224
    assert "25.6" in step.notes[1]  # and 25.6 million parameters
    convolutions = [
        t.size_bytes // 4
        for t in step.tensors
        for op in step.operations
        if t.name in {v.tensor for v in op.writes}
        and any(v.tensor.endswith("_w_0") for v in op.reads)
        and op.phase is Phase.FORWARD
        and "pred" not in str(op.reads)
    ]
    assert len(convolutions) == 53
    # 11.1 million activations, counted at convolutions (arXiv 2003.13678, table of ResNet-50)
    assert sum(convolutions) == pytest.approx(11.1e6, rel=0.01)
    batched = read_step(path, machine=MACHINE, batch=32)
    live = liveness(batched)
    ratio = int(batched.index.size_bytes[live.saved].sum()) / sum(saved(step).values())
    assert ratio == pytest.approx(32, rel=0.01)
    problem = Problem(batched, MACHINE, 1)
    half = problem.with_budget(problem.liveness.ideal_peak_bytes // 2)
    (row,) = compare([half], {"greedy": greedy})
    assert row.certified_gap is not None
    assert 0 <= row.certified_gap < 0.1
    assert row.peak_bytes is not None
    assert row.peak_bytes <= half.budget_bytes


PACKAGED = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


@pytest.mark.skipif(not PACKAGED.is_dir(), reason="this onnx package has no test models")
@pytest.mark.parametrize(
    ("name", "giga_multiply_adds", "million_parameters"),
    [  # published figures of these networks at 224 x 224
        ("vgg19", 19.6, 143.7),
        ("densenet121", 2.87, 8.0),
        ("squeezenet", 0.35, 1.24),
        ("inception_v1", 1.5, 7.0),
    ],
)
def test_networks_have_their_published_figures(
    name: str, giga_multiply_adds: float, million_parameters: float
) -> None:
    step = read_step(PACKAGED / f"light_{name}.onnx", machine=MACHINE)
    flops, parameters = (float(note.split(" ")[0]) for note in (
        step.notes[0].split("model: ")[1], step.notes[1]))  # fmt: skip
    assert flops / 2 == pytest.approx(giga_multiply_adds, rel=0.08)
    assert parameters == pytest.approx(million_parameters, rel=0.03)


@pytest.mark.parametrize("opset", [9, 11, 13, 17, 21])
def test_models_of_every_age_are_read_with_the_batch_given(opset: int) -> None:
    axes_are_inputs = opset >= 13
    nodes = [
        n("Conv", "a w", "c", pads=[1, 1, 1, 1]),
        n("BatchNormalization", "c s b m v", "bn"),
        n("Relu", "bn", "r"),
        n("Flatten", "r", "f"),
        n("Gemm", "f fc fb", "g", transB=1),
        n("Dropout", "g", "d", **({"ratio": 0.5} if opset < 12 else {})),
        n("Unsqueeze", "d axes" if axes_are_inputs else "d", "y",
          **({} if axes_are_inputs else {"axes": [2]})),
    ]  # fmt: skip
    vectors: dict[str, Sequence[int]] = {name: [8] for name in "sbmv"}
    step = read(
        model(
            nodes,
            {"a": ["N", 3, 8, 8]},
            {"w": [8, 3, 3, 3], "fc": [10, 512], "fb": [10], **vectors},
            integers={"axes": [2]} if axes_are_inputs else {},
            opset=opset,
        ),
        batch=4,
    )
    sizes = {t.name: t.size_bytes for t in step.tensors if not t.static}
    assert sizes["c"] == sizes["bn"] == sizes["r"] == 4 * 4 * 8 * 8 * 8
    forward = [op.name for op in step.operations if op.phase is Phase.FORWARD]
    assert len(forward) == 5  # all but the two views


KINDS = [*RULES, "GridSample", "Loop", "ConstantOfShape", "Constant", "Shape", "Range"]
ATTRIBUTES = (
    "axis", "perm", "group", "kernel_shape", "strides", "pads", "to", "axes", "num_outputs",
    "equation", "blocksize", "mode",
)  # fmt: skip
BASE = model(
    [n("Conv", "a w", "c"), n("Relu", "c", "r"), n("Reshape", "r v", "f"), n("MatMul", "f m", "y")],
    {"a": [1, 3, 4, 4]},
    {"w": [2, 3, 3, 3], "m": [8, 3]},
    integers={"v": [1, -1]},
)


def attribute(rng: random.Random) -> Any:
    return rng.choice(
        [
            rng.randint(-3, 5),
            rng.randint(-3, 2**40),
            [rng.randint(-2, 4) for _ in range(rng.randint(1, 4))],
            [rng.randint(-2, 2**33)],
            rng.choice(["ij,jk->ik", "x", "->", "nearest"]),
        ]
    )


def hostile_model(rng: random.Random) -> bytes:
    """A model whose parts are right one by one and rarely together."""
    names = ["a", "w", "v", "s", *"bcdefgy"]
    nodes = [
        helper.make_node(
            rng.choice(KINDS),
            [rng.choice(["", *names]) for _ in range(rng.randint(0, 4))],
            [rng.choice(names[4:]) for _ in range(rng.randint(1, 2))],
            **{rng.choice(ATTRIBUTES): attribute(rng) for _ in range(rng.randint(0, 3))},
        )
        for _ in range(rng.randint(0, 5))
    ]
    dims = [rng.choice([0, 1, 2, 3, 4, 2**40, -1]) for _ in range(rng.randint(0, 4))]
    return model(
        nodes,
        {"a": rng.choice([[2, 3, 4, 4], dims])},
        {"w": rng.choice([[3, 3, 1, 1], [4, 4], [4], []])},
        integers={"v": [rng.randint(-2, 5) for _ in range(rng.randint(0, 4))],
                  "s": rng.randint(0, 9)},
        opset=rng.choice([9, 13, 18, 20]),
    )  # fmt: skip


def damaged_file(rng: random.Random) -> bytes:
    content = bytearray(BASE)
    for _ in range(rng.randint(1, 4)):
        content[rng.randrange(len(content))] = rng.randrange(256)
    return bytes(content[: rng.randint(1, len(content))] if rng.random() < 0.2 else content)


def random_file(seed: int) -> bytes:
    rng = random.Random(seed)
    return rng.choice([hostile_model, damaged_file])(rng)


@batches_of(200)
def test_any_file_is_read_or_refused(seed: int) -> None:
    fuzz(random_file, read, seed)


@pytest.mark.slow
@batches_of(10_000)
def test_ten_thousand_files_are_read_or_refused(seed: int) -> None:
    fuzz(random_file, read, seed)

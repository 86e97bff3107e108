"""dnn-partitioning graphs: backward nodes paired by colour or tied by edges, sizes from edges."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from slackswap_opt import Problem, Settings, Status, load_machine, smallest_budget, sweep
from slackswap_opt.errors import InputError
from slackswap_opt.formats import read_step
from slackswap_opt.formats.registry import read_content
from slackswap_opt.planners import PLANNERS
from slackswap_opt.step import Phase, TrainingStep, ideal_step_ns, liveness, working_set_bytes
from tests.hand import faults_in, flows

GRAPHS = Path(os.environ.get("SLACKSWAP_DATA", "")) / "graphs"
needs_data = pytest.mark.skipif(
    "SLACKSWAP_DATA" not in os.environ, reason="SLACKSWAP_DATA does not name the data folder"
)


def node(
    number: int, ms: float, size: float, backward: bool = False, **more: Any
) -> dict[str, Any]:
    fields = {
        "name": f"n{number}", "id": number, "fpgaLatency": ms, "cpuLatency": 10 * ms, "size": size,
        "isBackwardNode": backward, "supportedOnFpga": 1,
    }  # fmt: skip
    return {k: v for k, v in (fields | more).items() if v is not ...}


def edge(source: int, target: int, size: float | None = 8.0) -> dict[str, Any]:
    return {"sourceId": source, "destId": target, "cost": 0.1} | (
        {} if size is None else {"size": size}
    )


def layers(**changes: Any) -> dict[str, Any]:
    """Input 1, a layer 2 with parameters, one without, a view 4; backward nodes 11 to 14."""
    return {
        "maxFPGAs": 6,
        "nodes": [
            node(1, 5, 8, colorClass=1), node(11, 0, 8, True, colorClass=1),
            node(2, 1.5, 38, colorClass=2), node(12, 3, 38, True, colorClass=2),
            node(3, 0.5, 8, colorClass=3), node(13, 0.25, 8, True, colorClass=3),
            node(4, 0, 8, colorClass=4), node(14, 0, 8, 1, colorClass=4),
        ],
        "edges": [
            edge(1, 2), edge(2, 3), edge(3, 4),
            edge(11, 12), edge(12, 13), edge(13, 14),
        ],
    } | changes  # fmt: skip


def read(document: dict[str, Any]) -> TrainingStep:
    return read_content(json.dumps(document).encode(), "file")


def program(step: TrainingStep) -> list[str]:
    return [f"{op.name} {op.duration_ns}: {flow}" for op, flow in flows(step)]


def faults(document: dict[str, Any]) -> tuple[str, ...]:
    return faults_in(read, document)


def test_layer_graphs_pair_backward_nodes_by_colour() -> None:
    step = read(layers())
    assert program(step) == [
        "n2.layer 1500000: -> n2",
        "n3.layer 500000: n2 -> n3",
        "loss 0: n3 -> n3.grad",
        "n3.layer.backward 250000: n3.grad n2 n3 -> n2.grad",
        "n2.layer.backward 3000000: n2.grad ->",
    ]
    tensors = {t.name: t for t in step.tensors}
    assert (tensors["n1"].size_bytes, tensors["n1"].static) == (8, True)
    assert (tensors["n2.weight"].size_bytes, tensors["n2.weight"].static) == (30, True)
    assert tensors["n3"].aliases == ("n4",)
    assert any("The 5 ms of the input are the loading of data" in note for note in step.notes)
    assert any("milliseconds" in note for note in step.notes)


def test_backward_edges_may_lead_backwards_as_well() -> None:
    turned = [edge(1, 2), edge(2, 3), edge(3, 4), edge(12, 11), edge(13, 12), edge(14, 13)]
    assert program(read(layers(edges=turned))) == program(read(layers()))


def test_the_last_layers_output_is_as_large_as_its_gradient() -> None:
    document = layers(nodes=layers()["nodes"][:4], edges=[edge(1, 2), edge(11, 12, 6.0)])
    step = read(document)
    assert {t.name: t.size_bytes for t in step.tensors}["n2"] == 6
    assert {t.name: t.size_bytes for t in step.tensors}["n2.weight"] == 32


def test_operator_graphs_say_who_reads_what() -> None:
    step = read(
        {
            "nodes": [
                node(9, 0.3, 0, True, colorClass=...),
                node(1, 0, 40), node(2, 0.1, 8), node(3, 0.2, 0), node(4, 0.5, 8, True),
            ],
            "edges": [edge(1, 2, 40), edge(2, 3, 0.125), edge(3, 4, 8), edge(2, 4, 8), edge(9, 4)],
        }
    )  # fmt: skip
    assert program(step) == [
        "n2 100000: -> n2",
        "n3 200000: n2 -> n3",
        "n9 300000: -> n9",
        "n4 500000: n3 n2 n9 ->",
    ]
    assert {t.name for t in step.tensors if t.static} == {"n1"}
    assert [op.phase for op in step.operations] == [Phase.FORWARD] * 2 + [Phase.BACKWARD] * 2
    assert any("1 sizes with fractions of a byte are rounded up" in note for note in step.notes)


def test_a_graph_for_inference_is_completed() -> None:
    step = read({"nodes": [node(1, 1, 20), node(2, 2, 8)], "edges": [edge(1, 2)]})
    assert any("forward nodes only" in note for note in step.notes)
    assert program(step.with_backward(2.0))[2:] == [
        "n2.backward 4000000: n1 -> n1.grad",
        "n1.backward 2000000: n1.grad n1 ->",
    ]


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"nodes": 7}, "nodes is 7, expected a list"),
        ({"edges": None}, "edges is null, expected a list"),
        ({"nodes": []}, "there are no nodes"),
        ({"nodes": [7]}, "nodes[0] is 7, expected an object"),
        ({"nodes": [node(1, -1, 8)]}, 'node "n1": fpgaLatency is -1, expected 0 to'),
        ({"nodes": [node(1, "1", 8)]}, 'fpgaLatency is "1", expected a number'),  # type: ignore[arg-type]
        ({"nodes": [node(1, 1e300, 8)]}, "fpgaLatency is 1e+300, expected 0 to"),
        ({"nodes": [node(1, 1, 8, fpgaLatency=...)]}, "fpgaLatency is missing; add it"),
        ({"nodes": [node(1, 1, 2**51)]}, "size is 2251799813685248, expected 0 to"),
        ({"nodes": [node(1, 1, 8, isBackwardNode="no")]}, 'isBackwardNode is "no", expected true'),
        ({"nodes": [node(1, 1, 8, colorClass="red")]}, 'colorClass is "red", expected a whole'),
        ({"nodes": [node(1, 1, 8, id=1.5)]}, "id is 1.5, expected a whole number"),
        ({"nodes": [node(1, 1, 8, name=...), node(1, 1, 8)]}, "the id 1 is there already"),
        ({"edges": [edge(1, 99)]}, "edges[0]: there is no node with the id 99"),
        ({"edges": [{"sourceId": 1}]}, "edges[0]: destId is null, expected a whole number"),
        ({"edges": layers()["edges"] + [edge(11, 14)]}, "are not those of the forward nodes"),
        ({"nodes": layers()["nodes"][:-1], "edges": []}, "class 4 has 1 forward and 0 backward"),
        ({"nodes": [node(1, 1, 8, colorClass=1), node(2, 1, 8, True)], "edges": []}, "colorClass"),
        ({"edges": layers()["edges"] + [edge(4, 1), edge(14, 11)]}, "n1 -> n2 -> n3 -> n4 -> n1"),
    ],
)  # fmt: skip
def test_each_fault_names_node_and_field(changes: dict[str, Any], expected: str) -> None:
    # what makes the file recognizable stays
    document = {"note": {"fpgaLatency": 0}} | layers() | changes
    found = faults(document)
    assert any(expected in fault for fault in found), found


def test_not_a_number_is_refused() -> None:
    text = json.dumps(layers()).replace('"fpgaLatency": 1.5', '"fpgaLatency": NaN')
    with pytest.raises(InputError, match="NaN is not valid JSON"):
        read_content(text.encode(), "x")


@needs_data
@pytest.mark.parametrize(
    ("name", "operations", "ms", "peak"),
    [("bert24", 55, 217_813_000, 354_902_048), ("resnet50", 351, 443_419_000, 19_331_809_280)],
)
def test_the_published_files_are_read(name: str, operations: int, ms: int, peak: int) -> None:
    step = read_step(GRAPHS / f"dnnpart_{name}_training.json")
    assert len(step.operations) == operations
    assert ideal_step_ns(step) == ms  # that of the PipeDream profile, for ResNet-50
    assert liveness(step).ideal_peak_bytes == peak


@needs_data
@pytest.mark.slow
@pytest.mark.parametrize("name", ["dnnpart_bert24_training.json", "dnnpart_resnet50_training.json"])
def test_the_published_files_are_planned_with_a_certified_gap(name: str) -> None:
    """At half of the peak, or at the least that any schedule needs, if that is more (BERT-24).

    BERT-24 holds four times as many bytes in its logits and their gradient, which the loss needs at
    once, as in all else: 70.45 % of the peak.
    """
    step = read_step(GRAPHS / name)
    peak = liveness(step).ideal_peak_bytes
    budget = max(peak // 2, int(working_set_bytes(step).max()))
    problem = Problem(step, load_machine(), budget)
    (cell,) = sweep(problem, [budget], {"ilp": PLANNERS["ilp"]}, Settings(gap=0.009, seconds=120))
    judged = cell.judged["ilp"]
    assert judged.verdict is not None
    assert judged.verdict.peak_bytes <= budget
    assert cell.bound.step_ns <= judged.verdict.step_ns <= 1.01 * cell.bound.step_ns
    if name.startswith("dnnpart_bert"):
        assert budget == 250_036_256
        assert smallest_budget(problem).budget_bytes == budget
        (half,) = sweep(problem, [peak // 2], {"ilp": PLANNERS["ilp"]}, Settings(seconds=120))
        assert half.proven_infeasible
        assert half.judged["ilp"].result.status is Status.INFEASIBLE

"""Graphs of networkx become steps, and steps graphs, without loss and with friendly faults."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import networkx as nx
import numpy as np
import pytest
from hypothesis import given, settings

from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.hand import faults_in
from tests.strategies import training_steps


def chain(**changes: Any) -> nx.DiGraph[Any]:
    """a -> b -> c, with attributes of b replaced; `...` takes one away."""
    graph: nx.DiGraph[Any] = nx.DiGraph(name="chain")
    graph.add_node("a", duration_us=5, size_bytes=10)
    b = {"duration_us": 2.5, "size_bytes": 20, "layer": "one"} | changes
    graph.add_node("b", **{k: v for k, v in b.items() if v is not ...})
    graph.add_node("c", duration_ms=1, phase="backward")
    nx.add_path(graph, "abc")
    return graph


def faults(graph: Any) -> tuple[str, ...]:
    return faults_in(TrainingStep.from_networkx, graph)


def test_operations_are_nodes_and_edges_are_reads() -> None:
    step = TrainingStep.from_networkx(chain(parameter_bytes=7, workspace_bytes=3, random=True))
    assert step.name == "chain"
    assert step.operations == (
        Operation("a", Phase.FORWARD, 5_000, (), (Value("a"),)),
        Operation(
            "b", Phase.FORWARD, 2_500, (Value("a"), Value("b.weight")), (Value("b"),), 3, "one",
            random=True,
        ),
        Operation("c", Phase.BACKWARD, 1_000_000, (Value("b"),)),
    )  # fmt: skip
    assert step.tensors == (
        Tensor.of("a", 10),
        Tensor.of("b", 20),
        Tensor.of("b.weight", 7, static=True),
    )


def test_a_name_given_comes_before_the_graphs_own() -> None:
    assert TrainingStep.from_networkx(chain(), "other").name == "other"
    graph = chain()
    graph.graph.clear()
    assert TrainingStep.from_networkx(graph).name == "graph"


def test_parallel_edges_are_one_read_of_one_tensor() -> None:
    graph = nx.MultiDiGraph(chain())
    graph.add_edge("a", "b")
    assert TrainingStep.from_networkx(graph) == TrainingStep.from_networkx(chain())


def test_sizes_may_be_on_edges_and_outputs_several() -> None:
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from("abc", duration_ns=1)
    graph.add_edge("a", "b", tensor="left", size_bytes=4)
    graph.add_edge("a", "c", tensor="right", size_bytes=8)
    graph.add_edge("b", "c", size_bytes=2)
    step = TrainingStep.from_networkx(graph)
    assert step.operations[0].writes == (Value("left"), Value("right"))
    assert step.operations[2].reads == (Value("right"), Value("b"))
    assert {t.name: t.size_bytes for t in step.tensors} == {"left": 4, "right": 8, "b": 2}


def test_nodes_may_be_anything_hashable_and_numbers_of_numpy() -> None:
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_node(0, duration_us=np.float32(1.5), size_bytes=np.int64(2**40))
    graph.add_node((1, "x"), duration_ns=np.int32(7))
    graph.add_edge(0, (1, "x"))
    step = TrainingStep.from_networkx(graph)
    assert [(op.name, op.duration_ns) for op in step.operations] == [("0", 1500), ("(1, 'x')", 7)]
    assert step.tensors[0].size_bytes == 2**40


def test_the_order_of_nodes_is_kept_where_edges_allow() -> None:
    graph: nx.DiGraph[Any] = nx.DiGraph()
    graph.add_nodes_from("dbca", duration_ns=1, size_bytes=1)
    graph.add_edge("a", "b")
    step = TrainingStep.from_networkx(graph)
    assert [op.name for op in step.operations] == ["d", "c", "a", "b"]


@settings(max_examples=100, deadline=None)
@given(step=training_steps())
def test_round_trip_is_exact(step: TrainingStep) -> None:
    graph = step.to_networkx()
    assert TrainingStep.from_networkx(graph) == step
    assert nx.is_directed_acyclic_graph(graph)


def test_round_trip_keeps_notes_aliases_versions_and_clashing_names() -> None:
    step = TrainingStep.build(
        "all",
        [
            Operation("x", Phase.FORWARD, 1, (Value("w"),), (Value("x"), Value("tensor x"))),
            Operation("x@1", Phase.FORWARD, 2, (Value("x"),), (Value("x", 1),), recomputable=False),
            Operation("b", Phase.BACKWARD, 3, (Value("tensor x"), Value("x", 1))),
        ],
        [
            Tensor("x", 5, 3, aliases=("view", "view2")),
            Tensor.of("tensor x", 4),
            Tensor.of("w", 1, static=True),
        ],
        ["first", "second\nline"],
    )
    assert TrainingStep.from_networkx(step.to_networkx()) == step


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"duration_us": ...}, "the duration is missing; add one of duration_ns"),
        ({"duration_us": ..., "time": 3}, "if 'time' is it, say its unit"),
        ({"duration_ms": 1}, "has duration_us and duration_ms; keep one"),
        ({"duration_us": -1}, "duration_us is -1, expected 0 to 9007199254740.992"),
        ({"duration_us": float("nan")}, "duration_us is NaN, expected a finite number"),
        ({"duration_us": float("inf")}, "duration_us is Infinity, expected a finite number"),
        ({"duration_us": "5"}, 'duration_us is "5", expected a finite number'),
        ({"duration_us": None}, "duration_us is null, expected a finite number"),
        ({"duration_us": True}, "duration_us is true, expected a finite number"),
        ({"size_bytes": ...}, "size_bytes, the size of its output, is missing; add it"),
        ({"size_bytes": ..., "memory": 3}, "if 'memory' is it, in bytes, call it size_bytes"),
        ({"size_bytes": 4096.0}, "size_bytes is 4096.0, expected a whole number"),
        ({"size_bytes": 4096.0}, "; write 4096"),
        ({"size_bytes": 0.5}, "expected a whole number written as an integer"),
        ({"size_bytes": -1}, "size_bytes is -1, expected 0 to 1125899906842624"),
        ({"size_bytes": 10**30}, "expected 0 to 1125899906842624"),
        ({"size_bytes": "9" * 10**6}, "characters)"),
        ({"phase": "foward"}, 'phase is "foward", expected forward, backward or optimizer; did'),
        ({"phase": 3}, "phase is 3, expected forward"),
        ({"layer": 3}, "layer is 3, expected text"),
        ({"random": "no"}, 'random is "no", expected true or false'),
        ({"recomputable": 1}, "recomputable is 1, expected true or false"),
        ({"name": ""}, 'name is "", expected text that is not empty'),
        ({"name": "a"}, "operation 'a' is defined 2 times"),
        ({"name": 5}, "name is 5, expected text"),
        ({"role": "op"}, 'role is "op", expected "operation" or "tensor"'),
        ({"size_byte": 1, "size_bytes": ...}, 'no attribute "size_byte"; did you mean "size_'),
        ({"role": "tensor", "duration_us": ..., "layer": ..., "aliases": "z"}, "names in a list"),
        ({"role": "tensor", "duration_us": ..., "storage": "q"}, "version is missing"),
        ({"role": "tensor", "duration_us": ..., "storage": "q", "version": 1}, "no tensor \"q\""),
        ({"role": "tensor", "duration_us": ..., "storage": "q", "version": 0}, "expected 1 to"),
    ],
)  # fmt: skip
def test_each_fault_names_node_attribute_and_remedy(changes: dict[str, Any], expected: str) -> None:
    found = faults(chain(**changes))
    assert any(expected in fault for fault in found), found
    assert all(len(fault) < 400 for fault in found)


def test_a_cycle_is_printed() -> None:
    graph = chain()
    graph.nodes["c"].update(size_bytes=1)
    graph.add_edge("c", "a")
    (fault,) = faults(graph)
    assert "a -> b -> c -> a" in fault


def test_an_edge_to_a_node_that_networkx_made_up_is_named() -> None:
    graph = chain()
    graph.add_edge("b", "cc")
    assert faults(graph) == (
        'node "cc" has no attributes; add its duration, or mend the edge that should name '
        "another node",
    )


def test_edges_that_disagree_and_edges_between_tensors() -> None:
    graph = chain()
    graph.add_node("d", duration_us=1)
    graph.add_edge("a", "b", size_bytes=4)
    graph.add_edge("a", "d", size_bytes=5)
    found = faults(graph)
    assert "size_bytes is 5, but 4 on another edge from the same output" in found[0]
    assert "names them with the edges' attribute tensor" in found[0]
    graph = chain()
    graph.add_nodes_from(["t", "u"], role="tensor", size_bytes=1)
    graph.add_edge("t", "u")
    assert "both ends are tensors" in faults(graph)[0]
    graph = chain()
    graph.add_edge("a", "c", tensor="second")
    assert 'no edge gives the size_bytes of its output "second"' in faults(graph)[0]


def test_all_faults_are_reported_together() -> None:
    graph = chain(duration_us=-1, size_bytes=1.5)
    graph.nodes["a"]["phase"] = "x"
    graph.nodes["c"]["layer"] = 1
    assert [fault.partition(":")[0] for fault in faults(graph)] == [
        'node "a"', 'node "b"', 'node "b"', 'node "c"',
    ]  # fmt: skip


def test_what_is_no_directed_graph_is_refused() -> None:
    assert "not directed" in faults(nx.Graph())[0]
    assert "a dict is not a graph of networkx" in faults({})[0]
    assert faults(nx.DiGraph()) == ("the step has no operations; add at least one",)


def test_other_attributes_are_named_in_a_note() -> None:
    step = TrainingStep.from_networkx(chain(color="red", x=1.0))
    assert step.notes == ("Attributes of the graph that are not used: color, x.",)


def test_the_example_of_the_documentation_runs() -> None:
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")
    names: dict[str, Any] = {}
    exec(compile(page.split("```python\n")[1].split("```")[0], "formats.md", "exec"), names)
    assert len(names["step"].operations) == 5
    assert TrainingStep.from_networkx(names["step"].to_networkx()) == names["step"]

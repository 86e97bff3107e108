"""Node-link JSON and GraphML: nothing is lost, both spellings are read, faults name their place."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import networkx as nx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from slackswap_opt.errors import InputError
from slackswap_opt.formats import graphml, node_link
from slackswap_opt.formats.registry import read_content
from slackswap_opt.step import Operation, Phase, Tensor, TrainingStep, Value
from tests.hand import faults_in, named
from tests.strategies import training_steps


def graph(**changes: Any) -> nx.DiGraph[Any]:
    g: nx.DiGraph[Any] = nx.DiGraph(name="mine")
    g.add_node("a", duration_us=5, size_bytes=2**50 - 1, phase="forward")
    g.add_node("b", duration_us=2.5, size_bytes=20, recomputable=False)
    g.add_node("c", duration_ms=1, phase="backward")
    g.add_edge("a", "b")
    g.add_edge("b", "c")
    g.nodes["a"].update(changes)
    return g


def link(document: dict[str, Any]) -> TrainingStep:
    return read_content(json.dumps(document).encode(), "file")


def xml(text: str) -> TrainingStep:
    return read_content(text.encode(), "file")


def faults(content: str | dict[str, Any]) -> tuple[str, ...]:
    return faults_in(xml if isinstance(content, str) else link, content)


# Node-link JSON


@pytest.mark.parametrize("spelling", ["edges", "links"])
@pytest.mark.parametrize("kind", [nx.DiGraph, nx.MultiDiGraph])
def test_both_spellings_of_networkx_are_read(spelling: str, kind: Any) -> None:
    document = nx.node_link_data(kind(graph()), edges=spelling)
    step = link(document)
    assert step == TrainingStep.from_networkx(graph())
    assert step.name == "mine"
    assert step.tensors[0].size_bytes == 2**50 - 1


def test_ids_may_be_numbers_and_the_file_names_a_nameless_graph() -> None:
    step = link(
        {
            "nodes": [{"id": 1, "duration_us": 1, "size_bytes": 4}, {"id": 2, "duration_us": 1}],
            "links": [{"source": 1, "target": 2}],
        }
    )
    assert step.name == "file"
    assert [op.name for op in step.operations] == ["1", "2"]


@settings(max_examples=60, deadline=None)
@given(step=training_steps())
def test_round_trips_are_exact(step: TrainingStep) -> None:
    for known in (node_link, graphml):
        content = known.dumps(step).encode()
        assert known.recognizes(content)
        assert read_content(content, "x") == step


NAMES = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"]), min_size=1)


@settings(max_examples=100, deadline=None)
@given(
    names=st.lists(NAMES, min_size=3, max_size=4, unique=True), notes=st.lists(NAMES, max_size=2)
)
def test_round_trips_keep_any_name_and_note(names: list[str], notes: list[str]) -> None:
    step = named(names, notes)
    assert read_content(node_link.dumps(step).encode(), "x") == step
    if any(character in "\ufffe\uffff" for text in [*names, *notes] for character in text):
        with pytest.raises(InputError, match="XML cannot hold"):
            graphml.dumps(step)
    else:
        assert read_content(graphml.dumps(step).encode(), "x") == step


def test_networkx_reads_what_is_written() -> None:
    step = TrainingStep.from_networkx(graph())
    again = nx.node_link_graph(json.loads(node_link.dumps(step)), edges="edges")
    assert TrainingStep.from_networkx(again) == step
    assert len(nx.read_graphml(io.BytesIO(graphml.dumps(step).encode()))) == 5


@pytest.mark.parametrize(
    ("document", "expected"),
    [
        ({"directed": False}, 'write a DiGraph, which has "directed": true'),
        ({"nodes": {}}, "nodes is an object, expected a list"),
        ({"nodes": [7]}, "nodes[0] is 7, expected an object"),
        ({"nodes": [{}]}, "nodes[0]: id is null, expected text or a number"),
        ({"nodes": [{"id": True}]}, "id is true, expected text or a number"),
        ({"nodes": [{"id": "a", "duration_us": 1}] * 2}, '2 nodes have the id "a"'),
        ({"links": []}, "both edges and links are given; keep one"),
        ({"edges": 5}, "edges is 5, expected a list"),
        ({"edges": [5]}, "edges[0] is 5, expected an object"),
        ({"edges": [{"source": "a"}]}, "edges[0]: target is null, expected the id of a node"),
        ({"edges": [{"source": "a", "target": "bb"}]}, 'there is no node "bb"; did you mean "b"?'),
        ({"edges": [{"source": "a", "target": "b", "size": 1}]}, "size_bytes, the size of its"),
        ({"graph": []}, "graph is a list, expected an object"),
    ],
)
def test_faults_of_node_link(document: dict[str, Any], expected: str) -> None:
    whole = {
        "directed": True,
        "multigraph": False,
        "nodes": [{"id": "a", "duration_us": 1}, {"id": "b", "duration_us": 1}],
        "edges": [],
    }
    found = faults(whole | document)
    assert any(expected in fault for fault in found), found


def test_a_graph_without_edges_says_so() -> None:
    document = {"directed": True, "nodes": [{"id": "a", "duration_us": 1}]}
    assert faults(document) == ("there are no edges; add a list named edges (or links)",)


def test_the_example_of_the_documentation_reads() -> None:
    page = (Path(__file__).parents[1] / "docs" / "formats.md").read_text(encoding="utf-8")
    (example,) = [e for e in page.split("```json\n")[1:] if e.startswith('{"directed"')]
    step = read_content(example.split("```")[0].encode(), "x")
    assert [op.phase for op in step.operations] == ["forward", "forward", "backward"]


# GraphML


def test_what_networkx_writes_is_read() -> None:
    for kind in (nx.DiGraph, nx.MultiDiGraph):
        stream = io.BytesIO()
        nx.write_graphml(kind(graph()), stream)
        assert read_content(stream.getvalue(), "mine") == TrainingStep.from_networkx(graph())


YED = """<?xml version="1.0" encoding="UTF-8" standalone="no"?>
<graphml xmlns="http://graphml.graphdrawing.org/xmlns" xmlns:y="http://www.yworks.com/xml/graphml">
  <!--Created by yEd 3.23-->
  <key attr.name="Description" attr.type="string" for="graph" id="d0"/>
  <key for="node" id="d1" yfiles.type="nodegraphics"/>
  <key attr.name="duration_us" attr.type="double" for="node" id="d2"><default>1.5</default></key>
  <key attr.name="size_bytes" attr.type="int" for="node" id="d3"/>
  <key for="edge" id="d4" yfiles.type="edgegraphics"/>
  <graph edgedefault="directed" id="G">
    <data key="d0" xml:space="preserve"/>
    <node id="n0"><data key="d3"> 4096 </data>
      <data key="d1"><y:ShapeNode><y:Geometry height="30"/><y:NodeLabel fontSize="12">conv
        <y:LabelModel/></y:NodeLabel><y:NodeLabel>second</y:NodeLabel></y:ShapeNode></data>
    </node>
    <node id="n1"><data key="d2">2</data>
      <data key="d1"><y:ShapeNode><y:NodeLabel>relu</y:NodeLabel></y:ShapeNode></data></node>
    <edge id="e0" source="n0" target="n1"><data key="d4"><y:PolyLineEdge/></data></edge>
  </graph>
</graphml>
"""


def test_what_yed_writes_is_read_with_labels_as_names_and_defaults() -> None:
    step = xml(YED)
    assert [(op.name, op.duration_ns) for op in step.operations] == [("conv", 1500), ("relu", 2000)]
    assert step.tensors == (Tensor.of("conv", 4096),)
    assert step.operations[1].reads == (Value("conv"),)


def small(
    nodes: str = "", edges: str = "", head: str = "", graph: str = 'edgedefault="directed"'
) -> str:
    return f"""{head}<graphml xmlns="http://graphml.graphdrawing.org/xmlns">
<key id="t" for="node" attr.name="duration_us" attr.type="double"/>
<key id="s" for="node" attr.name="size_bytes" attr.type="long"/>
<graph {graph}>
<node id="a"><data key="t">1</data><data key="s">8</data></node>
{nodes}
{edges}
</graph></graphml>"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (small('<node id="b"/>'), 'line 6: node "b" has no attributes'),
        (small('<node><data key="t">1</data></node>'), "line 6: a node without id"),
        (small('<node id="a"><data key="t">1</data></node>'), '2 nodes have the id "a"'),
        (small('<node id="b"><data key="t">x</data></node>'), 'duration_us is "x", expected a fin'),
        (small('<node id="b"><data key="q">1</data></node>'), '<data> names the key "q"'),
        (small('<node id="b"><data key="t">1</data><data key="t">2</data></node>'), "given twice"),
        (small('<node id="b"><data key="t">1</data><data key="s">8.0</data></node>'), "write 8"),
        (small('<node id="b"><data key="t">1</data><data key="s"/></node>'), 'size_bytes is ""'),
        (small('<node id="b"><data key="t">1e999</data></node>'), "expected a finite number"),
        (small(edges='<edge source="a" target="b"/>'), 'edge "a" -> "b": there is no node "b"'),
        (small(edges='<edge source="a"/>'), "an edge without source or target"),
        (small(edges="<hyperedge/>"), "<hyperedge> is not read; use edges"),
        (small('<node id="g"><graph><node id="h"/></graph></node>'), "groups and nested graphs"),
        (small("<graph/>"), "a second <graph>"),
        (
            small(edges='<edge source="a" target="a"/>', graph='edgedefault="undirected"'),
            "not dire",
        ),
        (small()[:-3], "not well-formed XML: unclosed token"),
        (small("<node"), "line 8, column 1: not well-formed XML"),
        (small("\x01"), "not well-formed XML: not well-formed (invalid token)"),
        (small(head='<?xml version="1.0" encoding="klingon"?>'), "encoding"),
        ("<graphml/>", "the step has no operations"),
    ],
)
def test_faults_of_graphml(text: str, expected: str) -> None:
    found = faults(text)
    assert any(expected in fault for fault in found), found


def test_control_characters_cannot_be_written() -> None:
    step = TrainingStep.build("x", [Operation("a\x07", Phase.FORWARD, 1)], [])
    with pytest.raises(InputError, match=r"'\\x07', which XML cannot hold; rename it"):
        graphml.dumps(step)

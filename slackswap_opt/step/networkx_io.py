"""Between training steps and graphs of networkx; `graph_records` says what attributes mean."""

from __future__ import annotations

from typing import Any

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.graph_records import Edge, Node, records_of, step_of, texts


def from_networkx(graph: nx.Graph[Any], name: str | None = None) -> TrainingStep:
    """The training step that a directed graph describes.

    Args:
        graph: a DiGraph or MultiDiGraph. Its nodes are operations, in their order; an edge says
            that the second reads what the first makes. Nodes need a duration (`duration_us`, or in
            `_ns`, `_ms`, `_s`) and, if anybody reads their output, its `size_bytes`. They may have
            `phase` (forward if left out), `layer`, `workspace_bytes`, `parameter_bytes`,
            `recomputable`, `random`, `name`. Nodes with `role="tensor"` are tensors.
        name: of the step; the graph's own name if left out.

    Raises:
        InputError: with every fault, by node and edge.
    """
    if not isinstance(graph, nx.Graph):
        raise InputError(f"a {type(graph).__name__} is not a graph of networkx; give a DiGraph")
    if not graph.is_directed():
        raise InputError(
            "the graph is not directed, so it does not say who reads what; give a nx.DiGraph"
        )
    nodes = [Node(key, attributes) for key, attributes in graph.nodes(data=True)]
    edges = [Edge(*ends_and_attributes) for ends_and_attributes in graph.edges(data=True)]
    own = graph.graph.get("name")
    title = name if name is not None else own if isinstance(own, str) and own else "graph"
    return step_of(title, nodes, edges, tuple(texts(graph.graph.get("notes"))))


def to_networkx(step: TrainingStep) -> nx.DiGraph[Any]:
    """The step as a graph from which `from_networkx` makes the same step.

    Tensors are nodes of their own; every version that an in-place write makes is one too.
    """
    graph: nx.DiGraph[Any] = nx.DiGraph(name=step.name)
    if step.notes:
        graph.graph["notes"] = list(step.notes)
    nodes, edges = records_of(step)
    graph.add_nodes_from(nodes)
    graph.add_edges_from(edges)
    return graph

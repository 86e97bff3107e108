"""Node-link JSON, as networkx writes it: nodes and directed edges with attributes.

Both spellings are read, `links` (networkx before 3.4) and `edges`. What attributes mean is in
`slackswap_opt.step.graph_records`.
"""

from __future__ import annotations

import json
import re
from typing import Any, TypeGuard

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files, strict_json
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.graph_records import Edge, Node, records_of, step_of, texts

NAME = "node-link JSON (networkx), with nodes and edges or links"

_NODES = re.compile(rb'"nodes"\s*:')
_GRAPH = re.compile(rb'"(directed|multigraph)"\s*:|"(links|edges)"\s*:\s*\[')
_SPELLINGS = ("edges", "links")


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a graph in node-link JSON, sound or not."""
    start = head.lstrip(b"\xef\xbb\xbf \t\r\n")
    if not start.startswith(b"{"):
        return False
    return _NODES.search(start) is not None and _GRAPH.search(start) is not None


def read(content: bytes, name: str) -> TrainingStep:
    """Read a step from the content of a file; `name` is its name if the graph has none.

    Raises:
        InputError: with every fault, by node and edge.
    """
    document, faults = strict_json.parse(files.decode(content))
    if not isinstance(document, dict):
        raise InputError(*faults, f"the document is {shown(document)}, expected an object {{...}}")
    if not document.get("directed", True):
        faults.append(
            "the graph is not directed, so it does not say who reads what; write a DiGraph, which "
            'has "directed": true'
        )
    given = [key for key in _SPELLINGS if key in document]
    if len(given) != 1:
        faults.append(
            "both edges and links are given; keep one"
            if given
            else "there are no edges; add a list named edges (or links)"
        )
    nodes = _nodes(document, faults)
    edges = _edges(document, given[0], faults) if given else []
    graph = document.get("graph", {})
    if not isinstance(graph, dict):
        faults.append(f"graph is {shown(graph)}, expected an object {{...}}")
        graph = {}
    title = graph.get("name")
    try:
        step = step_of(
            title if isinstance(title, str) and title else name,
            nodes,
            edges,
            tuple(texts(graph.get("notes"))),
        )
    except InputError as error:
        raise InputError(*faults, *error.faults) from None
    if faults:
        raise InputError(*faults)
    return step


def dumps(step: TrainingStep) -> str:
    """A step as node-link JSON text, one line for each node and edge."""
    nodes, edges = records_of(step)
    graph: dict[str, Any] = {"name": step.name}
    if step.notes:
        graph["notes"] = list(step.notes)
    return "\n".join(
        [
            '{"directed": true, "multigraph": false,',
            f'"graph": {_json(graph)},',
            '"nodes": [',
            ",\n".join(_json({"id": key, **attributes}) for key, attributes in nodes),
            "],",
            '"edges": [',
            ",\n".join(_json({"source": a, "target": b, **at}) for a, b, at in edges),
            "]}",
            "",
        ]
    )


# Entries lose what is not an attribute, so that nothing is copied: the document is read once.


def _nodes(document: dict[str, Any], faults: list[str]) -> list[Node]:
    found = []
    for index, entry in enumerate(_list(document, "nodes", faults)):
        if not isinstance(entry, dict):
            faults.append(f"nodes[{index}] is {shown(entry)}, expected an object {{...}}")
        elif not _is_id(entry.get("id")):
            faults.append(
                f"nodes[{index}]: id is {shown(entry.get('id'))}, expected text or a number; "
                "every node needs one"
            )
        else:
            found.append(Node(entry.pop("id"), entry))
    return found


def _edges(document: dict[str, Any], key: str, faults: list[str]) -> list[Edge]:
    found = []
    for index, entry in enumerate(_list(document, key, faults)):
        where = f"{key}[{index}]"
        if not isinstance(entry, dict):
            faults.append(f"{where} is {shown(entry)}, expected an object {{...}}")
            continue
        source, target = entry.pop("source", None), entry.pop("target", None)
        entry.pop("key", None)
        if _is_id(source) and _is_id(target):
            found.append(Edge(source, target, entry, where))
            continue
        faults.extend(
            f"{where}: {end} is {shown(given)}, expected the id of a node"
            for end, given in (("source", source), ("target", target))
            if not _is_id(given)
        )
    return found


def _list(document: dict[str, Any], field: str, faults: list[str]) -> list[Any]:
    value = document.get(field, [])
    if isinstance(value, list):
        return value
    faults.append(f"{field} is {shown(value)}, expected a list [...]")
    return []


def _is_id(value: object) -> TypeGuard[str | float]:
    return type(value) in (str, int, float)


def _json(value: object) -> str:
    return json.dumps(value, ensure_ascii=False)

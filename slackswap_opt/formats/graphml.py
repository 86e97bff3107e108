"""GraphML, as networkx, yEd and similar programs write it.

The file is read as a stream, with expat: a document type, and with it every entity, is refused as
soon as it begins. Values are text; what each attribute is expected to be decides how it is read, so
whole numbers stay exact. What attributes mean is in `slackswap_opt.step.graph_records`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any
from xml.parsers import expat
from xml.sax.saxutils import escape, quoteattr

from slackswap_opt.errors import InputError
from slackswap_opt.formats import strict_json
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.graph_records import (
    FLAGS,
    LISTS,
    NUMBERS,
    Edge,
    Node,
    records_of,
    step_of,
    texts,
)

NAME = "GraphML"

_ROOT = re.compile(
    rb"\s*(<\?xml[^>]{0,200}\?>\s*)?(<!--(?:(?!-->).)*-->\s*)*<(\w+:)?graphml\b",
    re.DOTALL,
)
_DOCTYPE = re.compile(rb"<!DOCTYPE\s+(\w+:)?graphml\b")
_NAMESPACE = "http://graphml.graphdrawing.org/xmlns"
_LOCAL = {f"{_NAMESPACE} {tag}": tag for tag in ("data", "node", "edge")}
"""The elements that most of a file consists of."""
_MAX_DEPTH = 40
_NUMBERS = frozenset(NUMBERS)
_WHOLE = re.compile(r"[+-]?[0-9]{1,30}")
_DECIMAL = re.compile(r"[+-]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]{1,3})?")
_NOT_XML = re.compile("[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]")


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is GraphML, sound or not."""
    start = head.removeprefix(b"\xef\xbb\xbf")[:20_000]
    if not start.lstrip().startswith(b"<"):
        return False
    return _ROOT.match(start) is not None or _DOCTYPE.search(start) is not None


def read(content: bytes, name: str) -> TrainingStep:
    """Read a step from the content of a file; `name` is its name if the graph has none.

    Raises:
        InputError: with every fault, by line.
    """
    document = _Document()
    document.parse(content)
    title = document.graph.get("name")
    try:
        step = step_of(
            title if isinstance(title, str) and title else name,
            document.nodes,
            document.edges,
            tuple(texts(document.graph.get("notes"))),
        )
    except InputError as error:
        raise InputError(*document.faults, *error.faults) from None
    if document.faults:
        raise InputError(*document.faults)
    return step


class _Document:
    """What the events have said so far."""

    def __init__(self) -> None:
        self.nodes: list[Node] = []
        self.edges: list[Edge] = []
        self.graph: dict[str, Any] = {}
        self.faults: list[str] = []
        self.keys: dict[str, tuple[str, str]] = {}
        self.defaults: dict[str, dict[str, Any]] = {"node": {}, "edge": {}, "graph": {}}
        self.open: list[str] = []
        self.directed = True
        self.attributes: dict[str, Any] = {}
        self.label: str | None = None
        self.start: tuple[int, dict[str, str]] = (0, {})
        self.graph_attributes: dict[str, Any] = {}
        self.key = ""
        self.text: list[str] | None = None
        self.parser = expat.ParserCreate(namespace_separator=" ")

    def parse(self, content: bytes) -> None:
        parser = self.parser
        parser.buffer_text = True
        parser.StartDoctypeDeclHandler = self._refuse_document_type
        parser.StartElementHandler = self._begin
        parser.EndElementHandler = self._end
        try:
            parser.Parse(content, True)
        except expat.ExpatError as error:
            raise InputError(
                f"line {error.lineno}, column {error.offset + 1}: not well-formed XML: "
                f"{expat.ErrorString(error.code)}"
            ) from None
        except InputError:
            raise
        except (ValueError, LookupError) as error:
            raise InputError(f"the encoding cannot be read ({error}); save it as UTF-8") from None

    def _refuse_document_type(self, *_: object) -> None:
        raise InputError(
            f"line {self.parser.CurrentLineNumber}: a document type (<!DOCTYPE ...>), which may "
            "define entities, is not read; remove it"
        )

    # Events

    def _begin(self, qualified: str, given: dict[str, str]) -> None:
        tag = _LOCAL.get(qualified) or qualified.rpartition(" ")[2]
        if len(self.open) >= _MAX_DEPTH:
            raise InputError(f"{self._line()}elements are nested too deeply")
        self.open.append(tag)
        if tag == "data":
            self.key = given.get("key", self.key)
            self.text = []
            self.parser.CharacterDataHandler = self.text.append
        elif tag in ("node", "edge") and "data" not in self.open:
            if self.start[0]:
                raise InputError(
                    f"{self._line()}<{tag}> inside of <node> or <edge>; groups and nested graphs "
                    "are not read, ungroup them"
                )
            self.start = (self.parser.CurrentLineNumber, given)
            self.attributes, self.label = {}, None
        elif tag == "graph" and "data" not in self.open:
            if self.open.count("graph") > 1:
                raise InputError(
                    f"{self._line()}a second <graph>; groups and nested graphs are not read, "
                    "ungroup them or give one graph"
                )
            self.directed = given.get("edgedefault", "directed") != "undirected"
        elif tag == "hyperedge":
            self.faults.append(f"{self._line()}<hyperedge> is not read; use edges")
        elif tag == "key":
            key, what = given.get("id", ""), given.get("for") or "all"
            self.keys[key] = (given.get("attr.name", ""), what)
            self.key = key
        elif tag == "default" or (tag == "NodeLabel" and self.start[0] and self.label is None):
            self.text = []
            self.parser.CharacterDataHandler = self.text.append

    def _heard(self) -> str:
        """The text collected, of the element that ends; what follows is between elements."""
        text, self.text = self.text or (), None
        self.parser.CharacterDataHandler = None
        return text[0] if len(text) == 1 else "".join(text)

    def _end(self, qualified: str) -> None:
        tag = _LOCAL.get(qualified) or qualified.rpartition(" ")[2]
        self.open.pop()
        if tag == "data" and self.text is not None:
            self._add_value(self.attributes if self.start[0] else self.graph, self._heard())
        elif tag == "NodeLabel" and self.text is not None:
            self.label = self._heard().strip()
        elif tag == "default" and self.text is not None:
            name, what = self.keys.get(self.key, ("", ""))
            text = self._heard()
            for kind in ("node", "edge", "graph") if what == "all" else (what,):
                if kind in self.defaults and name:
                    self.defaults[kind][name] = _value(name, text)
        elif tag in ("node", "edge") and self.start[0] and "data" not in self.open:
            self._finish(tag)

    def _line(self) -> str:
        return f"line {self.parser.CurrentLineNumber}: "

    def _add_value(self, owner: dict[str, Any], text: str) -> None:
        name, what = self.keys.get(self.key, ("", ""))
        if name and name not in owner:
            owner[name] = _value(name, text)
        elif not what:
            self.faults.append(
                f"{self._line()}<data> names the key {shown(self.key)}, which no <key> defines; "
                "add it"
            )
        elif name:
            self.faults.append(f"{self._line()}{name} is given twice; keep one")

    def _finish(self, tag: str) -> None:
        line, given = self.start
        self.start = (0, {})
        defaults = self.defaults[tag]
        attributes = {**defaults, **self.attributes} if defaults else self.attributes
        if tag == "node":
            key = given.get("id")
            if not key:
                self.faults.append(f"line {line}: a node without id; add one")
                return
            if self.label and "name" not in attributes:
                attributes["name"] = self.label
            self.nodes.append(Node(key, attributes, f"line {line}: "))
            return
        source, target = given.get("source"), given.get("target")
        if not source or not target:
            self.faults.append(f"line {line}: an edge without source or target; add it")
            return
        edge = Edge(source, target, attributes, f"line {line}: edge")
        if not self.directed or "directed" in given:
            self._refuse_undirected(edge, given)
        self.edges.append(edge)

    def _refuse_undirected(self, edge: Edge, given: dict[str, str]) -> None:
        if given.get("directed", "true" if self.directed else "false") != "true":
            self.faults.append(f"{edge.where} is not directed, so it does not say who reads what")


def _value(name: str, text: str) -> Any:
    """Text as what the attribute of this name is expected to be; as it is where it is not."""
    if name in _NUMBERS:
        if text.isdecimal() and len(text) <= 30 and text.isascii():
            return int(text)
        plain = text.strip()
        if _WHOLE.fullmatch(plain):
            return int(plain)
        if len(plain) < 100 and _DECIMAL.fullmatch(plain):
            return float(plain)
        return text
    plain = text.strip()
    if name in ("role", "phase"):
        return plain
    if name in FLAGS and plain.lower() in ("true", "false"):
        return plain.lower() == "true"
    if name in LISTS and plain.startswith("["):
        try:
            document, faults = strict_json.parse(plain)
        except InputError:
            return text
        return document if not faults else text
    return text


def dumps(step: TrainingStep) -> str:
    """A step as GraphML text that reads back as the same step.

    Raises:
        InputError: for a name with a character that XML cannot hold.
    """
    nodes, edges = records_of(step)
    graph: dict[str, Any] = {"name": step.name}
    if step.notes:
        graph["notes"] = list(step.notes)
    keys: dict[tuple[str, str], str] = {}
    body: list[str] = []
    for name, value in graph.items():
        body.append("  " + _data(keys, "graph", name, value))
    for key, attributes in nodes:
        body.append(f"  <node id={_quoted(key)}>{_all_data(keys, 'node', attributes)}</node>")
    for source, target, attributes in edges:
        body.append(
            f"  <edge source={_quoted(source)} target={_quoted(target)}>"
            f"{_all_data(keys, 'edge', attributes)}</edge>"
        )
    declared = [
        f'<key id="{identity}" for="{what}" attr.name="{name}" attr.type="{_type(name)}"/>'
        for (what, name), identity in keys.items()
    ]
    return "\n".join(
        [
            '<?xml version="1.0" encoding="UTF-8"?>',
            f'<graphml xmlns="{_NAMESPACE}">',
            *declared,
            '<graph edgedefault="directed">',
            *body,
            "</graph>",
            "</graphml>",
            "",
        ]
    )


def _all_data(keys: dict[tuple[str, str], str], what: str, attributes: Mapping[str, Any]) -> str:
    return "".join(_data(keys, what, name, value) for name, value in attributes.items())


def _data(keys: dict[tuple[str, str], str], what: str, name: str, value: Any) -> str:
    key = keys.setdefault((what, name), f"d{len(keys)}")
    text = value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
    return f'<data key="{key}">{_escaped(text)}</data>'


def _type(name: str) -> str:
    return "long" if name in NUMBERS else "boolean" if name in FLAGS else "string"


def _escaped(text: str) -> str:
    """Text for XML; carriage returns are written as references, or a reader would change them."""
    _refuse_what_xml_lacks(text)
    return escape(text, {"\r": "&#13;"})


def _quoted(text: str) -> str:
    _refuse_what_xml_lacks(text)
    return quoteattr(text)


def _refuse_what_xml_lacks(text: str) -> None:
    wrong = _NOT_XML.search(text)
    if wrong:
        raise InputError(
            f"{shown(text)} has the character {wrong[0]!a}, which XML cannot hold; rename it, or "
            "write another format"
        )

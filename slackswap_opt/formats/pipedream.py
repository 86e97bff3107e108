r"""PipeDream profiles: measured times and sizes of a network's layers, as text.

A line describes a layer, an indented one an edge:

    node2 -- Conv2d(3, 64, ...) -- forward_compute_time=9.706, backward_compute_time=4.551, \
activation_size=411041792.000, parameter_size=37632.000
        node1 -- node2

Times are milliseconds, sizes bytes; a size may be a list, `[6291456.0; 131072.0]`. What a profile
leaves open is derived in `slackswap_opt.formats.layer_graph`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from decimal import Decimal

from slackswap_opt.errors import InputError
from slackswap_opt.formats import files
from slackswap_opt.formats.layer_graph import Layer, training_step
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES, MAX_NS, TrainingStep

NAME = "PipeDream profile (graph.txt)"

_SEPARATOR = " -- "
_LINE = re.compile(rb"\s*[^\s{}\[\]\"]{1,200} -- \S")
_NUMBER = re.compile(r"[0-9]{1,20}(\.[0-9]{0,20})?([eE][+-]?[0-9]{1,2})?")
_TRACE_NUMBER = re.compile(r"\D*([0-9]{1,15})")
_IN_PLACE = re.compile(r"\binplace\b(?!\s*=\s*False)")
_DROPOUT = re.compile(r"Dropout\w*\(\s*(?:p=)?([0-9.]+)|\bdropout=([0-9.]+)")
_PICK = re.compile(r"-?[0-9]{1,9}")
_NO_WORD = re.compile(r"\W+")
_FIELDS = ("forward_compute_time", "backward_compute_time", "activation_size", "parameter_size")
_NS_PER_MS = 10**6


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is a PipeDream profile, sound or not."""
    return _LINE.match(head.removeprefix(b"\xef\xbb\xbf")) is not None


def read(content: bytes, name: str) -> TrainingStep:
    """Read a profile and derive the training step it describes.

    Raises:
        InputError: with every fault found, by line.
    """
    profile = _Profile()
    for number, line in enumerate(files.decode(content).split("\n"), start=1):
        if line.strip():
            profile.add(number, line.rstrip("\r"))
    return training_step(name, profile.layers())


@dataclass(slots=True)
class _Node:
    line: int
    description: str
    forward_ns: int
    backward_ns: int
    output_bytes: tuple[int, ...]
    parameter_bytes: int
    inputs: list[str] = field(default_factory=list)


class _Profile:
    """What the lines have said so far."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self.edges: list[tuple[int, str, str]] = []
        self.faults: list[str] = []

    def add(self, number: int, line: str) -> None:
        """Take in a line."""
        parts = line.strip().split(_SEPARATOR)
        if len(parts) == 2:
            self.edges.append((number, parts[0], parts[1]))
            return
        if len(parts) > 3 and parts[-1].startswith("stage_id="):
            parts.pop()
        if len(parts) < 3 or not parts[0]:
            self.faults.append(
                f"line {number} is {shown(line.strip())}, expected a layer, "
                "`name -- type -- forward_compute_time=..., ...`, or an edge, `name -- name`"
            )
            return
        name = parts[0]
        node = self._node(number, _SEPARATOR.join(parts[1:-1]), parts[-1])
        if name in self.nodes:
            self.faults.append(
                f"line {number}: {shown(name)} is defined in line {self.nodes[name].line} too; "
                "names must be unique"
            )
        self.nodes[name] = node

    def layers(self) -> list[Layer]:
        """The layers with their inputs.

        Raises:
            InputError: with every fault of the lines and edges.
        """
        for number, source, reader in self.edges:
            unknown = [name for name in dict.fromkeys((source, reader)) if name not in self.nodes]
            self.faults.extend(
                f"line {number}: the edge names {shown(name)}, which no line defines"
                for name in unknown
            )
            if not unknown and source not in self.nodes[reader].inputs:
                self.nodes[reader].inputs.append(source)
        if not self.nodes and not self.faults:
            self.faults.append("the profile has no layers")
        if self.faults:
            raise InputError(*self.faults)
        return [_layer(name, node) for name, node in self.nodes.items()]

    def _node(self, number: int, description: str, figures: str) -> _Node:
        pairs = [figure.partition("=") for figure in figures.split(",")]
        texts = {name.strip(): text for name, _, text in pairs}
        known = {}
        for name in _FIELDS:
            if name not in texts:
                self.faults.append(f"line {number}: {name} is missing; expected {name}=number")
            known[name] = texts.get(name, "0")
        times = [self._quantity(number, name, known[name], _NS_PER_MS) for name in _FIELDS[:2]]
        listed = known["activation_size"].strip()
        elements = [listed]
        if listed.startswith("[") and listed.endswith("]"):
            elements = listed[1:-1].split(";")
        sizes = tuple(self._quantity(number, "activation_size", text, 1) for text in elements)
        parameter_bytes = self._quantity(number, "parameter_size", known["parameter_size"], 1)
        return _Node(number, description, times[0], times[1], sizes, parameter_bytes)

    def _quantity(self, number: int, name: str, text: str, scale: int) -> int:
        """A time in ms as whole ns, or a size as whole bytes; 0 for a text at fault."""
        text = text.strip()
        time = scale > 1
        unit, limit = ("ms", MAX_NS) if time else ("bytes", MAX_BYTES)
        exact = Decimal(text) * scale if _NUMBER.fullmatch(text) else Decimal(-1)
        nearest = round(exact)
        if nearest < 0 or (not time and exact != nearest):
            kind = "a number" if time else "a whole number"
            self.faults.append(
                f"line {number}: {name} is {shown(text)}, expected {kind} of {unit}, 0 or more"
            )
            return 0
        if exact > limit:
            self.faults.append(
                f"line {number}: {name} is {shown(text)}, expected at most {limit / scale:g} {unit}"
            )
            return 0
        return nearest


def _layer(name: str, node: _Node) -> Layer:
    kind, arguments = _type_and_arguments(node.description)
    trace_number = _TRACE_NUMBER.fullmatch(name)
    pick = _PICK.fullmatch(arguments.strip()) if kind == "__getitem__" else None
    return Layer(
        name=name,
        kind=kind,
        inputs=tuple(node.inputs),
        forward_ns=node.forward_ns,
        backward_ns=node.backward_ns,
        output_bytes=node.output_bytes,
        parameter_bytes=node.parameter_bytes,
        in_place=_IN_PLACE.search(arguments) is not None,
        random=_draws(kind, node.description),
        picks=int(pick[0]) if pick else None,
        order=(0, int(trace_number[1])) if trace_number else (1, node.line),
    )


def _type_and_arguments(description: str) -> tuple[str, str]:
    """`Conv2d(3, 64, kernel_size=(7, 7))` as type and arguments, nested parentheses left out."""
    name, _, rest = description.strip().partition("(")
    kind = _NO_WORD.sub("_", name.strip())[:80] or "layer"
    if "(" not in rest:
        return kind, rest.partition(")")[0]
    depth, arguments = 1, []
    for character in rest:
        depth += (character == "(") - (character == ")")
        if depth == 1 and character != ")":
            arguments.append(character)
        if depth == 0:
            break
    return kind, "".join(arguments)


def _draws(kind: str, description: str) -> bool:
    """Whether it, or a part of it, is a dropout that drops anything."""
    rates = [a or b for a, b in _DROPOUT.findall(description)]
    if not rates:
        return kind.lower().startswith("dropout")
    return any(rate.strip("0.") for rate in rates)

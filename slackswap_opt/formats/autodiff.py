"""From forward operations with known rules to a training step with its backward phase.

Formats that know an operation's tensors one by one (ONNX models, profiler traces) describe each
operation as a `Node`: what it reads and writes, what its backward operation reads again, and which
inputs get a gradient. Gradients are then routed as an eager framework routes them: a gradient is a
tensor of its own, it lives until its last reader, and where a tensor has several readers their
contributions are summed as they arrive, each sum in new memory.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from slackswap_opt.formats.naming import Names
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Operation, Phase, Tensor, Value


@dataclass(frozen=True, eq=False, slots=True)
class Variable:
    """What one name in a framework stands for: a version of a storage, whole or a view of it.

    Variables are compared by identity; two names of the very same elements are one variable.

    Attributes:
        value: the storage and its version.
        size_bytes: of the elements named, which is what its gradient holds.
        static: parameters, batch inputs and constants.
        trained: whether gradients flow to it.
    """

    value: Value
    size_bytes: int
    static: bool = False
    trained: bool = False


class Backward(NamedTuple):
    """How gradients pass through a node.

    Attributes:
        duration_ns: of the backward operation; with 0 and nothing to give there is none.
        of: outputs whose gradients come in.
        saves: variables of the forward phase that it reads.
        gives: inputs for which it makes a gradient.
        passes: inputs that take the gradient of the first output as theirs, memory included.
        workspace_bytes: scratch memory while it runs.
        recomputable: whether it may run again.
    """

    duration_ns: int
    of: tuple[Variable, ...]
    saves: tuple[Variable, ...] = ()
    gives: tuple[Variable, ...] = ()
    passes: tuple[Variable, ...] = ()
    workspace_bytes: int = 0
    recomputable: bool = True


class Node(NamedTuple):
    """One operation of the forward phase.

    Attributes:
        name: unique, from `Names`, as are the names of storages.
        reads: what it needs.
        writes: what it produces; a view produces nothing.
        duration_ns: None for a view, which is no operation of its own.
        backward: None where no gradient passes.
        starts_layer: in a plain chain it begins a layer; see `layers_of`.
        workspace_bytes: scratch memory while it runs.
        recomputable: whether it may run again.
        random: whether it draws random numbers.
    """

    name: str
    reads: tuple[Variable, ...]
    writes: tuple[Variable, ...]
    duration_ns: int | None
    backward: Backward | None = None
    starts_layer: bool = False
    workspace_bytes: int = 0
    recomputable: bool = True
    random: bool = False


SumCost = Callable[[Node, Variable], int]
"""Time in ns to add the gradient that a node makes for a variable to the one there is."""


def training_step(
    name: str,
    nodes: Sequence[Node],
    *,
    loss_ns: int,
    sum_ns: SumCost,
    backward_order: Sequence[Node] | None = None,
    optimizer: Iterable[Operation] = (),
    notes: Sequence[str] = (),
    measured: bool = False,
) -> TrainingStep:
    """Derive the backward phase of forward operations.

    Args:
        name: of the step.
        nodes: in execution order.
        loss_ns: time of the operation that makes the gradients of the outputs.
        sum_ns: what a sum of two gradients costs.
        backward_order: the nodes in the order of their backward operations; the reverse of
            `nodes` if not given. Contributions that come after their reader has run are left out.
        optimizer: operations after the backward phase.
        notes: of the step.
        measured: whether every backward operation ran, so that each takes its time, even one that
            no gradient is known to reach.

    Raises:
        InputError: as `TrainingStep.build`.
    """
    tape = _Tape(nodes, sum_ns)
    for node in nodes:
        tape.forward(node)
    tape.loss(nodes, loss_ns)
    for node in reversed(nodes) if backward_order is None else backward_order:
        tape.backward(node, measured=measured)
    statics = {
        variable.value.tensor: Tensor.of(variable.value.tensor, variable.size_bytes, static=True)
        for node in nodes
        for variable in (*node.reads, *(node.backward.saves if node.backward else ()))
        if variable.static
    }
    return TrainingStep.build(
        name,
        [*tape.operations, *optimizer],
        [*tape.tensors, *statics.values()],
        notes,
    )


class Access(NamedTuple):
    """What an operation of the forward phase reads and writes, and whether it begins a layer."""

    reads: Sequence[Value]
    writes: Sequence[Value]
    starts_layer: bool


def layers_of(accesses: Sequence[Access]) -> list[str]:
    """The layer of each operation; a new one begins where a single tensor passes.

    That is at the first operation of each stretch in which several tensors pass (a residual
    block) and, outside of such stretches, at each one that `starts_layer`.
    """
    made: dict[str, int] = {}
    last: dict[str, int] = {}
    for position, access in enumerate(accesses):
        for value in access.writes:
            made.setdefault(value.tensor, position)
        for value in access.reads:
            last[value.tensor] = position
    change = [0] * (len(accesses) + 1)
    for storage, position in made.items():
        if last.get(storage, -1) > position:
            change[position] += 1
            change[last[storage]] -= 1
    labels: list[str] = []
    number, passing, inside = 0, 0, False
    for position, access in enumerate(accesses):
        passing += change[position]
        several = passing > 1
        if position and not inside and (several or access.starts_layer):
            number += 1
        labels.append(f"layer.{number}")
        inside = several
    return labels


class _Tape:
    """The operations so far, and the gradient that each variable has so far."""

    def __init__(self, nodes: Sequence[Node], sum_ns: SumCost) -> None:
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []
        self._sum_ns = sum_ns
        self._gradient: dict[Variable, Value] = {}
        self._used: set[Variable] = set()
        self._tensor_names, self._operation_names = Names(), Names()
        storages = (v.value.tensor for n in nodes for v in (*n.reads, *n.writes))
        self._tensor_names.reserve(storages)
        self._operation_names.reserve(node.name for node in nodes)
        accesses = [
            Access(_values(node.reads), _values(node.writes), node.starts_layer) for node in nodes
        ]
        names = (node.name for node in nodes)
        self._layer = dict(zip(names, layers_of(accesses), strict=True))

    def forward(self, node: Node) -> None:
        if node.duration_ns is None:
            return
        self.tensors += [
            Tensor.of(variable.value.tensor, variable.size_bytes)
            for variable in node.writes
            if variable.value.version == 0
        ]
        self._emit(
            node, node.name, Phase.FORWARD, node.duration_ns,
            _values(node.reads), _values(node.writes),
            node.workspace_bytes, node.recomputable, node.random,
        )  # fmt: skip

    def loss(self, nodes: Sequence[Node], duration_ns: int) -> None:
        """Make the gradients of all outputs that no other trained node reads."""
        inner = {
            variable
            for node in nodes
            if node.backward
            for variable in (*node.backward.gives, *node.backward.passes)
        }
        ends = [
            (node, variable)
            for node in nodes
            if node.backward
            for variable in node.backward.of
            if variable not in inner
        ]
        if not ends:
            return
        gradients = []
        for _, variable in ends:
            self._gradient[variable] = self._new(variable)
            gradients.append(self._gradient[variable])
        self._emit(
            ends[-1][0], "loss", Phase.BACKWARD, duration_ns,
            (variable.value for _, variable in ends), gradients,
        )  # fmt: skip

    def backward(self, node: Node, *, measured: bool) -> None:
        rule = node.backward
        if rule is None:
            return
        incoming = [self._gradient[v] for v in rule.of if v in self._gradient]
        self._used.update(rule.of)
        if not (incoming or measured):
            return
        for variable in rule.passes if incoming else ():
            self._contribute(node, variable, incoming[0])
        made = {v: self._new(v) for v in dict.fromkeys(rule.gives) if v not in self._used}
        if made or rule.duration_ns:
            self._emit(
                node, f"{node.name}.backward", Phase.BACKWARD, rule.duration_ns,
                (*incoming, *_values(rule.saves)), made.values(),
                rule.workspace_bytes, rule.recomputable,
            )  # fmt: skip
        for variable, gradient in made.items():
            self._contribute(node, variable, gradient)

    def _contribute(self, node: Node, variable: Variable, gradient: Value) -> None:
        earlier = self._gradient.get(variable)
        if variable in self._used:
            return
        if earlier is None:
            self._gradient[variable] = gradient
            return
        total = self._new(variable)
        self._emit(
            node, f"{total.tensor}.sum", Phase.BACKWARD, self._sum_ns(node, variable),
            (earlier, gradient), (total,),
        )  # fmt: skip
        self._gradient[variable] = total

    def _new(self, variable: Variable) -> Value:
        value = Value(self._tensor_names.unique(f"{variable.value}.grad"))
        self.tensors.append(Tensor.of(value.tensor, variable.size_bytes))
        return value

    def _emit(
        self,
        node: Node,
        name: str,
        phase: Phase,
        duration_ns: int,
        reads: Iterable[Value],
        writes: Iterable[Value],
        workspace_bytes: int = 0,
        recomputable: bool = True,
        random: bool = False,
    ) -> None:
        if phase is not Phase.FORWARD:
            name = self._operation_names.unique(name)
        self.operations.append(
            Operation(
                name, phase, duration_ns, tuple(reads), tuple(writes),
                workspace_bytes, self._layer[node.name], recomputable, random,
            )
        )  # fmt: skip


def _values(variables: Iterable[Variable]) -> list[Value]:
    return [variable.value for variable in variables]

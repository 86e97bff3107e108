"""Which call of a trace reads whose output: matched by shape, held against the backward phase."""

from __future__ import annotations

import re
from collections import Counter, defaultdict, deque
from dataclasses import dataclass
from functools import lru_cache

from slackswap_opt.formats.autodiff import Backward, Node, Variable
from slackswap_opt.formats.kineto_events import Call, Shape, within
from slackswap_opt.formats.kineto_rules import (
    is_collective,
    is_random,
    is_view,
    saved_rule,
)
from slackswap_opt.formats.kineto_units import Unit
from slackswap_opt.formats.naming import Names
from slackswap_opt.step.model import Value

_WEIGHTS = (
    (re.compile(r"aten::\w*conv\w*|aten::linear|aten::\w*batch_norm|aten::prelu"), (1, 2)),
    (re.compile(r"aten::\w*(layer|group|rms)_norm"), (1, 2)),
    (re.compile(r"aten::\w*addmm|aten::baddbmm"), (0, 2)),
    (re.compile(r"aten::embedding\w*"), (0,)),
    (re.compile(r"aten::mm|aten::matmul"), (1,)),
)
"""Which tensor arguments are parameters, where one of that shape is at hand."""
_BUFFERS = ((re.compile(r"aten::\w*batch_norm"), (3, 4)),)
"""Which tensor arguments are running statistics."""
LOOK_BACK = 256
"""How many outputs of a shape are remembered; an older one is never meant."""
_IN_PLACE = re.compile(r"aten::\w*[a-zA-Z0-9]_")
_STARTS_LAYER = re.compile(r"aten::(\w*conv\w*|linear|\w*addmm|mm|embedding\w*)")


@dataclass(eq=False, slots=True)
class _Named:
    """An output as later calls may name it; `expected` readers are known to exist."""

    variable: Variable
    reads: int = 0
    expected: int = 1
    overwritten: bool = False


class Flow:
    """Makes the nodes of the forward phase, one unit after the other.

    For an input, the outputs of its shape are asked in this order: those nobody has read yet, the
    latest first; those that must have another reader, because the backward phase summed gradients
    of that shape where an earlier reader got its own; the latest of all. Arguments that are weights
    take a parameter first. The last argument of a call chooses first: a weight that is transposed
    on its way comes after the activation that it meets.

    Attributes:
        tied: numbers of the operations that have nodes with tensors.
        matched: inputs found by the first two rules.
        guessed: inputs found by the last.
        statics: inputs that are parameters or the batch.
        unknown: autograd functions without a rule.
        kept_apart: operations said to be in place that have memory of their own here.
        random: operations that draw random numbers.
        outside: units without tensors.
        lost_us: kernel time behind backward operations that are none here (views of parameters).
        allocated_bytes: all storages of the forward phase.
    """

    def __init__(self, backward: dict[int, Unit], parameters: Counter[Shape]) -> None:
        self.tied: set[int] = set()
        self.matched = self.guessed = self.statics = self.allocated_bytes = 0
        self.lost_us = 0.0
        self.unknown: dict[str, None] = {}
        self.kept_apart: dict[str, None] = {}
        self.random: dict[str, None] = {}
        self.outside: list[Unit] = []
        self._backward = backward
        self._parameters = parameters.copy()
        self._operations, self._storages = Names(), Names()
        self._outputs: dict[Shape, deque[_Named]] = defaultdict(lambda: deque(maxlen=LOOK_BACK))
        self._statics: dict[Shape, deque[_Named]] = defaultdict(lambda: deque(maxlen=LOOK_BACK))
        self._named: dict[str, list[_Named]] = defaultdict(list)
        self._saved: set[Value] = set()

    def node(self, unit: Unit) -> Node:
        """The node of the next unit in the order of the stream."""
        name = self._operations.unique(unit.call.name.removeprefix("aten::"))
        backward = self._backward.get(unit.number) if unit.number is not None else None
        if backward is None or unit.number is None or not backward.gradients:
            self.outside.append(unit)
            return Node(
                name, (), (), unit.duration_ns, workspace_bytes=unit.workspace_bytes,
                recomputable=False,
            )  # fmt: skip
        self.tied.add(unit.number)
        shapes = [shape for shape in _shapes(unit.call) if shape.floating and shape.size_bytes]
        if unit.call.kernels == 0 and is_view(unit.call.name) and shapes:
            return self._view(name, shapes[0], backward)
        return self._operation(name, unit, shapes, backward)

    def _view(self, name: str, shape: Shape, backward: Unit) -> Node:
        source = self._match(name, shape, backward)
        outputs = []
        whole = len(backward.gradients) == 1 and not backward.call.kernels
        for gradient in backward.gradients:
            size = gradient.size_bytes
            if whole and size == source.size_bytes:
                output = source
            else:
                output = Variable(source.value, size, source.static, source.trained)
            outputs.append(output)
            self._register(gradient, output)
        rule = None
        if outputs[0] is source or source.static or not source.trained:
            self.lost_us += backward.kernel_us
        else:
            to = (source,)
            kernels = backward.call.kernels > 0
            rule = Backward(
                backward.duration_ns, tuple(outputs),
                gives=to if kernels else (), passes=() if kernels else to,
                workspace_bytes=backward.workspace_bytes,
            )  # fmt: skip
        return Node(name, (source,), (), None, rule)

    def _operation(self, name: str, unit: Unit, shapes: list[Shape], backward: Unit) -> Node:
        weights, buffers = _special(unit.call.name)
        inputs = [
            self._static(name, shapes[position], "statistic")
            if position in buffers
            else self._match(name, shapes[position], backward, weight=position in weights)
            for position in reversed(range(len(shapes)))
        ][::-1]
        rule = saved_rule(backward.function)
        if not rule.known:
            self.unknown[backward.function] = None
        outputs, overwritten = self._written(name, unit, inputs, backward)
        extras = self._extras(name, shapes, backward) if rule.extras else []
        saves: list[Variable] = list(extras)
        for position, variable in enumerate(inputs):
            others = inputs[:position] + inputs[position + 1 :] if rule.factors else []
            factor = any(other.trained for other in others)
            if (rule.inputs or factor) and variable is not overwritten:
                saves.append(variable)
        if rule.outputs or (rule.inputs and overwritten is not None):
            saves += outputs
        self._saved.update(variable.value for variable in saves)
        trained = tuple(dict.fromkeys([v for v in inputs if v.trained and not v.static]))
        kernels = backward.call.kernels > 0
        random = is_random(unit.call.name)
        if random:
            self.random[name] = None
        return Node(
            name,
            tuple(dict.fromkeys(inputs)),
            (*outputs, *extras),
            unit.duration_ns,
            Backward(
                backward.duration_ns, tuple(outputs), tuple(dict.fromkeys(saves)),
                trained if kernels else (), () if kernels else trained,
                backward.workspace_bytes,
                not is_collective(backward.call.name),
            ),
            starts_layer=_STARTS_LAYER.fullmatch(unit.call.name) is not None,
            workspace_bytes=unit.workspace_bytes,
            recomputable=not is_collective(unit.call.name),
            random=random,
        )  # fmt: skip

    def _written(
        self, name: str, unit: Unit, inputs: list[Variable], backward: Unit
    ) -> tuple[list[Variable], Variable | None]:
        """The outputs, registered under their shapes, and the input they overwrite, if any."""
        outputs: list[Variable] = []
        target = None
        if _IN_PLACE.fullmatch(unit.call.name) and len(backward.gradients) == 1:
            size = backward.gradients[0].size_bytes
            target = next((v for v in inputs if self._may_overwrite(v, size)), None)
            if target is None:
                self.kept_apart[name] = None
            else:
                value = Value(target.value.tensor, target.value.version + 1)
                outputs.append(Variable(value, size, trained=True))
                for named in self._named.pop(value.tensor, ()):
                    named.overwritten = True
        if target is None:
            several = len(backward.gradients) > 1
            for number, gradient in enumerate(backward.gradients):
                storage = f"{name}.out{number}" if several else f"{name}.out"
                outputs.append(self._storage(storage, gradient.size_bytes, trained=True))
        for gradient, output in zip(backward.gradients, outputs, strict=True):
            self._register(gradient, output)
        return outputs, target

    def _register(self, shape: Shape, variable: Variable) -> None:
        named = _Named(variable)
        (self._statics if variable.static else self._outputs)[shape].append(named)
        self._named[variable.value.tensor].append(named)

    def _may_overwrite(self, variable: Variable, size_bytes: int) -> bool:
        whole = variable.size_bytes == size_bytes and not variable.static
        return whole and variable.value not in self._saved

    def _extras(self, name: str, shapes: list[Shape], backward: Unit) -> list[Variable]:
        """What the backward operation reads that is neither a gradient, an input nor an output."""
        known = {*shapes, *backward.gradients, *self._parameters}
        sizes = [
            shape.size_bytes
            for shape in backward.arguments
            if shape.dims and shape not in known and shape.size_bytes
        ]
        return [self._storage(f"{name}.saved", size) for size in sizes]

    def _storage(self, name: str, size_bytes: int, *, trained: bool = False) -> Variable:
        self.allocated_bytes += size_bytes
        return Variable(Value(self._storages.unique(name)), size_bytes, trained=trained)

    # Matching

    def _match(self, name: str, shape: Shape, backward: Unit, *, weight: bool = False) -> Variable:
        found = self._found(shape, weight=weight)
        if found is None:
            parameter = self._parameters.get(shape, 0) > 0
            if parameter:
                self._parameters[shape] -= 1
            return self._static(name, shape, "weight" if parameter else "input")
        found.reads += 1
        if backward.sums.get(shape, 0) > 0 and not found.variable.static:
            backward.sums[shape] -= 1
            found.expected = max(found.expected, found.reads + 1)
        return found.variable

    def _static(self, name: str, shape: Shape, kind: str) -> Variable:
        self.statics += 1
        storage = Value(self._storages.unique(f"{name}.{kind}"))
        return Variable(storage, shape.size_bytes, static=True, trained=kind == "weight")

    def _found(self, shape: Shape, *, weight: bool) -> _Named | None:
        static = self._latest(self._statics[shape], unread=True)
        if weight and static is not None:
            self.matched += 1
            return static
        if weight and self._parameters.get(shape, 0) > 0:
            return None
        latest = owed = None
        for named in reversed(self._outputs[shape]):
            if named.overwritten:
                continue
            if not named.reads:
                self.matched += 1
                return named
            latest = latest or named
            if owed is None and named.reads < named.expected:
                owed = named
        found = owed or static
        if found is not None:
            self.matched += 1
            return found
        if self._parameters.get(shape, 0) > 0:
            return None
        found = latest or self._latest(self._statics[shape], unread=False)
        self.guessed += found is not None
        return found

    def _latest(self, named: deque[_Named], *, unread: bool) -> _Named | None:
        return next((n for n in reversed(named) if not (unread and n.reads)), None)


@lru_cache(maxsize=4096)
def _special(call: str) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Which arguments of a call are parameters, and which are running statistics."""
    return _positions(_WEIGHTS, call), _positions(_BUFFERS, call)


def _positions(
    table: tuple[tuple[re.Pattern[str], tuple[int, ...]], ...], call: str
) -> tuple[int, ...]:
    return next((found for pattern, found in table if pattern.fullmatch(call)), ())


def _shapes(call: Call) -> tuple[Shape, ...]:
    """The arguments of a call or, where it has none with shapes, of the first one inside."""
    return call.shapes or next((inner.shapes for inner in within(call) if inner.shapes), ())

"""The backward phase of a forward phase, as a framework's engine would run it.

Forward operations are walked in the reverse order and hand gradients on. What a backward operation
reads besides gradients (what the framework *saves*) comes from rules; where gradients live, not:

* The outputs that no differentiable operation reads are read by a `loss` without cost, which makes
  their gradients.
* A backward operation reads the gradients of its outputs and writes one for each input that a
  differentiable operation made, of that input's size, in memory of its own.
* Where a value has a gradient already, it is added to in place (the next version), without a
  temporary; where another operation still needs the old one, the sum is a new tensor.
* An operation may pass its gradient on unchanged (an addition does): then the gradient of its
  output is that of its inputs of the same size, without an operation or memory.
* An operation that takes no time and writes nothing is left out.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction

from slackswap_opt.errors import InputError
from slackswap_opt.step.graph import MAX_NS, TrainingStep
from slackswap_opt.step.layer_rules import LayerRule, rule_for
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

Rules = Mapping[str, LayerRule | str] | Callable[[Operation], LayerRule | str | None]
"""What is known of operations: by name, or from a function; a text is a type such as `Conv2d`."""

_CAUTIOUS = LayerRule(saves_input=True, saves_output=True, known=False)


@dataclass(frozen=True, slots=True)
class Derivative:
    """The backward operation of a forward operation.

    Attributes:
        name: what the backward operation is called.
        duration_ns: its time.
        saved: the values of the forward phase, and static tensors, that it reads.
        passes_gradient: the gradient of its only output serves unchanged as that of its inputs.
    """

    name: str
    duration_ns: int
    saved: tuple[Value, ...] = ()
    passes_gradient: bool = False


def backward_phase(
    forward: Sequence[Operation],
    derivatives: Mapping[str, Derivative],
    sizes: Mapping[str, int],
    gradient_name: Callable[[Value], str],
) -> tuple[list[Operation], list[Tensor]]:
    """The backward operations, in order, and the gradients they pass.

    An operation may name a value twice that it reads; `TrainingStep.build` keeps one.

    Args:
        forward: the forward operations in execution order.
        derivatives: by name of the forward operation; those without one are not differentiable.
        sizes: bytes by name of tensor.
        gradient_name: names the gradient of a value; further ones get a number.
    """
    return _Walk(forward, derivatives, sizes, gradient_name).run()


class _Walk:
    """The gradients that each value has at one point of the walk, and what has been made so far."""

    def __init__(
        self,
        forward: Sequence[Operation],
        derivatives: Mapping[str, Derivative],
        sizes: Mapping[str, int],
        gradient_name: Callable[[Value], str],
    ) -> None:
        self.forward = [op for op in forward if op.name in derivatives]
        self.last_version = _last_versions(forward)
        self.derivatives = derivatives
        self.sizes = sizes
        self.gradient_name = gradient_name
        self.differentiable = {value for op in self.forward for value in op.writes}
        self.gradient: dict[Value, Value] = {}
        self.holders: dict[str, set[Value]] = defaultdict(set)
        self.made: dict[Value, int] = {}
        self.operations: list[Operation] = []
        self.tensors: list[Tensor] = []

    def run(self) -> tuple[list[Operation], list[Tensor]]:
        self._add_loss()
        for op in reversed(self.forward):
            self._add_backward_of(op)
        return self.operations, self.tensors

    def _add_loss(self) -> None:
        used = {value for op in self.forward for value in op.reads}
        ends = [op for op in self.forward if used.isdisjoint(op.writes)]
        outputs = [value for op in ends for value in op.writes]
        if not outputs:
            return
        for value in outputs:
            self._hold(value, self._new_gradient(value))
        self.operations.append(
            Operation(
                name="loss",
                phase=Phase.BACKWARD,
                duration_ns=0,
                reads=tuple(Value(v.tensor, self.last_version[v.tensor]) for v in outputs),
                writes=tuple(self.gradient[value] for value in outputs),
                layer=ends[-1].layer,
            )
        )

    def _add_backward_of(self, op: Operation) -> None:
        derivative = self.derivatives[op.name]
        reads = [found for value in op.writes if (found := self.gradient.get(value))]
        reads += derivative.saved
        writes: list[Value] = []
        targets = [value for value in op.reads if value in self.differentiable]
        if len(targets) > 1:  # what has a gradient last: it is read before it is overwritten
            targets.sort(key=self.gradient.__contains__)
        for target in targets:
            self._hand_on(op, target, reads, writes)
        for value in op.writes:
            self._hold(value, None)
        if writes or derivative.duration_ns:
            self.operations.append(
                Operation(
                    name=derivative.name,
                    phase=Phase.BACKWARD,
                    duration_ns=derivative.duration_ns,
                    reads=tuple(reads),
                    writes=tuple(writes),
                    layer=op.layer,
                )
            )

    def _hand_on(
        self, op: Operation, target: Value, reads: list[Value], writes: list[Value]
    ) -> None:
        """Add an operation's part of the gradient of one of its inputs."""
        before = self.gradient.get(target)
        if before is None:
            passed = self._passed(op, target)
            if passed is not None:
                self._hold(target, passed)
                return
        else:
            reads.append(before)
        if before is None or len(self.holders[before.tensor]) > 1:
            after = self._new_gradient(target)
        else:
            after = Value(before.tensor, before.version + 1)
        self._hold(target, after)
        writes.append(after)

    def _passed(self, op: Operation, target: Value) -> Value | None:
        """The gradient of an operation's output, if it serves unchanged as that of the input."""
        derivative = self.derivatives[op.name]
        if not derivative.passes_gradient or derivative.duration_ns or len(op.writes) != 1:
            return None
        (own,) = op.writes
        same = self.sizes[own.tensor] == self.sizes[target.tensor]
        return self.gradient.get(own) if same else None

    def _hold(self, value: Value, gradient: Value | None) -> None:
        before = self.gradient.pop(value, None)
        if before is not None:
            self.holders[before.tensor].discard(value)
        if gradient is not None:
            self.gradient[value] = gradient
            self.holders[gradient.tensor].add(value)

    def _new_gradient(self, value: Value) -> Value:
        number = self.made.get(value, 0) + 1
        self.made[value] = number
        name = self.gradient_name(value) + (f".{number}" if number > 1 else "")
        self.tensors.append(Tensor.of(name, self.sizes[value.tensor]))
        return Value(name)


def with_backward(
    step: TrainingStep, ratio: float = 2.0, rules: Rules | None = None
) -> TrainingStep:
    """A forward-only step with the backward phase that rules derive.

    Args:
        step: operations of the forward phase only.
        ratio: time of a backward operation by that of its forward operation. 2 suits operations
            with weights, which compute two gradients.
        rules: what is known of operations. An operation without a rule is taken to read its inputs
            and its outputs again; where another one has overwritten them in place, what is there
            instead. A rule's own `ratio` comes before the argument.

    Raises:
        InputError: with every fault found: another phase is there already, a ratio is no number
            of 0 or more, a rule names no operation, or saves what is overwritten in place.
    """
    faults = list(_ratio_faults("ratio", ratio))
    later = [op.name for op in step.operations if op.phase is not Phase.FORWARD]
    if later:
        faults.append(
            f"{len(later)} operations are not in the forward phase, {later[0]!r} for one; "
            "give a step with forward operations only"
        )
    rule_of = _looked_up(step.operations, rules, faults)
    last_version = _last_versions(step.operations)
    static = {tensor.name for tensor in step.tensors if tensor.static}
    derivatives: dict[str, Derivative] = {}
    for op in step.operations:
        rule = rule_of[op.name]
        if not rule.differentiable:
            continue
        own = ratio
        if rule.ratio is not None:
            own = rule.ratio
            faults += _ratio_faults(f"the rule of operation {op.name!r}: ratio", own)
        saved = _saved(op, rule, static, last_version, faults)
        passes = rule.passes_gradient or rule.view
        if not faults:
            duration = 0 if passes else round(op.duration_ns * Fraction(repr(own)))
            derivatives[op.name] = Derivative(f"{op.name}.backward", duration, saved, passes)
    if faults:
        raise InputError(*faults)
    sizes = {tensor.name: tensor.size_bytes for tensor in step.tensors}
    operations, gradients = backward_phase(
        step.operations, derivatives, sizes, lambda value: f"{value}.grad"
    )
    return TrainingStep.build(
        step.name,
        [*step.operations, *operations],
        [*step.tensors, *gradients],
        [*step.notes, *_notes(step, ratio, rule_of)],
    )


def _last_versions(operations: Sequence[Operation]) -> dict[str, int]:
    """The version of each tensor that operations, in execution order, leave behind."""
    return {value.tensor: value.version for op in operations for value in op.writes}


def _ratio_faults(what: str, ratio: object) -> Iterator[str]:
    sound = (
        isinstance(ratio, int | float)
        and not isinstance(ratio, bool)
        and math.isfinite(ratio)
        and 0 <= ratio <= MAX_NS
    )
    if not sound:
        yield f"{what} is {ratio!r}, expected a number of 0 or more, such as 2.0"


def _looked_up(
    operations: Sequence[Operation], rules: Rules | None, faults: list[str]
) -> dict[str, LayerRule]:
    """The rule of every operation."""
    names = {op.name for op in operations}
    if isinstance(rules, Mapping):
        faults.extend(
            f"a rule is given for {name!r}, which is no operation; check the name"
            for name in rules
            if name not in names
        )
    found: dict[str, LayerRule] = {}
    for op in operations:
        given = (
            None
            if rules is None
            else rules.get(op.name)
            if isinstance(rules, Mapping)
            else rules(op)
        )
        if given is None:
            found[op.name] = _CAUTIOUS
        else:
            found[op.name] = rule_for(given) if isinstance(given, str) else given
    return found


def _saved(
    op: Operation,
    rule: LayerRule,
    static: set[str],
    last_version: Mapping[str, int],
    faults: list[str],
) -> tuple[Value, ...]:
    """What the backward operation reads: static inputs always, the others by the rule."""
    wanted = [value for value in op.reads if value.tensor in static]
    inputs = [value for value in op.reads if value.tensor not in static]
    if rule.saves_input:
        own = {value.tensor for value in op.writes}
        wanted += [value for value in inputs if value.tensor not in own]
        if any(value.tensor in own for value in inputs):
            wanted += op.writes  # it has destroyed its input
    if rule.saves_output:
        wanted += op.writes
    kept = []
    for value in dict.fromkeys(wanted):
        last = Value(value.tensor, last_version.get(value.tensor, value.version))
        if last != value and rule.known:
            faults.append(
                f"the backward operation of {op.name!r} reads {value}, which is overwritten in "
                f"place by the write of {last}; give the overwriting operation a tensor of its "
                f"own, or {op.name!r} a rule that does not save it"
            )
        kept.append(last)
    return tuple(dict.fromkeys(kept))


def _notes(step: TrainingStep, ratio: float, rules: Mapping[str, LayerRule]) -> Iterable[str]:
    yield (
        "The backward phase is derived: gradients of activations and a loss without cost; a "
        f"backward operation takes {ratio:g} times its forward time unless its rule says otherwise."
    )
    unknown = sum(not rules[op.name].known for op in step.operations)
    if unknown:
        yield (
            f"{unknown} of {len(step.operations)} operations have no rule: their backward "
            "operations are taken to read both inputs and outputs."
        )

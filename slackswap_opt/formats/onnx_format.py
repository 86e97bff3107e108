"""ONNX forward models, priced on a machine and completed with a backward phase.

`onnx_graph` reads the file, `onnx_rules` knows the operators, `autodiff` derives the backward
phase.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import TYPE_CHECKING

from slackswap_opt.errors import InputError
from slackswap_opt.formats import autodiff, onnx_graph
from slackswap_opt.formats.autodiff import Backward, Node, Variable
from slackswap_opt.formats.naming import Names
from slackswap_opt.formats.onnx_graph import Array, Model, Operator
from slackswap_opt.formats.onnx_rules import RULES, Gradient, Rule, rule_of, vector
from slackswap_opt.formats.options import ReadOptions
from slackswap_opt.machine.cost import Kernel, duration_ns
from slackswap_opt.step.graph import TrainingStep
from slackswap_opt.step.model import Value

if TYPE_CHECKING:
    from slackswap_opt.machine.model import Device

NAME = "ONNX model"
USES = frozenset({"batch", "dimensions"})

_START = re.compile(rb"\x08[\x01-\x7f][\x12\x1a\x22\x28\x32\x3a\x42\x72\xa2\xca]", re.DOTALL)
"""The version of ONNX, then one of the other fields of a model, as every exporter writes them."""
_NAMED_IN_NOTES = 5


def recognizes(head: bytes) -> bool:
    """Whether a file that begins like this is an ONNX model, sound or not."""
    return _START.match(head) is not None


def read(content: bytes, name: str, options: ReadOptions) -> TrainingStep:
    """Read a model, price it on the machine of the options and derive its backward phase.

    Raises:
        InputError: with every fault found, or if the options have no machine.
    """
    if options.machine is None:
        raise InputError(
            "an ONNX model has no durations; name the machine to price it on: "
            'read_step(path, machine=load_machine("a100-80gb-pcie4"))'
        )
    if options.batch is not None and options.batch < 1:
        raise InputError(f"batch={options.batch}: give 1 or more")
    faults = [f"{k}={v}: give 1 or more" for k, v in options.dimensions.items() if v < 1]
    if faults:
        raise InputError(*faults)
    model = onnx_graph.load(content, options, RULES)
    return _Reader(model, options.machine.device).step(name, options.machine.name)


class _Reader:
    """From operators with shapes to nodes with times."""

    def __init__(self, model: Model, device: Device) -> None:
        self.model = model
        self.device = device
        self.operations, self.storages = Names(), Names()
        self.variables: dict[str, Variable] = {}
        self.kinds: set[str] = set()
        self.read = {name for o in model.operators for name in o.inputs} | set(model.outputs)
        self.flops = 0.0

    def step(self, name: str, machine: str) -> TrainingStep:
        rules: list[Rule] = []
        faults: list[str] = []
        for operator in self.model.operators:
            try:
                rules.append(rule_of(operator, self.model))
            except InputError as error:
                faults += error.faults
        if faults:
            raise InputError(*faults)
        if not self.model.operators:
            raise InputError("the model computes nothing that depends on its inputs or weights")
        nodes = [
            self._node(operator, rule)
            for operator, rule in zip(self.model.operators, rules, strict=True)
        ]
        if not any(node.backward for node in nodes):
            raise InputError(
                "no operator has a weight that can be trained (a float initializer of more than "
                "one element), so there is no backward phase"
            )
        outputs = [
            self.model.arrays[name]
            for name in self.model.outputs
            if name in self.variables and self.variables[name].trained
        ]
        loss = vector(sum(o.elements for o in outputs), *outputs, *outputs)
        return autodiff.training_step(
            name,
            nodes,
            loss_ns=self._priced([loss]),
            sum_ns=lambda _, variable: self._priced(
                [Kernel(variable.size_bytes / 4, 3 * variable.size_bytes)]
            ),
            notes=tuple(self._notes(machine)),
        )

    def _node(self, operator: Operator, rule: Rule) -> Node:
        name = self.operations.unique(operator.label)
        inputs = {
            position: self._variable(value)
            for position, value in enumerate(operator.inputs)
            if value
        }
        if rule.view:
            return self._view(name, operator, rule, inputs[0])
        trained = {
            position: gradient
            for position, gradient in rule.gradients.items()
            if position in inputs and inputs[position].trained
        }
        outputs = [
            self._output(value, position, bool(trained))
            for position, value in enumerate(operator.outputs)
            if value and (position == 0 or value in self.read)
        ]
        extras = {
            extra: Variable(Value(self.storages.unique(f"{outputs[0].value.tensor}.{extra}")), size)
            for extra, size in (rule.extras.items() if trained else ())
        }
        self.kinds.add(operator.kind)
        return Node(
            name,
            tuple(dict.fromkeys(inputs.values())),
            (*outputs, *extras.values()),
            self._priced(rule.kernels, forward=True),
            self._backward(rule, trained, inputs, outputs, tuple(extras.values())),
            starts_layer=rule.starts_layer,
            random=rule.random,
        )

    def _view(self, name: str, operator: Operator, rule: Rule, source: Variable) -> Node:
        self.kinds.add("views")
        outputs: list[Variable] = []
        for value in filter(None, operator.outputs):
            array = self.model.arrays[value]
            if rule.view == "whole" and not outputs:
                output = source
            else:
                output = Variable(source.value, array.size_bytes, source.static, source.trained)
            self.variables[value] = output
            outputs.append(output)
        backward = None
        if rule.view == "part" and source.trained and not source.static:
            kernels = rule.gradients[0].kernels
            backward = Backward(self._priced(kernels), tuple(outputs), gives=(source,))
        return Node(name, (source,), (), None, backward)

    def _backward(
        self,
        rule: Rule,
        trained: dict[int, Gradient],
        inputs: dict[int, Variable],
        outputs: list[Variable],
        extras: tuple[Variable, ...],
    ) -> Backward | None:
        if not trained:
            return None
        saves: dict[Variable, None] = {}
        passes: dict[Variable, None] = {}
        gives: dict[Variable, None] = {}
        kernels = list(rule.shared)
        for position, gradient in trained.items():
            kernels += gradient.kernels
            saves.update(dict.fromkeys(inputs[p] for p in gradient.inputs if p in inputs))
            saves.update(dict.fromkeys(outputs[:1] if gradient.output else ()))
            saves.update(dict.fromkeys(extras if gradient.extras else ()))
            target = inputs[position]
            if not target.static:
                (passes if gradient.passes else gives)[target] = None
        return Backward(
            self._priced(kernels), tuple(outputs), tuple(saves), tuple(gives), tuple(passes)
        )

    def _variable(self, value: str) -> Variable:
        """A value; those that no operator has made are parameters, constants and the batch."""
        found = self.variables.get(value)
        if found is None:
            array = self.model.arrays[value]
            trained = value in self.model.parameters and array.elements > 1
            found = Variable(
                Value(self.storages.unique(value)), array.size_bytes, static=True, trained=trained
            )
            self.variables[value] = found
        return found

    def _output(self, value: str, position: int, trained: bool) -> Variable:
        array = self.model.arrays[value]
        variable = Variable(
            Value(self.storages.unique(value)),
            array.size_bytes,
            trained=trained and position == 0 and array.type.floating,
        )
        self.variables[value] = variable
        return variable

    def _priced(self, kernels: Iterable[Kernel], *, forward: bool = False) -> int:
        """Duration of an operation.

        Raises:
            InputError: if the machine has no peak for a data type.
        """
        listed = list(kernels)
        if forward:
            self.flops += sum(kernel.flops for kernel in listed)
        return duration_ns(self.device, listed)

    def _notes(self, machine: str) -> Iterator[str]:
        batch = ", ".join(
            f"{name[:60]} {_dims(self.model.arrays[name])}" for name in sorted(self.model.batch)
        )
        parameters = [self.model.arrays[name] for name in self.model.parameters]
        yield (
            f"Priced on {machine} by the roofline cost model: {self.flops / 1e9:.4g} GFLOP "
            f"forward; inputs: {batch or 'none'}."
        )
        yield (
            f"{sum(a.elements for a in parameters) / 1e6:.4g} million parameters, static"
            + (
                f"; {self.model.fills} of these tensors are fills (ConstantOfShape) in place of "
                "weights"
                if self.model.fills
                else ""
            )
            + "."
        )
        yield (
            "Derived, not measured: the backward phase, by rules for each operator that follow "
            "eager PyTorch, and a loss that reads every output. No operator works in place; no "
            "workspace is known."
        )
        if "BatchNormalization" in self.kinds:
            yield "BatchNormalization is priced in training mode: it computes its statistics."
        if "Dropout" in self.kinds:
            yield (
                "Dropout is active, saves its mask, and runs again with its saved generator state."
            )
        if "views" in self.kinds:
            yield (
                "Reshape, Flatten, Squeeze, Unsqueeze, Identity, Split, Slice and Expand share the "
                "memory of their input; Transpose copies."
            )
        yield "The model has no optimizer; gradients of parameters and its state are static."


def _dims(array: Array) -> str:
    return "x".join(map(str, array.dims)) or "a number"

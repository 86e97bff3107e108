"""Reverse-mode differentiation of an operation graph.

Forward operations are recorded with the rule of their backward operation; `Tape.backward` then
runs the rules in reverse and routes gradients the way an eager framework does: a gradient is a
tensor of its own, it lives until its last reader, and where a tensor has several readers their
contributions are summed as they arrive.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from slackswap_opt.machine.cost import Kernel
from slackswap_opt.step.model import Operation, Phase, Tensor, Value

Cost = Callable[[Sequence[Kernel]], int]
"""Duration in nanoseconds of an operation that runs these kernels."""


@dataclass(frozen=True)
class Backward:
    """How the gradient passes through a forward operation.

    Attributes:
        of: the output whose gradient comes in.
        kernels: the work; nothing at all for a rule that only passes the gradient on.
        saved: forward tensors that it reads.
        grads: bytes of the gradient made for each of these inputs.
        passes: inputs whose gradient is the incoming one itself, such as both terms of a sum.
        gathers: further names whose gradients come in, made by operations that run earlier in the
            backward phase (the value's third of a joint storage).
        replaces: whether the gradient it makes takes the place of the incoming one, such as the
            sum over a tensor-parallel group.
        workspace_bytes: scratch memory while it runs.
        recomputable: whether it may run again.
        whole: whether it must see the whole batch at once, because it sums over samples
            (gradients of parameters) or takes a time that does not shrink with them (a
            collective's latency).
    """

    of: str
    kernels: tuple[Kernel, ...] = ()
    saved: tuple[str, ...] = ()
    grads: Mapping[str, int] = field(default_factory=dict)
    passes: tuple[str, ...] = ()
    gathers: tuple[str, ...] = ()
    replaces: bool = False
    workspace_bytes: int = 0
    recomputable: bool = True
    whole: bool = False


@dataclass(frozen=True)
class _Node:
    name: str
    layer: str
    rule: Backward


class Tape:
    """Records a forward phase and derives the backward phase.

    Attributes:
        operations: everything recorded so far, in execution order.
        tensors: every tensor so far, by name. All that is not static has the batch's samples,
            but for sums over them.
    """

    def __init__(self, cost: Cost, samples: int) -> None:
        self.operations: list[Operation] = []
        self.tensors: dict[str, Tensor] = {}
        self._cost = cost
        self._samples = samples
        self._nodes: list[_Node] = []

    def static(self, name: str, size_bytes: int) -> str:
        """Declare memory outside of the budget."""
        self.tensors[name] = Tensor.of(name, size_bytes, static=True)
        return name

    def forward(
        self,
        name: str,
        layer: str,
        kernels: Sequence[Kernel],
        reads: Sequence[str],
        writes: Mapping[str, int],
        backward: Backward | None = None,
        *,
        workspace_bytes: int = 0,
        recomputable: bool = True,
        random: bool = False,
        whole: bool = False,
        sums: Sequence[str] = (),
    ) -> None:
        """Record a forward operation and the rule for its gradient.

        Args:
            name: of the operation.
            layer: its group.
            kernels: its work.
            reads: the tensors it needs.
            writes: the bytes of each tensor it makes.
            backward: None where no gradient passes.
            workspace_bytes: scratch memory while it runs.
            recomputable: whether it may run again.
            random: whether it draws random numbers.
            whole: whether it must see the whole batch at once; see `Backward`.
            sums: which of its outputs are sums over the samples; it is whole if there are any.
        """
        self._emit(
            Operation(
                name, Phase.FORWARD, self._cost(kernels), _values(reads), _values(writes),
                workspace_bytes, layer, recomputable, random, not (whole or sums),
            ),
            writes,
            sums,
        )  # fmt: skip
        if backward is not None:
            self.rule(name, layer, backward)

    def rule(self, name: str, layer: str, backward: Backward) -> None:
        """Record a rule for the gradient that no forward operation goes with."""
        self._nodes.append(_Node(name, layer, backward))

    def backward(self, loss: str) -> None:
        """Run the rules in reverse, from the gradient of `loss`, which is the constant one."""
        grads: dict[str, str] = {}
        for node in reversed(self._nodes):
            rule = node.rule
            incoming = grads.get(rule.of)
            if incoming is None and rule.of != loss:
                continue
            made = {
                source: (f"{rule.of}.grad.reduced" if rule.replaces else _gradient(source, node))
                for source in rule.grads
            }
            if rule.kernels or made:
                gathered = [grads[name] for name in rule.gathers]
                reads = ([incoming] if incoming else []) + gathered + list(rule.saved)
                writes = {made[source]: size for source, size in rule.grads.items()}
                self._emit(
                    Operation(
                        f"{node.name}.backward", Phase.BACKWARD, self._cost(rule.kernels),
                        _values(reads), _values(writes), rule.workspace_bytes, node.layer,
                        rule.recomputable, per_sample=not rule.whole,
                    ),
                    writes,
                )  # fmt: skip
            if rule.replaces:
                grads[rule.of] = made[rule.of]
                continue
            for source in rule.passes:
                assert incoming is not None, "only sums pass gradients on, and a loss is not one"
                self._contribute(grads, source, incoming, node)
            for source, gradient in made.items():
                self._contribute(grads, source, gradient, node)

    def optimizer(
        self, name: str, layer: str, kernels: Sequence[Kernel], reads: Sequence[str]
    ) -> None:
        """Record an operation of the optimizer, which touches static memory only."""
        duration = self._cost(kernels)
        self._emit(Operation(name, Phase.OPTIMIZER, duration, _values(reads), layer=layer), {})

    def _contribute(self, grads: dict[str, str], source: str, gradient: str, node: _Node) -> None:
        earlier = grads.get(source)
        if earlier is None:
            grads[source] = gradient
            return
        size = self.tensors[gradient].size_bytes
        total = f"{source}.grad.sum.{node.name.rsplit('.', 1)[-1]}"
        self._emit(
            Operation(
                f"{source}.accumulate.{node.name.rsplit('.', 1)[-1]}", Phase.BACKWARD,
                self._cost([Kernel(size / 2, 3 * size)]), _values((earlier, gradient)),
                _values((total,)), layer=node.layer, per_sample=True,
            ),
            {total: size},
        )  # fmt: skip
        grads[source] = total

    def _emit(
        self, operation: Operation, writes: Mapping[str, int], sums: Sequence[str] = ()
    ) -> None:
        self.operations.append(operation)
        for name, size in writes.items():
            samples = 0 if name in sums else self._samples
            self.tensors[name] = Tensor.of(name, size, samples=samples)


def _gradient(source: str, node: _Node) -> str:
    return f"{source}.grad.{node.name.rsplit('.', 1)[-1]}"


def _values(names: Sequence[str] | Mapping[str, int]) -> tuple[Value, ...]:
    return tuple(Value(name) for name in names)

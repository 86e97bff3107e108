"""What each ONNX operator costs, and how gradients pass through it.

A rule maps an operator with its shapes to the kernels it runs forward, the kernels that make the
gradient of each input, and the tensors that those read again. Kernels are priced by the roofline of
`slackswap_opt.machine.cost`: operands are read once and results written once, matrix products run
at the peak of their type. What is saved follows what eager PyTorch saves; docs/formats-onnx.md
lists it. An operator that is not in `RULES` is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from slackswap_opt.errors import InputError
from slackswap_opt.formats.onnx_graph import Array, Model, Operator
from slackswap_opt.machine.cost import Kernel

STATISTIC_BYTES = 4
"""Statistics are fp32, whatever the activations are."""
INDEX_BYTES = 8
"""Positions of maxima are 64-bit integers."""
MASK_BYTES = 1
"""A dropout mask holds one byte per element."""
MOST_CHOICES = 64
"""Inputs of a Min or Max; each gradient reads all of them."""
FUSED_ATTENTION_BACKWARD = 2.5
"""A fused attention's backward does 5 products to the forward's 2: it rebuilds the scores."""


@dataclass(frozen=True, slots=True)
class Gradient:
    """How the gradient of one input is made.

    Attributes:
        kernels: the work; none for a gradient that is the incoming one itself.
        inputs: positions of the inputs that it reads again.
        output: whether it reads the first output again.
        extras: whether it reads the extra tensors of the rule.
        passes: it is the incoming gradient, or a view of it, without work or memory.
    """

    kernels: tuple[Kernel, ...] = ()
    inputs: tuple[int, ...] = ()
    output: bool = False
    extras: bool = False
    passes: bool = False


@dataclass(frozen=True, slots=True)
class Rule:
    """What one operator costs and saves.

    Attributes:
        kernels: of the forward operation.
        gradients: by position of the input; inputs not named have none.
        extras: bytes of tensors made for the backward operation only, by name.
        shared: kernels that run once if any input has a gradient.
        view: the output is the first input under another name: "whole" for all of its elements,
            "part" for some, or for repeated ones.
        random: it draws random numbers.
        starts_layer: it has weights, and begins a layer in a plain chain.
    """

    kernels: tuple[Kernel, ...] = ()
    gradients: Mapping[int, Gradient] = field(default_factory=dict)
    extras: Mapping[str, int] = field(default_factory=dict)
    shared: tuple[Kernel, ...] = ()
    view: str = ""
    random: bool = False
    starts_layer: bool = False


@dataclass(frozen=True)
class Shapes:
    """An operator with the arrays it touches."""

    operator: Operator
    model: Model

    def has(self, position: int) -> bool:
        """Whether an optional input is there."""
        inputs = self.operator.inputs
        return position < len(inputs) and inputs[position] != ""

    def input(self, position: int) -> Array:
        """The array of an input.

        Raises:
            InputError: if the operator has no such input.
        """
        if not self.has(position):
            raise InputError(f"input {position} is missing")
        return self.model.arrays[self.operator.inputs[position]]

    @property
    def count(self) -> int:
        """Number of inputs, optional ones included."""
        return len(self.operator.inputs)

    @property
    def output(self) -> Array:
        """The array of the first output."""
        outputs = self.operator.outputs
        if not outputs or not outputs[0]:
            raise InputError("its first output has no name")
        return self.model.arrays[outputs[0]]

    def known(self, position: int) -> list[int] | None:
        """The integers of a constant input, if it is one."""
        if not self.has(position):
            return None
        content = self.model.known.get(self.operator.inputs[position])
        return None if content is None else [int(value) for value in content.reshape(-1)]

    def scalar(self, position: int) -> float | None:
        """The number of a constant input of one element, if it is one."""
        if not self.has(position):
            return None
        content = self.model.known.get(self.operator.inputs[position])
        return None if content is None or content.size != 1 else float(content.reshape(-1)[0])

    def attribute(self, name: str, default: Any) -> Any:
        """An attribute, of the type of its default.

        Raises:
            InputError: if the file has another type there.
        """
        value = self.operator.attributes.get(name, default)
        if default is not None and not isinstance(value, type(default)):
            raise InputError(f"its attribute {name} is {value!r}"[:100])
        return value

    def axis(self, default: int) -> int:
        """The attribute `axis`, not negative."""
        rank = len(self.input(0).dims)
        axis = int(self.attribute("axis", default))
        if not -rank <= axis <= max(rank, 1):
            raise InputError(f"its axis {axis} is not one of {rank}")
        return axis + rank if axis < 0 else axis


RuleMaker = Callable[[Shapes], Rule]


def vector(elements: int, *touched: Array | int, flops: float = 1.0) -> Kernel:
    """A kernel bound by memory: some arithmetic per element, and the bytes of what it touches."""
    moved = sum(a if isinstance(a, int) else a.size_bytes for a in touched)
    return Kernel(flops * elements, moved)


def product(flops: float, *touched: Array) -> Kernel:
    """A matrix product or a convolution, at the peak of its first operand's type."""
    return Kernel(flops, sum(array.size_bytes for array in touched), touched[0].type.name)


def _unary(flops: float, backward_flops: float, saves: str) -> RuleMaker:
    """One value to one value; `saves` is "input", "output" or nothing."""

    def rule(s: Shapes) -> Rule:
        x, y = s.input(0), s.output
        read = [y, x] if saves else [y]
        return Rule(
            (vector(y.elements, x, y, flops=flops),),
            {
                0: Gradient(
                    (vector(x.elements, *read, x, flops=backward_flops),),
                    (0,) if saves == "input" else (),
                    saves == "output",
                )
            },
        )

    return rule


def _step_function(s: Shapes) -> Rule:
    """Comparisons, rounding, logic, positions of maxima: no gradient passes."""
    touched = [s.input(n) for n in range(s.count) if s.has(n)]
    return Rule((vector(s.output.elements, *touched, s.output),))


def _summed(s: Shapes, position: int, kernels: Sequence[Kernel]) -> tuple[Kernel, ...]:
    """Kernels for a gradient of the output's shape, and the sum down to a broadcast input's."""
    x, y = s.input(position), s.output
    if x.elements == y.elements:
        return tuple(kernels)
    return (*kernels, vector(y.elements, y, x))


def _add(s: Shapes) -> Rule:
    """Add, Sub, Sum, Mean: nothing is saved; a term of the output's shape takes its gradient."""
    y = s.output
    positions = [n for n in range(s.count) if s.has(n)]
    turned = s.operator.kind in ("Sub", "Mean")
    gradients = {}
    for n in positions:
        same = s.input(n).elements == y.elements
        scaled = s.operator.kind == "Mean" or (turned and n == 1)
        if same and not scaled:
            gradients[n] = Gradient(passes=True)
        else:
            own = [vector(y.elements, y, y)] if scaled else []
            gradients[n] = Gradient(_summed(s, n, own))
    arrays = [s.input(n) for n in positions]
    return Rule((vector(y.elements * max(1, len(arrays) - 1), *arrays, y),), gradients)


def _multiply(s: Shapes) -> Rule:
    a, b, y = s.input(0), s.input(1), s.output
    return Rule(
        (vector(y.elements, a, b, y),),
        {
            0: Gradient(_summed(s, 0, [vector(y.elements, y, b, y)]), (1,)),
            1: Gradient(_summed(s, 1, [vector(y.elements, y, a, y)]), (0,)),
        },
    )


def _divide(s: Shapes) -> Rule:
    a, b, y = s.input(0), s.input(1), s.output
    return Rule(
        (vector(y.elements, a, b, y),),
        {
            0: Gradient(_summed(s, 0, [vector(y.elements, y, b, y)]), (1,)),
            1: Gradient(_summed(s, 1, [vector(y.elements, y, a, b, y, flops=4)]), (0, 1)),
        },
    )


def _power(s: Shapes) -> Rule:
    a, b, y = s.input(0), s.input(1), s.output
    return Rule(
        (vector(y.elements, a, b, y, flops=8),),
        {
            0: Gradient(_summed(s, 0, [vector(y.elements, y, a, b, y, flops=10)]), (0, 1)),
            1: Gradient(_summed(s, 1, [vector(y.elements, y, a, y, y, flops=10)]), (0,), True),
        },
    )


def _choose(s: Shapes) -> Rule:
    """Min and Max: each gradient goes where the value came from."""
    y = s.output
    positions = tuple(n for n in range(s.count) if s.has(n))
    if len(positions) > MOST_CHOICES:
        raise InputError(f"it has {len(positions)} inputs, expected at most {MOST_CHOICES}")
    arrays = [s.input(n) for n in positions]
    kernel = vector(y.elements, y, *arrays, y)
    gradients = {n: Gradient(_summed(s, n, [kernel]), positions) for n in positions}
    return Rule((vector(y.elements, *arrays, y),), gradients)


def _where(s: Shapes) -> Rule:
    c, a, b, y = s.input(0), s.input(1), s.input(2), s.output
    kernel = vector(y.elements, y, c, y)
    return Rule(
        (vector(y.elements, c, a, b, y),),
        {n: Gradient(_summed(s, n, [kernel]), (0,)) for n in (1, 2)},
    )


def _prelu(s: Shapes) -> Rule:
    x, slope, y = s.input(0), s.input(1), s.output
    return Rule(
        (vector(y.elements, x, slope, y),),
        {
            0: Gradient((vector(y.elements, y, x, slope, x),), (0, 1)),
            1: Gradient((vector(y.elements, y, x, y), vector(y.elements, y, slope)), (0,)),
        },
    )


# Products


def _convolve(s: Shapes) -> Rule:
    x, w, y = s.input(0), s.input(1), s.output
    group = s.attribute("group", 1)
    if len(x.dims) < 3 or len(w.dims) != len(x.dims) or group < 1:
        raise InputError(f"a convolution of {list(x.dims)} with {list(w.dims)} in {group} groups")
    if w.dims[1] * group != x.dims[1] or w.dims[0] % group:
        raise InputError(
            f"the weight {list(w.dims)} in {group} groups does not fit the {x.dims[1]} channels of "
            "its input"
        )
    kernel = list(s.attribute("kernel_shape", list(w.dims[2:])))
    if kernel != list(w.dims[2:]):
        raise InputError(f"its kernel_shape {kernel} is not that of its weight {list(w.dims)}")
    flops = 2.0 * y.elements * math.prod(w.dims[1:])
    return _weighted(s, flops, flops, flops)


def _convolve_transposed(s: Shapes) -> Rule:
    x, w = s.input(0), s.input(1)
    if len(x.dims) < 3 or len(w.dims) != len(x.dims) or w.dims[0] != x.dims[1]:
        raise InputError(f"the weight {list(w.dims)} does not fit the input {list(x.dims)}")
    flops = 2.0 * x.elements * math.prod(w.dims[1:])
    return _weighted(s, flops, flops, flops)


def _weighted(s: Shapes, forward: float, to_input: float, to_weight: float) -> Rule:
    """An input times a weight, and a bias."""
    x, w, y = s.input(0), s.input(1), s.output
    gradients = {
        0: Gradient((product(to_input, y, w, x),), (1,)),
        1: Gradient((product(to_weight, x, y, w),), (0,)),
    }
    if s.has(2):
        gradients[2] = Gradient((vector(y.elements, y, s.input(2)),))
    return Rule((product(forward, x, w, y),), gradients, starts_layer=True)


def _gemm(s: Shapes) -> Rule:
    a, b, y = s.input(0), s.input(1), s.output
    if len(a.dims) != 2 or len(b.dims) != 2:
        raise InputError(f"a product of {list(a.dims)} and {list(b.dims)}, expected matrices")
    inner = a.dims[0] if s.attribute("transA", 0) else a.dims[1]
    flops = 2.0 * y.elements * inner
    rule = _weighted(s, flops, flops, flops)
    if s.has(2) and s.input(2).elements == y.elements:
        return Rule(rule.kernels, {**rule.gradients, 2: Gradient(passes=True)}, starts_layer=True)
    return rule


def _matmul(s: Shapes) -> Rule:
    a, b, y = s.input(0), s.input(1), s.output
    if not a.dims or not b.dims:
        raise InputError("a matrix product of a number")
    flops = 2.0 * y.elements * a.dims[-1]
    weight = s.operator.inputs[1] in s.model.parameters
    gradients = {
        0: Gradient((product(flops, y, b, a),), (1,)),
        1: Gradient((product(flops, a, y, b),), (0,)),
    }
    return Rule((product(flops, a, b, y),), gradients, starts_layer=weight)


def _einsum(s: Shapes) -> Rule:
    """Einsum: one multiply-add for each combination of all indices."""
    equation = str(s.attribute("equation", "")).replace(" ", "")
    terms, arrow, _ = equation.partition("->")
    inputs = terms.split(",")
    if not arrow or "." in equation or len(inputs) != s.count or s.count not in (1, 2):
        raise InputError(
            f"the equation {equation[:60]!r}: only one or two operands with `->` and no ellipsis "
            "have a rule"
        )
    sizes: dict[str, int] = {}
    for n, term in enumerate(inputs):
        if len(term) != len(s.input(n).dims):
            raise InputError(f"the equation {equation[:60]!r} does not fit its operands")
        sizes.update(zip(term, s.input(n).dims, strict=True))
    flops = 2.0 * math.prod(sizes.values())
    arrays = [s.input(n) for n in range(s.count)]
    if len(arrays) == 1:
        (x,) = arrays
        return Rule(
            (vector(x.elements, x, s.output),), {0: Gradient((vector(x.elements, s.output, x),))}
        )
    a, b, y = *arrays, s.output
    return Rule(
        (product(flops, a, b, y),),
        {
            0: Gradient((product(flops, y, b, a),), (1,)),
            1: Gradient((product(flops, a, y, b),), (0,)),
        },
        starts_layer=s.operator.inputs[1] in s.model.parameters,
    )


def _attention(s: Shapes) -> Rule:
    """Fused scaled dot-product attention; what it saves beside its operands is the log-sum-exp."""
    q, k, v, y = s.input(0), s.input(1), s.input(2), s.output
    if len(q.dims) == 4 and len(k.dims) == 4:
        rows, keys, inner = q.elements // max(1, q.dims[3]), k.dims[2], q.dims[3]
    elif len(q.dims) == 3 and len(k.dims) == 3:
        heads = s.attribute("q_num_heads", 0)
        if heads < 1:
            raise InputError("its attribute q_num_heads is missing")
        rows, keys, inner = q.dims[0] * q.dims[1] * heads, k.dims[1], q.dims[2] // heads
    else:
        raise InputError(f"queries {list(q.dims)} and keys {list(k.dims)}")
    flops = 4.0 * rows * keys * inner
    backward = product(FUSED_ATTENTION_BACKWARD * flops, q, k, v, y, y, q, k, v)
    each = Gradient((), (0, 1, 2), True, True)
    return Rule(
        (product(flops, q, k, v, y),),
        {0: each, 1: each, 2: each},
        {"logsumexp": rows * STATISTIC_BYTES},
        (backward,),
    )


# Normalization, pooling, dropout


def _normalize(groups: Callable[[Shapes], int], statistics: int = 2) -> RuleMaker:
    """A normalization with statistics per group; saves its input and the statistics."""

    def rule(s: Shapes) -> Rule:
        x, y = s.input(0), s.output
        count = groups(s) * STATISTIC_BYTES
        names = ("mean", "rstd")[2 - statistics :]
        weights = [n for n in (1, 2) if s.has(n)]
        gradients = {
            0: Gradient((vector(x.elements, y, x, x, flops=8),), (0, *weights[:1]), extras=True),
        }
        for n in weights:
            # One kernel makes the gradients of scale and shift.
            kernels = (vector(x.elements, y, x, flops=4),) if n == weights[0] else ()
            gradients[n] = Gradient(kernels, (0,), extras=True)
        return Rule((vector(x.elements, x, y, flops=5),), gradients, dict.fromkeys(names, count))

    return rule


def _batch_norm(s: Shapes) -> Rule:
    """Batch normalization in training: two passes forward and two backward over the input."""
    x, y = s.input(0), s.output
    channels = x.dims[1] if len(x.dims) > 1 else 1
    each = Gradient((), (0, 1), extras=True)
    return Rule(
        (vector(x.elements, x, x, y, flops=8),),
        {0: each, 1: each, 2: each},
        dict.fromkeys(("mean", "rstd"), channels * STATISTIC_BYTES),
        (vector(x.elements, y, x, y, x, x, flops=10),),
    )


def _rows_before_axis(s: Shapes) -> int:
    return math.prod(s.input(0).dims[: s.axis(-1)])


def _instances(s: Shapes) -> int:
    return math.prod(s.input(0).dims[:2])


def _groups(s: Shapes) -> int:
    x = s.input(0)
    return (x.dims[0] if x.dims else 1) * max(1, int(s.attribute("num_groups", 1)))


def _local_response(s: Shapes) -> Rule:
    x, y = s.input(0), s.output
    size = s.attribute("size", 1)
    return Rule(
        (vector(x.elements, x, y, flops=size + 4.0),),
        {0: Gradient((vector(x.elements, y, y, x, x, flops=2 * size + 8.0),), (0,), True)},
    )


def _max_pool(s: Shapes) -> Rule:
    x, y = s.input(0), s.output
    window = math.prod(s.attribute("kernel_shape", [])) if s.operator.kind == "MaxPool" else 1
    indices = y.elements * INDEX_BYTES
    return Rule(
        (vector(y.elements, x, y, indices, flops=float(max(1, window))),),
        {0: Gradient((vector(y.elements, y, indices, x),), (0,), extras=True)},
        {"indices": indices},
    )


def _average(s: Shapes) -> Rule:
    """Pooling by average, and what spreads or gathers values without looking at them."""
    x, y = s.input(0), s.output
    elements = max(x.elements, y.elements)
    return Rule((vector(elements, x, y),), {0: Gradient((vector(elements, y, x),))})


def _dropout(s: Shapes) -> Rule:
    x, y = s.input(0), s.output
    ratio = s.scalar(1) if s.has(1) else s.operator.attributes.get("ratio", 0.5)
    if ratio == 0:
        return _whole_view(s)
    mask = x.elements * MASK_BYTES
    return Rule(
        (vector(x.elements, x, y, mask, flops=2),),
        {0: Gradient((vector(x.elements, y, mask, x, flops=2),), extras=True)},
        {"mask": mask},
        random=True,
    )


# Reductions and losses


def _reduce(saves: str) -> RuleMaker:
    """A reduction; its gradient is spread over the input."""

    def rule(s: Shapes) -> Rule:
        x, y = s.input(0), s.output
        read = [x] if saves else []
        return Rule(
            (vector(x.elements, x, y),),
            {
                0: Gradient(
                    (vector(x.elements, y, *read, x),),
                    (0,) if saves else (),
                    saves == "both",
                )
            },
        )

    return rule


def _cross_entropy(s: Shapes) -> Rule:
    x, target, y = s.input(0), s.input(1), s.output
    if s.operator.kind == "NegativeLogLikelihoodLoss":
        kernel = vector(x.elements, target, x)
        return Rule((vector(target.elements, target, y),), {0: Gradient((kernel,), (1,))})
    return Rule(
        (vector(x.elements, x, x, flops=8), vector(target.elements, target, y)),
        {
            0: Gradient(
                (vector(x.elements, target, x), vector(x.elements, x, x, x, flops=4)),
                (1,),
                extras=True,
            )
        },
        {"log_probabilities": x.size_bytes},
    )


# Views and copies


def _whole_view(s: Shapes) -> Rule:
    del s
    return Rule(gradients={0: Gradient(passes=True)}, view="whole")


def _part_view(s: Shapes) -> Rule:
    """Split and Slice name a part of their input; the gradient of the whole is made anew."""
    x = s.input(0)
    return Rule(gradients={0: Gradient((vector(x.elements, x, x),))}, view="part")


def _expand(s: Shapes) -> Rule:
    x, y = s.input(0), s.output
    if x.elements == y.elements:
        return _whole_view(s)
    return Rule(gradients={0: Gradient((vector(y.elements, y, x),))}, view="part")


def _cast(s: Shapes) -> Rule:
    x, y = s.input(0), s.output
    if x.type is y.type:
        return _whole_view(s)
    if not (x.type.floating and y.type.floating):
        return _step_function(s)
    return Rule((vector(y.elements, x, y),), {0: Gradient((vector(y.elements, y, x),))})


def _copy(s: Shapes) -> Rule:
    """Transpose, Pad, Tile and the like move every element, forward and backward."""
    x, y = s.input(0), s.output
    return Rule((vector(y.elements, x, y),), {0: Gradient((vector(y.elements, y, x),))})


def _transpose(s: Shapes) -> Rule:
    return _whole_view(s) if s.operator.inputs[0] in s.model.parameters else _copy(s)


def _concat(s: Shapes) -> Rule:
    arrays = {n: s.input(n) for n in range(s.count) if s.has(n)}
    return Rule(
        (vector(s.output.elements, *arrays.values(), s.output),),
        {n: Gradient(passes=True) for n in arrays},  # views of the incoming gradient
    )


def _gather(s: Shapes) -> Rule:
    x, indices, y = s.input(0), s.input(1), s.output
    single = s.operator.kind == "Gather" and not indices.dims
    if single and s.operator.inputs[1] in s.model.constants:
        return _part_view(s)
    # The gradient of the whole is zeroed, then the rows are added.
    backward = (vector(x.elements, x), vector(y.elements, y, y, indices, y))
    return Rule(
        (vector(y.elements, y, indices, y),),
        {0: Gradient(backward, (1,))},
        starts_layer=s.operator.inputs[0] in s.model.parameters,
    )


RULES: dict[str, RuleMaker] = {
    # activation functions and other functions of one value
    "Relu": _unary(1, 1, "output"),
    "Sigmoid": _unary(4, 3, "output"),
    "Tanh": _unary(4, 3, "output"),
    "Exp": _unary(4, 1, "output"),
    "Sqrt": _unary(1, 2, "output"),
    "Reciprocal": _unary(1, 2, "output"),
    "Elu": _unary(4, 4, "output"),
    "Tan": _unary(8, 3, "output"),
    "Softmax": _unary(8, 4, "output"),
    "LogSoftmax": _unary(8, 4, "output"),
    "Hardmax": _step_function,
    "Selu": _unary(4, 4, "input"),
    "Celu": _unary(4, 4, "input"),
    "LeakyRelu": _unary(1, 1, "input"),
    "ThresholdedRelu": _unary(1, 1, "input"),
    "HardSigmoid": _unary(3, 2, "input"),
    "HardSwish": _unary(4, 4, "input"),
    "Swish": _unary(5, 8, "input"),
    "Mish": _unary(8, 12, "input"),
    "Gelu": _unary(8, 12, "input"),
    "Erf": _unary(8, 8, "input"),
    "Softplus": _unary(8, 4, "input"),
    "Softsign": _unary(3, 4, "input"),
    "Log": _unary(4, 1, "input"),
    "Abs": _unary(1, 2, "input"),
    "Clip": _unary(2, 2, "input"),
    "Sin": _unary(8, 8, "input"),
    "Cos": _unary(8, 8, "input"),
    "Atan": _unary(8, 4, "input"),
    "Neg": _unary(1, 1, ""),
    "CumSum": _unary(1, 2, ""),
    "Trilu": _unary(1, 1, ""),
    "PRelu": _prelu,
    # no gradient
    **dict.fromkeys(
        ["Floor", "Ceil", "Round", "Sign", "Not", "IsNaN", "IsInf", "Equal", "Less", "LessOrEqual",
         "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Mod", "ArgMax", "ArgMin", "OneHot"],
        _step_function,
    ),
    # several operands
    "Add": _add, "Sub": _add, "Sum": _add, "Mean": _add,
    "Mul": _multiply, "Div": _divide, "Pow": _power, "Min": _choose, "Max": _choose,
    "Where": _where,
    # products
    "Conv": _convolve, "ConvTranspose": _convolve_transposed, "Gemm": _gemm, "MatMul": _matmul,
    "Einsum": _einsum, "Attention": _attention,
    # normalization, pooling, dropout
    "BatchNormalization": _batch_norm,
    "LayerNormalization": _normalize(_rows_before_axis),
    "RMSNormalization": _normalize(_rows_before_axis, 1),
    "InstanceNormalization": _normalize(_instances),
    "GroupNormalization": _normalize(_groups),
    "LRN": _local_response,
    "LpNormalization": _unary(4, 8, "output"),
    "MaxPool": _max_pool, "GlobalMaxPool": _max_pool,
    "AveragePool": _average, "GlobalAveragePool": _average, "Resize": _average,
    "Upsample": _average,
    "Dropout": _dropout,
    # reductions and losses
    "ReduceSum": _reduce(""), "ReduceMean": _reduce(""),
    "ReduceSumSquare": _reduce("input"), "ReduceL1": _reduce("input"),
    "ReduceMax": _reduce("both"), "ReduceMin": _reduce("both"), "ReduceL2": _reduce("both"),
    "ReduceProd": _reduce("both"), "ReduceLogSumExp": _reduce("both"),
    "ReduceLogSum": _reduce("input"),
    "SoftmaxCrossEntropyLoss": _cross_entropy, "NegativeLogLikelihoodLoss": _cross_entropy,
    # views and copies
    "Reshape": _whole_view, "Flatten": _whole_view, "Squeeze": _whole_view,
    "Unsqueeze": _whole_view, "Identity": _whole_view,
    "Split": _part_view, "Slice": _part_view, "Expand": _expand,
    "Cast": _cast, "CastLike": _cast,
    "Transpose": _transpose,
    "Pad": _copy, "Tile": _copy, "DepthToSpace": _copy, "SpaceToDepth": _copy,
    "Concat": _concat,
    "Gather": _gather, "GatherElements": _gather, "GatherND": _gather,
}  # fmt: skip
"""Operators of ONNX's own domain to the makers of their rules."""


def rule_of(operator: Operator, model: Model) -> Rule:
    """The rule for an operator on its shapes.

    Raises:
        InputError: if its attributes or shapes make no sense; the message names the operator.
    """
    try:
        return RULES[operator.kind](Shapes(operator, model))
    except InputError as error:
        raise InputError(f"node {operator.label[:100]!r} ({operator.kind}): {error}") from None

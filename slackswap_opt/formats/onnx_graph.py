"""ONNX models as plain data: operators in order with the shapes of all that they touch.

Shapes are inferred operator by operator with the `onnx` package. What is computed from constants
only, such as the arithmetic that makes the target of a Reshape, is folded: it is no activation.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import networkx as nx

from slackswap_opt.errors import InputError
from slackswap_opt.formats.options import ReadOptions
from slackswap_opt.formats.strict_json import shown
from slackswap_opt.step.graph import MAX_BYTES

if TYPE_CHECKING:
    import onnx

MAX_RANK = 32
FOLDED_ELEMENTS = 2**14
"""Constants of more elements are not computed with; targets of shapes have a few."""
FAULTS_SHOWN = 30
NOT_FOLDED = frozenset(
    {"If", "Loop", "Scan", "SequenceMap", "RandomNormal", "RandomUniform", "RandomNormalLike",
     "RandomUniformLike", "Bernoulli", "Multinomial", "Dropout"}
)  # fmt: skip
"""Operators that are no constants, even of constants."""
LIKE_THEIR_INPUT = frozenset({"GroupNormalization"})
"""Operators that ONNX defines by others, so that it infers no shape: that of their first input."""
_INSTALL = (
    "reading ONNX models needs the onnx package; install it with: pip install 'slackswap-opt[onnx]'"
)


@dataclass(frozen=True, slots=True)
class DataType:
    """An element type.

    Attributes:
        name: as the machine's peaks name it, for floats.
        size_bytes: of an element.
        floating: whether gradients can flow to it.
    """

    name: str
    size_bytes: int
    floating: bool


FP32 = DataType("fp32", 4, True)
_TYPES = {
    1: FP32, 10: DataType("fp16", 2, True), 16: DataType("bf16", 2, True),
    11: DataType("fp64", 8, True), 2: DataType("uint8", 1, False), 3: DataType("int8", 1, False),
    4: DataType("uint16", 2, False), 5: DataType("int16", 2, False),
    6: DataType("int32", 4, False), 7: DataType("int64", 8, False), 9: DataType("bool", 1, False),
    12: DataType("uint32", 4, False), 13: DataType("uint64", 8, False),
}  # fmt: skip
"""By the numbers of onnx.TensorProto.DataType."""


@dataclass(frozen=True, slots=True)
class Array:
    """Shape and element type of a value."""

    dims: tuple[int, ...]
    type: DataType

    @property
    def elements(self) -> int:
        """How many elements it has."""
        return math.prod(self.dims)

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return self.elements * self.type.size_bytes


@dataclass(frozen=True, slots=True)
class Operator:
    """One operator of a model.

    Attributes:
        label: its name in the file, or its type and output, for messages.
        kind: its type, such as `Conv`; with the domain in front if that is not ONNX's own.
        attributes: its attributes that are numbers, texts or lists of them.
        inputs: names of values; empty for optional ones left out.
        outputs: names of values; empty for optional ones left out.
        opset: version of ONNX's own operators.
    """

    label: str
    kind: str
    attributes: Mapping[str, Any]
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    opset: int


@dataclass(slots=True)
class Model:
    """A forward model.

    Attributes:
        operators: those that compute, in an order that respects every dependency.
        arrays: every value, by name.
        batch: names of the inputs.
        parameters: initializers and fills, by name.
        constants: values computed from constants only.
        known: the content of small constants.
        outputs: names of the model's outputs.
        fills: how many parameters are stand-ins made by ConstantOfShape.
    """

    operators: list[Operator] = field(default_factory=list)
    arrays: dict[str, Array] = field(default_factory=dict)
    batch: set[str] = field(default_factory=set)
    parameters: set[str] = field(default_factory=set)
    constants: set[str] = field(default_factory=set)
    known: dict[str, Any] = field(default_factory=dict)
    outputs: list[str] = field(default_factory=list)
    fills: int = 0


def load(content: bytes, options: ReadOptions, ruled: Collection[str]) -> Model:
    """Parse a model, infer every shape and fold constants.

    Nothing outside of the content is read: weights in other files are known by their shapes.

    Args:
        content: of the file.
        options: sizes of symbolic dimensions.
        ruled: the operators that have a rule; others are faults, unless they are folded.

    Raises:
        InputError: with every fault found.
    """
    try:
        import onnx  # noqa: F401
        from google.protobuf.message import DecodeError
    except ImportError:
        raise InputError(_INSTALL) from None
    from onnx import ModelProto

    model = ModelProto()
    try:
        model.ParseFromString(content)
    except (DecodeError, RecursionError, ValueError) as error:
        raise InputError(
            f"the ONNX file is damaged or cut short ({str(error)[:80]}); export it again"
        ) from None
    if any(isinstance(text, bytes) for text in _texts(model)):
        raise InputError("a name in the ONNX file is not UTF-8 text; the file is damaged")
    return _Loader(model, options, ruled).load()


class _Loader:
    """The state of reading one model."""

    def __init__(
        self, model: onnx.ModelProto, options: ReadOptions, ruled: Collection[str]
    ) -> None:
        self.ruled = ruled
        self.graph = model.graph
        self.imports = model.opset_import
        self.options = options
        self.model = Model()
        self.faults: list[str] = []
        self.unknown: set[str] = set()  # values behind a fault already reported
        self.unsized: set[str] = set()  # outputs beside the first that nobody may need
        self.ruleless: dict[str, list[str]] = {}
        self.inferred: dict[Hashable, list[Array | str | None]] = {}
        self.opset = 0
        self.used_dimensions: set[str] = set()

    def load(self) -> Model:
        self._check_opset()
        self._add_initializers()
        self._add_inputs()
        ordered = self._ordered()
        self._stop_on_faults()
        for node in ordered:
            self._add(node)
        for kind, labels in self.ruleless.items():
            count = f"{len(labels)} nodes, first" if len(labels) > 1 else "node"
            self.faults.append(
                f"there is no rule for the operator {shown(kind)} ({count} {shown(labels[0])}), "
                "so it can neither be priced nor differentiated; express it in other operators"
            )
        self._stop_on_faults()
        self.model.outputs = [value.name for value in self.graph.output]
        missing = [name for name in self.model.outputs if name not in self.model.arrays]
        if missing:
            raise InputError(*(f"output {shown(name)} is made by no node" for name in missing))
        return self.model

    def _stop_on_faults(self) -> None:
        if self.faults:
            more = len(self.faults) - FAULTS_SHOWN
            extra = [f"and {more} more faults"] if more > 0 else []
            raise InputError(*self.faults[:FAULTS_SHOWN], *extra)

    # The frame: opset, initializers, inputs, order

    def _check_opset(self) -> None:
        from onnx import defs

        versions = [o.version for o in self.imports if o.domain in ("", "ai.onnx")]
        if not self.graph.node:
            self.faults.append("the model has no nodes; export a model that computes something")
        elif not versions:
            self.faults.append("the model does not say its opset (opset_import); export it again")
        elif not 1 <= versions[0] <= defs.onnx_opset_version():
            self.faults.append(
                f"the model uses opset {versions[0]}; the installed onnx package knows 1 to "
                f"{defs.onnx_opset_version()}; upgrade it, or export with an older opset"
            )
        self.opset = versions[0] if versions else 0
        self._stop_on_faults()

    def _add_initializers(self) -> None:
        for tensor in self.graph.initializer:
            where = f"initializer {shown(tensor.name)}"
            if tensor.name in self.model.arrays:
                self.faults.append(f"{where} is defined twice; names must be unique")
            array = self._array(where, tensor.data_type, list(tensor.dims))
            if array is None:
                self.unknown.add(tensor.name)
                continue
            self.model.arrays[tensor.name] = array
            if array.type.floating:
                self.model.parameters.add(tensor.name)
            else:
                self.model.constants.add(tensor.name)
            self._know(tensor.name, array, tensor)
        for sparse in self.graph.sparse_initializer:
            self.faults.append(
                f"initializer {shown(sparse.values.name)} is sparse; sparse weights are not read, "
                "make it dense"
            )

    def _add_inputs(self) -> None:
        given = [value for value in self.graph.input if value.name not in self.model.arrays]
        symbols: dict[str, None] = {}
        for value in given:
            where = f"input {shown(value.name)}"
            if value.name in self.model.arrays or not value.name:
                self.faults.append(f"{where} is defined twice or has no name; rename it")
                continue
            kind = value.type.WhichOneof("value")
            if kind != "tensor_type":
                self.faults.append(f"{where} is a {kind or 'value without type'}, not a tensor")
                continue
            tensor = value.type.tensor_type
            if not tensor.HasField("shape"):
                self.faults.append(f"{where} has no shape; export the model with shapes")
                continue
            dims: list[int] = []
            for axis, dim in enumerate(tensor.shape.dim):
                size = self._input_size(value.name, axis, dim)
                if isinstance(size, str):
                    symbols[size] = None
                dims.append(1 if isinstance(size, str) else size)
            array = self._array(where, tensor.elem_type, dims)
            if array is not None:
                self.model.arrays[value.name] = array
                self.model.batch.add(value.name)
        for symbol in symbols:
            hint = "" if self.options.batch else "; batch=32 sets the first axis of every input"
            self.faults.append(
                f"the dimension {shown(symbol)} of the inputs is not fixed in the file; give it "
                f"behind the file's name, as in FILE@{symbol[:60]}=32{hint}"
            )
        for name in self.options.dimensions:
            if name not in self.used_dimensions:
                self.faults.append(
                    f"{name}={self.options.dimensions[name]}: no input has a dimension of this "
                    "name; leave it out"
                )

    def _input_size(self, name: str, axis: int, dim: Any) -> int | str:
        """The size of an axis of an input, or the name of the dimension that must be given."""
        if self.options.batch is not None and axis == 0:
            return self.options.batch
        if dim.HasField("dim_value"):
            return int(dim.dim_value)
        symbol = dim.dim_param or f"{name}[{axis}]"
        if symbol not in self.options.dimensions:
            return symbol
        self.used_dimensions.add(symbol)
        return self.options.dimensions[symbol]

    def _ordered(self) -> list[onnx.NodeProto]:
        nodes = list(self.graph.node)
        writer: dict[str, int] = {}
        labels = [_label(node) for node in nodes]
        for position, node in enumerate(nodes):
            for name in filter(None, node.output):
                if name in writer or name in self.model.arrays:
                    self.faults.append(
                        f"node {shown(labels[position])} makes {shown(name)}, which is made "
                        "already; each value has one source"
                    )
                writer.setdefault(name, position)
        in_order = True
        edges: list[tuple[int, int]] = []
        for position, node in enumerate(nodes):
            for name in dict.fromkeys(filter(None, node.input)):
                if name in writer:
                    edges.append((writer[name], position))
                    in_order = in_order and writer[name] < position
                elif name not in self.model.arrays and name not in self.unknown:
                    self.faults.append(
                        f"node {shown(labels[position])} reads {shown(name)}, which nothing makes"
                    )
        if in_order:
            return nodes
        order: nx.DiGraph[int] = nx.DiGraph()
        order.add_nodes_from(range(len(nodes)))
        order.add_edges_from(edges)
        try:
            return [nodes[n] for n in nx.lexicographical_topological_sort(order)]
        except nx.NetworkXUnfeasible:
            cycle = [edge[0] for edge in nx.find_cycle(order)]
            path = " -> ".join(shown(labels[n]) for n in [*cycle, cycle[0]][:20])
            self.faults.append(f"the nodes form a cycle: {path}; remove one connection")
            return []

    # Nodes

    def _add(self, node: onnx.NodeProto) -> None:
        label = _label(node)
        names = [name for name in node.input if name]
        for name in names:
            if name in self.unsized and name not in self.unknown:
                self.faults.append(
                    f"node {shown(label)} reads {shown(name)}, whose shape cannot be inferred; fix "
                    "the shapes on export"
                )
                self.unknown.add(name)
        if any(name in self.unknown for name in names):
            self.unknown.update(node.output)
            return
        kind = node.op_type
        if node.domain not in ("", "ai.onnx"):
            kind = f"{node.domain}.{kind}"
        if not node.output or not node.output[0]:
            self.faults.append(f"node {shown(label)} ({shown(kind)}): its first output has no name")
            self.unknown.update(node.output)
            return
        constant = kind not in NOT_FOLDED and all(name in self.model.constants for name in names)
        if kind == "Shape" and len(names) == 1:
            self._add_shape(node, names[0])
            return
        if kind == "Size" and len(names) == 1:
            self._set_known(node.output[0], [self.model.arrays[names[0]].elements], scalar=True)
            return
        if kind == "Constant":
            self._add_constant(label, node)
            return
        if not constant and kind not in self.ruled:
            self.ruleless.setdefault(kind, []).append(label)
            self.unknown.update(node.output)
            return
        outputs = self._outputs(label, node)
        if outputs is None:
            self.unknown.update(node.output)
            return
        for name, array in outputs.items():
            self.model.arrays[name] = array
        if kind == "ConstantOfShape":
            array = self.model.arrays[node.output[0]]
            trained = array.type.floating and array.elements > 1
            (self.model.parameters if trained else self.model.constants).add(node.output[0])
            self.model.fills += trained
            if array.elements <= FOLDED_ELEMENTS and not trained:
                self._evaluate(label, node, outputs)
        elif constant:
            self.model.constants.update(outputs)
            if all(array.elements <= FOLDED_ELEMENTS for array in outputs.values()):
                self._evaluate(label, node, outputs)
        else:
            self.model.operators.append(
                Operator(
                    label, kind, _attributes(node), tuple(node.input), tuple(node.output),
                    self.opset,
                )
            )  # fmt: skip

    def _outputs(self, label: str, node: onnx.NodeProto) -> dict[str, Array] | None:
        """The arrays that a node makes; None, and a fault, if they cannot be known."""
        wanted = [name for name in node.output if name]
        found = self._infer(node)
        faults = [text for text in found if isinstance(text, str)]
        if faults:
            self.faults.append(f"node {shown(label)} ({node.op_type[:60]}): {faults[0]}")
            return None
        self.unsized.update(wanted[len(found) :])
        self.unsized.update(n for n, array in zip(wanted, found, strict=False) if array is None)
        return {
            name: array
            for name, array in zip(wanted, found, strict=False)
            if isinstance(array, Array)
        }

    def _infer(self, node: onnx.NodeProto) -> list[Array | str | None]:
        """Infer once for each operator on the same shapes.

        Returns:
            For each output its array, or None if it is not known and not the first; or a text that
            says what is wrong.
        """
        short: dict[str, str] = {}
        for name in node.input:
            short.setdefault(name, f"i{len(short)}" if name else "")
        inputs = [short[name] for name in node.input]
        outputs = [f"o{n}" if name else "" for n, name in enumerate(node.output)]
        arrays = {alias: self.model.arrays[name] for name, alias in short.items() if name}
        known = {
            alias: self.model.known[name]
            for name, alias in short.items()
            if name in self.model.known
        }
        key = (
            node.op_type,
            node.domain,
            *(attribute.SerializeToString(deterministic=True) for attribute in node.attribute),
            *inputs,
            *outputs,
            *((array.dims, array.type.name) for array in arrays.values()),
            *((alias, str(v.dtype), v.tobytes()) for alias, v in known.items()),
        )
        if key not in self.inferred:
            plain = _anonymous(node, inputs, outputs)
            self.inferred[key] = list(self._infer_now(plain, arrays, known))
        return self.inferred[key]

    def _infer_now(
        self, node: onnx.NodeProto, arrays: Mapping[str, Array], known: Mapping[str, Any]
    ) -> Iterator[Array | str | None]:
        from onnx import defs, helper, numpy_helper
        from onnx.checker import ValidationError
        from onnx.shape_inference import InferenceError, infer_node_outputs

        domain = "" if node.domain == "ai.onnx" else node.domain
        versions = {o.domain: o.version for o in self.imports if 1 <= o.version < 2**31}
        versions[""] = self.opset
        try:
            schema = defs.get_schema(node.op_type, versions.get(domain, 1), domain)
        except defs.SchemaError:
            yield (
                f"there is no operator of this name in opset {self.opset}"
                if not domain
                else f"its domain {shown(node.domain)} is not ONNX's own: there is no rule for it"
            )
            return
        if not domain and node.op_type in LIKE_THEIR_INPUT and "i0" in arrays:
            yield arrays["i0"]
            return
        types = {
            name: helper.make_tensor_type_proto(_number(array.type), array.dims)
            for name, array in arrays.items()
        }
        data = {name: numpy_helper.from_array(value, name) for name, value in known.items()}
        imports = [helper.make_opsetid(name, version) for name, version in versions.items()]
        try:
            found = infer_node_outputs(schema, node, types, data, opset_imports=imports)
        except (
            InferenceError, ValidationError, RuntimeError, ValueError, KeyError, TypeError,
        ) as error:  # fmt: skip
            text = " ".join(str(error).split())
            yield f"its shapes do not fit: {text[:160]}"
            return
        for position, name in enumerate(filter(None, node.output)):
            kind = found.get(name)
            if kind is None or not _sized(kind):
                yield (
                    None
                    if position
                    else (
                        "the shape of its output depends on data or cannot be inferred; fix the "
                        "shapes on export"
                    )
                )
                continue
            dims = [dim.dim_value for dim in kind.tensor_type.shape.dim]
            faults: list[str] = []
            array = _checked("", kind.tensor_type.elem_type, dims, faults)
            yield faults[0] if array is None else array

    # Constants

    def _add_shape(self, node: onnx.NodeProto, source: str) -> None:
        attributes = _attributes(node)
        dims = list(self.model.arrays[source].dims)
        start, end = attributes.get("start", 0), attributes.get("end", len(dims))
        limits = slice(start, end) if isinstance(start, int) and isinstance(end, int) else slice(0)
        self._set_known(node.output[0], dims[limits])

    def _set_known(self, name: str, values: list[int], *, scalar: bool = False) -> None:
        import numpy as np

        content = np.array(values[0] if scalar else values, dtype=np.int64)
        self.model.arrays[name] = Array(content.shape, _TYPES[7])
        self.model.constants.add(name)
        self.model.known[name] = content

    def _add_constant(self, label: str, node: onnx.NodeProto) -> None:
        """A Constant node: its array from the tensor itself, whatever its size."""
        from onnx import helper

        name = node.output[0] if node.output else ""
        where = f"node {shown(label)} (Constant)"
        given = list(node.attribute)
        tensor = given[0].t if len(given) == 1 and given[0].name == "value" else None
        if tensor is None and len(given) == 1:
            kind, attribute = given[0].name, given[0]
            plain: dict[str, tuple[int, list[int], list[Any]]] = {
                "value_int": (7, [], [attribute.i]),
                "value_ints": (7, [len(attribute.ints)], list(attribute.ints)),
                "value_float": (1, [], [attribute.f]),
                "value_floats": (1, [len(attribute.floats)], list(attribute.floats)),
            }
            if kind in plain:
                number, dims, values = plain[kind]
                tensor = helper.make_tensor(name, number, dims, values)
        array = None if tensor is None else self._array(where, tensor.data_type, list(tensor.dims))
        if tensor is None or array is None or not name:
            if tensor is None or not name:
                self.faults.append(f"{where}: it has no value of numbers; export the model again")
            self.unknown.update(node.output)
            return
        self.model.arrays[name] = array
        self.model.constants.add(name)
        self._know(name, array, tensor)

    def _know(self, name: str, array: Array, tensor: onnx.TensorProto) -> None:
        """Keep the content of a small constant; weights in other files stay unread."""
        from onnx import TensorProto, numpy_helper

        if array.elements > FOLDED_ELEMENTS or tensor.data_location == TensorProto.EXTERNAL:
            return
        try:
            content = numpy_helper.to_array(tensor)
        except (ValueError, TypeError, KeyError, RuntimeError) as error:
            self.faults.append(
                f"{shown(name)}: its data do not fit its shape {list(array.dims)} ({error})"[:300]
            )
            return
        if content.shape == array.dims:
            self.model.known[name] = content

    def _evaluate(self, label: str, node: onnx.NodeProto, outputs: Mapping[str, Array]) -> None:
        """Compute small outputs from known inputs; without them their content stays unknown."""
        import numpy as np
        from onnx import helper
        from onnx.reference import ReferenceEvaluator

        names = [name for name in dict.fromkeys(node.input) if name]
        if any(name not in self.model.known for name in names):
            return
        feeds = {name: self.model.known[name] for name in names}
        inputs = [
            helper.make_tensor_value_info(name, _number(self.model.arrays[name].type), None)
            for name in names
        ]
        made = [
            helper.make_tensor_value_info(name, _number(array.type), None)
            for name, array in outputs.items()
        ]
        graph = helper.make_graph([node], "folded", inputs, made)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", self.opset)])
        try:
            with np.errstate(all="ignore"):
                results = ReferenceEvaluator(model).run(None, feeds)
        except Exception as error:  # whatever a faulty attribute makes of it
            self.faults.append(
                f"node {shown(label)} ({node.op_type[:60]}): it cannot be computed from its "
                f"constants ({type(error).__name__}: {' '.join(str(error).split())[:120]})"
            )
            return
        for (name, array), result in zip(outputs.items(), results, strict=False):
            if isinstance(result, np.ndarray | np.generic) and np.shape(result) == array.dims:
                self.model.known[name] = np.asarray(result)

    def _array(self, where: str, number: int, dims: list[int]) -> Array | None:
        return _checked(f"{where}: ", number, dims, self.faults)


def _anonymous(
    node: onnx.NodeProto, inputs: Iterable[str], outputs: Iterable[str]
) -> onnx.NodeProto:
    """A copy of a node with other names of values, and without what is its own."""
    from onnx import NodeProto

    plain = NodeProto()
    plain.CopyFrom(node)
    plain.ClearField("name")
    plain.ClearField("doc_string")
    del plain.input[:]
    del plain.output[:]
    plain.input.extend(inputs)
    plain.output.extend(outputs)
    return plain


def _checked(where: str, number: int, dims: list[int], faults: list[str]) -> Array | None:
    kind = _TYPES.get(number)
    if kind is None:
        faults.append(f"{where}elements of the type number {number} are not supported")
    elif len(dims) > MAX_RANK:
        faults.append(f"{where}it has {len(dims)} dimensions, expected at most {MAX_RANK}")
    elif any(size < 0 for size in dims):
        faults.append(f"{where}its shape is {dims}, expected sizes of 0 or more")
    elif math.prod(dims) * kind.size_bytes > MAX_BYTES:
        faults.append(f"{where}its shape {dims} holds more than {MAX_BYTES} bytes")
    else:
        return Array(tuple(dims), kind)
    return None


def _texts(model: onnx.ModelProto) -> Iterator[str | bytes]:
    """Every name that is used; protobuf hands out bytes for a text that is none."""
    graph = model.graph
    yield from (entry.domain for entry in model.opset_import)
    yield from (tensor.name for tensor in graph.initializer)
    yield from (sparse.values.name for sparse in graph.sparse_initializer)
    for value in (*graph.input, *graph.output):
        yield value.name
        yield from (dim.dim_param for dim in value.type.tensor_type.shape.dim)
    for node in graph.node:
        yield from (node.name, node.op_type, node.domain, *node.input, *node.output)
        yield from (attribute.name for attribute in node.attribute)


def _sized(kind: onnx.TypeProto) -> bool:
    """Whether an inferred type is a tensor with all of its sizes."""
    if kind.WhichOneof("value") != "tensor_type":
        return False
    tensor = kind.tensor_type
    return tensor.HasField("shape") and all(d.HasField("dim_value") for d in tensor.shape.dim)


def _number(kind: DataType) -> int:
    return next(number for number, known in _TYPES.items() if known is kind)


def _label(node: onnx.NodeProto) -> str:
    if node.name:
        return node.name
    made = next((name for name in node.output if name), "")
    return f"{node.op_type} of {made}" if made else node.op_type


def _attributes(node: onnx.NodeProto) -> dict[str, Any]:
    """Attributes that are numbers, texts or lists of numbers."""
    found: dict[str, Any] = {}
    for attribute in node.attribute:
        if attribute.type == 1:
            found[attribute.name] = attribute.f
        elif attribute.type == 2:
            found[attribute.name] = attribute.i
        elif attribute.type == 3:
            found[attribute.name] = attribute.s.decode(errors="replace")
        elif attribute.type == 7:
            found[attribute.name] = list(attribute.ints)
    return found

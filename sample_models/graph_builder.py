"""Builds an ONNX graph node by node, with the type and shape of every value known at once.

Each node's outputs are inferred by the ONNX type inference of that one operator, so that a
rule may ask for `graph.shape(value)` right after it emitted the node, and the finished model
carries full type and shape information without a second pass.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import NodeProto, TensorProto, TypeProto, helper, numpy_helper, shape_inference

OPSET = 20
IR_VERSION = 10
CONTRIB_DOMAIN = "com.microsoft"

# Inference reads the values of small integer constants (shapes, axes); weights never matter.
_INFERENCE_CONSTANT_ELEMENTS = 64

Dimension = int | str | None


def tensor_type(element_type: int, shape: Sequence[Dimension]) -> TypeProto:
    """Return a tensor type; a string names a dynamic dimension."""
    return helper.make_tensor_type_proto(element_type, shape)


class GraphBuilder:
    """An ONNX graph under construction; values are referred to by name."""

    def __init__(self, name: str, outer: "GraphBuilder | None" = None) -> None:
        """Start a graph, or the body of a control-flow node, which may read values of `outer`."""
        self.name = name
        self.nodes: list[NodeProto] = []
        self._inputs: list[str] = []
        self._outputs: list[str] = []
        self._initializers: dict[str, TensorProto] = {}
        self._constants: dict[tuple[str, tuple[int, ...], bytes], str] = {}
        self._types: dict[str, TypeProto] = dict(outer._types) if outer else {}
        self._taken: dict[str, int] = {}
        # A body's names begin with its own, as they may not hide those of the outer graph.
        self._root = [name] if outer else []
        self._scope = list(self._root)

    @contextmanager
    def scope(self, name: str) -> Iterator[None]:
        """Prefix the names made inside the block by `name` and a dot."""
        self._scope.append(name)
        try:
            yield
        finally:
            self._scope.pop()

    def unique_name(self, name: str) -> str:
        """Return `name` inside the current scope, numbered when it is taken."""
        full = ".".join([*self._scope, name])
        count = self._taken.get(full, 0)
        self._taken[full] = count + 1
        return full if count == 0 else self.unique_name(f"{name}_{count}")

    def element_type(self, value: str) -> int:
        """Return the ONNX element type (`TensorProto.FLOAT`, ...) of a value."""
        return self._types[value].tensor_type.elem_type

    def dimensions(self, value: str) -> tuple[Dimension, ...]:
        """Return the dimensions of a value: a number, a name, or None when unknown."""
        return tuple(
            dim.dim_value if dim.HasField("dim_value") else dim.dim_param or None
            for dim in self._types[value].tensor_type.shape.dim
        )

    def shape(self, value: str) -> tuple[int, ...]:
        """Return the shape of a value; ValueError when a dimension is dynamic."""
        shape = tuple(dim for dim in self.dimensions(value) if isinstance(dim, int))
        if len(shape) != len(self.dimensions(value)):
            raise ValueError(f"the shape of {value!r} is not static: {self.dimensions(value)}")
        return shape

    def input(self, name: str, element_type: int, shape: Sequence[Dimension]) -> str:
        """Add a graph input."""
        full = self.unique_name(name)
        self._inputs.append(full)
        self._types[full] = tensor_type(element_type, shape)
        return full

    def output(self, value: str) -> None:
        """Make a value a graph output."""
        self._outputs.append(value)

    def initializer(self, name: str, array: NDArray[np.generic]) -> str:
        """Add a named initializer."""
        full = self.unique_name(name)
        self._initializers[full] = numpy_helper.from_array(array, full)
        element_type = helper.np_dtype_to_tensor_dtype(array.dtype)
        self._types[full] = tensor_type(element_type, array.shape)
        return full

    def constant(self, array: NDArray[np.generic]) -> str:
        """Return an initializer of this content; equal constants are shared."""
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._constants:
            scope, self._scope = self._scope, list(self._root)
            self._constants[key] = self.initializer("constant", array)
            self._scope = scope
        return self._constants[key]

    def constant_value(self, value: str) -> TensorProto:
        """Return the content of an initializer; KeyError for any other value."""
        return self._initializers[value]

    def integers(self, values: Sequence[int]) -> str:
        """Return a constant int64 vector."""
        return self.constant(np.array(values, dtype=np.int64))

    def scalar(self, value: float) -> str:
        """Return a constant float32 scalar."""
        return self.constant(np.array(value, dtype=np.float32))

    def op(self, op_type: str, *inputs: str, name: str = "", **attributes: Any) -> str:
        """Add a node of one output and return that output."""
        return self.ops(op_type, inputs, 1, name=name, **attributes)[0]

    def ops(
        self,
        op_type: str,
        inputs: Sequence[str],
        outputs: int,
        name: str = "",
        **attributes: Any,
    ) -> list[str]:
        """Add a node of the standard domain with several outputs and return them."""
        node = self._make_node(op_type, inputs, outputs, name, **attributes)
        inferred = shape_inference.infer_node_outputs(
            onnx.defs.get_schema(op_type, OPSET),
            node,
            {value: self._types[value] for value in inputs if value},
            {
                value: self._initializers[value]
                for value in inputs
                if self._is_inference_constant(value)
            },
            opset_imports=[helper.make_opsetid("", OPSET)],
            ir_version=IR_VERSION,
        )
        return self._add_node(node, [inferred[value] for value in node.output])

    def opaque(
        self, op_type: str, inputs: Sequence[str], types: Sequence[TypeProto], **attributes: Any
    ) -> list[str]:
        """Add a node whose output types ONNX alone cannot infer; `domain` is an attribute here."""
        node = self._make_node(op_type, inputs, len(types), "", **attributes)
        return self._add_node(node, types)

    def reshape(self, value: str, shape: Sequence[int]) -> str:
        """Reshape a value, or return it as it is when it has that shape."""
        if self.shape(value) == tuple(shape):
            return value
        return self.op("Reshape", value, self.integers(shape))

    def declare(self, value: str, dimensions: Sequence[Dimension]) -> str:
        """Name the dimensions of a value that inference left unknown; return the value."""
        known = self.dimensions(value)
        clash = [d for d, e in zip(known, dimensions, strict=True) if d is not None and d != e]
        if clash:
            raise ValueError(f"{value!r} is {known}, not {tuple(dimensions)}")
        self._types[value] = tensor_type(self.element_type(value), dimensions)
        return value

    def graph(self) -> onnx.GraphProto:
        """Return the graph, to be a model's or the body of a control-flow node."""
        inner = [value for node in self.nodes for value in node.output]
        return helper.make_graph(
            self.nodes,
            self.name,
            [self._value_info(value) for value in self._inputs],
            [self._value_info(value) for value in self._outputs],
            initializer=list(self._initializers.values()),
            value_info=[self._value_info(value) for value in inner if value not in self._outputs],
        )

    def model(self) -> onnx.ModelProto:
        """Return the finished model."""
        opsets = [helper.make_opsetid("", OPSET)]
        if any(node.domain == CONTRIB_DOMAIN for node in self.nodes):
            opsets.append(helper.make_opsetid(CONTRIB_DOMAIN, 1))
        return helper.make_model(
            self.graph(),
            opset_imports=opsets,
            ir_version=IR_VERSION,
            producer_name="sample_models",
        )

    def _make_node(
        self, op_type: str, inputs: Sequence[str], outputs: int, name: str, **attributes: Any
    ) -> NodeProto:
        full = self.unique_name(name or op_type)
        values = [full, *(f"{full}:{index}" for index in range(1, outputs))]
        return helper.make_node(op_type, list(inputs), values, name=full, **attributes)

    def _add_node(self, node: NodeProto, types: Sequence[TypeProto]) -> list[str]:
        self.nodes.append(node)
        self._types.update(zip(node.output, types, strict=True))
        return list(node.output)

    def _is_inference_constant(self, value: str) -> bool:
        tensor = self._initializers.get(value)
        return tensor is not None and np.prod(tensor.dims) <= _INFERENCE_CONSTANT_ELEMENTS

    def _value_info(self, value: str) -> onnx.ValueInfoProto:
        return helper.make_value_info(value, self._types[value])

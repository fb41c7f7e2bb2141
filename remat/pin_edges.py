"""An ordering edge in ONNX: one node runs only after others, at no cost in memory.

    Slice(D, 0, 0) -> nothing of D         D: an output of a node to wait for
    Reshape, Cast  -> an empty int64[0]
    Concat(those, shape of x) -> shape of x, which only the run can tell
    Reshape(x, that shape) -> x'           the waiting node reads x' in place of its input x

The runtime allocates nothing but the shape, and x' is x's own buffer. No optimization level folds
the nodes, for they hang on a value of the run, or merges them, for each chain has a mark of its
own. The nodes up to the Concat are the edge's head, the last Reshape is its link (`pin_order`).
The optimizer merges views next to each other into one Reshape, of which the edge would be lost.
So a waiting view gets no link: it becomes a Reshape that reads the head for its shape. And where
a view writes what it or the link reads, and nobody else does, the head reads that as well: what
has two readers is not merged.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from remat.build import Shapes
from remat.costs import OpCost
from remat.lower import PREFIX, fresh_name, names_in_use, note
from remat.problem import NONE
from remat.profiles.in_place import onnx_type

EDGE_NOTE = "edge_of"
EDGE_ATTRIBUTE = "__remat_edge"
# Slice takes its bounds as inputs since this version.
SLICE_BY_INPUTS = 10

_FLOATS = ("float", "double", "float16", "bfloat16")
# What Slice and Cast take with every version of the runtime.
_SIGNALS = (*_FLOATS[:3], "bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (32, 64)))
# The runtime's BatchNormalization writes over its running statistics: they stay what they are.
_NEVER_CARRIED = {"BatchNormalization": (3, 4)}

_VIEWS = ("Identity", "Reshape", "Squeeze", "Unsqueeze")

# Kind, inputs and attributes of a node.
_Call = tuple[str, list[str], dict[str, Any]]


def carried_input(
    node: NodeProto,
    shapes: Shapes,
    known: frozenset[str],
    writer: Mapping[str, int],
    kinds: Mapping[str, str],
) -> str:
    """The input of `node` that a link can carry, or "".

    It has to be `known`: its shape is static, and it is no weight (a weight behind a Reshape is
    not prepacked). Preferred is what no view writes, has axes, holds floats, and is written last:
    then the other inputs are there when it waits. `writer` and `kinds` are place and kind of the
    node that writes a value.
    """
    barred = _NEVER_CARRIED.get(node.op_type, ())
    names = [name for slot, name in enumerate(node.input) if name and slot not in barred]
    usable = [name for name in names if name in known and shapes[name][0] != "string"]

    def rank(name: str) -> tuple[bool, bool, bool, int]:
        dtype, shape = shapes[name]
        is_free = not is_view(kinds.get(name, ""))
        return is_free, bool(shape), dtype in _FLOATS, writer.get(name, NONE)

    return max(usable, key=rank, default="")


def is_view(kind: str) -> bool:
    """Whether the runtime's optimizer merges such a node with a Reshape next to it (an Identity,
    left where it writes a graph output, goes as soon as it alone reads what it copies)."""
    return kind in _VIEWS


def is_linkless(node: NodeProto, shapes: Shapes, known: frozenset[str]) -> bool:
    """Whether the node is a view that can read an edge's head for its shape."""
    if not is_view(node.op_type) or node.domain or node.output[0] not in known:
        return False
    # In a shape, a 0 would stand for the input's own dimension.
    return 0 not in shapes[node.output[0]][1]


def take_shape(node: NodeProto, shape: str) -> None:
    """Make a view the Reshape that reads a shape, in place."""
    ours = [one for one in node.attribute if one.name.startswith("__")]
    source = node.input[0]
    del node.attribute[:], node.input[:]
    node.op_type = "Reshape"
    node.input.extend([source, shape])
    node.attribute.extend(ours)


def signal_output(node: NodeProto, shapes: Shapes) -> str:
    """The output of `node` from which an edge takes the fewest nodes, or ""."""
    usable = [name for name in node.output if can_signal(name, shapes)]

    def cost(name: str) -> tuple[int, bool]:
        dtype, shape = shapes[name]
        return abs(len(shape) - 1), dtype != "int64"

    return min(usable, key=cost, default="")


def can_signal(name: str, shapes: Shapes) -> bool:
    """Whether an edge may start at this value."""
    return bool(name) and name in shapes and shapes[name][0] in _SIGNALS


@dataclass(slots=True)
class EdgeWriter:
    """Makes the nodes of edges for one model; `shapes` gains the values that they write.

    `taken` are names in use, `constants` by name and `infos` what the model has to gain.
    """

    shapes: Shapes
    taken: set[str]
    opset: int
    constants: dict[str, TensorProto] = field(default_factory=dict)
    infos: list[ValueInfoProto] = field(default_factory=list)
    _known: dict[tuple[int, ...], str] = field(default_factory=dict)
    _chains: int = 0

    def head(self, waiting: NodeProto, like: str, signals: Sequence[str]) -> list[NodeProto]:
        """The nodes that write the shape of `like` once all of `signals` are written."""
        nodes: list[NodeProto] = []
        empty = [self._empty(nodes, waiting, signal) for signal in signals]
        dims = self._constant(self.shapes[like][1])
        rank = (len(self.shapes[like][1]),)
        self._add(nodes, waiting, ("Concat", [*empty, dims], {"axis": 0}), ("int64", rank))
        return nodes

    def link(self, waiting: NodeProto, carried: str, shape: str) -> NodeProto:
        """The node that hands `carried` on; `waiting` reads what it writes from now on."""
        nodes: list[NodeProto] = []
        fresh = self._add(nodes, waiting, ("Reshape", [carried, shape], {}), self.shapes[carried])
        for slot, name in enumerate(waiting.input):
            if name == carried:
                waiting.input[slot] = fresh
        return nodes[0]

    def _empty(self, nodes: list[NodeProto], waiting: NodeProto, name: str) -> str:
        """An int64[0] that depends on a value."""
        dtype, shape = self.shapes[name]
        first = len(nodes)
        if not shape:
            one = self._constant((1,))
            name, shape = (
                self._add(nodes, waiting, ("Reshape", [name, one], {}), (dtype, (1,))),
                (1,),
            )
        zero = self._constant((0,))
        if self.opset >= SLICE_BY_INPUTS:
            cut: _Call = ("Slice", [name, zero, zero, zero], {})
        else:
            cut = ("Slice", [name], {"starts": [0], "ends": [0], "axes": [0]})
        name = self._add(nodes, waiting, cut, (dtype, (0, *shape[1:])))
        if len(shape) > 1:
            # A 0 asks for the input's own dimension, which is 0.
            name = self._add(nodes, waiting, ("Reshape", [name, zero], {}), (dtype, (0,)))
        if dtype != "int64":
            cast: _Call = ("Cast", [name], {"to": TensorProto.INT64})
            name = self._add(nodes, waiting, cast, ("int64", (0,)))
        nodes[first].attribute.append(helper.make_attribute(EDGE_ATTRIBUTE, self._chains))
        self._chains += 1
        return name

    def _add(
        self,
        nodes: list[NodeProto],
        waiting: NodeProto,
        what: _Call,
        written: tuple[str, tuple[int, ...]],
    ) -> str:
        """Append a node; the name of what it writes."""
        kind, inputs, attributes = what
        name = fresh_name(f"{waiting.name}__after", self.taken)
        output = fresh_name(f"{name}_{kind}", self.taken)
        node = helper.make_node(kind, inputs, [output], name=name, **attributes)
        node.metadata_props.add(key=PREFIX + EDGE_NOTE, value=waiting.name)
        nodes.append(node)
        self.shapes[output] = written
        self.infos.append(helper.make_tensor_value_info(output, onnx_type(written[0]), written[1]))
        return output

    def _constant(self, numbers: tuple[int, ...]) -> str:
        """The weight that holds some int64 numbers."""
        if numbers not in self._known:
            name = fresh_name("remat_" + "x".join(map(str, numbers)), self.taken)
            tensor = numpy_helper.from_array(np.array(numbers, np.int64), name)
            self._known[numbers] = name
            self.constants[name] = tensor
            self.shapes[name] = ("int64", (len(numbers),))
        return self._known[numbers]


def edge_writer(model: ModelProto, shapes: Shapes) -> EdgeWriter:
    """A writer for `model`; `shapes` is copied."""
    versions = [one.version for one in model.opset_import if one.domain in ("", "ai.onnx")]
    return EdgeWriter(dict(shapes), names_in_use(model), max(versions, default=SLICE_BY_INPUTS))


def is_edge(node: NodeProto) -> bool:
    """Whether a node belongs to an edge."""
    return bool(note(node, EDGE_NOTE))


# Measured on a busy machine, caches cold: a node of an edge takes the executor's overhead alone.
EDGE_NODE_NS = 4_000


def edge_cost(node: NodeProto) -> OpCost:
    """What a node of an edge takes; its Reshapes are views."""
    alias = (0,) if node.op_type == "Reshape" else (NONE,)
    return OpCost(node.op_type, EDGE_NODE_NS, 0, 0, alias, ((),))

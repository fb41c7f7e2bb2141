"""Which outputs take over an input's buffer: asked of the runtime, not of a table.

For each kind of op (kernel: domain, type, element types) and each pair of an input and an output
of one shape and element size, a probe graph runs the op on an input that dies there and, again,
on one that lives on. The runtime's memory statistics tell whether the output was allocated: not
in the first graph means in place, in neither means an alias. All probes are one disjoint graph.
"""

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
from onnx import ModelProto, NodeProto, TensorProto, helper

from remat import feeds
from remat.onnx_io import subgraphs_of
from remat.passes.offline import runtime_errors
from remat.profiles.observe import NAME, memory_statistics

# Probing is pointless for the largest tensors: the answer does not depend on the size.
MAX_PROBE_BYTES = 64 << 20

Shapes = Mapping[str, tuple[str, tuple[int, ...]]]


@dataclass(frozen=True, slots=True)
class Pair:
    """Output slot `output` of `kind` might take the buffer of input slot `source`."""

    kind: str
    source: int
    output: int


def kernel_kind(node: NodeProto, types: Mapping[str, str]) -> str:
    """What selects a kernel: domain, op type, element types by slot, and which slots are used."""
    ins = ",".join(types.get(name, "?") if name else "" for name in node.input)
    outs = ",".join(types.get(name, "?") if name else "" for name in node.output)
    return f"{node.domain}:{node.op_type}({ins})->({outs})"


def candidates(nodes: Sequence[NodeProto], shapes: Shapes) -> dict[Pair, int]:
    """For each pair that could share a buffer, the index of its smallest node."""
    types = {name: dtype for name, (dtype, _) in shapes.items()}
    best: dict[Pair, tuple[int, int]] = {}
    for index, node in enumerate(nodes):
        if any(subgraphs_of(attribute) for attribute in node.attribute):
            continue
        size = sum(_size(shapes, name) for name in (*node.input, *node.output))
        if size > MAX_PROBE_BYTES:
            continue
        kind = kernel_kind(node, types)
        for source, output in _pairs(node, shapes):
            pair = Pair(kind, source, output)
            if pair not in best or size < best[pair][0]:
                best[pair] = (size, index)
    return {pair: index for pair, (_, index) in best.items()}


def _pairs(node: NodeProto, shapes: Shapes) -> Iterator[tuple[int, int]]:
    for output, written in enumerate(node.output):
        for source, read in enumerate(node.input):
            if not read or not written or read not in shapes or written not in shapes:
                continue
            if list(node.input).count(read) > 1 or not _size(shapes, written):
                continue
            same_size = _size(shapes, read) == _size(shapes, written)
            if same_size and shapes[read][1] == shapes[written][1] and shapes[read][1]:
                yield source, output


def _size(shapes: Shapes, name: str) -> int:
    dtype, shape = shapes.get(name, ("", ()))
    return element_bytes(dtype) * int(np.prod(shape, dtype=np.int64)) if dtype else 0


# The names that the runtime's profiler gives to element types, where numpy's differ.
_PROFILER_TYPES = {
    "float": "FLOAT",
    "double": "DOUBLE",
    "bfloat16": "BFLOAT16",
    "float16": "FLOAT16",
    "bool": "BOOL",
    "string": "STRING",
}


def onnx_type(dtype: str) -> int:
    """The TensorProto type of a profiler's type name; UNDEFINED where there is none."""
    name = _PROFILER_TYPES.get(dtype, dtype.upper())
    return int(getattr(TensorProto, name, TensorProto.UNDEFINED))


# What one std::string of the runtime takes, its characters apart.
STRING_BYTES = 32


def element_bytes(dtype: str) -> int:
    """Bytes of one element; 4-bit types count a full byte (rounded up)."""
    kind = onnx_type(dtype)
    if kind == TensorProto.STRING:
        return STRING_BYTES
    return int(helper.tensor_dtype_to_np_dtype(kind).itemsize) if kind else 0


def probe(model: ModelProto, shapes: Shapes, asked: Mapping[Pair, int]) -> dict[Pair, str]:
    """For each pair "in-place", "alias" or "none"; pairs whose probe does not run are "none".

    The probes run as one graph first; if that fails, one by one.
    """
    constants = {tensor.name: tensor for tensor in model.graph.initializer}
    together = _run(model, constants, shapes, asked)
    if together is not None:
        return together
    answers: dict[Pair, str] = {}
    for pair, index in asked.items():
        answers |= _run(model, constants, shapes, {pair: index}) or {pair: "none"}
    return answers


def _run(
    model: ModelProto,
    constants: Mapping[str, TensorProto],
    shapes: Shapes,
    asked: Mapping[Pair, int],
) -> dict[Pair, str] | None:
    builder = _Probe(model, constants, shapes)
    for pair, index in asked.items():
        builder.add(pair, model.graph.node[index])
    proto = builder.build()
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        path = Path(folder, "probe.onnx")
        onnx.save_model(proto, str(path))
        try:
            arrays = feeds.make(proto, seed=0)
            fresh, _ = memory_statistics(path, arrays, 1, len(proto.graph.node))
        except runtime_errors():
            return None
    return builder.read(fresh)


class _Probe:
    """One graph of disjoint probes; node names as `observe` numbers them."""

    def __init__(
        self, model: ModelProto, constants: Mapping[str, TensorProto], shapes: Shapes
    ) -> None:
        self.model, self.constants, self.shapes = model, constants, shapes
        self.nodes: list[NodeProto] = []
        self.inputs: list[onnx.ValueInfoProto] = []
        self.outputs: list[onnx.ValueInfoProto] = []
        self.weights: dict[str, TensorProto] = {}
        self.places: dict[Pair, tuple[int, int]] = {}
        self.written_bytes: dict[int, int] = {}
        self.output_bytes: dict[Pair, int] = {}

    def add(self, pair: Pair, node: NodeProto) -> None:
        """Two copies of `node`: the input in question dies there, or is read once more after."""
        dies = self._copy(node, pair, lives_on=False)
        lives = self._copy(node, pair, lives_on=True)
        self.places[pair] = (dies, lives)
        self.output_bytes[pair] = _size(self.shapes, node.output[pair.output])

    def _copy(self, node: NodeProto, pair: Pair, *, lives_on: bool) -> int:
        tag = f"p{len(self.nodes)}"
        names = [self._feed(name, f"{tag}_in{slot}") for slot, name in enumerate(node.input)]
        # Graph inputs belong to the caller and are never taken over: pass ours through a copy.
        source = f"{tag}_source"
        given = self._graph_input(node.input[pair.source], f"{tag}_given")
        rank = len(self.shapes[node.input[pair.source]][1])
        self._append(helper.make_node("Transpose", [given], [source], perm=list(range(rank))))
        names[pair.source] = source
        place = len(self.nodes)
        outputs = [f"{tag}_out{slot}" if name else "" for slot, name in enumerate(node.output)]
        self._append(_with_names(node, names, outputs))
        for slot, name in enumerate(node.output):
            if name in self.shapes:
                # A graph output is always allocated, so the op's own must not be one.
                self._sink(outputs[slot], name, f"{tag}_end{slot}")
        if lives_on:
            self._sink(source, node.input[pair.source], f"{tag}_again")
        self.written_bytes[place] = sum(_size(self.shapes, name) for name in node.output)
        return place

    def _feed(self, name: str, fresh: str) -> str:
        """A constant as it is; anything else as a graph input of the probe."""
        if not name:
            return ""
        tensor = self.constants.get(name)
        if tensor is not None and tensor.data_location != TensorProto.EXTERNAL:
            self.weights[name] = tensor
            return name
        return self._graph_input(name, fresh)

    def _graph_input(self, name: str, fresh: str) -> str:
        dtype, shape = self.shapes[name]
        self.inputs.append(helper.make_tensor_value_info(fresh, onnx_type(dtype), shape))
        return fresh

    def _sink(self, name: str, like: str, end: str) -> None:
        dtype, shape = self.shapes[like]
        self._append(helper.make_node("Identity", [name], [end]))
        self.outputs.append(helper.make_tensor_value_info(end, onnx_type(dtype), shape))

    def _append(self, node: NodeProto) -> None:
        node.name = NAME.format(len(self.nodes))
        self.nodes.append(node)

    def build(self) -> ModelProto:
        graph = helper.make_graph(
            self.nodes, "probe", self.inputs, self.outputs, list(self.weights.values())
        )
        return helper.make_model(
            graph, opset_imports=self.model.opset_import, ir_version=self.model.ir_version
        )

    def read(self, fresh: Sequence[int]) -> dict[Pair, str]:
        """Compare what each copy allocated with what its outputs take."""
        answers = {}
        for pair, (dies, lives) in self.places.items():
            missing = self.written_bytes[lives] - fresh[lives]
            if fresh[lives] > fresh[dies]:
                answers[pair] = "in-place"
            else:
                answers[pair] = "alias" if missing >= self.output_bytes[pair] else "none"
        return answers


def _with_names(node: NodeProto, inputs: list[str], outputs: list[str]) -> NodeProto:
    clone = NodeProto()
    clone.CopyFrom(node)
    del clone.input[:], clone.output[:]
    clone.input.extend(inputs)
    clone.output.extend(outputs)
    return clone

"""An optimized model and one observed run make the graph; graph and costs make the problem."""

from collections.abc import Mapping, Sequence

import numpy as np
from onnx import GraphProto, ModelProto, NodeProto, TensorProto

from remat.child import Payload
from remat.costs import CostTable
from remat.errors import BadModel, UsageError
from remat.graph import Graph, Op, Tensor
from remat.onnx_io import caller_inputs, captured, subgraph_nodes, subgraphs_of
from remat.problem import CONSTANT, NONE, Problem
from remat.profiles.in_place import element_bytes, onnx_type
from remat.profiles.signature import signatures
from remat.racing_ops import races
from remat.random_ops import is_random
from remat.units import round_up

HOISTED_OPS = frozenset({"Shape", "Size"})

Shapes = dict[str, tuple[str, tuple[int, ...]]]

# A block that is its own mapping takes whole pages and its header; a small one is aligned.
PAGE_BYTES = 4096
MAPPED_BYTES = 65536
BLOCK_ALIGNMENT_BYTES = 64
BLOCK_HEADER_BYTES = 16


def held_bytes(nbytes: int) -> int:
    """What the allocator takes for a tensor: 64-byte alignment, then whole pages when mapped.

    glibc with a fixed mmap threshold of 64 KiB, which is how peaks are measured.
    """
    if nbytes == 0:
        return 0
    padded = nbytes + BLOCK_ALIGNMENT_BYTES + BLOCK_HEADER_BYTES
    if padded >= MAPPED_BYTES:
        return round_up(padded, PAGE_BYTES)
    return round_up(padded, BLOCK_ALIGNMENT_BYTES)


def observed_shapes(model: ModelProto, observed: Payload) -> Shapes:
    """(element type, shape) of every value, input and initializer by name."""
    shapes: Shapes = {}
    for node, outputs in zip(model.graph.node, observed["shapes"], strict=True):
        names = [name for name in node.output if name]
        for name, (dtype, shape) in zip(names, outputs, strict=False):
            shapes[name] = (dtype, tuple(shape))
    for info in model.graph.input:
        tensor = info.type.tensor_type
        dims = tuple(dim.dim_value for dim in tensor.shape.dim)
        shapes[info.name] = (_type_name(tensor.elem_type), dims)
    for weight in model.graph.initializer:
        shapes[weight.name] = (_type_name(weight.data_type), tuple(weight.dims))
    return shapes


def _type_name(kind: int) -> str:
    return str(TensorProto.DataType.Name(kind)).lower() if kind else ""


def tensor_bytes(dtype: str, shape: Sequence[int]) -> int:
    """Size of a tensor's content."""
    return element_bytes(dtype) * int(np.prod(shape, dtype=np.int64))


def build_graph(model: ModelProto, shapes: Shapes, name: str) -> Graph:
    """The graph of an optimized model. Raises BadModel R507 for a value that is not a tensor."""
    static = static_values(model)
    tensors: dict[str, Tensor] = {}
    ops = []
    keys = signatures(model, shapes, static)
    for node, signature in zip(model.graph.node, keys, strict=True):
        for output in node.output:
            if output:
                tensors[output] = _tensor(node, output, shapes, static)
        ops.append(_op(node, signature))
    return Graph(
        name=name,
        inputs=tuple(info.name for info in caller_inputs(model)),
        outputs=tuple(info.name for info in model.graph.output),
        weights=frozenset(tensor.name for tensor in model.graph.initializer),
        weights_bytes=sum(_weights_bytes(model.graph)),
        inputs_bytes=sum(tensor_bytes(*shapes[info.name]) for info in caller_inputs(model)),
        ops=tuple(ops),
        tensors=tensors,
    )


def _tensor(node: NodeProto, name: str, shapes: Shapes, static: frozenset[str]) -> Tensor:
    if name not in shapes or not onnx_type(shapes[name][0]):
        kind = shapes[name][0] if name in shapes else "value of unknown type"
        raise BadModel("R507", f"op {node.name} ({node.op_type}) writes a {kind}, not a tensor")
    dtype, shape = shapes[name]
    return Tensor(name, dtype, shape, tensor_bytes(dtype, shape), name in static)


def _op(node: NodeProto, signature: str) -> Op:
    inner = captured(node)
    return Op(
        name=node.name,
        kind=f"{node.domain}::{node.op_type}" if node.domain else node.op_type,
        inputs=tuple(node.input),
        outputs=tuple(node.output),
        captured=inner,
        recomputable=recomputable(node),
        hoisted=node.op_type in HOISTED_OPS,
        signature=signature,
        overwrites=_overwrites(node, inner),
    )


def recomputable(node: NodeProto) -> bool:
    """Whether a second execution gives the same result."""
    return not (is_random(node) or races(node) or _mutates(node))


def _mutates(node: NodeProto) -> bool:
    """Whether a second execution sees other inputs: the runtime's BatchNormalization in training
    mode writes the running statistics over its own inputs, the same ones if momentum is 0."""
    return any(
        _is_training(one) and _number(one, "momentum", 1.0) != 0.0
        for one in (node, *subgraph_nodes(node))
    )


def _is_training(node: NodeProto) -> bool:
    is_norm = node.op_type == "BatchNormalization"
    return is_norm and _number(node, "training_mode", 0.0) == 1.0


def _number(node: NodeProto, name: str, default: float) -> float:
    """A numeric attribute; one that is 0 counts as not given, which for ours is the same."""
    found = [attribute for attribute in node.attribute if attribute.name == name]
    return (found[0].f or float(found[0].i)) if found else default


def _overwrites(node: NodeProto, inner: Sequence[str]) -> tuple[tuple[str, str], ...]:
    """The running statistics that a node reads, each with the output that is put over it; ""
    where a subgraph writes over an outer value, of which `inner` are those it reads."""
    found = []
    if _is_training(node):
        outputs = [*node.output, "", ""]
        found += [(node.input[3], outputs[1]), (node.input[4], outputs[2])]
    for one in subgraph_nodes(node):
        if _is_training(one):
            found += [(name, "") for name in one.input[3:5] if name in inner]
    return tuple(found)


def _subgraphs(node: NodeProto) -> list[GraphProto]:
    return [graph for attribute in node.attribute for graph in subgraphs_of(attribute)]


def _weights_bytes(graph: GraphProto) -> list[int]:
    sizes = [tensor_bytes(_type_name(t.data_type), t.dims) for t in graph.initializer]
    for node in graph.node:
        for inner in _subgraphs(node):
            sizes += _weights_bytes(inner)
    return sizes


def static_values(model: ModelProto) -> frozenset[str]:
    """Values whose shape the runtime knows from the file."""
    infos = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    return frozenset(
        info.name
        for info in infos
        if info.type.tensor_type.HasField("shape")
        and all(dim.HasField("dim_value") for dim in info.type.tensor_type.shape.dim)
    )


def build_problem(graph: Graph, costs: CostTable, limit_bytes: int) -> Problem:
    """The scheduling problem of a graph; every op's signature must be in the table."""
    names = [name for op in graph.ops for name in op.outputs if name]
    number = {name: value for value, name in enumerate(names)}
    alias, in_place = _sharing(graph, costs, number)
    return Problem(
        op_names=tuple(op.name for op in graph.ops),
        time_ns=tuple(costs.ops[op.signature].time_ns for op in graph.ops),
        workspace_bytes=tuple(
            held_bytes(costs.ops[op.signature].workspace_bytes) for op in graph.ops
        ),
        reads=tuple(
            tuple(number[name] for name in (*op.inputs, *op.captured) if name in number)
            for op in graph.ops
        ),
        writes=tuple(tuple(number[name] for name in op.outputs if name) for op in graph.ops),
        value_names=tuple(names),
        value_bytes=tuple(held_bytes(graph.tensors[name].nbytes) for name in names),
        alias_of=tuple(alias),
        inplace_of=tuple(in_place),
        reuse_class=_reuse_classes(graph, names),
        kept=frozenset(number[name] for name in graph.outputs if name in number),
        recomputable=tuple(op.recomputable for op in graph.ops),
        hoisted=tuple(op.hoisted for op in graph.ops),
        limit_bytes=limit_bytes,
    )


def _sharing(
    graph: Graph, costs: CostTable, number: Mapping[str, int]
) -> tuple[list[int], list[tuple[int, ...]]]:
    """Alias and in-place sources of every value, slots turned into values."""
    alias, in_place = [NONE] * len(number), [()] * len(number)
    sources: list[tuple[int, ...]] = list(in_place)
    for op in graph.ops:
        cost = costs.ops[op.signature]
        for slot, name in enumerate(op.outputs):
            if not name:
                continue
            value, shared = number[name], cost.alias[slot]
            if shared != NONE and op.inputs[shared]:
                alias[value] = number.get(op.inputs[shared], CONSTANT)
            sources[value] = tuple(
                number[op.inputs[source]]
                for source in cost.in_place[slot]
                if op.inputs[source] in number
            )
    return alias, sources


def require_slots(graph: Graph, costs: CostTable) -> None:
    """A table may be written by hand. Raises UsageError R223 where it names slots that an op
    does not have."""
    for op in graph.ops:
        cost = costs.ops[op.signature]
        named = [*cost.alias, *(source for sources in cost.in_place for source in sources)]
        slots = {len(cost.alias), len(cost.in_place)}
        if slots != {len(op.outputs)} or max(named, default=NONE) >= len(op.inputs):
            fact = f"the cost table does not fit op {op.name} ({op.kind}): it names other slots"
            fix = "make a new one: `remat profile MODEL -o costs.json`"
            raise UsageError("R223", fact, fix=fix)


def _reuse_classes(graph: Graph, names: Sequence[str]) -> tuple[int, ...]:
    """Values of one static shape and element size, numbered; scalars are never reused."""
    classes: dict[tuple[int, tuple[int, ...]], int] = {}
    found = []
    for name in names:
        tensor = graph.tensors[name]
        if not tensor.static or not tensor.shape:
            found.append(NONE)
            continue
        key = (element_bytes(tensor.dtype), tensor.shape)
        found.append(classes.setdefault(key, len(classes)))
    return tuple(found)

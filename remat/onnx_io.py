"""ONNX files: read without weights, bind dynamic dimensions, write next to their data.

External data is never loaded: a copy of a model in another folder gets hard links to the same
data files (a copy of them where the file system has no links).
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import onnx
from google.protobuf.message import DecodeError
from onnx import (
    AttributeProto,
    GraphProto,
    ModelProto,
    NodeProto,
    SparseTensorProto,
    TensorProto,
    helper,
    numpy_helper,
)

from remat.errors import BadModel, UsageError
from remat.files import whole

# node.metadata_props and multi-device configurations came with IR 10 and 11; every runtime we
# support reads 10, and raising the version of an older file changes no meaning.
LEAST_IR_VERSION = 10
HASH_CHUNK_BYTES = 1 << 20


def read(path: Path) -> ModelProto:
    """The model without its external data. Raises BadModel R502 where it is not one."""
    if not path.is_file():
        fact = "is a directory" if path.is_dir() else "does not exist"
        raise BadModel("R501", f"the model {fact}", place=str(path), fix="name an .onnx file")
    try:
        model = onnx.load_model(
            # By its content: the runtime reads no other format, whatever the file's name says.
            str(path),
            format="protobuf",
            load_external_data=False,
        )
    except OSError as error:
        fact = f"the model cannot be read: {error.strerror}"
        raise BadModel("R501", fact, place=str(path)) from None
    except (DecodeError, ValueError, TypeError) as error:
        raise BadModel(
            "R502",
            f"not an ONNX model ({type(error).__name__})",
            place=str(path),
            fix="export the model again, or check the file with onnx.checker",
        ) from None
    if not model.graph.output:
        what = (
            "the model has no outputs" if model.graph.node else "not an ONNX model: it has no graph"
        )
        raise BadModel("R502", what, place=str(path))
    _forget_negative_sizes(model)
    return model


def _forget_negative_sizes(model: ModelProto) -> None:
    """Some exporters write -1 for a size that is not known."""
    graph = model.graph
    for info in (*graph.input, *graph.output, *graph.value_info):
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_value < 0:
                dim.Clear()


def sha256(path: Path) -> str:
    """The hash of the file alone, read in pieces."""
    digest = hashlib.sha256()
    with path.open("rb") as stream:
        while chunk := stream.read(HASH_CHUNK_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def files_of(model: Path) -> tuple[Path, ...]:
    """A model and its data files; the model alone where it cannot be read, which others tell."""
    if not model.is_file():
        return (model,)
    data = external_files(read(model))
    return (model, *(model.with_name(location) for location in data))


def external_files(model: ModelProto) -> tuple[str, ...]:
    """Locations, relative to the model, of its external data files."""
    found = {
        entry.value
        for tensor in _all_tensors(model.graph)
        if tensor.data_location == TensorProto.EXTERNAL
        for entry in tensor.external_data
        if entry.key == "location"
    }
    return tuple(sorted(found))


def _all_tensors(graph: GraphProto) -> Iterator[TensorProto]:
    yield from graph.initializer
    for node in graph.node:
        for attribute in node.attribute:
            if attribute.type == AttributeProto.TENSOR:
                yield attribute.t
            elif attribute.type == AttributeProto.TENSORS:
                yield from attribute.tensors
            for inner in subgraphs_of(attribute):
                yield from _all_tensors(inner)


def subgraphs_of(attribute: AttributeProto) -> tuple[GraphProto, ...]:
    """The graphs an attribute holds."""
    if attribute.type == AttributeProto.GRAPH:
        return (attribute.g,)
    if attribute.type == AttributeProto.GRAPHS:
        return tuple(attribute.graphs)
    return ()


def all_nodes(graph: GraphProto) -> Iterator[NodeProto]:
    """The nodes of a graph, each before those of its subgraphs."""
    for node in graph.node:
        yield node
        yield from subgraph_nodes(node)


def node_count(graph: GraphProto) -> int:
    """Nodes of a graph and of its subgraphs: a session holds bookkeeping for each."""
    return sum(1 for _ in all_nodes(graph))


def subgraph_nodes(node: NodeProto) -> Iterator[NodeProto]:
    """The nodes in the subgraphs of a node, at every depth."""
    for attribute in node.attribute:
        for graph in subgraphs_of(attribute):
            yield from all_nodes(graph)


def captured(node: NodeProto) -> tuple[str, ...]:
    """Outer values that the node's subgraphs read, each once, in order of first use."""
    found: dict[str, None] = {}
    for graph in (g for attribute in node.attribute for g in subgraphs_of(attribute)):
        local = {info.name for info in graph.input} | {t.name for t in graph.initializer}
        for inner in graph.node:
            for name in (*inner.input, *captured(inner)):
                if name and name not in local:
                    found[name] = None
            local.update(inner.output)
        for info in graph.output:
            if info.name not in local:
                found[info.name] = None
    return tuple(found)


def read_names(node: NodeProto) -> tuple[str, ...]:
    """What a node reads, its subgraphs included."""
    return (*(name for name in node.input if name), *captured(node))


def link_external_files(model: ModelProto, source: Path, target: Path) -> None:
    """Make the data files of `source` (a folder) reachable from `target` under the same names.

    Raises BadModel R503 where a file is missing or lies outside the model's folder.
    """
    for location in external_files(model):
        origin, copy = source / location, target / location
        if not origin.resolve().is_relative_to(source.resolve()):
            raise BadModel("R503", f"external data {location} lies outside the model's folder")
        if not origin.is_file():
            raise BadModel("R503", "a file of external data is missing", place=str(origin))
        if copy.exists():
            continue
        copy.parent.mkdir(parents=True, exist_ok=True)
        try:
            os.link(origin.resolve(), copy)
        except OSError:
            shutil.copyfile(origin, copy)


def caller_inputs(model: ModelProto) -> list[onnx.ValueInfoProto]:
    """Graph inputs that are not initializers."""
    weights = {tensor.name for tensor in model.graph.initializer}
    return [info for info in model.graph.input if info.name not in weights]


def dynamic_dims(model: ModelProto) -> tuple[tuple[str, str], ...]:
    """(input, dimension name) of every dimension of an input that is not a number.

    A dimension without a name is called INPUT.AXIS.
    """
    found = []
    for info in caller_inputs(model):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                found.append((info.name, dim.dim_param or f"{info.name}.{axis}"))
    return tuple(found)


def bind(model: ModelProto, dims: Mapping[str, int], place: str) -> None:
    """Give every dynamic dimension of the inputs its value, in place.

    Raises UsageError R210 naming the dimensions that have none, R211 for a name that is not one.
    """
    wanted = dynamic_dims(model)
    names = list(dict.fromkeys(name for _, name in wanted))
    unknown = [name for name in dims if name not in names]
    if unknown:
        if not names:
            fact = f"there is no dimension {unknown[0]!r} to bind: all sizes are fixed already"
            raise UsageError("R211", fact, place=place, fix="leave --dim out")
        fact = f"no dynamic dimension {unknown[0]!r}; there are: {', '.join(names)}"
        raise UsageError("R211", fact, place=place)
    missing = [name for name in names if name not in dims]
    if missing:
        owners = ", ".join(f"{name} (of {owner})" for owner, name in wanted if name in missing)
        fix = "add " + " ".join(f"--dim '{name}=1'" for name in missing) + " with the sizes you run"
        raise UsageError("R210", f"dynamic dimensions have no size: {owners}", place=place, fix=fix)
    for info in caller_inputs(model):
        for axis, dim in enumerate(info.type.tensor_type.shape.dim):
            if not dim.HasField("dim_value"):
                dim.dim_value = dims[dim.dim_param or f"{info.name}.{axis}"]
    if names:
        _forget_symbolic_shapes(model, dims)


def _forget_symbolic_shapes(model: ModelProto, dims: Mapping[str, int]) -> None:
    """Shapes inferred for the unbound model may contradict the bound one; outputs keep a rank."""
    del model.graph.value_info[:]
    for info in model.graph.output:
        for dim in info.type.tensor_type.shape.dim:
            if dim.dim_param in dims:
                dim.dim_value = dims[dim.dim_param]


def separate_weights(model: ModelProto) -> None:
    """Before IR 4 every initializer was an input as well, and a constant all the same; in place."""
    if model.ir_version >= 4:
        return
    inputs = caller_inputs(model)
    del model.graph.input[:]
    model.graph.input.extend(inputs)
    model.ir_version = LEAST_IR_VERSION


def make_dense(model: ModelProto) -> None:
    """Turn sparse initializers into plain ones, in place, as the runtime does on loading."""
    for graph in (model.graph, *_inner_graphs(model.graph)):
        for sparse in graph.sparse_initializer:
            graph.initializer.append(_dense(sparse))
        del graph.sparse_initializer[:]


def _inner_graphs(graph: GraphProto) -> Iterator[GraphProto]:
    for node in all_nodes(graph):
        for attribute in node.attribute:
            yield from subgraphs_of(attribute)


def _dense(sparse: SparseTensorProto) -> TensorProto:
    name, shape = sparse.values.name, tuple(sparse.dims)
    try:
        values, indices = (numpy_helper.to_array(one) for one in (sparse.values, sparse.indices))
        array = np.zeros(shape, values.dtype)
        if indices.ndim == 1:
            array.reshape(-1)[indices] = values
        else:
            array[tuple(indices.T)] = values
    except (ValueError, IndexError, TypeError) as error:
        raise BadModel("R513", f"sparse initializer {name!r} is malformed: {error}") from None
    return numpy_helper.from_array(array, name)


def json_dims(text: str) -> dict[str, int]:
    """Dimensions as the metadata of an optimized model records them."""
    return {str(name): int(size) for name, size in json.loads(text).items()}


def sort_nodes(model: ModelProto) -> ModelProto:
    """The model with its nodes in a topological order; the same object if they are already."""
    known = {info.name for info in model.graph.input}
    known |= {tensor.name for tensor in model.graph.initializer}
    known |= {tensor.values.name for tensor in model.graph.sparse_initializer}
    for node in model.graph.node:
        if any(name and name not in known for name in node.input):
            break
        known.update(node.output)
    else:
        return model
    import onnx_ir
    from onnx_ir.passes.common import TopologicalSortPass

    try:
        result = TopologicalSortPass()(onnx_ir.from_proto(model))
    except ValueError as error:
        raise BadModel("R512", f"the nodes of the model cannot be put in order: {error}") from None
    return onnx_ir.to_proto(result.model)


def tidy(model: ModelProto) -> None:
    """Make an optimized file fit to be scheduled, in place.

    Every node gets a unique name, imports of unused domains go, the IR version rises to ours.
    """
    graph = model.graph
    model.ir_version = max(model.ir_version, LEAST_IR_VERSION)
    taken: set[str] = set()
    for index, node in enumerate(graph.node):
        name = node.name or f"{node.op_type}_{index}"
        node.name = name if name not in taken else f"{name}_{index}"
        taken.add(node.name)
    used = _domains(graph) | {""}
    imports = [opset for opset in model.opset_import if _canonical(opset.domain) in used]
    del model.opset_import[:]
    model.opset_import.extend(imports)
    del model.functions[:]


def give_readers(model: ModelProto) -> None:
    """Put an Identity behind every output that nothing reads, in place.

    The runtime releases memory behind its last reader, so what nobody reads is held to the end
    of the run; an Identity of it allocates nothing and lets it go at once.
    """
    read = {name for node in model.graph.node for name in read_names(node)}
    read |= {info.name for info in model.graph.output}
    if all(opset.domain not in ("", "ai.onnx") for opset in model.opset_import):
        model.opset_import.add(domain="", version=onnx.defs.onnx_opset_version())
    taken = {name for node in all_nodes(model.graph) for name in (node.name, *node.output)}
    nodes = []
    for node in model.graph.node:
        nodes.append(node)
        for name in node.output:
            if name and name not in read:
                nodes.append(_reader_of(name, taken))
    del model.graph.node[:]
    model.graph.node.extend(nodes)


def _reader_of(name: str, taken: set[str]) -> NodeProto:
    """A node that reads a value and writes one that nobody reads. The name may be taken: of two
    instances of a value, an earlier reader may read either."""
    fresh, number = f"{name}__unread", 1
    while fresh in taken:
        number += 1
        fresh = f"{name}__unread_{number}"
    taken.add(fresh)
    return helper.make_node("Identity", [name], [fresh], name=fresh)


def _canonical(domain: str) -> str:
    return "" if domain == "ai.onnx" else domain


def _domains(graph: GraphProto) -> set[str]:
    found = set()
    for node in graph.node:
        found.add(_canonical(node.domain))
        for attribute in node.attribute:
            for inner in subgraphs_of(attribute):
                found |= _domains(inner)
    return found


def write(model: ModelProto, path: Path) -> None:
    """Serialize deterministically, whole or not at all."""
    with whole(path) as partial:
        partial.write_bytes(model.SerializeToString(deterministic=True))

"""Peak liveness of a graph in file order, for the table of the sample models."""

from collections.abc import Mapping
from math import prod

import onnx
from onnx import ValueInfoProto, helper


def value_bytes(value: ValueInfoProto, dimensions: Mapping[str, int]) -> int:
    """Return the bytes of a tensor; named dimensions are looked up, an unknown one is an error."""
    tensor = value.type.tensor_type
    sizes = [
        dim.dim_value if dim.HasField("dim_value") else dimensions[dim.dim_param]
        for dim in tensor.shape.dim
    ]
    return prod(sizes) * helper.tensor_dtype_to_np_dtype(tensor.elem_type).itemsize


def peak_liveness_bytes(model: onnx.ModelProto, dimensions: Mapping[str, int]) -> int:
    """Return the largest sum of live node outputs while any one node runs.

    A value lives from the node that makes it through its last reader, a graph output to the end.
    Nothing is reused in place or aliased; graph inputs, initializers and what runs inside
    subgraphs are left out.
    """
    graph = model.graph
    infos = {value.name: value for value in [*graph.value_info, *graph.output]}
    last_use: dict[str, int] = {}
    for index, node in enumerate(graph.node):
        for value in [*node.output, *_read(node)]:
            last_use[value] = index
    last_use.update((value.name, len(graph.node)) for value in graph.output)
    live: dict[str, int] = {}
    peak_bytes = 0
    for index, node in enumerate(graph.node):
        live.update((v, value_bytes(infos[v], dimensions)) for v in node.output if v)
        peak_bytes = max(peak_bytes, sum(live.values()))
        live = {value: size for value, size in live.items() if last_use[value] > index}
    return peak_bytes


def _read(node: onnx.NodeProto) -> list[str]:
    names = list(node.input)
    for attribute in node.attribute:
        for inner in attribute.g.node:
            names.extend(_read(inner))
    return names

"""What identifies an op's cost: everything that its kernel sees but the numbers.

Kind, opset version, attributes (subgraphs included), element types and shapes of inputs and
outputs, which inputs are constants, and the content of small constants (axes, pads, shapes).
"""

import hashlib
from collections.abc import Mapping

import numpy as np
from onnx import ModelProto, NodeProto, TensorProto, numpy_helper

SMALL_ELEMENTS = 64
_OURS = "__remat"


def signatures(
    model: ModelProto,
    shapes: Mapping[str, tuple[str, tuple[int, ...]]],
    static: frozenset[str],
) -> tuple[str, ...]:
    """One hash per node of the graph, in order.

    A shape that the runtime does not know before it runs is marked: nothing is shared then.
    """
    versions = {opset.domain: opset.version for opset in model.opset_import}
    constants = {tensor.name: _content(tensor) for tensor in model.graph.initializer}
    known = {
        name: f"{dtype}{shape}" + ("" if name in static else "?")
        for name, (dtype, shape) in shapes.items()
    }
    return tuple(
        _signature(node, versions.get(node.domain, 0), constants, known)
        for node in model.graph.node
    )


def _signature(
    node: NodeProto,
    version: int,
    constants: Mapping[str, bytes],
    known: Mapping[str, str],
) -> str:
    digest = hashlib.sha256(f"{node.domain}:{node.op_type}:{version}".encode())
    for attribute in sorted(node.attribute, key=lambda a: a.name):
        if not attribute.name.startswith(_OURS):
            digest.update(attribute.SerializeToString(deterministic=True))
    for name in (*node.input, "->", *node.output):
        digest.update(b"|" + (constants.get(name) or known.get(name, name).encode()))
    return digest.hexdigest()[:32]


def _content(tensor: TensorProto) -> bytes:
    """Type and shape of a constant, and its numbers where they are few."""
    head = f"const{tensor.data_type}{list(tensor.dims)}".encode()
    external = tensor.data_location == TensorProto.EXTERNAL
    if external or np.prod(tensor.dims, dtype=np.int64) > SMALL_ELEMENTS:
        return head
    return head + numpy_helper.to_array(tensor).tobytes()

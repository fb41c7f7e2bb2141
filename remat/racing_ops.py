"""Ops whose kernels race with themselves: their results differ from run to run on several threads.

The CPU kernel of ScatterND with a reduction hands its updates to several threads and adds them
without a lock: updates of the same element are lost now and then (observed on ONNX Runtime 1.32
with every reduction; ScatterElements does not race). On one thread it repeats itself, so that is
where models with such ops are compared. A second execution may be a different value.
"""

from onnx import ModelProto, NodeProto

from remat.onnx_io import all_nodes, subgraph_nodes

RACING_OPS = frozenset({"ScatterND"})


def races(node: NodeProto) -> bool:
    """Whether the node, or one in its subgraphs, may lose updates on several threads."""
    return any(_races(one) for one in (node, *subgraph_nodes(node)))


def racing(model: ModelProto) -> int:
    """How many such nodes there are, those of subgraphs included."""
    return sum(_races(node) for node in all_nodes(model.graph))


def _races(node: NodeProto) -> bool:
    reductions = [one.s for one in node.attribute if one.name == "reduction"]
    return node.op_type in RACING_OPS and any(one not in (b"", b"none") for one in reductions)

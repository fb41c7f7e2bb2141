"""What a kernel needs beside its inputs and outputs at one time, where it allocates more than once.

The runtime's statistics add up all that a kernel allocates and frees while it runs. A kernel of
many steps (Sum of ten inputs, attention) holds only some of it at any moment. Ops with much of it
run once more, each alone in a session on the page pool, whose pages are the peak of what was in
use. Where an op does not run alone (or there is no pool) the sum stays: it is never too little.
"""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from onnx import ModelProto, NodeProto, TensorProto, helper

from remat import feeds, page_pool
from remat.build import PAGE_BYTES, Shapes, tensor_bytes
from remat.child import Payload
from remat.onnx_io import read, subgraphs_of
from remat.passes.offline import runtime_errors
from remat.profiles.in_place import onnx_type
from remat.profiles.session import Mode, open_pooled, session_options
from remat.units import round_up

# Less than this is not in the pool, and changes no schedule.
LEAST_BYTES = 256 << 10
# What the pool holds pages for.
POOLED_BYTES = 65536


def peaks(payload: Payload) -> Payload:
    """Run in a fresh process: for each node of payload["nodes"] the `bytes` in use at the peak of
    its run, its outputs not counted, or -1 where that is not known."""
    model = read(Path(payload["model"]))
    shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape) in payload["shapes"].items()}
    constants = _constants(model)
    models = (_alone(model, constants, shapes, model.graph.node[i]) for i in payload["nodes"])
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        file = Path(folder, "alone.onnx")
        found = [
            -1 if one is None else _peak(one, shapes, file, payload["threads"]) for one in models
        ]
    return {"bytes": found}


def _peak(alone: ModelProto, shapes: Shapes, file: Path, threads: int) -> int:
    file.write_bytes(alone.SerializeToString())
    try:
        session = open_pooled(file, session_options(Mode.STRICT, threads))
        arrays = feeds.make(alone, seed=0)
        session.run(None, arrays)
        held_bytes = _run_bytes(session, arrays)
    except runtime_errors():
        return -1
    written = (tensor_bytes(*shapes[info.name]) for info in alone.graph.output)
    pooled_bytes = sum(round_up(size, PAGE_BYTES) for size in written if size >= POOLED_BYTES)
    return max(0, held_bytes - pooled_bytes)


def _run_bytes(session: Any, arrays: dict[str, feeds.Array]) -> int:
    """The pages that a run adds to those in use before it, its outputs included."""
    page_pool.trim()
    before = page_pool.statistics()
    session.run(None, arrays)
    after = page_pool.statistics()
    return after.held_bytes - (before.held_bytes - before.free_bytes)


def _alone(
    model: ModelProto, constants: Mapping[str, TensorProto], shapes: Shapes, node: NodeProto
) -> ModelProto | None:
    """A model of one node; its constants as they are, everything else from the caller."""
    if any(subgraphs_of(attribute) for attribute in node.attribute):
        return None
    read_names = list(dict.fromkeys(filter(None, node.input)))
    weights = [constants[name] for name in read_names if name in constants]
    given = [name for name in read_names if name not in constants]
    written = [name for name in node.output if name]
    if not all(name in shapes and onnx_type(shapes[name][0]) for name in (*given, *written)):
        return None
    inputs, outputs = (
        [helper.make_tensor_value_info(n, onnx_type(shapes[n][0]), shapes[n][1]) for n in names]
        for names in (given, written)
    )
    graph = helper.make_graph([node], "alone", inputs, outputs, weights)
    return helper.make_model(graph, opset_imports=model.opset_import, ir_version=model.ir_version)


def _constants(model: ModelProto) -> Mapping[str, TensorProto]:
    external = TensorProto.EXTERNAL
    return {one.name: one for one in model.graph.initializer if one.data_location != external}


def doubtful(workspace_bytes: Sequence[int], signatures: Sequence[str]) -> list[int]:
    """One node of every signature that has much workspace, the one with most."""
    most: dict[str, int] = {}
    for index, signature in enumerate(signatures):
        if workspace_bytes[index] < LEAST_BYTES:
            continue
        known = most.setdefault(signature, index)
        if workspace_bytes[index] > workspace_bytes[known]:
            most[signature] = index
    return sorted(most.values())

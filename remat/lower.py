"""A schedule made into a model: nodes in schedule order, recomputed ops as clones.

The last execution of an op keeps the names of its values (a graph output is the last one
written); every earlier one writes names of its own. Clones carry the attribute `__remat_clone`,
which keeps the runtime's common subexpression elimination from merging them again; checkers and
kernels ignore attributes of that prefix. Annotations go to metadata_props under `remat.`.
"""

import json
from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from remat.onnx_io import give_readers, subgraphs_of
from remat.schedule import Step, Trace

CLONE_ATTRIBUTE = "__remat_clone"
PREFIX = "remat."
DEVICES = ("cpu",)


def lower(
    model: ModelProto, steps: Sequence[Step], trace: Trace, metadata: Mapping[str, str]
) -> ModelProto:
    """A new model that runs `steps` of `model`'s nodes in that order; `trace` is their memory."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    del lowered.graph.node[:]
    instances = _instances(model, steps)
    taken = _names(model)
    latest: dict[str, str] = {}
    done = dict.fromkeys(range(len(model.graph.node)), 0)
    renamed: list[tuple[str, str]] = []
    for place, step in enumerate(steps):
        original = model.graph.node[step.op]
        count, last = done[step.op], done[step.op] == instances[step.op] - 1
        done[step.op] += 1
        node = lowered.graph.node.add()
        node.CopyFrom(original)
        _read_latest(node, latest)
        for slot, name in enumerate(original.output):
            if name:
                fresh = name if last else _fresh(f"{name}__remat{count}", taken)
                node.output[slot] = latest[name] = fresh
                if not last:
                    renamed.append((name, fresh))
        if count:
            node.name = _fresh(f"{original.name}__remat{count}", taken)
            _mark_clone(node, count)
        _annotate(node, original.name if count else "", place, step, trace.live_bytes[place])
    give_readers(lowered)
    _describe_clones(lowered, renamed)
    for key, value in metadata.items():
        lowered.metadata_props.add(key=PREFIX + key, value=value)
    return lowered


def _instances(model: ModelProto, steps: Sequence[Step]) -> list[int]:
    counts = [0] * len(model.graph.node)
    for step in steps:
        counts[step.op] += 1
    return counts


def _names(model: ModelProto) -> set[str]:
    """Every name in use: of values, inputs, weights and nodes, subgraphs included."""
    taken: set[str] = set()
    pending = [model.graph]
    while pending:
        graph = pending.pop()
        taken.update(info.name for info in graph.input)
        taken.update(tensor.name for tensor in graph.initializer)
        for node in graph.node:
            taken.update(node.output)
            taken.add(node.name)
            for attribute in node.attribute:
                pending.extend(subgraphs_of(attribute))
    return taken


def _fresh(name: str, taken: set[str]) -> str:
    candidate, number = name, 1
    while candidate in taken:
        number += 1
        candidate = f"{name}_{number}"
    taken.add(candidate)
    return candidate


def _read_latest(node: NodeProto, latest: Mapping[str, str]) -> None:
    """Point inputs, and what subgraphs capture, at the instances written last."""
    for slot, name in enumerate(node.input):
        node.input[slot] = latest.get(name, name)
    changed = {name: fresh for name, fresh in latest.items() if name != fresh}
    if changed:
        for attribute in node.attribute:
            for graph in subgraphs_of(attribute):
                _rename_captured(graph, changed)


def _rename_captured(graph: GraphProto, changed: Mapping[str, str]) -> None:
    local = {info.name for info in graph.input} | {t.name for t in graph.initializer}
    for node in graph.node:
        visible = {name: fresh for name, fresh in changed.items() if name not in local}
        for slot, name in enumerate(node.input):
            node.input[slot] = visible.get(name, name)
        for attribute in node.attribute:
            for inner in subgraphs_of(attribute):
                _rename_captured(inner, visible)
        local.update(node.output)
    for info in graph.output:
        if info.name not in local:
            info.name = changed.get(info.name, info.name)


def _mark_clone(node: NodeProto, count: int) -> None:
    attribute = node.attribute.add(name=CLONE_ATTRIBUTE)
    attribute.type = attribute.INT
    attribute.i = count


def _annotate(node: NodeProto, recompute_of: str, place: int, step: Step, live: int) -> None:
    del node.metadata_props[:]
    notes = {"step": str(place), "device": DEVICES[step.device], "live_bytes": str(live)}
    if recompute_of:
        notes["recompute_of"] = recompute_of
    for key, value in notes.items():
        node.metadata_props.add(key=PREFIX + key, value=value)


def _describe_clones(model: ModelProto, renamed: Sequence[tuple[str, str]]) -> None:
    """A clone's values have the type and shape of the original's."""
    known: dict[str, ValueInfoProto] = {info.name: info for info in model.graph.value_info}
    known |= {info.name: info for info in model.graph.output}
    for name, fresh in renamed:
        if name in known:
            info = model.graph.value_info.add()
            info.CopyFrom(known[name])
            info.name = fresh


def notes(model: ModelProto) -> dict[str, str]:
    """Our own model metadata, without the prefix; empty for a model that we did not write."""
    return {
        entry.key.removeprefix(PREFIX): entry.value
        for entry in model.metadata_props
        if entry.key.startswith(PREFIX)
    }


def session_settings(mode: str, threads: int) -> dict[str, str | int | bool]:
    """The session options a caller must set so that the schedule holds."""
    settings: dict[str, str | int | bool] = {
        "intra_op_num_threads": threads,
        "enable_cpu_mem_arena": False,
        "enable_mem_pattern": False,
    }
    if mode == "strict":
        settings |= {
            "graph_optimization_level": "ORT_DISABLE_ALL",
            "execution_order": "PRIORITY_BASED",
            "enable_mem_reuse": False,
        }
    return settings


def settings_json(mode: str, threads: int) -> str:
    """`session_settings` for the model's metadata."""
    return json.dumps(session_settings(mode, threads), sort_keys=True)

"""A schedule made into a model: nodes in schedule order, recomputed ops as clones.

The last execution of an op keeps the names of its values (a graph output is the last one
written); every earlier one writes names of its own. Clones carry the attribute `__remat_clone`,
which keeps the runtime's common subexpression elimination from merging them again; checkers and
kernels ignore attributes of that prefix. Annotations go to metadata_props under `remat.`.
"""

from collections.abc import Mapping, Sequence

from onnx import GraphProto, ModelProto, NodeProto, ValueInfoProto

from remat.onnx_io import give_readers, subgraphs_of
from remat.schedule import Step, Trace

CLONE_ATTRIBUTE = "__remat_clone"
PREFIX = "remat."
DEVICES = ("cpu",)


def lower(model: ModelProto, steps: Sequence[Step], trace: Trace) -> ModelProto:
    """A new model that runs `steps` of `model`'s nodes in that order; `trace` is their memory.

    Outputs that nothing reads get a reader; `describe` adds what is said of the whole.
    """
    lowered = arrange(model, steps, trace)
    give_readers(lowered)
    return lowered


def arrange(model: ModelProto, steps: Sequence[Step], trace: Trace) -> ModelProto:
    """The same with one node a step: no readers, no metadata of the model."""
    lowered = ModelProto()
    lowered.CopyFrom(model)
    del lowered.graph.node[:]
    instances = _instances(model, steps)
    taken = names_in_use(model)
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
                fresh = name if last else fresh_name(f"{name}__remat{count}", taken)
                node.output[slot] = latest[name] = fresh
                if not last:
                    renamed.append((name, fresh))
        if count:
            node.name = fresh_name(f"{original.name}__remat{count}", taken)
            _mark_clone(node, count)
        _annotate(node, original.name if count else "", place, step, trace.live_bytes[place])
    _describe_clones(lowered, renamed)
    return lowered


def describe(model: ModelProto, metadata: Mapping[str, str]) -> None:
    """Add our own metadata, which `notes` reads, in place of what an earlier run wrote."""
    others = [entry for entry in model.metadata_props if not entry.key.startswith(PREFIX)]
    del model.metadata_props[:]
    model.metadata_props.extend(others)
    for key, value in metadata.items():
        model.metadata_props.add(key=PREFIX + key, value=value)


def _instances(model: ModelProto, steps: Sequence[Step]) -> list[int]:
    counts = [0] * len(model.graph.node)
    for step in steps:
        counts[step.op] += 1
    return counts


def names_in_use(model: ModelProto) -> set[str]:
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


def fresh_name(name: str, taken: set[str]) -> str:
    """`name`, numbered where it is taken; taken from now on."""
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


def note(node: NodeProto, key: str) -> str:
    """One of our annotations of a node, or ""."""
    values = (entry.value for entry in node.metadata_props if entry.key == PREFIX + key)
    return next(values, "")


def notes(model: ModelProto) -> dict[str, str]:
    """Our own model metadata, without the prefix; empty for a model that we did not write."""
    return {
        entry.key.removeprefix(PREFIX): entry.value
        for entry in model.metadata_props
        if entry.key.startswith(PREFIX)
    }

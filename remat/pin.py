"""A schedule that a plain session keeps: the order is pinned by the graph itself.

A caller who can set neither execution order nor buffer reuse (C, C#, a server) gets the runtime's
DEFAULT order and its reuse of dead buffers. `pin` places ordering edges (`remat.pin_edges`) and
sorts the file (`remat.pin_order`) so that this order is the schedule, and predicts the peak by the
simulation of that very file. The file's nodes are not in schedule order: each has its place in
the note `remat.step`.

Readers of unread outputs are no help here: the runtime's optimizer takes them away. Such an
output is read by an edge of the next node that can wait.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto, NodeProto
from onnx.defs import onnx_opset_version

from remat.build import Shapes, build_graph, build_problem, observed_shapes, static_values
from remat.child import call
from remat.costs import CostTable
from remat.graph import Graph
from remat.lower import PREFIX, note
from remat.onnx_io import read_names
from remat.pin_edges import (
    EdgeWriter,
    can_signal,
    carried_input,
    edge_cost,
    edge_writer,
    is_edge,
    is_linkless,
    is_view,
    signal_output,
    take_shape,
)
from remat.pin_order import CANNOT_WAIT, NO_LINK, Flow, Pins, first_waiting, pin_order
from remat.problem import NONE, Problem
from remat.profiles.session import Mode
from remat.schedule import Step, Trace
from remat.simulate import default_order, with_reuse


@dataclass(frozen=True, slots=True)
class Pinned:
    """`model` with its edges. `order` are its nodes, by index, as a plain session runs them;
    `problem` has the same ops, and `trace` is what that order takes with reuse. `is_exact`: the
    scheduled nodes run as scheduled; where no edge can be placed they do not."""

    model: ModelProto
    problem: Problem
    order: tuple[int, ...]
    trace: Trace
    edges: int
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Sites:
    """Per node: the value whose shape an edge to it would write (the input that its link would
    carry, or its own output), what its head would read as well, the output that an edge would
    start at ("" where there is none), and the outputs that nobody reads."""

    flow: Flow
    like: tuple[str, ...]
    doubled: tuple[str, ...]
    signal: tuple[str, ...]
    unread: tuple[tuple[str, ...], ...]


def pin(model: ModelProto, steps: Sequence[Step], graph: Graph, costs: CostTable) -> Pinned:
    """Pin `model`, which runs `steps` of `graph`, a node each, and has no readers; it is kept."""
    scheduled = ModelProto()
    scheduled.CopyFrom(model)
    shapes = _shapes(scheduled, steps, graph)
    _drop_unneeded(scheduled)
    names = [node.name for node in scheduled.graph.node]
    sites = _sites(scheduled, shapes)
    pins = pin_order(sites.flow, _letting_go(sites))
    writer = edge_writer(scheduled, shapes)
    _place(scheduled, sites, pins, writer)
    order = default_order(_producers(scheduled.graph.node))
    problem = _problem(scheduled, writer.shapes, graph, costs)
    trace = with_reuse(problem, order)
    _annotate(scheduled, order, trace)
    ran = [node.name for node in map(scheduled.graph.node.__getitem__, order) if not is_edge(node)]
    return Pinned(scheduled, problem, order, trace, len(pins.heads), ran == names)


def _letting_go(sites: _Sites) -> dict[int, list[int]]:
    """The edges that read the unread outputs: (waiting node, nodes that write such outputs)."""
    awaited: dict[int, list[int]] = {}
    for node, names in enumerate(sites.unread):
        waiting = first_waiting(sites.flow, node) if names else NONE
        if waiting != NONE:
            awaited.setdefault(waiting, []).append(node)
    return awaited


def plain_mode(pinned: Pinned, file: Path, *, portable: bool) -> Mode:
    """The mode in which the model, written to `file`, keeps its order: PLAIN, unless the runtime's
    optimizer would change it. It would on another CPU, so a portable model has it off."""
    if portable:
        return Mode.UNOPTIMIZED
    predicted = [pinned.model.graph.node[index].name for index in pinned.order]
    found = call("remat.passes.settled:optimized_order", {"model": str(file)})
    return Mode.PLAIN if found["nodes"] == predicted else Mode.UNOPTIMIZED


def _shapes(model: ModelProto, steps: Sequence[Step], graph: Graph) -> Shapes:
    """Those of the graph; a clone's values are like the original's."""
    tensors = graph.tensors
    rows = [
        [(tensors[name].dtype, tensors[name].shape) for name in graph.ops[step.op].outputs if name]
        for step in steps
    ]
    return observed_shapes(model, {"shapes": rows})


def _drop_unneeded(model: ModelProto) -> None:
    """Take away the readers of unread outputs, and what only they read, in place."""
    needed = {info.name for info in model.graph.output}
    kept: list[NodeProto] = []
    for node in reversed(model.graph.node):
        if not needed.isdisjoint(node.output):
            needed.update(read_names(node))
            kept.append(node)
    del model.graph.node[:]
    model.graph.node.extend(reversed(kept))


def _producers(nodes: Sequence[NodeProto]) -> list[list[int]]:
    """The nodes that each node reads from."""
    writer = _writers(nodes)
    return [[writer[name] for name in read_names(node) if name in writer] for node in nodes]


def _writers(nodes: Sequence[NodeProto]) -> dict[str, int]:
    return {name: index for index, node in enumerate(nodes) for name in node.output if name}


def _sites(model: ModelProto, shapes: Shapes) -> _Sites:
    nodes = model.graph.node
    writer = _writers(nodes)
    kinds = {name: nodes[index].op_type for name, index in writer.items()}
    readers = Counter(name for node in nodes for name in set(read_names(node)))
    readers.update(info.name for info in model.graph.output)
    weights = {tensor.name for tensor in model.graph.initializer}
    known = static_values(model) - weights

    def also(node: NodeProto, carried: str) -> str:
        """What a view writes for this node alone, to be read by the head as well."""
        name = node.input[0] if is_linkless(node, shapes, known) else carried
        is_alone = is_view(kinds.get(name, "")) and readers[name] == 1
        return name if is_alone and can_signal(name, shapes) else ""

    carried = [carried_input(node, shapes, known, writer, kinds) for node in nodes]
    via = [writer.get(name, NONE) if name else CANNOT_WAIT for name in carried]
    linkless = [is_linkless(node, shapes, known) for node in nodes]
    doubled = tuple(also(node, name) for node, name in zip(nodes, carried, strict=True))
    signal = tuple(signal_output(node, shapes) for node in nodes)
    rows = zip(nodes, linkless, carried, strict=True)
    return _Sites(
        flow=Flow(
            producers=tuple(tuple(sorted(set(sources))) for sources in _producers(nodes)),
            via=tuple(NO_LINK if bare else at for bare, at in zip(linkless, via, strict=True)),
            also=tuple(writer.get(name, NONE) for name in doubled),
            can_signal=tuple(bool(name) for name in signal),
        ),
        like=tuple(node.output[0] if bare else name for node, bare, name in rows),
        doubled=doubled,
        signal=signal,
        unread=tuple(
            tuple(name for name in node.output if can_signal(name, shapes) and not readers[name])
            for node in nodes
        ),
    )


def _place(model: ModelProto, sites: _Sites, pins: Pins, writer: EdgeWriter) -> None:
    """Write the edges and put the nodes into file order, in place."""
    nodes = list(model.graph.node)
    pieces = {index: [node] for index, node in enumerate(nodes)}
    for head, waiting in pins.heads.items():
        signals = [
            name
            for source in pins.awaited[waiting]
            for name in (sites.unread[source] or (sites.signal[source],))
        ]
        if sites.doubled[waiting]:
            signals.append(sites.doubled[waiting])
        pieces[head] = writer.head(nodes[waiting], sites.like[waiting], signals)
        if sites.flow.via[waiting] == NO_LINK:
            take_shape(nodes[waiting], pieces[head][-1].output[0])
    shape_of = {waiting: pieces[head][-1].output[0] for head, waiting in pins.heads.items()}
    for link, waiting in pins.links.items():
        pieces[link] = [writer.link(nodes[waiting], sites.like[waiting], shape_of[waiting])]
    ordered = [node for piece in pins.file for node in pieces[piece]]
    del model.graph.node[:]
    model.graph.node.extend(ordered)
    model.graph.initializer.extend(writer.constants.values())
    model.graph.value_info.extend(writer.infos)
    if pins.heads and all(opset.domain not in ("", "ai.onnx") for opset in model.opset_import):
        model.opset_import.add(domain="", version=onnx_opset_version())


def _problem(model: ModelProto, shapes: Shapes, base: Graph, costs: CostTable) -> Problem:
    """The problem of the pinned model; clones and waiting nodes cost what the originals do."""
    graph = build_graph(model, shapes, base.name)
    signature = {op.name: op.signature for op in base.ops}
    known = {}
    for op, node in zip(graph.ops, model.graph.node, strict=True):
        original = note(node, "recompute_of") or op.name
        known[op.signature] = edge_cost(node) if is_edge(node) else costs.ops[signature[original]]
    table = CostTable(costs.environment, known)
    problem = build_problem(graph, table, 0)
    # The runtime holds what nobody reads to the end of the run.
    unread = set(range(len(problem.value_names))).difference(*problem.reads)
    return replace(problem, kept=problem.kept | unread)


def _annotate(model: ModelProto, order: Sequence[int], trace: Trace) -> None:
    """Number the scheduled nodes as they run, and note the memory that they now run in."""
    ran = zip((model.graph.node[index] for index in order), trace.live_bytes, strict=True)
    scheduled = [(node, live) for node, live in ran if not is_edge(node)]
    for step, (node, live) in enumerate(scheduled):
        notes = {PREFIX + "step": str(step), PREFIX + "live_bytes": str(live)}
        for entry in node.metadata_props:
            entry.value = notes.get(entry.key, entry.value)

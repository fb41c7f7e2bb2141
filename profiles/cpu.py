"""The CPU execution provider: op costs by running the model, facts by asking the runtime.

Costs are cached by op signature for this runtime, provider, thread count and CPU, so a model
whose ops are all known is not timed again.
"""

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from dataclasses import astuple, dataclass, replace
from pathlib import Path

from onnx import ModelProto

from remat import page_pool
from remat.build import Shapes, build_graph, build_problem, observed_shapes, tensor_bytes
from remat.child import Payload, call, call_timed
from remat.costs import CostTable, Environment, OpCost, dumps, load
from remat.errors import UsageError
from remat.files import write_text
from remat.graph import Graph
from remat.onnx_io import read
from remat.problem import NONE, Problem
from remat.profiles.in_place import candidates, kernel_kind, probe
from remat.profiles.observe import op_times
from remat.profiles.workspace import doubtful
from remat.simulate import buffers, run_order

NO_LIMIT_BYTES = 1 << 62
MENDING_PASSES = 12
# A peak of workspace below this share of the sum is taken for what it is.
SURELY_LESS = 0.95


@dataclass(frozen=True, slots=True)
class Request:
    """A model file to observe: optimized and tidy; `feeds` as `remat.feeds.save` wrote them."""

    model: Path
    feeds: Path
    threads: int
    repeats: int
    place: str

    def payload(self, repeats: int) -> Payload:
        """For `remat.profiles.observe.observe`."""
        return {
            "model": str(self.model),
            "feeds": str(self.feeds),
            "threads": self.threads,
            "repeats": repeats,
            "place": self.place,
        }


@dataclass(frozen=True, slots=True)
class Costing:
    """A graph with its costs. `measured_ns` is the fastest plain run, 0 where none was needed;
    `cached_ops` counts the ops whose cost was known before."""

    graph: Graph
    costs: CostTable
    measured_ns: int
    cached_ops: int


def environment(threads: int) -> Environment:
    """Where a measurement made now would hold."""
    import onnxruntime

    from remat.passes.offline import cpu_model
    from remat.profiles.session import PROVIDER, thread_count

    runtime = f"onnxruntime {onnxruntime.__version__}"
    allocator = "the page pool" if page_pool.library() else "malloc"
    return Environment(runtime, PROVIDER, thread_count(threads), cpu_model(), allocator)


def measure(request: Request, *, fresh: bool) -> Costing:
    """Costs of every op of a model; known ones come from the cache unless `fresh`."""
    here = environment(request.threads)
    model = read(request.model)
    shapes = observed_shapes(
        model, call_timed("remat.profiles.observe:observe", request.payload(0))
    )
    graph = build_graph(model, shapes, request.place)
    known = {} if fresh else dict(cached(here).ops)
    missing = {op.signature for op in graph.ops} - set(known)
    if not missing:
        costs = CostTable(here, {op.signature: known[op.signature] for op in graph.ops})
        return Costing(graph, costs, 0, len(graph.ops))
    observed = call_timed("remat.profiles.observe:observe", request.payload(request.repeats))
    measured = _costs(model, shapes, graph, observed, request)
    costs = CostTable(here, measured)
    remember(costs)
    return Costing(graph, costs, min(observed["plain_ns"]), 0)


def from_table(request: Request, table: CostTable) -> Costing:
    """The graph with the costs of a given table. Raises UsageError R221 where ops are missing."""
    model = read(request.model)
    shapes = observed_shapes(
        model, call_timed("remat.profiles.observe:observe", request.payload(0))
    )
    graph = build_graph(model, shapes, request.place)
    missing = [op for op in graph.ops if op.signature not in table.ops]
    if missing:
        raise UsageError(
            "R221",
            f"the cost table is stale: it lacks {len(missing)} of {len(graph.ops)} ops, "
            f"the first is {missing[0].name} ({missing[0].kind})",
            place=request.place,
            fix="profile this model with the same options: `remat profile MODEL -o costs.json`",
        )
    costs = {op.signature: table.ops[op.signature] for op in graph.ops}
    return Costing(graph, CostTable(table.environment, costs), 0, len(graph.ops))


def _costs(
    model: ModelProto, shapes: Shapes, graph: Graph, observed: Payload, request: Request
) -> dict[str, OpCost]:
    """One cost per signature: the mean time of its ops (so that sums stay), the widest spread."""
    sharing = call("remat.profiles.cpu:probe_in_child", request.payload(0) | {"shapes": shapes})
    times, spreads = op_times(observed)
    workspace = _workspace(observed["workspace_bytes"], shapes, graph, request)
    members: dict[str, list[int]] = {}
    for index, op in enumerate(graph.ops):
        members.setdefault(op.signature, []).append(index)
    costs = {}
    for signature, indices in members.items():
        op = graph.ops[indices[0]]
        alias, in_place = sharing["nodes"][indices[0]]
        costs[signature] = OpCost(
            kind=op.kind,
            time_ns=round(sum(times[index] for index in indices) / len(indices)),
            spread_ns=max(spreads[index] for index in indices),
            workspace_bytes=max(workspace[index] for index in indices),
            alias=tuple(alias),
            in_place=tuple(tuple(slots) for slots in in_place),
        )
    return _corrected(graph, costs, observed["fresh_bytes"], shapes)


def _workspace(sums: Sequence[int], shapes: Shapes, graph: Graph, request: Request) -> list[int]:
    """Per node what its kernel needs at one time: `sums`, or less where it was found to be."""
    chosen = doubtful(sums, [op.signature for op in graph.ops])
    if not chosen or page_pool.library() is None:
        return list(sums)
    payload = request.payload(0) | {"shapes": shapes, "nodes": chosen}
    peaks = call_timed("remat.profiles.workspace:peaks", payload)["bytes"]
    # The pool counts whole pages, so a sum that is about the peak is the better figure.
    less = {
        graph.ops[index].signature: peak
        for index, peak in zip(chosen, peaks, strict=True)
        if 0 <= peak < SURELY_LESS * sums[index]
    }
    return [less.get(op.signature, sums[index]) for index, op in enumerate(graph.ops)]


def probe_in_child(payload: Payload) -> Payload:
    """Run in a fresh process: for every node its alias slots and in-place slots by output."""
    model = read(Path(payload["model"]))
    shapes = {name: (dtype, tuple(shape)) for name, (dtype, shape) in payload["shapes"].items()}
    answers = probe(model, shapes, candidates(model.graph.node, shapes))
    types = {name: dtype for name, (dtype, _) in shapes.items()}
    by_kind: dict[str, list[tuple[int, int, str]]] = {}
    for pair, answer in answers.items():
        by_kind.setdefault(pair.kind, []).append((pair.source, pair.output, answer))
    nodes = []
    for node in model.graph.node:
        alias = [NONE] * len(node.output)
        in_place: list[list[int]] = [[] for _ in node.output]
        for source, output, answer in sorted(by_kind.get(kernel_kind(node, types), [])):
            same = shapes.get(node.input[source]) == shapes.get(node.output[output])
            if answer == "alias":
                alias[output] = source
            elif answer == "in-place" and same:
                in_place[output].append(source)
        nodes.append([alias, in_place])
    return {"nodes": nodes}


def _corrected(
    graph: Graph, costs: dict[str, OpCost], fresh: Sequence[int], shapes: Shapes
) -> dict[str, OpCost]:
    """The costs, mended where the model's own run allocated otherwise than they predict.

    Views with another shape (Reshape) are found here, and kernels that share nothing in this
    graph because the runtime does not know a shape. One wrong op misleads those after it, so
    a pass mends the first mismatches only, and passes repeat until nothing changes.
    """
    mended = dict(costs)
    for _ in range(MENDING_PASSES):
        fixes = _first_mismatches(graph, mended, fresh, shapes)
        if not fixes:
            break
        for signature, (slot, alias) in fixes.items():
            mended[signature] = _with_alias(mended[signature], slot, alias)
    return mended


def _first_mismatches(
    graph: Graph, costs: dict[str, OpCost], fresh: Sequence[int], shapes: Shapes
) -> dict[str, tuple[int, int]]:
    """(output slot, input slot or NONE) by signature, of ops that read no mismatched op's value."""
    problem = build_problem(graph, CostTable(Environment("", "", 0, "", ""), costs), NO_LIMIT_BYTES)
    order = run_order(problem, range(len(graph.ops)))
    opened = {buffer.opened_by for buffer in buffers(problem, order)}
    doubtful: set[int] = set()
    fixes: dict[str, tuple[int, int]] = {}
    for index in order:
        op, values = graph.ops[index], problem.writes[index]
        predicted = {value for value in values if value in opened and value not in problem.kept}
        sizes = (graph.tensors[problem.value_names[value]].nbytes for value in predicted)
        surplus = sum(sizes) - fresh[index]
        if not surplus or op.signature in fixes:
            continue
        if doubtful.isdisjoint(problem.reads[index]):
            fix = _mend(problem, graph, index, surplus, predicted, shapes)
            if fix is not None:
                fixes[op.signature] = fix
        doubtful.update(values)
    return fixes


def _mend(
    problem: Problem,
    graph: Graph,
    index: int,
    surplus: int,
    predicted: set[int],
    shapes: Shapes,
) -> tuple[int, int] | None:
    """(output slot, input slot it shares or NONE) that explains `surplus` bytes, if one does."""
    op = graph.ops[index]
    for slot, name in enumerate(op.outputs):
        if not name or name in graph.outputs or graph.tensors[name].nbytes != abs(surplus):
            continue
        value = problem.value_names.index(name)
        if surplus < 0 and value not in predicted:
            return slot, NONE
        if surplus > 0 and value in predicted:
            size = graph.tensors[name].nbytes
            for source, read_name in enumerate(op.inputs):
                if read_name in shapes and tensor_bytes(*shapes[read_name]) == size:
                    return slot, source
    return None


def _with_alias(cost: OpCost, slot: int, source: int) -> OpCost:
    alias = list(cost.alias)
    alias[slot] = source
    in_place = list(cost.in_place)
    in_place[slot] = ()
    return replace(cost, alias=tuple(alias), in_place=tuple(in_place))


def cache_file(here: Environment) -> Path:
    """Where costs of an environment are kept: under REMAT_CACHE_DIR or the user's cache."""
    fallback = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "remat"
    folder = Path(os.environ.get("REMAT_CACHE_DIR") or fallback)
    key = hashlib.sha256(json.dumps(astuple(here)).encode()).hexdigest()[:16]
    return folder / f"costs-{key}.json"


def cached(here: Environment) -> CostTable:
    """What is known for an environment; an unreadable or foreign file counts as nothing."""
    path = cache_file(here)
    empty: Mapping[str, OpCost] = {}
    if not path.exists():
        return CostTable(here, empty)
    try:
        table = load(path)
    except UsageError:
        return CostTable(here, empty)
    return table if table.environment == here else CostTable(here, empty)


def remember(costs: CostTable) -> None:
    """Add costs to the cache; a cache that cannot be written is no reason to stop."""
    path = cache_file(costs.environment)
    merged = CostTable(costs.environment, {**cached(costs.environment).ops, **costs.ops})
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_text(path, dumps(merged))
    except OSError:
        return

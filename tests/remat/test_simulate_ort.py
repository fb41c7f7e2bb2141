"""The simulators against ONNX Runtime: node by node what it allocates, its peak, its orders.

As in the models that remat writes, an Identity is right behind every output that is neither read
nor kept, because the runtime, unlike the memory law, would hold such an output to the end.
"""

import csv
import json
import math
import random
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from remat.problem import CONSTANT, NONE, Problem
from remat.simulate import (
    Buffer,
    buffers,
    buffers_with_reuse,
    default_order,
    run_order,
    strict,
    with_reuse,
)
from tests.problems import random_steps, unhoisted_steps

# ONNX Runtime rounds every tensor up to this.
ALIGNMENT = 256
IN_PLACE = ("Relu", "Sigmoid", "Tanh")
VIEWS = ("Reshape", "Identity")


@dataclass(frozen=True, slots=True)
class _Node:
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class _Graph:
    """Nodes over one graph input `x`, the shape of every tensor, and the graph outputs."""

    nodes: tuple[_Node, ...]
    shapes: Mapping[str, tuple[int, ...]]
    kept: frozenset[str]

    def names(self) -> list[str]:
        """What the nodes write, in order."""
        return [name for node in self.nodes for name in node.outputs]


def _random_graph(seed: int, count: int, width: int) -> _Graph:
    """A random graph of up to `count` nodes over x[8, width]; mostly unread tensors are kept."""
    rng = random.Random(f"graph {seed}")
    shapes: dict[str, tuple[int, ...]] = {"x": (8, width)}
    nodes: list[_Node] = []
    for i in range(count):
        kind = rng.choice((*IN_PLACE, "Relu", "Exp", "Exp", "Add", "Add", *VIEWS, "Split", "Shape"))
        floats = [name for name in shapes if not name.startswith("shape")]
        source = rng.choice(floats[-6:])
        shape = shapes[source]
        inputs: tuple[str, ...] = (source,)
        outputs: tuple[str, ...] = (f"v{i}",)
        if kind == "Add":
            inputs = (source, rng.choice([n for n in floats if shapes[n] == shape][-5:]))
        elif kind == "Shape":
            outputs, shape = (f"shape{i}",), (len(shape),)
        elif kind == "Split":
            outputs, shape = (f"v{i}a", f"v{i}b"), (shape[0] // 2, *shape[1:])
        elif kind == "Reshape":
            shape = (shape[0] * shape[1],) if len(shape) == 2 else (8, shape[0] // 8)
        if (math.prod(shape) > 0 and math.prod(shape) % 64 == 0) or kind == "Shape":
            nodes.append(_Node(kind, inputs, outputs))
            shapes.update((name, shape) for name in outputs)
    names = [name for node in nodes for name in node.outputs]
    read = {name for node in nodes for name in node.inputs}
    kept = {name for name in names if rng.random() < (0.15 if name in read else 0.6)}
    return _Graph(tuple(nodes), shapes, frozenset(kept or names[-1:]))


def _with_readers(graph: _Graph, steps: Sequence[int]) -> tuple[_Graph, tuple[int, ...]]:
    """The same with an Identity right behind each instance that is neither read nor kept."""
    unread = _unread(graph, steps)
    names = {name for _, name in unread}
    nodes: list[_Node] = []
    number: dict[tuple[str, ...], int] = {}  # of the node with these outputs
    for node in graph.nodes:
        for made in (node, *(_reader(name) for name in node.outputs if name in names)):
            number[made.outputs] = len(nodes)
            nodes.append(made)
    longer: list[int] = []
    for at, op in enumerate(steps):
        outputs = graph.nodes[op].outputs
        longer.append(number[outputs])
        longer += [number[_reader(name).outputs] for name in outputs if (at, name) in unread]
    shapes = {_reader(x).outputs[0]: graph.shapes[x] for x in graph.names() if x in names}
    return _Graph(tuple(nodes), {**graph.shapes, **shapes}, graph.kept), tuple(longer)


def _reader(name: str) -> _Node:
    return _Node("Identity", (name,), (f"{name}_reader",))


def _unread(graph: _Graph, steps: Sequence[int]) -> set[tuple[int, str]]:
    """(step, tensor) of each instance that is neither read nor kept."""
    latest: dict[str, int] = {}
    written: set[tuple[int, str]] = set()
    used: set[tuple[int, str]] = set()
    for at, op in enumerate(steps):
        node = graph.nodes[op]
        used.update((latest[name], name) for name in node.inputs if name in latest)
        latest.update((name, at) for name in node.outputs)
        written.update((at, name) for name in node.outputs)
    return written - used - {(latest[name], name) for name in graph.kept}


def _problem(graph: _Graph) -> Problem:
    """The graph as a problem in which every op takes 1 ns."""
    names = graph.names()
    number = {name: value for value, name in enumerate(names)}
    alias_of = [NONE] * len(names)
    inplace_of: list[tuple[int, ...]] = [()] * len(names)
    for node in graph.nodes:
        value, source = number[node.outputs[0]], number.get(node.inputs[0], CONSTANT)
        if node.kind in VIEWS:
            alias_of[value] = source
        if node.kind in IN_PLACE and source != CONSTANT:
            inplace_of[value] = (source,)
    classes: dict[tuple[int, ...], int] = {}
    hoisted = tuple(node.kind == "Shape" for node in graph.nodes)
    return Problem(
        op_names=tuple(f"n{u}" for u in range(len(graph.nodes))),
        time_ns=(1,) * len(hoisted),
        workspace_bytes=(0,) * len(hoisted),
        reads=tuple(tuple(number[x] for x in n.inputs if x in number) for n in graph.nodes),
        writes=tuple(tuple(number[x] for x in n.outputs) for n in graph.nodes),
        value_names=tuple(names),
        value_bytes=tuple(_tensor_bytes(graph, name) for name in names),
        alias_of=tuple(alias_of),
        inplace_of=tuple(inplace_of),
        reuse_class=tuple(
            classes.setdefault((name.startswith("shape"), *graph.shapes[name]), len(classes))
            for name in names
        ),
        kept=frozenset(number[name] for name in graph.kept),
        recomputable=tuple(not is_shape for is_shape in hoisted),
        hoisted=hoisted,
        limit_bytes=0,
    )


def _tensor_bytes(graph: _Graph, name: str) -> int:
    exact = math.prod(graph.shapes[name]) * (8 if name.startswith("shape") else 4)
    return -(-exact // ALIGNMENT) * ALIGNMENT


def _model(graph: _Graph, steps: Sequence[int]) -> bytes:
    """The ONNX model whose nodes s0, s1, ... are `steps`; the last instance has the real name."""
    last = {op: at for at, op in enumerate(steps)}
    latest = {"x": "x"}
    nodes, infos, constants = [], {}, {}
    for at, op in enumerate(steps):
        node = graph.nodes[op]
        inputs = [latest[name] for name in node.inputs]
        if node.kind == "Reshape":
            shape = graph.shapes[node.outputs[0]]
            inputs.append(f"to{shape}")
            constants[inputs[1]] = numpy_helper.from_array(np.array(shape, np.int64), inputs[1])
        for name in node.outputs:
            latest[name] = name if last[op] == at else f"{name}_{at}"
            kind = TensorProto.INT64 if name.startswith("shape") else TensorProto.FLOAT
            infos[latest[name]] = helper.make_tensor_value_info(
                latest[name], kind, graph.shapes[name]
            )
        extra: dict[str, Any] = {"num_outputs": 2, "axis": 0} if node.kind == "Split" else {}
        outputs = [latest[name] for name in node.outputs]
        nodes.append(helper.make_node(node.kind, inputs, outputs, name=f"s{at}", **extra))
    kept = [name for name in graph.names() if name in graph.kept]
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, graph.shapes["x"])
    inner = [info for name, info in infos.items() if name not in kept]
    made = helper.make_graph(
        nodes, "g", [x], [infos[k] for k in kept], list(constants.values()), value_info=inner
    )
    opsets = [helper.make_opsetid("", 20)]
    model = helper.make_model(made, opset_imports=opsets, ir_version=10)
    return bytes(model.SerializeToString())


def _options(order: ort.ExecutionOrder, has_reuse: bool) -> ort.SessionOptions:
    options = ort.SessionOptions()
    options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.execution_order = order
    options.enable_cpu_mem_arena = False
    options.enable_mem_pattern = False
    options.enable_mem_reuse = has_reuse
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    return options


def _run(model: bytes, options: ort.SessionOptions, folder: Path) -> list[tuple[int, int]]:
    """(step, bytes newly allocated for its outputs) in the order in which the nodes ran."""
    stats = folder / "stats.csv"
    stats.unlink(missing_ok=True)
    options.add_session_config_entry("session.collect_node_memory_stats_to_file", str(stats))
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    shape = session.get_inputs()[0].shape
    session.run(None, {"x": np.full(shape, 0.5, np.float32)})
    events = json.loads(Path(session.end_profiling()).read_text())
    del session  # writes the statistics
    with stats.open() as file:
        rows = {row["#name"].split("_")[0]: row for row in csv.DictReader(file)}
    ending = "_kernel_time"
    ran = [e["name"].removesuffix(ending) for e in events if e["name"].endswith(ending)]
    return [(int(name[1:]), int(rows[name]["total_dynamic_sizes"])) for name in ran]


def _opened(held: Sequence[Buffer], steps: Sequence[int]) -> list[int]:
    """The bytes of the buffers that the simulation opens at each step."""
    fresh = [0] * len(steps)
    for buffer in held:
        fresh[buffer.start_step] += buffer.bytes
    return fresh


@pytest.mark.parametrize("seed", range(50))
def test_priority_based_sessions_allocate_as_simulated(seed: int, tmp_path: Path) -> None:
    graph = _random_graph(seed, 18, 64)
    graph, steps = _with_readers(graph, unhoisted_steps(_problem(graph), seed, seed % 6))
    problem = _problem(graph)
    model = _model(graph, steps)
    order = run_order(problem, steps)
    for has_reuse, simulated in ((False, buffers), (True, buffers_with_reuse)):
        options = _options(ort.ExecutionOrder.PRIORITY_BASED, has_reuse)
        ran = _run(model, options, tmp_path)
        assert [steps[at] for at, _ in ran] == list(order)
        assert [size for _, size in ran] == _opened(simulated(problem, order), order)


@pytest.mark.parametrize("seed", range(100, 130))
def test_default_sessions_run_and_allocate_as_simulated(seed: int, tmp_path: Path) -> None:
    graph = _random_graph(seed, 25, 64)
    graph, steps = _with_readers(graph, unhoisted_steps(_problem(graph), seed, 0))
    problem = _problem(graph)
    place = {value: at for at, op in enumerate(steps) for value in problem.writes[op]}
    order = default_order([[place[v] for v in problem.reads[op]] for op in steps])
    ran = _run(_model(graph, steps), _options(ort.ExecutionOrder.DEFAULT, True), tmp_path)
    assert tuple(at for at, _ in ran) == order
    in_order = [steps[at] for at in order]
    assert [size for _, size in ran] == _opened(buffers_with_reuse(problem, in_order), in_order)


def test_a_reader_behind_an_unread_output_costs_nothing() -> None:
    """So the law may release an unread output after its own step without naming the Identity."""
    readers = 0
    for seed in range(200):
        graph = _random_graph(seed, 16, 64)
        steps = random_steps(_problem(graph), seed, seed % 6)
        trace = strict(_problem(graph), steps)
        longer_graph, longer = _with_readers(graph, steps)
        longer_trace = strict(_problem(longer_graph), longer)
        is_reader = [longer_graph.nodes[op].outputs[0].endswith("_reader") for op in longer]
        pairs = zip(longer_trace.live_bytes, is_reader, strict=True)
        assert trace.live_bytes == tuple(live for live, is_extra in pairs if not is_extra)
        assert trace.peak_bytes == longer_trace.peak_bytes
        readers += sum(is_reader)
    assert readers > 200


# Prints, for each model, the growth of the resident memory from before a run to its peak.
# Fixed malloc thresholds give every large tensor pages of its own, returned when it is freed.
_MEASURE = """
import ctypes, re, sys
from pathlib import Path
import numpy as np
import onnxruntime as ort
from tests.remat.test_simulate_ort import _options
libc = ctypes.CDLL(None)
libc.mallopt(-3, 65536), libc.mallopt(-1, 65536)
def status(key):
    return int(re.search(key + r":\\s+(\\d+)", Path("/proc/self/status").read_text())[1]) * 1024
for path in sys.argv[1:]:
    options = _options(ort.ExecutionOrder.PRIORITY_BASED, path.endswith("reuse"))
    session = ort.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = {"x": np.full(session.get_inputs()[0].shape, 0.5, np.float32)}
    session.run(None, feeds)
    Path("/proc/self/clear_refs").write_text("5")
    before = status("VmRSS")
    session.run(None, feeds)
    print(status("VmHWM") - before)
"""


def _resident_peaks(paths: Sequence[Path]) -> list[int]:
    """The bytes by which a run of each model file raises the resident memory at its peak."""
    command = [sys.executable, "-c", _MEASURE, *map(str, paths)]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    return [int(line) for line in printed.split()]


def _assert_close(measured: int, simulated: int, what: str) -> None:
    assert abs(measured - simulated) <= 0.02 * simulated + 300_000, (what, measured, simulated)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_resident_peak_is_the_simulated_one(tmp_path: Path) -> None:
    """In strict mode and with reuse; a plain sum of what is still to be read would be too low."""
    expected, paths = [], []
    for seed in range(300, 312):
        graph = _random_graph(seed, 14, 1 << 17)
        graph, steps = _with_readers(graph, random_steps(_problem(graph), seed, seed % 4))
        problem = _problem(graph)
        for name, judge in ((f"{seed}.strict", strict), (f"{seed}.reuse", with_reuse)):
            path = tmp_path / name
            path.write_bytes(_model(graph, steps))
            paths.append(path)
            expected.append(judge(problem, run_order(problem, steps)).peak_bytes)
    for path, peak, want in zip(paths, _resident_peaks(paths), expected, strict=True):
        _assert_close(peak, want, path.name)


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_runtime_holds_an_output_to_the_end_unless_an_identity_reads_it(tmp_path: Path) -> None:
    """`unread` is written first; `a` and `b` are alive together later."""
    nodes = tuple(_Node("Exp", (x,), (y,)) for x, y in (("x", "unread"), ("x", "a"), ("a", "b")))
    shape = (8, 1 << 19)
    plain = _Graph(nodes, dict.fromkeys(("x", "unread", "a", "b"), shape), frozenset({"b"}))
    with_identity, steps = _with_readers(plain, (0, 1, 2))
    assert [node.kind for node in with_identity.nodes] == ["Exp", "Identity", "Exp", "Exp"]
    paths = [tmp_path / "plain.strict", tmp_path / "with_identity.strict"]
    paths[0].write_bytes(_model(plain, (0, 1, 2)))
    paths[1].write_bytes(_model(with_identity, steps))
    without_reader, with_reader = _resident_peaks(paths)
    tensor_bytes = _tensor_bytes(plain, "unread")
    _assert_close(without_reader, 3 * tensor_bytes, "held to the end")
    _assert_close(with_reader, 2 * tensor_bytes, "released")
    assert strict(_problem(plain), (0, 1, 2)).peak_bytes == 2 * tensor_bytes
    assert strict(_problem(with_identity), steps).peak_bytes == 2 * tensor_bytes

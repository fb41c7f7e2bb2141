"""The simulators against ONNX Runtime: node by node what it allocates, its peak, its orders."""

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
    """Nodes over one graph input `x`, and the shape of every tensor."""

    nodes: tuple[_Node, ...]
    shapes: Mapping[str, tuple[int, ...]]


def _random_graph(seed: int, count: int, width: int) -> _Graph:
    """A random graph of up to `count` nodes over x[8, width]."""
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
    return _Graph(tuple(nodes), shapes)


def _problem(graph: _Graph, seed: int) -> Problem:
    """The graph as a problem; some tensors, mostly unread ones, are kept. Every op takes 1 ns."""
    rng = random.Random(f"kept {seed}")
    names = [name for node in graph.nodes for name in node.outputs]
    number = {name: value for value, name in enumerate(names)}
    read = {name for node in graph.nodes for name in node.inputs}
    alias_of = [NONE] * len(names)
    inplace_of: list[tuple[int, ...]] = [()] * len(names)
    for node in graph.nodes:
        value, source = number[node.outputs[0]], number.get(node.inputs[0], CONSTANT)
        if node.kind in VIEWS:
            alias_of[value] = source
        if node.kind in IN_PLACE and source != CONSTANT:
            inplace_of[value] = (source,)
    classes: dict[tuple[int, ...], int] = {}
    kept = {v for v, name in enumerate(names) if rng.random() < (0.15 if name in read else 0.6)}
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
        kept=frozenset(kept or {len(names) - 1}),
        recomputable=tuple(not is_shape for is_shape in hoisted),
        hoisted=hoisted,
        limit_bytes=0,
    )


def _tensor_bytes(graph: _Graph, name: str) -> int:
    exact = math.prod(graph.shapes[name]) * (8 if name.startswith("shape") else 4)
    return -(-exact // ALIGNMENT) * ALIGNMENT


def _model(graph: _Graph, problem: Problem, steps: Sequence[int]) -> bytes:
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
            kind = TensorProto.INT64 if node.kind == "Shape" else TensorProto.FLOAT
            infos[latest[name]] = helper.make_tensor_value_info(
                latest[name], kind, graph.shapes[name]
            )
        extra: dict[str, Any] = {"num_outputs": 2, "axis": 0} if node.kind == "Split" else {}
        outputs = [latest[name] for name in node.outputs]
        nodes.append(helper.make_node(node.kind, inputs, outputs, name=f"s{at}", **extra))
    kept = [problem.value_names[value] for value in sorted(problem.kept)]
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
    problem = _problem(graph, seed)
    steps = unhoisted_steps(problem, seed, seed % 6)
    model = _model(graph, problem, steps)
    order = run_order(problem, steps)
    for has_reuse, simulated in ((False, buffers), (True, buffers_with_reuse)):
        options = _options(ort.ExecutionOrder.PRIORITY_BASED, has_reuse)
        ran = _run(model, options, tmp_path)
        assert [steps[at] for at, _ in ran] == list(order)
        assert [size for _, size in ran] == _opened(simulated(problem, order), order)


@pytest.mark.parametrize("seed", range(100, 130))
def test_default_sessions_run_and_allocate_as_simulated(seed: int, tmp_path: Path) -> None:
    graph = _random_graph(seed, 25, 64)
    problem = _problem(graph, seed)
    steps = unhoisted_steps(problem, seed, 0)
    place = {value: at for at, op in enumerate(steps) for value in problem.writes[op]}
    order = default_order([[place[v] for v in problem.reads[op]] for op in steps])
    ran = _run(_model(graph, problem, steps), _options(ort.ExecutionOrder.DEFAULT, True), tmp_path)
    assert tuple(at for at, _ in ran) == order
    in_order = [steps[at] for at in order]
    assert [size for _, size in ran] == _opened(buffers_with_reuse(problem, in_order), in_order)


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


@pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
def test_the_resident_peak_is_the_simulated_one(tmp_path: Path) -> None:
    """In strict mode and with reuse; a plain sum of what is still to be read would be too low."""
    expected, paths = [], []
    for seed in range(300, 312):
        graph = _random_graph(seed, 14, 1 << 17)
        problem = _problem(graph, seed)
        steps = random_steps(problem, seed, seed % 4)
        for name, judge in ((f"{seed}.strict", strict), (f"{seed}.reuse", with_reuse)):
            path = tmp_path / name
            path.write_bytes(_model(graph, problem, steps))
            paths.append(str(path))
            expected.append(judge(problem, steps).peak_bytes)
    command = [sys.executable, "-c", _MEASURE, *paths]
    root = Path(__file__).parents[2]
    printed = subprocess.run(command, check=True, capture_output=True, text=True, cwd=root).stdout
    measured = [int(line) for line in printed.split()]
    for name, peak, want in zip(paths, measured, expected, strict=True):
        assert abs(peak - want) <= 0.02 * want + 300_000, (name, peak, want)

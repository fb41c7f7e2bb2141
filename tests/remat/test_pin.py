"""Pinned models: the order that plain sessions take at every level, what they compute and hold."""

import json
import random
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from remat import feeds, onnx_io
from remat.build import build_graph, build_problem
from remat.costs import CostTable, Environment, OpCost
from remat.graph import Graph
from remat.lower import arrange, lower, note
from remat.options import ModelOptions
from remat.pin import Pinned, pin, plain_mode
from remat.pin_edges import is_edge
from remat.pin_order import CANNOT_WAIT, NO_LINK, Flow, pin_order
from remat.prepare import prepare
from remat.problem import NONE, Problem
from remat.profiles import cpu
from remat.profiles.session import PROVIDER, Mode, session_options
from remat.schedule import Step
from remat.simulate import default_order, strict
from remat.verify import Tolerance, Trial, compare, run_trial
from tests.problems import NO_HOISTED, random_problem, random_steps, training_like

# Random models in which a clone gives the optimizer something new to do, which must be noticed.
FUSED_ANEW = frozenset({13, 16})
LEVELS = ("ORT_DISABLE_ALL", "ORT_ENABLE_BASIC", "ORT_ENABLE_ALL")


@dataclass(frozen=True, slots=True)
class _Made:
    """A model, its graph and costs."""

    model: ModelProto
    graph: Graph
    costs: CostTable
    problem: Problem


def _flow(problem: Problem, steps: Sequence[int]) -> Flow:
    """Every node can wait, by its last input, and signal."""
    latest: dict[int, int] = {}
    producers = []
    for at, op in enumerate(steps):
        producers.append(tuple(sorted({latest[value] for value in problem.reads[op]})))
        latest.update((value, at) for value in problem.writes[op])
    via = tuple(sources[-1] if sources else NONE for sources in producers)
    return Flow(tuple(producers), via, (NONE,) * len(via), (True,) * len(via))


def _ran(
    flow: Flow,
    file: Sequence[int],
    heads: Mapping[int, int],
    links: Mapping[int, int],
    awaited: Mapping[int, tuple[int, ...]],
) -> list[int]:
    """The scheduled nodes in default order, by a graph that is built anew."""
    head_of = {node: head for head, node in heads.items()}
    link_of = {node: link for link, node in links.items()}
    place = {node: at for at, node in enumerate(file)}
    producers = []
    for node in file:
        if node in heads:
            sources = list(awaited[heads[node]])
        elif node in links:
            waiting = links[node]
            sources = [head_of[waiting], *([flow.via[waiting]] if flow.via[waiting] >= 0 else [])]
        else:
            end = link_of.get(node, head_of.get(node, NONE))
            sources = [*flow.producers[node], *([end] if end != NONE else [])]
        producers.append([place[source] for source in sources])
        assert all(source < place[node] for source in producers[-1])
    return [file[at] for at in default_order(producers) if file[at] < len(flow.producers)]


@pytest.mark.parametrize("seed", range(40))
def test_any_schedule_can_be_pinned(seed: int) -> None:
    problem = random_problem(seed, 30, NO_HOISTED)
    flow = _flow(problem, random_steps(problem, seed, seed % 7))
    if seed % 2:
        via = [NO_LINK if node % 5 == 0 else at for node, at in enumerate(flow.via)]
        flow = Flow(flow.producers, tuple(via), flow.also, flow.can_signal)
    pins = pin_order(flow, {})
    ran = _ran(flow, pins.file, pins.heads, pins.links, pins.awaited)
    assert ran == list(range(len(flow.producers)))
    assert pins.is_exact


def test_edges_are_placed_only_where_the_order_needs_them() -> None:
    problem = training_like(0, 30)
    assert not pin_order(_flow(problem, range(len(problem.op_names))), {}).awaited
    # Two chains that meet at the end, run in turns: the first goes on after the second began.
    chains = Flow(((), (), (0,), (1,), (2, 3)), (NONE, NONE, 0, 1, 3), (NONE,) * 5, (True,) * 5)
    assert pin_order(chains, {}).awaited == {2: (1,)}


def test_wanted_edges_are_kept() -> None:
    flow = Flow(((), (0,), (1,)), (NONE, 0, 1), (NONE,) * 3, (True,) * 3)
    pins = pin_order(flow, {2: [0]})
    assert pins.awaited == {2: (0,)}
    assert pins.is_exact


def test_a_node_that_cannot_wait_is_waited_for_by_its_reader() -> None:
    flow = Flow(((), (), (1, 0)), (NONE, CANNOT_WAIT, 0), (NONE,) * 3, (True,) * 3)
    assert pin_order(flow, {}).is_exact
    hopeless = Flow(((), (), (1,), (0, 2)), (CANNOT_WAIT,) * 4, (NONE,) * 4, (True,) * 4)
    assert pin_order(hopeless, {}).awaited == {}


def test_thousands_of_nodes_take_seconds() -> None:
    problem = training_like(1, 620)
    flow = _flow(problem, range(len(problem.op_names)))
    begin = time.monotonic()
    pins = pin_order(flow, {})
    assert time.monotonic() - begin < 10
    assert len(flow.producers) > 2400
    assert pins.is_exact
    assert len(pins.awaited) > 200


def _draw(rng: random.Random, shape: tuple[int, ...]) -> tuple[str, list[int], Any, Any]:
    """An op on one tensor: its kind, a constant input, its attributes, shapes of its outputs."""
    choices: list[tuple[str, list[int], Any, Any]] = [
        (rng.choice(("Relu", "Sigmoid", "Tanh")), [], {}, [shape]),
        ("Add", [], {}, [shape]),
        ("Mul", [], {}, [shape]),
        ("Reshape", [int(np.prod(shape, dtype=int))], {}, [(int(np.prod(shape, dtype=int)),)]),
        ("Unsqueeze", [0], {}, [(1, *shape)]),
        ("ReduceSum", [], {"keepdims": 0}, [()]),
    ]
    if shape and shape[0] % 2 == 0:
        halves = [(shape[0] // 2, *shape[1:])] * 2
        choices += [("Split", [], {"num_outputs": 2, "axis": 0}, halves)] * 2
    if shape and shape[-1] >= 4:
        choices.append(("TopK", [4], {}, [(*shape[:-1], 4)] * 2))
    return rng.choice(choices)


def _random_model(seed: int, count: int) -> ModelProto:
    """Nodes of several kinds over x[16, 8]: views, scalars, outputs that nobody reads."""
    rng = random.Random(f"pin {seed}")
    shapes: dict[str, tuple[int, ...]] = {"x": (16, 8)}
    nodes, infos, weights = [], [], {}
    for index in range(count):
        source = rng.choice(list(shapes)[-7:])
        kind, constant, attributes, written = _draw(rng, shapes[source])
        inputs, outputs = [source], [f"v{index}_{slot}" for slot in range(len(written))]
        if kind in ("Add", "Mul"):
            alike = [name for name in shapes if shapes[name] == shapes[source]]
            inputs.append(rng.choice(alike))
        elif constant:
            inputs.append(f"c{constant[0]}")
            weights[inputs[1]] = numpy_helper.from_array(np.array(constant), inputs[1])
        nodes.append(helper.make_node(kind, inputs, outputs, name=f"n{index}", **attributes))
        for slot, (name, shape) in enumerate(zip(outputs, written, strict=True)):
            is_index = kind == "TopK" and slot == 1
            element = TensorProto.INT64 if is_index else TensorProto.FLOAT
            infos.append(helper.make_tensor_value_info(name, element, shape))
            shapes |= {} if is_index else {name: shape}
    read = {name for node in nodes for name in node.input}
    dead_ends = [node for node in nodes if read.isdisjoint(node.output)]
    kept = {rng.choice(list(node.output)) for node in dead_ends}
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT, (16, 8))
    ends = [info for info in infos if info.name in kept]
    inner = [info for info in infos if info.name not in kept]
    graph = helper.make_graph(nodes, "g", [x], ends, list(weights.values()), value_info=inner)
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _made(model: ModelProto) -> _Made:
    """From the shapes that the file tells; every op takes as long and shares nothing."""
    infos = [*model.graph.value_info, *model.graph.output, *model.graph.input]
    shapes = {
        info.name: (
            TensorProto.DataType.Name(info.type.tensor_type.elem_type).lower(),
            tuple(dim.dim_value for dim in info.type.tensor_type.shape.dim),
        )
        for info in infos
    }
    for weight in model.graph.initializer:
        kind = TensorProto.DataType.Name(weight.data_type).lower()
        shapes[weight.name] = (kind, tuple(weight.dims))
    # The readers of unread outputs came last.
    unread = [node for node in model.graph.node if node.output[0] not in shapes]
    assert {node.op_type for node in unread} <= {"Identity"}
    shapes |= {node.output[0]: shapes[node.input[0]] for node in unread}
    graph = build_graph(model, shapes, "random")
    costs = {
        op.signature: OpCost(
            op.kind, 1000, 0, 0, (NONE,) * len(op.outputs), ((),) * len(op.outputs)
        )
        for op in graph.ops
    }
    table = CostTable(Environment("", "", 1, "", ""), costs)
    return _Made(model, graph, table, build_problem(graph, table, 0))


def _pinned(made: _Made, steps: Sequence[int]) -> tuple[Pinned, list[str]]:
    """The pinned model and the names of its scheduled nodes in schedule order."""
    scheduled = [Step(op) for op in steps]
    arranged = arrange(made.model, scheduled, strict(made.problem, steps))
    pinned = pin(arranged, scheduled, made.graph, made.costs)
    kept = {node.name for node in pinned.model.graph.node}
    return pinned, [node.name for node in arranged.graph.node if node.name in kept]


def _order(model: ModelProto, level: str, arrays: Any, folder: Path) -> list[str]:
    """The nodes that a plain session runs, edges left out, in the order of its profile."""
    options = session_options(Mode.PLAIN, 1)
    options.graph_optimization_level = getattr(ort.GraphOptimizationLevel, level)
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = ort.InferenceSession(model.SerializeToString(), options, providers=[PROVIDER])
    session.run(None, arrays)
    events = json.loads(Path(session.end_profiling()).read_text())
    ending = "_kernel_time"
    ran = [e["name"].removesuffix(ending) for e in events if e["name"].endswith(ending)]
    edges = {node.name for node in model.graph.node if is_edge(node)}
    return [name for name in ran if name not in edges]


@pytest.mark.parametrize("seed", range(20))
def test_random_models_run_as_scheduled_at_every_level(seed: int, tmp_path: Path) -> None:
    first = tmp_path / "random.onnx"
    onnx.save_model(_random_model(seed, 24), str(first))
    prepared = prepare(first, ModelOptions(threads=1), tmp_path)
    made = _made(prepared.model)
    pinned, names = _pinned(made, random_steps(made.problem, seed, 6))
    onnx.checker.check_model(pinned.model, full_check=True)
    assert pinned.is_exact
    assert len(names) > 5
    arrays = feeds.load(prepared.feeds)
    mode = plain_mode(pinned, _written(pinned, tmp_path), portable=False)
    assert (mode is Mode.UNOPTIMIZED) == (seed in FUSED_ANEW)
    for level in LEVELS if mode is Mode.PLAIN else LEVELS[:1]:
        assert _order(pinned.model, level, arrays, tmp_path) == names, level


def _recomputing(problem: Problem, seed: int, extra: int) -> tuple[int, ...]:
    """The default order, some ops run once more right before a late reader."""
    rng, writer = random.Random(f"recompute {seed}"), problem.writer
    steps = list(range(len(problem.op_names)))
    for _ in range(extra):
        at = rng.randrange(len(steps) // 2, len(steps))
        ops = [writer[value] for value in problem.reads[steps[at]]]
        again = [op for op in ops if problem.recomputable[op] and op not in steps[at - 3 : at]]
        steps[at:at] = again[:1]
    return tuple(steps)


def _sample(root: Path, name: str, folder: Path, *, portable: bool = False) -> _Made:
    options = ModelOptions(threads=1, portable=portable)
    return _made(prepare(root / "sample_models" / f"{name}.onnx", options, folder).model)


def _measured_sample(root: Path, name: str, folder: Path) -> _Made:
    options = ModelOptions(threads=1, repeats=1)
    prepared = prepare(root / "sample_models" / f"{name}.onnx", options, folder)
    costing = cpu.measure(prepared.request(options), fresh=False)
    problem = build_problem(costing.graph, costing.costs, 0)
    return _Made(prepared.model, costing.graph, costing.costs, problem)


def _written(pinned: Pinned, folder: Path) -> Path:
    path = folder / "pinned.onnx"
    onnx_io.write(pinned.model, path)
    return path


@pytest.mark.parametrize("kind", ["recomputing", "shuffled"])
def test_a_sample_model_runs_as_scheduled_at_every_level(
    kind: str, root: Path, tmp_path: Path
) -> None:
    made = _sample(root, "transformer_train", tmp_path)
    shuffled = random_steps(made.problem, 3, 40)
    steps = shuffled if kind == "shuffled" else _recomputing(made.problem, 1, 40)
    pinned, names = _pinned(made, steps)
    arrays = feeds.load(tmp_path / "feeds.npz")
    for level in LEVELS:
        assert _order(pinned.model, level, arrays, tmp_path) == names, level
    assert plain_mode(pinned, _written(pinned, tmp_path), portable=False) is Mode.PLAIN
    assert any("__remat1" in name for name in names)


def test_a_plain_session_holds_what_is_predicted_and_computes_the_same(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    made = _measured_sample(root, "cnn_train", tmp_path)
    steps = _recomputing(made.problem, 3, 40)
    pinned, _ = _pinned(made, steps)
    inputs, candidate, reference = (tmp_path / f"{name}.npz" for name in ("feeds", "a", "b"))
    file = _written(pinned, tmp_path)
    measured = run_trial(Trial(file, Mode.PLAIN, inputs, 1, 2, candidate))
    run_trial(Trial(tmp_path / "optimized.onnx", Mode.STRICT, inputs, 1, 0, reference))
    outputs = compare(reference, candidate, Tolerance(), frozenset())
    assert all(output.bitwise for output in outputs)
    peak = pinned.trace.peak_bytes
    assert peak > 20_000_000
    assert abs(measured.run_bytes - peak) < 0.01 * peak
    assert pinned.edges > 0


def test_a_portable_model_is_run_without_the_optimizer(root: Path, tmp_path: Path) -> None:
    made = _sample(root, "unet_infer", tmp_path, portable=True)
    pinned, names = _pinned(made, random_steps(made.problem, 1, 4))
    file = _written(pinned, tmp_path)
    assert plain_mode(pinned, file, portable=True) is Mode.UNOPTIMIZED
    arrays = feeds.load(tmp_path / "feeds.npz")
    assert _order(pinned.model, "ORT_DISABLE_ALL", arrays, tmp_path) == names
    # The layout pass would rewrite it, and then no promise holds.
    assert plain_mode(pinned, file, portable=False) is Mode.UNOPTIMIZED


def _split_model(opset: int) -> ModelProto:
    """a, b = TopK(x), of which nothing reads b; two sums that meet."""
    nodes = [
        helper.make_node("TopK", ["x", "k"], ["a", "b"], name="top"),
        helper.make_node("ReduceSum", ["x"], ["s"], name="sum", keepdims=0),
        helper.make_node("Exp", ["a"], ["c"], name="exp"),
        helper.make_node("Add", ["c", "s"], ["y"], name="add"),
    ]
    shapes = {"a": (4, 2), "b": (4, 2), "s": (), "c": (4, 2)}
    infos = [
        helper.make_tensor_value_info(
            name, TensorProto.INT64 if name == "b" else TensorProto.FLOAT, shape
        )
        for name, shape in shapes.items()
    ]
    if opset < 10:
        del nodes[0].input[1]
        nodes[0].attribute.append(helper.make_attribute("k", 2))
    weights = [] if opset < 10 else [numpy_helper.from_array(np.array([2]), "k")]
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, (4, 8))],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, (4, 2))],
        weights,
        value_info=infos,
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", opset)], ir_version=10)


@pytest.mark.parametrize("opset", [9, 10, 20])
def test_edges_start_at_scalars_and_read_what_nobody_reads(opset: int, tmp_path: Path) -> None:
    made = _made(_split_model(opset))
    x = np.arange(32, dtype=np.float32).reshape(4, 8) / 32
    for steps in ((0, 1, 2, 3), (1, 0, 2, 3), (0, 2, 1, 3)):
        pinned, names = _pinned(made, steps)
        onnx.checker.check_model(pinned.model, full_check=True)
        nodes = pinned.model.graph.node
        assert any("b" in node.input and is_edge(node) for node in nodes)
        assert all(note(node, "edge_of") in names for node in nodes if is_edge(node))
        steps_noted = {node.name: note(node, "step") for node in nodes if not is_edge(node)}
        assert [steps_noted[name] for name in names] == ["0", "1", "2", "3"]
        for level in LEVELS:
            assert _order(pinned.model, level, {"x": x}, tmp_path) == names, level
        text = pinned.model.SerializeToString()
        session = ort.InferenceSession(text, providers=[PROVIDER])
        top = -np.sort(-x, axis=1)[:, :2]
        np.testing.assert_allclose(session.run(None, {"x": x})[0], np.exp(top) + x.sum(), rtol=1e-5)


def test_readers_are_gone_and_the_model_given_is_kept() -> None:
    made = _made(_split_model(20))
    scheduled = [Step(op) for op in (0, 1, 2, 3)]
    trace = strict(made.problem, (0, 1, 2, 3))
    with_readers = lower(made.model, scheduled, trace)
    assert any(node.op_type == "Identity" for node in with_readers.graph.node)
    arranged = arrange(made.model, scheduled, trace)
    before = arranged.SerializeToString(deterministic=True)
    pinned = pin(arranged, scheduled, made.graph, made.costs)
    assert arranged.SerializeToString(deterministic=True) == before
    assert all(node.op_type != "Identity" for node in pinned.model.graph.node)
    again = pin(arranged, scheduled, made.graph, made.costs).model
    assert again.SerializeToString(deterministic=True) == pinned.model.SerializeToString(
        deterministic=True
    )

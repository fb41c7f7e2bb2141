"""BatchNormalization in training mode writes over its inputs: their readers keep their order."""

from collections.abc import Sequence
from dataclasses import replace
from itertools import permutations
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper, numpy_helper

from remat import feeds
from remat.build import build_problem
from remat.check import Rule, check
from remat.costs import CostTable
from remat.errors import CheckFailed, NoAnswer
from remat.graph import Graph
from remat.onnx_io import write
from remat.options import ModelOptions, OptimizeOptions
from remat.overwritten import is_kept, keep_order, ordered_ops
from remat.pin import Pinned, pin
from remat.pipeline import optimize
from remat.prepare import prepare
from remat.problem import Problem
from remat.profiles import cpu
from remat.profiles.session import Mode, open_session, session_options
from remat.schedule import Step
from remat.schedule_file import read as read_schedule

Shapes = dict[str, tuple[int, ...]]
CHANNELS, WIDTH = 4, 16_384
LARGE, SMALL = (1, CHANNELS, WIDTH), (CHANNELS,)


def _info(name: str, shape: tuple[int, ...]) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


def _norm(tag: str, source: str, mean: str, momentum: float = 0.9) -> list[NodeProto]:
    """A normalization of `source`; the scaled statistics and a sum are what is left of it."""
    names = [f"{tag}_y", f"{tag}_mean", f"{tag}_var"]
    inputs = [source, "scale", "bias", mean, "var"]
    return [
        helper.make_node(
            *("BatchNormalization", inputs, names, tag), training_mode=1, momentum=momentum
        ),
        helper.make_node("Mul", [names[1], "scale"], [f"{tag}_out"], name=f"{tag}_out"),
    ]


def _constants() -> dict[str, feeds.Array]:
    count = np.arange(CHANNELS, dtype=np.float32)
    floats = {"mean": count + 1, "var": count + 2, "scale": count + 1.5, "bias": count - 0.25}
    return floats | {"last": np.array([2]), "to": np.array([1, CHANNELS, 2 * WIDTH])}


def _model(nodes: list[NodeProto], outputs: Shapes, given: str) -> ModelProto:
    """`given` says where the statistics come from: initializers, graph inputs or an op."""
    inputs, constants = [_info("x", LARGE)], _constants()
    if given == "input":
        inputs += [_info(name, SMALL) for name in ("mean", "var")]
        del constants["mean"], constants["var"]
    elif given == "op":
        kinds = {"mean": "Exp", "var": "Softplus"}
        made = [helper.make_node(kinds[name], ["scale"], [name], name=name) for name in kinds]
        nodes = [*made, *nodes]
        del constants["mean"], constants["var"]
        inputs.append(_info("scale", SMALL))
        del constants["scale"]
    weights = [numpy_helper.from_array(value, name) for name, value in constants.items()]
    graph = helper.make_graph(
        nodes, "norms", inputs, [_info(name, shape) for name, shape in outputs.items()], weights
    )
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    onnx.checker.check_model(model, full_check=True)
    return model


def _two(order: str = "abr", given: str = "initializer") -> ModelProto:
    """Normalizations a and b of different values with the same statistics; r reads them as well."""
    parts = {
        "a": _norm("a", "x", "mean"),
        "b": _norm("b", "w", "mean"),
        "r": [helper.make_node("Add", ["mean", "scale"], ["r_out"], name="r")],
    }
    nodes = [helper.make_node("Tanh", ["x"], ["w"], name="w")]
    nodes += [node for part in order for node in parts[part]]
    outputs: Shapes = {"a_y": LARGE, "b_y": LARGE, "a_out": SMALL, "b_out": SMALL, "r_out": SMALL}
    return _model(nodes, outputs, given)


def _run(model: ModelProto, folder: Path) -> list[bytes]:
    path = folder / "model.onnx"
    write(model, path)
    arrays = feeds.make(model, 0)
    values = open_session(path, session_options(Mode.STRICT, 1)).run(None, arrays)
    return [value.tobytes() for value in values]


@pytest.mark.parametrize("given", ["initializer", "input", "op"])
def test_the_order_decides_what_the_runtime_computes(given: str, tmp_path: Path) -> None:
    """The reason for all of this: if a runtime computes the same in every order, it can go."""
    results = {tuple(_run(_two("".join(p), given), tmp_path)) for p in permutations("abr")}
    assert len(results) > 2


def _costed(model: ModelProto, folder: Path) -> tuple[Graph, CostTable, Problem]:
    source = folder / "source.onnx"
    write(model, source)
    options = ModelOptions(threads=1, repeats=1)
    prepared = prepare(source, options, folder)
    costing = cpu.measure(prepared.request(options), fresh=True)
    return costing.graph, costing.costs, build_problem(costing.graph, costing.costs, 1 << 40)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """An empty cache of costs."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))


def _chained(model: ModelProto, folder: Path) -> set[str]:
    graph, costs, _ = _costed(model, folder)
    return {graph.ops[op].name for chain in ordered_ops(graph, costs) for op in chain}


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("given", ["initializer", "input", "op"])
def test_another_order_is_no_schedule(given: str, tmp_path: Path) -> None:
    graph, costs, bare = _costed(_two(given=given), tmp_path)
    chains = ordered_ops(graph, costs)
    problem = keep_order(bare, chains)
    number = {op.name: index for index, op in enumerate(graph.ops)}
    steps = list(range(len(graph.ops)))
    assert check(problem, steps) is None
    assert is_kept(chains, steps)
    # The later normalization comes first, with all that it needs.
    later = max(number["a"], number["b"])
    first = sorted({number[name] for name in ("mean", "var", "w") if name in number} | {later})
    other = [*first, *(op for op in steps if op not in first)]
    assert check(bare, other) is None
    violation = check(problem, other)
    assert violation is not None
    assert violation.rule is Rule.INPUT_NOT_COMPUTED
    assert not is_kept(chains, other)
    twice = [*steps, number["a_out"]]
    violation = check(problem, twice)
    assert violation is not None
    assert violation.rule is Rule.RECOMPUTES_FORBIDDEN


@pytest.mark.usefixtures("cache")
def test_statistics_of_one_norm_alone_order_nothing(tmp_path: Path) -> None:
    nodes = [*_norm("a", "x", "mean"), helper.make_node("Tanh", ["a_y"], ["y"], name="y")]
    model = _model(nodes, {"y": LARGE, "a_out": SMALL}, "initializer")
    assert _chained(model, tmp_path) == set()


@pytest.mark.usefixtures("cache")
def test_a_graph_output_is_a_reader(tmp_path: Path) -> None:
    nodes = _norm("a", "x", "mean", momentum=0.0)
    outputs: Shapes = {"a_y": LARGE, "a_out": SMALL, "mean": SMALL}
    assert {"a", "mean", "a_out"} <= _chained(_model(nodes, outputs, "op"), tmp_path)


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize("reader", [0, 1])
def test_a_norm_in_a_branch_writes_over_outer_values(reader: int, tmp_path: Path) -> None:
    branches = {
        f"{branch}_branch": helper.make_graph(
            _norm(f"{branch}_in", "x", "mean"), branch, [], [_info(f"{branch}_in_out", SMALL)]
        )
        for branch in ("then", "else")
    }
    nodes = [
        helper.make_node("ReduceMax", ["x"], ["most"], name="most", keepdims=0),
        helper.make_node("Cast", ["most"], ["flag"], name="flag", to=TensorProto.BOOL),
        helper.make_node("If", ["flag"], ["inner"], name="inner", **branches),
        *[helper.make_node("Add", ["mean", "most"], ["r_out"], name="r")] * reader,
    ]
    outputs: Shapes = {"inner": SMALL}
    outputs |= {"r_out": SMALL} if reader else {}
    chained = _chained(_model(nodes, outputs, "input"), tmp_path)
    assert ({"inner", "r"} <= chained) == bool(reader)


def _tempting(folder: Path) -> Path:
    """Two normalizations with the same statistics, a before b in the order that is planned from.

    b reads `wide`; a reads what is made of it and takes more memory. Doing b first would let
    `wide` go early.
    """
    first = [
        helper.make_node("Tanh", ["x"], ["wide"], name="wide"),
        helper.make_node("ReduceMean", ["wide", "last"], ["narrow"], name="narrow"),
        helper.make_node("Expand", ["narrow", "to"], ["a_x"], name="a_x"),
    ]
    branches = {
        tag: [
            *_norm(tag, source, "mean"),
            helper.make_node(
                "ReduceMax", [f"{tag}_y", "last"], [f"{tag}_most"], name=f"{tag}_most"
            ),
        ]
        for tag, source in (("a", "a_x"), ("b", "wide"))
    }
    narrow = (1, CHANNELS, 1)
    outputs: Shapes = {"a_out": SMALL, "b_out": SMALL, "a_most": narrow, "b_most": narrow}
    source = folder / "model.onnx"
    for order in ("ab", "ba"):
        nodes = [*first, *(node for tag in order for node in branches[tag])]
        write(_model(nodes, outputs, "initializer"), source)
        names = [node.name for node in onnx.load(_reference(source)).graph.node]
        if names.index("a") < names.index("b"):
            break
    return source


def _reference(source: Path) -> Path:
    """The graph that is planned from, in its order."""
    folder = source.with_name("reference")
    folder.mkdir(exist_ok=True)
    return prepare(source, ModelOptions(threads=1), folder).optimized


def _options(folder: Path, mem: str, *, pin: bool) -> OptimizeOptions:
    model = ModelOptions(threads=1, repeats=1)
    return OptimizeOptions(mem, model, folder / "out.onnx", time_limit_s=5.0, pin=pin)


def _runs(model: Path, mode: Mode) -> list[list[bytes]]:
    """Three runs of one session: statistics in initializers are carried on from run to run."""
    session = open_session(model, session_options(mode, 1))
    arrays = feeds.make(onnx.load(model), 0)
    return [[value.tobytes() for value in session.run(None, arrays)] for _ in range(3)]


@pytest.mark.usefixtures("cache")
@pytest.mark.parametrize(("mem", "pin"), [("90%", False), ("110%", True)])
def test_optimize_keeps_the_order_and_every_bit(mem: str, pin: bool, tmp_path: Path) -> None:
    source = _tempting(tmp_path)
    result = optimize(source, _options(tmp_path, mem, pin=pin))
    # What doing b first would have saved is saved by recomputation.
    assert (result.recomputed_ops > 0) == (mem == "90%")
    assert result.verdict is not None
    assert all(one.bitwise for one in result.verdict.outputs)
    wanted = _runs(_reference(source), Mode.STRICT)
    assert wanted[0] != wanted[1]
    assert _runs(Path(result.output), Mode.PLAIN if pin else Mode.STRICT) == wanted
    steps = [step.op for step in read_schedule(Path(result.schedule_file)).steps]
    assert steps.index("a") < steps.index("b")


@pytest.mark.usefixtures("cache")
def test_without_the_order_the_outputs_would_differ(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _tempting(tmp_path)
    monkeypatch.setattr("remat.plan.ordered_ops", lambda _graph, _costs: ())
    with pytest.raises(CheckFailed, match="differs"):
        optimize(source, _options(tmp_path, "90%", pin=False))
    assert list(tmp_path.glob("*.onnx")) == [source]


@pytest.mark.usefixtures("cache")
def test_a_pinned_model_that_runs_otherwise_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = _tempting(tmp_path)
    monkeypatch.setattr("remat.within.pin", _backwards)
    with pytest.raises(NoAnswer, match="R403"):
        optimize(source, _options(tmp_path, "110%", pin=True))


def _backwards(model: ModelProto, steps: Sequence[Step], graph: Graph, costs: CostTable) -> Pinned:
    pinned = pin(model, steps, graph, costs)
    return replace(pinned, order=pinned.order[::-1])

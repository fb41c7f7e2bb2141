"""The committed sample models: what they are made of, and that they run."""

import json
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from sample_models.catalogue import SAMPLES
from sample_models.liveness import peak_liveness_bytes
from sample_models.memory_patterns import BranchesSize, branches
from tests.sample_models.evaluation import random_feeds

FOLDER = Path(__file__).resolve().parents[2] / "sample_models"
MAX_FILE_BYTES = 1 << 20


def load(name: str) -> onnx.ModelProto:
    return onnx.load_model(FOLDER / f"{name}.onnx")


def all_nodes(graph: onnx.GraphProto) -> list[onnx.NodeProto]:
    """The nodes of a graph and of the graphs inside it."""
    found = []
    for node in graph.node:
        found.append(node)
        for attribute in node.attribute:
            found.extend(all_nodes(attribute.g))
    return found


def test_the_folder_holds_the_catalogue() -> None:
    assert {path.stem for path in FOLDER.glob("*.onnx")} == set(SAMPLES)


def test_the_script_writes_the_committed_bytes(tmp_path: Path) -> None:
    script = [sys.executable, str(FOLDER / "make.py"), "--output", str(tmp_path)]
    subprocess.run(script, check=True, cwd=tmp_path, capture_output=True)
    for name in SAMPLES:
        made = (tmp_path / f"{name}.onnx").read_bytes()
        assert made == (FOLDER / f"{name}.onnx").read_bytes(), name


def test_the_script_refuses_an_unknown_name(tmp_path: Path) -> None:
    script = [sys.executable, str(FOLDER / "make.py"), "nonsense", "--output", str(tmp_path)]
    result = subprocess.run(script, check=False, capture_output=True, text=True)
    assert result.returncode == 2
    assert "unknown sample nonsense" in result.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", SAMPLES)
def test_file_is_small_and_valid(name: str) -> None:
    assert (FOLDER / f"{name}.onnx").stat().st_size < MAX_FILE_BYTES
    model = load(name)
    onnx.checker.check_model(model, full_check=True)
    assert model.ir_version == 10
    names = [node.name for node in all_nodes(model.graph)]
    assert all(names)
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", SAMPLES)
def test_every_dimension_is_known(name: str) -> None:
    """Each value has a shape of numbers, or of names that the catalogue binds."""
    graph = load(name).graph
    infos = {v.name: v for v in [*graph.input, *graph.value_info, *graph.output]}
    for node in graph.node:
        for value in node.output:
            tensor = infos[value].type.tensor_type
            assert tensor.elem_type, value
            assert tensor.HasField("shape"), value
            for dim in tensor.shape.dim:
                known = dim.HasField("dim_value") or dim.dim_param in SAMPLES[name].dimensions
                assert known, value


@pytest.mark.parametrize("name", SAMPLES)
def test_runs_with_finite_outputs(name: str) -> None:
    dimensions = SAMPLES[name].dimensions
    model = load(name)
    session = onnxruntime.InferenceSession(
        FOLDER / f"{name}.onnx", providers=["CPUExecutionProvider"]
    )
    outputs = session.run(None, random_feeds(model, dimensions, seed=0))
    for value, array in zip(model.graph.output, outputs, strict=True):
        shape = [
            dim.dim_value or dimensions[dim.dim_param] for dim in value.type.tensor_type.shape.dim
        ]
        assert list(array.shape) == shape, value.name
        assert np.isfinite(array).all(), value.name


@pytest.mark.parametrize("name", SAMPLES)
def test_the_readme_states_the_numbers(name: str) -> None:
    readme = (FOLDER / "README.md").read_text()
    number = r"([\d,]+)"
    pattern = rf"^\| `{name}\.onnx` \| {number} \| {number} \| {number} \|"
    row = re.search(pattern, readme, re.MULTILINE)
    assert row is not None
    stated = [int(group.replace(",", "")) for group in row.groups()]
    model = load(name)
    peak_bytes = peak_liveness_bytes(model, SAMPLES[name].dimensions)
    file_bytes = (FOLDER / f"{name}.onnx").stat().st_size
    assert stated == [len(model.graph.node), file_bytes, peak_bytes]


def test_operators_a_scheduler_must_know() -> None:
    """The special samples still hold what they are there for."""
    op_types = {name: {node.op_type for node in all_nodes(load(name).graph)} for name in SAMPLES}
    assert {"If", "Loop"} <= op_types["control_flow"]
    assert {"Dropout", "RandomNormalLike"} <= op_types["random"]
    assert {"MatMulInteger", "QuantizeLinear", "SkipLayerNormalization"} <= op_types["quantized"]
    domains = {node.domain for node in load("quantized").graph.node}
    assert domains == {"", "com.microsoft"}


def test_liveness_counts_what_is_live() -> None:
    """Two wide tensors of 24 bytes are live at once, then the wide one and the scalar."""
    x, y = (
        onnx.helper.make_tensor_value_info(name, 1, dims) for name, dims in [("x", [6]), ("y", [])]
    )
    nodes = [
        onnx.helper.make_node("Exp", ["x"], ["a"]),
        onnx.helper.make_node("Neg", ["a"], ["b"]),
        onnx.helper.make_node("ReduceSum", ["b"], ["y"], keepdims=0),
    ]
    inner = [onnx.helper.make_tensor_value_info(name, 1, [6]) for name in "ab"]
    model = onnx.helper.make_model(onnx.helper.make_graph(nodes, "g", [x], [y], value_info=inner))
    assert peak_liveness_bytes(model, {}) == 48


def reordered_peak_bytes(model: onnx.ModelProto, order: list[str]) -> int:
    """Peak liveness with the nodes in another order."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    nodes = {node.name: node for node in model.graph.node}
    assert sorted(order) == sorted(nodes)
    del copy.graph.node[:]
    copy.graph.node.extend(nodes[name] for name in order)
    onnx.checker.check_model(copy)
    return peak_liveness_bytes(copy, {})


def executed_order(model: onnx.ModelProto, folder: Path) -> list[str]:
    """The order in which a session with default order runs the nodes, from its profile."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    options.enable_profiling = True
    options.profile_file_prefix = str(folder / "profile")
    session = onnxruntime.InferenceSession(
        model.SerializeToString(), options, providers=["CPUExecutionProvider"]
    )
    session.run(None, random_feeds(model, {}, seed=0))
    events = json.loads(Path(session.end_profiling()).read_text())
    suffix = "_kernel_time"
    return [
        event["name"].removesuffix(suffix) for event in events if event["name"].endswith(suffix)
    ]


def test_order_alone_more_than_halves_branches(tmp_path: Path) -> None:
    size = BranchesSize(count=6, rows=16, columns=64)
    model = branches(size, seed=0)
    kinds = ("widen", "activate", "gate", "summary")
    best = [f"{kind}{index}" for index in reversed(range(size.count)) for kind in kinds]
    best_bytes = reordered_peak_bytes(model, [*best, "summaries"])
    assert peak_liveness_bytes(model, {}) > 2 * best_bytes
    assert reordered_peak_bytes(model, executed_order(model, tmp_path)) > 2 * best_bytes


@pytest.mark.parametrize("name", ["unet_train", "cnn_train"])
def test_running_statistics_are_not_shared(name: str) -> None:
    """Merged by content, shared ones would let one node overwrite another's batch statistics."""
    graph = load(name).graph
    content = {tensor.name: tensor.raw_data for tensor in graph.initializer}
    nodes = [node for node in graph.node if node.op_type == "BatchNormalization"]
    stored = [content[value] for node in nodes for value in node.input[3:5]]
    assert stored
    assert len(set(stored)) == len(stored)

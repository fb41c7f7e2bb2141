"""Weights beyond what a protobuf holds: 2.2 GB of external data, never loaded here."""

import os
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat.onnx_io import external_files, read
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import optimize

ROWS, LAYERS = 12_288, 4
WEIGHT_BYTES = ROWS * ROWS * 4
BATCH = 64


def _weight(name: str, offset: int) -> TensorProto:
    tensor = TensorProto(name=name, data_type=TensorProto.FLOAT, dims=[ROWS, ROWS])
    tensor.data_location = TensorProto.EXTERNAL
    facts = {"location": "big.data", "offset": str(offset), "length": str(WEIGHT_BYTES)}
    for key, value in facts.items():
        tensor.external_data.add(key=key, value=value)
    return tensor


def _big_model(folder: Path) -> Path:
    """x -> MatMul -> Relu, LAYERS times; the data file is sparse: it takes no disk and no time."""
    nodes, weights, value = [], [], "x"
    for layer in range(LAYERS):
        # Zeros everywhere would make equal weights, which the runtime merges: one number differs.
        weights.append(_weight(f"w{layer}", layer * WEIGHT_BYTES))
        nodes.append(helper.make_node("MatMul", [value, f"w{layer}"], [f"m{layer}"]))
        value = "y" if layer == LAYERS - 1 else f"r{layer}"
        nodes.append(helper.make_node("Relu", [f"m{layer}"], [value]))
    with (folder / "big.data").open("wb") as stream:
        stream.truncate(LAYERS * WEIGHT_BYTES)
        for layer in range(LAYERS):
            stream.seek(layer * WEIGHT_BYTES)
            stream.write(np.array([layer + 1], np.float32).tobytes())
    shape = [BATCH, ROWS]
    graph = helper.make_graph(
        nodes,
        "big",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, shape)],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, shape)],
        weights,
    )
    opset = [helper.make_opsetid("", 20)]
    path = folder / "big.onnx"
    onnx.save_model(helper.make_model(graph, opset_imports=opset, ir_version=10), str(path))
    return path


@pytest.mark.slow
def test_weights_over_two_gigabytes_stay_in_files(tmp_path: Path) -> None:
    free = os.statvfs(tmp_path).f_bavail * os.statvfs(tmp_path).f_frsize
    if free < 6 * LAYERS * WEIGHT_BYTES:
        pytest.skip(f"needs {6 * LAYERS * WEIGHT_BYTES} bytes of disk, {free} are free")
    source = _big_model(tmp_path)
    assert LAYERS * WEIGHT_BYTES > 2_100_000_000
    output = tmp_path / "out.onnx"
    options = OptimizeOptions(mem="100%", model=ModelOptions(repeats=1), output=output)
    result = optimize(source, options)
    assert result.verdict is not None
    assert not result.verdict.failures
    assert output.stat().st_size < 1 << 20
    assert external_files(read(output)) == ("out.onnx.weights",)
    assert result.predicted.weights_bytes >= LAYERS * WEIGHT_BYTES
    onnx.checker.check_model(str(output), full_check=True)
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".")]

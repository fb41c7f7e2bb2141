"""Workspace of kernels that allocate more than once: the peak, not the sum."""

import json
from pathlib import Path

import pytest
from onnx import TensorProto, helper

from remat import page_pool
from remat.onnx_io import write
from tests.cli_runner import invoke

INPUTS, SHAPE = 10, (1024, 512)
TENSOR_BYTES = 4 * 1024 * 512

pytestmark = pytest.mark.skipif(page_pool.library() is None, reason="the page pool was not built")


@pytest.mark.parametrize("kind", ["Sum", "Max", "Mean"])
def test_kernels_of_many_steps_hold_few_temporaries(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    names = [f"x{number}" for number in range(INPUTS)]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, SHAPE) for n in names]
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, SHAPE)
    # A Softmax off the last axis needs two tensors at once, which the sum has right.
    nodes = [
        helper.make_node(kind, names, ["many"], name="many"),
        helper.make_node("Softmax", ["many"], ["y"], name="softmax", axis=0),
    ]
    model = helper.make_model(
        helper.make_graph(nodes, "temporaries", inputs, [output]),
        opset_imports=[helper.make_opsetid("", 18)],
        ir_version=9,
    )
    write(model, tmp_path / "model.onnx")
    result = invoke("profile", str(tmp_path / "model.onnx"), "--repeats", "2", "--json")
    assert result.exit_code == 0, result.stderr
    taken = {op["kind"]: op["workspace_bytes"] for op in json.loads(result.stdout)["ops"]}
    assert TENSOR_BYTES <= taken[kind] <= 2 * TENSOR_BYTES
    assert taken["Softmax"] == 2 * TENSOR_BYTES

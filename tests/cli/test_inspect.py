"""`remat inspect` of models that optimization leaves no op of."""

import json
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper, numpy_helper

from tests.cli_runner import invoke


@pytest.mark.parametrize("kind", ["folded", "a weight alone", "an input alone"])
def test_a_model_without_ops(kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    nodes = [helper.make_node("Relu", ["w"], ["y"])] if kind == "folded" else []
    name = {"folded": "y", "a weight alone": "w", "an input alone": "x"}[kind]
    value = helper.make_tensor_value_info(name, TensorProto.FLOAT, [64, 64])
    inputs = [value] if kind == "an input alone" else []
    weights = [] if inputs else [numpy_helper.from_array(np.ones((64, 64), np.float32), "w")]
    graph = helper.make_graph(nodes, "no_ops", inputs, [value], weights)
    imports = [helper.make_opsetid("", 17)]
    path = tmp_path / "m.onnx"
    onnx.save(helper.make_model(graph, opset_imports=imports, ir_version=8), path)
    result = invoke("inspect", str(path))
    assert result.exit_code == 0, result.stderr
    assert "ops            none" in result.stdout
    found = json.loads(invoke("inspect", str(path), "--json").stdout)
    assert (found["ops"], found["peak_op"], found["holders"]) == (0, "", [])

"""Ops that lose updates on several threads: never run twice, and compared on one."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from onnx import ModelProto, NodeProto, TensorProto, helper

from remat import feeds
from remat.build import recomputable
from remat.onnx_io import write
from remat.profiles.session import Mode
from remat.racing_ops import races, racing
from remat.verify import Match, Trial, decide

ROWS, COLUMNS, UPDATES = 16, 384, 2048
RUNS = 4


def _node(op: str = "ScatterND", **attributes: str) -> NodeProto:
    return helper.make_node(op, ["data", "where", "updates"], ["y"], **attributes)


def _model(reduction: str) -> ModelProto:
    floats = [("data", (ROWS, COLUMNS)), ("updates", (UPDATES, COLUMNS))]
    inputs = [helper.make_tensor_value_info(n, TensorProto.FLOAT, s) for n, s in floats]
    inputs.append(helper.make_tensor_value_info("where", TensorProto.INT64, (UPDATES, 1)))
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT, (ROWS, COLUMNS))
    graph = helper.make_graph([_node(reduction=reduction)], "race", inputs, [y])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)])
    model.ir_version = 9
    return model


@pytest.mark.parametrize(
    ("op", "attributes", "answer"),
    [
        ("ScatterND", {"reduction": "add"}, True),
        ("ScatterND", {"reduction": "none"}, False),
        ("ScatterND", {}, False),
        ("ScatterElements", {"reduction": "add"}, False),
    ],
)
def test_only_reductions_of_scatter_nd_race(
    op: str, attributes: dict[str, str], answer: bool
) -> None:
    node = _node(op, **attributes)
    assert races(node) is answer
    assert recomputable(node) is not answer


def test_models_that_race_are_compared_on_one_thread(tmp_path: Path) -> None:
    """On two threads these updates differ in two of three runs."""
    model = _model("mul")
    assert racing(model) == 1
    file, inputs = tmp_path / "race.onnx", tmp_path / "feeds.npz"
    write(model, file)
    draws = np.random.default_rng(0)
    arrays: dict[str, feeds.Array] = {
        "data": np.ones((ROWS, COLUMNS), np.float32),
        "where": draws.integers(0, 2, (UPDATES, 1)),
        "updates": draws.uniform(0.9, 1.1, (UPDATES, COLUMNS)).astype(np.float32),
    }
    feeds.save(arrays, inputs)
    for run in range(RUNS):
        trial = Trial(file, Mode.STRICT, inputs, 2, 0)
        ours = replace(trial, outputs=tmp_path / f"{run}-ours.npz")
        reference = replace(trial, outputs=tmp_path / f"{run}-reference.npz")
        verdict = decide(Match(trial, ours, reference), lambda *_: None)
        assert verdict.failures == ()
        assert verdict.racing_ops == 1

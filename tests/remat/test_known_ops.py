"""What is written passes the checker of ONNX, whatever the runtime fuses."""

from pathlib import Path

import onnx
import pytest
from onnx import ModelProto, helper

from remat.options import ModelOptions
from remat.passes.known_ops import raise_opset, standard_opset, unknown_ops
from remat.prepare import prepare
from tests.remat.unusual_models import model, normalization


def _prepared(source: ModelProto, folder: Path) -> ModelProto:
    path = folder / "source.onnx"
    onnx.save(source, path)
    prepared = prepare(path, ModelOptions(), folder)
    return prepared.model


def _kinds(proto: ModelProto) -> set[str]:
    return {node.op_type for node in proto.graph.node}


@pytest.mark.parametrize(
    ("opset", "centered", "fused", "then"),
    [
        (11, True, False, 11),
        (14, True, True, 17),
        (20, True, True, 20),
        (11, False, False, 11),
        (14, False, False, 14),
        (20, False, False, 20),
    ],
)
def test_a_normalization_is_fused_where_the_standard_has_a_name_for_it(
    opset: int, centered: bool, fused: bool, then: int, tmp_path: Path
) -> None:
    proto = _prepared(normalization(opset, centered=centered), tmp_path)
    onnx.checker.check_model(proto, full_check=True)
    assert ("LayerNormalization" in _kinds(proto)) == fused
    assert standard_opset(proto) == then
    assert unknown_ops(proto) == frozenset()


def test_what_a_model_comes_with_is_kept(tmp_path: Path) -> None:
    node = helper.make_node("SimplifiedLayerNormalization", ["x", "gain"], ["y"], axis=-1)
    assert "SimplifiedLayerNormalization" in _kinds(_prepared(model([node]), tmp_path))


@pytest.mark.parametrize(("opset", "raised"), [(12, False), (13, True), (16, True), (17, False)])
def test_the_opset_rises_from_where_that_changes_nothing(opset: int, raised: bool) -> None:
    node = helper.make_node("LayerNormalization", ["x", "gain"], ["y"])
    proto = model([node], opset)
    assert raise_opset(proto) == raised
    assert standard_opset(proto) == (17 if raised else opset)


@pytest.mark.parametrize(
    ("opset", "node", "raised"),
    [
        (14, helper.make_node("RoiAlign", ["x", "r", "b"], ["z"]), False),
        (16, helper.make_node("RoiAlign", ["x", "r", "b"], ["z"]), True),
        (13, helper.make_node("BatchNormalization", list("xsbmv"), list("zpqrs")), False),
        (13, helper.make_node("BatchNormalization", list("xsbmv"), ["z"]), True),
        (14, helper.make_node("NoSuchOp", ["x"], ["z"]), False),
    ],
)
def test_the_opset_stays_where_an_op_would_mean_something_else(
    opset: int, node: onnx.NodeProto, raised: bool
) -> None:
    proto = model([helper.make_node("LayerNormalization", ["x", "gain"], ["y"]), node], opset)
    assert raise_opset(proto) == raised

"""Unusual models that the runtime accepts are prepared, or refused with the fact."""

from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper

from remat.errors import BadModel, UsageError
from remat.onnx_io import give_readers
from remat.options import ModelOptions
from remat.prepare import Prepared, prepare, work_folder
from tests.remat.unusual_models import SHAPE, model

CHAIN = [helper.make_node("Relu", ["x"], ["a"]), helper.make_node("Exp", ["a"], ["y"])]


def _prepared(source: ModelProto, folder: Path, options: ModelOptions | None = None) -> Prepared:
    path = folder / "source.onnx"
    path.write_bytes(source.SerializeToString())
    with work_folder(folder, path) as inside:
        found = prepare(path, options or ModelOptions(), inside)
        onnx.checker.check_model(str(found.optimized), full_check=True)
    return found


def test_a_cycle_is_named(tmp_path: Path) -> None:
    nodes = [helper.make_node("Add", ["x", "b"], ["a"]), helper.make_node("Relu", ["a"], ["b"])]
    source = model([*nodes, helper.make_node("Exp", ["b"], ["y"])])
    with pytest.raises(BadModel, match="cycle") as caught:
        _prepared(source, tmp_path)
    assert caught.value.place.endswith("source.onnx")


def test_a_negative_size_is_an_unknown_one(tmp_path: Path) -> None:
    source = model(CHAIN, shape=[4, -1])
    with pytest.raises(UsageError, match=r"x\.1"):
        _prepared(source, tmp_path)
    assert _prepared(source, tmp_path, ModelOptions(dims={"x.1": 8})).dims == (("x.1", 8),)


def test_an_input_without_a_shape_takes_that_of_an_array(tmp_path: Path) -> None:
    source = model(CHAIN)
    for info in (*source.graph.input, *source.graph.output):
        info.type.tensor_type.ClearField("shape")
    with pytest.raises(BadModel, match="'x' has no shape"):
        _prepared(source, tmp_path)
    np.savez(tmp_path / "x.npz", x=np.ones((2, 3), np.float32))
    found = _prepared(source, tmp_path, ModelOptions(inputs=tmp_path / "x.npz"))
    assert found.dims == (("x.0", 2), ("x.1", 3))


def test_stale_shapes_are_dropped(tmp_path: Path) -> None:
    source = model(CHAIN)
    source.graph.value_info.append(helper.make_tensor_value_info("a", TensorProto.FLOAT, [7, 7]))
    infos = {info.name: info for info in _prepared(source, tmp_path).model.graph.value_info}
    assert [dim.dim_value for dim in infos["a"].type.tensor_type.shape.dim] == SHAPE


@pytest.mark.parametrize("linear", [True, False])
def test_sparse_initializers_become_plain_ones(linear: bool, tmp_path: Path) -> None:
    source = model([helper.make_node("Mul", ["x", "w"], ["y"])])
    places = [1, 40] if linear else [0, 1, 1, 8]
    sparse = source.graph.sparse_initializer.add(dims=[2, 32])
    sparse.values.CopyFrom(helper.make_tensor("w", TensorProto.FLOAT, [2], [3, 5]))
    rank = [2] if linear else [2, 2]
    sparse.indices.CopyFrom(helper.make_tensor("i", TensorProto.INT64, rank, places))
    source.graph.input[0].type.tensor_type.shape.dim[1].dim_value = 2
    source.graph.output[0].type.tensor_type.shape.dim[1].dim_value = 2
    graph = _prepared(source, tmp_path).model.graph
    assert not graph.sparse_initializer
    [weight] = map(onnx.numpy_helper.to_array, graph.initializer)
    assert {place: weight[place] for place in zip(*np.nonzero(weight), strict=True)} == {
        (0, 1): 3.0,
        (1, 8): 5.0,
    }


def test_what_the_checker_refuses_is_a_bad_model(tmp_path: Path) -> None:
    source = model([helper.make_node("Affine", ["x"], ["y"], alpha=2.0, beta=1.0)])
    with pytest.raises(BadModel) as caught:
        _prepared(source, tmp_path)
    assert caught.value.code in ("R505", "R514")


def test_a_model_that_the_runtime_refuses_is_named_by_its_own_name(tmp_path: Path) -> None:
    with pytest.raises(BadModel, match="R505") as caught:
        _prepared(model([helper.make_node("NoSuchOp", ["x"], ["y"])]), tmp_path)
    error = caught.value.render()
    assert "bound.onnx" not in error
    assert "source.onnx" in error
    assert "help: see whether it opens without remat: python -c" in error


def test_an_error_names_no_file_of_the_work_folder(tmp_path: Path) -> None:
    source = tmp_path / "user's model.onnx"

    def fail(place: str) -> None:
        with work_folder(tmp_path, source) as folder:
            fact = f"{folder}/deep/bound.onnx is bad"
            raise BadModel("R599", fact, place=place and str(folder / place))

    for place in ("optimized.onnx", ""):
        with pytest.raises(BadModel) as caught:
            fail(place)
        assert caught.value.place == str(source)
        assert caught.value.fact == f"{source} is bad"
    assert list(tmp_path.iterdir()) == []


def test_an_unknown_rank_is_no_scalar(tmp_path: Path) -> None:
    nodes = [
        helper.make_node("SplitToSequence", ["x"], ["s"], axis=0),
        helper.make_node("ConcatFromSequence", ["s"], ["a"], axis=1),
        helper.make_node("Relu", ["a"], ["b"]),
        helper.make_node("ReduceSum", ["b"], ["c"], keepdims=0),
        helper.make_node("Add", ["x", "c"], ["y"]),
    ]
    infos = _prepared(model(nodes), tmp_path).model.graph.value_info
    assert "a" not in {info.name for info in infos if not info.type.tensor_type.shape.dim}


def test_a_reader_has_a_name_of_its_own() -> None:
    """Where an op is run twice, the reader there was may read either instance."""
    nodes = [
        helper.make_node("Split", ["x"], ["a__remat0", "b__remat0"], axis=0),
        helper.make_node("Identity", ["b__remat0"], ["b__unread"], name="b__unread"),
        helper.make_node("Split", ["x"], ["a", "b"], axis=0),
        helper.make_node("Concat", ["a__remat0", "a"], ["y"], axis=0),
    ]
    proto = model(nodes, opset=13)
    give_readers(proto)
    onnx.checker.check_model(proto, full_check=True)
    written = [name for node in proto.graph.node for name in node.output]
    assert len(written) == len(set(written))
    read = {name for node in proto.graph.node for name in node.input}
    assert {"a", "a__remat0", "b", "b__remat0"} <= read

"""What a budget leaves for tensors, and what of a session's bookkeeping clones add to."""

from pathlib import Path

import pytest
from onnx import TensorProto, helper

from remat.budget import Account
from remat.onnx_io import node_count
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import inspect, optimize

ACCOUNT = Account(weights_bytes=100, inputs_bytes=7, overhead_bytes=1_000, fixed_bytes=201, nodes=4)


def test_only_nodes_beside_the_first_are_charged_and_more_than_the_average() -> None:
    assert ACCOUNT.overhead_for(3) == ACCOUNT.overhead_for(4) == 1_000
    assert ACCOUNT.overhead_for(5) == 1_000 + 250  # 5/4 of 799 / 4, rounded up
    assert ACCOUNT.overhead_for(8) == 1_000 + 999  # 5/4 of 799, rounded up


@pytest.mark.parametrize("nodes", [4, 5, 9])
def test_a_limit_and_its_budget_are_inverse(nodes: int) -> None:
    total_bytes = ACCOUNT.total_for(50, nodes)
    assert ACCOUNT.limit(total_bytes, nodes) == 50


def test_nodes_of_branches_are_counted() -> None:
    value = helper.make_tensor_value_info("y", TensorProto.FLOAT, [1])
    relu = helper.make_node("Relu", ["x"], ["y"])
    branch = helper.make_graph([relu, relu], "branch", [], [value])
    choice = helper.make_node("If", ["c"], ["z"], then_branch=branch, else_branch=branch)
    assert node_count(helper.make_graph([choice, relu], "graph", [], [value])) == 6


@pytest.mark.parametrize("name", ["knn", "unet_infer"])
def test_what_is_not_proven_impossible_is_not_refused_for_want_of_clones(
    name: str, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    model = ModelOptions(threads=1, repeats=1)
    source = models / f"{name}.onnx"
    least_bytes = inspect(source, model).least_proven_bytes
    # No two processes hold the same to the page; this is much less than a clone is charged.
    result = optimize(source, OptimizeOptions(str(least_bytes + (16 << 10)), model))
    assert result.verdict is not None
    assert not result.verdict.failures
    assert result.recomputed_ops == 0

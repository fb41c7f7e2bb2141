"""A cost table is read as a whole or refused: what is in it becomes a schedule."""

import json
from pathlib import Path
from typing import Any

import pytest

from remat.costs import MOST, CostTable, Environment, OpCost, dumps, load
from remat.errors import UsageError
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import optimize, profile

COST = OpCost("Relu", 5, 1, 64, (-1,), ((0,),))
TABLE = CostTable(Environment("onnxruntime 1", "CPU", 2, "a CPU", "malloc"), {"s": COST})


def _written(path: Path, **changes: Any) -> Path:
    data = json.loads(dumps(TABLE))
    data["ops"]["s"] |= changes
    path.write_text(json.dumps(data))
    return path


def test_what_is_written_is_read(tmp_path: Path) -> None:
    assert load(_written(tmp_path / "c.json")) == TABLE


@pytest.mark.parametrize("key", ["time_ns", "spread_ns", "workspace_bytes"])
@pytest.mark.parametrize("value", [-1, 1.5, None, "7", MOST + 1, float("inf"), float("nan")])
def test_a_cost_that_is_no_count_is_refused(key: str, value: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=key) as caught:
        load(_written(tmp_path / "c.json", **{key: value}))
    assert caught.value.code == "R220"


@pytest.mark.parametrize("changes", [{"alias": [-2]}, {"alias": 3}, {"in_place": [[-1]]}])
def test_a_slot_that_is_none_is_refused(changes: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="R220"):
        load(_written(tmp_path / "c.json", **changes))


def test_an_environment_that_is_none_is_refused(tmp_path: Path) -> None:
    path = _written(tmp_path / "c.json")
    data = json.loads(path.read_text())
    data["environment"]["threads"] = -1
    path.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="threads"):
        load(path)
    path.write_text("[" * 100_000)
    with pytest.raises(UsageError, match="R220"):
        load(path)


def test_a_table_that_tells_too_little_proves_nothing(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    source, costs = models / "branches.onnx", tmp_path / "c.json"
    model = ModelOptions(threads=1, repeats=1)
    profile(source, model, output=costs, force=False)
    wanted = OptimizeOptions("50%", model, costs=costs, time_limit_s=2.0, verify=False, check=True)
    assert optimize(source, wanted).predicted.total_bytes > 0
    data = json.loads(costs.read_text())
    for cost in data["ops"].values():
        # As if every op wrote into its first input.
        cost["alias"] = [0] * len(cost["alias"])
    costs.write_text(json.dumps(data))
    with pytest.raises(UsageError, match="R224"):
        optimize(source, wanted)

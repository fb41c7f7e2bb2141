"""`remat profile` on real models: op times add up to the run that they were measured in."""

import json
from pathlib import Path
from typing import Any

import pytest

from tests.cli_runner import invoke

MOST_OFF_PERCENT = 5


@pytest.fixture
def profiled(
    request: pytest.FixtureRequest, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> tuple[dict[str, Any], str]:
    """What `remat profile` says as JSON, nothing being known before, and then as text."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    arguments = ["profile", str(models / request.param), "--threads", "1", "--repeats", "3"]
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0, result.stderr
    return json.loads(result.stdout), invoke(*arguments).stdout


@pytest.mark.parametrize("profiled", ["unet_infer.onnx", "random.onnx"], indirect=True)
def test_op_times_add_up_to_the_measured_run(profiled: tuple[dict[str, Any], str]) -> None:
    found, text = profiled
    assert found["cached_ops"] == 0
    total_ns = sum(op["time_ns"] for op in found["ops"])
    assert found["sum_ns"] == total_ns
    assert min(op["time_ns"] for op in found["ops"]) > 0
    # A run of these takes milliseconds.
    assert 10**5 < found["measured_ns"] < 10**11
    off = abs(found["sum_ns"] - found["measured_ns"])
    assert off * 100 <= MOST_OFF_PERCENT * found["measured_ns"]
    assert "\nsum of ops  " in text
    assert " % of a run\na run  " in text

"""`remat verify` on real models: a real limit, and the prediction against what is measured."""

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import onnx
import pytest

from remat import feeds
from remat.errors import BadModel
from remat.lower import PREFIX
from remat.onnx_io import read
from remat.profiles.session import Mode
from remat.verify import Trial, survives
from tests.cli_runner import invoke

Process = Callable[..., subprocess.CompletedProcess[str]]
MEM = "20MiB"
MEM_BYTES = 20 << 20


@pytest.fixture
def pair(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """A model that takes 38 MiB as it is, and what `optimize` makes of it within 20 MiB."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    source, output = models / "branches.onnx", tmp_path / "small.onnx"
    more = ["-o", str(output), "--no-verify", "--threads", "1"]
    result = invoke("optimize", str(source), "--mem", MEM, *more)
    assert result.exit_code == 0, result.stderr
    return source, output


def _feeds(model: Path, folder: Path) -> Path:
    path = folder / "feeds.npz"
    feeds.save(feeds.make(read(model), 0), path)
    return path


def test_a_real_limit_stops_the_original_alone(
    pair: tuple[Path, Path], tmp_path: Path, remat_process: Process
) -> None:
    source, output = pair
    arguments = ["verify", str(source), str(output), "--mem", MEM, "--enforce", "--threads", "1"]
    finished = remat_process(*arguments, "--json")
    assert finished.returncode == 0, finished.stderr
    found = json.loads(finished.stdout)
    assert found["failures"] == []
    assert found["enforcement"] == {
        "limit_bytes": MEM_BYTES,
        "original_survived": False,
        "optimized_survived": True,
    }
    fates = "20.0 MiB: the original died, the optimized model came through"
    assert f"real limit  {fates}" in remat_process(*arguments).stdout
    # Not only because of an arena: the session that holds next to nothing dies as well, by the
    # system's hand, and a limit that the model keeps is no danger to it.
    trial = Trial(source, Mode.PLAIN, _feeds(source, tmp_path), 1, 0)
    assert not survives(trial, MEM_BYTES)
    assert survives(trial, 2 * MEM_BYTES)


def test_an_optimized_model_that_dies_fails(pair: tuple[Path, Path]) -> None:
    source, output = pair
    limit = ["--mem", "6MiB", "--enforce", "--threads", "1"]
    result = invoke("verify", str(source), str(output), *limit, "--repeats", "1")
    assert result.exit_code == 1
    assert "FAILED: the run died under a real limit of 6.0 MiB" in result.stdout


def test_the_prediction_is_held_against_both_measurements(pair: tuple[Path, Path]) -> None:
    source, output = pair
    found = _verified(source, output)
    notes = {entry.key: entry.value for entry in onnx.load(output).metadata_props}
    schedule = json.loads(output.with_suffix(".json").read_text())
    assert found["predicted_ns"] == schedule["predicted"]["time_ns"] > 0
    assert found["predicted_bytes"] == schedule["predicted"]["peak_bytes"] > 0
    assert found["predicted_ns"] == int(notes[PREFIX + "predicted_ns"])
    off = abs(found["optimized"]["peak_bytes"] - found["predicted_bytes"])
    assert off * 100 <= 5 * found["predicted_bytes"]
    # Times waver on a shared machine: that they are of one order is all that can be asked.
    assert found["predicted_ns"] / 5 < found["optimized"]["fastest_ns"] < found["predicted_ns"] * 5


def _verified(source: Path, output: Path) -> dict[str, Any]:
    result = invoke("verify", str(source), str(output), "--threads", "1", "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_no_limit_is_there_to_be_enforced(models: Path) -> None:
    model = str(models / "knn.onnx")
    result = invoke("verify", model, model, "--enforce")
    assert result.exit_code == 2
    assert "R209" in result.stderr


def test_a_process_that_the_limit_takes_down_has_died(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trial = Trial(models / "knn.onnx", Mode.PLAIN, tmp_path / "feeds.npz", 1, 0)

    def end_with(code: str) -> None:
        def call(_target: str, _payload: dict[str, Any]) -> dict[str, Any]:
            raise BadModel(code, "it ended")

        monkeypatch.setattr("remat.verify.call", call)

    end_with("R510")
    assert not survives(trial, MEM_BYTES)
    end_with("R508")
    with pytest.raises(BadModel, match="R508"):
        survives(trial, MEM_BYTES)

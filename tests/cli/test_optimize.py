"""`remat optimize` on real models: what it says of files, and what it advises."""

import itertools
import json
import re
import shlex
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import helper

from remat.errors import ExitCode
from remat.problem import NONE, Problem
from remat.schedule import BoundKind, Solution, Status
from remat.units import parse_size
from tests.cli_runner import invoke

KNN = ("--mem", "100%", "--threads", "1", "--no-verify", "--repeats", "1")


@pytest.fixture
def model(models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A small model, and an empty cache of costs."""
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    return models / "knn.onnx"


def _json(model: Path, *more: str) -> dict[str, Any]:
    result = invoke("optimize", str(model), *KNN, *more, "--json")
    assert result.exit_code == 0, result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found


def test_a_check_writes_nothing_and_names_no_file(model: Path) -> None:
    before = sorted(model.parent.iterdir())
    found = _json(model, "--check", "--output", str(model.with_name("out.onnx")))
    assert (found["output"], found["schedule_file"]) == ("", "")
    text = invoke("optimize", str(model), *KNN, "--check").stdout
    assert "written      nothing (--check)" in text
    assert "schedule  " not in text
    assert sorted(model.parent.iterdir()) == before


def test_what_is_written_is_named(model: Path) -> None:
    found = _json(model)
    assert Path(found["output"]) == model.with_name("knn.remat.onnx")
    assert Path(found["schedule_file"]) == model.with_name("knn.remat.json")
    assert Path(found["output"]).exists()
    assert Path(found["schedule_file"]).exists()


def _advised(model: Path, mem: str, *more: str) -> str:
    """The --mem and --pin that a refusal of a pinned model recommends."""
    arguments = ["--threads", "1", "--repeats", "1", "--time-limit", "3", *more]
    result = invoke("optimize", str(model), "--pin", "--mem", mem, *arguments)
    assert result.exit_code in (ExitCode.INFEASIBLE, ExitCode.NO_ANSWER)
    found = re.search(r"help: use --mem (\w+) with --pin; (without it.*)\n", result.stderr)
    assert found is not None, result.stderr
    assert ("less may be enough" in found[2]) == ("R402" in result.stderr)
    return found[1]


def test_what_is_advised_with_pin_is_kept_with_pin(model: Path) -> None:
    network = model.with_name("unet_infer.onnx")
    advised = _advised(network, "60%")
    # In strict mode 22 MiB are enough, but not where a plain session reuses buffers.
    again, first = (parse_size(text).size_bytes for text in (_advised(network, "22MiB"), advised))
    assert abs(again - first) * 100 < first
    options = ["--threads", "1", "--repeats", "1", "--time-limit", "3", "--json"]
    result = invoke("optimize", str(network), "--pin", "--mem", advised, *options)
    assert result.exit_code == 0, result.stderr
    verdict = json.loads(result.stdout)["verdict"]
    assert verdict["failures"] == []
    assert 22 << 20 < verdict["optimized"]["peak_bytes"] <= verdict["budget_bytes"]
    strict = ["--mem", "22MiB", "--no-verify", "--force"]
    assert invoke("optimize", str(network), *strict, *options).exit_code == 0


def _clueless(problem: Problem, **_options: Any) -> Solution:
    """A solver that finds and proves nothing."""
    return Solution(Status.UNKNOWN, (), 0, 0, 0, BoundKind.NONE, 0, 0, NONE, "nobody")


@pytest.mark.parametrize(("mem", "exit_code"), [("150%", 0), ("70%", ExitCode.NO_ANSWER)])
def test_a_pinned_model_has_a_spare_schedule_that_needs_no_search(
    mem: str, exit_code: int, model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("remat.within.solve", _clueless)
    arguments = ["--mem", mem, *KNN[2:], "--time-limit", "3"]
    result = invoke("optimize", str(model), "--pin", *arguments, "--json")
    assert result.exit_code == exit_code, result.stderr
    if exit_code == 0:
        found = json.loads(result.stdout)
        facts = (found["found_by"], found["recomputed_ops"], found["status"])
        assert facts == ("order", 0, "optimal")
        assert found["lower_bound_ns"] == found["base_ns"]
    strict = invoke("optimize", str(model), *arguments, "--check")
    assert strict.exit_code == exit_code
    assert "--pin" not in strict.stderr


@pytest.mark.parametrize("name", ["control_flow", "cnn_train", "quantized"])
@pytest.mark.parametrize("mem", ["1KB", "70%", "20%"])
def test_what_a_proven_refusal_advises_is_kept(name: str, mem: str, model: Path) -> None:
    path = str(model.with_name(f"{name}.onnx"))
    options = ["--threads", "1", "--repeats", "1", "--time-limit", "3", "--check"]
    result = invoke("optimize", path, "--mem", mem, *options)
    if result.exit_code == 0:
        return
    assert result.exit_code == ExitCode.INFEASIBLE
    found = re.search(r"use --mem (\w+)\n|runs with --mem (\w+)\n", result.stderr)
    assert found is not None, result.stderr
    advised = invoke("optimize", path, "--mem", found[1] or found[2], *options)
    assert advised.exit_code == 0, advised.stderr


def test_what_was_optimized_can_be_optimized_again(model: Path) -> None:
    for name, more in (("knn", ()), ("knn", ("--pin",))):
        first, again = (model.with_name(f"{name}{number}.onnx") for number in (1, 2))
        sources = ((model, first), (first, again))
        for source, target in sources:
            arguments = ["--mem", "100%", "--threads", "1", "--repeats", "1", "--force", *more]
            result = invoke("optimize", str(source), *arguments, "-o", str(target))
            assert result.exit_code == 0, result.stderr
            keys = [entry.key for entry in onnx.load(target).metadata_props]
            assert len(keys) == len(set(keys))
            onnx.checker.check_model(str(target), full_check=True)


def test_a_stale_table_is_made_again_as_it_says(model: Path, tmp_path: Path) -> None:
    costs = tmp_path / "my costs.json"
    profiled = invoke("profile", str(model), "--threads", "2", "--repeats", "1", "-o", str(costs))
    assert profiled.exit_code == 0, profiled.stderr
    arguments = ["optimize", str(model), *KNN, "--costs", str(costs)]
    refused = invoke(*arguments)
    assert refused.exit_code == ExitCode.USAGE
    assert "R222" in refused.stderr
    words = shlex.split(refused.stderr.split("make it again: ")[1])
    assert words[0] == "remat"
    assert invoke(*words[1:], "--repeats", "1").exit_code == 0
    assert invoke(*arguments).exit_code == 0


def test_a_pinned_answer_is_not_faster_than_what_is_proven(model: Path, tmp_path: Path) -> None:
    """A plain session runs no readers of unread outputs, and nothing that only they read."""
    split = tmp_path / "split.onnx"
    onnx.save(_with_unread_outputs(), split)
    arguments = ["--threads", "1", "--repeats", "1", "--time-limit", "3", "--no-verify", "--json"]
    result = invoke("optimize", str(split), "--pin", "--mem", "100%", *arguments)
    assert result.exit_code == 0, result.stderr
    found = json.loads(result.stdout)
    assert 0 < found["lower_bound_ns"] <= found["predicted_ns"]
    assert found["base_ns"] <= found["predicted_ns"]
    strict = invoke("optimize", str(split), "--mem", "100%", "--force", *arguments)
    assert json.loads(strict.stdout)["base_ns"] > found["base_ns"]


def _with_unread_outputs() -> onnx.ModelProto:
    """A chain beside which half of a Split, and an op that reads it, are of no use."""
    shape = [1, 64, 256]
    names = [f"t{number}" for number in range(6)]
    nodes = [helper.make_node("Exp", ["x"], [names[0]])]
    nodes += [helper.make_node("Sin", [a], [b]) for a, b in itertools.pairwise(names)]
    nodes += [
        helper.make_node("Split", [names[-1]], ["y", "half"], axis=2, num_outputs=2),
        helper.make_node("Cos", ["half"], ["dead"]),
        helper.make_node("Relu", ["y"], ["z"]),
    ]
    info = helper.make_tensor_value_info
    graph = helper.make_graph(
        nodes, "g", [info("x", 1, shape)], [info("z", 1, [*shape[:2], shape[2] // 2])]
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=9)

"""Bad files give one clear error, and no input is ever overwritten."""

import json
import os
import re
import shutil
from pathlib import Path

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from remat.errors import ExitCode
from tests.cli_runner import invoke
from tests.source_files import ROOT

SAMPLE = ROOT / "sample_models" / "knn.onnx"


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A small good model."""
    return Path(shutil.copy(SAMPLE, tmp_path / "model.onnx"))


def _fails(code: ExitCode, *arguments: str | Path) -> str:
    """The error that `remat ARGUMENTS` ends with: one, with this exit code."""
    result = invoke(*map(str, arguments))
    assert result.exit_code == code, result.stderr
    assert re.match(r"error\[R\d{3}\]: [a-z0-9'].*[^.]\n", result.stderr)
    assert result.stderr.count("error[") == 1
    assert "Traceback" not in result.stderr
    assert result.stdout == ""
    return result.stderr


@pytest.mark.parametrize("verb", ["inspect", "profile", "run", "optimize", "verify"])
@pytest.mark.parametrize("kind", ["missing", "folder", "empty", "text", "truncated"])
def test_5_a_model_that_is_none(verb: str, kind: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.onnx"
    if kind == "folder":
        bad.mkdir()
    elif kind != "missing":
        whole = SAMPLE.read_bytes()
        bad.write_bytes({"empty": b"", "text": b"no model\n", "truncated": whole[:-90]}[kind])
    more = {"optimize": ["--mem", "60%"], "verify": [str(SAMPLE)]}.get(verb, [])
    assert "bad.onnx" in _fails(ExitCode.BAD_MODEL, verb, bad, *more)


@pytest.mark.parametrize(
    "kind", ["missing", "text", "one array", "empty", "another name", "another shape"]
)
def test_2_inputs_that_do_not_fit(kind: str, model: Path, tmp_path: Path) -> None:
    inputs = tmp_path / "x.npz"
    if kind == "text":
        inputs.write_text("no arrays")
    elif kind == "one array":
        with inputs.open("wb") as stream:
            np.save(stream, np.zeros(3, np.float32))
    elif kind == "another name":
        np.savez(inputs, nothing=np.zeros(3, np.float32))
    elif kind == "empty":
        np.savez(inputs)
    elif kind == "another shape":
        np.savez(inputs, queries=np.zeros(3, np.float32), points=np.zeros(3, np.float32))
    assert "x.npz" in _fails(ExitCode.USAGE, "run", model, "--inputs", inputs)


@pytest.mark.parametrize("kind", ["missing", "text", "another format"])
def test_2_costs_that_are_none(kind: str, model: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    if kind != "missing":
        costs.write_text("{" if kind == "text" else '{"format": "remat.schedule", "version": 1}')
    error = _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", "--costs", costs)
    assert "costs.json" in error


@pytest.mark.parametrize("option", ["--output", "--schedule"])
@pytest.mark.parametrize("force", [[], ["--force"]])
def test_2_an_input_is_never_overwritten(option: str, force: list[str], model: Path) -> None:
    before = model.read_bytes()
    # The same file by another name.
    other = model.parent / "." / "alias.onnx"
    other.symlink_to(model)
    for target in (model, other):
        _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", option, target, *force)
    assert model.read_bytes() == before


@pytest.mark.parametrize("force", [[], ["--force"]])
@pytest.mark.parametrize("target", ["precious", "nowhere"])
def test_2_a_link_is_no_place_for_an_output(
    target: str, force: list[str], model: Path, tmp_path: Path
) -> None:
    there, link = tmp_path / target, tmp_path / "link.onnx"
    if target == "precious":
        there.write_text("precious")
    link.symlink_to(there)
    error = _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", "-o", link, *force)
    assert str(there) in error
    assert link.is_symlink()
    assert not there.exists() or there.read_text() == "precious"


def test_2_inputs_and_costs_are_inputs_too(model: Path, tmp_path: Path) -> None:
    costs = tmp_path / "costs.json"
    costs.write_text("{}")
    both = ["--costs", str(costs), "--schedule", str(costs)]
    _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", *both, "--force")
    _fails(ExitCode.USAGE, "profile", model, "-o", model, "--force")
    _fails(ExitCode.USAGE, "run", model, "--outputs", model)
    assert costs.read_text() == "{}"


@pytest.mark.parametrize(
    "arguments",
    [["optimize", "--mem", "60%", "-o"], ["profile", "-o"], ["run", "--outputs"]],
    ids=lambda item: item[0],
)
def test_2_an_output_in_the_way_needs_force(
    arguments: list[str], model: Path, tmp_path: Path
) -> None:
    there = tmp_path / "there"
    there.write_text("precious")
    verb, *options = arguments
    assert "--force" in _fails(ExitCode.USAGE, verb, model, *options, there)
    assert there.read_text() == "precious"


def test_2_an_output_that_cannot_be_written(model: Path, tmp_path: Path) -> None:
    for target in (tmp_path / "none" / "out.onnx", tmp_path, model / "out.onnx"):
        _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", "-o", target)


def test_2_outputs_that_are_the_same_file(model: Path, tmp_path: Path) -> None:
    target = tmp_path / "out"
    _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", "-o", target, "--schedule", target)


def test_2_dimensions_that_do_not_fit(tmp_path: Path) -> None:
    dynamic = ROOT / "sample_models" / "dynamic.onnx"
    assert "--dim" in _fails(ExitCode.USAGE, "run", dynamic)
    assert "width" in _fails(ExitCode.USAGE, "run", dynamic, "--dim", "no_such_dimension=3")
    error = _fails(ExitCode.USAGE, "run", SAMPLE, "--dim", "no_such_dimension=3")
    assert "all sizes are fixed already" in error


def test_3_a_limit_that_no_schedule_keeps_names_the_least(model: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.onnx"
    error = _fails(ExitCode.INFEASIBLE, "optimize", model, "--mem", "1KiB", "-o", out)
    assert "--mem" in error
    assert not out.exists()


WRITERS = [
    ["optimize", "--mem", "60%", "-o"],
    ["optimize", "--mem", "60%", "--schedule"],
    ["profile", "-o"],
    ["run", "--outputs"],
]


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
@pytest.mark.parametrize("name", ["pipe", "folder", "none/out", "x" * 300, "-", ""])
def test_2_an_output_that_is_no_file_stays_what_it_is(
    name: str, arguments: list[str], model: Path, tmp_path: Path
) -> None:
    pipe, folder = tmp_path / "pipe", tmp_path / "folder"
    os.mkfifo(pipe)
    folder.mkdir()
    before = sorted(tmp_path.iterdir())
    verb, *options = arguments
    target = tmp_path / name if name.isalpha() or "/" in name else name
    _fails(ExitCode.USAGE, verb, model, *options, target, "--force")
    assert pipe.is_fifo()
    assert folder.is_dir()
    assert sorted(tmp_path.iterdir()) == before


@pytest.mark.parametrize("arguments", WRITERS, ids=" ".join)
def test_2_a_folder_whose_mode_promises_too_much(arguments: list[str], model: Path) -> None:
    verb, *options = arguments
    assert "not writable" in _fails(ExitCode.USAGE, verb, model, *options, "/proc/x.onnx")


@pytest.mark.parametrize("name", ["data", "out.onnx.weights"])
def test_2_the_data_of_a_model_is_an_input_too(name: str, tmp_path: Path) -> None:
    source, weights = tmp_path / "m.onnx", tmp_path / name
    proto = onnx.load(SAMPLE)
    onnx.save(proto, source, save_as_external_data=True, location=name, size_threshold=0)
    before = weights.read_bytes()
    for option, target in (("-o", name), ("--schedule", name), ("-o", "out.onnx")):
        if target == name or name.startswith(target):
            path = tmp_path / target
            _fails(ExitCode.USAGE, "optimize", source, "--mem", "60%", option, path, "--force")
            assert weights.read_bytes() == before


def test_2_weights_in_the_way_need_force(model: Path, tmp_path: Path) -> None:
    there = tmp_path / "out.onnx.weights"
    there.write_text("precious")
    out = tmp_path / "out.onnx"
    assert "--force" in _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", "-o", out)
    more = ("-o", out, "--schedule", there, "--force")
    _fails(ExitCode.USAGE, "optimize", model, "--mem", "60%", *more)
    assert there.read_text() == "precious"


@pytest.mark.parametrize("changes", [{"time_ns": -5}, {"alias": [7]}, {"in_place": []}])
def test_2_costs_that_are_wrong_write_nothing(
    changes: dict[str, object], model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    costs, out = tmp_path / "costs.json", tmp_path / "out.onnx"
    assert invoke("profile", str(model), "-o", str(costs), "--repeats", "1").exit_code == 0
    table = json.loads(costs.read_text())
    for row in table["ops"].values():
        row |= changes
    costs.write_text(json.dumps(table))
    _fails(ExitCode.USAGE, "optimize", model, "--mem", "100%", "--costs", costs, "-o", out)
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize("size", ["99999999999", str(2**63 - 1), str(2**63), "9" * 5000])
@pytest.mark.parametrize("verb", ["run", "inspect"])
def test_2_dimensions_that_no_machine_holds(verb: str, size: str) -> None:
    dynamic = ROOT / "sample_models" / "dynamic.onnx"
    others = ["--dim", "height=64", "--dim", "width=64"]
    error = _fails(ExitCode.USAGE, verb, dynamic, "--dim", f"batch={size}", *others)
    assert len(error) < 400
    assert ("R232" if len(size) < 20 and int(size) < 2**63 else "R212") in error


def test_5_a_model_without_outputs_computes_nothing(tmp_path: Path) -> None:
    model = onnx.load(SAMPLE)
    del model.graph.output[:]
    onnx.save(model, tmp_path / "m.onnx")
    assert "no outputs" in _fails(ExitCode.BAD_MODEL, "inspect", tmp_path / "m.onnx")


def test_5_an_op_that_fails_is_named_as_the_model_names_it(tmp_path: Path) -> None:
    given = [
        helper.make_tensor_value_info("x", TensorProto.FLOAT, [6]),
        helper.make_tensor_value_info("s", TensorProto.INT64, [2]),
    ]
    node = helper.make_node("Reshape", ["x", "s"], ["y"], name="fold")
    output = helper.make_tensor_value_info("y", TensorProto.FLOAT, ["a", "b"])
    opsets = [helper.make_opsetid("", 17)]
    graph = helper.make_graph([node], "g", given, [output])
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=9), tmp_path / "m.onnx")
    np.savez(tmp_path / "x.npz", x=np.zeros(6, np.float32), s=np.array([4, 5]))
    error = _fails(
        ExitCode.BAD_MODEL, "inspect", tmp_path / "m.onnx", "--inputs", tmp_path / "x.npz"
    )
    assert "'fold'" in error
    assert "R506" in error


@pytest.mark.parametrize("suffix", ["json", "textproto", "pbtxt", "onnxtxt"])
def test_5_the_name_of_a_file_does_not_choose_its_format(suffix: str, tmp_path: Path) -> None:
    text = tmp_path / f"model.{suffix}"
    text.write_text('{"a": 1}')
    assert "R502" in _fails(ExitCode.BAD_MODEL, "inspect", text)
    assert "R502" in _fails(ExitCode.BAD_MODEL, "run", text)

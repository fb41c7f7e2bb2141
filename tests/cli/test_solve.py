"""`remat solve`: bare problems, from the command line to the file."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from remat.errors import ExitCode
from remat.problem_file import read
from remat.scheduler.solvers import names
from remat.simulate import strict
from sample_models import problems
from tests.cli_runner import invoke
from tests.source_files import ROOT

SAMPLE = ROOT / "sample_models" / "unet.problem.json"


def test_the_sample_is_what_the_script_prints() -> None:
    assert SAMPLE.read_text() == problems.text("unet", 4)


@pytest.mark.parametrize("family", problems.FAMILIES)
def test_every_family_is_a_problem(family: str, tmp_path: Path) -> None:
    (tmp_path / "p.json").write_text(problems.text(family, 5, 3))
    problem = read(tmp_path / "p.json").problem
    assert strict(problem, range(len(problem.op_names))).peak_bytes > 0
    assert problems.text(family, 5, 3) == problems.text(family, 5, 3) != problems.text(family, 5, 4)


def test_the_script_refuses_what_it_does_not_know() -> None:
    for arguments in ([], ["unet"], ["nonsense", "4"], ["unet", "x"], ["unet", "0"]):
        assert problems.main(arguments) == ExitCode.USAGE


def test_the_answer_is_judged_and_written(tmp_path: Path) -> None:
    written = [tmp_path / "one.json", tmp_path / "two.json"]
    for path in written:
        result = invoke("solve", str(SAMPLE), "--mem", "70%", "-o", str(path), "--json")
        assert result.exit_code == 0, result.stderr
    report, file = json.loads(result.stdout), json.loads(written[0].read_text())
    assert written[0].read_bytes() == written[1].read_bytes()
    problem = read(SAMPLE).problem
    number = {name: at for at, name in enumerate(problem.op_names)}
    steps = [number[name] for name, _, _ in file["steps"]]
    trace = strict(problem, steps)
    assert report["format"] == "remat.report.solve"
    assert file["format"] == "remat.solution"
    assert list(trace.live_bytes) == [live for _, _, live in file["steps"]]
    for found in (report, file):
        assert (found["peak_bytes"], found["time_ns"]) == (trace.peak_bytes, trace.time_ns)
        assert found["peak_bytes"] <= found["budget_bytes"]
        assert found["lower_bound_ns"] <= found["time_ns"]
    again = [(step["op"], step["recomputation"]) for step in report["steps"]]
    assert again == [(name, count) for name, count, _ in file["steps"]]
    assert report["recomputed_ops"] == sum(count > 0 for _, count in again) > 0


def test_a_report_for_people() -> None:
    result = invoke("solve", str(SAMPLE), "--mem", "100%", "--solver", "keep-all")
    assert result.exit_code == 0
    assert "optimal, found by keep all" in result.stdout


def test_2_a_solver_that_is_none() -> None:
    result = invoke("solve", str(SAMPLE), "--mem", "70%", "--solver", "gurobi")
    assert result.exit_code == ExitCode.USAGE
    assert "R263" in result.stderr
    assert all(name in result.stderr for name in names())


def test_2_no_budget_and_outputs_in_the_way(tmp_path: Path) -> None:
    result = invoke("solve", str(SAMPLE))
    assert (result.exit_code, "R264" in result.stderr) == (ExitCode.USAGE, True)
    there = tmp_path / "there.json"
    there.write_text("mine")
    result = invoke("solve", str(SAMPLE), "--mem", "90%", "-o", str(there))
    assert (result.exit_code, "R204" in result.stderr) == (ExitCode.USAGE, True)
    assert there.read_text() == "mine"
    forced = invoke("solve", str(SAMPLE), "--mem", "90%", "-o", str(there), "--force")
    assert forced.exit_code == 0
    assert json.loads(there.read_text())["solver"] == "auto"


def test_3_what_no_schedule_keeps() -> None:
    result = invoke("solve", str(SAMPLE), "--mem", "5%")
    assert result.exit_code == ExitCode.INFEASIBLE
    assert "R303" in result.stderr
    fix = result.stderr.split("use --mem ")[1].split()[0]
    assert invoke("solve", str(SAMPLE), "--mem", fix).exit_code == 0


def test_4_what_a_solver_does_not_find() -> None:
    result = invoke("solve", str(SAMPLE), "--mem", "70%", "--solver", "keep-all")
    assert (result.exit_code, "R404" in result.stderr) == (ExitCode.NO_ANSWER, True)


def test_it_needs_no_runtime_and_no_onnx() -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = sys.modules['onnx'] = None\n"
        f"sys.argv[1:] = ['solve', {str(SAMPLE)!r}, '--mem', '90%']\n"
        "from remat.cli.main import main; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert finished.returncode == 0, finished.stderr

"""One test for each exit code, and one clear error for each kind of bad call."""

import errno
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from remat.errors import (
    BadModel,
    CheckFailed,
    ExitCode,
    Infeasible,
    InternalError,
    NoAnswer,
    UsageError,
)
from tests.cli_runner import invoke
from tests.fake_pipeline import Calls, Fake

Process = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def wrong(monkeypatch: pytest.MonkeyPatch) -> Callable[[BaseException], None]:
    """Make every verb of the pipeline raise."""

    def install(error: BaseException) -> None:
        monkeypatch.setitem(sys.modules, "remat.pipeline", Fake([], error))

    return install


@pytest.mark.usefixtures("fake")
def test_0_done() -> None:
    assert invoke("verify", "m.onnx", "good.onnx").exit_code == ExitCode.DONE


@pytest.mark.usefixtures("fake")
def test_1_verify_fails_after_its_report() -> None:
    result = invoke("verify", "m.onnx", "bad.onnx", "--json")
    assert result.exit_code == ExitCode.CHECK_FAILED
    assert '"failures"' in result.stdout
    assert result.stderr == "error[R100]: output 'w' differs, and 1 more\n  --> bad.onnx\n"


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (CheckFailed("R1", "x"), 1),
        (UsageError("R2", "x"), 2),
        (Infeasible("R3", "x"), 3),
        (NoAnswer("R4", "x"), 4),
        (BadModel("R5", "x"), 5),
        (InternalError("R9", "x"), 70),
    ],
)
def test_every_error_has_its_code_and_one_clear_text(
    error: BaseException, code: int, wrong: Callable[[BaseException], None]
) -> None:
    wrong(error)
    result = invoke("optimize", "m.onnx", "--mem", "60%")
    assert result.exit_code == code
    assert re.fullmatch(r"error\[R\d\]: x\n", result.stderr)
    assert result.stdout == ""


def test_70_a_bug_is_one_line_and_says_how_to_see_more(
    wrong: Callable[[BaseException], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    wrong(RuntimeError("two\nlines"))
    result = invoke("run", "m.onnx")
    assert result.exit_code == ExitCode.INTERNAL
    assert result.stderr.startswith("error[R900]: internal error: RuntimeError: two lines\n")
    assert "REMAT_TRACEBACK=1" in result.stderr
    assert "Traceback" not in result.stderr
    for arguments in (["-v", "run", "m.onnx"], ["run", "m.onnx", "-v"]):
        assert "Traceback" in invoke(*arguments).stderr
    monkeypatch.setenv("REMAT_TRACEBACK", "1")
    assert "Traceback" in invoke("run", "m.onnx").stderr


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (OSError(errno.ENOSPC, "No space left on device", "o.onnx"), "R214"),
        (MemoryError("9 TiB"), "R215"),
    ],
)
def test_2_a_system_that_has_no_room_is_no_bug(
    error: BaseException, text: str, wrong: Callable[[BaseException], None]
) -> None:
    wrong(error)
    result = invoke("optimize", "m.onnx", "--mem", "60%")
    assert result.exit_code == ExitCode.USAGE
    assert text in result.stderr
    assert ("o.onnx" in result.stderr) == (text == "R214")
    assert "Traceback" not in result.stderr


def test_130_interrupted_is_one_line(wrong: Callable[[BaseException], None]) -> None:
    wrong(KeyboardInterrupt())
    result = invoke("optimize", "m.onnx", "--mem", "60%")
    assert (result.exit_code, result.stderr) == (130, "interrupted\n")


@pytest.mark.parametrize(
    "arguments",
    [
        [],
        ["optimise"],
        ["optimize"],
        ["optimize", "m.onnx"],
        ["optimize", "m.onnx", "--mem"],
        ["optimize", "m.onnx", "--mem", "lots"],
        ["optimize", "m.onnx", "--mem", "0%"],
        ["optimize", "m.onnx", "--mem", "60%", "--time-limit", "soon"],
        ["optimize", "m.onnx", "--mem", "60%", "--seed", "-1"],
        ["optimize", "m.onnx", "--mem", "60%", "--repeats", "0"],
        ["optimize", "m.onnx", "--mem", "60%", "--bogus"],
        ["inspect", "m.onnx", "--dim", "batch"],
        ["inspect", "m.onnx", "--dim", "=8"],
        ["inspect", "m.onnx", "--dim", "batch=0"],
        ["inspect", "m.onnx", "--dim", "batch=-8"],
        ["inspect", "m.onnx", "--dim", "batch=\u00b2"],
        ["inspect", "m.onnx", "--dim", "batch=8", "--dim", "batch=9"],
        ["inspect", "m.onnx", "--threads", "many"],
        ["inspect", "m.onnx", "--threads", "99999"],
        ["verify", "m.onnx"],
        ["verify", "m.onnx", "o.onnx", "--rtol", "nan"],
        ["verify", "m.onnx", "o.onnx", "--atol", "-1"],
        ["run", "m.onnx", "--repeat", "0"],
    ],
)
def test_2_a_wrong_call_never_reaches_the_pipeline(arguments: list[str], fake: Calls) -> None:
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.USAGE
    assert result.stdout == ""
    assert "Traceback" not in result.stderr
    assert "error" in result.stderr.lower() or "Usage" in result.stderr
    assert fake == []


@pytest.mark.parametrize(
    "arguments",
    [
        ["inspect", "m.onnx"],
        ["profile", "m.onnx"],
        ["optimize", "m.onnx", "--mem", "60%"],
        ["verify", "m.onnx", "o.onnx"],
        ["run", "m.onnx"],
    ],
)
def test_2_without_onnx_runtime_every_verb_says_what_to_install(
    arguments: list[str], root: Path
) -> None:
    code = (
        "import sys; sys.modules['onnxruntime'] = None\n"
        f"sys.argv[1:] = {arguments}\n"
        "from remat.cli.main import main; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert finished.returncode == ExitCode.USAGE
    assert finished.stderr.startswith("error[R200]: ONNX Runtime is not installed\n")
    assert "pip install 'remat[cpu]'" in finished.stderr


def test_2_a_removed_onnx_runtime_is_not_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "onnxruntime" / "capi").mkdir(parents=True)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    monkeypatch.delitem(sys.modules, "onnxruntime", raising=False)
    assert "R200" in invoke("inspect", "m.onnx").stderr


@pytest.mark.parametrize(
    ("arguments", "fact"),
    [
        (["nix"], "no such command 'nix'"),
        (["--nix"], "no such option '--nix'"),
        (["optimize"], "missing argument 'MODEL'"),
        (["optimize", "m.onnx"], "missing option '--mem'"),
        (["run", "m.onnx", "--repeat", "0"], "0 is not in the range x>=1"),
    ],
)
def test_2_a_command_line_that_cannot_be_read_is_one_line_with_a_code(
    arguments: list[str], fact: str
) -> None:
    result = invoke(*arguments)
    assert result.exit_code == ExitCode.USAGE
    error, advice = result.stderr.splitlines()
    assert error.startswith("error[R217]: ")
    assert error.endswith(fact)
    assert re.fullmatch(r"  help: see remat( \w+)? --help", advice)

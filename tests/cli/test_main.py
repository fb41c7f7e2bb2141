"""The command line itself: help, start-up, verbs by file, and what reaches stdout."""

import importlib
import inspect
import json
import os
import pkgutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import click
import pytest

import remat
import remat.cli
from remat.cli.main import group
from remat.options import SEARCH_SECONDS
from tests import fake_pipeline, result_samples
from tests.cli_runner import invoke

Process = Callable[..., subprocess.CompletedProcess[str]]
# Verbs of models are functions of `remat.pipeline`; `solve` needs neither model nor runtime.
MODEL_VERBS = ["inspect", "optimize", "profile", "run", "verify"]
VERBS = sorted([*MODEL_VERBS, "solve"])
HELP_LIMIT_S = 0.3


def _command(verb: str) -> click.Command:
    command = group.get_command(click.Context(group), verb)
    assert command is not None
    return command


def test_a_verb_is_a_file() -> None:
    assert group.list_commands(click.Context(group)) == VERBS
    files = {module.name for module in pkgutil.iter_modules(remat.cli.__path__)}
    assert files - {"main", "options", "paths", "progress"} == set(VERBS)


@pytest.mark.parametrize("verb", VERBS)
def test_every_option_is_explained(verb: str) -> None:
    command = _command(verb)
    assert command.name == verb
    options = [option for option in command.params if isinstance(option, click.Option)]
    assert [option.name for option in options if not option.help] == []
    assert not command.get_short_help_str(limit=52).endswith("...")


def test_version(remat_process: Process) -> None:
    assert remat_process("--version").stdout == f"remat {remat.__version__}\n"


def test_help_is_there_at_once(remat_process: Process) -> None:
    seconds = []
    for _ in range(5):
        # Processor time: what other tests do meanwhile is not ours.
        before = os.times()
        assert remat_process("--help").returncode == 0
        after = os.times()
        spent = after.children_user - before.children_user
        seconds.append(spent + after.children_system - before.children_system)
    assert min(seconds) < HELP_LIMIT_S


def test_help_of_every_verb_imports_nothing_heavy() -> None:
    heavy = ["numpy", "onnx", "onnx_ir", "onnxruntime", "numba", "highspy", "networkx"]
    code = (
        "import sys; from remat.cli.main import group\n"
        f"for verb in {VERBS}: group.main([verb, '--help'], standalone_mode=False)\n"
        f"assert not set({heavy}) & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)


@pytest.mark.parametrize(
    ("arguments", "document"),
    [
        (["inspect", "m.onnx"], "inspect"),
        (["profile", "m.onnx"], "profile"),
        (["optimize", "m.onnx", "--mem", "60%"], "optimize"),
        (["verify", "m.onnx", "o.onnx"], "verify"),
        (["run", "m.onnx"], "run"),
    ],
)
def test_json_is_the_only_thing_on_stdout(
    arguments: list[str], document: str, fake: fake_pipeline.Calls
) -> None:
    result = invoke(*arguments, "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["format"] == f"remat.report.{document}"
    assert result.stderr == ""
    text = invoke(*arguments)
    assert text.exit_code == 0
    assert not text.stdout.startswith("{")
    assert [verb for verb, _ in fake] == [document, document]


def test_profile_as_csv(fake: fake_pipeline.Calls) -> None:
    lines = invoke("profile", "m.onnx", "--csv").stdout.splitlines()
    assert lines[0].startswith("name,kind,time_ns")
    assert len(lines) == 1 + len(result_samples.PROFILE.ops)
    assert len(fake) == 1


def test_options_reach_optimize(fake: fake_pipeline.Calls) -> None:
    result = invoke(
        *["optimize", "m.onnx", "--mem", "1.5GiB", "-o", "out.onnx", "--schedule", "s.json"],
        *["--costs", "c.json", "--dim", "batch=8", "--dim", "n=3", "--inputs", "x.npz"],
        *["--threads", "2", "--portable", "--pin", "--time-limit", "2m", "--seed", "7"],
        *["--repeats", "9", "--check", "--no-verify", "--force", "-q"],
    )
    assert result.exit_code == 0, result.stderr
    [(_, call)] = fake
    options = call["options"]
    assert call["model"] == Path("m.onnx")
    assert (options.mem, options.output, options.schedule) == (
        "1.5GiB",
        Path("out.onnx"),
        Path("s.json"),
    )
    assert (options.costs, options.time_limit_s) == (Path("c.json"), 120.0)
    assert (options.pin, options.verify, options.check, options.force) == (True, False, True, True)
    model = options.model
    assert (model.dims, model.inputs) == ({"batch": 8, "n": 3}, Path("x.npz"))
    assert (model.threads, model.repeats, model.portable, model.seed) == (2, 9, True, 7)


def test_defaults_of_optimize_are_those_of_its_options(fake: fake_pipeline.Calls) -> None:
    invoke("optimize", "m.onnx", "--mem", "60%")
    [(_, call)] = fake
    assert call["options"].verify
    assert call["options"].time_limit_s == SEARCH_SECONDS
    assert call["options"].model.repeats == 5


def test_options_reach_the_other_verbs(fake: fake_pipeline.Calls) -> None:
    invoke("inspect", "m.onnx", "--top", "3", "--portable")
    invoke("profile", "m.onnx", "-o", "c.json", "--repeats", "2", "--force")
    invoke("verify", "m.onnx", "o.onnx", "--mem", "4GB", "--rtol", "1e-3", "--atol", "0.5")
    invoke("verify", "m.onnx", "o.onnx", "--repeats", "4", "--enforce")
    invoke("run", "m.onnx", "--repeat", "6", "--outputs", "y.npz", "--dim", "n=2")
    inspected, profiled, verified, enforced, ran = [call for _, call in fake]
    assert (inspected["top"], inspected["options"].portable) == (3, True)
    assert (profiled["output"], profiled["force"]) == (Path("c.json"), True)
    assert profiled["options"].repeats == 2
    judged = verified["options"]
    assert (judged.mem, judged.rtol, judged.atol, judged.repeats) == ("4GB", 1e-3, 0.5, 3)
    assert (enforced["options"].repeats, enforced["options"].enforce) == (4, True)
    assert (ran["repeat"], ran["outputs"], ran["options"].dims) == (6, Path("y.npz"), {"n": 2})


def test_the_pipeline_is_called_as_it_is_defined() -> None:
    pipeline = importlib.import_module("remat.pipeline")
    for verb in MODEL_VERBS:
        wanted = inspect.signature(getattr(pipeline, verb)).parameters
        faked = inspect.signature(getattr(fake_pipeline.Fake, verb)).parameters
        named = [(name, item.kind) for name, item in faked.items() if name != "self"]
        assert named == [(name, item.kind) for name, item in wanted.items()]


def test_ctrl_c_in_a_process_of_its_own_is_one_line(root: Path) -> None:
    code = (
        "import os, signal, sys; from tests import fake_pipeline; from remat.cli.main import main\n"
        "class Slow(fake_pipeline.Fake):\n"
        "    def _note(self, verb, **arguments): os.kill(os.getpid(), signal.SIGINT)\n"
        "sys.modules['remat.pipeline'] = Slow([])\n"
        "sys.argv[1:] = ['optimize', 'm.onnx', '--mem', '60%']; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, check=False
    )
    assert (finished.returncode, finished.stdout, finished.stderr) == (130, "", "interrupted\n")


@pytest.mark.parametrize(
    ("seconds", "number", "code", "text"),
    [
        (1.5, signal.SIGTERM, 143, "terminated\n"),
        (4.0, signal.SIGTERM, 143, "terminated\n"),
        (2.0, signal.SIGHUP, 129, "hung up\n"),
    ],
)
def test_143_129_a_process_that_is_told_to_end_leaves_nothing_behind(
    seconds: float, number: int, code: int, text: str, models: Path, tmp_path: Path, root: Path
) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    command = [sys.executable, "-m", "remat.cli.main", "optimize", str(models / "unet_train.onnx")]
    process = subprocess.Popen(
        [*command, "--mem", "60%", "-o", str(folder / "o.onnx")],
        env={**os.environ, "REMAT_CACHE_DIR": str(tmp_path / "cache"), "PYTHONPATH": str(root)},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    deadline = time.monotonic() + 60
    while not list(folder.iterdir()) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert list(folder.iterdir())
    time.sleep(seconds)
    process.send_signal(number)
    assert process.communicate(timeout=60) == ("", text)
    assert process.returncode == code
    assert list(folder.iterdir()) == []


def test_a_reader_that_leaves_is_no_error(root: Path) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    code = (
        "import sys; from tests import fake_pipeline; from remat.cli.main import main\n"
        "sys.modules['remat.pipeline'] = fake_pipeline.Fake([])\n"
        "sys.argv[1:] = ['inspect', 'm.onnx']; main()"
    )
    finished = subprocess.run(
        [sys.executable, "-c", code],
        cwd=root,
        stdout=writing,
        stderr=subprocess.PIPE,
        text=True,
        check=False,
    )
    os.close(writing)
    assert (finished.returncode, finished.stderr) == (141, "")

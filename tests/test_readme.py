"""What the README tells people to type works, and its tables say what the code says."""

import re
import shlex
import subprocess
from collections.abc import Callable
from pathlib import Path

import click

from remat.cli.main import HUNG_UP, INTERRUPTED, PIPE_CLOSED, TERMINATED, group
from remat.errors import ExitCode
from tests.cli_runner import invoke
from tests.source_files import ROOT

README = (ROOT / "README.md").read_text(encoding="utf-8")
CI = (ROOT / ".ci" / "run").read_text(encoding="utf-8")
Process = Callable[..., subprocess.CompletedProcess[str]]


def _commands() -> list[list[str]]:
    """Every command of every shell block, in order; `a && b` are two."""
    blocks = re.findall(r"^```sh\n(.*?)^```", README, re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    return [shlex.split(command) for line in lines for command in line.split(" && ")]


def _section(title: str) -> str:
    return README.split(f"\n## {title}\n")[1].split("\n## ")[0]


def test_its_commands_run_in_order(models: Path, remat_process: Process) -> None:
    commands = [command for command in _commands() if command[0] == "remat"]
    assert [command[1] for command in commands] == [
        *["optimize", "inspect", "profile", "optimize", "verify", "run", "solve"]
    ]
    for _, *arguments in commands:
        finished = remat_process(*arguments)
        assert finished.returncode == 0, (arguments, finished.stderr)
        assert finished.stdout
    assert (models.parent / "costs.json").exists()
    assert (models.parent / "small.json").exists()
    assert (models.parent / "unet.solution.json").exists()


def test_ci_types_what_it_tells_developers_to_type() -> None:
    own = CI.splitlines()
    [_, _, install, test, *_] = [" ".join(map(_quoted, command)) for command in _commands()]
    assert install.startswith("pip install -e ")
    assert own.index(install) < own.index(test)


def _quoted(word: str) -> str:
    return f"'{word}'" if "[" in word else word


def test_exit_codes_are_all_listed() -> None:
    listed = {
        int(code) for code in re.findall(r"^\| (\d+) \|", _section("Exit codes"), re.MULTILINE)
    }
    assert listed == {*ExitCode, HUNG_UP, INTERRUPTED, PIPE_CLOSED, TERMINATED}


def test_options_it_names_exist() -> None:
    context = click.Context(group)
    known = {"--help", "--force"}
    for verb in group.list_commands(context):
        command = group.get_command(context, verb)
        assert command is not None
        known.update(name for option in command.params for name in option.opts)
        known.update(name for option in command.params for name in option.secondary_opts)
    assert set(re.findall(r"(?<![\w-])--[a-z][a-z-]+", README)) <= known


def test_files_it_links_to_exist() -> None:
    for text in (README, (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")):
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (ROOT / target).exists(), target


def test_the_error_it_shows_is_the_error() -> None:
    shown = re.search(r"^```\n(error\[.*?)^```", README, re.DOTALL | re.MULTILINE)
    assert shown is not None
    assert invoke("optimize", "m.onnx", "--mem", "4G").stderr == shown[1]

"""Fixtures for tests that need the sample models or the command line as users have it."""

import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples every time, however slow the machine.
settings.register_profile("remat", deadline=None, derandomize=True)
settings.load_profile("remat")

ROOT = Path(__file__).resolve().parent.parent
Finished = subprocess.CompletedProcess[str]


@pytest.fixture
def root() -> Path:
    """The checkout."""
    return ROOT


@pytest.fixture
def models(tmp_path: Path) -> Path:
    """A copy of the sample models that a test may write into."""
    return Path(shutil.copytree(ROOT / "sample_models", tmp_path / "sample_models"))


@pytest.fixture
def remat_process(tmp_path: Path) -> Callable[..., Finished]:
    """`remat` in a process of its own, run in the test's folder: `remat_process("run", "m")`."""

    def run(*arguments: str, **variables: str) -> Finished:
        # The checkout need not be installed.
        environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
        return subprocess.run(
            [sys.executable, "-m", "remat.cli.main", *arguments],
            cwd=tmp_path,
            env=environment,
            capture_output=True,
            text=True,
            check=False,
        )

    return run

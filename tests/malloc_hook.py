"""What a model allocates, counted call by call: a measure that shares nothing with the product's.

`malloc_hook.c` stands before the C allocator of a fresh process (LD_PRELOAD), which opens a
session and runs it. The product measures resident pages instead (`remat.measure`).
"""

import ctypes
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from remat import feeds
from remat.onnx_io import read
from remat.profiles.session import Mode, open_session, session_options
from remat.session_text import ENVIRONMENT

ROOT = Path(__file__).resolve().parent.parent


@dataclass(frozen=True, slots=True)
class Count:
    """`held_bytes` are what the loaded and warmed session keeps, `run_bytes` what a run adds to
    that at its peak."""

    held_bytes: int
    run_bytes: int

    @property
    def peak_bytes(self) -> int:
        """What a memory limit is compared with."""
        return self.held_bytes + self.run_bytes


def compiler() -> str | None:
    """The C compiler of this machine, if it has one."""
    return shutil.which("cc")


def compile_hook(folder: Path) -> Path:
    """The shared library of `malloc_hook.c`, made in `folder`. Needs `compiler()`."""
    library = folder / "malloc_hook.so"
    # Without -fno-builtin the compiler may turn a call of ours into another allocation function.
    flags = ["-std=c11", "-O2", "-Wall", "-Werror", "-fno-builtin", "-shared", "-fPIC"]
    source = Path(__file__).with_suffix(".c")
    subprocess.run([str(compiler()), *flags, str(source), "-o", str(library)], check=True)
    return library


def count(hook: Path, model: Path, mode: Mode) -> Count:
    """Open `model` in `mode` on one thread and run it on made-up inputs, in a fresh process."""
    name, _, value = ENVIRONMENT.partition("=")
    # Blocks take whole pages, as where the limit was planned for, so counts can be compared.
    variables = {name: value, "LD_PRELOAD": str(hook), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-m", "tests.malloc_hook", str(model), mode]
    printed = subprocess.run(
        command, env={**os.environ, **variables}, check=True, capture_output=True, text=True
    ).stdout
    held, run = (int(word) for word in printed.split())
    return Count(held, run)


def _count_here(model: Path, mode: Mode) -> Count:
    """The same in this process, in which the hook must be loaded."""
    hook = ctypes.CDLL(None)
    for name in ("malloc_hook_live", "malloc_hook_peak"):
        getattr(hook, name).restype = ctypes.c_longlong
    arrays = feeds.make(read(model), 0)
    options = session_options(mode, 1)
    before = hook.malloc_hook_live()
    session = open_session(model, options)
    # The first run fills what kernels and the arena keep.
    session.run(None, arrays)
    idle = hook.malloc_hook_live()
    hook.malloc_hook_reset()
    session.run(None, arrays)
    return Count(idle - before, hook.malloc_hook_peak() - idle)


if __name__ == "__main__":
    counted = _count_here(Path(sys.argv[1]), Mode(sys.argv[2]))
    print(counted.held_bytes, counted.run_bytes)

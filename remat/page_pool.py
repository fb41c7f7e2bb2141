"""Memory that is kept between runs and yet never more than the peak: a pool of pages.

`page_pool.c`, built with the package where it can be (Linux and a C compiler), says how it works.
Without an arena every large tensor is mapped, cleared and unmapped anew, which took up to a third
of a run; an arena keeps what it once had, 1.4 to 4 times the peak. Sessions that use the pool
cost neither. It is shared by all of them in a process, and keeps its pages until `trim`.
"""

import ctypes
import importlib.machinery
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

# The name that pyproject.toml builds it under, beside this file.
NATIVE = "_page_pool"


@dataclass(frozen=True, slots=True)
class Statistics:
    """`held_bytes` are all pages of the pool, `free_bytes` those that no tensor uses now;
    `moved_bytes` were gathered under new addresses so far. Blocks below 64 KiB are not in it."""

    held_bytes: int
    free_bytes: int
    moved_bytes: int
    free_runs: int


def library() -> Path | None:
    """The custom op library that holds the pool, or None where it was not built."""
    folder = Path(__file__).resolve().parent
    names = (folder / f"{NATIVE}{suffix}" for suffix in importlib.machinery.EXTENSION_SUFFIXES)
    return next((path for path in names if path.is_file()), None)


def use(options: Any) -> bool:
    """Make a session with these onnxruntime.SessionOptions allocate from the pool, if there is
    one; whether there is."""
    path = library()
    if path is None:
        return False
    options.register_custom_ops_library(str(path))
    options.add_session_config_entry("session.use_env_allocators", "1")
    return True


def statistics() -> Statistics:
    """What the pool of this process holds; zeros where there is none."""
    numbers = (ctypes.c_size_t * 4)()
    if (native := _native()) is not None:
        native.remat_page_pool_statistics(numbers)
    return Statistics(*numbers)


def allow(more_bytes: int) -> None:
    """From now on the pool may hold so much more than the peak of what is in use (0 at first): it
    then moves fewer pages. There is one pool in a process, so the last allowance counts."""
    if (native := _native()) is not None:
        native.remat_page_pool_allow(ctypes.c_size_t(more_bytes))


def trim() -> None:
    """Give the pages that no tensor uses back to the system; the next run maps them anew."""
    if (native := _native()) is not None:
        native.remat_page_pool_trim()


@cache
def _native() -> ctypes.CDLL | None:
    path = library()
    return None if path is None else ctypes.CDLL(str(path))

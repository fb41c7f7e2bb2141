"""Open an optimized model the way its schedule needs: `remat.load(path)`."""

import ctypes
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from remat import page_pool
from remat.child import MMAP_THRESHOLD_BYTES
from remat.errors import UsageError
from remat.lower import notes
from remat.onnx_io import read
from remat.options import checked_threads
from remat.passes.offline import cpu_family
from remat.profiles.session import Mode, open_pooled, session_options, thread_count

# glibc's M_MMAP_THRESHOLD and M_TRIM_THRESHOLD.
_MMAP_THRESHOLD, _TRIM_THRESHOLD = -3, -1


def load(path: str | Path, *, threads: int | None = None) -> Any:
    """An onnxruntime.InferenceSession that keeps the schedule and so the memory limit.

    `threads` overrides the intra-op threads that the model was planned for. Tensors live in the
    page pool of this process (`remat.page_pool`). Where that was not built, the process's mmap
    threshold is fixed (glibc) instead, which keeps the limit too, at the price of page faults:
    the usual allocator keeps freed memory, up to three times the peak. A model that remat did
    not write gets a plain session. Raises UsageError R240 where the model was specialised for
    another CPU family, R216 for more threads than can be of use.
    """
    path = Path(path)
    written = notes(read(path))
    check_family(written, path)
    count = recorded_threads(written, 0) if threads is None else checked_threads(threads)
    options = session_options(recorded_mode(written), count)
    if written and page_pool.library() is None:
        _fix_malloc()
    return open_pooled(path, options)


def _fix_malloc() -> None:
    """Where the C library is not glibc there is nothing to fix this way."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "mallopt"):
        libc.mallopt(_MMAP_THRESHOLD, MMAP_THRESHOLD_BYTES)
        libc.mallopt(_TRIM_THRESHOLD, MMAP_THRESHOLD_BYTES)


def recorded_mode(written: Mapping[str, str]) -> Mode:
    """How a model wants to be run, by its own notes: strict unless it is pinned."""
    if not written:
        return Mode.DEFAULT
    if written.get("mode") != "pinned":
        return Mode.STRICT
    level = json.loads(written["session_options"])["graph_optimization_level"]
    return Mode.UNOPTIMIZED if level == "ORT_DISABLE_ALL" else Mode.PLAIN


def recorded_threads(written: Mapping[str, str], threads: int) -> int:
    """`threads`, or where it is 0 what the model was planned for, or one per core."""
    settings = json.loads(written.get("session_options", "{}"))
    return thread_count(threads or int(settings.get("intra_op_threads", 0)))


def check_family(written: Mapping[str, str], path: Path) -> None:
    """Refuse a model whose kernels suit another CPU."""
    family = written.get("cpu_family", "")
    if family and family != cpu_family():
        raise UsageError(
            "R240",
            f"the model is specialised for {family} CPUs, this is {cpu_family()}",
            place=str(path),
            fix="optimize it again here, or once for all with --portable",
        )

"""What one model takes, measured in a process of its own.

Memory is measured with a fixed mmap threshold, time in the page pool (`remat.child`,
`remat.page_pool`).
`held_bytes` is the anonymous memory that the
loaded and warmed session keeps, plus the pages of its weights file that are mapped; `run_bytes`
is the high-water mark of a run above that. Code pages of the runtime, which every process
shares, and the caller's inputs, which exist before, are in neither. Linux only: the high-water
mark is reset through /proc/self/clear_refs.
"""

import ctypes
import gc
import resource
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from remat import feeds
from remat.child import Payload
from remat.errors import BadModel
from remat.passes.offline import first_line, runtime_errors
from remat.profiles.observe import timed_runs
from remat.profiles.session import Mode, open_pooled, open_session, session_options

# A run under RLIMIT_DATA needs this much more than what it holds: pages, heaps of threads.
ENFORCE_SLACK_BYTES = 1 << 20
# Runs repeat their allocations, but the system's accounting wavers by some pages: the highest of
# a few runs wavers less. With the default arena the second is the first with a memory pattern.
LEAST_MEMORY_RUNS = 2
MOST_MEMORY_RUNS = 8
MEMORY_RUNS_SECONDS = 1.0


def measure_memory(payload: Payload) -> Payload:
    """Run payload["model"] in payload["mode"] on payload["feeds"]: what it holds and takes.

    `outputs` (a path or "") receives the first run's outputs. `enforce_bytes`, where not 0, is
    set as a real limit on a further run; `survived` says whether that run came through.
    Raises BadModel R508 where the model does not load or run.
    """
    return _guarded(_memory, payload)


def measure_time(payload: Payload) -> Payload:
    """The nanoseconds of payload["repeats"] runs after a warm one, in order, as `run_ns`.

    Raises BadModel R508 where the model does not load or run.
    """
    return _guarded(_time, payload)


def _guarded(action: Callable[[Payload], Payload], payload: Payload) -> Payload:
    try:
        return action(payload)
    except runtime_errors() as error:
        fact = f"the model does not load or run: {first_line(error)}"
        raise BadModel("R508", fact, place=str(payload["model"])) from None


def _time(payload: Payload) -> Payload:
    arrays = feeds.load(Path(payload["feeds"]))
    options = session_options(Mode(payload["mode"]), payload["threads"])
    session = open_pooled(payload["model"], options)
    session.run(None, arrays)
    return {"run_ns": timed_runs(session, arrays, payload["repeats"])}


def _memory(payload: Payload) -> Payload:
    arrays = feeds.load(Path(payload["feeds"]))
    libc = ctypes.CDLL(None)
    options = session_options(Mode(payload["mode"]), payload["threads"])
    libc.malloc_trim(0)
    before, anonymous = _status("VmRSS"), _status("RssAnon")
    _reset_high_water()
    session = open_session(payload["model"], options)
    load_peak = _status("VmHWM") - before
    _warm(session, arrays, payload["outputs"])
    libc.malloc_trim(0)
    held = _status("RssAnon") - anonymous + _mapped_weights(Path(payload["model"]))
    result = {
        "held_bytes": held,
        "run_bytes": _highest_peak(session, arrays),
        "load_peak_bytes": load_peak,
    }
    if payload["enforce_bytes"]:
        result["survived"] = _survives(session, arrays, payload["enforce_bytes"] - held)
    return result


def _warm(session: Any, arrays: dict[str, feeds.Array], outputs: str) -> None:
    """One run that fills what kernels keep; its outputs are stored and dropped."""
    names = [output.name for output in session.get_outputs()]
    values = session.run(None, arrays)
    if outputs:
        feeds.save(dict(zip(names, values, strict=True)), Path(outputs))
    del values
    gc.collect()


def _highest_peak(session: Any, arrays: dict[str, feeds.Array]) -> int:
    begin, peaks = time.monotonic(), [_peak(session, arrays)]
    while len(peaks) < LEAST_MEMORY_RUNS or (
        len(peaks) < MOST_MEMORY_RUNS and time.monotonic() - begin < MEMORY_RUNS_SECONDS
    ):
        peaks.append(_peak(session, arrays))
    return max(peaks)


def _peak(session: Any, arrays: dict[str, feeds.Array]) -> int:
    """Bytes above the idle session at the peak of one run."""
    _reset_high_water()
    idle = _status("VmRSS")
    session.run(None, arrays)
    return _status("VmHWM") - idle


def _survives(session: Any, arrays: dict[str, feeds.Array], allowed_bytes: int) -> bool:
    """Whether a run comes through with `allowed_bytes` of data on top of the idle session."""
    limit = _status("VmData") + max(0, allowed_bytes) + ENFORCE_SLACK_BYTES
    _, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (limit, hard))
    died: tuple[type[BaseException], ...] = (*runtime_errors(), MemoryError)
    try:
        session.run(None, arrays)
    except died:
        return False
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))
    return True


def _status(key: str) -> int:
    """A field of /proc/self/status, in bytes."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(key + ":"):
            return int(line.split()[1]) * 1024
    raise BadModel("R509", f"this system does not report {key}; measuring needs Linux")


def _reset_high_water() -> None:
    Path("/proc/self/clear_refs").write_text("5")


def _mapped_weights(model: Path) -> int:
    """Resident pages of files in the model's folder: weights that the runtime mapped."""
    folder, total, counting = str(model.resolve().parent), 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        fields = line.split(maxsplit=5)
        if "-" in fields[0] and not fields[0].endswith(":"):
            counting = len(fields) == 6 and fields[5].startswith(folder + "/")
        elif counting and fields[0] == "Rss:":
            total += int(fields[1]) * 1024
    return total

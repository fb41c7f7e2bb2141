"""One model, run in strict mode, as ONNX Runtime itself reports it.

Three sessions: the runtime's node memory statistics (new output bytes and kernel workspace per
node), its profiler (kernel times, true shapes), and a plain timed one that the kernel times are
held against. The functions here run in a fresh process (`remat.child`).
"""

import csv
import json
import re
import statistics
import tempfile
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import onnx

from remat import feeds
from remat.child import Payload
from remat.errors import BadModel
from remat.onnx_io import write
from remat.passes.offline import first_line, runtime_errors
from remat.profiles.session import Mode, open_pooled, open_session, session_options

# Node names of the observed copy: the reports are keyed by name, and names repeat or are missing.
NAME = "remat_op_{}"
# Repeating a slow model tells little more: stop after these seconds once two runs are in.
ENOUGH_SECONDS = 10.0
LEAST_REPEATS = 2


def observe(payload: Payload) -> Payload:
    """Run payload["model"] on payload["feeds"] with payload["threads"] and payload["repeats"].

    The result has `shapes` (one list per node of [dtype, shape] per output), `fresh_bytes` and
    `workspace_bytes` per node, `kernel_ns` (per node, one entry a run), `profiled_ns` and
    `plain_ns` per run. With 0 repeats there are only the shapes.
    Raises BadModel R506 where the model does not run.
    """
    arrays = feeds.load(Path(payload["feeds"]))
    model = Path(payload["model"])
    copy, count = _renamed(model)
    result: Payload = {}
    try:
        shapes, profiled = _profile(copy, arrays, payload, count)
        result |= {"shapes": shapes, **profiled}
        if payload["repeats"]:
            fresh, workspace = memory_statistics(copy, arrays, payload["threads"], count)
            result |= {"fresh_bytes": fresh, "workspace_bytes": workspace}
            result["plain_ns"] = _plain(copy, arrays, payload)
    except runtime_errors() as error:
        raise BadModel(
            "R506",
            f"the model does not run: {_with_own_names(first_line(error), model)}",
            place=str(payload["place"]),
            fix="if that depends on its inputs, give them: --inputs x.npz (an array each), --dim",
        ) from None
    finally:
        copy.unlink(missing_ok=True)
    return result


def _with_own_names(text: str, model: Path) -> str:
    nodes = onnx.load_model(str(model), load_external_data=False).graph.node
    return re.sub(NAME.format(r"(\d+)"), lambda found: nodes[int(found[1])].name or found[0], text)


def _renamed(model: Path) -> tuple[Path, int]:
    """A copy beside the model (so that its external data is found) with countable node names."""
    proto = onnx.load_model(str(model), load_external_data=False)
    for index, node in enumerate(proto.graph.node):
        node.name = NAME.format(index)
    copy = model.with_name("observed.onnx")
    write(proto, copy)
    return copy, len(proto.graph.node)


def memory_statistics(
    model: Path, arrays: dict[str, feeds.Array], threads: int, count: int
) -> tuple[list[int], list[int]]:
    """Newly allocated output bytes and kernel workspace bytes per node."""
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        report = Path(folder, "memory.csv")
        options = session_options(Mode.STRICT, threads)
        options.add_session_config_entry(
            "session.collect_node_memory_stats_to_file", str(report.resolve())
        )
        session = open_session(model, options)
        session.run(None, arrays)
        del session  # the report is complete when the session is gone
        rows = list(csv.DictReader(report.read_text().splitlines())) if report.exists() else []
    fresh, workspace = [0] * count, [0] * count
    pattern = re.compile(re.escape(NAME.format("")) + r"(\d+)_\d+$")
    for row in rows:
        if match := pattern.match(row["#name"]):
            fresh[int(match[1])] = int(row["total_dynamic_sizes"])
            workspace[int(match[1])] = int(row["total_temp_allocations"])
    return fresh, workspace


def _profile(
    model: Path, arrays: dict[str, feeds.Array], payload: Payload, count: int
) -> tuple[list[list[Any]], dict[str, Any]]:
    """Shapes by the runtime's profiler, and kernel times of every run but the first (cold) one."""
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        options = session_options(Mode.STRICT, payload["threads"])
        options.enable_profiling = True
        options.profile_file_prefix = str(Path(folder, "profile"))
        session = open_pooled(model, options)
        session.run(None, arrays)
        run_ns = timed_runs(session, arrays, payload["repeats"])
        events = json.loads(Path(session.end_profiling()).read_text())
    kernels = _kernel_events(events)
    shapes: list[list[Any]] = [[] for _ in range(count)]
    times: list[list[int]] = [[] for _ in range(count)]
    for index, found in kernels.items():
        shapes[index] = [
            [dtype, shape]
            for entry in found[0]["args"].get("output_type_shape", [])
            for dtype, shape in entry.items()
        ]
        times[index] = [event["dur"] * 1000 for event in found[1:]]
    return shapes, {"kernel_ns": times, "profiled_ns": run_ns}


def _kernel_events(events: list[dict[str, Any]]) -> dict[int, list[dict[str, Any]]]:
    pattern = re.compile(re.escape(NAME.format("")) + r"(\d+)_kernel_time$")
    kernels: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for event in events:
        if event.get("cat") == "Node" and (match := pattern.match(event["name"])):
            kernels[int(match[1])].append(event)
    return kernels


def _plain(model: Path, arrays: dict[str, feeds.Array], payload: Payload) -> list[int]:
    session = open_pooled(model, session_options(Mode.STRICT, payload["threads"]))
    # No warm run: two sessions have run in this process already, and the fastest run counts.
    return timed_runs(session, arrays, payload["repeats"])


def timed_runs(session: Any, arrays: dict[str, feeds.Array], repeats: int) -> list[int]:
    """Nanoseconds of each run; fewer than `repeats` where the model is slow."""
    runs: list[int] = []
    begin = time.perf_counter()
    while len(runs) < repeats:
        start = time.perf_counter_ns()
        session.run(None, arrays)
        runs.append(time.perf_counter_ns() - start)
        if len(runs) >= LEAST_REPEATS and time.perf_counter() - begin > ENOUGH_SECONDS:
            break
    return runs


def op_times(observed: Payload) -> tuple[list[int], list[int]]:
    """Time and spread of each node in nanoseconds.

    A node's time is its fastest kernel run plus the executor's overhead per node, scaled by one
    factor so that all of them add up to the fastest unprofiled run: a sum of minima would else
    fall short of any run that can happen. The spread is the slowest run minus the fastest.
    """
    kernels = observed["kernel_ns"]
    fastest = [min(runs, default=0) for runs in kernels]
    spread = [max(runs, default=0) - min(runs, default=0) for runs in kernels]
    gaps = [
        wall - sum(runs[index] for runs in kernels if index < len(runs))
        for index, wall in enumerate(observed["profiled_ns"])
    ]
    overhead = max(0, round(statistics.median(gaps) / max(1, len(kernels)))) if gaps else 0
    raw = [time_ns + overhead for time_ns in fastest]
    target = min(observed["plain_ns"], default=sum(raw))
    factor = target / max(1, sum(raw))
    return [max(1, round(time_ns * factor)) for time_ns in raw], spread

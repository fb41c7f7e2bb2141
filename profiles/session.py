"""ONNX Runtime sessions of the kinds that remat reasons about.

strict   The graph runs as written: no graph optimization, PRIORITY_BASED order (exactly the
         order of the file), no arena, no memory pattern, no reuse. Its peak is liveness.
plain    Any session with the arena and the memory pattern off: the order is the runtime's own
         and dead buffers are reused; predicted by `remat.simulate.with_reuse`.
unoptimized
         Plain with graph optimization off, for a pinned model that the optimizer would change.
default  What a caller gets who sets nothing but the thread count.

`settings` is the one place that says so; sessions, files and texts are made from it.
"""

import os
from collections.abc import Mapping
from dataclasses import replace
from enum import StrEnum
from pathlib import Path
from typing import Any

import onnxruntime as ort

from remat import page_pool
from remat.lower import PREFIX
from remat.schedule_file import SessionRecord

PROVIDER = "CPUExecutionProvider"


class Mode(StrEnum):
    """How a session is set up; see the module's docstring."""

    STRICT = "strict"
    PLAIN = "plain"
    UNOPTIMIZED = "unoptimized"
    DEFAULT = "default"


def thread_count(threads: int) -> int:
    """`threads`, or one per usable core where it is 0."""
    return threads or len(os.sched_getaffinity(0))


def settings(mode: Mode, threads: int) -> SessionRecord:
    """The session options of `mode`, by their names."""
    default = SessionRecord(
        graph_optimization_level="ORT_ENABLE_ALL",
        execution_order="DEFAULT",
        enable_cpu_mem_arena=True,
        enable_mem_pattern=True,
        enable_mem_reuse=True,
        intra_op_threads=thread_count(threads),
    )
    plain = replace(default, enable_cpu_mem_arena=False, enable_mem_pattern=False)
    unoptimized = replace(plain, graph_optimization_level="ORT_DISABLE_ALL")
    return {
        Mode.DEFAULT: default,
        Mode.PLAIN: plain,
        Mode.UNOPTIMIZED: unoptimized,
        Mode.STRICT: replace(unoptimized, execution_order="PRIORITY_BASED", enable_mem_reuse=False),
    }[mode]


def session_options(mode: Mode, threads: int) -> ort.SessionOptions:
    """The options of a session in `mode`; warnings of the runtime are not shown."""
    wanted, options = settings(mode, threads), ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = wanted.intra_op_threads
    options.enable_cpu_mem_arena = wanted.enable_cpu_mem_arena
    options.enable_mem_pattern = wanted.enable_mem_pattern
    options.graph_optimization_level = getattr(
        ort.GraphOptimizationLevel, wanted.graph_optimization_level
    )
    # Older runtimes lack what only strict mode sets.
    if mode is Mode.STRICT:
        options.execution_order = getattr(ort.ExecutionOrder, wanted.execution_order)
        options.enable_mem_reuse = wanted.enable_mem_reuse
    return options


def open_pooled(model: Path | str, options: ort.SessionOptions) -> Any:
    """`open_session` on the page pool where it was built (`remat.page_pool`), unless the options
    ask for the runtime's own arena."""
    if options.enable_cpu_mem_arena:
        return open_session(model, options)
    page_pool.use(options)
    session = open_session(model, options)
    page_pool.allow(left_over_bytes(session.get_modelmeta().custom_metadata_map))
    return session


def left_over_bytes(metadata: Mapping[str, str]) -> int:
    """Half of what a model's budget has beyond its predicted peak; the rest is for the error."""
    budget = metadata.get(f"{PREFIX}budget_bytes", "0")
    predicted = metadata.get(f"{PREFIX}predicted_peak_bytes", "0")
    if not (budget.isdecimal() and predicted.isdecimal()):
        return 0
    return max(0, int(budget) - int(predicted)) // 2


def open_session(model: Path | str, options: ort.SessionOptions) -> Any:
    """An InferenceSession on the CPU provider, by path so that weights are never copied here."""
    return ort.InferenceSession(str(model), options, providers=[PROVIDER])

"""ONNX Runtime sessions of the kinds that remat reasons about.

strict   The graph runs as written: no graph optimization, PRIORITY_BASED order (exactly the
         order of the file), no arena, no memory pattern, no reuse. Its peak is liveness.
plain    Any session with the arena and the memory pattern off: the order is the runtime's own
         and dead buffers are reused; predicted by `remat.simulate.with_reuse`.
default  What a caller gets who sets nothing but the thread count.
"""

import os
from enum import StrEnum
from pathlib import Path
from typing import Any

import onnxruntime as ort

PROVIDER = "CPUExecutionProvider"


class Mode(StrEnum):
    """How a session is set up; see the module's docstring."""

    STRICT = "strict"
    PLAIN = "plain"
    DEFAULT = "default"


def thread_count(threads: int) -> int:
    """`threads`, or one per usable core where it is 0."""
    return threads or len(os.sched_getaffinity(0))


def session_options(mode: Mode, threads: int) -> ort.SessionOptions:
    """The options of a session in `mode`; warnings of the runtime are not shown."""
    options = ort.SessionOptions()
    options.log_severity_level = 3
    options.intra_op_num_threads = thread_count(threads)
    if mode is not Mode.DEFAULT:
        options.enable_cpu_mem_arena = False
        options.enable_mem_pattern = False
    if mode is Mode.STRICT:
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.execution_order = ort.ExecutionOrder.PRIORITY_BASED
        options.enable_mem_reuse = False
    return options


def open_session(model: Path | str, options: ort.SessionOptions) -> Any:
    """An InferenceSession on the CPU provider, by path so that weights are never copied here."""
    return ort.InferenceSession(str(model), options, providers=[PROVIDER])

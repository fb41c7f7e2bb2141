"""What a caller asks of the pipeline; the command line fills these in."""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from remat.errors import UsageError

# What a search may take unless the caller says otherwise.
SEARCH_SECONDS = 45.0
# More threads than this for each core only take turns, and starting thousands takes minutes.
THREADS_PER_CORE = 4


def checked_threads(count: int) -> int:
    """`count` intra-op threads, 0 for one per core.

    Raises UsageError R216 for fewer than none, and for more than can be of use.
    """
    most = THREADS_PER_CORE * len(os.sched_getaffinity(0))
    if not 0 <= count <= most:
        fact = f"{count} threads are too {'many' if count > 0 else 'few'} for this machine"
        raise UsageError("R216", fact, fix=f"0 takes one per core; {most} are the most")
    return count


def _silent(_stage: str, _done: int, _total: int) -> None:
    """Progress of nobody's interest."""


@dataclass(frozen=True, slots=True)
class ModelOptions:
    """How a model is read and run.

    `dims` binds dynamic dimensions by name; `inputs` is an .npz with the graph inputs to run
    on (random ones are made otherwise); `threads` are intra-op threads, 0 for one per core.
    `portable` keeps the optimized graph free of what only this CPU family can run.
    `progress(stage, done, total)` is called now and then.
    """

    dims: Mapping[str, int] = field(default_factory=dict)
    inputs: Path | None = None
    threads: int = 0
    repeats: int = 5
    portable: bool = False
    seed: int = 0
    progress: Callable[[str, int, int], None] = _silent


@dataclass(frozen=True, slots=True)
class OptimizeOptions:
    """`mem` as typed ("4GB", "60%"); `time_limit_s` bounds the search for a schedule."""

    mem: str
    model: ModelOptions = field(default_factory=ModelOptions)
    output: Path | None = None
    schedule: Path | None = None
    costs: Path | None = None
    time_limit_s: float = SEARCH_SECONDS
    pin: bool = False
    verify: bool = True
    check: bool = False
    force: bool = False


@dataclass(frozen=True, slots=True)
class VerifyOptions:
    """`mem` empty: no budget is judged. Tolerances 0 ask for bitwise equality."""

    mem: str = ""
    model: ModelOptions = field(default_factory=ModelOptions)
    rtol: float = 0.0
    atol: float = 0.0
    repeats: int = 3
    enforce: bool = False


@dataclass(frozen=True, slots=True)
class SolveOptions:
    """`mem` empty: the budget that the problem's file names. `solver` is one by its name."""

    mem: str = ""
    solver: str = "auto"
    output: Path | None = None
    time_limit_s: float = SEARCH_SECONDS
    seed: int = 0
    force: bool = False
    progress: Callable[[str, int, int], None] = _silent

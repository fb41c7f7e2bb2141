"""Solvers by name: a file in this folder that defines `solve`; a new file is a new solver.

`auto` is remat's own. The others are formulations as they were published, to compare with: each
says which paper, section and equations it is, and where it differs. None is believed: what they
answer goes through `remat.scheduler.judged`.
"""

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import dataclass
from typing import cast

from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler.search import Progress


@dataclass(frozen=True, slots=True)
class Request:
    """What may be spent: `time_limit_s` None for no clock; `stop()` true to end at once."""

    seed: int
    time_limit_s: float | None
    stop: Callable[[], bool]
    on_progress: Progress


Solver = Callable[[Problem, Request], Solution]


def names() -> tuple[str, ...]:
    """Every solver, as it is written on the command line."""
    return tuple(sorted(one.name.replace("_", "-") for one in pkgutil.iter_modules(__path__)))


def find(name: str) -> Solver:
    """The solver of that name. Raises KeyError where there is none."""
    if name not in names():
        raise KeyError(name)
    module = importlib.import_module(f"{__name__}.{name.replace('-', '_')}")
    return cast(Solver, module.solve)

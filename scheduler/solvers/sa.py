"""Simulated annealing on the sequence alone, as FastSA does (Gagrani et al., NeurIPS 2023,
"Fast Simulated Annealing for Memory-Constrained Recomputation").

FastSA starts from the given order and moves occurrences of ops within a sequence that may hold
each several times, first with memory as a penalty, then for time. Ours has one objective with a
penalty that adapts, drops and recomputes at the step that is over the limit, and prunes what is
dead at each evaluation (`remat.scheduler.anneal`). No bound comes of it.
"""

import time
from collections.abc import Iterator

from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler.arrays import Arrays
from remat.scheduler.certify import chunk_iterations
from remat.scheduler.compiled import Int64
from remat.scheduler.judged import Claim, judged
from remat.scheduler.polish import Effort, polish
from remat.scheduler.solvers import Request
from remat.simulate import run_order

# Chunks from the given order, each from another seed, then as many from the best.
CHUNKS = 4


def solve(problem: Problem, request: Request) -> Solution:
    """The best of a few runs from the given order, and of runs from the best of these."""
    return judged(problem, _sequences(problem, request), Claim("sa"))


def _sequences(problem: Problem, request: Request) -> Iterator[Int64]:
    deadline = time.monotonic() + (request.time_limit_s or float("inf"))
    arrays = Arrays.of(problem)
    start = run_order(problem, range(len(problem.op_names)))
    steps = [*start]
    best: int | None = None
    for chunk in range(2 * CHUNKS):
        if request.stop() or time.monotonic() > deadline:
            return
        begin = start if chunk < CHUNKS else steps
        heat = 0.5 if chunk < CHUNKS else 0.12
        effort = Effort(request.seed + chunk, chunk_iterations(arrays), heat)
        found = polish(arrays, begin, problem.limit_bytes, effort).feasible
        if found is not None:
            yield found.steps
            if best is None or found.time_ns < best:
                best, steps = found.time_ns, found.steps.tolist()

"""remat's own portfolio, `remat.scheduler.auto`, with an order-free bound."""

from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler import auto
from remat.scheduler.solvers import Request


def solve(problem: Problem, request: Request) -> Solution:
    """The fastest schedule found within the limit; see `remat.scheduler.auto.solve`."""
    return auto.solve(
        problem,
        seed=request.seed,
        time_limit_s=request.time_limit_s,
        stop=request.stop,
        on_progress=request.on_progress,
    )

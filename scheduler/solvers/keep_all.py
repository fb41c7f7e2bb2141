"""Keep everything: the order as it is given, nothing computed twice ("checkpoint all")."""

from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler.judged import Claim, judged
from remat.scheduler.solvers import Request
from remat.simulate import run_order


def solve(problem: Problem, request: Request) -> Solution:
    """The given order, if it fits."""
    given = run_order(problem, range(len(problem.op_names)))
    return judged(problem, [given], Claim("keep all"))

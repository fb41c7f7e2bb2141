"""Checkpoints at equal distances: Chen et al. 2016, "Training Deep Nets with Sublinear Memory
Cost", section 3, for graphs of any shape.

The forward part is cut into segments; of each only the last op's values are kept when it ends,
and the others are computed again when the backward part asks for them. The paper takes sqrt(n)
segments of a chain. Here the ops are a chain in the order given ("linearized", as in Checkmate,
section 6.2), the forward part ends at the step of the peak, and every number of segments is
tried, so that the fastest that fits is found; what is computed again stays until its last use.
"""

from collections.abc import Iterator

from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import Int64
from remat.scheduler.greedy import UNLIMITED, Policy, materialize
from remat.scheduler.judged import Claim, judged
from remat.scheduler.solvers import Request
from remat.simulate import run_order, strict

# More segments than this are hardly different from one another.
MOST_SEGMENTS = 200


def solve(problem: Problem, request: Request) -> Solution:
    """The fastest of all numbers of segments."""
    return judged(problem, _all_segments(problem, request), Claim("sqrt-n"))


def _all_segments(problem: Problem, request: Request) -> Iterator[Int64]:
    order = run_order(problem, range(len(problem.op_names)))
    live = strict(problem, order).live_bytes
    forward = live.index(max(live)) + 1
    arrays = Arrays.of(problem)
    for segments in range(1, min(forward, MOST_SEGMENTS) + 1):
        if request.stop():
            return
        policy = Policy(drops=_drops(problem, order, forward, segments))
        steps = materialize(arrays, order, UNLIMITED, policy)
        if steps is not None:
            yield steps


def _drops(
    problem: Problem, order: tuple[int, ...], forward: int, segments: int
) -> list[list[int]]:
    """What to forget after each position: at the end of a segment all but its last op's values."""
    drops: list[list[int]] = [[] for _ in order]
    for number in range(segments):
        first, end = number * forward // segments, (number + 1) * forward // segments
        drops[end - 1] = [v for op in order[first : end - 1] for v in problem.writes[op]]
    return drops

"""Improve a step sequence by annealing in chunks, and find the least peak that can be had."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from remat.scheduler.anneal import REMATERIALIZE, Effort, annealed
from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import Scored, score
from remat.scheduler.found import Found
from remat.scheduler.greedy import Policy, materialize
from remat.scheduler.order import search_order

__all__ = ["Effort", "compile_kernels", "least_peak", "polish", "polish_each"]

# Annealing aims below the least peak so far, closer and closer.
AIMS = (0.9, 0.95, 0.95, 0.97, 0.97, 0.98, 0.98, 0.99)
BISECTIONS = 6
EXPONENTS = ((1.0, 1.0), (0.5, 0.5))


def compile_kernels(arrays: Arrays) -> None:
    """Call each kernel once, for as little work as can be: a later call is not held up by the
    compiler, which takes half a minute in the first run of an installation."""
    given = range(arrays.ops)
    score(arrays, given, 0)
    materialize(arrays, given, 0, Policy(1.0, 1.0, max_steps=1))
    polish(arrays, given, 0, Effort(0, 1))


def polish(arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int, effort: Effort) -> Found:
    """The best of annealing from `steps`: same arguments, same answer.

    Nothing over the limit is called feasible. Call it again with another seed, from what it
    found, for as long as there is time: nothing is lost between calls but the temperature.
    """
    return annealed(arrays, steps, limit_bytes, effort, REMATERIALIZE)


def polish_each(
    arrays: Arrays, starts: Sequence[tuple[Sequence[int], Effort]], limit_bytes: int
) -> Found:
    """The best of `polish` from every start, each on a thread of its own: the kernels let go of
    the interpreter. Same arguments, same answer."""
    with ThreadPoolExecutor(max_workers=max(1, len(starts))) as pool:
        results = pool.map(lambda one: polish(arrays, one[0], limit_bytes, one[1]), starts)
    found = Found()
    for result in results:
        found = found.merged(result)
    return found


def least_peak(arrays: Arrays, seed: int, max_iterations: int) -> Scored:
    """The sequence of the least peak found, time no object: by order, by greedy, by annealing.

    A heuristic: there may be sequences of less. About `max_iterations` steps of annealing.
    """
    given = range(arrays.ops)
    best = search_order(arrays, given, 0, Effort(seed, max_iterations // 4, 0.5))
    order = best.steps
    low, high = 0, best.peak_bytes
    for _ in range(BISECTIONS):
        aim = (low + high) // 2
        found = _greedy_least(arrays, order, aim, best.peak_bytes)
        if found is None or found.peak_bytes > aim:
            low = aim
        if found is not None and found.lower_than(best):
            best = found
            high = best.peak_bytes
    for chunk, share in enumerate(AIMS):
        effort = Effort(seed + chunk, max_iterations * 3 // (4 * len(AIMS)), 0.5)
        polished = polish(arrays, best.steps, int(share * best.peak_bytes), effort).least
        if polished is not None and polished.lower_than(best):
            best = polished
    return best


def _greedy_least(
    arrays: Arrays, order: Int64, limit_bytes: int, ceiling_bytes: int
) -> Scored | None:
    """The least peak of a few greedy walks, those over the ceiling given up."""
    found = Found()
    for cost_power, distance_power in EXPONENTS:
        policy = Policy(
            cost_power,
            distance_power,
            max_steps=3 * arrays.ops + 64,
            ceiling_bytes=ceiling_bytes,
        )
        steps = materialize(arrays, order, limit_bytes, policy)
        if steps is not None:
            found = found.with_candidate(score(arrays, steps, limit_bytes))
    return found.least

"""Answers of others, put before the judges.

Published formulations know less than `remat.problem` (no workspace, no memory shared in place,
one output per op), so what they decode to may not fit, and their bounds hold only for problems
without all that.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from remat.problem import NONE, Problem
from remat.schedule import NOTHING_TO_RUN, BoundKind, Solution, Status, Step
from remat.scheduler.arrays import Arrays
from remat.scheduler.bounds import needed
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import score
from remat.scheduler.search import Search, never, silent


@dataclass(frozen=True, slots=True)
class Claim:
    """What a solver says of its answer. `bound_ns` of 0: nothing; `interrupted`: it was cut."""

    found_by: str
    bound_ns: int = 0
    bound_kind: BoundKind = BoundKind.NONE
    interrupted: bool = False


def is_plain(problem: Problem) -> bool:
    """Whether each op writes one value, in memory of its own, and nothing is hoisted."""
    return (
        all(len(written) == 1 for written in problem.writes)
        and all(alias == NONE for alias in problem.alias_of)
        and not any(problem.inplace_of)
        and not any(problem.hoisted)
        and all(problem.recomputable)
    )


def judged(problem: Problem, candidates: Iterable[Sequence[int] | Int64], claim: Claim) -> Solution:
    """The fastest of the candidates that is legal and fits, dead recomputations removed.

    That each op runs once bounds the time for any order; a bound that is claimed counts if it is
    higher, and only an order-free one makes an answer optimal.
    """
    if not problem.op_names:
        return NOTHING_TO_RUN
    needed_bytes, needed_by = needed(problem)
    arrays, base_ns = Arrays.of(problem), sum(problem.time_ns)
    search = Search(problem, arrays, math.inf, never, silent, base_ns)
    for steps in candidates:
        search.offer(score(arrays, steps, problem.limit_bytes), claim.found_by)
    is_higher = claim.bound_ns > base_ns and claim.bound_kind is not BoundKind.NONE
    kind = claim.bound_kind if is_higher else BoundKind.ORDER_FREE
    if kind is BoundKind.ORDER_FREE:
        search.raise_bound(claim.bound_ns if is_higher else base_ns, claim.found_by)
    if search.best_ns is not None:
        status = Status.OPTIMAL if search.is_proven else Status.FEASIBLE
    else:
        is_impossible = needed_bytes > problem.limit_bytes
        status = Status.INFEASIBLE if is_impossible else Status.UNKNOWN
    return Solution(
        status=status,
        steps=tuple(Step(op) for op in search.best_steps),
        peak_bytes=search.best_peak_bytes,
        time_ns=search.best_ns or 0,
        lower_bound_ns=claim.bound_ns if is_higher else base_ns,
        bound_kind=kind,
        least_bytes=max(0, search.least_bytes),
        needed_bytes=needed_bytes,
        needed_by=needed_by,
        found_by=search.found_by,
        interrupted=claim.interrupted,
        least_steps=search.least_steps,
    )

"""The portfolio: bounds, order, greedy, event relaxation, annealing, each judged, any time.

    1. One-op bound: a limit below it is proven infeasible.
    2. Order search: if an order fits without recomputation, it is optimal.
    3. Greedy eviction.
    4. Event relaxation with lazy events: the bound, decoded to schedules, polished.
    5. Linear relaxation with many events, rounded and polished.
    6. Annealing, warm and cold, with several seeds.

A solver is never believed: `remat.check` and `remat.simulate` accept every answer. The effort is
counted, so the same problem and seed give the same answer unless a clock or `stop` cuts it.
"""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass

import numpy as np

from remat.problem import Problem
from remat.schedule import NOTHING_TO_RUN, BoundKind, Solution, Status, Step
from remat.scheduler.arrays import Arrays
from remat.scheduler.bounds import needed
from remat.scheduler.certify import certify, chunk_iterations
from remat.scheduler.compiled import Int64
from remat.scheduler.found import Found
from remat.scheduler.greedy import sweep
from remat.scheduler.order import base_orders, search_order
from remat.scheduler.polish import Effort, compile_kernels, least_peak, polish, polish_each
from remat.scheduler.rounding import rounded
from remat.scheduler.search import Progress, Search, Stopped, never, silent
from remat.scheduler.tidy import tidy
from remat.simulate import run_order

# Chunks of annealing after the relaxation, up to so many times as long as others: slow cooling
# finds what several quick ones do not.
CHUNKS = 12
LONG = 8
# Chunks without a better answer after which it ends.
IDLE = 3
# Orders of other seeds that greedy eviction walks, fewer where there are many ops.
MAX_ORDERS = 8
ORDERS_OPS = 16_000


@dataclass(frozen=True, slots=True)
class _Needs:
    """The proven least memory of any schedule, and the op that needs it (-1: the whole)."""

    bytes: int
    op: int


def solve(
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    stop: Callable[[], bool] = never,
    on_progress: Progress = silent,
    looser: Solution | None = None,
) -> Solution:
    """The fastest schedule found within the limit, with an order-free lower bound.

    `looser` is what is known of the same problem with a limit no lower than this one: its bound
    holds, and its steps are where the search starts.
    `on_progress(stage, best_ns, bound_ns)` is told of every better answer or bound. At the time
    limit, when `stop()` says so and at Ctrl-C the best answer so far is returned.
    """
    needs = _Needs(*needed(problem))
    if not problem.op_names:
        return NOTHING_TO_RUN
    search = _started(problem, time_limit_s, stop, on_progress)
    interrupted, infeasible = False, needs.bytes > problem.limit_bytes
    try:
        if infeasible:
            _lower(search, seed)
        else:
            _tighten(search, looser, seed)
            infeasible = _stages(search, seed)
    except (KeyboardInterrupt, Stopped):
        interrupted = True
    if infeasible and needs.bytes <= problem.limit_bytes:
        needs = _Needs(problem.limit_bytes + 1, needs.op)
    return _solution(search, needs, infeasible, interrupted)


def least_budget(
    problem: Problem,
    *,
    seed: int = 0,
    time_limit_s: float | None = None,
    stop: Callable[[], bool] = never,
) -> tuple[int, int, tuple[int, ...]]:
    """(least peak found, least peak proven necessary, steps of the former), the limit ignored."""
    needed_bytes, _ = needed(problem)
    if not problem.op_names:
        return 0, 0, ()
    tight = problem.with_limit(max(1, needed_bytes))
    search = _started(tight, time_limit_s, stop, silent)
    with suppress(KeyboardInterrupt, Stopped):
        _lower(search, seed)
    return search.least_bytes, needed_bytes, search.least_steps


def _started(
    problem: Problem, time_limit_s: float | None, stop: Callable[[], bool], on_progress: Progress
) -> Search:
    """A search whose clock runs from when its kernels are compiled: the first run of an
    installation takes longer, but it searches as long as any other."""
    arrays = Arrays.of(problem)
    compile_kernels(arrays)
    deadline = time.monotonic() + (float("inf") if time_limit_s is None else time_limit_s)
    return Search(problem, arrays, deadline, stop, on_progress, sum(problem.time_ns))


def _tighten(search: Search, looser: Solution | None, seed: int) -> None:
    """Go on from an answer to a looser limit."""
    if looser is None or not looser.steps:
        return
    search.raise_bound(looser.lower_bound_ns, "looser limit")
    steps = [step.op for step in looser.steps]
    effort = Effort(seed, chunk_iterations(search.arrays), 0.12)
    limit = search.problem.limit_bytes
    search.offer_all(polish(search.arrays, steps, limit, effort), "looser limit, polished")


def _stages(search: Search, seed: int) -> bool:
    """Run the portfolio until proven; whether the limit is proven infeasible."""
    problem, arrays, limit = search.problem, search.arrays, search.problem.limit_bytes
    given = np.array(run_order(problem, range(arrays.ops)), dtype=np.int64)
    ordered = search_order(arrays, given, limit, Effort(seed, chunk_iterations(arrays), 0.5))
    search.offer(ordered, "order")
    if search.is_close:
        return False
    search.pause()
    orders = [ordered.steps, *base_orders(arrays, given)]
    _greedy(search, orders, seed)
    search.pause()
    if search.is_close:
        return False
    _delay_outputs(search, orders, seed)
    if certify(search, given, seed):
        return True
    _round(search, given, seed)
    _anneal(search, seed)
    if search.best_ns is None:
        _lower(search, seed)
    return False


def _greedy(search: Search, orders: Sequence[Int64], seed: int) -> None:
    """Greedy eviction over `orders`, the most promising first, and over orders of other seeds.

    Orders of about the same peak lead it to answers that cost from 0.3 to 2 %, and annealing
    seldom leaves the order that it starts from.
    """
    arrays, limit = search.arrays, search.problem.limit_bytes

    def walk(number: int) -> Found:
        effort = Effort(seed + number, chunk_iterations(arrays), 0.5)
        other = search_order(arrays, orders[1], limit, effort)
        return sweep(arrays, [other.steps], limit)

    search.offer_all(sweep(arrays, orders, limit), "greedy")
    others = range(1, min(MAX_ORDERS, ORDERS_OPS // arrays.ops) + 1)
    with ThreadPoolExecutor(max_workers=2) as pool:
        for found in pool.map(walk, others):
            search.offer_all(found, "greedy, other orders")


def _delay_outputs(search: Search, orders: Sequence[Int64], seed: int) -> None:
    """Try to compute outputs that are also read inside the graph once more, at the very end.

    Only the last instance of a kept value is held to the end, in a buffer of its own; the
    moves of annealing take such recomputations away, but hardly ever find them.
    """
    problem, arrays, limit = search.problem, search.arrays, search.problem.limit_bytes
    read = {value for values in problem.reads for value in values}
    late = [
        op
        for op, written in enumerate(problem.writes)
        if problem.recomputable[op] and any(v in problem.kept and v in read for v in written)
    ]
    if not late or search.is_proven:
        return
    found = Found()
    for start in (*orders, np.array(search.start)):
        found = found.with_candidate(tidy(arrays, [*start.tolist(), *late], limit))
    if not search.offer_all(found, "late outputs") and search.best_ns is not None:
        return
    for number, delayed in enumerate((found.least, found.feasible)):
        if delayed is not None and not search.is_proven:
            search.pause()
            effort = Effort(seed + number, chunk_iterations(arrays), 0.5)
            search.offer_all(polish(arrays, delayed.steps, limit, effort), "late outputs, polished")


def _round(search: Search, order: Int64, seed: int) -> None:
    """Polish what relaxations with many events are rounded to."""
    if search.is_close or search.problem.limit_bytes < 1:
        return
    starts = []
    for number, found in enumerate(rounded(search, order)):
        search.offer_all(found, "rounding")
        if found.start is not None:
            long = Effort(seed + number, 2 * chunk_iterations(search.arrays), 0.12)
            starts.append((found.start.steps.tolist(), long))
    search.pause()
    polished = polish_each(search.arrays, starts, search.problem.limit_bytes)
    search.offer_all(polished, "rounding, polished")


def _anneal(search: Search, seed: int) -> None:
    """Polish the best and the hint at length, the best cold and hot in turn, until close."""
    took_s, idle = 0.0, 0
    for chunk in range(CHUNKS):
        if search.is_close or idle == IDLE or search.seconds_left < took_s:
            return
        search.pause()
        begin = time.monotonic()
        iterations = min(2 << chunk, LONG) * chunk_iterations(search.arrays)
        starts = [(search.start, Effort(seed + chunk, iterations, 0.5 if chunk % 2 else 0.12))]
        if search.hint:
            starts.append((search.hint, Effort(seed + chunk, iterations, 0.12)))
        found = polish_each(search.arrays, starts, search.problem.limit_bytes)
        before_ns = search.best_ns
        search.offer_all(found, "annealing")
        idle = idle + 1 if search.best_ns == before_ns else 0
        took_s = time.monotonic() - begin


def _lower(search: Search, seed: int) -> None:
    """Look for the least peak, whatever it takes."""
    given = run_order(search.problem, range(search.arrays.ops))
    base = search_order(search.arrays, given, 1 << 60, Effort(seed, 0))
    search.offer(base, "order")
    search.pause()
    search.offer(least_peak(search.arrays, seed, 2 * chunk_iterations(search.arrays)), "least peak")


def _solution(search: Search, needs: _Needs, infeasible: bool, interrupted: bool) -> Solution:
    if search.best_ns is not None:
        status = Status.OPTIMAL if search.is_proven else Status.FEASIBLE
    else:
        status = Status.INFEASIBLE if infeasible else Status.UNKNOWN
    return Solution(
        status=status,
        steps=tuple(Step(op) for op in search.best_steps),
        peak_bytes=search.best_peak_bytes,
        time_ns=search.best_ns or 0,
        lower_bound_ns=search.bound_ns,
        bound_kind=BoundKind.ORDER_FREE,
        least_bytes=max(0, search.least_bytes),
        needed_bytes=needs.bytes,
        needed_by=needs.op,
        found_by=search.found_by,
        interrupted=interrupted,
        least_steps=search.least_steps,
    )

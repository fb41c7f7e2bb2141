"""Clean-up of a sequence: recomputations it can do without, steps that run too early."""

from collections.abc import Iterator, Sequence

import numpy as np

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import Scored, evaluate, load, runs_each_op, scored
from remat.scheduler.state import (
    EXCESS_BYTES,
    FIRST_USE,
    LENGTH,
    MEMORY_BYTES,
    WRITE_FROM,
    WRITTEN_AT,
    State,
)


def tidy(arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int) -> Scored | None:
    """`sink`, then `remove_redundant`, until that no longer saves time.

    None if `steps` cannot be executed. A sequence that fits still fits and never takes longer.
    """
    best = sink(arrays, steps, limit_bytes)
    while best is not None:
        shorter = remove_redundant(arrays, best.steps, limit_bytes)
        if shorter is None or shorter.time_ns >= best.time_ns:
            break
        best = sink(arrays, shorter.steps, limit_bytes)
    return best


def remove_redundant(
    arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int
) -> Scored | None:
    """Remove every recomputation, longest first, without which the sequence still fits.

    What fed only the removed one goes with it. A sequence over the limit loses those that leave
    the excess as it is or lower it. None if `steps` cannot be executed.
    """
    state = _loaded(arrays, steps, limit_bytes)
    if state is None:
        return None
    best = scored(state)
    tried: tuple[int, int, int] | None = None
    while True:
        for key, t in _repeated(arrays, best.steps):
            if tried is not None and key <= tried:
                continue
            tried = key
            load(state, np.delete(best.steps, t))
            if _is_as_good(arrays, state, limit_bytes, best.excess_bytes):
                best = scored(state)
                break
        else:
            return best


def sink(arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int) -> Scored | None:
    """Move every step right before its first reader where that lowers the memory of the others.

    Last steps first, so that a chain of recomputations sinks as a whole. Time is unchanged.
    """
    state = _loaded(arrays, steps, limit_bytes)
    if state is None:
        return None
    best = scored(state)
    first_reads = _first_reads(state)
    for t in range(len(best.steps) - 1, NONE, -1):
        to = first_reads[t] - 1
        if to <= t:
            continue
        moved = best.steps.copy()
        moved[t:to] = best.steps[t + 1 : to + 1]
        moved[to] = best.steps[t]
        load(state, moved)
        if not _is_as_good(arrays, state, limit_bytes, best.excess_bytes):
            continue
        # The steps that the moved one passed are what its memory weighed on.
        if state.step[t:to, MEMORY_BYTES].sum() < best.memory_bytes[t + 1 : to + 1].sum():
            best = scored(state)
            first_reads = _first_reads(state)
    return best


def _loaded(arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int) -> State | None:
    """An evaluated state, or None if the sequence is not a schedule."""
    state = State.holding(arrays, max(len(steps), 1))
    load(state, np.asarray(steps, dtype=np.int64))
    if not evaluate(arrays, state, limit_bytes) or not runs_each_op(arrays, state):
        return None
    return state


def _is_as_good(arrays: Arrays, state: State, limit_bytes: int, excess_bytes: int) -> bool:
    if not evaluate(arrays, state, limit_bytes):
        return False
    return bool(state.totals[EXCESS_BYTES] <= excess_bytes)


def _repeated(arrays: Arrays, steps: Int64) -> Iterator[tuple[tuple[int, int, int], int]]:
    """Occurrences of ops that run more than once, as (key, step): longest first, then by op."""
    seen = [0] * arrays.ops
    copies = np.bincount(steps, minlength=arrays.ops)
    keyed: list[tuple[tuple[int, int, int], int]] = []
    for t, op in enumerate(steps.tolist()):
        if copies[op] > 1:
            # Later occurrences first: a number stays the same when a later one is removed.
            keyed.append(((-int(arrays.time_ns[op]), op, -seen[op]), t))
        seen[op] += 1
    return iter(sorted(keyed))


def _first_reads(state: State) -> Int64:
    """The first step that reads anything each step writes; its own if none does."""
    length = int(state.totals[LENGTH])
    instances = int(state.step[length, WRITE_FROM])
    writer = state.instance[:instances, WRITTEN_AT]
    first_use = state.instance[:instances, FIRST_USE]
    is_read = first_use > writer
    first = np.full(length, length)
    np.minimum.at(first, writer[is_read], first_use[is_read])
    return np.where(first < length, first, np.arange(length))

"""Writing a neighbour of an evaluated sequence: copied steps, and what is computed anew.

When a value is computed anew, so is what it reads and is not to be had any more, depth first.
What is dead but could have been held longer is computed anew or read as it is, by chance.
"""

from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Int64, Real, Word, part
from remat.scheduler.draws import seeded, uniform
from remat.scheduler.state import BUFFER, LAST_USE, RELEASED, State

# In place of an instance: the value has been computed anew.
RENEWED = -2
# How often a value that is dead anyway is computed anew rather than held longer.
RENEW_DEAD = 0.12

# Rows of `Desk.job`.
WRITTEN = 0
STAMP = 1
DROPPED = 2
ACROSS = 3
AT = 4
ADDED = 5
ADDED_AT = 6
JOBS = 7


class Desk(NamedTuple):
    """Scratch: `latest` instance per value, `stamp` per op, a `stack`, `lost` values, random state.

    `job` holds what the functions below would otherwise pass along: WRITTEN steps so far, the
    current STAMP, the DROPPED buffer and the step ACROSS which it is dropped (NONE if there is
    none), the step AT which something is computed anew, or the value ADDED before the step
    ADDED_AT. `eagerness[0]` is how likely a value that was dead across that step is computed anew
    rather than held longer.
    """

    latest: Int64
    stamp: Int64
    stack: Int64
    lost: Int64
    job: Int64
    eagerness: Real
    rng: Word

    @classmethod
    def for_problem(cls, arrays: Arrays, seed: int) -> "Desk":
        """A desk for one search."""
        return cls(
            latest=np.zeros(arrays.values, dtype=np.int64),
            stamp=np.zeros(arrays.ops, dtype=np.int64),
            stack=np.zeros(2 * arrays.ops + 2, dtype=np.int64),
            lost=np.zeros(max(arrays.values, int(np.diff(arrays.read_at).max())), dtype=np.int64),
            job=np.zeros(JOBS, dtype=np.int64),
            eagerness=np.zeros(1, dtype=np.float64),
            rng=seeded(seed),
        )


@part
def renew_chance(here: State, desk: Desk, i: int) -> float:
    """How likely instance i is computed anew for the step AT, not read as it is."""
    home = here.instance[i, BUFFER]
    if home == NONE:
        return 0.0
    if home == desk.job[DROPPED]:
        return 1.0
    last = here.instance[i, LAST_USE]
    if last >= desk.job[AT] or here.buffer[home, RELEASED] >= desk.job[AT]:
        return 0.0
    return float(desk.eagerness[0]) if last < desk.job[ACROSS] else RENEW_DEAD


@part
def may_renew(arrays: Arrays, here: State, desk: Desk, v: int) -> bool:
    """Whether v, which has an instance, is computed anew for the step AT; by chance if it could
    be held longer."""
    chance = renew_chance(here, desk, desk.latest[v])
    if chance == 1.0:
        return True
    return bool(arrays.recomputable[arrays.writer[v]]) and uniform(desk.rng) < chance


@part
def renew(arrays: Arrays, here: State, there: State, desk: Desk, v: int) -> bool:
    """Write the op of v, after what it reads and is not to be had at the step AT, depth first."""
    # Fields in local names: calls pass every array, so there are few in the loop.
    read_at, reads, write_at, writes = arrays.read_at, arrays.reads, arrays.write_at, arrays.writes
    writer, recomputable, steps = arrays.writer, arrays.recomputable, there.steps
    latest, stamps, stack, written = desk.latest, desk.stamp, desk.stack, desk.job[WRITTEN]
    desk.job[STAMP] += 1
    stamp = desk.job[STAMP]
    op = writer[v]
    stack[0], stack[1] = op, read_at[op]
    stamps[op] = stamp
    depth = 1
    while depth > 0:
        op = stack[2 * depth - 2]
        slot = stack[2 * depth - 1]
        if not recomputable[op]:
            return False
        if slot == read_at[op + 1]:
            if written >= len(steps):
                return False
            steps[written] = op
            written += 1
            for k in range(write_at[op], write_at[op + 1]):
                latest[writes[k]] = RENEWED
            depth -= 1
            continue
        stack[2 * depth - 1] += 1
        x = reads[slot]
        source = writer[x]
        if stamps[source] == stamp or latest[x] == RENEWED:
            continue
        if latest[x] == NONE or may_renew(arrays, here, desk, x):
            stamps[source] = stamp
            stack[2 * depth], stack[2 * depth + 1] = source, read_at[source]
            depth += 1
    desk.job[WRITTEN] = written
    return True


@part
def begin_copy(desk: Desk, across: int, eagerness: float) -> None:
    """Start writing a sequence in which something changes across a step."""
    desk.job[WRITTEN] = 0
    desk.job[DROPPED] = NONE
    desk.job[ADDED_AT] = NONE
    desk.job[ACROSS] = across
    desk.eagerness[0] = eagerness
    for v in range(len(desk.latest)):
        desk.latest[v] = NONE

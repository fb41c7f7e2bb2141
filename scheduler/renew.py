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
def write(there: State, desk: Desk, op: int) -> bool:
    """Append an op to the sequence being written; False if it is full."""
    length = desk.job[WRITTEN]
    if length >= len(there.steps):
        return False
    there.steps[length] = op
    desk.job[WRITTEN] = length + 1
    return True


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
def must_renew(arrays: Arrays, here: State, desk: Desk, v: int) -> bool:
    """Whether v is computed anew for the step AT; a random choice if it could be held longer."""
    i = desk.latest[v]
    if i == RENEWED:
        return False
    if i == NONE:
        return True
    chance = renew_chance(here, desk, i)
    if chance == 1.0:
        return True
    return bool(arrays.recomputable[arrays.writer[v]]) and uniform(desk.rng) < chance


@part
def renew(arrays: Arrays, here: State, there: State, desk: Desk, v: int) -> bool:
    """Write the op of v, after what it reads and is not to be had at the step AT, depth first."""
    desk.job[STAMP] += 1
    stamp, stack = desk.job[STAMP], desk.stack
    op = arrays.writer[v]
    stack[0], stack[1] = op, arrays.read_at[op]
    desk.stamp[op] = stamp
    depth = 1
    while depth > 0:
        op = stack[2 * depth - 2]
        slot = stack[2 * depth - 1]
        if not arrays.recomputable[op]:
            return False
        if slot == arrays.read_at[op + 1]:
            if not write(there, desk, op):
                return False
            for k in range(arrays.write_at[op], arrays.write_at[op + 1]):
                desk.latest[arrays.writes[k]] = RENEWED
            depth -= 1
            continue
        stack[2 * depth - 1] += 1
        source = arrays.writer[arrays.reads[slot]]
        if desk.stamp[source] != stamp and must_renew(arrays, here, desk, arrays.reads[slot]):
            desk.stamp[source] = stamp
            stack[2 * depth], stack[2 * depth + 1] = source, arrays.read_at[source]
            depth += 1
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

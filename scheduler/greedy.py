"""Greedy rematerialization: walk a base order, evict when memory runs out, recompute on demand."""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from remat.scheduler.arrays import CONSTANT, NONE, Arrays, rows
from remat.scheduler.compiled import Int64, Real, entry, part
from remat.scheduler.evaluate import score
from remat.scheduler.evict import Rule, drop, make_room, settle
from remat.scheduler.found import Found
from remat.scheduler.residency import (
    DEPTH,
    EMITTED,
    FREE,
    HOME,
    LOG_COST,
    MEMBER_PINS,
    MISSING,
    TIME_NS,
    TOUCHED,
    UNKNOWN,
    Walk,
    any_wanted,
    enter,
    forget_members,
    leave,
    open_buffer,
    pin,
    unpin,
)

MAX_IDLE = 4
MAX_IDLE_LATER = 2
# Looking for a buffer to evict is what takes the time; hopeless limits take it without end.
MIN_SCANS = 1_000_000
SCANS_PER_OP = 2_500
# A sweep over a large graph tries fewer exponents, but not fewer than six.
SWEEP_STEPS = 60_000
UNLIMITED = 1 << 62
EXPONENTS = tuple((a, b) for b in (1.0, 0.5, 2.0, 0.25, 4.0, 0.0) for a in (1.0, 0.5, 2.0, 0.0))


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """How `materialize` evicts.

    `cost_power`, `distance_power`: the exponents of the eviction score (`remat.scheduler.evict`).
    `drops`: for each position of the base order the values to evict right after it (empty: none);
    `drops` are obeyed whatever the limit, and a kept value dropped after its last read is
    recomputed at the end. `guide`, shape (stages, values), is added to the logarithm of a value's
    score (positive: keep) and `stage_of`, shape (positions,), says which row holds where.
    The walk gives up beyond `max_steps` (0: five times the ops), when it holds more than
    `ceiling_bytes`, takes more than `ceiling_ns`, or evicts without end.
    """

    cost_power: float = 1.0
    distance_power: float = 1.0
    drops: Sequence[Sequence[int]] = ()
    guide: Real | None = field(default=None)
    stage_of: Int64 | None = field(default=None)
    max_steps: int = 0
    ceiling_bytes: int = UNLIMITED
    ceiling_ns: int = UNLIMITED


def materialize(
    arrays: Arrays, order: Sequence[int] | Int64, limit_bytes: int, policy: Policy
) -> Int64 | None:
    """Steps that run `order` under `policy`, missing inputs recomputed right before their use.

    Where nothing more can be evicted the limit is overstepped: `score` tells. The steps may hold
    recomputations that turn out dead, which `score` removes. None if the walk gave up.
    """
    base = np.asarray(order, dtype=np.int64)
    max_steps = policy.max_steps or 5 * arrays.ops + 64
    guide, row_of = _guide(arrays, base, policy)
    if len(policy.drops) not in (0, len(base)):
        raise ValueError("drops must be empty or have one entry for each position of the order")
    drop_from, drops = rows(policy.drops or [()] * len(base))
    rule = Rule(
        limit_bytes,
        policy.ceiling_bytes,
        policy.ceiling_ns,
        MIN_SCANS + SCANS_PER_OP * arrays.ops,
        policy.cost_power,
        policy.distance_power,
        guide,
        row_of,
    )
    walk = Walk.over(arrays, base, max_steps)
    if not run(arrays, walk, rule, base, drop_from, drops):
        return None
    return walk.steps[: walk.totals[EMITTED]].copy()


def _guide(arrays: Arrays, base: Int64, policy: Policy) -> tuple[Real, Int64]:
    stage_of = np.zeros(len(base), dtype=np.int64)
    if policy.guide is None:
        return np.zeros((1, arrays.values), dtype=np.float64), stage_of
    if policy.stage_of is not None:
        stage_of = np.asarray(policy.stage_of, dtype=np.int64)
    return np.ascontiguousarray(policy.guide, dtype=np.float64), stage_of


@part
def compute(arrays: Arrays, walk: Walk, rule: Rule, op: int, position: int, end: int) -> bool:
    """Run `op` after whatever it reads that is not in memory, depth first."""
    walk.totals[MISSING] = walk.totals[DEPTH] = 0
    pending = op
    while True:
        if pending != NONE:
            if not begin(arrays, walk, pending):
                return False
            pending = NONE
        top = 2 * (walk.totals[DEPTH] - 1)
        if walk.totals[MISSING] == walk.stack[top + 1]:
            # The op asked for is the last to run: only then are its reads over.
            horizon = position + 1 if top == 0 else position
            if not finish(arrays, walk, rule, walk.stack[top], horizon, end):
                return False
            walk.totals[DEPTH] -= 1
            if top == 0:
                return True
            continue
        v = walk.missing[walk.totals[MISSING] - 1]
        if walk.value[v, HOME] != NONE:
            pin(walk, v)
            walk.totals[MISSING] -= 1
        else:
            pending = arrays.writer[v]


@part
def begin(arrays: Arrays, walk: Walk, op: int) -> bool:
    """Pin what the op reads and is in memory, list the rest; False if it may not run again."""
    if walk.runs[op] > 0 and not arrays.recomputable[op]:
        return False
    top = 2 * walk.totals[DEPTH]
    walk.totals[DEPTH] += 1
    walk.stack[top] = op
    walk.stack[top + 1] = walk.totals[MISSING]
    for k in range(arrays.read_at[op + 1] - 1, arrays.read_at[op] - 1, -1):
        v = arrays.reads[k]
        if walk.value[v, HOME] != NONE:
            pin(walk, v)
        else:
            walk.missing[walk.totals[MISSING]] = v
            walk.totals[MISSING] += 1
    return True


@part
def finish(arrays: Arrays, walk: Walk, rule: Rule, op: int, horizon: int, end: int) -> bool:
    """Run an op whose reads are all in memory and pinned; False if it gives up."""
    if walk.totals[EMITTED] >= len(walk.steps):
        return False
    first, last = arrays.write_at[op], arrays.write_at[op + 1]
    for k in range(first, last):
        leave(walk, arrays.writes[k])
    room = -1
    while True:
        need = choose_all(arrays, walk, op, horizon, end)
        if need <= room:
            break
        # An eviction may make a value wanted that was to be taken over: then choose again.
        room = need
        if not make_room(arrays, walk, rule, room, min(horizon, end - 1), end):
            return False
    walk.steps[walk.totals[EMITTED]] = op
    walk.totals[EMITTED] += 1
    walk.totals[TIME_NS] += arrays.time_ns[op]
    walk.runs[op] += 1
    for k in range(arrays.read_at[op], arrays.read_at[op + 1]):
        unpin(walk, arrays.reads[k])
        touch(walk, arrays.reads[k])
    settle_in(arrays, walk, op)
    return bool(walk.totals[TIME_NS] <= rule.ceiling_ns)


@part
def settle_in(arrays: Arrays, walk: Walk, op: int) -> None:
    """Put what the op writes into the buffers chosen for it."""
    first = arrays.write_at[op]
    for k in range(first, arrays.write_at[op + 1]):
        v = arrays.writes[k]
        buffer = walk.choice[k - first]
        if buffer == NONE:
            buffer = open_buffer(walk, arrays.value_bytes[v])
        elif buffer > FREE and arrays.alias_slot[v] == NONE:
            forget_members(walk, buffer)
        enter(walk, v, buffer)
        touch(walk, v)
        if walk.runs[op] > 1:
            costs_fell(arrays, walk, v)


@part
def costs_fell(arrays: Arrays, walk: Walk, v: int) -> None:
    """What is computed from v is cheaper to recompute, now that v is in memory again."""
    for k in range(arrays.reader_at[v], arrays.reader_at[v + 1]):
        op = arrays.readers[k]
        for j in range(arrays.write_at[op], arrays.write_at[op + 1]):
            home = walk.value[arrays.writes[j], HOME]
            if home > FREE:
                walk.logs[home, LOG_COST] = UNKNOWN


@part
def touch(walk: Walk, v: int) -> None:
    """Note a value whose buffer may be unwanted after this position."""
    walk.touched[walk.totals[TOUCHED]] = v
    walk.totals[TOUCHED] += 1


@part
def choose_all(arrays: Arrays, walk: Walk, op: int, horizon: int, end: int) -> int:
    """Choose a buffer for each output; the bytes that are needed on top, with workspace."""
    first = arrays.write_at[op]
    need = arrays.workspace_bytes[op]
    for k in range(first, arrays.write_at[op + 1]):
        v = arrays.writes[k]
        walk.choice[k - first] = choose(arrays, walk, op, v, k - first, horizon, end)
        if walk.choice[k - first] == NONE:
            need += arrays.value_bytes[v]
    return int(need)


@part
def choose(
    arrays: Arrays, walk: Walk, op: int, v: int, earlier: int, horizon: int, end: int
) -> int:
    """The buffer v will live in: FREE, one shared or taken over, or NONE for a fresh one.

    `earlier` outputs of the op have chosen already; what they chose is not taken over again.
    A kept value always gets a fresh one: this may be its last instance.
    """
    if arrays.kept[v]:
        return NONE
    slot = arrays.alias_slot[v]
    if slot == CONSTANT:
        return FREE
    if slot >= 0:
        return int(walk.value[arrays.reads[arrays.read_at[op] + slot], HOME])
    for k in range(arrays.inplace_at[v], arrays.inplace_at[v + 1]):
        x = arrays.reads[arrays.read_at[op] + arrays.inplace_slots[k]]
        buffer = int(walk.value[x, HOME])
        is_chosen = False
        for j in range(earlier):
            is_chosen = is_chosen or walk.choice[j] == buffer
        if buffer <= FREE or is_chosen or walk.buffer[buffer, MEMBER_PINS] != 1:
            continue
        if not any_wanted(arrays, walk, buffer, horizon, end):
            return buffer
    return NONE


@entry
def run(
    arrays: Arrays, walk: Walk, rule: Rule, base: Int64, drop_from: Int64, drops: Int64
) -> bool:
    """Walk the base order; the steps are left in `walk.steps`. False if it gave up."""
    end = len(base)
    for turn in range(end + len(arrays.kept)):
        # After the last position: the kept values that were dropped for good.
        op, position = base[min(turn, end - 1)], min(turn, end - 1)
        if turn >= end:
            v = turn - end
            if not arrays.kept[v] or walk.value[v, HOME] != NONE:
                continue
            op = arrays.writer[v]
        walk.totals[TOUCHED] = 0
        if not compute(arrays, walk, rule, op, position, end):
            return False
        if turn >= end:
            continue
        for k in range(walk.totals[TOUCHED]):
            settle(arrays, walk, int(walk.value[walk.touched[k], HOME]), position + 1, end)
        for k in range(drop_from[position], drop_from[position + 1]):
            drop(arrays, walk, drops[k], position + 1, end)
    return True


def sweep(arrays: Arrays, orders: Sequence[Int64], limit_bytes: int) -> Found:
    """`materialize` with up to 24 pairs of exponents over each order; the best that came out.

    A run that cannot beat what is known (it holds more than the least peak so far, or takes
    longer than the fastest that fits) gives up, and an order that brings nothing new is left
    after a few runs, so hopeless limits cost little. All pairs are tried on the first order if
    any of the first few fits: pass the most promising order first.
    """
    found = Found()
    exponents = EXPONENTS[: max(6, SWEEP_STEPS // arrays.ops)]
    for turn, order in enumerate(orders):
        found = found.with_candidate(score(arrays, order, limit_bytes))
        idle = 0
        for cost_power, distance_power in exponents:
            policy = _ambitious(arrays, limit_bytes, (cost_power, distance_power), found)
            steps = materialize(arrays, order, limit_bytes, policy)
            before = found.start
            if steps is not None:
                found = found.with_candidate(score(arrays, steps, limit_bytes))
            idle = 0 if found.start is not before else idle + 1
            if idle >= (MAX_IDLE_LATER if turn else MAX_IDLE) and (turn or found.feasible is None):
                break
    return found


def _ambitious(
    arrays: Arrays, limit_bytes: int, exponents: tuple[float, float], found: Found
) -> Policy:
    """A policy that gives up where it cannot improve on what is found."""
    least_bytes = UNLIMITED if found.least is None else found.least.peak_bytes
    return Policy(
        *exponents,
        max_steps=3 * arrays.ops + 64,
        ceiling_bytes=max(limit_bytes, least_bytes),
        ceiling_ns=UNLIMITED if found.feasible is None else found.feasible.time_ns,
    )

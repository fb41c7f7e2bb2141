"""Which buffer to evict when memory runs out, and what its recomputation would take.

The score is recompute_cost^a / (bytes * distance_to_next_use^b), lowest first: the h_DTR family
of Kirisame et al., "Dynamic Tensor Rematerialization" (ICLR 2021), section 4, with the true
distance to the next use of the base order in place of their staleness, and with costs that are
looked up again only for the buffer about to go: evictions of others can only have raised them.
"""

from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Int64, Real, part
from remat.scheduler.residency import (
    ALONE,
    FIRST_MEMBER,
    FREE,
    HELD_BYTES,
    HELD_UNTIL,
    HOME,
    IS_TAINTED,
    LEAVES,
    LIVE,
    LOG_BYTES,
    LOG_COST,
    MARK,
    MEMBER_PINS,
    NEVER,
    PINS,
    QUEUED,
    SCANNED,
    SIBLING,
    UNKNOWN,
    Walk,
    any_wanted,
    close_buffer,
    is_wanted,
    leave,
    next_use,
)

# A closure search stops after so many ops; the cost so far is then taken for the whole.
MAX_CLOSURE = 100
# An op of a closure search takes about as long as looking at so many buffers.
CLOSURE_SCANS = 10
IMPOSSIBLE = -1.0
UNWANTED = -1e300
PINNED = 1e300


class Rule(NamedTuple):
    """How to evict and when to give up: a named tuple so that kernels take it as it is.

    `cost_power` (a) and `distance_power` (b); `guide[row_of[position], v]` is added to the
    logarithm of the score of v, so a positive entry means "keep". The walk gives up if it holds
    more than `ceiling_bytes`, takes more than `ceiling_ns` or looks at `max_scans` buffers.
    """

    limit_bytes: int
    ceiling_bytes: int
    ceiling_ns: int
    max_scans: int
    cost_power: float
    distance_power: float
    guide: Real
    row_of: Int64


@part
def closure_cost(arrays: Arrays, walk: Walk, buffer: int) -> float:
    """The time to recompute every member of `buffer`, or the value ALONE, once they are gone.

    IMPOSSIBLE if an op that may run once only is in the way. The tainted values in memory that
    the recomputation reads are left in `walk.leaves`.
    """
    alone = walk.totals[ALONE]
    walk.totals[MARK] += 1
    walk.totals[QUEUED] = 0
    v = alone if alone != NONE else walk.buffer[buffer, FIRST_MEMBER]
    while v != NONE:
        enqueue(walk, arrays.writer[v])
        v = walk.value[v, SIBLING] if alone == NONE else NONE
    cost, done, leaves = 0.0, 0, 0
    while done < walk.totals[QUEUED]:
        op = walk.queue[done]
        done += 1
        if not arrays.recomputable[op]:
            return IMPOSSIBLE
        cost += arrays.time_ns[op]
        for k in range(arrays.read_at[op], arrays.read_at[op + 1]):
            q = arrays.reads[k]
            home = walk.value[q, HOME]
            if home != NONE and home != buffer and q != alone:
                if walk.value[q, IS_TAINTED]:
                    walk.leaves[leaves] = q
                    leaves += 1
            elif walk.totals[QUEUED] < MAX_CLOSURE:
                enqueue(walk, arrays.writer[q])
            elif walk.value[q, IS_TAINTED]:
                return IMPOSSIBLE
    walk.totals[LEAVES] = leaves
    walk.totals[SCANNED] += CLOSURE_SCANS * done
    return cost


@part
def enqueue(walk: Walk, op: int) -> None:
    """Add an op to the closure search unless it is there."""
    if walk.stamp[op] != walk.totals[MARK]:
        walk.stamp[op] = walk.totals[MARK]
        walk.queue[walk.totals[QUEUED]] = op
        walk.totals[QUEUED] += 1


@part
def hold_leaves(walk: Walk, until: int) -> None:
    """Keep what the last closure search found, for it may be impossible to get again."""
    for k in range(walk.totals[LEAVES]):
        q = walk.leaves[k]
        walk.value[q, HELD_UNTIL] = max(walk.value[q, HELD_UNTIL], until)


@part
def needed_until(arrays: Arrays, walk: Walk, v: int, horizon: int, end: int) -> int:
    """The last position up to which an evicted v must remain recomputable."""
    use = next_use(arrays, walk, v, horizon, end)
    return max(int(walk.value[v, HELD_UNTIL]), NONE if use == NEVER else use)


@part
def log_cost_of(arrays: Arrays, walk: Walk, buffer: int) -> float:
    """The logarithm of the recompute cost of a buffer as it is now; PINNED if impossible."""
    cost = closure_cost(arrays, walk, buffer)
    walk.logs[buffer, LOG_COST] = PINNED if cost == IMPOSSIBLE else np.log(cost + 1.0)
    return float(walk.logs[buffer, LOG_COST])


@part
def eviction_score(
    arrays: Arrays, walk: Walk, rule: Rule, buffer: int, horizon: int, end: int
) -> float:
    """Lowest is evicted first; UNWANTED if it costs nothing, PINNED if it must stay."""
    if walk.buffer[buffer, MEMBER_PINS] > 0 or walk.bytes[buffer] == 0:
        return PINNED
    soonest = NEVER
    guide = -PINNED
    row = rule.row_of[min(horizon, end - 1)]
    v = int(walk.buffer[buffer, FIRST_MEMBER])
    while v != NONE:
        use = next_use(arrays, walk, v, horizon, end)
        if use == end:
            return PINNED
        if use != NEVER or walk.value[v, HELD_UNTIL] >= horizon:
            soonest = min(soonest, use, end)
            guide = max(guide, rule.guide[row, v])
        v = int(walk.value[v, SIBLING])
    if soonest == NEVER:
        return UNWANTED
    log_cost = float(walk.logs[buffer, LOG_COST])
    if log_cost == UNKNOWN:
        log_cost = log_cost_of(arrays, walk, buffer)
    if log_cost == PINNED:
        return PINNED
    score = rule.cost_power * log_cost - walk.logs[buffer, LOG_BYTES]
    return float(score - rule.distance_power * np.log(soonest - horizon + 1.0) + guide)


@part
def make_room(
    arrays: Arrays, walk: Walk, rule: Rule, need_bytes: int, horizon: int, end: int
) -> bool:
    """Evict until `need_bytes` more fit or nothing is left that could go; False: give up."""
    while walk.totals[HELD_BYTES] + need_bytes > rule.limit_bytes:
        best, lowest = NONE, PINNED
        walk.totals[SCANNED] += walk.totals[LIVE]
        if walk.totals[SCANNED] > rule.max_scans:
            return False
        for place in range(walk.totals[LIVE]):
            buffer = int(walk.pool[place])
            score = eviction_score(arrays, walk, rule, buffer, horizon, end)
            if score < lowest:
                best, lowest = buffer, score
                if score == UNWANTED:
                    break
        if best == NONE:
            break
        if lowest != UNWANTED:
            before = walk.logs[best, LOG_COST]
            if log_cost_of(arrays, walk, best) > before:
                continue
            until = NONE
            v = int(walk.buffer[best, FIRST_MEMBER])
            while v != NONE:
                until = max(until, needed_until(arrays, walk, v, horizon, end))
                v = int(walk.value[v, SIBLING])
            hold_leaves(walk, until)
        close_buffer(walk, best)
    return bool(walk.totals[HELD_BYTES] + need_bytes <= rule.ceiling_bytes)


@part
def drop(arrays: Arrays, walk: Walk, v: int, horizon: int, end: int) -> None:
    """Evict one value on request, unless that would make it unobtainable."""
    if walk.value[v, HOME] <= FREE or walk.value[v, PINS] > 0:
        return
    if is_wanted(arrays, walk, v, horizon, end):
        walk.totals[ALONE] = v
        cost = closure_cost(arrays, walk, len(walk.bytes) - 1)
        walk.totals[ALONE] = NONE
        if cost == IMPOSSIBLE:
            return
        hold_leaves(walk, needed_until(arrays, walk, v, horizon, end))
    leave(walk, v)


@part
def settle(arrays: Arrays, walk: Walk, buffer: int, horizon: int, end: int) -> None:
    """Close a buffer that no op in progress pins and whose members nothing wants."""
    if buffer <= FREE or walk.buffer[buffer, MEMBER_PINS] > 0:
        return
    if not any_wanted(arrays, walk, buffer, horizon, end):
        close_buffer(walk, buffer)

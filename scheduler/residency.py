"""What is in memory while a base order is walked: buffers, their members, pins and holds.

Here the future is unknown, so memory is an upper estimate: a value counts as held until it is
evicted, or until the base order no longer wants it. `remat.scheduler.evaluate` has the last word.
"""

from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Flags, Int64, Real, part

# The buffer of what costs nothing; it is never evicted.
FREE = 0
# The next use of a value that nothing wants any more.
NEVER = 1 << 30
# The logarithm of a recompute cost that is not known.
UNKNOWN = -1.0

# Columns of `Walk.value`.
HOME = 0
SIBLING = 1
PINS = 2
HELD_UNTIL = 3
CURSOR = 4
IS_TAINTED = 5
VALUE_COLUMNS = 6

# Columns of `Walk.buffer`.
FIRST_MEMBER = 0
MEMBER_PINS = 1
PLACE = 2
BUFFER_COLUMNS = 3

# Columns of `Walk.logs`.
LOG_COST = 0
LOG_BYTES = 1
LOG_COLUMNS = 2

# Rows of `Walk.totals`.
HELD_BYTES = 0
LIVE = 1
EMITTED = 2
TIME_NS = 3
TOUCHED = 4
MISSING = 5
LEAVES = 6
MARK = 7
QUEUED = 8
ALONE = 9
DEPTH = 10
SCANNED = 11
TOTALS = 12


class Walk(NamedTuple):
    """The state of one walk over a base order.

    Packed, since the compiler's time grows with the number of arrays it passes around.
    `value`, one row per value: HOME, its buffer or NONE; SIBLING, the next member of that buffer;
    PINS by ops in progress; HELD_UNTIL, the last position at which something evicted may need it
    for its recomputation; CURSOR into `use_at`; IS_TAINTED, whether an op that may run once only
    is behind it. `use_from`/`use_at`: the positions of the base order that read each value.
    `buffer`, one row per buffer: FIRST_MEMBER, MEMBER_PINS, PLACE in `pool`; `bytes` and `logs`
    (of its recompute cost and its bytes) are per buffer too. `pool` is a permutation of them,
    live ones first. `runs` counts runs per op. The rest is scratch: `stack` (op and where its
    `missing` reads begin; DEPTH entries), the closure search (`stamp`, `queue`, `leaves`; it is
    about the value ALONE unless that is NONE), the `touched` values
    of this position, the buffer `choice` of each output; `steps` is the result.
    """

    value: Int64
    use_from: Int64
    use_at: Int64
    buffer: Int64
    bytes: Int64
    logs: Real
    pool: Int64
    runs: Int64
    stack: Int64
    missing: Int64
    stamp: Int64
    queue: Int64
    leaves: Int64
    touched: Int64
    choice: Int64
    steps: Int64
    totals: Int64

    @classmethod
    def over(cls, arrays: Arrays, order: Int64, max_steps: int) -> "Walk":
        """An empty memory at the start of `order`."""
        n, m = arrays.ops, arrays.values
        use_from, use_at = _uses(arrays, order)
        widest = int(np.diff(arrays.read_at).max()) + int(np.diff(arrays.write_at).max())
        value = np.zeros((m, VALUE_COLUMNS), dtype=np.int64)
        value[:, HOME] = value[:, SIBLING] = value[:, HELD_UNTIL] = NONE
        value[:, CURSOR] = use_from[:-1]
        value[:, IS_TAINTED] = tainted(arrays)
        buffer = np.zeros((m + 2, BUFFER_COLUMNS), dtype=np.int64)
        # Buffer m + 1 never opens; a closure search for a single value runs under its number.
        buffer[:, PLACE] = np.arange(-1, m + 1)

        totals = np.zeros(TOTALS, dtype=np.int64)
        totals[ALONE] = NONE

        def per(count: int) -> Int64:
            return np.zeros(count, dtype=np.int64)

        return cls(
            value=value,
            use_from=use_from,
            use_at=use_at,
            buffer=buffer,
            bytes=np.zeros(m + 2, dtype=np.int64),
            logs=np.zeros((m + 2, LOG_COLUMNS), dtype=np.float64),
            pool=np.arange(1, m + 2, dtype=np.int64),
            runs=per(n),
            stack=per(2 * n + 2),
            missing=per(len(arrays.reads) + 1),
            stamp=per(n),
            queue=per(n + 1),
            leaves=per(len(arrays.reads) + 1),
            touched=per(max_steps * widest + widest),
            choice=per(widest + 1),
            steps=per(max_steps),
            totals=totals,
        )


def _uses(arrays: Arrays, order: Int64) -> tuple[Int64, Int64]:
    """The positions of `order` that read each value, ascending, once per read slot."""
    counts = np.diff(arrays.read_at)[order]
    starts = arrays.read_at[:-1][order]
    first = np.repeat(np.cumsum(counts) - counts, counts)
    values = arrays.reads[np.repeat(starts, counts) + np.arange(len(first)) - first]
    positions = np.repeat(np.arange(len(order)), counts)[np.argsort(values, kind="stable")]
    use_from = np.zeros(arrays.values + 1, dtype=np.int64)
    use_from[1:] = np.cumsum(np.bincount(values, minlength=arrays.values))
    return use_from, positions.astype(np.int64)


def tainted(arrays: Arrays) -> Flags:
    """Values that cannot be recomputed from the graph inputs alone."""
    result = np.zeros(arrays.values, dtype=np.bool_)
    if not arrays.recomputable.all():
        for op in range(arrays.ops):
            reads = arrays.reads[arrays.read_at[op] : arrays.read_at[op + 1]]
            if not arrays.recomputable[op] or result[reads].any():
                result[arrays.writes[arrays.write_at[op] : arrays.write_at[op + 1]]] = True
    return result


@part
def next_use(arrays: Arrays, walk: Walk, v: int, horizon: int, end: int) -> int:
    """The first position >= horizon that reads v; `end` if kept after all reads; else NEVER."""
    k, last = walk.value[v, CURSOR], walk.use_from[v + 1]
    while k < last and walk.use_at[k] < horizon:
        k += 1
    walk.value[v, CURSOR] = k
    if k < last:
        return int(walk.use_at[k])
    return end if arrays.kept[v] else NEVER


@part
def is_wanted(arrays: Arrays, walk: Walk, v: int, horizon: int, end: int) -> bool:
    """Whether the base order, or the recomputation of something evicted, still needs v."""
    if walk.value[v, HELD_UNTIL] >= horizon:
        return True
    return next_use(arrays, walk, v, horizon, end) != NEVER


@part
def any_wanted(arrays: Arrays, walk: Walk, buffer: int, horizon: int, end: int) -> bool:
    """Whether any member of a buffer is wanted at or after the horizon."""
    v = int(walk.buffer[buffer, FIRST_MEMBER])
    while v != NONE:
        if is_wanted(arrays, walk, v, horizon, end):
            return True
        v = int(walk.value[v, SIBLING])
    return False


@part
def open_buffer(walk: Walk, size: int) -> int:
    """A new buffer without members."""
    buffer = int(walk.pool[walk.totals[LIVE]])
    walk.totals[LIVE] += 1
    walk.totals[HELD_BYTES] += size
    walk.bytes[buffer] = size
    walk.logs[buffer, LOG_COST] = UNKNOWN
    walk.logs[buffer, LOG_BYTES] = np.log(max(1.0, float(size)))
    walk.buffer[buffer, FIRST_MEMBER] = NONE
    walk.buffer[buffer, MEMBER_PINS] = 0
    return buffer


@part
def close_buffer(walk: Walk, buffer: int) -> None:
    """Release a buffer and forget its members."""
    forget_members(walk, buffer)
    walk.totals[HELD_BYTES] -= walk.bytes[buffer]
    walk.totals[LIVE] -= 1
    place = walk.buffer[buffer, PLACE]
    last = walk.pool[walk.totals[LIVE]]
    walk.pool[place] = last
    walk.buffer[last, PLACE] = place
    walk.pool[walk.totals[LIVE]] = buffer
    walk.buffer[buffer, PLACE] = walk.totals[LIVE]


@part
def forget_members(walk: Walk, buffer: int) -> None:
    """Empty a buffer that stays open."""
    v = walk.buffer[buffer, FIRST_MEMBER]
    while v != NONE:
        walk.value[v, HOME] = NONE
        v = walk.value[v, SIBLING]
    walk.buffer[buffer, FIRST_MEMBER] = NONE
    walk.buffer[buffer, MEMBER_PINS] = 0


@part
def enter(walk: Walk, v: int, buffer: int) -> None:
    """Make v a member of a buffer, with the pins it has."""
    walk.value[v, HOME] = buffer
    if buffer != FREE:
        walk.value[v, SIBLING] = walk.buffer[buffer, FIRST_MEMBER]
        walk.buffer[buffer, FIRST_MEMBER] = v
        walk.buffer[buffer, MEMBER_PINS] += walk.value[v, PINS]
        walk.logs[buffer, LOG_COST] = UNKNOWN


@part
def leave(walk: Walk, v: int) -> None:
    """Take v out of its buffer, which closes if it was the last member."""
    buffer = int(walk.value[v, HOME])
    walk.value[v, HOME] = NONE
    if buffer <= FREE:
        return
    after = walk.value[v, SIBLING]
    before = walk.buffer[buffer, FIRST_MEMBER]
    walk.buffer[buffer, MEMBER_PINS] -= walk.value[v, PINS]
    walk.logs[buffer, LOG_COST] = UNKNOWN
    if before != v:
        while walk.value[before, SIBLING] != v:
            before = walk.value[before, SIBLING]
        walk.value[before, SIBLING] = after
    elif after != NONE:
        walk.buffer[buffer, FIRST_MEMBER] = after
    else:
        close_buffer(walk, buffer)


@part
def pin(walk: Walk, v: int) -> None:
    """Keep a value in memory for an op in progress, once per read slot."""
    walk.value[v, PINS] += 1
    home = walk.value[v, HOME]
    if home > FREE:
        walk.buffer[home, MEMBER_PINS] += 1


@part
def unpin(walk: Walk, v: int) -> None:
    """Undo one `pin`."""
    walk.value[v, PINS] -= 1
    home = walk.value[v, HOME]
    if home > FREE:
        walk.buffer[home, MEMBER_PINS] -= 1

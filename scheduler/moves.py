"""The moves of the local search: each writes a neighbour of an evaluated sequence.

A move reads `here` (evaluated) and writes steps and length of `there`; it returns False if it
found nothing to do. Nothing here decides whether a move was good.
"""

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Int64, part
from remat.scheduler.draws import below, uniform
from remat.scheduler.renew import (
    ACROSS,
    ADDED,
    ADDED_AT,
    AT,
    DROPPED,
    RENEWED,
    STAMP,
    WRITTEN,
    Desk,
    begin_copy,
    renew,
)
from remat.scheduler.state import (
    BUFFER,
    BUFFERS,
    BYTES,
    FIRST_USE,
    LENGTH,
    MEMORY_BYTES,
    OPENED,
    READ_FROM,
    RELEASED,
    TOUCHED_AT,
    VALUE,
    WRITE_FROM,
    WRITTEN_AT,
    State,
)

# How often a buffer to drop is drawn by its size, and how often kept ones are drawn too.
BY_BYTES_CHANCE = 0.7
MAY_BE_KEPT_CHANCE = 0.2
NO_CAP = 1 << 62
NEAR_STEPS = 8
WINDOW_STEPS = 40
TRIES = 40


@part
def rewrite(arrays: Arrays, here: State, there: State, desk: Desk) -> bool:  # noqa: C901
    """Copy the sequence with what `desk.job` asks for computed anew.

    That is what lives in the buffer DROPPED across the step ACROSS, right before each of its
    later readers, the kept part of it at the end; or the value ADDED before the step ADDED_AT.
    """
    length, room = here.totals[LENGTH], len(there.steps)
    # Fields in local names, and a call only where something is lost: calls pass every array.
    steps, step, source, instance = here.steps, here.step, here.source, here.instance
    latest, lost, target = desk.latest, desk.lost, there.steps
    dropped, across = desk.job[DROPPED], desk.job[ACROSS]
    added_at, first, last_lost = desk.job[ADDED_AT], across + 1, NONE
    if dropped != NONE:
        last_lost = here.buffer[dropped, RELEASED]
    # Nothing is computed anew before the step `first`, nor from `end` on.
    end = max(last_lost, added_at) + 1
    move(steps, 0, target, 0, first)
    for i in range(step[first, WRITE_FROM]):
        latest[instance[i, VALUE]] = i
    written = first
    for t in range(first, min(end, length)):
        count = 0
        if t == added_at:
            lost[0], count = desk.job[ADDED], 1
        elif t <= last_lost:
            for k in range(step[t, READ_FROM], step[t + 1, READ_FROM]):
                i = source[k]
                v = instance[i, VALUE]
                is_lost = instance[i, BUFFER] == dropped and instance[i, WRITTEN_AT] <= across
                if is_lost and latest[v] == i:
                    lost[count] = v
                    count += 1
        if count > 0:
            written = renew_lost(arrays, here, there, desk, t, written, count)
            if written == NONE:
                return False
        if written < room:
            target[written] = steps[t]
            written += 1
            for i in range(step[t, WRITE_FROM], step[t + 1, WRITE_FROM]):
                latest[instance[i, VALUE]] = i
    if end > length:
        count = lost_at_the_end(arrays, here, desk)
        written = renew_lost(arrays, here, there, desk, length, written, count)
    left = max(0, length - end)
    if written == NONE or written + left >= room:
        return False
    move(steps, end, target, written, left)
    there.totals[LENGTH] = written + left
    return True


@part
def renew_lost(
    arrays: Arrays, here: State, there: State, desk: Desk, t: int, written: int, count: int
) -> int:
    """Compute the first `count` of `desk.lost` anew before step t; the steps written then, NONE
    if it cannot be."""
    desk.job[AT] = t
    desk.job[WRITTEN] = written
    for k in range(count):
        v = desk.lost[k]
        # Another one may have brought it along.
        if desk.latest[v] != RENEWED and not renew(arrays, here, there, desk, v):
            return NONE
    return int(desk.job[WRITTEN])


@part
def lost_at_the_end(arrays: Arrays, here: State, desk: Desk) -> int:
    """Write what is to be computed anew after the last step to `desk.lost`; how many."""
    if desk.job[ADDED_AT] == here.totals[LENGTH]:
        desk.lost[0] = desk.job[ADDED]
        return 1
    latest, kept, instance, lost = desk.latest, arrays.kept, here.instance, desk.lost
    buffer, count = desk.job[DROPPED], 0
    for v in range(len(latest)):
        i = latest[v]
        if i >= 0 and kept[v] and instance[i, BUFFER] == buffer:
            lost[count] = v
            count += 1
    return count


@part
def pick_buffer(here: State, desk: Desk, across: int) -> int:
    """A random buffer to drop across a step, mostly a large one; NONE if there is none.

    It is held before and after the step, which does not touch it. Now and then it may be a kept
    one, to be computed anew at the end.
    """
    table, length = here.buffer, here.totals[LENGTH]
    for k in range(here.step[across, READ_FROM], here.step[across + 1, READ_FROM]):
        home = here.instance[here.source[k], BUFFER]
        if home >= 0:
            table[home, TOUCHED_AT] = across
    # Capped at one byte, all buffers are equally likely.
    cap = NO_CAP if uniform(desk.rng) < BY_BYTES_CHANCE else 1
    end = length + 1 if uniform(desk.rng) < MAY_BE_KEPT_CHANCE else length
    opened, total = 0, 0
    while opened < here.totals[BUFFERS] and table[opened, OPENED] < across:
        if across < table[opened, RELEASED] < end and table[opened, TOUCHED_AT] != across:
            total += min(cap, table[opened, BYTES])
        opened += 1
    left = int(uniform(desk.rng) * total)
    for buffer in range(opened):
        if across < table[buffer, RELEASED] < end and table[buffer, TOUCHED_AT] != across:
            left -= min(cap, table[buffer, BYTES])
            if left < 0:
                return buffer
    return NONE


@part
def ask_to_drop(here: State, desk: Desk, across: int, eagerness: float) -> bool:
    """Ask `rewrite` to drop a random buffer across a step; False if there is none."""
    begin_copy(desk, across, eagerness)
    desk.job[DROPPED] = pick_buffer(here, desk, across)
    return bool(desk.job[DROPPED] != NONE)


@part
def also_remove(here: State, there: State, desk: Desk) -> bool:
    """Remove from a neighbour a random occurrence of an op that `here` runs more than once."""
    length = there.totals[LENGTH]
    for _ in range(TRIES):
        t = below(desk.rng, length)
        if here.copies[there.steps[t]] > 1:
            move(there.steps, t + 1, there.steps, t, length - 1 - t)
            there.totals[LENGTH] = length - 1
            return True
    return False


@part
def move(source: Int64, start: int, target: Int64, to: int, count: int) -> None:
    """Copy a run of steps, first to last: within one array only downwards."""
    for k in range(count):
        target[to + k] = source[start + k]


@part
def ask_to_add(arrays: Arrays, here: State, desk: Desk) -> bool:
    """Ask `rewrite` for an input of a random step right before it, or a kept value at the end."""
    at = below(desk.rng, here.totals[LENGTH])
    v = below(desk.rng, len(desk.latest))
    if uniform(desk.rng) < 0.5:
        first, end = arrays.read_at[here.steps[at]], arrays.read_at[here.steps[at] + 1]
        if first == end:
            return False
        v = arrays.reads[first + below(desk.rng, end - first)]
    elif not arrays.kept[v]:
        return False
    else:
        at = here.totals[LENGTH]
    begin_copy(desk, at - 1, 0.5)
    desk.job[ADDED] = v
    desk.job[ADDED_AT] = at
    return True


@part
def remove_one(here: State, there: State, desk: Desk) -> bool:
    """Remove a random occurrence of an op that occurs more than once."""
    length = here.totals[LENGTH]
    if length == len(here.copies):
        return False
    t = below(desk.rng, length)
    tries = 0
    while here.copies[here.steps[t]] == 1:
        tries += 1
        # Where recomputations are rare, take the next one.
        t = below(desk.rng, length) if tries < TRIES else (t + 1) % length
    move(here.steps, 0, there.steps, 0, t)
    move(here.steps, t + 1, there.steps, t, length - 1 - t)
    there.totals[LENGTH] = length - 1
    return True


@part
def remove_window(here: State, there: State, desk: Desk) -> bool:
    """Remove all recomputations in a random window."""
    length = here.totals[LENGTH]
    if length == len(here.copies):
        return False
    start = below(desk.rng, length)
    end = start + 2 + below(desk.rng, max(2, min(WINDOW_STEPS, length // 8)))
    desk.job[STAMP] += 1
    written = 0
    for t in range(length):
        op = here.steps[t]
        if start <= t < end and desk.stamp[op] == desk.job[STAMP]:
            continue
        desk.stamp[op] = desk.job[STAMP]
        there.steps[written] = op
        written += 1
    there.totals[LENGTH] = written
    return bool(written < length)


@part
def shift(here: State, there: State, desk: Desk) -> bool:
    """Move a random step within the range that its sources and its readers leave."""
    length = here.totals[LENGTH]
    t = below(desk.rng, length)
    first, last = 0, length - 1
    if uniform(desk.rng) < 0.5:
        first, last = max(0, t - NEAR_STEPS), min(last, t + NEAR_STEPS)
    for k in range(here.step[t, READ_FROM], here.step[t + 1, READ_FROM]):
        first = max(first, here.instance[here.source[k], WRITTEN_AT] + 1)
    for i in range(here.step[t, WRITE_FROM], here.step[t + 1, WRITE_FROM]):
        if here.instance[i, FIRST_USE] > t:
            last = min(last, here.instance[i, FIRST_USE] - 1)
    if last <= first:
        return False
    choice = uniform(desk.rng)
    to = first + below(desk.rng, last - first + 1)
    if choice < 0.2:
        to = first
    elif choice < 0.5:
        to = last
    return move_step(here, there, t, to)


@part
def move_step(here: State, there: State, t: int, to: int) -> bool:
    """Copy the sequence with step t moved to place `to`; False if it is there already."""
    length = here.totals[LENGTH]
    low, high = min(t, to), max(t, to)
    move(here.steps, 0, there.steps, 0, length)
    if to > t:
        move(here.steps, low + 1, there.steps, low, high - low)
    else:
        move(here.steps, low, there.steps, low + 1, high - low)
    there.steps[to] = here.steps[t]
    there.totals[LENGTH] = length
    return to != t


@part
def tight_step(here: State, limit_bytes: int, desk: Desk) -> int:
    """The step of the peak, or a random one over the limit."""
    length = here.totals[LENGTH]
    if uniform(desk.rng) < 0.5:
        start = below(desk.rng, length)
        for k in range(length):
            t = (start + k) % length
            if here.step[t, MEMORY_BYTES] > limit_bytes:
                return int(t)
    peak = 0
    for t in range(length):
        if here.step[t, MEMORY_BYTES] > here.step[peak, MEMORY_BYTES]:
            peak = t
    return peak

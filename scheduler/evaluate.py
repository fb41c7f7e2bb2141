"""Time and memory of a step sequence by the memory law of `remat.problem`, compiled.

Linear in steps, reads and writes: `link` finds the instance behind every read, `prune` removes
recomputations that nothing reads or keeps (one backward pass), `place` walks the buffers.
`remat.simulate.strict` is the judge; this is a second implementation that shares no code with it.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import NONE, Arrays
from remat.scheduler.compiled import Int64, entry, part
from remat.scheduler.state import (
    BUFFER,
    BUFFERS,
    BYTES,
    EXCESS_BYTES,
    FIRST_USE,
    INSTANCES,
    LAST_USE,
    LENGTH,
    MEMORY_BYTES,
    OPENED,
    OUTSTANDING,
    PEAK_BYTES,
    READ_FROM,
    RELEASED,
    TIME_NS,
    TOUCHED_AT,
    USES,
    VALUE,
    WRITE_FROM,
    WRITTEN_AT,
    State,
)


class Price(NamedTuple):
    """What a sequence may cost: time, and a penalty for what it holds over the limit.

    `penalty` is in nanoseconds per limit; `ceiling` bounds the energy.
    """

    limit_bytes: int
    penalty: float
    ceiling: float


@dataclass(frozen=True, slots=True, eq=False)
class Scored:
    """A sequence without dead recomputations; `excess_bytes` over the limit, summed over steps."""

    steps: Int64
    time_ns: int
    peak_bytes: int
    excess_bytes: int
    memory_bytes: Int64

    @property
    def held_bytes(self) -> dict[int, int]:
        """The memory of each op's step, the last one of an op that runs more than once."""
        return dict(zip(self.steps.tolist(), self.memory_bytes.tolist(), strict=True))

    def better_than(self, other: "Scored | None") -> bool:
        """Less time, then less peak."""
        if other is None:
            return True
        return (self.time_ns, self.peak_bytes) < (other.time_ns, other.peak_bytes)

    def lower_than(self, other: "Scored | None") -> bool:
        """Less peak, then less time."""
        if other is None:
            return True
        return (self.peak_bytes, self.time_ns) < (other.peak_bytes, other.time_ns)


def score(arrays: Arrays, steps: Sequence[int] | Int64, limit_bytes: int) -> Scored | None:
    """Evaluate `steps`; None if a read finds no instance or an op is missing or may not repeat."""
    state = State.holding(arrays, max(len(steps), 1))
    load(state, np.asarray(steps, dtype=np.int64))
    if not evaluate(arrays, state, limit_bytes) or not runs_each_op(arrays, state):
        return None
    return scored(state)


def load(state: State, steps: Int64) -> None:
    """Put a sequence into a state; it is not yet evaluated."""
    state.steps[: len(steps)] = steps
    state.totals[LENGTH] = len(steps)


def scored(state: State) -> Scored:
    """What an evaluated state says, as a value of its own."""
    length = int(state.totals[LENGTH])
    return Scored(
        steps=state.steps[:length].copy(),
        time_ns=int(state.totals[TIME_NS]),
        peak_bytes=int(state.totals[PEAK_BYTES]),
        excess_bytes=int(state.totals[EXCESS_BYTES]),
        memory_bytes=state.step[:length, MEMORY_BYTES].copy(),
    )


def runs_each_op(arrays: Arrays, state: State) -> bool:
    """Every op occurs, and once if it may not be recomputed."""
    copies = state.copies
    return bool((copies >= 1).all() and (copies[~arrays.recomputable] == 1).all())


@part
def link(arrays: Arrays, state: State) -> bool:
    """The instance behind each read, and the uses of each instance."""
    # Fields in local names: loading them once instead of at each use saves a third of the time.
    steps, step, source, instance = state.steps, state.step, state.source, state.instance
    latest, copies = state.latest, state.copies
    read_at, reads, write_at, writes = arrays.read_at, arrays.reads, arrays.write_at, arrays.writes
    for v in range(len(latest)):
        latest[v] = NONE
    for op in range(len(copies)):
        copies[op] = 0
    length = state.totals[LENGTH]
    slots, instances = 0, 0
    for t in range(length):
        op = steps[t]
        copies[op] += 1
        step[t, READ_FROM] = slots
        step[t, WRITE_FROM] = instances
        first, end = read_at[op], read_at[op + 1]
        if slots + end - first > len(source):
            return False
        for k in range(first, end):
            i = latest[reads[k]]
            if i < 0:
                return False
            source[slots] = i
            slots += 1
            if instance[i, USES] == 0:
                instance[i, FIRST_USE] = t
            instance[i, USES] += 1
            instance[i, LAST_USE] = t
        first, end = write_at[op], write_at[op + 1]
        if instances + end - first > len(instance):
            return False
        for k in range(first, end):
            v = writes[k]
            latest[v] = instances
            instance[instances, VALUE] = v
            instance[instances, WRITTEN_AT] = t
            instance[instances, USES] = 0
            instance[instances, FIRST_USE] = t
            instance[instances, LAST_USE] = t
            instances += 1
    step[length, READ_FROM] = slots
    step[length, WRITE_FROM] = instances
    state.totals[INSTANCES] = instances
    return True


@part
def is_dead(arrays: Arrays, state: State, t: int) -> bool:
    """A linked step that nothing reads or keeps although its op occurs elsewhere."""
    if state.copies[state.steps[t]] == 1:
        return False
    for i in range(state.step[t, WRITE_FROM], state.step[t + 1, WRITE_FROM]):
        v = state.instance[i, VALUE]
        if state.instance[i, USES] > 0 or (arrays.kept[v] and state.latest[v] == i):
            return False
    return True


@part
def prune(arrays: Arrays, state: State) -> int:
    """Remove dead recomputations, last first so that what fed only them goes too; how many."""
    length = state.totals[LENGTH]
    removed = 0
    for t in range(length - 1, -1, -1):
        if is_dead(arrays, state, t):
            state.copies[state.steps[t]] -= 1
            state.steps[t] = NONE
            removed += 1
            for k in range(state.step[t, READ_FROM], state.step[t + 1, READ_FROM]):
                state.instance[state.source[k], USES] -= 1
    if removed > 0:
        kept = 0
        for t in range(length):
            if state.steps[t] != NONE:
                state.steps[kept] = state.steps[t]
                kept += 1
        state.totals[LENGTH] = kept
    return removed


@part
def energy(price: Price, ops: int, time_ns: int, peak_bytes: int, excess_bytes: int) -> float:
    """Time plus the penalized excess: its sum over the steps and its maximum count."""
    if excess_bytes == 0:
        return float(time_ns)
    weighted = 6.0 * excess_bytes + 0.5 * ops * (peak_bytes - price.limit_bytes)
    return time_ns + price.penalty * weighted / max(1.0, float(price.limit_bytes))


@part
def total_time_ns(arrays: Arrays, state: State) -> int:
    """The time of all steps."""
    steps, op_time_ns, total_ns = state.steps, arrays.time_ns, 0
    for t in range(state.totals[LENGTH]):
        total_ns += op_time_ns[steps[t]]
    return total_ns


@part
def let_go(table: Int64, buffer: int, t: int) -> int:
    """Take one use off a buffer at step t; the bytes that this releases."""
    if buffer < 0:
        return 0
    table[buffer, OUTSTANDING] -= 1
    if table[buffer, OUTSTANDING] > 0:
        return 0
    table[buffer, RELEASED] = t
    return int(table[buffer, BYTES])


@part
def place(arrays: Arrays, state: State, price: Price) -> bool:  # noqa: C901
    """Open, share, hand over and release buffers along a linked sequence; fill in the totals.

    False as soon as the energy is above the price's ceiling: neither time nor excess falls later.
    """
    op_time_ns, limit_bytes = arrays.time_ns, price.limit_bytes
    total_ns = total_time_ns(arrays, state)
    if total_ns > price.ceiling:
        return False
    steps, step, source, instance = state.steps, state.step, state.source, state.instance
    table, latest, value_bytes, kept = state.buffer, state.latest, arrays.value_bytes, arrays.kept
    alias_slot, inplace_at = arrays.alias_slot, arrays.inplace_at
    inplace_slots, workspace = arrays.inplace_slots, arrays.workspace_bytes
    length = state.totals[LENGTH]
    held, peak, excess, buffers = 0, 0, 0, 0
    for t in range(length):
        op = steps[t]
        slots, slots_end = step[t, READ_FROM], step[t + 1, READ_FROM]
        first, end = step[t, WRITE_FROM], step[t + 1, WRITE_FROM]
        for i in range(first, end):
            v = instance[i, VALUE]
            final = kept[v] and latest[v] == i
            buffer = NONE
            if not final and alias_slot[v] >= 0:
                buffer = instance[source[slots + alias_slot[v]], BUFFER]
            elif not final:
                for k in range(inplace_at[v], inplace_at[v + 1]):
                    giver = instance[source[slots + inplace_slots[k]], BUFFER]
                    # The value is read here, so a single outstanding use is this read.
                    if giver >= 0 and table[giver, OUTSTANDING] == 1:
                        buffer = giver
                        break
            if buffer == NONE and (final or alias_slot[v] == NONE):
                buffer = buffers
                buffers += 1
                table[buffer, BYTES] = value_bytes[v]
                table[buffer, OPENED] = t
                table[buffer, RELEASED] = length
                table[buffer, OUTSTANDING] = 1 if final else 0
                table[buffer, TOUCHED_AT] = NONE
                held += value_bytes[v]
            instance[i, BUFFER] = buffer
            if buffer >= 0:
                # Its own step counts as a use: what is written is held at least that long.
                table[buffer, OUTSTANDING] += instance[i, USES] + 1
        memory = held + workspace[op]
        step[t, MEMORY_BYTES] = memory
        peak = max(peak, memory)
        if memory > limit_bytes:
            excess += memory - limit_bytes
            if energy(price, len(op_time_ns), total_ns, peak, excess) > price.ceiling:
                return False
        for k in range(slots, slots_end):
            held -= let_go(table, instance[source[k], BUFFER], t)
        for i in range(first, end):
            held -= let_go(table, instance[i, BUFFER], t)
    state.totals[TIME_NS], state.totals[PEAK_BYTES] = total_ns, peak
    state.totals[EXCESS_BYTES], state.totals[BUFFERS] = excess, buffers
    return True


@part
def assess(arrays: Arrays, state: State, price: Price) -> bool:
    """Remove dead recomputations from `state.steps` and fill in the rest.

    False if the sequence cannot be executed, is too wide for the state's arrays or has an energy
    above the price's ceiling; what the state says then is of no use.
    """
    if not link(arrays, state):
        return False
    if state.totals[LENGTH] > len(arrays.time_ns) and prune(arrays, state):
        link(arrays, state)
    return place(arrays, state, price)


@entry
def evaluate(arrays: Arrays, state: State, limit_bytes: int) -> bool:
    """`assess` whatever the energy."""
    return assess(arrays, state, Price(limit_bytes, 0.0, np.inf))

"""From a point of the event relaxation to schedules.

The point says what should live right after each event and roughly when ops first run. The base
order is walked, everything else dropped at the events, what is missing recomputed on demand.
Where that oversteps the limit, the greedy eviction repairs it, told by the point what to keep.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.problem import NONE
from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import Int64, Real
from remat.scheduler.evaluate import Scored, score
from remat.scheduler.event_model import Load
from remat.scheduler.events import Relaxed
from remat.scheduler.found import Found
from remat.scheduler.greedy import UNLIMITED, Policy, materialize

# Added to the logarithm of an eviction score for what should live at the next event.
KEEP = 4.0
EXPONENTS = ((1.0, 1.0), (1.0, 0.5), (0.5, 0.5), (1.0, 2.0))


def order_of(found: Relaxed, events: Sequence[int], order: Sequence[int]) -> Int64:
    """`order`, with the ops moved to the intervals in which the point runs them first.

    An event ends its interval, so it comes last there.
    """
    ends = frozenset(events)
    moved = sorted(order, key=lambda op: (found.first_interval[op], op in ends))
    return np.array(moved, dtype=np.int64)


def raw(arrays: Arrays, load: Load, found: Relaxed, events: Sequence[int], order: Int64) -> Scored:
    """The point taken at its word, whatever memory that takes inside the intervals.

    The base order itself where an op would have to run again that may not.
    """
    steps = literal_steps(load, found, events, order.tolist())
    limit = load.problem.limit_bytes
    result = score(arrays, order.tolist() if steps is None else steps, limit)
    if result is None:
        raise ValueError("the base order is not a schedule")
    return result


def literal_steps(
    load: Load, found: Relaxed, events: Sequence[int], order: Sequence[int]
) -> list[int] | None:
    """`order`; after each event only what lives counts as there, and is run again when needed.

    Within an interval nothing is run twice, as in the relaxation. None if an op that may run
    once only would have to run again.
    """
    place_of = {event: place for place, event in enumerate(events)}
    tape = _Tape(load, [NONE] * len(load.stands_for), [])
    ran = [False] * len(load.writer)
    for op in order:
        place = place_of.get(op)
        if place is not None:
            # What lives after the event and not in its interval alone is made in this one.
            for value in sorted(found.living[place]):
                if ran[load.writer[value]]:
                    tape.make(value)
        tape.run(op)
        ran[op] = True
        if place is not None:
            tape.forget(found.living[place])
    for value in sorted(load.problem.kept):
        tape.make(value)
    again = Counter(tape.steps)
    allowed = load.problem.recomputable
    if any(count > 1 and not allowed[op] for op, count in again.items()):
        return None
    return tape.steps


@dataclass(frozen=True, slots=True)
class _Tape:
    """Steps so far, and per value the step that wrote the buffer it is in (NONE: not there).

    An alias is there if it was made from the instance of its source that is there.
    """

    load: Load
    made_at: list[int]
    steps: list[int]

    def run(self, op: int) -> None:
        """Run an op after whatever it reads that is not there."""
        stack = [op]
        while stack:
            missing = [
                writer
                for value in self.load.problem.reads[stack[-1]]
                for writer in self._missing(value)
            ]
            if missing:
                stack.append(missing[0])
            else:
                self._emit(stack.pop())

    def make(self, value: int) -> None:
        """Run the writer of a value that is not there."""
        if self._missing(value):
            self.run(self.load.writer[value])

    def forget(self, living: frozenset[int]) -> None:
        """Nothing that weighs is there but `living`."""
        load = self.load
        for value, root in enumerate(load.shared.class_of):
            if root >= 0 and load.weight[root] > 0.0 and load.stands_for[value] not in living:
                self.made_at[value] = NONE

    def _missing(self, value: int) -> tuple[int, ...]:
        """The op to run for a value, unless it is there."""
        stands_for = self.load.stands_for[value]
        made_at = self.made_at[value]
        is_there = made_at != NONE and made_at == self.made_at[stands_for]
        return () if is_there else (self.load.writer[value],)

    def _emit(self, op: int) -> None:
        self.steps.append(op)
        for value in self.load.problem.writes[op]:
            stands_for = self.load.stands_for[value]
            at = len(self.steps) if stands_for == value else self.made_at[stands_for]
            self.made_at[value] = at


def repaired(
    arrays: Arrays, load: Load, found: Relaxed, events: Sequence[int], order: Int64
) -> Found:
    """The best that follows the point and evicts more when memory runs out."""
    limit = load.problem.limit_bytes
    guide, stage_of = _guide(load, found, events, order)
    best = Found()
    for drops in (_drops(load, found, events, order), ()):
        for cost_power, distance_power in EXPONENTS:
            ceiling = UNLIMITED if best.feasible is None else best.feasible.time_ns
            policy = Policy(cost_power, distance_power, drops, guide, stage_of, ceiling_ns=ceiling)
            steps = materialize(arrays, order, limit, policy)
            if steps is not None:
                best = best.with_candidate(score(arrays, steps, limit))
    return best


def _drops(
    load: Load, found: Relaxed, events: Sequence[int], order: Int64
) -> list[tuple[int, ...]]:
    """Per position the values to drop: after each event all that weigh and do not live."""
    drops: list[tuple[int, ...]] = [()] * len(order)
    at = {int(op): position for position, op in enumerate(order)}
    weighing = [
        value
        for value, root in enumerate(load.shared.class_of)
        if root >= 0 and load.weight[root] > 0.0
    ]
    for place, event in enumerate(events):
        living = found.living[place]
        drops[at[event]] = tuple(v for v in weighing if load.stands_for[v] not in living)
    return drops


def _guide(load: Load, found: Relaxed, events: Sequence[int], order: Int64) -> tuple[Real, Int64]:
    """Per stage (up to each event, then the tail) what to keep: what lives at its end."""
    guide = np.zeros((len(events) + 1, len(load.stands_for)))
    for place in range(len(events)):
        living = found.living[place]
        guide[place] = [KEEP if value in living else 0.0 for value in load.stands_for]
    at = {int(op): position for position, op in enumerate(order)}
    ends = np.array([at[event] for event in events])
    return guide, np.searchsorted(ends, np.arange(len(order)))

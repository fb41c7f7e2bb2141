"""Simulated annealing over the step sequence: free order, any number of recomputations.

State: the sequence itself, "a read takes the latest instance", dead recomputations removed by
evaluation. Objective: time + penalty * excess, the penalty adapted so that 20 to 50 % of the
states visited fit (as in oscillation strategies; Glover, "Heuristics for integer programming
using surrogate constraints", 1977). Temperatures are in units of the mean op time.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import Int64, Real, entry, part
from remat.scheduler.draws import below, uniform
from remat.scheduler.evaluate import Price, assess, energy, evaluate, load, score
from remat.scheduler.found import Found
from remat.scheduler.moves import (
    also_remove,
    ask_to_add,
    ask_to_drop,
    move,
    remove_one,
    remove_window,
    rewrite,
    shift,
    tight_step,
)
from remat.scheduler.renew import Desk
from remat.scheduler.state import EXCESS_BYTES, LENGTH, PEAK_BYTES, TIME_NS, State

# Rows of `Task.chances`, cumulated: the last move, `shift`, takes what is left of 1.
TIGHT_DROP = 0
ANY_DROP = 1
REMOVE_ONE = 2
REMOVE_WINDOW = 3
DROP_AND_REMOVE = 4
ADD = 5
REMATERIALIZE = np.array([0.55, 0.65, 0.82, 0.85, 0.87, 0.89])
REORDER = np.zeros(6)

# Rows of `Task.result`.
BEST_LENGTH = 0
BEST_NS = 1
LEAST_LENGTH = 2
LEAST_BYTES = 3
RESULTS = 4

ADAPT_EVERY = 500
COOL_EVERY = 64
# Keeps the logarithm of a draw finite.
TINY = 1e-300
NOT_FOUND = 1 << 62


class Task(NamedTuple):
    """What to do: a named tuple so that the kernel takes it as it is.

    `best` and `least` receive the fastest sequence that fits and the one of least peak, their
    lengths, time and peak are in `result`.
    """

    limit_bytes: int
    iterations: int
    start_temperature: float
    end_temperature: float
    chances: Real
    best: Int64
    least: Int64
    result: Int64


@dataclass(frozen=True, slots=True)
class Effort:
    """How long and how hot to anneal.

    Temperatures are in units of the mean op time: start at about 0.5 from a poor sequence and at
    0.1 to 0.15 from a good one.
    """

    seed: int
    iterations: int
    start_temperature: float = 0.15
    end_temperature: float = 0.005


def annealed(
    arrays: Arrays,
    steps: Sequence[int] | Int64,
    limit_bytes: int,
    effort: Effort,
    chances: Real,
) -> Found:
    """The best that annealing from `steps` finds with the given `chances` of the moves.

    Nothing is found if `steps` cannot be executed.
    """
    max_steps = max(6 * arrays.ops + 64, 2 * len(steps))
    here, there = State.holding(arrays, max_steps), State.holding(arrays, max_steps)
    load(here, np.asarray(steps, dtype=np.int64))
    result = np.zeros(RESULTS, dtype=np.int64)
    result[BEST_NS] = result[LEAST_BYTES] = NOT_FOUND
    best, least = np.zeros_like(here.steps), np.zeros_like(here.steps)
    task = Task(
        limit_bytes,
        effort.iterations,
        effort.start_temperature,
        effort.end_temperature,
        chances,
        best,
        least,
        result,
    )
    if not evaluate(arrays, here, limit_bytes):
        return Found()
    anneal(arrays, here, there, Desk.for_problem(arrays, effort.seed), task)
    found = Found()
    if result[BEST_NS] != NOT_FOUND:
        found = found.with_candidate(score(arrays, best[: result[BEST_LENGTH]], limit_bytes))
    return found.with_candidate(score(arrays, least[: result[LEAST_LENGTH]], limit_bytes))


@part
def adapted(penalty: float, share: float, mean_ns: float) -> float:
    """A penalty that brings the share of states that fit back to between 20 and 50 %."""
    if share < 0.2:
        return min(penalty * 1.15, mean_ns * 1e7)
    if share > 0.5:
        return max(penalty / 1.1, mean_ns * 1e-3)
    return penalty


@part
def energy_of(state: State, price: Price) -> float:
    """The energy of an assessed state."""
    totals = state.totals
    return energy(
        price, len(state.copies), totals[TIME_NS], totals[PEAK_BYTES], totals[EXCESS_BYTES]
    )


@part
def record(state: State, task: Task) -> None:
    """Keep the sequence if it is the fastest that fits, or the one of least peak."""
    length = state.totals[LENGTH]
    result = task.result
    if state.totals[EXCESS_BYTES] == 0 and state.totals[TIME_NS] < result[BEST_NS]:
        move(state.steps, 0, task.best, 0, length)
        result[BEST_LENGTH] = length
        result[BEST_NS] = state.totals[TIME_NS]
    if state.totals[PEAK_BYTES] < result[LEAST_BYTES]:
        move(state.steps, 0, task.least, 0, length)
        result[LEAST_LENGTH] = length
        result[LEAST_BYTES] = state.totals[PEAK_BYTES]


@part
def propose(arrays: Arrays, here: State, there: State, desk: Desk, task: Task) -> bool:
    """Write a random neighbour of `here` into `there`; False if the move found nothing to do."""
    draw = uniform(desk.rng)
    chances = task.chances
    is_tight = draw < chances[TIGHT_DROP] and here.totals[EXCESS_BYTES] > 0
    is_any = not is_tight and draw < chances[ANY_DROP]
    is_swap = chances[REMOVE_WINDOW] <= draw < chances[DROP_AND_REMOVE]
    if is_tight or is_any or is_swap:
        across = tight_step(here, task.limit_bytes, desk)
        if is_any:
            across = below(desk.rng, here.totals[LENGTH])
        eagerness = 0.4 * is_tight + (1.0 - 0.4 * is_tight) * uniform(desk.rng)
        if not ask_to_drop(here, desk, across, eagerness):
            return False
    elif draw < chances[REMOVE_ONE]:
        return remove_one(here, there, desk)
    elif draw < chances[REMOVE_WINDOW]:
        return remove_window(here, there, desk)
    elif draw >= chances[ADD]:
        return shift(here, there, desk)
    elif not ask_to_add(arrays, here, desk):
        return False
    is_done = rewrite(arrays, here, there, desk)
    return is_done and (not is_swap or also_remove(here, there, desk))


@entry
def anneal(arrays: Arrays, here: State, there: State, desk: Desk, task: Task) -> None:
    """Anneal from the evaluated sequence in `here`."""
    mean_ns = max(1.0, float(arrays.time_ns.sum()) / len(arrays.time_ns))
    penalty = mean_ns
    cost = energy_of(here, Price(task.limit_bytes, penalty, np.inf))
    record(here, task)
    temperature = task.start_temperature * mean_ns
    cooling = (task.end_temperature / task.start_temperature) ** (
        COOL_EVERY / max(task.iterations, COOL_EVERY)
    )
    fitting, seen = 0, 0
    for iteration in range(1, task.iterations + 1):
        if iteration % COOL_EVERY == 0:
            temperature *= cooling
        if not propose(arrays, here, there, desk, task):
            continue
        # Drawn beforehand, so that most of what is turned down is not looked at to its end.
        ceiling = cost - temperature * np.log(max(uniform(desk.rng), TINY))
        price = Price(task.limit_bytes, penalty, ceiling)
        if assess(arrays, there, price):
            here, there = there, here
            cost = energy_of(here, price)
            record(here, task)
        seen += 1
        if here.totals[EXCESS_BYTES] == 0:
            fitting += 1
        if seen == ADAPT_EVERY:
            penalty = adapted(penalty, fitting / seen, mean_ns)
            cost = energy_of(here, Price(task.limit_bytes, penalty, np.inf))
            fitting, seen = 0, 0

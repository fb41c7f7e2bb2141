"""The order-free lower bound on time: the event relaxation, built and solved.

`relax` bounds the time of every schedule within the limit, whatever its order and its number of
recomputations, and hints at what should live when. Differs from Checkmate (Jain et al., MLSys
2020) and Moccasin (Bartan et al., 2023), whose bounds hold for one given order.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from remat.scheduler import event_rows as rows
from remat.scheduler.apart import relaxed, whole
from remat.scheduler.event_model import EventModel, Load, variables, windows
from remat.scheduler.linear import Answer, Effort, Outcome

# Share of the base time by which a solver's bound is rounded down before it is believed.
DOUBT = 1e-6

_FAMILIES = (
    rows.every_op_has_run_by_its_last_interval,
    rows.inputs_live_or_are_computed_in_the_interval,
    rows.inputs_exist_when_an_op_first_runs,
    rows.what_runs_from_an_interval_on_finds_its_inputs,
    rows.what_lives_was_held_or_computed,
    rows.events_find_their_inputs,
    rows.kept_values_are_there_at_the_end,
    rows.memory_fits_at_each_event,
    rows.memory_fits_inside_intervals,
)


@dataclass(frozen=True, slots=True)
class Relaxed:
    """What a relaxation says. `bound_ns`: no schedule within the limit takes less time.

    `living[i]` are the values that live right after event i in the point found, of those that
    stand for themselves and weigh; `first_interval` says when each op runs first in it. Both are
    () if no point was found.
    """

    outcome: Outcome
    bound_ns: int
    living: tuple[frozenset[int], ...]
    first_interval: tuple[int, ...]


def build(load: Load, events: Sequence[int]) -> EventModel:
    """The relaxation with all rows; `events` are ops along a path of the graph, in order."""
    model = variables(load, windows(load, events))
    for family in _FAMILIES:
        family(model)
    return model


def fixed_units(model: EventModel) -> float:
    """The part of the time, in units of the objective, of ops that have no variables."""
    inside = set(model.when.ops)
    times = model.load.problem.time_ns
    return sum(t for op, t in enumerate(times) if op not in inside) / model.load.unit_ns


def bound_ns(model: EventModel, objective: float) -> int:
    """The time that a dual bound proves, rounded so that the solver's tolerances do not matter."""
    base_ns = model.load.base_ns
    if objective == -math.inf:
        return base_ns
    total_ns = (objective + fixed_units(model)) * model.load.unit_ns
    return max(base_ns, math.ceil(total_ns - DOUBT * max(base_ns, total_ns)))


def relax_linear(model: EventModel, effort: Effort) -> Relaxed:
    """The bound with fractions: quick, and a little weaker."""
    return _result(model, relaxed(model.program, effort))


def relax_whole(model: EventModel, effort: Effort, start: Sequence[float] = ()) -> Relaxed:
    """The bound with whole numbers, as far as the effort goes."""
    return _result(model, whole(model.program, effort, start))


def _result(model: EventModel, answer: Answer) -> Relaxed:
    if answer.outcome is Outcome.INFEASIBLE:
        return Relaxed(answer.outcome, model.load.base_ns, (), ())
    bound = bound_ns(model, answer.bound)
    if not len(answer.point):
        return Relaxed(answer.outcome, bound, (), ())
    living = []
    for i in model.intervals[1:]:
        there = (v for v, var in model.lives[i].items() if answer.point[var] > 0.5)
        living.append(frozenset(there))
    return Relaxed(answer.outcome, bound, tuple(living), _first_intervals(model, answer))


def _first_intervals(model: EventModel, answer: Answer) -> tuple[int, ...]:
    """When each op first runs: as in the point, but not before the ops it reads from."""
    problem, writer = model.load.problem, model.load.writer
    first = list(model.when.first)
    for op, values in enumerate(problem.reads):
        ran = (i for i in model.intervals if op in model.runs[i])
        own = (i for i in ran if answer.point[model.runs[i][op]] > 0.5)
        sources = (first[writer[value]] for value in values)
        first[op] = max([next(own, first[op]), *sources])
    return tuple(first)

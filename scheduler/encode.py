"""From a schedule to its point in the event relaxation.

That every schedule within the limit has a point that satisfies all rows, at no more cost than
its time, is what makes the relaxation a bound; this is the map, and a start for the solver.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass

from remat.problem import NONE
from remat.scheduler.chain import first_runs
from remat.scheduler.event_model import EventModel


def encode(model: EventModel, steps: Sequence[int]) -> list[float]:
    """The values of all variables of `model` for `steps` (a legal sequence)."""
    point = [0.0] * len(model.program.cost)
    ends = _ends(model, steps)
    spans = _spans(model, steps)
    for at, op in enumerate(steps):
        var = model.runs[bisect_left(ends, at)].get(op)
        if var is not None:
            point[var] = 1.0
    for i in model.intervals[1:]:
        start = ends[i - 1]
        end = ends[i] if i < len(ends) else len(steps)
        for value, var in model.lives[i].items():
            used_until = [span.last_use for span in spans[value] if span.written <= start]
            is_there = model.program.low[var] == 1.0
            point[var] = float(is_there or max(used_until, default=start) > start)
            held = model.held[i].get(value)
            if held is not None:
                point[held] = float(max(used_until, default=NONE) >= end)
    _derive(model, point)
    return point


@dataclass(slots=True)
class _Span:
    """An instance: the step that writes it, the last that uses it or an alias of it."""

    written: int
    last_use: int


def _ends(model: EventModel, steps: Sequence[int]) -> list[int]:
    """The step of the first run of each event; interval i ends with step ends[i]."""
    first = first_runs(steps)
    return [first[event] for event in model.when.events]


def _spans(model: EventModel, steps: Sequence[int]) -> list[list[_Span]]:
    """Per value that stands for itself its instances; a kept one is used until the end."""
    problem, stands_for = model.load.problem, model.load.stands_for
    spans: list[list[_Span]] = [[] for _ in problem.value_names]
    home: dict[int, _Span] = {}
    for at, op in enumerate(steps):
        for value in problem.reads[op]:
            home[value].last_use = at
        for value in problem.writes[op]:
            if stands_for[value] == value:
                home[value] = _Span(at, NONE)
                spans[value].append(home[value])
            else:
                home[value] = home[problem.alias_of[value]]
    for value in problem.kept:
        home[value].last_use = len(steps)
    return spans


def _derive(model: EventModel, point: list[float]) -> None:
    """All other variables at the least values that their rows allow."""
    load = model.load
    of_class = load.shared.class_of
    for members, classes in ((model.lives, model.class_lives), (model.held, model.class_held)):
        for i in model.intervals[1:]:
            for value, var in members[i].items():
                root = classes[i][of_class[value]]
                point[root] = max(point[root], point[var])
    for i, again in enumerate(model.again):
        for op, var in again.items():
            point[var] = max(point[model.runs[j][op]] for j in model.intervals[i:])
    for i, total in model.total.items():
        held = model.class_held[i].items()
        point[total] = sum(load.weight[root] * point[var] for root, var in held)
    for (i, op, root), var in model.need.items():
        point[var] = max(0.0, point[model.runs[i][op]] - point[model.class_held[i][root]])
    donors = {taker.value: taker.donors for takers in load.takers for taker in takers}
    for (i, value), var in model.event_fresh.items():
        living = model.lives[i + 1]
        point[var] = max(0.0, 1.0 - sum(1.0 - point[living[x]] for x in donors[value]))
    for (i, op, value), var in model.fresh.items():
        spare = sum(1.0 - point[model.held[i][x]] for x in donors[value])
        point[var] = max(0.0, point[model.runs[i][op]] - spare)

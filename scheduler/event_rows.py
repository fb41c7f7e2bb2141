"""The rows of the event relaxation, one function per fact, named by it.

Each holds for the point of every schedule (`remat.scheduler.encode`). Memory rows add up
classes of values (`remat.scheduler.buffers`), so no buffer is counted twice.
"""

from remat.scheduler.event_model import EventModel

# An op whose own need is below this share of the limit gets no row inside an interval.
MINOR = 0.02

Terms = list[tuple[int, float]]


def every_op_has_run_by_its_last_interval(model: EventModel) -> None:
    """And an op that is not recomputable runs once in all."""
    when, recomputable = model.when, model.load.problem.recomputable
    for op in when.ops:
        early = range(when.first[op], when.last[op] + 1)
        model.program.at_least([(model.runs[i][op], 1.0) for i in early], 1.0)
        if not recomputable[op]:
            everywhere = range(when.first[op], len(model.runs))
            model.program.equal([(model.runs[i][op], 1.0) for i in everywhere], 1.0)


def inputs_live_or_are_computed_in_the_interval(model: EventModel) -> None:
    """runs[i][u] <= lives[i][p] + runs[i][writer of p] for each p that u reads."""
    for i in model.intervals:
        for op, run in model.runs[i].items():
            for value in model.load.reads[op]:
                terms = [(run, 1.0)]
                for source in (model.lives[i].get(value), _written(model, i, value)):
                    if source is not None:
                        terms.append((source, -1.0))
                model.program.at_most(terms, 0.0)


def inputs_exist_when_an_op_first_runs(model: EventModel) -> None:
    """An input of u lives when u may first run, or is computed until u must have run.

    Implied in whole numbers; with fractions it keeps an op from running by halves in several
    intervals, each on half an input.
    """
    when = model.when
    for op in when.ops:
        first, last = when.first[op], when.last[op]
        for value in model.load.reads[op]:
            live = model.lives[first].get(value)
            runs = (_written(model, i, value) for i in range(first, last + 1))
            sources = [var for var in (live, *runs) if var is not None]
            model.program.at_least([(var, 1.0) for var in sources], 1.0)


def what_runs_from_an_interval_on_finds_its_inputs(model: EventModel) -> None:
    """An input of u lives at the start of interval i or is computed again from then on.

    The relaxation with the events up to i - 1 alone, embedded: implied in whole numbers, it keeps
    fractions from getting cheaper as events are added.
    """
    for i in model.intervals[1:-1]:
        again = model.again[i]
        for op, var in again.items():
            runs = [model.runs[j][op] for j in model.intervals[i:]]
            model.program.at_most([(var, 1.0), *((run, -1.0) for run in runs)], 0.0)
            for run in runs:
                model.program.at_most([(run, 1.0), (var, -1.0)], 0.0)
        for op in model.when.ops:
            for value in model.load.reads[op]:
                if model.load.writer[value] not in again:
                    continue
                sources = [(model.lives[i][value], 1.0), (again[model.load.writer[value]], 1.0)]
                if op in again:
                    model.program.at_least([*sources, (again[op], -1.0)], 0.0)
                else:
                    model.program.at_least(sources, 1.0)


def what_lives_was_held_or_computed(model: EventModel) -> None:
    """lives[i + 1][v] <= held[i][v] + runs[i][writer], and held[i][v] <= lives[i][v]."""
    for i in model.intervals:
        for value, held in model.held[i].items():
            model.program.at_most([(held, 1.0), (model.lives[i][value], -1.0)], 0.0)
    for i in model.intervals[:-1]:
        for value, live in model.lives[i + 1].items():
            model.program.at_most([(live, 1.0), *_sources(model, i, value, -1.0)], 0.0)


def events_find_their_inputs(model: EventModel) -> None:
    """At the end of its interval an event reads what was held all through or computed in it."""
    for i, event in enumerate(model.when.events):
        for value in model.load.reads[event]:
            model.program.at_least(_sources(model, i, value, 1.0), 1.0)


def kept_values_are_there_at_the_end(model: EventModel) -> None:
    """Held through the tail or computed in it."""
    tail = model.intervals[-1]
    for op in model.when.ops:
        for value in model.load.writes[op]:
            if value in model.load.problem.kept:
                model.program.at_least(_sources(model, tail, value, 1.0), 1.0)


def memory_fits_at_each_event(model: EventModel) -> None:
    """Reads, outputs and workspace of the event, and all other classes that live after it."""
    load = model.load
    for i, event in enumerate(model.when.events):
        reads = load.classes(load.reads[event])
        own = {*reads, *load.classes(load.writes[event])}
        classes = model.class_lives[i + 1].items()
        terms = [(live, load.weight[root]) for root, live in classes if root not in own]
        for taker in load.takers[event]:
            fresh = model.program.variable()
            model.event_fresh[i, taker.value] = fresh
            lives = [(model.lives[i + 1][x], -1.0) for x in taker.donors]
            model.program.at_least([(fresh, 1.0), *lives], 1.0 - len(lives))
            terms.append((fresh, taker.weight))
        fixed = load.new[event] + sum(load.weight[root] for root in reads)
        model.program.at_most(terms, 1.0 - fixed)


def memory_fits_inside_intervals(model: EventModel) -> None:
    """What is held all through interval i, plus what an op that runs inside it needs besides."""
    for i in model.intervals[1:]:
        _add_total(model, i)
        for op, run in model.runs[i].items():
            is_event = i < len(model.when.events) and op == model.when.events[i]
            if not is_event and _own_need(model, op) > MINOR:
                model.program.at_most(_inside(model, i, op, run), 1.0)


def _inside(model: EventModel, i: int, op: int, run: int) -> Terms:
    """The memory of `op` in interval i; if it does not run there, of the held values only."""
    load, held = model.load, model.class_held[i]
    terms = [(model.total[i], 1.0)]
    run_weight = load.new[op]
    for root in load.classes(load.reads[op]):
        if root not in held:
            run_weight += load.weight[root]
            continue
        need = model.program.variable()
        model.need[i, op, root] = need
        model.program.at_least([(need, 1.0), (run, -1.0), (held[root], 1.0)], 0.0)
        terms.append((need, load.weight[root]))
    terms.append((run, run_weight))
    for taker in load.takers[op]:
        if all(x in model.held[i] for x in taker.donors):
            fresh = model.program.variable()
            model.fresh[i, op, taker.value] = fresh
            holds = [(model.held[i][x], -1.0) for x in taker.donors]
            model.program.at_least([(fresh, 1.0), (run, -1.0), *holds], -float(len(holds)))
            terms.append((fresh, taker.weight))
    return terms


def _add_total(model: EventModel, i: int) -> None:
    held = model.class_held[i]
    model.total[i] = model.program.variable()
    terms = [(var, model.load.weight[root]) for root, var in held.items()]
    model.program.equal([*terms, (model.total[i], -1.0)], 0.0)


def _own_need(model: EventModel, op: int) -> float:
    """An upper bound of what running op takes by itself."""
    load = model.load
    taken = sum(taker.weight for taker in load.takers[op])
    return load.new[op] + taken + sum(load.weight[c] for c in load.classes(load.reads[op]))


def _written(model: EventModel, i: int, value: int) -> int | None:
    return model.runs[i].get(model.load.writer[value])


def _sources(model: EventModel, i: int, value: int, factor: float) -> Terms:
    """The variables that say that `value` is there at the end of interval i."""
    sources = (model.held[i].get(value), _written(model, i, value))
    return [(source, factor) for source in sources if source is not None]

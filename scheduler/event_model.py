"""The variables of the event relaxation: what runs between events, what lives across them.

A chain of K ops along a path of the graph, the events, first run in that order in every
schedule. They cut time into intervals 0..K: interval i ends with the first run of event i, the
tail K with the schedule. Any schedule, of any order and with any number of recomputations, maps
to a point (`remat.scheduler.encode`), so the least objective over all points bounds its time.
Unlike Checkmate's stages (Jain et al., MLSys 2020) no order of the other ops is assumed.

Variables
    runs[i][u]     op u runs in interval i.
    lives[i][v]    right after event i - 1 the value v is there, for later use, i = 1..K. Values
                   that event reads or writes are there at no cost; they count as living.
    again[i][u]    op u, which can run earlier, runs in interval i or later, 1 <= i < K.
    held[i][v]     the instance that lives at the start of interval i is used at its end or
                   later, so it is held all through; in the tail: it is kept.
    class_lives, class_held   the same for a class of several values, which share memory.
    total[i]       bytes held all through interval i, over the limit.
    need[i][u, c]  the part of class c, read by u in interval i, that is not held anyway.
    fresh[i][u, v] an output of u that no donor makes room for; event_fresh: of event i.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from statistics import median

from remat.problem import NONE, Problem
from remat.scheduler.buffers import Sharing, sharing
from remat.scheduler.linear import Program

# Values that together take less than this share of the limit are given no memory.
NEGLIGIBLE = 2e-4


@dataclass(frozen=True, slots=True)
class Taker:
    """An output of `weight` that needs a buffer of its own only if all `donors` live on."""

    value: int
    weight: float
    donors: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Load:
    """A problem in the relaxation's units: memory over the limit, time over the median time.

    An alias that is not kept is one with what it aliases: while either lives the buffer is held,
    and that the alias would have to be computed again costs nothing here. `stands_for` is the
    value it is one with, else itself; `reads` and `writes` list, each once, such values as weigh,
    that is, whose class has a `weight`. `new` is per op the weight of the outputs that are always
    fresh, and of the workspace. Ops that write nothing that weighs need no recomputation here:
    what they write could stay for nothing.
    """

    problem: Problem
    shared: Sharing
    weight: tuple[float, ...]
    stands_for: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    new: tuple[float, ...]
    takers: tuple[tuple[Taker, ...], ...]
    readers: tuple[tuple[int, ...], ...]
    writer: tuple[int, ...]
    unit_ns: float

    @property
    def base_ns(self) -> int:
        """The time of every op once."""
        return sum(self.problem.time_ns)

    def classes(self, values: Iterable[int]) -> tuple[int, ...]:
        """The classes of values, each once."""
        return tuple(dict.fromkeys(self.shared.class_of[v] for v in values))


def load(problem: Problem) -> Load:
    """Scale `problem` (with at least one op and a limit of at least one byte)."""
    shared = sharing(problem)
    weight = _weights(shared, problem.limit_bytes)
    stands_for = _representatives(problem)
    fresh = [bytes_ / problem.limit_bytes for bytes_ in problem.value_bytes]
    weighs = [root >= 0 and weight[root] > 0.0 for root in shared.class_of]
    reads = tuple(
        tuple(v for v in dict.fromkeys(stands_for[x] for x in values) if weighs[v])
        for values in problem.reads
    )
    writes = tuple(
        tuple(v for v in values if weighs[v] and stands_for[v] == v) for values in problem.writes
    )
    new = []
    for op, written in enumerate(problem.writes):
        always = (v for v in written if problem.alias_of[v] == NONE and not shared.donors[v])
        new.append(
            problem.workspace_bytes[op] / problem.limit_bytes + sum(fresh[v] for v in always)
        )
    readers: list[list[int]] = [[] for _ in fresh]
    for op, values in enumerate(problem.reads):
        for value in dict.fromkeys(values):
            readers[value].append(op)
    times = [time for time in problem.time_ns if time > 0]
    return Load(
        problem=problem,
        shared=shared,
        weight=weight,
        stands_for=stands_for,
        reads=reads,
        writes=writes,
        new=tuple(new),
        takers=_takers(problem, shared, fresh, weighs),
        readers=tuple(map(tuple, readers)),
        writer=problem.writer,
        unit_ns=float(median(times)) if times else 1.0,
    )


def _weights(shared: Sharing, limit_bytes: int) -> tuple[float, ...]:
    """Per class its share of the limit; the smallest, `NEGLIGIBLE` together, count as nothing."""
    weight = [0.0] * len(shared.class_bytes)
    spared = 0.0
    for root in sorted(range(len(weight)), key=lambda r: (shared.class_bytes[r], r)):
        share = shared.class_bytes[root] / limit_bytes
        spared += share
        if spared > NEGLIGIBLE:
            weight[root] = share
    return tuple(weight)


def _representatives(problem: Problem) -> tuple[int, ...]:
    """A kept alias stands for itself: in its last instance it has a buffer of its own."""
    result = list(range(len(problem.value_names)))
    for values in problem.writes:
        for value in values:
            if problem.alias_of[value] >= 0 and value not in problem.kept:
                result[value] = result[problem.alias_of[value]]
    return tuple(result)


def _takers(
    problem: Problem, shared: Sharing, fresh: Sequence[float], weighs: Sequence[bool]
) -> tuple[tuple[Taker, ...], ...]:
    """The takers of each op whose donors all weigh and are alone in their class.

    Of a class of several the latest instance may be given away while an older one lives.
    """
    size = Counter(shared.class_of)
    result = []
    for values in problem.writes:
        takers = []
        for value in values:
            donors = shared.donors[value]
            alone = all(weighs[x] and size[shared.class_of[x]] == 1 for x in donors)
            if donors and alone and fresh[value] > 0.0:
                takers.append(Taker(value, fresh[value], donors))
        result.append(tuple(takers))
    return tuple(result)


@dataclass(frozen=True, slots=True)
class Windows:
    """`ops` that get variables; u can run in intervals first[u].. and has run by last[u]."""

    events: tuple[int, ...]
    ops: tuple[int, ...]
    first: tuple[int, ...]
    last: tuple[int, ...]


def windows(load: Load, events: Sequence[int]) -> Windows:
    """When each op can run, by its place before or after the events (a path, in order)."""
    n, count = len(load.reads), len(events)
    first, last = [0] * n, [count] * n
    for place, event in enumerate(events):
        for op in _reached(load, event, _after):
            first[op] = place + 1
        first[event] = place
    for place, event in reversed(list(enumerate(events))):
        for op in _reached(load, event, _before):
            last[op] = place
    chosen = set(events)
    ops = tuple(u for u in range(n) if load.writes[u] or u in chosen)
    return Windows(tuple(events), ops, tuple(first), tuple(last))


@dataclass(frozen=True, slots=True)
class EventModel:
    """The program and where its variables are; lists by interval, dicts by op or value."""

    load: Load
    when: Windows
    program: Program
    runs: list[dict[int, int]]
    lives: list[dict[int, int]]
    held: list[dict[int, int]]
    again: list[dict[int, int]]
    class_lives: list[dict[int, int]]
    class_held: list[dict[int, int]]
    total: dict[int, int]
    need: dict[tuple[int, int, int], int]
    fresh: dict[tuple[int, int, int], int]
    event_fresh: dict[tuple[int, int], int]

    @property
    def intervals(self) -> range:
        """0..K."""
        return range(len(self.when.events) + 1)


def variables(load: Load, when: Windows) -> EventModel:
    """All variables that every row family may use, and no rows."""
    count = len(when.events)
    model = EventModel(
        load=load,
        when=when,
        program=Program(),
        runs=[],
        lives=[{}],
        held=[{}],
        again=[{} for _ in range(count + 1)],
        class_lives=[{}],
        class_held=[{}],
        total={},
        need={},
        fresh={},
        event_fresh={},
    )
    for i in range(count + 1):
        model.runs.append(_runs(model, i))
    for i in range(1, count + 1):
        _add_values(model, i)
        model.class_lives.append(_of_classes(model, model.lives[i]))
        model.class_held.append(_of_classes(model, model.held[i]))
    for i in range(1, count):
        earlier = (op for op in when.ops if when.first[op] < i)
        model.again[i].update((op, model.program.variable()) for op in earlier)
    return model


def _runs(model: EventModel, i: int) -> dict[int, int]:
    when, load = model.when, model.load
    row = {}
    for op in when.ops:
        if when.first[op] <= i:
            is_event = i < len(when.events) and op == when.events[i]
            cost = load.problem.time_ns[op] / load.unit_ns
            row[op] = model.program.variable(cost=cost, low=float(is_event), whole=True)
    return row


def _add_values(model: EventModel, i: int) -> None:
    when, load = model.when, model.load
    there = _there_anyway(load, when.events[i - 1])
    is_tail = i == len(when.events)
    model.lives.append({})
    model.held.append({})
    for op in when.ops:
        if when.first[op] > i - 1:
            continue
        for value in load.writes[op]:
            low = float(value in there)
            model.lives[i][value] = model.program.variable(low=low, whole=True)
            if not is_tail or value in load.problem.kept:
                model.held[i][value] = model.program.variable()


def _there_anyway(load: Load, event: int) -> set[int]:
    """What an event reads or writes, less what it may hand over: that lives only if used later."""
    given = {x for taker in load.takers[event] for x in taker.donors}
    return {v for v in load.reads[event] if v not in given} | set(load.writes[event])


def _of_classes(model: EventModel, members: dict[int, int]) -> dict[int, int]:
    """One variable per class with a member; a class of one is its member's own variable."""
    by_class: dict[int, list[int]] = {}
    for value in members:
        by_class.setdefault(model.load.shared.class_of[value], []).append(value)
    result = {}
    for root, values in by_class.items():
        if len(values) == 1:
            result[root] = members[values[0]]
            continue
        result[root] = model.program.variable()
        for value in values:
            model.program.at_least([(result[root], 1.0), (members[value], -1.0)], 0.0)
    return result


def _reached(load: Load, op: int, step: Callable[[Load, int], tuple[int, ...]]) -> set[int]:
    """All ops that `step` leads to from op, itself included."""
    seen, stack = {op}, [op]
    while stack:
        for other in step(load, stack.pop()):
            if other not in seen:
                seen.add(other)
                stack.append(other)
    return seen


def _after(load: Load, op: int) -> tuple[int, ...]:
    return tuple(u for value in load.problem.writes[op] for u in load.readers[value])


def _before(load: Load, op: int) -> tuple[int, ...]:
    return tuple(load.writer[value] for value in load.problem.reads[op])

"""Two slow judges of the memory law, written in another style than `remat` and sharing none of it.

`naive_strict` decides every step from a list of the instances and of who reads them, quadratic in
the steps. `brute_force` finds the least time over all orders and any number of recomputations by
Dijkstra's algorithm over memory states; `enumerate_all` tries every sequence up to a length, to
judge `brute_force` on the tiniest problems.
"""

import heapq
from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product

from remat.problem import CONSTANT, NONE, Problem
from remat.schedule import Trace


@dataclass(slots=True)
class _Instance:
    """One value written at one step, the steps that read it (once per slot), its home."""

    value: int
    born: int
    read_at: list[int]
    is_kept: bool
    root: "_Instance | None" = None  # the instance that opened its buffer; None costs nothing


def naive_strict(problem: Problem, steps: tuple[int, ...]) -> Trace:
    """The memory law of `remat.problem`, read literally. ValueError if an input is missing."""
    instances = _instances(problem, steps)
    for new in instances:
        new.root = _root(problem, instances, new)
    live = []
    for at, op in enumerate(steps):
        held = [i for i in instances if i.root is i and _is_held(instances, i, at)]
        live.append(sum(problem.value_bytes[i.value] for i in held) + problem.workspace_bytes[op])
    return Trace(tuple(live), max(live, default=0), sum(problem.time_ns[op] for op in steps))


def _instances(problem: Problem, steps: tuple[int, ...]) -> list[_Instance]:
    instances: list[_Instance] = []
    for at, op in enumerate(steps):
        for value in problem.reads[op]:
            _latest(instances, value, at).read_at.append(at)
        for value in problem.writes[op]:
            is_last = op not in steps[at + 1 :]
            instances.append(_Instance(value, at, [], is_last and value in problem.kept))
    return instances


def _latest(instances: list[_Instance], value: int, before: int) -> _Instance:
    found = [i for i in instances if i.value == value and i.born < before]
    if not found:
        raise ValueError(f"value {value} is read at step {before} before it is written")
    return found[-1]


def _root(problem: Problem, instances: list[_Instance], new: _Instance) -> _Instance | None:
    """Rules 1 to 4 for one instance, those before it having their roots."""
    if new.is_kept:
        return new
    alias = problem.alias_of[new.value]
    if alias == CONSTANT:
        return None
    if alias != NONE:
        return _latest(instances, alias, new.born).root
    earlier = instances[: next(k for k, i in enumerate(instances) if i is new)]
    for source in problem.inplace_of[new.value]:
        root = _latest(instances, source, new.born).root
        if root is None:
            continue
        housed = [i for i in earlier if i.root is root]
        reads = [at for i in housed for at in i.read_at if at >= new.born]
        others = [i for i in housed if i.is_kept or i.born == new.born]
        if reads == [new.born] and not others:
            return root
    return new


def _is_held(instances: list[_Instance], root: _Instance, at: int) -> bool:
    reads = [step for i in instances if i.root is root for step in i.read_at]
    return root.born <= at and (root.is_kept or at <= max([root.born, *reads]))


@dataclass(frozen=True, slots=True, order=True)
class _Room:
    """A buffer in use: its size, the values in it that will be read again, whether it is kept."""

    bytes: int
    values: frozenset[int]
    is_kept: bool

    def key(self) -> tuple[int, bool, tuple[int, ...]]:
        return self.bytes, self.is_kept, tuple(sorted(self.values))


@dataclass(frozen=True, slots=True)
class _State:
    """What matters between two steps.

    `done` are the ops that have run, `closed` those that run no more: they have written their
    kept instances, or nothing reads what they wrote. `rooms` are the buffers in use, sorted; a
    value is in one of them exactly if its latest instance will be read again. `free_values` are
    those of them that cost nothing.
    """

    done: frozenset[int]
    closed: frozenset[int]
    rooms: tuple[_Room, ...]
    free_values: frozenset[int]

    def readable(self) -> frozenset[int]:
        return self.free_values.union(*(room.values for room in self.rooms))


@dataclass(frozen=True, slots=True)
class _Choice:
    """The future of a step's values, guessed: which are read again, whether kept ones stay.

    A dead step is one whose values are neither read nor kept: legal if its op has no other.
    """

    again: frozenset[int]
    closes: bool
    is_dead: bool


def brute_force(problem: Problem) -> tuple[int, tuple[int, ...]] | None:
    """(least time in ns, a schedule that takes it), or None if no schedule fits the limit.

    Exact over all orders and any number of recomputations; for about 7 ops. The future decides
    what the law does now (who is the last reader, which instance is kept), so each step guesses
    it and a later step that contradicts the guess is not taken: a value guessed to be read again
    must be read before its op runs again, and the end has no such value left.
    Raises ValueError for hoisted ops, whose place is not free, and for times below 1 ns, with
    which useless recomputations would be free.
    """
    if any(problem.hoisted) or min(problem.time_ns, default=1) < 1:
        raise ValueError("brute_force needs times of 1 ns and more and no hoisted op")
    start = _State(frozenset(), frozenset(), (), frozenset())
    best = {start: 0}
    came_from: dict[_State, tuple[_State, int]] = {}
    queue = [(0, 0, start)]
    pushed = 0
    while queue:
        time_ns, _, state = heapq.heappop(queue)
        if time_ns > best[state]:
            continue
        if _is_end(problem, state):
            return time_ns, _path(came_from, state)
        for op, after in _moves(problem, state):
            total = time_ns + problem.time_ns[op]
            if total < best.get(after, total + 1):
                best[after] = total
                came_from[after] = (state, op)
                pushed += 1
                heapq.heappush(queue, (total, pushed, after))
    return None


def _path(came_from: dict[_State, tuple[_State, int]], end: _State) -> tuple[int, ...]:
    steps: list[int] = []
    state = end
    while state in came_from:
        state, op = came_from[state]
        steps.append(op)
    return tuple(reversed(steps))


def _is_end(problem: Problem, state: _State) -> bool:
    return (
        len(state.done) == len(problem.op_names)
        and all(op in state.closed for op, w in enumerate(problem.writes) if problem.kept & {*w})
        and not state.readable()
    )


def _moves(problem: Problem, state: _State) -> Iterator[tuple[int, _State]]:
    readable = state.readable()
    for op in range(len(problem.op_names)):
        barred = op in state.closed or (op in state.done and not problem.recomputable[op])
        # A value still to be read must not be overwritten.
        if barred or readable & {*problem.writes[op]} or not readable.issuperset(problem.reads[op]):
            continue
        for choice in _choices(problem, op):
            if choice.is_dead and op in state.done:
                continue
            after = _after(problem, state, op, choice)
            if after is not None:
                yield op, after


def _choices(problem: Problem, op: int) -> Iterator[_Choice]:
    """Every guess about the values of a step; a value that no op reads is not read again."""
    read_anywhere = {value for values in problem.reads for value in values}
    values = [*dict.fromkeys(problem.reads[op])]
    values += [value for value in problem.writes[op] if value in read_anywhere]
    closings = (False, True) if problem.kept & {*problem.writes[op]} else (False,)
    for picks in product((False, True), repeat=len(values)):
        again = frozenset(value for value, pick in zip(values, picks, strict=True) if pick)
        is_dead = not again & {*problem.writes[op]}
        for closes in closings:
            # An op with kept values whose only run is this one would keep what it writes here.
            if not (is_dead and closings[-1] and not closes):
                yield _Choice(again, closes, is_dead and not closes)


def _after(problem: Problem, state: _State, op: int, choice: _Choice) -> _State | None:
    """The state after a step, or None if the step needs more than the limit."""
    rooms = list(state.rooms)
    free_values = state.free_values
    for value in problem.writes[op]:
        is_kept = choice.closes and value in problem.kept
        place = _place(problem, op, value, choice, rooms)
        if is_kept or place is None:
            rooms.append(_Room(problem.value_bytes[value], frozenset([value]), is_kept))
        elif place == CONSTANT:
            free_values |= {value}
        else:
            rooms[place] = replace(rooms[place], values=rooms[place].values | {value})
    if sum(room.bytes for room in rooms) + problem.workspace_bytes[op] > problem.limit_bytes:
        return None
    gone = frozenset(problem.reads[op] + problem.writes[op]) - choice.again
    rooms = [replace(room, values=room.values - gone) for room in rooms]
    held = sorted((room for room in rooms if room.values or room.is_kept), key=_Room.key)
    closed = state.closed | {op} if choice.closes or choice.is_dead else state.closed
    return _State(state.done | {op}, closed, tuple(held), free_values - gone)


def _place(
    problem: Problem, op: int, value: int, choice: _Choice, rooms: list[_Room]
) -> int | None:
    """The room a value that is not kept shares or takes over, CONSTANT, or None for a new one."""
    home = {v: k for k, room in enumerate(rooms) for v in room.values}
    alias = problem.alias_of[value]
    if alias != NONE:
        return home.get(alias, CONSTANT)
    for source in problem.inplace_of[value]:
        room = home.get(source)
        if (
            room is not None
            and not rooms[room].is_kept
            and rooms[room].values == {source}
            and source not in choice.again
            and problem.reads[op].count(source) == 1
        ):
            return room
    return None


def enumerate_all(problem: Problem, longest: int) -> int | None:
    """The least time of every legal sequence of up to `longest` steps, by trying them all."""
    best: int | None = None
    stack: list[tuple[int, ...]] = [()]
    while stack:
        steps = stack.pop()
        if {*steps} == {*range(len(problem.op_names))} and not _has_dead_repeat(problem, steps):
            trace = naive_strict(problem, steps)
            if trace.peak_bytes <= problem.limit_bytes and (best is None or trace.time_ns < best):
                best = trace.time_ns
        if len(steps) < longest:
            stack.extend((*steps, op) for op in _next_ops(problem, steps))
    return best


def _next_ops(problem: Problem, steps: tuple[int, ...]) -> list[int]:
    written = {value for op in steps for value in problem.writes[op]}
    return [
        op
        for op in range(len(problem.op_names))
        if written.issuperset(problem.reads[op]) and (problem.recomputable[op] or op not in steps)
    ]


def _has_dead_repeat(problem: Problem, steps: tuple[int, ...]) -> bool:
    """Whether some step of an op that runs more than once writes nothing that is read or kept."""
    used = {(i.born, i.value) for i in _instances(problem, steps) if i.read_at or i.is_kept}
    return any(
        steps.count(op) > 1 and not any((at, value) in used for value in problem.writes[op])
        for at, op in enumerate(steps)
    )

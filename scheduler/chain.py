"""Where to put the events: ops along one path of the graph, at moments when memory is short.

First runs along a path come in its order in every schedule, which is all that the relaxation
asks of its events. Many events make it tighter and much slower, so they are added one by one.
"""

from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from remat.problem import Problem


@dataclass(frozen=True, slots=True)
class Chain:
    """The ops of a longest path, for each whether memory is short there, and the fullest one."""

    path: tuple[int, ...]
    hot: tuple[bool, ...]
    fullest: int


def chain(problem: Problem, held_bytes: Mapping[int, int]) -> Chain:
    """The longest path with what a schedule that runs each op once holds at each op."""
    path = longest_path(problem)
    hot = tuple(held_bytes[op] > problem.limit_bytes for op in path)
    return Chain(tuple(path), hot, max(path, key=lambda op: held_bytes[op]))


def longest_path(problem: Problem) -> list[int]:
    """The ops of a path with the most ops, in order; of several the one that starts first."""
    writer = problem.writer
    n = len(problem.reads)
    after: list[list[int]] = [[] for _ in range(n)]
    for op, values in enumerate(problem.reads):
        for source in dict.fromkeys(writer[value] for value in values):
            after[source].append(op)
    length, onward = [1] * n, [-1] * n
    for op in reversed(range(n)):
        for other in after[op]:
            if length[other] + 1 > length[op]:
                length[op], onward[op] = length[other] + 1, other
    path = [max(range(n), key=lambda op: (length[op], -op))]
    while onward[path[-1]] >= 0:
        path.append(onward[path[-1]])
    return path


def first_runs(steps: Sequence[int]) -> dict[int, int]:
    """The step at which each op first runs."""
    first: dict[int, int] = {}
    for at, op in enumerate(steps):
        first.setdefault(op, at)
    return first


def next_event(
    path: Sequence[int],
    events: Sequence[int],
    steps: Sequence[int],
    live_bytes: Sequence[int],
    limit_bytes: int,
) -> int | None:
    """The op of the path next to the most memory over the limit, where no event is yet.

    `steps` and their `live_bytes` are a schedule. None if each such place is taken.
    """
    first = first_runs(steps)
    places = [first[op] for op in path]
    taken = {place for place, op in enumerate(path) if op in set(events)}
    hottest: dict[int, int] = {}
    for at, bytes_ in enumerate(live_bytes):
        place = min(bisect_left(places, at), len(path) - 1)
        if bytes_ > limit_bytes and place not in taken:
            hottest[place] = max(hottest.get(place, 0), bytes_)
    if not hottest:
        return None
    return path[min(hottest, key=lambda place: (-hottest[place], place))]


def spread(path: Sequence[int], events: Sequence[int], hot: Sequence[bool]) -> int | None:
    """The hot op of the path farthest from all events, counted along the path; None if none.

    `hot` tells for each op of the path whether memory is short there.
    """
    taken = [place for place, op in enumerate(path) if op in set(events)]
    best: tuple[int, int] | None = None
    for place, is_hot in enumerate(hot):
        if is_hot and place not in taken:
            distance = min((abs(place - other) for other in taken), default=len(path))
            best = max(best or (distance, -place), (distance, -place))
    return None if best is None else path[-best[1]]

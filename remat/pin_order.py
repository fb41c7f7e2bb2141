"""Which dependencies, added to a graph, make ONNX Runtime's default order the scheduled one.

The DEFAULT execution order (`remat.simulate.default_order`) is a depth-first post-order in which,
of leaves and of producers alike, the node that stands later in the file is visited first. Nodes
are numbered 0..n-1 as scheduled here. A visit of node w, entered when 0..k-1 have run, must run
k..w-1 before w: so every one of these must lie below w, and producers must be visited in schedule
order. What does not lie below w gets an edge from w-1 to w; visits are put in order by the order
of the nodes in the file, as far as that stays topological. Where the simulated order still
differs, every node that runs before its predecessor gets an edge, until the orders are equal.

An edge is two nodes: a head, which reads the nodes to wait for, and a link, which reads the head
and one input of the node that waits; the latter reads the link in place of that input.
"""

import heapq
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

from remat.problem import NONE
from remat.simulate import default_order

# What `Flow.via` says of a node that cannot wait: no input of it may go through a link; and of
# one that reads the head itself and needs no link.
CANNOT_WAIT = -2
NO_LINK = -3


@dataclass(frozen=True, slots=True)
class Flow:
    """The scheduled nodes. `producers[i]` are the nodes that i reads, each below i.

    `via[i]` is the producer of the input that a link of i would carry, `NONE` where that is no
    node's, or `CANNOT_WAIT` or `NO_LINK`; `also[i]` is a node that the head of an edge to i reads
    as well, or `NONE`. `can_signal[i]`: an edge may start at i.
    """

    producers: tuple[tuple[int, ...], ...]
    via: tuple[int, ...]
    also: tuple[int, ...]
    can_signal: tuple[bool, ...]


@dataclass(frozen=True, slots=True)
class Pins:
    """`awaited[w]` are the nodes that w waits for by an edge.

    `file` is a topological order of ids: node i is i, `heads` and `links` tell for which node
    an id is the head or the link of an edge. `is_exact`: in that file the default order runs
    0, 1, ..., n-1.
    """

    awaited: Mapping[int, tuple[int, ...]]
    heads: Mapping[int, int]
    links: Mapping[int, int]
    file: tuple[int, ...]
    is_exact: bool


@dataclass(frozen=True, slots=True)
class _Net:
    """Nodes and edges together, by the ids of `Pins.file`.

    `turn[i]`: of two producers that one node reads, that with the lower turn is to be visited
    first. `scheduled` are the ids in a topological order that has the nodes as scheduled.
    """

    producers: list[tuple[int, ...]]
    turn: list[int]
    scheduled: list[int]
    heads: dict[int, int]
    links: dict[int, int]


def pin_order(flow: Flow, awaited: Mapping[int, Sequence[int]]) -> Pins:
    """Edges, those of `awaited` among them, and a file order that pin the schedule.

    Where no further edge can be placed the result is not exact.
    """
    found = {node: tuple(sorted(set(sources))) for node, sources in awaited.items()}
    _add(found, _uncovered(flow, found))
    while True:
        net = _net(flow, found)
        file = _file_order(net)
        ran = _run(net, file, len(flow.producers))
        missing = _too_early(flow, ran, found)
        if not missing:
            return Pins(found, net.heads, net.links, file, ran == sorted(ran))
        _add(found, missing)


def first_waiting(flow: Flow, node: int) -> int:
    """The first node after `node` that can wait, or NONE."""
    after = range(node + 1, len(flow.via))
    return next((other for other in after if flow.via[other] != CANNOT_WAIT), NONE)


def _add(found: dict[int, tuple[int, ...]], edges: Sequence[tuple[int, int]]) -> None:
    for source, node in edges:
        found[node] = tuple(sorted({*found.get(node, ()), source}))


def _uncovered(flow: Flow, found: Mapping[int, tuple[int, ...]]) -> list[tuple[int, int]]:
    """(w-1, w) for every w whose visit would leave some of 0..w-1 out.

    Where w cannot wait, the node that reads it does.
    """
    producers = [(*read, *found.get(node, ())) for node, read in enumerate(flow.producers)]
    below = _topmost(producers, range(len(producers)))
    ran, new = 0, []
    for leaf in _leaves(producers):
        path, pending = [leaf], [iter(below[leaf])]
        while path:
            node = path[-1]
            child = next((one for one in pending[-1] if one >= ran), NONE)
            if child == NONE and ran < node:
                child = node - 1
                waiting = next((one for one in reversed(path) if _can_wait(flow, one)), NONE)
                if waiting != NONE and flow.can_signal[child]:
                    new.append((child, waiting))
            if child == NONE:
                ran = node + 1
                path.pop()
                pending.pop()
            else:
                path.append(child)
                pending.append(iter(below[child]))
    return new


def _can_wait(flow: Flow, node: int) -> bool:
    return flow.via[node] != CANNOT_WAIT


def _topmost(producers: Sequence[Sequence[int]], scheduled: Sequence[int]) -> list[list[int]]:
    """For each node its producers, less those that lie below another of them; ascending by id.

    A producer below another one is not visited before it, so it decides nothing.
    """
    reach = [0] * len(producers)  # bit i: node i lies below
    place = {node: at for at, node in enumerate(scheduled)}
    top: list[list[int]] = [[] for _ in producers]
    for node in scheduled:
        for source in sorted(set(producers[node]), key=lambda one: -place[one]):
            if not reach[node] >> source & 1:
                top[node].append(source)
                reach[node] |= reach[source] | 1 << source
        top[node].sort()
    return top


def _leaves(producers: Sequence[Sequence[int]]) -> list[int]:
    read = {source for sources in producers for source in sources}
    return [node for node in range(len(producers)) if node not in read]


def _net(flow: Flow, found: Mapping[int, tuple[int, ...]]) -> _Net:
    count = len(flow.producers)
    net = _Net(list(flow.producers), [3 * node for node in range(count)], [], {}, {})

    def add(producers: tuple[int, ...], turn: int) -> int:
        net.producers.append(producers)
        net.turn.append(turn)
        net.scheduled.append(len(net.producers) - 1)
        return net.scheduled[-1]

    for node in range(count):
        if node in found:
            # What is waited for comes last of what a node reads: then the visit is due.
            turn = 3 * found[node][-1]
            also = () if flow.also[node] == NONE else (flow.also[node],)
            end = add((*found[node], *also), turn + 1)
            net.heads[end] = node
            if flow.via[node] != NO_LINK:
                carried = () if flow.via[node] == NONE else (flow.via[node],)
                end = add((*carried, end), turn + 2)
                net.links[end] = node
            net.producers[node] = (*net.producers[node], end)
        net.scheduled.append(node)
    return net


def _file_order(net: _Net) -> tuple[int, ...]:
    """A topological order that has what is to be visited first behind what comes after it.

    Built from the back: each time, of the nodes before which no other has to be placed, the one
    with the lowest turn. Wishes that contradict each other are given up one node at a time.
    """
    readers = [0] * len(net.producers)
    wishes = [0] * len(net.producers)
    after: list[list[int]] = [[] for _ in net.producers]
    for sources in net.producers:
        for source in set(sources):
            readers[source] += 1
    for first, second in _visits(net):
        after[first].append(second)
        wishes[second] += 1
    free = [(net.turn[node], node) for node, count in enumerate(readers) if count == 0]
    wished = [entry for entry in free if wishes[entry[1]] == 0]
    heapq.heapify(free)
    heapq.heapify(wished)
    placed = [False] * len(net.producers)
    backwards: list[int] = []
    while free or wished:
        _, node = heapq.heappop(wished or free)
        if placed[node]:
            continue
        placed[node] = True
        backwards.append(node)
        for other in after[node]:
            wishes[other] -= 1
            if wishes[other] == 0 and readers[other] == 0:
                heapq.heappush(wished, (net.turn[other], other))
        for source in set(net.producers[node]):
            readers[source] -= 1
            if readers[source] == 0:
                heapq.heappush(wished if wishes[source] == 0 else free, (net.turn[source], source))
    return tuple(reversed(backwards))


def _visits(net: _Net) -> list[tuple[int, int]]:
    """(first, second): visits from one node, or from nowhere, that are to come in this order."""
    below = _topmost(net.producers, net.scheduled)
    visited = [False] * len(net.producers)
    found: list[tuple[int, int]] = []

    def unvisited(nodes: Sequence[int]) -> list[int]:
        left = sorted((one for one in nodes if not visited[one]), key=lambda one: net.turn[one])
        found.extend(pairwise(left))
        return left[::-1]

    stack = unvisited(_leaves(net.producers))
    while stack:
        node = stack.pop()
        if not visited[node]:
            visited[node] = True
            stack.extend(unvisited(below[node]))
    return found


def _run(net: _Net, file: Sequence[int], nodes: int) -> list[int]:
    """The scheduled nodes in the order in which the runtime runs them."""
    place = {node: at for at, node in enumerate(file)}
    order = default_order([[place[one] for one in net.producers[node]] for node in file])
    return [file[at] for at in order if file[at] < nodes]


def _too_early(
    flow: Flow, ran: Sequence[int], found: Mapping[int, tuple[int, ...]]
) -> list[tuple[int, int]]:
    """New edges for the nodes that ran before the one scheduled right before them."""
    place = {node: at for at, node in enumerate(ran)}
    early = [node for node in range(1, len(ran)) if place[node] < place[node - 1]]
    return [
        (node - 1, node)
        for node in early
        if _can_wait(flow, node) and flow.can_signal[node - 1]
        if node - 1 not in found.get(node, ())
    ]

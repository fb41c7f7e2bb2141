"""Orders without recomputation: the least peak that reordering alone can reach.

If some order fits the limit, running every op once is optimal and nothing is left to search.
Candidates are the given order, depth-first orders and list schedules; annealing by shifts refines
the best of them. Finding the least peak is NP-hard (Sethi, "Complete register allocation
problems", 1975), so this is a heuristic and proves nothing about limits it fails to meet.
"""

import heapq
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from remat.scheduler.anneal import REORDER, Effort, annealed
from remat.scheduler.arrays import CONSTANT, Arrays
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import Scored, score

# Annealing aims below the best peak so far: few steps reach the peak itself, which tells little.
AIM = 0.95
CHUNKS = 8


def base_orders(arrays: Arrays, given: Sequence[int] | Int64) -> list[Int64]:
    """Orders worth starting from: the given one first, then others, each once."""
    orders = [np.asarray(given, dtype=np.int64)]
    orders += [depth_first(arrays, key) for key in (_highest, _lowest, _largest)]
    place = np.empty(arrays.ops, dtype=np.int64)
    place[orders[0]] = np.arange(arrays.ops)
    orders += [list_schedule(arrays, [int(p) for p in sign * place]) for sign in (1, -1)]
    unique = {order.tobytes(): order for order in orders}
    return list(unique.values())


def search_order(
    arrays: Arrays, given: Sequence[int] | Int64, limit_bytes: int, effort: Effort
) -> Scored:
    """An order within the limit, the given one if it fits; else the one of least peak found.

    Raises ValueError if `given` does not run every op once, each after what it reads.
    """
    base = score(arrays, given, limit_bytes)
    if base is None or len(base.steps) != arrays.ops:
        raise ValueError("the given order does not run every op once after what it reads")
    if base.excess_bytes == 0:
        return base
    best = base
    for order in base_orders(arrays, given)[1:]:
        found = score(arrays, order, limit_bytes)
        if found is not None and found.lower_than(best):
            best = found
    for chunk in range(CHUNKS):
        if best.peak_bytes <= limit_bytes:
            break
        best = _refined(arrays, best, limit_bytes, effort, chunk)
    return best


def _refined(arrays: Arrays, best: Scored, limit_bytes: int, effort: Effort, chunk: int) -> Scored:
    """One chunk of annealing by shifts, colder from chunk to chunk."""
    aim = max(limit_bytes, int(AIM * best.peak_bytes))
    part = Effort(
        effort.seed + chunk,
        max(1, effort.iterations // CHUNKS),
        effort.start_temperature * 0.7**chunk,
        effort.end_temperature,
    )
    found = annealed(arrays, best.steps, aim, part, REORDER).least
    if found is None or not found.lower_than(best):
        return best
    return score(arrays, found.steps, limit_bytes) or best


def _highest(arrays: Arrays, op: int) -> int:
    return -op


def _lowest(arrays: Arrays, op: int) -> int:
    return op


def _largest(arrays: Arrays, op: int) -> int:
    written = arrays.writes[arrays.write_at[op] : arrays.write_at[op + 1]]
    return -int(arrays.value_bytes[written].sum())


def depth_first(arrays: Arrays, key: Callable[[Arrays, int], int]) -> Int64:
    """Post-order from the ops nothing reads; of several producers the smallest key goes first.

    With the highest number first this is the default order of ONNX Runtime.
    """
    is_read = np.zeros(arrays.ops, dtype=np.bool_)
    is_read[arrays.writer[arrays.reads]] = True
    # Popped from the end.
    stack = sorted(np.flatnonzero(~is_read).tolist(), key=lambda op: -key(arrays, op))
    visited = [False] * arrays.ops
    order: list[int] = []
    while stack:
        op = stack.pop()
        if op < 0:
            order.append(~op)
        elif not visited[op]:
            visited[op] = True
            stack.append(~op)
            waiting = [p for p in _producers(arrays, op) if not visited[p]]
            stack.extend(sorted(waiting, key=lambda p: -key(arrays, p)))
    return np.array(order, dtype=np.int64)


def _producers(arrays: Arrays, op: int) -> list[int]:
    reads = arrays.reads[arrays.read_at[op] : arrays.read_at[op + 1]]
    return list(dict.fromkeys(arrays.writer[reads].tolist()))


class _Frontier:
    """What a list schedule knows: how many reads each value and each op still waits for."""

    def __init__(self, arrays: Arrays) -> None:
        self.arrays = arrays
        self.reads = [
            list(dict.fromkeys(arrays.reads[a:b].tolist()))
            for a, b in zip(arrays.read_at[:-1], arrays.read_at[1:], strict=True)
        ]
        self.readers_left = np.diff(arrays.reader_at).tolist()
        self.missing = [len(reads) for reads in self.reads]
        self.is_run = [False] * arrays.ops

    def growth_bytes(self, op: int) -> int:
        """By how much running op changes the memory held after it, hand-overs aside."""
        arrays = self.arrays
        freed = sum(self._size(v) for v in self.reads[op] if self._dies_with_next_read(v))
        written = arrays.writes[arrays.write_at[op] : arrays.write_at[op + 1]].tolist()
        is_used = (v for v in written if self.readers_left[v] > 0 or arrays.kept[v])
        return sum(self._size(v) for v in is_used) - freed

    def run(self, op: int) -> Iterator[int]:
        """Run op; the ops that are ready now or whose growth has changed."""
        arrays = self.arrays
        self.is_run[op] = True
        for v in self.reads[op]:
            self.readers_left[v] -= 1
            if self._dies_with_next_read(v):
                yield from (r for r in self._readers(v) if self._is_ready(r))
        for v in arrays.writes[arrays.write_at[op] : arrays.write_at[op + 1]].tolist():
            for reader in self._readers(v):
                self.missing[reader] -= 1
                if self.missing[reader] == 0:
                    yield reader

    def _is_ready(self, op: int) -> bool:
        return self.missing[op] == 0 and not self.is_run[op]

    def _dies_with_next_read(self, v: int) -> bool:
        return self.readers_left[v] == 1 and not self.arrays.kept[v]

    def _size(self, v: int) -> int:
        shares = self.arrays.alias_slot[v] >= 0 or self.arrays.alias_slot[v] == CONSTANT
        return 0 if shares and not self.arrays.kept[v] else int(self.arrays.value_bytes[v])

    def _readers(self, v: int) -> list[int]:
        arrays = self.arrays
        readers: list[int] = arrays.readers[arrays.reader_at[v] : arrays.reader_at[v + 1]].tolist()
        return readers


def list_schedule(arrays: Arrays, rank: Sequence[int]) -> Int64:
    """Always run the ready op that adds the least memory; ties by `rank` (one per op)."""
    frontier = _Frontier(arrays)
    heap = [
        (frontier.growth_bytes(op), rank[op], op)
        for op in range(arrays.ops)
        if frontier.missing[op] == 0
    ]
    heapq.heapify(heap)
    order: list[int] = []
    while heap:
        growth, _, op = heapq.heappop(heap)
        # An entry whose growth has changed since is followed by a newer one.
        if frontier.is_run[op] or growth != frontier.growth_bytes(op):
            continue
        order.append(op)
        for other in frontier.run(op):
            heapq.heappush(heap, (frontier.growth_bytes(other), rank[other], other))
    return np.array(order, dtype=np.int64)

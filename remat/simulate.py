"""What running a step sequence holds and takes: the reference implementation of the memory law.

`strict` follows the law of `remat.problem` and is what ONNX Runtime's strict mode allocates.
`with_reuse` is its allocation planner with memory reuse on (onnxruntime/core/framework/
allocation_planner.cc, single stream), as in a plain session with arena and pattern off.
`run_order` and `default_order` are the node orders of its PRIORITY_BASED and DEFAULT execution
orders (core/graph/graph.cc, KahnsTopologicalSort and ReverseDFSFrom).

Nothing here shares code with a solver; everything is linear in steps and reads (`run_order` has
a heap of the hoisted ops that are ready). A step sequence is judged as given: call `run_order`
first where the problem has hoisted ops.
"""

import heapq
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate

from remat.problem import CONSTANT, NONE, Problem
from remat.schedule import Trace

# Weights and graph inputs: a buffer of no size that is always in use, so never handed over.
_CALLERS = 0


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory held during the steps [start_step, end_step), named by the value that opened it."""

    opened_by: int
    bytes: int
    start_step: int
    end_step: int


@dataclass(slots=True)
class _Plan:
    """Buffers in columns, one row per buffer, in order of opening; row 0 is `_CALLERS`.

    `end` is the end of the steps until a last read releases the buffer earlier.
    `uses` counts the outstanding uses of each buffer at the step that is being planned.
    `spare` lists the dead buffers of each reuse class, the most recently freed last.
    """

    opened_by: list[int]
    start: list[int]
    end: list[int]
    uses: list[int]
    spare: dict[int, list[int]]

    def open(self, value: int, at: int, end: int) -> int:
        self.opened_by.append(value)
        self.start.append(at)
        self.end.append(end)
        self.uses.append(0)
        return len(self.uses) - 1


def strict(problem: Problem, steps: Sequence[int]) -> Trace:
    """The memory of each step in strict mode, workspace included, the peak and the total time.

    `steps` are op numbers; values never written are never held.
    Raises ValueError if a read finds no earlier instance.
    """
    return _trace(problem, steps, _plan(problem, steps, (NONE,) * len(problem.value_bytes)))


def with_reuse(problem: Problem, steps: Sequence[int]) -> Trace:
    """The same in a plain session with arena and pattern off, which reuses dead buffers.

    Where rule 4 of the law would take a fresh buffer for a value that is read and has a reuse
    class, the dead buffer most recently freed among those whose opening value has that class is
    taken. A buffer is allocated once, so it is held from its opening to its final death, dead
    gaps included. A value that nothing reads takes none, but its own buffer is free to be taken
    after its step.
    Buffers that one step frees are freed in the order of its reads, then of its writes.
    Raises ValueError if a read finds no earlier instance.
    """
    return _trace(problem, steps, _plan(problem, steps, problem.reuse_class))


def buffers(problem: Problem, steps: Sequence[int]) -> list[Buffer]:
    """Every buffer of strict mode, in order of opening.

    Raises ValueError if a read finds no earlier instance.
    """
    return _rows(problem, _plan(problem, steps, (NONE,) * len(problem.value_bytes)))


def buffers_with_reuse(problem: Problem, steps: Sequence[int]) -> list[Buffer]:
    """Every buffer of `with_reuse`, in order of opening; `opened_by` is its first value.

    Raises ValueError if a read finds no earlier instance.
    """
    return _rows(problem, _plan(problem, steps, problem.reuse_class))


def holders(problem: Problem, steps: Sequence[int], at_step: int) -> list[tuple[int, int]]:
    """(value, bytes) of each buffer that strict mode holds at a step, largest first.

    A buffer is named by the value that opened it; equal sizes are in order of opening.
    A value with two instances alive is listed twice. Workspace is not listed.
    Raises ValueError if a read finds no earlier instance.
    """
    held = [b for b in buffers(problem, steps) if b.start_step <= at_step < b.end_step]
    held.sort(key=lambda b: -b.bytes)
    return [(b.opened_by, b.bytes) for b in held]


def run_order(problem: Problem, steps: Sequence[int]) -> tuple[int, ...]:
    """The order in which PRIORITY_BASED really runs `steps`.

    Each hoisted occurrence moves back to right after the last of the instances it reads at its
    given place (to the very start if it reads none); all others keep their order. Of several
    hoisted ones that are ready the first given runs first. Applying it twice changes nothing.

    An op that reads a hoisted op which `steps` recompute may read a later instance in the new
    order than in the given one; the earlier one is then a dead recomputation.
    Raises ValueError if a read of a hoisted op finds no earlier instance.
    """
    if not any(problem.hoisted):
        return tuple(steps)
    missing, readers = _hoisted_readers(problem, steps)
    ready = [at for at, count in missing.items() if count == 0]
    order: list[int] = []

    def finish(at: int) -> None:
        order.append(steps[at])
        for reader in readers.get(at, ()):
            missing[reader] -= 1
            if missing[reader] == 0:
                heapq.heappush(ready, reader)

    def finish_ready() -> None:
        while ready:
            finish(heapq.heappop(ready))

    finish_ready()
    for at in range(len(steps)):
        if at not in missing:
            finish(at)
            finish_ready()
    return tuple(order)


def default_order(producers: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The order of ONNX Runtime's DEFAULT execution order.

    `producers[i]` are the indices of the nodes that node i reads from (repeats do not matter).
    It is a depth-first post-order from the leaves towards the inputs in which, of leaves and of
    producers alike, the highest index is visited first.
    """
    read = {source for sources in producers for source in sources}
    stack = [node for node in range(len(producers)) if node not in read]
    visited = [False] * len(producers)
    order: list[int] = []
    while stack:
        node = stack.pop()
        if node < 0:
            order.append(~node)  # all its producers are done
        elif not visited[node]:
            visited[node] = True
            stack.append(~node)
            stack.extend(s for s in sorted(set(producers[node])) if not visited[s])
    return tuple(order)


def _instance_uses(problem: Problem, steps: Sequence[int]) -> tuple[list[int], set[int]]:
    """The uses of each instance, its own step's included, and which instances are kept.

    Instances are numbered in order of writing.
    """
    reads, writes = problem.reads, problem.writes
    latest = [NONE] * len(problem.value_bytes)
    uses: list[int] = []
    for at, op in enumerate(steps):
        for value in reads[op]:
            instance = latest[value]
            if instance == NONE:
                name = problem.value_names[value]
                raise ValueError(f"step {at} ({problem.op_names[op]}) reads {name}, not computed")
            uses[instance] += 1
        for value in writes[op]:
            latest[value] = len(uses)
            uses.append(1)
    kept = {latest[value] for value in problem.kept if latest[value] != NONE}
    for instance in kept:
        uses[instance] += 1
    return uses, kept


def _plan(problem: Problem, steps: Sequence[int], reuse_class: Sequence[int]) -> _Plan:
    """The buffers of `steps`; with every reuse class NONE this is strict mode."""
    reads, writes = problem.reads, problem.writes
    instance_uses, kept = _instance_uses(problem, steps)
    plan = _Plan([NONE], [0], [0], [1], {})
    uses = plan.uses
    home = [NONE] * len(problem.value_bytes)  # the buffer of each value's latest instance
    instance = 0
    for at, op in enumerate(steps):
        touched = [home[value] for value in reads[op]]
        for value in writes[op]:
            buffer = NONE
            if instance not in kept:
                buffer = _shared(problem, value, home, uses)
                if buffer == NONE and instance_uses[instance] > 1:
                    buffer = _dead(plan, reuse_class[value])
            if buffer == NONE:
                buffer = plan.open(value, at, len(steps))
            uses[buffer] += instance_uses[instance]
            home[value] = buffer
            touched.append(buffer)
            instance += 1
        for buffer in touched:
            uses[buffer] -= 1
            if uses[buffer] == 0:
                plan.end[buffer] = at + 1
                group = reuse_class[plan.opened_by[buffer]]
                if group != NONE:
                    plan.spare.setdefault(group, []).append(buffer)
    return plan


def _shared(problem: Problem, value: int, home: list[int], uses: list[int]) -> int:
    """The buffer that a value shares (rule 2) or takes over in place (rule 3), or NONE."""
    source = problem.alias_of[value]
    if source >= 0:
        return home[source]
    if source == CONSTANT:
        return _CALLERS
    for source in problem.inplace_of[value]:
        # Read at this step and used once: this read is the only outstanding use.
        if uses[home[source]] == 1:
            return home[source]
    return NONE


def _dead(plan: _Plan, group: int) -> int:
    """The dead buffer of a reuse class that was freed last, taken out of the spare ones."""
    spare = plan.spare.get(group)
    return spare.pop() if spare else NONE


def _rows(problem: Problem, plan: _Plan) -> list[Buffer]:
    rows = list(zip(plan.opened_by, plan.start, plan.end, strict=True))[_CALLERS + 1 :]
    return [Buffer(value, problem.value_bytes[value], start, end) for value, start, end in rows]


def _trace(problem: Problem, steps: Sequence[int], plan: _Plan) -> Trace:
    change = [0] * (len(steps) + 1)
    for value, start, end in zip(plan.opened_by, plan.start, plan.end, strict=True):
        if value != NONE:
            change[start] += problem.value_bytes[value]
            change[end] -= problem.value_bytes[value]
    workspace, time_ns = problem.workspace_bytes, problem.time_ns
    held = accumulate(change)
    live = tuple(bytes_ + workspace[op] for bytes_, op in zip(held, steps, strict=False))
    return Trace(live, max(live, default=0), sum(time_ns[op] for op in steps))


def _hoisted_readers(
    problem: Problem, steps: Sequence[int]
) -> tuple[dict[int, int], dict[int, list[int]]]:
    """How many steps each hoisted step waits for, and which hoisted steps wait for each step."""
    latest = [NONE] * len(problem.value_bytes)
    missing: dict[int, int] = {}
    readers: dict[int, list[int]] = {}
    for at, op in enumerate(steps):
        if problem.hoisted[op]:
            sources = {latest[value] for value in problem.reads[op]}
            if NONE in sources:
                raise ValueError(f"step {at} ({problem.op_names[op]}) reads what is not computed")
            missing[at] = len(sources)
            for source in sources:
                readers.setdefault(source, []).append(at)
        for value in problem.writes[op]:
            latest[value] = at
    return missing, readers

"""The least memory any schedule needs, whatever its order and its recomputations.

Each op runs a last time; then it holds its workspace, one buffer per class it reads, and its
outputs, the kept ones in fresh buffers. And once every kept value is in its last instance,
all of them are held together. Exact integers; a limit below is proven infeasible.
"""

from remat.problem import NONE, Problem
from remat.scheduler.buffers import Sharing, new_bytes, read_classes, sharing


def needed(problem: Problem) -> tuple[int, int]:
    """(bytes, op): no schedule's peak is below `bytes`; `op` is the one that needs them.

    (0, -1) for a problem without ops.
    """
    shared = sharing(problem)
    best = (0, NONE)
    for op in range(len(problem.op_names)):
        bytes_ = _one_op(problem, shared, op)
        if bytes_ > best[0] or op == 0:
            best = (bytes_, op)
    end = _end(problem, shared)
    return end if end[0] > best[0] else best


def _one_op(problem: Problem, shared: Sharing, op: int) -> int:
    reads = sum(shared.class_bytes[root] for root in read_classes(problem, shared, op))
    return problem.workspace_bytes[op] + reads + new_bytes(problem, shared, op, last=True)


def _end(problem: Problem, shared: Sharing) -> tuple[int, int]:
    """The last step that is a first run or writes a kept value sees all kept values held.

    It runs an op without readers or one that writes a kept value. Classes with a kept member
    may lie in the kept buffers, so they are not counted again.
    """
    kept_bytes = sum(problem.value_bytes[value] for value in problem.kept)
    kept_classes = {shared.class_of[value] for value in problem.kept}
    read_later = {value for reads in problem.reads for value in reads}
    best: tuple[int, int] | None = None
    for op, written in enumerate(problem.writes):
        if any(v in read_later for v in written) and not any(v in problem.kept for v in written):
            continue
        roots = (root for root in read_classes(problem, shared, op) if root not in kept_classes)
        extra = problem.workspace_bytes[op] + sum(shared.class_bytes[root] for root in roots)
        best = min(best or (extra, op), (extra, op))
    if best is None:
        return 0, 0
    return kept_bytes + best[0], best[1]

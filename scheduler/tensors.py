"""A problem as most papers have it: each op makes one tensor, of the size of all its outputs."""

from dataclasses import dataclass

from remat.problem import Problem


@dataclass(frozen=True, slots=True)
class Tensors:
    """Per op: the size of its output, the ops that it reads, those that read it, in order."""

    size: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    users: tuple[tuple[int, ...], ...]
    kept: frozenset[int]

    @classmethod
    def of(cls, problem: Problem) -> "Tensors":
        """The outputs of an op are one tensor."""
        writer = problem.writer
        reads = tuple(
            tuple(sorted({writer[value] for value in values})) for values in problem.reads
        )
        users: list[list[int]] = [[] for _ in reads]
        for op, sources in enumerate(reads):
            for source in sources:
                users[source].append(op)
        size = tuple(sum(problem.value_bytes[v] for v in vs) for vs in problem.writes)
        kept = frozenset(writer[value] for value in problem.kept)
        return cls(size, reads, tuple(map(tuple, users)), kept)

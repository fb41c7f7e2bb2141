"""A problem as flat arrays: what the compiled kernels read.

Ragged lists are stored one behind the other with offsets (compressed sparse rows): the reads of
op u are `reads[read_at[u]:read_at[u + 1]]`. A read slot is the place of a value in that list.
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from remat.problem import CONSTANT, NONE, Problem
from remat.scheduler.compiled import Flags, Int64

__all__ = ["CONSTANT", "NONE", "Arrays", "rows"]


class Arrays(NamedTuple):
    """A `Problem` without its limit and names. n ops, m values.

    A named tuple rather than a dataclass: the compiler passes it into kernels as it is.
    Per op: `time_ns`, `workspace_bytes`, `recomputable`, `read_at`/`reads` (values, by slot),
    `write_at`/`writes` (values). Per value: `writer` (op), `value_bytes`, `kept`,
    `reader_at`/`readers` (ops, ascending, each once), `alias_slot` (the writer's read slot whose
    buffer the value shares, `NONE` or `CONSTANT`), `inplace_at`/`inplace_slots` (read slots in
    the order they are tried).
    """

    time_ns: Int64
    workspace_bytes: Int64
    recomputable: Flags
    read_at: Int64
    reads: Int64
    write_at: Int64
    writes: Int64
    writer: Int64
    value_bytes: Int64
    kept: Flags
    reader_at: Int64
    readers: Int64
    alias_slot: Int64
    inplace_at: Int64
    inplace_slots: Int64

    @property
    def ops(self) -> int:
        """The number of ops."""
        return len(self.time_ns)

    @property
    def values(self) -> int:
        """The number of values."""
        return len(self.value_bytes)

    @property
    def base_time_ns(self) -> int:
        """The time of every op once."""
        return int(self.time_ns.sum())

    @classmethod
    def of(cls, problem: Problem) -> "Arrays":
        """Flatten a problem; a ValueError if it has no ops."""
        n, m = len(problem.op_names), len(problem.value_names)
        if n == 0:
            raise ValueError("a problem without ops has nothing to schedule")
        readers: list[list[int]] = [[] for _ in range(m)]
        for op in range(n):
            for value in dict.fromkeys(problem.reads[op]):
                readers[value].append(op)
        writer = problem.writer
        read_at, reads = rows(problem.reads)
        write_at, writes = rows(problem.writes)
        reader_at, reader_list = rows(readers)
        inplace_at, inplace_slots = rows(
            [problem.reads[writer[v]].index(x) for x in problem.inplace_of[v]] for v in range(m)
        )
        alias_slot = [
            a if a < 0 else problem.reads[writer[v]].index(a)
            for v, a in enumerate(problem.alias_of)
        ]
        return cls(
            time_ns=np.array(problem.time_ns, dtype=np.int64),
            workspace_bytes=np.array(problem.workspace_bytes, dtype=np.int64),
            recomputable=np.array(problem.recomputable, dtype=np.bool_),
            read_at=read_at,
            reads=reads,
            write_at=write_at,
            writes=writes,
            writer=np.array(writer, dtype=np.int64),
            value_bytes=np.array(problem.value_bytes, dtype=np.int64),
            kept=np.array([v in problem.kept for v in range(m)], dtype=np.bool_),
            reader_at=reader_at,
            readers=reader_list,
            alias_slot=np.array(alias_slot, dtype=np.int64),
            inplace_at=inplace_at,
            inplace_slots=inplace_slots,
        )


def rows(lists: Iterable[Sequence[int]]) -> tuple[Int64, Int64]:
    """Offsets (one more than lists) and the lists one behind the other."""
    at = [0]
    flat: list[int] = []
    for row in lists:
        flat.extend(row)
        at.append(len(flat))
    return np.array(at, dtype=np.int64), np.array(flat, dtype=np.int64)

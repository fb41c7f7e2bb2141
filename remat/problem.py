"""The scheduling problem: what to run, what it costs, what it holds, and the limit.

This is the memory model of ONNX Runtime's strict mode (graph optimizations off,
PRIORITY_BASED order, no arena, no pattern, no reuse) in integers. Everything that schedules
or judges reads it; nothing here decides anything.

Terms
    op      a node of the optimized graph, numbered 0..n-1 in a topological order.
    value   what an op writes, numbered 0..m-1. Graph inputs and weights are not values:
            they are there all the time and cost the schedule nothing.
    steps   a sequence of op numbers. The second and later occurrences of an op are
            recomputations. A read takes the latest instance of the value written before it.
    buffer  the memory behind one or more instances of values.

Memory law (`remat.simulate` is the reference implementation)
    At a step, for each value written, in order:
      1. a kept value in its last instance gets a fresh buffer and holds it to the end;
      2. else a value with `alias_of >= 0` shares the buffer of that (read) value's instance,
         however long it lives; with `alias_of == CONSTANT` it costs nothing;
      3. else the first value x of `inplace_of` whose buffer has exactly one outstanding use,
         this step's single read of x, hands its buffer over;
      4. else a fresh buffer of `value_bytes` is taken.
    An outstanding use of a buffer is a read, later in the sequence or at this step, of any
    instance that lives in it, or its being kept, or an instance written to it earlier at this
    very step. The memory behind `CONSTANT` is never handed over.
    A buffer is released after the step at which no use of it is outstanding (after its own step
    if nothing reads it: the models that remat writes put a reader, an Identity that costs
    nothing, behind such an output, without which the runtime would hold it to the end).
    A buffer's size is that of the value that opened it.
    The memory of a step = all buffers held during it, its new ones included
    + `workspace_bytes` of its op.
"""

from dataclasses import dataclass, replace

NONE = -1
CONSTANT = -2


@dataclass(frozen=True, slots=True)
class Problem:
    """One device's scheduling problem; all sizes in bytes, all times in nanoseconds.

    `reads[u]` lists the values that op u reads, once per input slot (a value read twice is
    listed twice). `writes[u]` lists the values it writes; each value has exactly one writer.
    `alias_of[v]` is a value read by v's writer, `CONSTANT` or `NONE`.
    `inplace_of[v]` are values read by v's writer, in the order the runtime tries them.
    Values of one `reuse_class` have the same static shape and element size, so a plain session
    may hand a dead buffer of one to the other; `NONE` is never handed on. Strict mode ignores it.
    `kept` are the graph outputs. Ops with `recomputable` False occur exactly once in `steps`
    (random generators, ops with subgraphs that hold them).
    `hoisted` ops (Shape, Size) run as soon as their inputs exist, whatever place they are given.
    `limit_bytes` bounds the memory of every step.
    """

    op_names: tuple[str, ...]
    time_ns: tuple[int, ...]
    workspace_bytes: tuple[int, ...]
    reads: tuple[tuple[int, ...], ...]
    writes: tuple[tuple[int, ...], ...]
    value_names: tuple[str, ...]
    value_bytes: tuple[int, ...]
    alias_of: tuple[int, ...]
    inplace_of: tuple[tuple[int, ...], ...]
    reuse_class: tuple[int, ...]
    kept: frozenset[int]
    recomputable: tuple[bool, ...]
    hoisted: tuple[bool, ...]
    limit_bytes: int

    def __post_init__(self) -> None:
        n, m = len(self.op_names), len(self.value_names)
        per_op = (self.time_ns, self.workspace_bytes, self.reads, self.writes)
        if any(len(column) != n for column in (*per_op, self.recomputable, self.hoisted)):
            raise ValueError("a column of ops has another length than op_names")
        per_value = (self.value_bytes, self.alias_of, self.inplace_of, self.reuse_class)
        if any(len(column) != m for column in per_value):
            raise ValueError("a column of values has another length than value_names")
        written: set[int] = set()
        for op in range(n):
            if any(value not in written for value in self.reads[op]):
                raise ValueError(f"op {self.op_names[op]} reads a value that is written later")
            if written & set(self.writes[op]):
                raise ValueError(f"a value of op {self.op_names[op]} has two writers")
            written.update(self.writes[op])
        if len(written) != m:
            raise ValueError("a value has no writer")

    @property
    def writer(self) -> tuple[int, ...]:
        """The op that writes each value."""
        owner = [NONE] * len(self.value_names)
        for op, values in enumerate(self.writes):
            for value in values:
                owner[value] = op
        return tuple(owner)

    def with_limit(self, limit_bytes: int) -> "Problem":
        """The same problem under another limit."""
        return replace(self, limit_bytes=limit_bytes)

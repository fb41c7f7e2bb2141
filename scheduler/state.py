"""A step sequence under evaluation: its arrays, allocated once and overwritten by the kernels.

An instance is one writing of a value, numbered in order of writing. A buffer is numbered in order
of opening. Tables are packed, one row per step, instance or buffer: the compiler's time grows
with the number of arrays that it passes around, and a row shares a cache line.
"""

from typing import NamedTuple

import numpy as np

from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import Int64

# Columns of `State.step`.
MEMORY_BYTES = 0
READ_FROM = 1
WRITE_FROM = 2
STEP_COLUMNS = 3

# Columns of `State.instance`.
VALUE = 0
WRITTEN_AT = 1
USES = 2
FIRST_USE = 3
LAST_USE = 4
BUFFER = 5
INSTANCE_COLUMNS = 6

# Columns of `State.buffer`.
BYTES = 0
OPENED = 1
RELEASED = 2
OUTSTANDING = 3
TOUCHED_AT = 4
BUFFER_COLUMNS = 5

# Rows of `State.totals`.
LENGTH = 0
TIME_NS = 1
PEAK_BYTES = 2
EXCESS_BYTES = 3
BUFFERS = 4
INSTANCES = 5
TOTALS = 6


class State(NamedTuple):
    """`steps[:totals[LENGTH]]` and what evaluation says of it.

    `step`, per step: MEMORY_BYTES; where its reads begin in `source` and its instances in
    `instance`. `source`: the instance behind each read. `instance`: its VALUE, the step that
    wrote it, its USES (reads), the first and last step that read it (its own if none does) and
    its BUFFER (NONE if it costs nothing). `buffer`: BYTES, the first and last step that hold it
    (RELEASED is the length of the sequence if it is kept), OUTSTANDING uses, and a
    mark for whoever needs one. `copies` counts runs per op, `latest` is the last instance of
    each value. `totals[EXCESS_BYTES]` sums the bytes over the limit over all steps.
    """

    steps: Int64
    step: Int64
    source: Int64
    instance: Int64
    buffer: Int64
    copies: Int64
    latest: Int64
    totals: Int64

    @classmethod
    def holding(cls, arrays: Arrays, max_steps: int) -> "State":
        """Room for `max_steps` steps of average degree, and once for every op."""
        n = arrays.ops
        reads = max_steps * (len(arrays.reads) // n + 1) + len(arrays.reads)
        writes = max_steps * (len(arrays.writes) // n + 1) + len(arrays.writes)

        def table(*shape: int) -> Int64:
            return np.zeros(shape, dtype=np.int64)

        return cls(
            steps=table(max_steps),
            step=table(max_steps + 1, STEP_COLUMNS),
            source=table(reads),
            instance=table(writes, INSTANCE_COLUMNS),
            buffer=table(writes, BUFFER_COLUMNS),
            copies=table(n),
            latest=table(arrays.values),
            totals=table(TOTALS),
        )

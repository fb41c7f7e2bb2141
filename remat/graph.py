"""A model as the scheduler sees it: ops, the values they write, and what is constant.

Built from an optimized ONNX file and one observed run (`remat.onnx_io`); holds no weights.
"""

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Tensor:
    """A value some op writes.

    `shape` is the observed one; `static` says that the runtime knows it before running, so
    that it may take over or reuse buffers for it.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    nbytes: int
    static: bool


@dataclass(frozen=True, slots=True)
class Op:
    """A node: `inputs` and `outputs` by slot ("" where an optional one is absent).

    `captured` are outer values that its subgraphs read. `overwrites` are pairs (what it reads,
    what it writes or ""): the latter is put into the buffer of the former, even where others read
    that too. `signature` identifies its cost.
    """

    name: str
    kind: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    captured: tuple[str, ...]
    recomputable: bool
    hoisted: bool
    signature: str
    overwrites: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Graph:
    """`ops` are in a topological order; `tensors` are their outputs by name.

    `weights_bytes` is the size of all initializers, `inputs_bytes` that of what the caller
    hands in.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    weights: frozenset[str]
    weights_bytes: int
    inputs_bytes: int
    ops: tuple[Op, ...]
    tensors: Mapping[str, Tensor]

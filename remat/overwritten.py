"""Values that the runtime writes over while others may still read them, and the order that follows.

The CPU kernel of BatchNormalization in training mode puts its outputs 1 and 2 into the buffers of
its inputs 3 and 4, whoever else reads those: another such node (equal initializers are merged), an
op that adds the same constant, a subgraph. What each of them reads depends on the order of
execution, which the graph does not say. The original's order is kept for them, and none of them
runs twice: the results are those of the original then, whatever else moves.

The order is put into the `Problem` as values of no size, which each of these ops writes and the
next one reads. They are in no model.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from itertools import pairwise

from remat.costs import CostTable
from remat.graph import Graph, Op
from remat.problem import NONE, Problem


def ordered_ops(graph: Graph, costs: CostTable) -> tuple[tuple[int, ...], ...]:
    """For each buffer whose content depends on the order of execution, the ops that read or write
    it, in the graph's order. Shape and Size are no such ops: they read no content."""
    home = _homes(graph, costs)
    found = []
    for cell in sorted({home.get(name, name) for op in graph.ops for name, _ in op.overwrites}):
        users = [index for index, op in enumerate(graph.ops) if cell in _cells(op, home)]
        if _depends_on_order(graph, [graph.ops[index] for index in users], cell, home):
            found.append(tuple(users))
    return tuple(found)


def keep_order(problem: Problem, chains: Iterable[tuple[int, ...]]) -> Problem:
    """The problem in which the ops of every chain run once, in this order."""
    reads, writes = list(problem.reads), list(problem.writes)
    recomputable = list(problem.recomputable)
    names: list[str] = []
    for chain in chains:
        for op in chain:
            recomputable[op] = False
        for before, after in pairwise(chain):
            value = len(problem.value_names) + len(names)
            names.append(f"{problem.op_names[before]} before {problem.op_names[after]}")
            writes[before] = (*writes[before], value)
            reads[after] = (*reads[after], value)
    return replace(
        problem,
        reads=tuple(reads),
        writes=tuple(writes),
        value_names=(*problem.value_names, *names),
        value_bytes=(*problem.value_bytes, *[0] * len(names)),
        alias_of=(*problem.alias_of, *[NONE] * len(names)),
        inplace_of=(*problem.inplace_of, *[()] * len(names)),
        reuse_class=(*problem.reuse_class, *[NONE] * len(names)),
        recomputable=tuple(recomputable),
    )


def is_kept(chains: Iterable[tuple[int, ...]], steps: Iterable[int]) -> bool:
    """Whether a sequence of ops runs those of every chain that it has once, in this order."""
    ran = tuple(steps)
    return all(
        [op for op in ran if op in chain] == [op for op in chain if op in ran] for chain in chains
    )


def _homes(graph: Graph, costs: CostTable) -> dict[str, str]:
    """The value whose buffer each value lives in, where that is another's."""
    home: dict[str, str] = {}
    for op in graph.ops:
        alias = costs.ops[op.signature].alias
        pairs = [
            (op.inputs[slot], name)
            for name, slot in zip(op.outputs, alias, strict=True)
            if slot != NONE
        ]
        for source, name in (*op.overwrites, *pairs):
            if name:
                home.setdefault(name, home.get(source, source))
    return home


def _cells(op: Op, home: Mapping[str, str]) -> set[str]:
    """The buffers whose content an op reads or writes."""
    if op.hoisted:
        return set()
    return {home.get(name, name) for name in (*op.inputs, *op.captured, *op.outputs) if name}


def _depends_on_order(graph: Graph, users: list[Op], cell: str, home: Mapping[str, str]) -> bool:
    """Whether someone but the one writer reads what it writes over.

    Readers of what it has written come after it in every order.
    """
    writers = [op for op in users if any(home.get(name, name) == cell for name, _ in op.overwrites)]
    if len(writers) > 1:
        return True
    written = {name for _, name in writers[0].overwrites} - {""}
    after = set(written)
    for op in users:
        if not after.isdisjoint(op.inputs):
            after.update(name for name in op.outputs if home.get(name) == cell)
    before = {name for name in (cell, *home) if home.get(name, name) == cell} - after
    read = {name for op in users if op is not writers[0] for name in (*op.inputs, *op.captured)}
    return not before.isdisjoint(read | set(graph.outputs))

"""Seeded scheduling problems and step sequences for every test that needs one.

    random_problem(seed, ops)              a bit of everything the memory law speaks of
    random_problem(seed, ops, PLAIN)       one value per op, no workspace, no sharing, no pins
    random_problem(seed, ops, NO_HOISTED)  everything but Shape-like ops
    training_like(seed, layers)            forward, loss and backward of a chain or a U-net
    tightened(problem, seed)               the same under a tight limit that something meets
    small_problem(reads, writes, bytes)    a problem written by hand
    random_steps(problem, seed, extra)     a legal sequence with up to `extra` recomputations

The same arguments give the same answer. Every problem is well formed: sizes of alias and in-place
partners are equal, values of one reuse class have one size, times are at least 1 ns, and the order
0, 1, ..., n-1 is legal and runs as given (a hoisted op directly follows what it reads).
`limit_percent` sets the limit to that share of this order's strict peak, rounded down, so with
100 or more the order fits and below nothing is promised, not even that any schedule exists.
"""

import random
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from remat.problem import CONSTANT, NONE, Problem
from remat.simulate import run_order, strict

UNIT_BYTES = 64


@dataclass(frozen=True, slots=True)
class Mix:
    """How likely each feature is, in percent, for each op or value that could have it."""

    two_outputs: int = 20
    workspace: int = 25
    alias: int = 18
    constant: int = 4
    in_place: int = 45
    double_read: int = 10
    kept: int = 12
    unread_kept: int = 70
    pinned: int = 8
    hoisted: int = 8
    no_reads: int = 10
    sizes: int = 4


MIXED = Mix()
NO_HOISTED = Mix(hoisted=0)
PLAIN = Mix(0, 0, 0, 0, 0, 0, kept=0, unread_kept=100, pinned=0, hoisted=0, no_reads=0, sizes=16)


@dataclass(slots=True)
class _Draft:
    """A problem in the making, in columns."""

    time_ns: list[int] = field(default_factory=list)
    workspace_bytes: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    writes: list[tuple[int, ...]] = field(default_factory=list)
    recomputable: list[bool] = field(default_factory=list)
    hoisted: list[bool] = field(default_factory=list)
    value_bytes: list[int] = field(default_factory=list)
    alias_of: list[int] = field(default_factory=list)
    inplace_of: list[tuple[int, ...]] = field(default_factory=list)
    reuse_class: list[int] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)

    def value(self, units: int, alias: int = NONE, inplace: tuple[int, ...] = ()) -> int:
        """Add a value of `units` * 64 bytes and give its number."""
        self.value_bytes.append(units * UNIT_BYTES)
        self.alias_of.append(alias)
        self.inplace_of.append(inplace)
        self.reuse_class.append(2 * units)
        return len(self.value_bytes) - 1

    def op(self, reads: tuple[int, ...], writes: tuple[int, ...], time_ns: int) -> int:
        """Add an op without workspace that may be recomputed and give its number."""
        self.reads.append(reads)
        self.writes.append(writes)
        self.time_ns.append(time_ns)
        self.workspace_bytes.append(0)
        self.recomputable.append(True)
        self.hoisted.append(False)
        return len(self.reads) - 1

    def problem(self, limit_percent: int) -> Problem:
        """The finished problem, limited to a share of the peak of its own order."""
        made = Problem(
            op_names=tuple(f"op{u}" for u in range(len(self.reads))),
            time_ns=tuple(self.time_ns),
            workspace_bytes=tuple(self.workspace_bytes),
            reads=tuple(self.reads),
            writes=tuple(self.writes),
            value_names=tuple(f"v{v}" for v in range(len(self.value_bytes))),
            value_bytes=tuple(self.value_bytes),
            alias_of=tuple(self.alias_of),
            inplace_of=tuple(self.inplace_of),
            reuse_class=tuple(self.reuse_class),
            kept=frozenset(self.kept),
            recomputable=tuple(self.recomputable),
            hoisted=tuple(self.hoisted),
            limit_bytes=0,
        )
        peak = strict(made, range(len(made.op_names))).peak_bytes
        return made.with_limit(peak * limit_percent // 100)


def random_problem(seed: int, ops: int, mix: Mix = MIXED, limit_percent: int = 100) -> Problem:
    """A random problem of `ops` ops with the features of `mix`."""
    rng = random.Random(f"{seed} {ops}")
    draft = _Draft()
    for _ in range(ops):
        if _chance(rng, mix.hoisted):
            _add_hoisted(draft, rng)
        else:
            _add_op(draft, rng, mix)
    read = {value for values in draft.reads for value in values}
    for value in range(len(draft.value_bytes)):
        if _chance(rng, mix.kept if value in read else mix.unread_kept):
            draft.kept.add(value)
    return draft.problem(limit_percent)


def training_like(seed: int, layers: int, limit_percent: int = 100) -> Problem:
    """A training step: `layers` forward ops, a loss, then two backward ops for each layer.

    Backward op i reads the gradient that arrives and the activation layer i wrote; a weight
    gradient reads the same and is kept. Odd seeds give a U-net: layer i of the second half also
    reads the output of layer `layers` - 1 - i, and the sizes halve towards the middle.
    """
    rng = random.Random(f"training {seed} {layers}")
    draft = _Draft()
    is_unet = seed % 2 == 1
    activations: list[int] = []
    for layer in range(layers):
        depth = min(layer, layers - 1 - layer) if is_unet else 0
        units = max(1, 64 >> min(depth, 5)) if is_unet else rng.choice((8, 16, 16, 32))
        skip = (activations[layers - 1 - layer],) if is_unet and layer >= (layers + 1) // 2 else ()
        op = draft.op((*activations[-1:], *skip), (draft.value(units),), rng.randint(10, 100))
        draft.workspace_bytes[op] = UNIT_BYTES * rng.choice((0, 0, units // 2))
        activations.append(draft.writes[op][0])
    loss = draft.value(1)
    draft.op((activations[-1],), (loss,), 5)
    draft.kept.add(loss)
    _add_backward(draft, rng, activations, loss)
    return draft.problem(limit_percent)


def small_problem(
    reads: Sequence[Sequence[int]],
    writes: Sequence[Sequence[int]],
    value_bytes: Sequence[int],
    limit_bytes: int = 1 << 62,
    **columns: Any,
) -> Problem:
    """A problem written by hand; `columns` replaces fields of `Problem` that have dull defaults:

    every op takes 1 ns, has no workspace and may be recomputed, nothing is shared or kept.
    """
    ops, values = len(reads), len(value_bytes)
    dull: dict[str, Any] = {
        "op_names": tuple(f"op{u}" for u in range(ops)),
        "time_ns": (1,) * ops,
        "workspace_bytes": (0,) * ops,
        "value_names": tuple(f"v{v}" for v in range(values)),
        "alias_of": (NONE,) * values,
        "inplace_of": ((),) * values,
        "reuse_class": (NONE,) * values,
        "kept": frozenset(),
        "recomputable": (True,) * ops,
        "hoisted": (False,) * ops,
    }
    return Problem(
        reads=tuple(map(tuple, reads)),
        writes=tuple(map(tuple, writes)),
        value_bytes=tuple(value_bytes),
        limit_bytes=limit_bytes,
        **(dull | columns),
    )


def tightened(problem: Problem, seed: int, tries: int = 30) -> Problem:
    """`problem` limited to the least peak of some random legal step sequences.

    So at least one schedule fits, now and then only one with recomputations.
    """
    sequences = (random_steps(problem, seed + k, k % 4) for k in range(tries))
    return problem.with_limit(min(strict(problem, steps).peak_bytes for steps in sequences))


def random_steps(problem: Problem, seed: int, extra: int) -> tuple[int, ...]:
    """A random legal sequence with up to `extra` recomputations, legal but for the memory limit.

    Every op occurs, every read finds an instance, pinned ops occur once, no recomputation is
    dead, and hoisted ops stand where the runtime runs them.
    """
    steps = run_order(problem, unhoisted_steps(problem, seed, extra))
    return tuple(_without_dead(problem, list(steps)))


def unhoisted_steps(problem: Problem, seed: int, extra: int) -> tuple[int, ...]:
    """The same with hoisted ops at any later place, too."""
    rng = random.Random(f"steps {seed} {extra}")
    steps = _random_order(problem, rng)
    for _ in range(extra):
        op = rng.choice(steps)
        if problem.recomputable[op]:
            steps.insert(rng.randint(steps.index(op) + 1, len(steps)), op)
    return tuple(_without_dead(problem, steps))


def _chance(rng: random.Random, percent: int) -> bool:
    return rng.randrange(100) < percent


def _add_hoisted(draft: _Draft, rng: random.Random) -> None:
    """A Shape-like op that reads what was written last, or a graph input if it is the first."""
    source = (rng.choice(draft.writes[-1]),) if draft.writes else ()
    value = draft.value(1)
    draft.reuse_class[value] = NONE
    op = draft.op(source, (value,), rng.randint(1, 3))
    draft.hoisted[op] = True


def _add_op(draft: _Draft, rng: random.Random, mix: Mix) -> None:
    """An op that reads some of the last dozen values and writes one or two."""
    count = len(draft.value_bytes)
    recent = range(max(0, count - 12), count)
    reads: list[int] = []
    if recent and not _chance(rng, mix.no_reads):
        reads = rng.sample(recent, min(len(recent), rng.choice((1, 1, 2, 2, 3))))
        if _chance(rng, mix.double_read):
            reads.append(rng.choice(reads))
    writes = tuple(
        _add_value(draft, rng, mix, reads) for _ in range(2 if _chance(rng, mix.two_outputs) else 1)
    )
    op = draft.op(tuple(reads), writes, rng.randint(1, 50))
    if _chance(rng, mix.workspace):
        draft.workspace_bytes[op] = UNIT_BYTES * rng.randint(1, 4)
    draft.recomputable[op] = not _chance(rng, mix.pinned)


def _add_value(draft: _Draft, rng: random.Random, mix: Mix, reads: list[int]) -> int:
    """A value that is an alias, or takes over one of `reads` in place, or neither."""
    source = rng.choice(reads) if reads else NONE
    if reads and _chance(rng, mix.alias):
        value = draft.value(draft.value_bytes[source] // UNIT_BYTES, alias=source)
    elif _chance(rng, mix.constant):
        value = draft.value(rng.randint(1, mix.sizes), alias=CONSTANT)
    elif reads and _chance(rng, mix.in_place):
        units = draft.value_bytes[source] // UNIT_BYTES
        fitting = [x for x in dict.fromkeys(reads) if draft.value_bytes[x] == units * UNIT_BYTES]
        value = draft.value(units, inplace=tuple(rng.sample(fitting, len(fitting))))
    else:
        value = draft.value(rng.randint(1, mix.sizes))
    draft.reuse_class[value] = rng.choice((NONE, 0, 0, 0, 1))
    if draft.reuse_class[value] != NONE:
        draft.reuse_class[value] += 2 * (draft.value_bytes[value] // UNIT_BYTES)
    return value


def _add_backward(draft: _Draft, rng: random.Random, activations: list[int], loss: int) -> None:
    gradient = loss
    arriving: dict[int, list[int]] = {activations[-1]: [loss]}
    readers = {value: op for op in range(len(activations)) for value in draft.reads[op]}
    for layer in reversed(range(len(activations))):
        inputs = draft.reads[layer]
        act = activations[layer]
        gradient = arriving[act][0]
        if len(arriving[act]) > 1:
            units = draft.value_bytes[act] // UNIT_BYTES
            inplace = tuple(g for g in arriving[act] if draft.value_bytes[g] == units * UNIT_BYTES)
            gradient = draft.value(units, inplace=inplace)
            draft.op(tuple(arriving[act]), (gradient,), rng.randint(2, 8))
        weight = draft.value(rng.randint(1, 2))
        draft.op((gradient, *(inputs or (act,))), (weight,), rng.randint(10, 60))
        draft.kept.add(weight)
        for source in inputs:
            units = draft.value_bytes[source] // UNIT_BYTES
            same = draft.value_bytes[gradient] == units * UNIT_BYTES and source in readers
            back = draft.value(units, inplace=(gradient,) if same else ())
            draft.op((gradient, act), (back,), rng.randint(10, 100))
            arriving.setdefault(source, []).append(back)


def _random_order(problem: Problem, rng: random.Random) -> list[int]:
    """Every op once, each as soon as chance wants it after what it reads."""
    left = list(range(len(problem.op_names)))
    written: set[int] = set()
    order: list[int] = []
    while left:
        ready = [op for op in left if written.issuperset(problem.reads[op])]
        op = rng.choice(ready)
        left.remove(op)
        written.update(problem.writes[op])
        order.append(op)
    return order


def _without_dead(problem: Problem, steps: list[int]) -> list[int]:
    """`steps` less the occurrences of repeated ops that nothing reads and that are not kept."""
    result = list(steps)
    while True:
        used = _used_steps(problem, result)
        count = Counter(result)
        dead = [i for i, op in enumerate(result) if not used[i] and count[op] > 1]
        if not dead:
            return result
        del result[dead[0]]


def _used_steps(problem: Problem, steps: list[int]) -> list[bool]:
    used = [False] * len(steps)
    latest: dict[int, int] = {}
    for at, op in enumerate(steps):
        for value in problem.reads[op]:
            used[latest[value]] = True
        latest.update((value, at) for value in problem.writes[op])
    for value, at in latest.items():
        used[at] |= value in problem.kept
    return used

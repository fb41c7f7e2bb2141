"""Which values may share memory: the facts every lower bound rests on.

By the memory law (`remat.problem`) two instances that both have uses after a step share a buffer
only if one is an alias of the other: a hand-over in place ends the giver. So values fall into
classes (an alias and what it aliases), live members of two classes never share, and a sum over
classes never counts a byte twice, whatever the order and however often ops run.
"""

from dataclasses import dataclass

from remat.problem import CONSTANT, NONE, Problem


@dataclass(frozen=True, slots=True)
class Sharing:
    """Per value: its class (`CONSTANT` if it costs nothing), its donors; per class: its bytes.

    A class is named by its root value. `class_bytes[root]` is the least a buffer with a live
    member holds. `donors[v]` are the values whose buffer v can take over.
    """

    class_of: tuple[int, ...]
    class_bytes: tuple[int, ...]
    donors: tuple[tuple[int, ...], ...]


def sharing(problem: Problem) -> Sharing:
    """The classes of `problem`. A root that takes over a buffer may get a smaller one."""
    m = len(problem.value_names)
    class_of, least = [NONE] * m, [0] * m
    donors: list[tuple[int, ...]] = [()] * m
    for op, written in enumerate(problem.writes):
        reads = problem.reads[op]
        for value in written:
            source = problem.alias_of[value]
            if source == CONSTANT:
                class_of[value] = CONSTANT
                continue
            if source >= 0:
                class_of[value] = class_of[source]
                root = class_of[source]
                if value in problem.kept and root >= 0:
                    least[root] = min(least[root], problem.value_bytes[value])
                continue
            class_of[value] = value
            donors[value] = tuple(
                x
                for x in dict.fromkeys(problem.inplace_of[value])
                if reads.count(x) == 1 and class_of[x] >= 0
            )
            least[value] = problem.value_bytes[value]
            # If another output is an alias of a donor, both may end up in one buffer.
            if any(problem.alias_of[w] in donors[value] for w in written):
                least[value] = 0
    _shrink_by_donation(least, class_of, donors)
    return Sharing(tuple(class_of), tuple(least), tuple(donors))


def _shrink_by_donation(
    least: list[int], class_of: list[int], donors: list[tuple[int, ...]]
) -> None:
    """A buffer keeps the size of the value that opened it, through any number of hand-overs."""
    changed = True
    while changed:
        changed = False
        for value, given in enumerate(donors):
            for x in given:
                if least[class_of[x]] < least[value]:
                    least[value] = least[class_of[x]]
                    changed = True


def new_bytes(problem: Problem, shared: Sharing, op: int, *, last: bool) -> int:
    """The least that op's outputs add to what it reads; `last`: in its last occurrence."""
    total = 0
    takers: list[int] = []
    given: set[int] = set()
    for value in problem.writes[op]:
        if last and value in problem.kept:
            total += problem.value_bytes[value]
        elif shared.donors[value]:
            takers.append(problem.value_bytes[value])
            given.update(shared.donors[value])
        elif problem.alias_of[value] == NONE:
            total += problem.value_bytes[value]
    takers.sort()
    return total + sum(takers[: max(0, len(takers) - len(given))])


def read_classes(problem: Problem, shared: Sharing, op: int) -> tuple[int, ...]:
    """The classes op reads, each once, without those that cost nothing."""
    classes = (shared.class_of[value] for value in problem.reads[op])
    return tuple(dict.fromkeys(root for root in classes if root >= 0))

"""Whether a step sequence is a legal schedule of a problem, and which rule it breaks if not.

Legality is judged here from the problem alone, in code of its own. Only the memory of a legal
sequence comes from `remat.simulate`.
"""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from remat.problem import NONE, Problem
from remat.simulate import strict


class Rule(StrEnum):
    """What every schedule must obey, in the order in which it is checked."""

    # Every step is the number of an op.
    UNKNOWN_OP = "unknown-op"
    # Every value is written before it is read.
    INPUT_NOT_COMPUTED = "input-not-computed"
    # Every op runs, also one whose values nobody reads: the runtime runs it all the same.
    OP_MISSING = "op-missing"
    # An op that is not recomputable runs once.
    RECOMPUTES_FORBIDDEN = "recomputes-forbidden"
    # An instance of an op that runs more than once is read or kept: nothing removes a useless
    # clone from the model, so the runtime would run it.
    DEAD_RECOMPUTATION = "dead-recomputation"
    # A hoisted op stands where the runtime will run it, right after what it reads.
    HOISTED_LATE = "hoisted-late"
    # The memory of every step is within the limit.
    OVER_LIMIT = "over-limit"


@dataclass(frozen=True, slots=True)
class Violation:
    """The first breach found: its rule, where, and the exact facts.

    `step` is the offending index into the steps; of an op that is missing it is their number.
    For DEAD_RECOMPUTATION it is the first dead step, for OVER_LIMIT the first step of the peak.
    """

    rule: Rule
    step: int
    text: str


def check(problem: Problem, steps: Sequence[int]) -> Violation | None:
    """None if `steps` is a legal schedule within `problem.limit_bytes`, else what breaks first.

    Rules are tried in the order of `Rule`, each over all steps. Never raises.
    """
    for fact in (
        _steps_are_ops,
        _inputs_are_computed,
        _ops_run,
        _pinned_ops_run_once,
        _recomputations_are_used,
        _hoisted_ops_are_in_place,
        _memory_is_within_limit,
    ):
        violation = fact(problem, steps)
        if violation is not None:
            return violation
    return None


def _steps_are_ops(problem: Problem, steps: Sequence[int]) -> Violation | None:
    count = len(problem.op_names)
    for at, op in enumerate(steps):
        if not 0 <= op < count:
            text = f"step {at} runs op {op}, but the {count} ops are numbered from 0"
            return Violation(Rule.UNKNOWN_OP, at, text)
    return None


def _inputs_are_computed(problem: Problem, steps: Sequence[int]) -> Violation | None:
    written: set[int] = set()
    for at, op in enumerate(steps):
        for value in problem.reads[op]:
            if value not in written:
                writer = problem.op_names[problem.writer[value]]
                text = (
                    f"step {at} runs {problem.op_names[op]}, which reads "
                    f"{problem.value_names[value]}, but {writer} has not run"
                )
                return Violation(Rule.INPUT_NOT_COMPUTED, at, text)
        written.update(problem.writes[op])
    return None


def _ops_run(problem: Problem, steps: Sequence[int]) -> Violation | None:
    present = set(steps)
    for op, name in enumerate(problem.op_names):
        if op not in present:
            text = f"none of the {len(steps)} steps runs {name} (op {op})"
            return Violation(Rule.OP_MISSING, len(steps), text)
    return None


def _pinned_ops_run_once(problem: Problem, steps: Sequence[int]) -> Violation | None:
    first: dict[int, int] = {}
    for at, op in enumerate(steps):
        if first.setdefault(op, at) != at and not problem.recomputable[op]:
            text = (
                f"step {at} runs {problem.op_names[op]} again after step {first[op]}, "
                "but it must run once"
            )
            return Violation(Rule.RECOMPUTES_FORBIDDEN, at, text)
    return None


def _recomputations_are_used(problem: Problem, steps: Sequence[int]) -> Violation | None:
    used = [False] * len(steps)
    latest: dict[int, int] = {}  # the step that wrote each value last
    for at, op in enumerate(steps):
        for value in problem.reads[op]:
            used[latest[value]] = True
        for value in problem.writes[op]:
            latest[value] = at
    for value in problem.kept:
        used[latest[value]] = True
    runs = Counter(steps)
    for at, op in enumerate(steps):
        if not used[at] and runs[op] > 1:
            text = (
                f"step {at} runs {problem.op_names[op]}, one of {runs[op]} times, "
                "but nothing reads or keeps what it writes there"
            )
            return Violation(Rule.DEAD_RECOMPUTATION, at, text)
    return None


def _hoisted_ops_are_in_place(problem: Problem, steps: Sequence[int]) -> Violation | None:
    """Between a hoisted step and the last step it reads from there are hoisted steps only."""
    latest: dict[int, int] = {}
    last_other = NONE  # the last step that is not hoisted
    for at, op in enumerate(steps):
        if not problem.hoisted[op]:
            last_other = at
        else:
            source = max((latest[value] for value in problem.reads[op]), default=NONE)
            if source < last_other:
                name = problem.op_names[op]
                after = f"right after step {source}" if source != NONE else "first"
                text = f"step {at} runs {name}, but the runtime runs it {after}"
                return Violation(Rule.HOISTED_LATE, at, text)
        latest.update((value, at) for value in problem.writes[op])
    return None


def _memory_is_within_limit(problem: Problem, steps: Sequence[int]) -> Violation | None:
    trace = strict(problem, steps)
    if trace.peak_bytes <= problem.limit_bytes:
        return None
    at = trace.live_bytes.index(trace.peak_bytes)
    excess = trace.peak_bytes - problem.limit_bytes
    text = (
        f"step {at} ({problem.op_names[steps[at]]}) holds {trace.peak_bytes} bytes, "
        f"{excess} over the limit of {problem.limit_bytes}"
    )
    return Violation(Rule.OVER_LIMIT, at, text)

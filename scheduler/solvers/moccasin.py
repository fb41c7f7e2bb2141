"""Moccasin's constraint program (Bartan et al., ICML 2023, section 2), on OR-tools' CP-SAT.

Each op v has up to C retention intervals, during which its output is in memory: the first starts
where the given order runs v, the others, if there are any, where v is computed again. There is no
variable per pair of op and time, as in Checkmate. Starts are events of stages (section 2.3): the
order's j-th stage has one event for each op up to the j-th, in order, so that event k of stage j
is number j (j + 1) / 2 + k. Memory is a cumulative constraint, and each reader must start within
an interval of what it reads.

Where it differs: the reader picks the interval that it reads by a Boolean (the paper's eq. 7 uses
a reservoir constraint); workspace is an interval of one event; an output that is kept needs an
interval that ends last; the outputs of an op are one tensor. Sizes without a large common divisor
are rounded up to a millionth of the limit. C = 2, as in the paper's experiments, so no bound of
it holds for all schedules.
"""

import math
from dataclasses import dataclass
from typing import Any

from remat.errors import UsageError
from remat.problem import Problem
from remat.schedule import Solution
from remat.scheduler.judged import Claim, judged
from remat.scheduler.solvers import Request
from remat.scheduler.tensors import Tensors

# Retention intervals per op, the paper's C.
INTERVALS = 2
# The solver multiplies sizes by times in 64 bits.
MOST_UNITS = 10_000_000
UNITS = 1_000_000
# Events grow with the square of the ops; the domains of more are not written down in any time.
MOST_OPS = 1_200


@dataclass(frozen=True, slots=True)
class Model:
    """The program; `start`, `end` and `is_used` by op and number of the interval."""

    program: Any
    start: dict[tuple[int, int], Any]
    end: dict[tuple[int, int], Any]
    is_used: dict[tuple[int, int], Any]


def solve(problem: Problem, request: Request) -> Solution:
    """The best point found in time. Raises UsageError R265 without OR-tools."""
    try:
        from ortools.sat.python import cp_model
    except ImportError:
        fix = "pip install 'remat[cp]'"
        raise UsageError("R265", "this solver needs OR-tools", fix=fix) from None
    n = len(problem.op_names)
    cut = Claim("moccasin", interrupted=True)
    if not 0 < n <= MOST_OPS or problem.limit_bytes < 1:
        return judged(problem, [], cut)
    model = build(problem, Tensors.of(problem), cp_model)
    solver = cp_model.CpSolver()
    solver.parameters.random_seed = request.seed
    # One worker: several race, and the same seed would give another answer.
    solver.parameters.num_workers = 1
    if request.time_limit_s is not None:
        solver.parameters.max_time_in_seconds = request.time_limit_s
    status = solver.solve(model.program)
    is_cut = status not in (cp_model.OPTIMAL, cp_model.INFEASIBLE)
    if status not in (cp_model.OPTIMAL, cp_model.FEASIBLE):
        return judged(problem, [], Claim("moccasin", interrupted=is_cut))
    runs = sorted(
        (solver.value(model.start[key]), key[0])
        for key, used in model.is_used.items()
        if solver.value(used)
    )
    return judged(problem, [[op for _, op in runs]], Claim("moccasin", interrupted=is_cut))


def event(stage: int, op: int) -> int:
    """The number of op's event in a stage, op <= stage."""
    return stage * (stage + 1) // 2 + op


def build(problem: Problem, tensors: Tensors, cp_model: Any) -> Model:
    """All variables and constraints."""
    model = Model(cp_model.CpModel(), {}, {}, {})
    unit = _unit_bytes(problem, tensors)
    sizes: list[int] = []
    intervals = _retention_intervals(model, problem, tensors, sizes, cp_model)
    intervals += _workspace_intervals(model, problem, sizes)
    units = [-(-size // unit) for size in sizes]
    model.program.add_cumulative(intervals, units, problem.limit_bytes // unit)
    for op, sources in enumerate(tensors.reads):
        for number in range(INTERVALS):
            for source in sources:
                _reads_within_an_interval(model, op, number, source)
    for op in sorted(tensors.kept):
        _is_kept(model, op, len(tensors.size))
    # First runs cost the same in every schedule.
    model.program.minimize(
        sum(problem.time_ns[op] * used for (op, number), used in model.is_used.items() if number)
    )
    return model


def _unit_bytes(problem: Problem, tensors: Tensors) -> int:
    """The greatest common divisor of all sizes if the limit has few enough of it."""
    divisor = math.gcd(*tensors.size, *problem.workspace_bytes) or 1
    if problem.limit_bytes // divisor <= MOST_UNITS:
        return divisor
    return -(-problem.limit_bytes // UNITS)


def _retention_intervals(
    model: Model, problem: Problem, tensors: Tensors, sizes: list[int], cp_model: Any
) -> list[Any]:
    """Eq. 2 to 4: the first of each op at its place, the next later, each after the one before."""
    program, n, intervals = model.program, len(tensors.size), []
    horizon = event(n, 0)
    for op, number in ((op, number) for op in range(n) for number in range(INTERVALS)):
        key = op, number
        stages = [op] if not number else range(op + number, n)
        if not stages or (number and not problem.recomputable[op]):
            continue
        domain = cp_model.Domain.from_values([event(stage, op) for stage in stages])
        model.start[key] = program.new_int_var_from_domain(domain, "")
        model.end[key] = program.new_int_var(0, horizon, "")
        model.is_used[key] = used = program.new_bool_var("")
        length = program.new_int_var(1, horizon, "")
        intervals.append(
            program.new_optional_interval_var(model.start[key], length, model.end[key], used, "")
        )
        sizes.append(tensors.size[op])
        if not number:
            program.add(used == 1)
            continue
        before = op, number - 1
        program.add_implication(used, model.is_used[before])
        program.add(model.start[key] >= model.end[before]).only_enforce_if(used)
    return intervals


def _workspace_intervals(model: Model, problem: Problem, sizes: list[int]) -> list[Any]:
    """An op's workspace is there for the event at which it runs."""
    intervals = []
    for (op, number), used in model.is_used.items():
        if problem.workspace_bytes[op]:
            start = model.start[op, number]
            fixed = model.program.new_optional_fixed_size_interval_var(start, 1, used, "")
            intervals.append(fixed)
            sizes.append(problem.workspace_bytes[op])
    return intervals


def _reads_within_an_interval(model: Model, op: int, number: int, source: int) -> None:
    """Eq. 7: when a run of op starts, one of the intervals of what it reads has started and has
    not ended."""
    key = op, number
    if key not in model.is_used:
        return
    program, choices = model.program, []
    for other in range(INTERVALS):
        if (source, other) not in model.is_used:
            continue
        choice = program.new_bool_var("")
        program.add_implication(choice, model.is_used[source, other])
        program.add(model.start[source, other] < model.start[key]).only_enforce_if(choice)
        program.add(model.end[source, other] > model.start[key]).only_enforce_if(choice)
        choices.append(choice)
    program.add_bool_or([*choices, model.is_used[key].negated()])


def _is_kept(model: Model, op: int, n: int) -> None:
    """The last interval of an output that is kept ends with the schedule."""
    ends = []
    for number in range(INTERVALS):
        if (op, number) in model.is_used:
            last = model.program.new_bool_var("")
            model.program.add_implication(last, model.is_used[op, number])
            model.program.add(model.end[op, number] == event(n, 0)).only_enforce_if(last)
            ends.append(last)
    model.program.add_bool_or(ends)

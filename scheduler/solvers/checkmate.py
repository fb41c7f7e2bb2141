"""Checkmate's integer program (Jain et al., MLSys 2020, section 4), on HiGHS.

The ops have a fixed order 0..n-1, and there are n stages, of which stage t first runs op t
("frontier-advancing", eq. 8a to 8c). Variables, by the paper's names:

    R[t, v]  op v runs in stage t            S[t, v]  its output is there when stage t begins
    U[t, k]  memory while stage t runs op k  F[t, i, k]  i is freed after op k of stage t

The dependencies are eq. 1b to 1e, memory is accounted for by eq. 2 to 4, freeing is linearized
as in section 4.6. Where it differs: workspace counts while its op runs, kept outputs are needed
to the end, and the outputs of an op are one tensor, which has their sum. The paper's F has a
column for every pair; ours only for what is read at k, as in its own code.

The bound is one for the given order and holds for plain problems only
(`remat.scheduler.judged.is_plain`).
"""

import time
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from remat.problem import Problem
from remat.schedule import BoundKind, Solution
from remat.scheduler import apart
from remat.scheduler.judged import Claim, is_plain, judged
from remat.scheduler.linear import INFINITY, MANY_ITERATIONS, Effort, Outcome, Program, Real
from remat.scheduler.solvers import Request
from remat.scheduler.tensors import Tensors

# Of the paper's own limit.
SECONDS = 3600.0
# More than this many variables take longer to write down than anybody waits.
MOST_VARIABLES = 3_000_000


@dataclass(frozen=True, slots=True)
class Model:
    """The program and its variables; `runs[t][v]` for v <= t, `stays[t][v]` for v < t."""

    program: Program
    runs: list[list[int]]
    stays: list[list[int]]
    unit_ns: float


def solve(problem: Problem, request: Request) -> Solution:
    """The optimum for the given order if it is reached in time, else the best point by then."""
    n = len(problem.op_names)
    tensors = Tensors.of(problem)
    edges = sum(map(len, tensors.reads))
    claim = Claim("checkmate", interrupted=True)
    if not n or problem.limit_bytes < 1 or n * (3 * n + edges) // 2 > MOST_VARIABLES:
        return judged(problem, [], claim)
    begin = time.monotonic()
    model = build(problem, tensors, problem.limit_bytes)
    seconds = SECONDS if request.time_limit_s is None else request.time_limit_s
    left = max(0.0, seconds - (time.monotonic() - begin))
    effort = Effort(MANY_ITERATIONS, 2**31 - 1, left, 0.0, INFINITY, request.stop)
    answer = apart.whole(model.program, effort)
    bound_ns = 0
    if is_plain(problem) and -INFINITY < answer.bound < INFINITY:
        bound_ns = int(np.ceil(answer.bound * model.unit_ns * (1 - 1e-6)))
    claim = Claim(
        "checkmate",
        bound_ns=bound_ns,
        bound_kind=BoundKind.FIXED_ORDER,
        interrupted=answer.outcome is Outcome.CUT,
    )
    return judged(problem, [steps_of(model, answer.point)] if len(answer.point) else [], claim)


def build(problem: Problem, tensors: Tensors, budget_bytes: int) -> Model:
    """All variables and rows; memory in units of the budget, time in those of the mean op."""
    program, n = Program(), len(tensors.size)
    unit_ns = max(1.0, sum(problem.time_ns) / n)
    runs = [
        [
            program.variable(cost=problem.time_ns[v] / unit_ns, low=float(v == t), whole=True)
            for v in range(t + 1)
        ]
        for t in range(n)
    ]
    stays = [[program.variable(whole=True) for _ in range(t)] for t in range(n)]
    model = Model(program, runs, stays, unit_ns)
    _inputs_are_there(model, tensors)
    _what_stays_was_there(model)
    _outputs_stay_to_the_end(model, tensors)
    for stage in range(n):
        freed = _frees(model, tensors, stage)
        _memory_fits(model, problem, tensors, stage, freed, budget_bytes)
    return model


def _inputs_are_there(model: Model, tensors: Tensors) -> None:
    """Eq. 1b: R[t, v] <= R[t, u] + S[t, u] for each u that v reads."""
    for stage, row in enumerate(model.runs):
        for op, runs in enumerate(row):
            for source in tensors.reads[op]:
                terms = [(runs, 1.0), (row[source], -1.0)]
                if source < stage:
                    terms.append((model.stays[stage][source], -1.0))
                model.program.at_most(terms, 0.0)


def _what_stays_was_there(model: Model) -> None:
    """Eq. 1c: S[t, v] <= S[t-1, v] + R[t-1, v]."""
    for stage in range(1, len(model.runs)):
        for op, stays in enumerate(model.stays[stage]):
            terms = [(stays, 1.0), (model.runs[stage - 1][op], -1.0)]
            if op < stage - 1:
                terms.append((model.stays[stage - 1][op], -1.0))
            model.program.at_most(terms, 0.0)


def _outputs_stay_to_the_end(model: Model, tensors: Tensors) -> None:
    """A kept output is there when the last stage ends; the paper keeps none."""
    last = len(model.runs) - 1
    for op in sorted(tensors.kept - {last}):
        terms = [(model.runs[last][op], 1.0), (model.stays[last][op], 1.0)]
        model.program.at_least(terms, 1.0)


def _frees(model: Model, tensors: Tensors, stage: int) -> dict[tuple[int, int], int]:
    """F[t, i, k] for i read by k or i = k: 1 only if i is of no use in this stage after k, nor
    stays for the next (eq. 4, linearized by the number of hazards as in section 4.6)."""
    program, runs = model.program, model.runs[stage]
    freed = {}
    for k in range(stage + 1):
        for i in (*tensors.reads[k], k):
            hazards = [(runs[j], 1.0) for j in tensors.users[i] if k < j <= stage]
            if stage + 1 < len(model.runs):
                hazards.append((model.stays[stage + 1][i], 1.0))
            elif i in tensors.kept:
                continue
            free = freed[i, k] = program.variable(whole=True)
            # No run, no freeing; and each hazard forbids it.
            program.at_most([(free, 1.0), (runs[k], -1.0)], 0.0)
            count = float(len(hazards))
            if hazards:
                program.at_most([*hazards, (free, count)], count)
    return freed


def _memory_fits(
    model: Model,
    problem: Problem,
    tensors: Tensors,
    stage: int,
    freed: dict[tuple[int, int], int],
    budget_bytes: int,
) -> None:
    """Eq. 2 and 3, U[t, k] written out: what stayed, plus what has run, less what is freed.

    Only upper sides are needed: freeing is never forced, since it only makes room.
    """
    terms: list[tuple[int, float]] = [
        (model.stays[stage][v], tensors.size[v] / budget_bytes) for v in range(stage)
    ]
    held = model.program.variable()
    model.program.equal([*terms, (held, -1.0)], 0.0)
    for k in range(stage + 1):
        share, workspace = tensors.size[k] / budget_bytes, problem.workspace_bytes[k] / budget_bytes
        runs = model.runs[stage][k]
        used = model.program.variable()
        model.program.equal([(used, -1.0), (held, 1.0), (runs, share)], 0.0)
        if workspace:
            model.program.at_most([(used, 1.0), (runs, workspace)], 1.0)
        after = model.program.variable()
        gone = [
            (freed[i, k], -tensors.size[i] / budget_bytes)
            for i in (*tensors.reads[k], k)
            if (i, k) in freed
        ]
        model.program.equal([(after, -1.0), (used, 1.0), *gone], 0.0)
        held = after


def steps_of(model: Model, point: Sequence[float] | Real) -> list[int]:
    """Stage by stage, the ops that run, in their order."""
    return [op for row in model.runs for op, runs in enumerate(row) if point[runs] > 0.5]

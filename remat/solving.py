"""The scheduling problem by itself: a problem in, a schedule out, no model and no runtime.

What `remat optimize` does between profile and lower, for those who study schedulers.
"""

import hashlib
import json
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from remat.errors import Infeasible, NoAnswer, RematError, UsageError
from remat.files import write_text
from remat.options import SolveOptions
from remat.outputs import check_output
from remat.problem import Problem
from remat.problem_file import ProblemFile, read, to_text
from remat.results import Solved, SolvedStep
from remat.schedule import Solution, Status, Trace
from remat.scheduler.search import never
from remat.scheduler.solvers import Request, find, names
from remat.simulate import run_order, strict
from remat.units import format_bytes, format_mem_argument, parse_size

FORMAT = "remat.solution"
VERSION = 1


def solve(path: Path, options: SolveOptions) -> Solved:
    """The schedule that a solver finds for the problem in `path`, written to `options.output`.

    Raises UsageError (R26x, R203 to R205), Infeasible R303, NoAnswer R404.
    """
    begin = time.monotonic()
    try:
        solver = find(options.solver)
    except KeyError:
        fact = f"there is no solver {options.solver!a}"
        raise UsageError("R263", fact, fix=f"one of {', '.join(names())}") from None
    if options.output is not None:
        check_output(options.output, [path], force=options.force)
    file = read(path)
    base = strict(file.problem, run_order(file.problem, range(len(file.problem.op_names))))
    budget_bytes = _budget(file, base, options, path)

    def told(stage: str, _best_ns: int | None, _bound_ns: int) -> None:
        options.progress(stage, 0, 0)

    request = Request(options.seed, options.time_limit_s, never, told)
    problem = file.problem.with_limit(budget_bytes)
    solution = solver(problem, request)
    if not solution.steps and solution.status is not Status.OPTIMAL:
        raise _refusal(problem, solution, path)
    result = _solved(file.name, problem, solution, options, base)
    if options.output is not None:
        digest = hashlib.sha256(to_text(file).encode()).hexdigest()
        write_text(options.output, solution_text(result, digest))
    return replace(result, seconds=round(time.monotonic() - begin, 3))


def _budget(file: ProblemFile, base: Trace, options: SolveOptions, path: Path) -> int:
    if options.mem:
        return parse_size(options.mem).resolve(base.peak_bytes)
    if not file.budget_bytes:
        fact = "the problem names no budget"
        raise UsageError("R264", fact, place=str(path), fix="give one: --mem 60%")
    return file.budget_bytes


def _refusal(problem: Problem, solution: Solution, path: Path) -> RematError:
    limit = format_bytes(problem.limit_bytes)
    fix = ""
    if solution.least_bytes > problem.limit_bytes:
        least = format_mem_argument(solution.least_bytes)
        fix = f"the least peak found is {format_bytes(solution.least_bytes)}: use --mem {least}"
    if solution.status is Status.INFEASIBLE:
        alone = solution.needed_by >= 0
        who = f"op {problem.op_names[solution.needed_by]} alone" if alone else "every schedule"
        fact = f"no schedule fits {limit}: {who} needs {format_bytes(solution.needed_bytes)}"
        return Infeasible("R303", fact, place=str(path), fix=fix)
    cut = " in the time it was given" if solution.interrupted else ""
    fact = (
        f"no schedule found within {limit}{cut}; none is proven impossible above "
        f"{format_bytes(solution.needed_bytes)}"
    )
    return NoAnswer("R404", fact, place=str(path), fix=fix)


def _solved(
    name: str, problem: Problem, solution: Solution, options: SolveOptions, base: Trace
) -> Solved:
    steps = [step.op for step in solution.steps]
    return Solved(
        problem=name,
        solver=options.solver,
        seed=options.seed,
        ops=len(problem.op_names),
        budget_bytes=problem.limit_bytes,
        base_peak_bytes=base.peak_bytes,
        base_ns=base.time_ns,
        status=solution.status,
        peak_bytes=solution.peak_bytes,
        time_ns=solution.time_ns,
        lower_bound_ns=solution.lower_bound_ns,
        bound_kind=solution.bound_kind,
        needed_bytes=solution.needed_bytes,
        found_by=solution.found_by,
        interrupted=solution.interrupted,
        seconds=0.0,
        steps=_rows(problem, steps),
    )


def _rows(problem: Problem, steps: Sequence[int]) -> tuple[SolvedStep, ...]:
    live, runs, rows = strict(problem, steps).live_bytes, [0] * len(problem.op_names), []
    for op, held in zip(steps, live, strict=True):
        rows.append(SolvedStep(problem.op_names[op], runs[op], held))
        runs[op] += 1
    return tuple(rows)


def solution_text(result: Solved, problem_sha256: str) -> str:
    """The file of an answer: a head and one step per line, [op, recomputation, live bytes].

    Equal answers give equal bytes: nothing of the clock is in it. `problem_sha256` is that of the
    problem in our own format.
    """
    head: dict[str, object] = {
        "format": FORMAT,
        "version": VERSION,
        "problem": result.problem,
        "problem_sha256": problem_sha256,
        "solver": result.solver,
        "seed": result.seed,
        "budget_bytes": result.budget_bytes,
        "status": str(result.status),
        "peak_bytes": result.peak_bytes,
        "time_ns": result.time_ns,
        "base_time_ns": result.base_ns,
        "lower_bound_ns": result.lower_bound_ns,
        "bound_kind": str(result.bound_kind),
        "found_by": result.found_by,
    }
    lines = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    rows = [
        f"\n    {json.dumps([step.op, step.recomputation, step.live_bytes])}"
        for step in result.steps
    ]
    return "{\n" + "".join(lines) + '  "steps": [' + ",".join(rows) + "\n  ]\n}\n"

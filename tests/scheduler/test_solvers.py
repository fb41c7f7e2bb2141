"""Laws for every solver, present and to come, and what each formulation is known for."""

import math
import random
from dataclasses import replace

import pytest

from remat.check import check
from remat.problem import Problem
from remat.schedule import BoundKind, Solution, Status
from remat.scheduler.judged import is_plain
from remat.scheduler.search import never, silent
from remat.scheduler.solvers import Request, find, names
from remat.simulate import strict
from tests.oracle import brute_force
from tests.problems import NO_HOISTED, PLAIN, random_problem, training_like

CASES = 40


def solved(name: str, problem: Problem, seed: int = 0) -> Solution:
    return find(name)(problem, Request(seed, 30.0, never, silent))


def cases() -> list[Problem]:
    result = []
    for seed in range(CASES):
        draw = random.Random(seed)
        mix, ops = draw.choice((PLAIN, NO_HOISTED)), draw.randint(3, 6)
        result.append(random_problem(seed, ops, mix, draw.choice((70, 85, 100))))
    return result


def assert_lawful(problem: Problem, solution: Solution) -> None:
    """Judged, consistent, and no better than the exact optimum."""
    best = brute_force(problem)
    assert bool(solution.steps) == (solution.status in (Status.OPTIMAL, Status.FEASIBLE))
    if solution.bound_kind is BoundKind.ORDER_FREE and best is not None:
        assert solution.lower_bound_ns <= best[0]
    if solution.status is Status.INFEASIBLE:
        assert best is None
    if not solution.steps:
        return
    steps = [step.op for step in solution.steps]
    trace = strict(problem, steps)
    assert check(problem, steps) is None
    assert (trace.peak_bytes, trace.time_ns) == (solution.peak_bytes, solution.time_ns)
    assert best is not None
    assert solution.time_ns >= best[0]
    if solution.status is Status.OPTIMAL:
        assert solution.time_ns <= best[0] * (1 + 1e-4)


def test_the_published_formulations_are_here() -> None:
    assert {"auto", "checkmate", "keep-all", "moccasin", "sa", "sqrt-n"} <= set(names())
    with pytest.raises(KeyError):
        find("gurobi")


@pytest.mark.parametrize("name", names())
def test_every_solver_obeys_the_law(name: str) -> None:
    answers = 0
    for problem in cases():
        solution = solved(name, problem)
        assert_lawful(problem, solution)
        answers += bool(solution.steps)
    assert answers >= CASES // 4


@pytest.mark.parametrize("name", names())
def test_same_seed_same_answer(name: str) -> None:
    problem = training_like(2, 4, 85)
    assert solved(name, problem, 3) == solved(name, problem, 3)


@pytest.mark.parametrize("name", names())
def test_a_problem_without_ops(name: str) -> None:
    empty = random_problem(0, 3, PLAIN)
    columns = {field: () for field in Problem.__slots__ if field not in ("kept", "limit_bytes")}
    nothing = replace(empty, **columns, kept=frozenset())  # type: ignore[arg-type]
    assert solved(name, nothing).status is Status.OPTIMAL


@pytest.mark.parametrize("name", names())
def test_a_limit_that_fits_costs_nothing(name: str) -> None:
    problem = training_like(5, 6, 100)
    solution = solved(name, problem)
    assert solution.status is Status.OPTIMAL
    assert solution.time_ns == sum(problem.time_ns)


def chain(layers: int) -> Problem:
    """A chain and its backward part, all of one size: the network of the papers' examples."""
    forward: list[tuple[int, ...]] = [(i - 1,) if i else () for i in range(layers)]
    backward: list[tuple[int, ...]] = [(layers - 1,)]
    for i in reversed(range(1, layers)):
        backward.append((len(forward) + len(backward) - 1, i, i - 1))
    reads = (*forward, *backward)
    n = len(reads)
    return replace(
        random_problem(0, n, PLAIN),
        time_ns=(10,) * n,
        workspace_bytes=(0,) * n,
        reads=reads,
        writes=tuple((i,) for i in range(n)),
        value_bytes=(1,) * n,
        kept=frozenset(),
        recomputable=(True,) * n,
    )


def test_checkmate_is_exact_where_the_order_is_given() -> None:
    for layers, share in ((4, 0.9), (5, 0.8), (5, 0.9)):
        problem = chain(layers)
        peak = strict(problem, range(len(problem.op_names))).peak_bytes
        limited = problem.with_limit(math.floor(share * peak))
        best = brute_force(limited)
        solution = solved("checkmate", limited)
        assert best is not None
        assert best[0] > sum(problem.time_ns)
        assert solution.time_ns == best[0]
        assert solution.bound_kind is BoundKind.FIXED_ORDER
        assert solution.lower_bound_ns == pytest.approx(best[0], rel=1e-5)


def test_checkmate_claims_no_bound_for_what_it_does_not_know() -> None:
    problem = next(one for one in cases() if not is_plain(one))
    assert solved("checkmate", problem.with_limit(1 << 40)).bound_kind is BoundKind.ORDER_FREE


def test_checkpoints_need_about_the_square_root() -> None:
    problem = chain(36)
    n = len(problem.op_names)
    peak = strict(problem, range(n)).peak_bytes
    tight = problem.with_limit(20)
    solution = solved("sqrt-n", tight)
    assert peak >= 36
    assert solution.status is Status.FEASIBLE
    # No more than one more forward pass.
    assert solution.time_ns <= sum(problem.time_ns) + 36 * 10
    assert solved("keep-all", tight).status is Status.UNKNOWN


@pytest.mark.parametrize("name", [one for one in names() if one != "keep-all"])
def test_all_but_one_recompute(name: str) -> None:
    problem = chain(16)
    peak = strict(problem, range(len(problem.op_names))).peak_bytes
    solution = solved(name, problem.with_limit(3 * peak // 4))
    assert solution.steps
    assert solution.time_ns > sum(problem.time_ns)
    assert solution.time_ns >= solved("auto", problem.with_limit(3 * peak // 4)).time_ns

"""The portfolio against the exact optimum, and what it promises about status and bound."""

import math
import random
import time
from types import SimpleNamespace

import numpy as np
import pytest

from remat.check import check
from remat.problem import Problem
from remat.schedule import BoundKind, Solution, Status
from remat.scheduler.arrays import Arrays
from remat.scheduler.auto import least_budget, solve
from remat.scheduler.rounding import rounded
from remat.scheduler.search import Search
from remat.simulate import run_order, strict
from tests.oracle import brute_force
from tests.problems import MIXED, NO_HOISTED, random_problem, training_like


def ops_of(solution: Solution) -> tuple[int, ...]:
    return tuple(step.op for step in solution.steps)


def assert_keeps_its_promises(problem: Problem, solution: Solution) -> None:
    """Whatever the answer, it must be consistent with the judges."""
    has_answer = solution.status in (Status.OPTIMAL, Status.FEASIBLE)
    assert has_answer == bool(solution.steps)
    assert solution.bound_kind is BoundKind.ORDER_FREE
    assert solution.needed_bytes >= 0
    if has_answer:
        steps = ops_of(solution)
        trace = strict(problem, steps)
        assert check(problem, steps) is None
        assert (trace.peak_bytes, trace.time_ns) == (solution.peak_bytes, solution.time_ns)
        assert solution.lower_bound_ns <= solution.time_ns
        assert solution.needed_bytes <= solution.least_bytes <= solution.peak_bytes
        is_proven = solution.time_ns <= solution.lower_bound_ns * (1 + 1e-4)
        assert is_proven == (solution.status is Status.OPTIMAL)
    if solution.status is Status.INFEASIBLE:
        assert solution.needed_bytes > problem.limit_bytes


def cases(count: int) -> list[tuple[int, Problem]]:
    result = []
    for seed in range(count):
        rng = random.Random(seed)
        percent = rng.choice((70, 80, 90, 95))
        problem = random_problem(seed, rng.randint(3, 6), NO_HOISTED, percent)
        result.append((seed, problem))
    return result


def test_against_the_exact_optimum() -> None:
    feasible = equal = proven = infeasible = 0
    for seed, problem in cases(200):
        best = brute_force(problem)
        solution = solve(problem)
        assert_keeps_its_promises(problem, solution)
        if best is None:
            assert not solution.steps, seed
            infeasible += 1
            continue
        feasible += 1
        assert solution.status is not Status.INFEASIBLE, seed
        assert solution.lower_bound_ns <= best[0], seed
        if solution.steps:
            assert solution.time_ns >= best[0], seed
            equal += solution.time_ns == best[0]
            proven += solution.status is Status.OPTIMAL
    assert min(feasible, infeasible) >= 40
    assert equal >= 0.95 * feasible
    assert proven >= 0.65 * feasible


@pytest.mark.parametrize("seed", range(6))
def test_hoisted_ops_stand_where_the_runtime_runs_them(seed: int) -> None:
    problem = random_problem(seed, 12, MIXED, 90)
    assert_keeps_its_promises(problem, solve(problem))


@pytest.mark.parametrize("seed", [1, 2])
def test_same_seed_same_answer(seed: int) -> None:
    problem = training_like(seed, 4, 85)
    first = solve(problem, seed=seed)
    assert first == solve(problem, seed=seed)
    assert_keeps_its_promises(problem, first)


def test_a_looser_limit_needs_no_recomputation() -> None:
    problem = training_like(3, 8, 100)
    solution = solve(problem)
    assert solution.status is Status.OPTIMAL
    assert solution.time_ns == solution.lower_bound_ns == sum(problem.time_ns)


def test_a_limit_below_one_op_is_proven_infeasible() -> None:
    problem = training_like(4, 5, 100)
    least, proven, steps = least_budget(problem)
    assert proven <= least == strict(problem, steps).peak_bytes
    solution = solve(problem.with_limit(proven - 1))
    assert solution.status is Status.INFEASIBLE
    assert solution.needed_bytes == proven
    assert problem.op_names[solution.needed_by]
    assert check(problem.with_limit(least), steps) is None


def test_stop_returns_the_best_so_far() -> None:
    problem = training_like(5, 9, 70)
    seen: list[int | None] = []
    solution = solve(
        problem,
        stop=lambda: bool(seen),
        on_progress=lambda stage, best_ns, bound_ns: seen.append(best_ns),
    )
    assert solution.interrupted
    assert_keeps_its_promises(problem, solution)


def test_interrupt_from_the_keyboard_returns_the_best_so_far() -> None:
    problem = training_like(5, 9, 70)

    def interrupt(stage: str, best_ns: int | None, bound_ns: int) -> None:
        raise KeyboardInterrupt

    solution = solve(problem, on_progress=interrupt)
    assert solution.interrupted
    assert solution.status is Status.FEASIBLE
    assert_keeps_its_promises(problem, solution)


def test_no_ops_take_no_time() -> None:
    empty = Problem((), (), (), (), (), (), (), (), (), (), frozenset(), (), (), 0)
    solution = solve(empty)
    assert (solution.status, solution.steps, solution.time_ns) == (Status.OPTIMAL, (), 0)


def test_the_clock_runs_from_when_the_kernels_are_compiled(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A slow compiler must not eat up a short time limit: the first run would find nothing."""
    late_s = [0.0]
    now = time.monotonic
    clock = SimpleNamespace(monotonic=lambda: now() + late_s[0])
    monkeypatch.setattr("remat.scheduler.auto.time", clock)
    monkeypatch.setattr("remat.scheduler.search.time", clock)

    def compile_slowly(_arrays: object) -> None:
        late_s[0] += 1000.0

    monkeypatch.setattr("remat.scheduler.auto.compile_kernels", compile_slowly)
    problem = training_like(3, 4, 85)
    solution = solve(problem, time_limit_s=500.0)
    assert not solution.interrupted
    assert_keeps_its_promises(problem, solution)


@pytest.mark.parametrize("seed", [1, 5])
def test_a_search_goes_on_from_what_a_looser_limit_had(seed: int) -> None:
    problem = training_like(seed, 9, 80)
    looser = solve(problem, seed=seed)
    tight = problem.with_limit(int(0.97 * problem.limit_bytes))
    solution = solve(tight, seed=seed, looser=looser)
    assert_keeps_its_promises(tight, solution)
    assert solution.lower_bound_ns >= looser.lower_bound_ns


@pytest.mark.parametrize("seed", [1, 2, 5])
def test_rounded_relaxations_are_schedules(seed: int) -> None:
    problem = training_like(seed, 9, 70)
    given = run_order(problem, range(len(problem.op_names)))
    order = np.array(given, dtype=np.int64)
    base_ns = sum(problem.time_ns)
    search = Search(problem, Arrays.of(problem), math.inf, lambda: False, lambda *_: None, base_ns)
    points = list(rounded(search, order))
    assert points
    best = solve(problem, seed=seed)
    for found in points:
        for one in (found.feasible, found.least):
            if one is None:
                continue
            steps = one.steps.tolist()
            trace = strict(problem, steps)
            assert (trace.peak_bytes, trace.time_ns) == (one.peak_bytes, one.time_ns)
            assert check(problem.with_limit(trace.peak_bytes), steps) is None
        if found.feasible is not None:
            assert found.feasible.time_ns >= search.bound_ns
    assert best.time_ns >= search.bound_ns

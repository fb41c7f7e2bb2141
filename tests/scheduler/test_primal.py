"""The primal side of the scheduler: evaluation, orders, greedy, annealing, clean-up."""

import random
from dataclasses import replace

import numpy as np
import pytest

from remat.check import Rule, check
from remat.problem import NONE, Problem
from remat.scheduler.anneal import Effort
from remat.scheduler.arrays import Arrays
from remat.scheduler.compiled import entry
from remat.scheduler.evaluate import Scored, score
from remat.scheduler.greedy import Policy, materialize, sweep
from remat.scheduler.order import base_orders, search_order
from remat.scheduler.polish import least_peak, polish
from remat.scheduler.tidy import remove_redundant, sink, tidy
from remat.simulate import strict
from tests.oracle import brute_force
from tests.problems import NO_HOISTED, PLAIN, random_problem, random_steps, training_like

GENEROUS = 1 << 60


def identity(problem: Problem) -> np.ndarray:
    return np.arange(len(problem.op_names))


def scored_or_fail(arrays: Arrays, steps: object, limit_bytes: int) -> Scored:
    found = score(arrays, steps, limit_bytes)  # type: ignore[arg-type]
    assert found is not None
    return found


def same(one: Scored | None, other: Scored | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.time_ns == other.time_ns and one.steps.tolist() == other.steps.tolist()


def assert_legal(problem: Problem, found: Scored) -> None:
    """Legal, within the limit, and exactly what it claims to take."""
    steps = found.steps.tolist()
    assert check(problem, steps) is None
    trace = strict(problem, steps)
    assert (found.time_ns, found.peak_bytes) == (trace.time_ns, trace.peak_bytes)
    assert found.memory_bytes.tolist() == list(trace.live_bytes)


def test_a_kernel_above_its_parts_is_refused() -> None:
    def kernel(x: int) -> int:
        return helper(x)  # type: ignore[name-defined,no-any-return]  # noqa: F821

    with pytest.raises(NameError, match="uses helper, which is defined below it"):
        entry(kernel)


@pytest.mark.parametrize("block", range(10))
def test_evaluation_agrees_with_the_reference_on_random_sequences(block: int) -> None:
    for seed in range(40 * block, 40 * block + 40):
        problem = random_problem(seed, 3 + seed % 18)
        steps = random_steps(problem, seed, seed % 9)
        trace = strict(problem, steps)
        found = scored_or_fail(Arrays.of(problem), steps, problem.limit_bytes)
        assert tuple(found.steps.tolist()) == steps
        assert (found.time_ns, found.peak_bytes) == (trace.time_ns, trace.peak_bytes)
        assert tuple(found.memory_bytes.tolist()) == trace.live_bytes
        over = [max(0, m - problem.limit_bytes) for m in trace.live_bytes]
        assert found.excess_bytes == sum(over)


def test_evaluation_removes_dead_recomputations_and_what_fed_only_them() -> None:
    problem = training_like(0, 3)
    order = identity(problem).tolist()
    # The chain 0, 1, 2 is computed again, for nothing: the originals have no later readers.
    found = scored_or_fail(Arrays.of(problem), [*order, 0, 1, 2], GENEROUS)
    assert found.steps.tolist() == order


def test_evaluation_keeps_the_first_run_of_an_op_that_nothing_reads() -> None:
    problem = random_problem(1, 1, PLAIN)
    assert scored_or_fail(Arrays.of(problem), [0, 0, 0], GENEROUS).steps.tolist() == [0]


def test_what_cannot_be_executed_has_no_score() -> None:
    problem = training_like(0, 3)
    arrays = Arrays.of(problem)
    order = identity(problem).tolist()
    assert score(arrays, order[::-1], GENEROUS) is None
    assert score(arrays, order[:-1], GENEROUS) is None


def test_a_second_run_of_an_op_that_must_run_once_has_no_score() -> None:
    problem = training_like(0, 4)
    steps = identity(problem).tolist()
    last = max(op for op in steps if problem.writes[0][0] in problem.reads[op])
    steps.insert(last, 0)
    assert score(Arrays.of(problem), steps, GENEROUS) is not None
    pinned = replace(problem, recomputable=(False, *problem.recomputable[1:]))
    assert score(Arrays.of(pinned), steps, GENEROUS) is None


@pytest.mark.parametrize("percent", [100, 90, 80, 60])
def test_greedy_sequences_are_legal_but_for_the_limit(percent: int) -> None:
    fitting = 0
    for seed in range(60):
        problem = (
            random_problem(seed, 4 + seed % 30, NO_HOISTED, percent)
            if seed % 2
            else training_like(seed, 10, limit_percent=percent)
        )
        arrays = Arrays.of(problem)
        steps = materialize(arrays, identity(problem), problem.limit_bytes, Policy())
        if steps is None:
            continue
        found = scored_or_fail(arrays, steps, problem.limit_bytes)
        violation = check(problem, found.steps.tolist())
        assert violation is None or violation.rule is Rule.OVER_LIMIT
        fitting += violation is None
    assert fitting >= 15


def test_greedy_without_pressure_is_the_base_order() -> None:
    for seed in range(40):
        problem = random_problem(seed, 20, NO_HOISTED)
        steps = materialize(Arrays.of(problem), identity(problem), GENEROUS, Policy())
        assert steps is not None
        assert steps.tolist() == list(range(20))


def test_dropped_values_are_computed_again_before_their_next_reader() -> None:
    problem = training_like(0, 4)
    arrays = Arrays.of(problem)
    (value,) = problem.writes[0]
    drops: list[list[int]] = [[] for _ in problem.op_names]
    drops[1] = [value]
    steps = materialize(arrays, identity(problem), GENEROUS, Policy(drops=drops))
    assert steps is not None
    order = identity(problem).tolist()
    reader = next(op for op in order if op > 1 and value in problem.reads[op])
    assert steps.tolist() == [*order[:reader], 0, *order[reader:]]


def test_random_drop_lists_give_legal_sequences() -> None:
    for seed in range(80):
        rng = random.Random(seed)
        problem = random_problem(seed, 4 + seed % 20, NO_HOISTED)
        values = range(len(problem.value_names))
        drops = [[v for v in values if rng.random() < 0.15] for _ in problem.op_names]
        policy = Policy(drops=drops, max_steps=20_000)
        steps = materialize(Arrays.of(problem), identity(problem), GENEROUS, policy)
        assert steps is not None
        found = scored_or_fail(Arrays.of(problem), steps, GENEROUS)
        assert check(problem.with_limit(GENEROUS), found.steps.tolist()) is None


def test_a_kept_value_dropped_after_its_last_reader_is_computed_at_the_end() -> None:
    problem = training_like(0, 3)
    arrays = Arrays.of(problem)
    kept = next(v for v in sorted(problem.kept) if not any(v in r for r in problem.reads))
    op = problem.writer[kept]
    drops: list[list[int]] = [[] for _ in problem.op_names]
    drops[op] = [kept]
    steps = materialize(arrays, identity(problem), GENEROUS, Policy(drops=drops))
    assert steps is not None
    assert steps[-1] == op
    # The first run was for nothing, so it goes.
    assert len(scored_or_fail(arrays, steps, GENEROUS).steps) >= arrays.ops


def test_a_guide_decides_what_is_evicted() -> None:
    problem = training_like(0, 6, limit_percent=80)
    arrays = Arrays.of(problem)
    plain = materialize(arrays, identity(problem), problem.limit_bytes, Policy())
    assert plain is not None
    again = np.flatnonzero(np.bincount(plain) > 1)
    (value,) = problem.writes[int(again[0])]
    guide = np.zeros((1, arrays.values))
    guide[0, value] = 100.0
    guided = materialize(arrays, identity(problem), problem.limit_bytes, Policy(guide=guide))
    assert guided is not None
    assert np.bincount(guided)[again[0]] == 1


def test_drops_of_another_length_than_the_order_are_refused() -> None:
    problem = training_like(0, 3)
    with pytest.raises(ValueError, match="one entry for each position"):
        materialize(Arrays.of(problem), identity(problem), 0, Policy(drops=[[0]]))


def test_greedy_gives_up_at_its_step_limit_and_ceilings() -> None:
    problem = training_like(0, 6, limit_percent=60)
    arrays = Arrays.of(problem)
    limit = problem.limit_bytes
    for policy in (
        Policy(max_steps=arrays.ops),
        Policy(ceiling_ns=arrays.base_time_ns),
        Policy(ceiling_bytes=limit // 4),
    ):
        assert materialize(arrays, identity(problem), limit, policy) is None


def test_every_base_order_runs_every_op_once() -> None:
    for seed in range(30):
        problem = random_problem(seed, 25, NO_HOISTED)
        arrays = Arrays.of(problem)
        for order in base_orders(arrays, range(25)):
            assert sorted(order.tolist()) == list(range(25))
            assert score(arrays, order, 0) is not None


def test_an_order_that_fits_is_kept_as_given() -> None:
    problem = random_problem(3, 25, NO_HOISTED)
    given = random_steps(problem, 5, 0)
    peak = strict(problem, given).peak_bytes
    found = search_order(Arrays.of(problem), given, peak, Effort(0, 1000))
    assert tuple(found.steps.tolist()) == given


def test_order_search_refuses_what_is_not_an_order() -> None:
    problem = training_like(0, 3)
    with pytest.raises(ValueError, match="does not run every op once"):
        search_order(Arrays.of(problem), [0, 1], GENEROUS, Effort(0, 1000))


def test_order_search_lowers_the_peak_of_random_orders() -> None:
    ratios = []
    for seed in range(8):
        problem = random_problem(seed, 60, PLAIN)
        given = random_steps(problem, seed, 0)
        found = search_order(Arrays.of(problem), given, 0, Effort(1, 16_000, 0.5))
        assert check(problem.with_limit(found.peak_bytes), found.steps.tolist()) is None
        assert len(found.steps) == 60
        ratios.append(found.peak_bytes / strict(problem, given).peak_bytes)
    assert sum(ratios) / len(ratios) < 0.85


@pytest.mark.parametrize("seed", range(4))
def test_annealing_is_legal_within_the_limit_and_repeats_itself(seed: int) -> None:
    for mix in (NO_HOISTED, PLAIN):
        problem = random_problem(seed, 30, mix, 85)
        arrays = Arrays.of(problem)
        first = polish(arrays, identity(problem), problem.limit_bytes, Effort(seed, 4000, 0.5))
        again = polish(arrays, identity(problem), problem.limit_bytes, Effort(seed, 4000, 0.5))
        assert same(first.feasible, again.feasible)
        assert same(first.least, again.least)
        if first.feasible is not None:
            assert_legal(problem, first.feasible)
        assert first.least is not None
        assert_legal(problem.with_limit(first.least.peak_bytes), first.least)


def test_annealing_from_a_sequence_that_cannot_run_finds_nothing() -> None:
    problem = training_like(0, 3)
    arrays = Arrays.of(problem)
    steps = identity(problem)[::-1]
    found = polish(arrays, steps, problem.limit_bytes, Effort(0, 100))
    assert found.feasible is None
    assert found.least is None


def test_annealing_never_returns_worse_than_its_start() -> None:
    problem = training_like(0, 20, limit_percent=60)
    arrays = Arrays.of(problem)
    start = sweep(arrays, [identity(problem)], problem.limit_bytes).feasible
    assert start is not None
    for seed in range(3):
        found = polish(arrays, start.steps, problem.limit_bytes, Effort(seed, 2000)).feasible
        assert found is not None
        assert found.time_ns <= start.time_ns


@pytest.mark.parametrize("percent", [90, 70, 50])
def test_training_steps_fit_at_a_small_overhead(percent: int) -> None:
    """Bounds 20 % above what long runs of all methods end with on this problem."""
    problem = training_like(0, 100, limit_percent=percent)
    arrays = Arrays.of(problem)
    start = sweep(arrays, [identity(problem)], problem.limit_bytes).feasible
    assert start is not None
    assert_legal(problem, start)
    found = polish(arrays, start.steps, problem.limit_bytes, Effort(1, 20_000)).feasible
    assert found is not None
    assert_legal(problem, found)
    overhead = found.time_ns / arrays.base_time_ns - 1
    assert overhead < {90: 0.0076, 70: 0.0456, 50: 0.114}[percent]


def best_of_all(problem: Problem) -> Scored | None:
    arrays = Arrays.of(problem)
    limit = problem.limit_bytes
    found = sweep(arrays, base_orders(arrays, identity(problem)), limit)
    for seed in range(2):
        found = found.merged(polish(arrays, identity(problem), limit, Effort(seed, 8000, 0.5)))
    return found.feasible


@pytest.mark.parametrize("kind", ["mixed", "plain", "training"])
def test_small_problems_are_solved_to_within_a_hundredth_of_the_optimum(kind: str) -> None:
    """Against exhaustive search: at most 5 % of what can be solved is missed, 1 % over on average.

    What is missed needs a chain of recomputations none of which helps alone.
    """
    ratios, solvable, missed = [], 0, 0
    for seed in range(50):
        percent = (95, 90, 85, 80)[seed % 4]
        problem = {
            "mixed": lambda s, p: random_problem(s, 3 + s % 4, NO_HOISTED, p),
            "plain": lambda s, p: random_problem(s, 4 + s % 3, PLAIN, p),
            "training": lambda s, p: training_like(s, 2, limit_percent=p),
        }[kind](seed, percent)
        exact = brute_force(problem)
        found = best_of_all(problem)
        if exact is None:
            assert found is None
            continue
        solvable += 1
        if found is None:
            missed += 1
            continue
        assert_legal(problem, found)
        assert found.time_ns >= exact[0]
        ratios.append(found.time_ns / exact[0])
    assert solvable >= 10
    assert missed <= 0.05 * solvable
    assert sum(ratios) / len(ratios) <= 1.01


def test_redundant_recomputations_go() -> None:
    problem = training_like(0, 20)
    arrays = Arrays.of(problem)
    tight = sweep(arrays, [identity(problem)], problem.limit_bytes * 6 // 10).feasible
    assert tight is not None
    assert len(tight.steps) > arrays.ops
    loose = remove_redundant(arrays, tight.steps, problem.limit_bytes)
    assert loose is not None
    assert loose.time_ns == arrays.base_time_ns


@pytest.mark.parametrize("percent", [80, 60, 40])
def test_clean_up_keeps_within_the_limit_and_never_takes_longer(percent: int) -> None:
    problem = training_like(2, 30, limit_percent=percent)
    arrays = Arrays.of(problem)
    steps = materialize(arrays, identity(problem), problem.limit_bytes, Policy(0.0, 4.0))
    assert steps is not None
    before = scored_or_fail(arrays, steps, problem.limit_bytes)
    after = tidy(arrays, steps, problem.limit_bytes)
    assert after is not None
    assert after.time_ns <= before.time_ns
    assert after.excess_bytes <= before.excess_bytes
    assert same(after, tidy(arrays, steps, problem.limit_bytes))
    if before.excess_bytes == 0:
        assert_legal(problem, after)


def test_sinking_moves_a_step_to_its_reader() -> None:
    problem = chain_with_an_early_step()
    found = sink(Arrays.of(problem), [0, 1, 2, 3], problem.limit_bytes)
    assert found is not None
    assert found.steps.tolist() == [1, 2, 0, 3]


def chain_with_an_early_step() -> Problem:
    """Op 0 is read by op 3 alone; ops 1 and 2 are a chain that op 3 reads too."""
    return Problem(
        op_names=("a", "b", "c", "d"),
        time_ns=(1, 1, 1, 1),
        workspace_bytes=(0, 0, 0, 0),
        reads=((), (), (1,), (0, 2)),
        writes=((0,), (1,), (2,), (3,)),
        value_names=("a", "b", "c", "d"),
        value_bytes=(64, 64, 64, 64),
        alias_of=(NONE,) * 4,
        inplace_of=((), (), (), ()),
        reuse_class=(NONE,) * 4,
        kept=frozenset({3}),
        recomputable=(True,) * 4,
        hoisted=(False,) * 4,
        limit_bytes=256,
    )


def test_the_least_peak_is_reachable_and_low() -> None:
    problem = training_like(0, 20)
    found = least_peak(Arrays.of(problem), 1, 8000)
    assert check(problem.with_limit(found.peak_bytes), found.steps.tolist()) is None
    assert found.peak_bytes < 0.33 * problem.limit_bytes


def test_the_least_peak_of_small_problems_is_nearly_always_exact() -> None:
    exact = 0
    for seed in range(20):
        problem = random_problem(seed, 3 + seed % 3, NO_HOISTED)
        found = least_peak(Arrays.of(problem), 1, 4000)
        assert brute_force(problem.with_limit(found.peak_bytes)) is not None
        exact += brute_force(problem.with_limit(found.peak_bytes - 1)) is None
    assert exact >= 19

"""The memory law: by hand, against a naive reading of it. ONNX Runtime has its own file."""

import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from remat.check import Rule, check
from remat.problem import CONSTANT, NONE, Problem
from remat.simulate import (
    Buffer,
    buffers,
    default_order,
    holders,
    run_order,
    strict,
    with_reuse,
)
from tests.oracle import brute_force, enumerate_all, naive_strict
from tests.problems import (
    NO_HOISTED,
    PLAIN,
    random_problem,
    random_steps,
    small_problem,
    tightened,
    training_like,
    unhoisted_steps,
)


def _chain(sizes: Sequence[int] = (10, 20, 30), **columns: Any) -> Problem:
    """Three ops in a row, each with one value; the last value is kept unless told otherwise."""
    kept = {"kept": frozenset({2})}
    return small_problem([[], [0], [1]], [[0], [1], [2]], sizes, **(kept | columns))


def test_a_buffer_is_held_from_its_writer_to_its_last_reader() -> None:
    trace = strict(_chain(workspace_bytes=(0, 5, 0), time_ns=(1, 2, 4)), (0, 1, 2))
    assert trace.live_bytes == (10, 35, 50)
    assert (trace.peak_bytes, trace.time_ns) == (50, 7)


def test_a_recomputed_value_is_a_new_instance_and_frees_the_old_one_early() -> None:
    problem = small_problem([[], [0], [0, 1]], [[0], [1], [2]], [10, 20, 30], kept=frozenset({2}))
    assert strict(problem, (0, 1, 2)).live_bytes == (10, 30, 60)
    assert strict(problem, (0, 1, 0, 2)).live_bytes == (10, 30, 30, 60)
    assert buffers(problem, (0, 1, 0, 2)) == [
        Buffer(0, 10, 0, 2),
        Buffer(1, 20, 1, 4),
        Buffer(0, 10, 2, 4),
        Buffer(2, 30, 3, 4),
    ]


def test_a_kept_value_holds_its_last_instance_to_the_end() -> None:
    problem = small_problem([[], [0], [0]], [[0], [1], [2]], [10, 20, 30], kept=frozenset({0, 2}))
    assert strict(problem, (0, 1, 2)).live_bytes == (10, 30, 40)  # nothing reads value 1
    assert [b.end_step for b in buffers(problem, (0, 1, 0, 2))] == [2, 2, 4, 4]


def test_a_value_that_nothing_reads_is_held_during_its_own_step() -> None:
    problem = small_problem([[], [], []], [[0], [1], [2]], [10, 20, 30], kept=frozenset({2}))
    assert strict(problem, (0, 1, 2)).live_bytes == (10, 20, 30)
    two_outputs = small_problem([[], [1]], [[0, 1], [2]], [10, 20, 30], kept=frozenset({2}))
    assert strict(two_outputs, (0, 1)).live_bytes == (30, 50)
    assert strict(two_outputs, (0, 0, 1)).live_bytes == (30, 30, 50)


def test_a_buffer_taken_over_by_an_unread_value_is_released_with_its_last_reader() -> None:
    reads, writes = [[], [0], []], [[0], [1], [2]]
    columns: list[dict[str, Any]] = [{"alias_of": (NONE, 0, NONE)}, {"inplace_of": ((), (0,), ())}]
    for column in columns:
        problem = small_problem(reads, writes, [10, 10, 30], kept=frozenset({2}), **column)
        assert strict(problem, (0, 1, 2)).live_bytes == (10, 10, 30)


def test_an_alias_keeps_the_buffer_of_its_source() -> None:
    problem = _chain((10, 10, 30), alias_of=(NONE, 0, NONE))
    assert strict(problem, (0, 1, 2)).live_bytes == (10, 10, 40)
    assert holders(problem, (0, 1, 2), 2) == [(2, 30), (0, 10)]


def test_a_kept_alias_gets_a_copy_in_its_last_instance_only() -> None:
    problem = small_problem(
        [[], [0], [1]],
        [[0], [1], [2]],
        [10, 10, 5],
        alias_of=(NONE, 0, NONE),
        kept=frozenset({1, 2}),
    )
    assert strict(problem, (0, 1, 2)).live_bytes == (10, 20, 15)
    assert strict(problem, (0, 1, 2, 1)).live_bytes == (10, 10, 15, 25)


def test_memory_of_the_caller_costs_nothing_and_is_never_taken_over() -> None:
    problem = _chain((10, 10, 30), alias_of=(CONSTANT, NONE, NONE), inplace_of=((), (0,), ()))
    assert strict(problem, (0, 1, 2)).live_bytes == (0, 10, 40)


def test_in_place_needs_the_only_use_left() -> None:
    in_place: dict[str, Any] = {"inplace_of": ((), (0,), ())}
    assert strict(_chain((10, 10, 30), **in_place), (0, 1, 2)).live_bytes == (
        10,
        10,
        40,
    )
    sizes = [10, 10, 30]
    read_later = small_problem([[], [0], [0, 1]], [[0], [1], [2]], sizes, **in_place)
    read_twice = small_problem([[], [0, 0], [1]], [[0], [1], [2]], sizes, **in_place)
    kept = _chain((10, 10, 30), kept=frozenset({0, 2}), **in_place)
    for problem in (read_later, read_twice, kept):
        assert strict(problem, (0, 1, 2)).live_bytes[1] == 20


def test_in_place_into_an_alias_needs_its_source_to_be_dead() -> None:
    columns: dict[str, Any] = {
        "alias_of": (NONE, 0, NONE, NONE),
        "inplace_of": ((), (), (1,), ()),
    }
    writes, sizes = [[0], [1], [2], [3]], [10, 10, 10, 1]
    source_dead = small_problem([[], [0], [1], [2]], writes, sizes, **columns)
    source_read = small_problem([[], [0], [1], [2, 0]], writes, sizes, **columns)
    assert strict(source_dead, (0, 1, 2, 3)).live_bytes == (10, 10, 10, 11)
    assert strict(source_read, (0, 1, 2, 3)).live_bytes == (10, 10, 20, 21)


def test_the_first_in_place_candidate_wins_and_a_buffer_is_taken_once() -> None:
    problem = small_problem(
        [[], [], [0, 1], [2, 3]],
        [[0], [1], [2, 3], [4]],
        [10, 10, 10, 10, 1],
        inplace_of=((), (), (1, 0), (1, 0), ()),
    )
    opened = [(b.opened_by, b.end_step) for b in buffers(problem, (0, 1, 2, 3))]
    assert opened == [(0, 4), (1, 4), (4, 4)]
    alone = small_problem(
        [[], [0], [1]], [[0], [1, 2], [3]], [10] * 4, inplace_of=((), (0,), (0,), ())
    )
    assert [b.opened_by for b in buffers(alone, (0, 1, 2))] == [0, 2, 3]


def test_reuse_takes_the_buffer_freed_last_and_holds_it_over_the_gap() -> None:
    problem = small_problem(
        [[], [0], [1], [2], [3]],
        [[0], [1], [2], [3], [4]],
        [10, 7, 5, 10, 3],
        reuse_class=(1, NONE, NONE, 1, NONE),
        kept=frozenset({4}),
    )
    steps = (0, 1, 2, 3, 4)
    assert strict(problem, steps).live_bytes == (10, 17, 12, 15, 13)
    assert with_reuse(problem, steps).live_bytes == (10, 17, 22, 15, 13)
    also_kept = replace(problem, kept=frozenset({3, 4}))
    assert with_reuse(also_kept, steps) == strict(also_kept, steps)
    unread = replace(problem, reads=((), (0,), (1,), (2,), (2,)), kept=frozenset({4}))
    assert with_reuse(unread, steps) == strict(unread, steps)


def test_reading_what_is_not_written_is_an_error() -> None:
    for judge in (strict, with_reuse, buffers, naive_strict):
        with pytest.raises(ValueError, match="read"):
            judge(_chain(), (0, 2, 1))


def test_hoisted_ops_run_behind_what_they_read() -> None:
    problem = small_problem(
        [[], [0], [1], [], [2], [0]],
        [[0], [1], [2], [3], [4], [5]],
        [1] * 6,
        hoisted=(False, False, True, True, True, True),
    )
    assert run_order(problem, (0, 1, 2, 4, 5, 3)) == (3, 0, 5, 1, 2, 4)
    assert run_order(problem, (0, 5, 0, 1, 2, 2)) == (0, 5, 0, 1, 2, 2)
    with pytest.raises(ValueError, match="not computed"):
        run_order(problem, (0, 2, 1))


def test_default_order_follows_the_highest_leaf_and_producer_first() -> None:
    assert default_order([[], [0], [0], [1, 2, 2], [1]]) == (0, 1, 4, 2, 3)
    long_chain = [[i - 1] if i else [] for i in range(5000)]
    assert default_order(long_chain) == tuple(range(5000))


@pytest.mark.parametrize("block", range(8))
def test_strict_is_the_naive_reading_of_the_law(block: int) -> None:
    for seed in range(100 * block, 100 * block + 100):
        problem = random_problem(seed, 2 + seed % 13)
        steps = unhoisted_steps(problem, seed, seed % 7)
        assert strict(problem, steps) == naive_strict(problem, steps), seed


def test_training_problems_follow_the_law_too() -> None:
    for seed in range(12):
        problem = training_like(seed, 3 + seed % 4)
        steps = random_steps(problem, seed, 6)
        assert strict(problem, steps) == naive_strict(problem, steps)
        assert strict(problem, range(len(problem.op_names))).peak_bytes == problem.limit_bytes


def test_holders_and_buffers_add_up_to_the_trace() -> None:
    for seed in range(60):
        problem = random_problem(seed, 9)
        steps = random_steps(problem, seed, 3)
        for at, live in enumerate(strict(problem, steps).live_bytes):
            held = holders(problem, steps, at)
            workspace = problem.workspace_bytes[steps[at]]
            assert sum(size for _, size in held) + workspace == live
            assert [size for _, size in held] == sorted((s for _, s in held), reverse=True)


def test_without_classes_reuse_is_strict_mode() -> None:
    differing = 0
    for seed in range(120):
        problem = random_problem(seed, 10)
        steps = random_steps(problem, seed, 3)
        unclassed = replace(problem, reuse_class=(NONE,) * len(problem.value_bytes))
        assert with_reuse(unclassed, steps) == strict(problem, steps)
        differing += with_reuse(problem, steps) != strict(problem, steps)
    assert differing > 10


def test_run_order_is_idempotent_and_moves_hoisted_ops_only() -> None:
    moved = 0
    for seed in range(150):
        problem = random_problem(seed, 10)
        steps = unhoisted_steps(problem, seed, 4)
        order = run_order(problem, steps)
        assert run_order(problem, order) == order
        assert sorted(order) == sorted(steps)
        others = [op for op in steps if not problem.hoisted[op]]
        assert [op for op in order if not problem.hoisted[op]] == others
        assert run_order(problem, range(10)) == tuple(range(10))
        moved += order != steps
    assert moved > 20


def test_simulation_is_quick_and_linear() -> None:
    problem = random_problem(1, 10_000)
    steps = tuple(range(10_000))
    for judge in (strict, with_reuse, run_order):
        times = []
        for _ in range(5):
            start = time.perf_counter()
            judge(problem, steps)
            times.append(time.perf_counter() - start)
        assert min(times) < 0.2, judge.__name__


@pytest.mark.parametrize("seed", range(120))
def test_brute_force_finds_what_trying_everything_finds(seed: int) -> None:
    problem = tightened(random_problem(seed, 2 + seed % 3, NO_HOISTED), seed, 10)
    if seed % 4 == 0:
        problem = problem.with_limit(problem.limit_bytes - 64)
    found = brute_force(problem)
    assert (found and found[0]) == enumerate_all(problem, 6)


@pytest.mark.parametrize("seed", range(60))
def test_brute_force_schedules_are_what_they_claim(seed: int) -> None:
    mix = PLAIN if seed % 3 == 0 else NO_HOISTED
    problem = tightened(random_problem(seed, 5 + seed % 3, mix), seed)
    found = brute_force(problem)
    assert found is not None
    trace = strict(problem, found[1])
    assert trace.time_ns == found[0]
    assert trace.peak_bytes <= problem.limit_bytes
    rivals = [random_steps(problem, seed + k, k % 4) for k in range(30)]
    traces = [strict(problem, steps) for steps in rivals]
    fitting = [t.time_ns for t in traces if t.peak_bytes <= problem.limit_bytes]
    assert fitting  # `tightened` took its limit from these
    assert found[0] <= min(fitting)


def test_brute_force_recomputes_where_it_must() -> None:
    problem = training_like(0, 3, limit_percent=70)
    found = brute_force(problem)
    assert found is not None
    assert found[0] > sum(problem.time_ns)
    assert strict(problem, found[1]).peak_bytes <= problem.limit_bytes
    with pytest.raises(ValueError, match="hoisted"):
        brute_force(small_problem([[]], [[0]], [1], hoisted=(True,)))


def test_brute_force_does_not_save_memory_by_dead_recomputations() -> None:
    """Op 1, run again for nothing, would read value 0 once more and so keep value 3 out of it."""
    problem = small_problem(
        [[], [0], [1], [0, 2], [3]],
        [[0], [1], [2], [3], [4]],
        [10, 1, 1, 1, 20],
        limit_bytes=24,
        inplace_of=((), (), (), (0,), ()),
        kept=frozenset({4}),
    )
    steps = (0, 1, 2, 3, 1, 4)
    assert strict(problem, steps).peak_bytes <= 24
    violation = check(problem, steps)
    assert violation is not None
    assert violation.rule == Rule.DEAD_RECOMPUTATION
    assert brute_force(problem) is None
    assert enumerate_all(problem, 8) is None
    assert brute_force(problem.with_limit(30)) == (5, (0, 1, 2, 3, 4))

"""Every way to break a legal schedule is found, by its name and at its step."""

import random
from collections.abc import Sequence
from dataclasses import replace

import pytest

from remat.check import Rule, Violation, check
from remat.problem import Problem
from remat.simulate import run_order, strict
from tests.oracle import brute_force
from tests.problems import (
    NO_HOISTED,
    random_problem,
    random_steps,
    small_problem,
    tightened,
    training_like,
    unhoisted_steps,
)

SEEDS = range(150)


def _legal(seed: int) -> tuple[Problem, tuple[int, ...]]:
    """A random problem and a legal schedule of it whose peak is exactly the limit."""
    problem = random_problem(seed, 4 + seed % 9)
    steps = random_steps(problem, seed, seed % 5)
    return problem.with_limit(strict(problem, steps).peak_bytes), steps


def _broken(problem: Problem, steps: Sequence[int], rule: Rule, at: int) -> Violation:
    violation = check(problem, steps)
    assert violation is not None
    assert (violation.rule, violation.step) == (rule, at), violation.text
    return violation


def test_legal_schedules_break_nothing() -> None:
    for seed in SEEDS:
        assert check(*_legal(seed)) is None
    for seed in range(6):
        problem = training_like(seed, 4)
        assert check(problem, range(len(problem.op_names))) is None
    assert check(small_problem([], [], []), ()) is None


def test_best_schedules_of_brute_force_break_nothing() -> None:
    for seed in range(40):
        problem = tightened(random_problem(seed, 5, NO_HOISTED), seed)
        found = brute_force(problem)
        assert found is not None
        assert check(problem, found[1]) is None


def test_a_step_that_is_no_op() -> None:
    for seed in SEEDS:
        problem, steps = _legal(seed)
        at = random.Random(seed).randrange(len(steps))
        for number in (-1, len(problem.op_names)):
            _broken(problem, (*steps[:at], number, *steps[at:]), Rule.UNKNOWN_OP, at)


def test_a_read_before_its_writer() -> None:
    tried = 0
    for seed in SEEDS:
        problem, steps = _legal(seed)
        readers = [at for at, op in enumerate(steps) if problem.reads[op]]
        if readers:
            tried += 1
            op = steps[readers[-1]]
            text = _broken(problem, (op, *steps), Rule.INPUT_NOT_COMPUTED, 0).text
            assert problem.op_names[op] in text
            assert problem.value_names[problem.reads[op][0]] in text
    assert tried > 100


def test_an_op_left_out() -> None:
    tried = 0
    for seed in SEEDS:
        problem, steps = _legal(seed)
        read = {value for values in problem.reads for value in values}
        for op, written in enumerate(problem.writes):
            if not read & set(written):
                rest = [step for step in steps if step != op]
                text = _broken(problem, rest, Rule.OP_MISSING, len(rest)).text
                assert problem.op_names[op] in text
                tried += 1
                break
    assert tried > 100


def test_a_pinned_op_run_twice() -> None:
    for seed in SEEDS:
        problem, steps = _legal(seed)
        op = steps[seed % len(steps)]
        pinned = list(problem.recomputable)
        pinned[op] = False
        once = [step for k, step in enumerate(steps) if step != op or k == steps.index(op)]
        twice = (*once, op)
        changed = replace(problem, recomputable=tuple(pinned))
        _broken(changed, twice, Rule.RECOMPUTES_FORBIDDEN, len(once))


def test_a_recomputation_that_nothing_reads() -> None:
    tried = 0
    for seed in SEEDS:
        problem, steps = _legal(seed)
        rng = random.Random(seed)
        op = rng.choice(steps)
        written = {*problem.writes[op]}
        users = [at for at, user in enumerate(steps) if written & {*problem.reads[user]}]
        if users and problem.recomputable[op] and not written & problem.kept:
            tried += 1
            at = rng.randint(users[-1] + 1, len(steps))
            _broken(problem, (*steps[:at], op, *steps[at:]), Rule.DEAD_RECOMPUTATION, at)
    assert tried > 50


def test_the_earlier_of_two_kept_instances_is_dead_unless_read() -> None:
    problem = small_problem([[], [0]], [[0], [1]], [10, 20], kept=frozenset({0, 1}))
    assert check(problem, (0, 1, 0)) is None
    _broken(problem, (0, 0, 1), Rule.DEAD_RECOMPUTATION, 0)
    text = _broken(problem, (0, 1, 0, 1), Rule.DEAD_RECOMPUTATION, 1).text
    assert "step 1 runs op1, one of 2 times" in text


def test_an_op_that_nothing_reads_may_run_once() -> None:
    problem = small_problem([[], []], [[0], [1]], [10, 20], kept=frozenset({1}))
    assert check(problem, (0, 1)) is None
    _broken(problem, (0, 1, 0), Rule.DEAD_RECOMPUTATION, 0)


def test_a_hoisted_op_given_late() -> None:
    late = 0
    for seed in SEEDS:
        problem = replace(random_problem(seed, 9), limit_bytes=1 << 40)
        steps = unhoisted_steps(problem, seed, 0)
        order = run_order(problem, steps)
        violation = check(problem, steps)
        assert (violation is None) == (steps == order)
        if violation is not None:
            assert violation.rule == Rule.HOISTED_LATE
            assert problem.hoisted[steps[violation.step]]
            late += 1
    assert late > 30


def test_the_place_of_a_late_hoisted_op_is_told() -> None:
    problem = small_problem([[], [], [0]], [[0], [1], [2]], [1, 1, 1], hoisted=(False, False, True))
    text = _broken(problem, (0, 1, 2), Rule.HOISTED_LATE, 2).text
    assert text == "step 2 runs op2, but the runtime runs it right after step 0"
    first = small_problem([[], []], [[0], [1]], [1, 1], hoisted=(False, True))
    assert "runs it first" in _broken(first, (0, 1), Rule.HOISTED_LATE, 1).text


def test_a_byte_over_the_limit() -> None:
    for seed in SEEDS:
        problem, steps = _legal(seed)
        peak = problem.limit_bytes
        at = strict(problem, steps).live_bytes.index(peak)
        text = _broken(problem.with_limit(peak - 1), steps, Rule.OVER_LIMIT, at).text
        assert f"holds {peak} bytes, 1 over the limit of {peak - 1}" in text


@pytest.mark.parametrize("rule", list(Rule))
def test_rules_are_checked_in_their_order(rule: Rule) -> None:
    """A schedule that breaks several rules is reported for the first of them."""
    problem = small_problem(
        [[], [0], [1], [0], [0]],
        [[0], [1], [2], [3], [4]],
        [10] * 5,
        limit_bytes=1,
        kept=frozenset({2, 3}),
        recomputable=(True, True, True, False, True),
        hoisted=(False, False, False, False, True),
    )
    breaks = {
        Rule.UNKNOWN_OP: (1, 9),
        Rule.INPUT_NOT_COMPUTED: (1, 3, 0, 3),
        Rule.OP_MISSING: (0, 3, 3, 0),
        Rule.RECOMPUTES_FORBIDDEN: (0, 1, 2, 3, 3, 4, 0),
        Rule.DEAD_RECOMPUTATION: (0, 1, 2, 3, 4, 0),
        Rule.HOISTED_LATE: (0, 1, 2, 3, 4),
        Rule.OVER_LIMIT: (0, 4, 1, 2, 3),
    }
    violation = check(problem, breaks[rule])
    assert violation is not None
    assert violation.rule == rule

"""The bounds are bounds: every schedule has a point, and no optimum is below."""

import math
import random
from collections.abc import Sequence

import pytest

from remat.problem import Problem
from remat.scheduler.bounds import needed
from remat.scheduler.chain import longest_path
from remat.scheduler.decode import literal_steps, order_of
from remat.scheduler.encode import encode
from remat.scheduler.event_model import EventModel, load
from remat.scheduler.events import DOUBT, build, fixed_units, relax_linear, relax_whole
from remat.scheduler.linear import Effort, Outcome
from remat.simulate import run_order, strict
from tests.oracle import brute_force
from tests.problems import NO_HOISTED, random_problem, random_steps, training_like

THOROUGH = Effort(10**6, 10**4, 30.0, 1e-9, math.inf, lambda: False)
ROUNDING = 1e-9


def some_events(problem: Problem, rng: random.Random) -> list[int]:
    """Up to four ops of a random path, in order."""
    writer = problem.writer
    path = [rng.randrange(len(problem.op_names))]
    while sources := [writer[value] for value in problem.reads[path[0]]]:
        path.insert(0, rng.choice(sources))
    while after := [
        op
        for op, reads in enumerate(problem.reads)
        if any(writer[value] == path[-1] for value in reads)
    ]:
        path.append(rng.choice(after))
    places = rng.sample(range(len(path)), rng.randint(1, min(4, len(path))))
    return [path[place] for place in sorted(places)]


def broken_rows(model: EventModel, point: Sequence[float]) -> list[int]:
    """The rows that a point violates."""
    program = model.program
    broken = []
    for row, (low, high) in enumerate(zip(program.row_low, program.row_high, strict=True)):
        at = range(program.starts[row], program.starts[row + 1])
        total = sum(program.factors[k] * point[program.columns[k]] for k in at)
        if not low - ROUNDING <= total <= high + ROUNDING:
            broken.append(row)
    return broken


@pytest.mark.parametrize("block", range(4))
def test_every_schedule_has_a_point_that_costs_no_more(block: int) -> None:
    for seed in range(150 * block, 150 * (block + 1)):
        rng = random.Random(seed)
        problem = random_problem(seed, rng.randint(3, 10))
        steps = run_order(problem, random_steps(problem, seed, rng.randint(0, 6)))
        trace = strict(problem, steps)
        if trace.peak_bytes == 0:
            continue
        model = build(load(problem.with_limit(trace.peak_bytes)), some_events(problem, rng))
        point = encode(model, steps)
        assert broken_rows(model, point) == [], seed
        in_bounds = zip(point, model.program.low, model.program.high, strict=True)
        assert all(low <= x <= high for x, low, high in in_bounds), seed
        units = sum(c * x for c, x in zip(model.program.cost, point, strict=True))
        units += fixed_units(model)
        assert units * model.load.unit_ns <= trace.time_ns * (1 + ROUNDING), seed


def test_a_schedule_over_the_limit_has_no_point() -> None:
    """The map above would prove nothing if it satisfied any rows."""
    broken = 0
    for seed in range(40):
        problem = training_like(seed, 5, 100)
        tight = problem.with_limit(problem.limit_bytes * 3 // 4)
        model = build(load(tight), longest_path(tight))
        broken += bool(broken_rows(model, encode(model, range(len(tight.op_names)))))
    assert broken == 40


def test_needed_bytes_are_needed_by_every_schedule() -> None:
    for seed in range(600):
        problem = random_problem(seed, 3 + seed % 7)
        steps = run_order(problem, random_steps(problem, seed, seed % 5))
        bytes_, op = needed(problem)
        assert bytes_ <= strict(problem, steps).peak_bytes, seed
        assert 0 <= op < len(problem.op_names)


def test_bounds_never_exceed_the_optimum() -> None:
    feasible = tight = 0
    for seed in range(150):
        rng = random.Random(seed)
        problem = random_problem(seed, rng.randint(3, 6), NO_HOISTED, rng.choice((75, 85, 95)))
        if problem.limit_bytes == 0:
            continue
        best = brute_force(problem)
        model = build(load(problem), some_events(problem, rng))
        exact, linear = relax_whole(model, THOROUGH), relax_linear(model, THOROUGH)
        if best is None:
            continue
        feasible += 1
        assert exact.outcome is Outcome.SOLVED, seed
        assert linear.bound_ns <= exact.bound_ns <= best[0], seed
        assert needed(problem)[0] <= problem.limit_bytes, seed
        tight += exact.bound_ns == best[0]
    assert feasible >= 40
    assert tight >= 0.7 * feasible


def test_a_point_is_decoded_to_steps_of_its_own_time() -> None:
    """Whatever memory they take: ops run in the intervals where the point has them."""
    decoded = 0
    for seed in range(40):
        problem = training_like(seed, 6 + seed % 7, 60)
        order = list(random_steps(problem, seed, 0))
        loaded = load(problem)
        path = longest_path(problem)
        events = tuple(path[len(path) * place // 4] for place in range(1, 4))
        answer = relax_whole(build(loaded, events), THOROUGH)
        if answer.outcome is not Outcome.SOLVED:
            continue
        moved = order_of(answer, events, order).tolist()
        steps = literal_steps(loaded, answer, events, moved)
        assert steps is not None
        time_ns = sum(problem.time_ns[op] for op in steps)
        assert time_ns <= math.ceil(answer.bound_ns * (1 + 2 * DOUBT))
        decoded += len(steps) > len(order)
    assert decoded >= 10

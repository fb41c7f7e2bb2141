"""The loop over event relaxations: bound, decode, polish, add an event, until the gap closes."""

from collections.abc import Sequence

from remat.scheduler.arrays import Arrays
from remat.scheduler.chain import chain
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import score
from remat.scheduler.event_model import Load, load
from remat.scheduler.events import build, relax_linear
from remat.scheduler.linear import MANY_ITERATIONS
from remat.scheduler.linear import Effort as SolverEffort
from remat.scheduler.polish import Effort, polish_each
from remat.scheduler.refine import Round, more_events, refine
from remat.scheduler.search import GAP, Search

MAX_ROUNDS = 8
# Events that follow the first one together: one event alone says little of what to keep when.
FIRST_EVENTS = 2
# Rounds without a better bound or a point that decodes to a better answer after which the loop
# ends: annealing is left the rest of the time.
PATIENCE = 2
# Variables times nodes of one integer program; a clock cuts what still takes too long.
WORK_NODES = 4_000_000
MAX_NODES = 2_000
MAX_SECONDS = 6.0
# Chunks of annealing in a row from the best answer.
CHAIN = 4
# Iterations times ops of one chunk of annealing.
POLISH_STEPS = 40_000_000
MAX_ITERATIONS = 100_000


def certify(search: Search, order: Int64, seed: int) -> bool:
    """Improve the bound and the answer of `search`; whether the limit is proven infeasible.

    `order` is the base order in which the points are decoded.
    """
    problem = search.problem
    if problem.limit_bytes < 1 or search.is_proven:
        return False
    base = score(search.arrays, order, problem.limit_bytes)
    if base is None:
        return False
    along = chain(problem, base.held_bytes)
    loaded = load(problem)
    events: tuple[int, ...] = (along.fullest,)
    idle = 0
    for number in range(MAX_ROUNDS):
        search.pause()
        before_ns = search.bound_ns
        effort = _effort(search, loaded, len(events))
        model = build(loaded, events)
        # The relaxation with fractions takes a moment, so there is a bound whatever comes after.
        search.raise_bound(relax_linear(model, effort).bound_ns, "event relaxation, linear")
        effort = _effort(search, loaded, len(events))
        outcome = refine(search.arrays, model, order, effort, search.best_steps)
        if outcome.is_infeasible:
            return True
        search.raise_bound(outcome.bound_ns, f"event relaxation, {len(events)} events")
        is_better = _improve(search, outcome, seed + number)
        idle = 0 if is_better or search.bound_ns > before_ns else idle + 1
        more = events
        for _ in range(FIRST_EVENTS if len(events) == 1 else 1):
            more = more_events(along, more, outcome.raw, problem.limit_bytes)
        if search.is_close or idle == PATIENCE or more == events:
            break
        events = more
    return False


def _improve(search: Search, outcome: Round, seed: int) -> bool:
    """Offer what was decoded and polish it; then the best answer, for as long as that pays.

    Whether what was decoded is the best answer as it is.
    """
    is_better = search.offer_all(outcome.found, "event relaxation")
    starts = [one.steps.tolist() for one in (outcome.raw, outcome.found.least) if one]
    if outcome.raw is not None:
        search.hint = tuple(outcome.raw.steps.tolist())
    if starts and not search.is_proven:
        _polish(search, starts, seed)
    for chunk in range(CHAIN):
        before = search.best_ns or 2 * search.bound_ns
        if search.is_proven or not search.start:
            break
        _polish(search, [search.start, search.hint or search.start], seed + chunk)
        if search.best_ns and before - search.best_ns < GAP * search.bound_ns:
            break
    return is_better


def _polish(search: Search, starts: Sequence[Sequence[int]], seed: int) -> None:
    search.pause()
    iterations = chunk_iterations(search.arrays)
    efforts = [Effort(seed + number, iterations, 0.12) for number in range(len(starts))]
    pairs = list(zip(starts, efforts, strict=True))
    found = polish_each(search.arrays, pairs, search.problem.limit_bytes)
    search.offer_all(found, "event relaxation, polished")


def _effort(search: Search, loaded: Load, events: int) -> SolverEffort:
    variables = 3 * (events + 1) * len(loaded.writer)
    enough = float("inf")
    if search.best_ns is not None:
        enough = search.best_ns / (1 + GAP / 2) / loaded.unit_ns
    return SolverEffort(
        iterations=MANY_ITERATIONS,
        nodes=min(MAX_NODES, WORK_NODES // variables),
        seconds=min(MAX_SECONDS, search.seconds_left),
        gap=GAP / 4 * loaded.base_ns / loaded.unit_ns,
        enough=enough,
        stop=search.is_over,
    )


def chunk_iterations(arrays: Arrays) -> int:
    """The iterations of one chunk of annealing: a few seconds at most, less if there is little."""
    return min(POLISH_STEPS // arrays.ops, 3_000 * arrays.ops, MAX_ITERATIONS)

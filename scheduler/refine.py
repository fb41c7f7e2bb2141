"""Lazy events: relax with few of them, decode, and add one where the decoded schedule goes wrong.

An adaptation of counterexample-guided refinement to the event relaxation: a static set of many
events makes the integer program too slow, a few well placed ones give nearly the same bound.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from remat.scheduler import decode
from remat.scheduler.arrays import Arrays
from remat.scheduler.chain import Chain, next_event, spread
from remat.scheduler.compiled import Int64
from remat.scheduler.encode import encode
from remat.scheduler.evaluate import Scored
from remat.scheduler.event_model import EventModel, Load, load
from remat.scheduler.events import Relaxed, build, fixed_units, relax_linear, relax_whole
from remat.scheduler.found import Found
from remat.scheduler.linear import Effort, Outcome
from remat.scheduler.tidy import tidy

# Share of the limit by which it is enlarged before infeasibility is believed.
SLACK = 1e-5
# Beyond so many variables only the relaxation with fractions is solved.
TOO_LARGE = 60_000


@dataclass(frozen=True, slots=True)
class Round:
    """One relaxation and what came of it; `raw` is None if there was no point to decode."""

    bound_ns: int
    is_infeasible: bool
    is_solved: bool
    found: Found
    raw: Scored | None


def refine(
    arrays: Arrays,
    model: EventModel,
    order: Int64,
    effort: Effort,
    known: Sequence[int],
) -> Round:
    """Solve a relaxation and decode it on the base order; `known` fits, or is empty.

    `effort.enough` counts the time of all ops, also of those without variables.
    """
    loaded, events = model.load, model.when.events
    effort = replace(effort, enough=effort.enough - fixed_units(model))
    if len(model.program.cost) > TOO_LARGE:
        answer = relax_linear(model, effort)
    else:
        start = encode(model, known) if len(known) else ()
        answer = relax_whole(model, effort, start)
    if answer.outcome is Outcome.INFEASIBLE:
        proven = not len(known) and _is_infeasible(loaded, events, effort)
        return Round(answer.bound_ns, proven, proven, Found(), None)
    if not answer.living:
        return Round(answer.bound_ns, False, False, Found(), None)
    solved = answer.outcome is Outcome.SOLVED
    raw, found = _decoded(arrays, loaded, answer, events, order)
    return Round(answer.bound_ns, False, solved, found, raw)


def more_events(
    along: Chain, events: Sequence[int], raw: Scored | None, limit: int
) -> tuple[int, ...]:
    """`events` and one more op of the path: where `raw` is over the limit, else far from all.

    The same events if none is left.
    """
    path, new = along.path, None
    if raw is not None and raw.peak_bytes > limit:
        new = next_event(path, events, raw.steps.tolist(), raw.memory_bytes.tolist(), limit)
    if new is None:
        new = spread(path, events, along.hot)
    chosen = set(events) if new is None else {*events, new}
    return tuple(op for op in path if op in chosen)


def _decoded(
    arrays: Arrays, loaded: Load, answer: Relaxed, events: Sequence[int], order: Int64
) -> tuple[Scored, Found]:
    limit = loaded.problem.limit_bytes
    moved = decode.order_of(answer, events, order.tolist())
    raw = decode.raw(arrays, loaded, answer, events, moved)
    found = Found().with_candidate(raw).with_candidate(tidy(arrays, raw.steps, limit))
    found = found.merged(decode.repaired(arrays, loaded, answer, events, moved))
    return raw, found


def _is_infeasible(loaded: Load, events: Sequence[int], effort: Effort) -> bool:
    """Whether no schedule fits even a slightly larger limit, beyond the solver's tolerances."""
    limit = loaded.problem.limit_bytes
    larger = load(loaded.problem.with_limit(limit + max(1, int(limit * SLACK))))
    return relax_whole(build(larger, events), effort).outcome is Outcome.INFEASIBLE

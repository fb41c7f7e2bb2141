"""Many events at once, with fractions, rounded: starts for annealing that few events do not give.

An integer program with few events says what to hold when few times are tight. Where memory is
short all along the backward pass, what is computed anew for one event is held to the next and
piles up in between. The linear relaxation with many events sees that, and solves in seconds.
Its point is rounded and repaired by greedy eviction, in the spirit of Checkmate's two-phase
rounding (Jain et al., MLSys 2020, section 5): that rounds one variable per op and stage of a
given order, and likewise asks for a little less than the budget.
"""

from collections.abc import Iterator, Sequence

from remat.scheduler import decode
from remat.scheduler.chain import longest_path
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import Scored, score
from remat.scheduler.event_model import load
from remat.scheduler.events import build, relax_linear
from remat.scheduler.found import Found
from remat.scheduler.linear import Effort
from remat.scheduler.refine import more_events
from remat.scheduler.search import Search

EVENTS = 12
# Shares of the limit that the relaxation gets: what is repaired takes more than it says.
SHARES = (1.0, 0.95)
# A relaxation that takes longer is left out.
MAX_ITERATIONS = 10_000_000
MAX_SECONDS = 8.0


def rounded(search: Search, order: Int64) -> Iterator[Found]:
    """Per share of the limit, where the relaxation is solved in time: what was made of it.

    `order` is the base order in which points are decoded.
    """
    limit = search.problem.limit_bytes
    base = score(search.arrays, order, limit)
    events = () if base is None else _spread(search, base, limit)
    for share in SHARES if events else ():
        search.pause()
        tight = load(search.problem.with_limit(max(1, int(share * limit))))
        seconds = min(MAX_SECONDS, search.seconds_left)
        effort = Effort(MAX_ITERATIONS, 0, seconds, 0.0, float("inf"), search.is_over)
        point = relax_linear(build(tight, events), effort)
        if not point.living:
            continue
        if share == 1.0:
            search.raise_bound(point.bound_ns, f"event relaxation, linear, {len(events)} events")
        moved = decode.order_of(point, events, order.tolist())
        exact = load(search.problem)
        yield decode.repaired(search.arrays, exact, point, events, moved)


def _spread(search: Search, base: Scored, limit: int) -> Sequence[int]:
    """Events all along the part of the longest path where memory is short."""
    path = longest_path(search.problem)
    held = dict(zip(base.steps.tolist(), base.memory_bytes.tolist(), strict=True))
    hot = [held[op] > limit for op in path]
    events: tuple[int, ...] = (max(path, key=lambda op: held[op]),)
    while len(events) < EVENTS:
        more = more_events(path, events, None, hot, limit)
        if more == events:
            break
        events = more
    return events

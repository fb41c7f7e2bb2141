"""Many events at once, with fractions, rounded: starts for annealing that few events do not give.

An integer program with few events says what to hold when few times are tight. Where memory is
short all along the backward pass, what is computed anew for one event is held to the next and
piles up in between. The linear relaxation with many events sees that, and solves in seconds.
Its point is rounded and repaired by greedy eviction, in the spirit of Checkmate's two-phase
rounding (Jain et al., MLSys 2020, section 5): that rounds one variable per op and stage of a
given order, and likewise asks for a little less than the budget.
"""

from collections.abc import Iterator

from remat.scheduler import decode
from remat.scheduler.chain import Chain, chain, spread
from remat.scheduler.compiled import Int64
from remat.scheduler.evaluate import score
from remat.scheduler.event_model import load
from remat.scheduler.events import build, relax_linear
from remat.scheduler.found import Found
from remat.scheduler.linear import MANY_ITERATIONS, Effort
from remat.scheduler.search import Search

EVENTS = 12
# Shares of the limit that the relaxation gets: what is repaired takes more than it says.
SHARES = (1.0, 0.95)
# A relaxation that takes longer is left out.
MAX_SECONDS = 8.0


def rounded(search: Search, order: Int64) -> Iterator[Found]:
    """Per share of the limit, where the relaxation is solved in time: what was made of it.

    `order` is the base order in which points are decoded.
    """
    problem = search.problem
    base = score(search.arrays, order, problem.limit_bytes)
    if base is None:
        return
    events = _events(chain(problem, base.held_bytes))
    loaded = load(problem)
    for share in SHARES:
        search.pause()
        is_whole = share == 1.0
        limit = max(1, int(share * problem.limit_bytes))
        relaxed = loaded if is_whole else load(problem.with_limit(limit))
        seconds = min(MAX_SECONDS, search.seconds_left)
        effort = Effort(MANY_ITERATIONS, 0, seconds, 0.0, float("inf"), search.is_over)
        point = relax_linear(build(relaxed, events), effort)
        if not point.living:
            continue
        if is_whole:
            search.raise_bound(point.bound_ns, f"event relaxation, linear, {len(events)} events")
        moved = decode.order_of(point, events, order.tolist())
        yield decode.repaired(search.arrays, loaded, point, events, moved)


def _events(along: Chain) -> tuple[int, ...]:
    """Events all along the part of the path where memory is short."""
    chosen = [along.fullest]
    while len(chosen) < EVENTS:
        new = spread(along.path, chosen, along.hot)
        if new is None:
            break
        chosen.append(new)
    return tuple(op for op in along.path if op in chosen)

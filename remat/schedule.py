"""What a solver answers: an order of execution, with a status and a bound."""

from dataclasses import dataclass
from enum import StrEnum


class Status(StrEnum):
    """OPTIMAL: no schedule of any order and any number of recomputations is faster.

    FEASIBLE: it fits; a faster one may exist. INFEASIBLE: proven, no schedule fits.
    UNKNOWN: none found, nothing proven.
    """

    OPTIMAL = "optimal"
    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNKNOWN = "unknown"


class BoundKind(StrEnum):
    """ORDER_FREE holds for every order; FIXED_ORDER for the given one only."""

    ORDER_FREE = "order-free"
    FIXED_ORDER = "fixed-order"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Step:
    """Run one op on one device. The n-th step of an op is its (n-1)-th recomputation."""

    op: int
    device: int = 0


@dataclass(frozen=True, slots=True)
class Trace:
    """What running `steps` takes: bytes held during each step, their maximum, total time."""

    live_bytes: tuple[int, ...]
    peak_bytes: int
    time_ns: int


@dataclass(frozen=True, slots=True)
class Solution:
    """A solver's answer; `steps` is empty unless the status is OPTIMAL or FEASIBLE.

    `lower_bound_ns` bounds the time of every schedule within the limit, as far as
    `bound_kind` says. `least_bytes` is the least peak found by any schedule seen on the way,
    `least_steps` that schedule's ops (useful when nothing fits), `needed_bytes` a proven lower
    bound on every schedule's peak, `needed_by` the op that needs it. `interrupted` says that a
    limit or Ctrl-C cut the search.
    """

    status: Status
    steps: tuple[Step, ...]
    peak_bytes: int
    time_ns: int
    lower_bound_ns: int
    bound_kind: BoundKind
    least_bytes: int
    needed_bytes: int
    needed_by: int
    found_by: str
    interrupted: bool = False
    least_steps: tuple[int, ...] = ()


NOTHING_TO_RUN = Solution(
    Status.OPTIMAL, (), 0, 0, 0, BoundKind.ORDER_FREE, 0, 0, -1, "nothing to run"
)

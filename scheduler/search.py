"""The state of one search: the best accepted answer, the bound, the clock."""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from remat.check import check
from remat.problem import Problem
from remat.scheduler.arrays import Arrays
from remat.scheduler.evaluate import Scored, score
from remat.scheduler.found import Found
from remat.simulate import run_order, strict

# An answer within this share of the bound is called optimal.
GAP = 1e-4
# An answer within this share of the bound is good enough to stop at: closing the rest costs far
# more time than it gains. It is called feasible, with its bound.
CLOSE = 1e-3
# How often a sequence is put into the runtime's order and rid of what is dead then.
NORMALIZATIONS = 3

Progress = Callable[[str, int | None, int], None]


def never() -> bool:
    """Nobody wants an end."""
    return False


def silent(stage: str, best_ns: int | None, bound_ns: int) -> None:
    """Nobody is told."""


class Stopped(Exception):
    """The time is up or the caller wants an answer now."""


@dataclass(slots=True)
class Search:
    """`offer` is the only way to a better answer: it asks the judges, never a solver.

    `best_steps` is empty and `best_ns` None until an answer is accepted. `bound_ns` holds for
    every schedule within the limit. `least_steps` has the least peak of any schedule seen.
    `hint` is a sequence of about the time of the bound, most likely over the limit: annealing
    from there ends elsewhere than from the best answer.
    """

    problem: Problem
    arrays: Arrays
    deadline: float
    stop: Callable[[], bool]
    on_progress: Progress
    bound_ns: int
    best_steps: tuple[int, ...] = ()
    best_ns: int | None = None
    best_peak_bytes: int = 0
    least_steps: tuple[int, ...] = ()
    least_bytes: int = -1
    found_by: str = ""
    hint: tuple[int, ...] = ()
    seen: set[bytes] = field(default_factory=set)

    def offer(self, candidate: Scored | None, found_by: str) -> bool:
        """Judge a candidate; whether it became the best answer."""
        if candidate is None or not self._is_interesting(candidate):
            return False
        key = candidate.steps.tobytes()
        if key in self.seen:
            return False
        self.seen.add(key)
        steps = self._as_run(candidate.steps.tolist())
        trace = strict(self.problem, steps)
        legal = check(self.problem.with_limit(trace.peak_bytes), steps) is None
        if legal and (self.least_bytes < 0 or trace.peak_bytes < self.least_bytes):
            self.least_bytes, self.least_steps = trace.peak_bytes, steps
        fits = legal and trace.peak_bytes <= self.problem.limit_bytes
        if not fits or (self.best_ns is not None and trace.time_ns >= self.best_ns):
            return False
        self.best_steps, self.best_ns = steps, trace.time_ns
        self.best_peak_bytes, self.found_by = trace.peak_bytes, found_by
        self.on_progress(found_by, self.best_ns, self.bound_ns)
        return True

    def offer_all(self, found: Found, found_by: str) -> bool:
        """Judge both sequences of a search; whether one became the best answer."""
        first = self.offer(found.feasible, found_by)
        return self.offer(found.least, found_by) or first

    def raise_bound(self, bound_ns: int, found_by: str) -> None:
        """A proven bound on the time of every schedule within the limit."""
        if bound_ns > self.bound_ns:
            self.bound_ns = bound_ns
            self.on_progress(found_by, self.best_ns, bound_ns)

    @property
    def is_proven(self) -> bool:
        """Whether the answer is optimal to within `GAP`."""
        return self.best_ns is not None and self.best_ns <= self.bound_ns * (1 + GAP)

    @property
    def is_close(self) -> bool:
        """Whether the answer is so near the bound that the search may end."""
        return self.best_ns is not None and self.best_ns <= self.bound_ns * (1 + CLOSE)

    @property
    def start(self) -> tuple[int, ...]:
        """Where a local search should start from."""
        return self.best_steps or self.least_steps

    @property
    def seconds_left(self) -> float:
        """Until the deadline."""
        return self.deadline - time.monotonic()

    def is_over(self) -> bool:
        """Whether the caller, or the clock, wants an end."""
        return self.stop() or self.seconds_left <= 0

    def pause(self) -> None:
        """Raise `Stopped` if the search is over."""
        if self.is_over():
            raise Stopped

    def _is_interesting(self, candidate: Scored) -> bool:
        faster = self.best_ns is None or candidate.time_ns < self.best_ns
        lower = self.least_bytes < 0 or candidate.peak_bytes < self.least_bytes
        return lower or (faster and candidate.excess_bytes == 0)

    def _as_run(self, steps: Sequence[int]) -> tuple[int, ...]:
        """The order in which the runtime runs `steps`, without what is dead in that order."""
        for _ in range(NORMALIZATIONS):
            run = run_order(self.problem, steps)
            pruned = score(self.arrays, run, self.problem.limit_bytes)
            if pruned is None or len(pruned.steps) == len(run):
                return run
            steps = pruned.steps.tolist()
        return run_order(self.problem, steps)

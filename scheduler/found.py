"""What a search has found so far: the fastest sequence that fits, and the one that needs least."""

from dataclasses import dataclass

from remat.scheduler.evaluate import Scored


@dataclass(frozen=True, slots=True)
class Found:
    """The fastest sequence within the limit and the one of the least peak; None: none at all."""

    feasible: Scored | None = None
    least: Scored | None = None

    def with_candidate(self, candidate: Scored | None) -> "Found":
        """The better of what is known and `candidate`, in both respects; ties keep the known."""
        if candidate is None:
            return self
        fits = candidate.excess_bytes == 0 and candidate.better_than(self.feasible)
        return Found(
            candidate if fits else self.feasible,
            candidate if candidate.lower_than(self.least) else self.least,
        )

    def merged(self, other: "Found") -> "Found":
        """The better of two searches under the same limit."""
        return self.with_candidate(other.feasible).with_candidate(other.least)

    @property
    def start(self) -> Scored | None:
        """Where another search should start from."""
        return self.least if self.feasible is None else self.feasible

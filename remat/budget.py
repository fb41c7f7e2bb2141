"""What a memory limit covers, and what of it is left for a schedule.

limit of the schedule = budget - weights - the session's own bookkeeping.

The bookkeeping is measured: what a strict session of the unscheduled graph holds beyond its
weights, per node, so that a schedule with more nodes is charged for them; with it goes the grain
of the system's own accounting.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from remat.problem import Problem
from remat.results import Breakdown, Measurement
from remat.schedule import Trace

# Resident pages are counted in batches per thread, so a high-water mark wavers by this much.
GRAIN_BYTES = 64 << 10
# What "as it is" has to spare: the bookkeeping is measured anew each time.
RESERVE_BYTES = 4 * GRAIN_BYTES
# What a budget that we recommend has: the heaps that small tensors lie in differ by as much.
ADVISED_BYTES = 512 << 10
# A limit leaves room for this many clones, so that a few of them do not change it.
CLONES_PERCENT = 3
LEAST_CLONES = 2
# What is recomputed is larger than the average op: 7.4 KiB a clone where nodes took 6.2.
CLONE_PERCENT = 125
# About what a session holds without nodes; only what it holds above that grows with them. An
# estimate for planning: what is written is measured.
EMPTY_SESSION_BYTES = 1_250_000


@dataclass(frozen=True, slots=True)
class Account:
    """The constant parts of a model's memory: `overhead_bytes` for `nodes` nodes, of which
    `fixed_bytes` do not grow with them."""

    weights_bytes: int
    inputs_bytes: int
    overhead_bytes: int
    fixed_bytes: int
    nodes: int

    @property
    def nodes_with_few_clones(self) -> int:
        """So many nodes a schedule may have within a budget that we name."""
        return self.nodes + max(LEAST_CLONES, self.nodes * CLONES_PERCENT // 100)

    def overhead_for(self, nodes: int) -> int:
        """The overhead of a schedule with that many nodes, rounded up."""
        growing = max(0, self.overhead_bytes - self.fixed_bytes)
        more = max(0, nodes - self.nodes)
        return self.overhead_bytes + -(
            -growing * more * CLONE_PERCENT // (100 * max(1, self.nodes))
        )

    def limit(self, budget_bytes: int, nodes: int) -> int:
        """What tensors and workspace may take; may be negative."""
        return budget_bytes - self.weights_bytes - self.overhead_for(nodes)

    def total_for(self, limit_bytes: int, nodes: int) -> int:
        """The least budget whose `limit` is `limit_bytes`."""
        return limit_bytes + self.weights_bytes + self.overhead_for(nodes)


def account(
    weights_bytes: int, inputs_bytes: int, base: Measurement, trace: Trace, nodes: int
) -> Account:
    """From the strict run of the unscheduled graph: `trace` is what its tensors should take."""
    held = max(0, base.held_bytes - weights_bytes)
    unexplained = max(0, base.run_bytes - trace.peak_bytes) + GRAIN_BYTES
    return Account(
        weights_bytes=weights_bytes,
        inputs_bytes=inputs_bytes,
        overhead_bytes=held + unexplained,
        fixed_bytes=unexplained + min(held, EMPTY_SESSION_BYTES),
        nodes=nodes,
    )


def breakdown(
    accounted: Account, problem: Problem, steps: Sequence[int], trace: Trace, nodes: int
) -> Breakdown:
    """The parts of a schedule's peak."""
    at = trace.live_bytes.index(trace.peak_bytes) if trace.live_bytes else 0
    workspace = problem.workspace_bytes[steps[at]] if steps else 0
    return Breakdown(
        weights_bytes=accounted.weights_bytes,
        tensors_bytes=trace.peak_bytes - workspace,
        workspace_bytes=workspace,
        overhead_bytes=accounted.overhead_for(nodes),
        inputs_bytes=accounted.inputs_bytes,
    )

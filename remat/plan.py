"""What is known of a model before a budget is, and what a schedule for one is."""

import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from onnx import ModelProto

from remat import onnx_io
from remat.budget import ADVISED_BYTES, RESERVE_BYTES, Account, account, breakdown
from remat.build import build_problem
from remat.costs import CostTable
from remat.graph import Graph
from remat.lower import lower
from remat.overwritten import keep_order, ordered_ops
from remat.prepare import Prepared
from remat.problem import Problem
from remat.profiles.session import Mode, thread_count
from remat.results import Breakdown, Measurement, Verdict
from remat.schedule import Solution, Step, Trace
from remat.simulate import run_order, strict
from remat.verify import Trial, run_trial

# The least budget that we name is measured in so many processes, fewer where they take longer.
MOST_PROCESSES = 4
PROCESSES_SECONDS = 4.0


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a model before a budget is: `base` is what `base_trial` measured, a run of
    the unscheduled graph in strict mode; `base_trace` is the same by prediction. `chains` are ops
    that must run in this order (`remat.overwritten`)."""

    prepared: Prepared
    graph: Graph
    costs: CostTable
    problem: Problem
    base_trial: Trial
    base: Measurement
    base_trace: Trace
    accounted: Account
    threads: int
    chains: tuple[tuple[int, ...], ...]

    @property
    def as_is(self) -> Breakdown:
        """The peak in the runtime's default order, as a budget that it keeps."""
        ops, nodes = range(len(self.graph.ops)), self.accounted.nodes_with_few_clones
        found = breakdown(self.accounted, self.problem, ops, self.base_trace, nodes)
        return replace(found, overhead_bytes=found.overhead_bytes + RESERVE_BYTES)


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule in a file of the work folder, to be run in `mode`. `trace` is that of the file's
    own nodes. `verdict` is None where it was not asked for. `dropped_ns` is the time of the ops
    that a pinned model lacks."""

    solution: Solution
    trace: Trace
    model: ModelProto
    file: Path
    predicted: Breakdown
    verdict: Verdict | None
    mode: Mode = Mode.STRICT
    keeps_order: bool = True
    dropped_ns: int = 0


def make_plan(prepared: Prepared, graph: Graph, costs: CostTable, threads: int) -> Plan:
    """Run the unscheduled graph once more, in a process of its own, and account for it."""
    chains = ordered_ops(graph, costs)
    problem = keep_order(build_problem(graph, costs, 0), chains)
    file = prepared.folder / "unscheduled.onnx"
    # Lowered as schedules are, so that annotations and readers of unread outputs are in it.
    trace, nodes = _lowered(prepared, problem, range(len(graph.ops)), file)
    reference = prepared.folder / "reference.npz"
    trial = Trial(file, Mode.STRICT, prepared.feeds, thread_count(threads), 3, reference)
    base = run_trial(trial)
    return Plan(
        prepared=prepared,
        graph=graph,
        costs=costs,
        problem=problem,
        base_trial=trial,
        base=base,
        base_trace=trace,
        accounted=account(graph.weights_bytes, graph.inputs_bytes, base, trace, nodes),
        threads=thread_count(threads),
        chains=chains,
    )


def _lowered(
    prepared: Prepared, problem: Problem, steps: Sequence[int], file: Path
) -> tuple[Trace, int]:
    """Write a model that runs these ops to `file`; what its tensors take, and its nodes."""
    order = run_order(problem, steps)
    trace = strict(problem, order)
    model = lower(prepared.model, [Step(op) for op in order], trace)
    onnx_io.write(model, file)
    return trace, onnx_io.node_count(model.graph)


def total_of(plan: Plan, steps: Sequence[int]) -> int:
    """The budget to recommend for a schedule: what is predicted, counted with the nodes that it is
    lowered to, or what runs of it take, if that is more."""
    file = plan.prepared.folder / "least.onnx"
    trace, nodes = _lowered(plan.prepared, plan.problem, steps, file)
    nodes = max(nodes, plan.accounted.nodes_with_few_clones)
    predicted_bytes = plan.accounted.total_for(trace.peak_bytes, nodes)
    return max(predicted_bytes, _highest_peak(plan, file)) + ADVISED_BYTES


def _highest_peak(plan: Plan, file: Path) -> int:
    """Of a few processes, since the heaps that small tensors lie in differ by some 0.5 MB."""
    trial = replace(plan.base_trial, model=file, outputs=None, repeats=0)
    begin, peaks = time.monotonic(), [run_trial(trial).peak_bytes]
    while len(peaks) < MOST_PROCESSES and time.monotonic() - begin < PROCESSES_SECONDS:
        peaks.append(run_trial(trial).peak_bytes)
    return max(peaks)

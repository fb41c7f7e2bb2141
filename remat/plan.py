"""What is known of a model before a budget is, and what a schedule for one is."""

from dataclasses import dataclass
from pathlib import Path

from onnx import ModelProto

from remat.budget import Account, account, breakdown
from remat.build import build_problem
from remat.costs import CostTable
from remat.graph import Graph
from remat.overwritten import keep_order, ordered_ops
from remat.prepare import Prepared
from remat.problem import Problem
from remat.profiles.session import Mode, thread_count
from remat.results import Breakdown, Measurement, Verdict
from remat.schedule import Solution, Trace
from remat.simulate import run_order, strict
from remat.verify import Trial, run_trial


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
        """The peak in the runtime's default order."""
        order = range(len(self.graph.ops))
        return breakdown(self.accounted, self.problem, order, self.base_trace, len(self.graph.ops))


@dataclass(frozen=True, slots=True)
class Planned:
    """A schedule in a file of the work folder, to be run in `mode`. `trace` is that of the file's
    own nodes. `verdict` is None where it was not asked for."""

    solution: Solution
    trace: Trace
    model: ModelProto
    file: Path
    predicted: Breakdown
    verdict: Verdict | None
    mode: Mode = Mode.STRICT
    keeps_order: bool = True


def make_plan(prepared: Prepared, graph: Graph, costs: CostTable, threads: int) -> Plan:
    """Run the unscheduled graph once more, in a process of its own, and account for it."""
    reference = prepared.folder / "reference.npz"
    trial = Trial(
        prepared.optimized, Mode.STRICT, prepared.feeds, thread_count(threads), 3, reference
    )
    base = run_trial(trial)
    chains = ordered_ops(graph, costs)
    problem = keep_order(build_problem(graph, costs, 0), chains)
    trace = strict(problem, run_order(problem, range(len(graph.ops))))
    return Plan(
        prepared=prepared,
        graph=graph,
        costs=costs,
        problem=problem,
        base_trial=trial,
        base=base,
        base_trace=trace,
        accounted=account(graph.weights_bytes, graph.inputs_bytes, base, trace, len(graph.ops)),
        threads=thread_count(threads),
        chains=chains,
    )


def least_total(plan: Plan, least_bytes: int) -> int:
    """The budget that a schedule of that peak needs."""
    return plan.accounted.budget_for(least_bytes)

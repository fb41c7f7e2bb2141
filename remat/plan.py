"""A schedule within a budget: solve, lower, measure, and plan again with what was exceeded."""

import json
import time
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path

import onnx
from onnx import ModelProto

from remat import onnx_io
from remat.budget import Account, account, breakdown
from remat.build import build_problem
from remat.check import check
from remat.costs import CostTable
from remat.errors import CheckFailed, Infeasible, InternalError, NoAnswer
from remat.graph import Graph
from remat.lower import arrange, describe, lower
from remat.options import OptimizeOptions
from remat.passes.offline import cpu_family
from remat.pin import pin, plain_mode
from remat.prepare import Prepared
from remat.problem import Problem
from remat.profiles.session import Mode, settings, thread_count
from remat.results import Breakdown, Measurement, Verdict
from remat.schedule import Solution, Status, Step, Trace
from remat.scheduler.auto import solve
from remat.scheduler.search import GAP
from remat.simulate import run_order, strict
from remat.units import format_bytes, format_mem_argument
from remat.verify import Promise, Tolerance, Trial, compare, judge, run_trial, unrepeatable

MOST_ATTEMPTS = 4
# Even a later attempt gets this long to find a first answer.
LEAST_SECONDS = 5.0
# What reuse adds to a schedule's liveness moves with the schedule, so it takes more of them.
MOST_PINNED_ATTEMPTS = 12


@dataclass(frozen=True, slots=True)
class Plan:
    """What is known of a model before a budget is: `base` ran the unscheduled graph in strict
    mode and left its outputs in `reference`; `base_trace` is the same by prediction."""

    prepared: Prepared
    graph: Graph
    costs: CostTable
    problem: Problem
    base: Measurement
    base_trace: Trace
    reference: Path
    accounted: Account
    threads: int

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
    base, _ = run_trial(trial)
    problem = build_problem(graph, costs, 0)
    trace = strict(problem, run_order(problem, range(len(graph.ops))))
    return Plan(
        prepared=prepared,
        graph=graph,
        costs=costs,
        problem=problem,
        base=base,
        base_trace=trace,
        reference=reference,
        accounted=account(graph.weights_bytes, graph.inputs_bytes, base, trace, len(graph.ops)),
        threads=thread_count(threads),
    )


def plan_within(plan: Plan, budget_bytes: int, options: OptimizeOptions) -> Planned:
    """A schedule whose measured peak keeps the budget.

    Raises Infeasible R301 with the proof, NoAnswer R401 where none was found, CheckFailed R101
    where outputs differ or the budget is broken after every attempt.
    """
    limit = plan.accounted.limit(budget_bytes, len(plan.graph.ops))
    begin = time.monotonic()
    planned, bound_ns = None, None
    for attempt in range(MOST_PINNED_ATTEMPTS if options.pin else MOST_ATTEMPTS):
        solution = _solve(plan, limit, budget_bytes, options, begin)
        if not solution.steps and attempt:
            raise _not_kept(plan, planned, limit, budget_bytes)
        _require_steps(plan, solution, budget_bytes)
        # What is proven under a tighter limit is no bound for the budget: the first one stays.
        bound_ns = solution.lower_bound_ns if bound_ns is None else min(bound_ns, solution.time_ns)
        solution = _bounded(solution, bound_ns)
        planned = _lower(plan, solution, limit, budget_bytes, options)
        allowed = plan.accounted.limit(budget_bytes, len(planned.model.graph.node))
        if planned.trace.peak_bytes > allowed:
            # The clones' own bookkeeping does not fit: plan for as many as there were.
            # Where a plain session's reuse takes more than liveness, leave room for that as well.
            limit = min(allowed, limit - (planned.trace.peak_bytes - allowed))
            continue
        if not options.verify:
            return planned
        planned = replace(planned, verdict=_measured(plan, planned, budget_bytes, options))
        verdict = planned.verdict
        if verdict is None or not verdict.failures:
            return planned
        if any(not one.equal for one in verdict.outputs):
            break
        limit = allowed - (verdict.optimized.peak_bytes - budget_bytes)
    raise _broken(plan, planned)


def _solve(
    plan: Plan, limit: int, budget_bytes: int, options: OptimizeOptions, begin: float
) -> Solution:
    if limit < 0:
        raise _nothing_left(plan, budget_bytes)
    left = max(LEAST_SECONDS, options.time_limit_s - (time.monotonic() - begin))
    return solve(
        plan.problem.with_limit(limit),
        seed=options.model.seed,
        time_limit_s=left,
        on_progress=_progress(options.model.progress),
    )


def _bounded(solution: Solution, bound_ns: int) -> Solution:
    """The solution with a bound that holds for the budget, and the status that follows."""
    proven = solution.time_ns <= bound_ns * (1 + GAP)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return replace(solution, lower_bound_ns=bound_ns, status=status)


def _require_steps(plan: Plan, solution: Solution, budget_bytes: int) -> None:
    if solution.status is Status.INFEASIBLE:
        raise _infeasible(plan, solution, budget_bytes)
    if not solution.steps:
        raise _no_answer(plan, solution, budget_bytes)


def _progress(report: Callable[[str, int, int], None]) -> Callable[[str, int | None, int], None]:
    """The solver's progress as the share of the gap that is left."""

    def show(_stage: str, best_ns: int | None, bound_ns: int) -> None:
        report("solve", bound_ns if best_ns else 0, best_ns or 1)

    return show


def _lower(
    plan: Plan, solution: Solution, limit: int, budget_bytes: int, options: OptimizeOptions
) -> Planned:
    problem = plan.problem
    order = run_order(problem, [step.op for step in solution.steps])
    violation = check(problem.with_limit(limit), order)
    if violation is not None:
        raise InternalError("R903", f"the solver's schedule is not legal: {violation.text}")
    steps = tuple(Step(op) for op in order)
    trace = strict(problem, order)
    if options.pin:
        return _pinned(plan, replace(solution, steps=steps), trace, budget_bytes)
    extra = len(order) - len(plan.graph.ops)
    predicted = breakdown(plan.accounted, problem, order, trace, len(plan.graph.ops) + extra)
    metadata = _metadata(plan, budget_bytes, predicted, Mode.STRICT)
    model = lower(plan.prepared.model, steps, trace, metadata)
    file = plan.prepared.folder / "lowered.onnx"
    onnx_io.write(model, file)
    onnx.checker.check_model(str(file), full_check=True)
    solution = replace(solution, steps=steps, time_ns=trace.time_ns, peak_bytes=trace.peak_bytes)
    return Planned(solution, trace, model, file, predicted, None)


def _pinned(plan: Plan, solution: Solution, scheduled: Trace, budget_bytes: int) -> Planned:
    """The same for a plain session: the peak is that of its own order and reuse."""
    arranged = arrange(plan.prepared.model, solution.steps, scheduled)
    pinned = pin(arranged, solution.steps, plan.graph, plan.costs)
    trace, model = pinned.trace, pinned.model
    nodes = len(pinned.order)
    predicted = breakdown(plan.accounted, pinned.problem, pinned.order, trace, nodes)
    file = plan.prepared.folder / "lowered.onnx"
    onnx_io.write(model, file)
    onnx.checker.check_model(str(file), full_check=True)
    mode = plain_mode(pinned, file, portable=plan.prepared.portable)
    describe(model, _metadata(plan, budget_bytes, predicted, mode))
    onnx_io.write(model, file)
    solution = replace(solution, time_ns=trace.time_ns, peak_bytes=trace.peak_bytes)
    return Planned(solution, trace, model, file, predicted, None, mode, pinned.is_exact)


def _metadata(plan: Plan, budget_bytes: int, predicted: Breakdown, mode: Mode) -> Mapping[str, str]:
    prepared = plan.prepared
    return {
        "mode": "strict" if mode is Mode.STRICT else "pinned",
        "budget_bytes": str(budget_bytes),
        "as_is_bytes": str(plan.as_is.total_bytes),
        "predicted_peak_bytes": str(predicted.total_bytes),
        "session_options": json.dumps(asdict(settings(mode, plan.threads)), sort_keys=True),
        "cpu_family": cpu_family() if prepared.cpu_specific else "",
        "portable": "1" if prepared.portable else "0",
        "dims": json.dumps(dict(prepared.dims), sort_keys=True),
        "source_sha256": prepared.sha256,
    }


def _measured(plan: Plan, planned: Planned, budget_bytes: int, options: OptimizeOptions) -> Verdict:
    """Run the lowered model and the original, and compare."""
    report = options.model.progress
    folder, inputs = plan.prepared.folder, plan.prepared.feeds
    candidate = folder / "candidate.npz"
    report("verify", 0, 2)
    optimized, _ = run_trial(Trial(planned.file, planned.mode, inputs, plan.threads, 3, candidate))
    report("verify", 1, 2)
    original, _ = run_trial(Trial(plan.prepared.bound, Mode.DEFAULT, inputs, plan.threads, 3))
    report("verify", 2, 2)
    ignored = unrepeatable(plan.prepared.model)
    outputs = compare(plan.reference, candidate, Tolerance(), ignored)
    predicted = planned.predicted.total_bytes
    promise = Promise(budget_bytes, predicted, planned.solution.time_ns)
    return judge(original, optimized, outputs, promise, {})


def least_total(plan: Plan, least_bytes: int) -> int:
    """The budget that a schedule of that peak needs."""
    return plan.accounted.budget_for(least_bytes)


def _infeasible(plan: Plan, solution: Solution, budget_bytes: int) -> Infeasible:
    op = plan.graph.ops[solution.needed_by] if solution.needed_by >= 0 else None
    who = f"op {op.name} ({op.kind}) alone" if op else "every schedule"
    fact = (
        f"no schedule fits {format_bytes(budget_bytes)}: {who} needs "
        f"{format_bytes(solution.needed_bytes)} of tensors and workspace, on top of "
        f"{format_bytes(plan.graph.weights_bytes)} of weights and "
        f"{format_bytes(plan.accounted.overhead_bytes)} of overhead"
    )
    return Infeasible("R301", fact, place=str(plan.prepared.source), fix=_enough(plan, solution))


def _no_answer(plan: Plan, solution: Solution, budget_bytes: int) -> NoAnswer:
    fact = (
        f"no schedule found within {format_bytes(budget_bytes)}; none is proven impossible "
        f"above {format_bytes(plan.accounted.budget_for(solution.needed_bytes))}"
    )
    return NoAnswer("R401", fact, place=str(plan.prepared.source), fix=_enough(plan, solution))


def _not_kept(plan: Plan, planned: Planned | None, limit: int, budget_bytes: int) -> NoAnswer:
    """A schedule fits by liveness, but what it takes beside that (clones' bookkeeping, reuse in a
    pinned session, what was measured) does not, and none was found that leaves room for it."""
    short = plan.accounted.limit(budget_bytes, len(plan.graph.ops)) - limit
    taken = planned.predicted.total_bytes if planned else budget_bytes
    fact = (
        f"no schedule found within {format_bytes(budget_bytes)} that leaves "
        f"{format_bytes(short)} for what a session adds to it"
    )
    enough = min(taken + short, least_total(plan, plan.base_trace.peak_bytes))
    fix = f"the last one took {format_bytes(taken)}: use --mem {format_mem_argument(enough)}"
    return NoAnswer("R402", fact, place=str(plan.prepared.source), fix=fix)


def _enough(plan: Plan, solution: Solution) -> str:
    total = least_total(plan, min(solution.least_bytes, plan.base_trace.peak_bytes))
    return (
        f"the least budget found is {format_bytes(total)}: use --mem {format_mem_argument(total)}"
    )


def _nothing_left(plan: Plan, budget_bytes: int) -> Infeasible:
    fact = (
        f"no schedule fits {format_bytes(budget_bytes)}: weights take "
        f"{format_bytes(plan.graph.weights_bytes)} and the session itself "
        f"{format_bytes(plan.accounted.overhead_bytes)}"
    )
    enough = least_total(plan, plan.base_trace.peak_bytes)
    fix = f"the model as it is runs with --mem {format_mem_argument(enough)}"
    return Infeasible("R302", fact, place=str(plan.prepared.source), fix=fix)


def _broken(plan: Plan, planned: Planned | None) -> CheckFailed:
    verdict = planned.verdict if planned else None
    fact = verdict.failures[0] if verdict and verdict.failures else "the clones do not fit"
    fix = "give more memory, or report the model as a bug"
    return CheckFailed(
        "R101", f"nothing was written: {fact}", place=str(plan.prepared.source), fix=fix
    )

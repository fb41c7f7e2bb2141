"""A schedule within a budget: solve, lower, measure, and plan again with what was exceeded."""

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, replace

import onnx
from onnx import ModelProto

from remat import onnx_io
from remat.budget import ADVISED_BYTES, RESERVE_BYTES, breakdown
from remat.check import check
from remat.errors import Infeasible, InternalError, NoAnswer
from remat.lower import arrange, describe, lower
from remat.options import OptimizeOptions
from remat.overwritten import is_kept
from remat.passes.offline import cpu_family
from remat.pin import Pinned, pin, plain_mode
from remat.plan import Plan, Planned
from remat.problem import NONE
from remat.profiles.session import Mode, settings
from remat.refusals import (
    broken,
    enough,
    infeasible,
    no_answer,
    not_kept,
    nothing_left,
    pinned,
    with_least,
)
from remat.results import Breakdown, Verdict
from remat.schedule import BoundKind, Solution, Status, Step, Trace
from remat.scheduler.auto import least_budget, solve
from remat.scheduler.search import GAP
from remat.simulate import run_order, strict
from remat.verify import Match, Promise, Trial, decide

MOST_ATTEMPTS = 4
# Even a later attempt gets this long to find a first answer.
LEAST_SECONDS = 5.0
# A broken budget is planned for anew with a thousandth to spare: measurements differ by so much.
SPARE_PARTS = 1_000
# What reuse adds to a schedule's liveness moves with the schedule, so it takes more of them.
MOST_PINNED_ATTEMPTS = 12
NO_STEPS = (Status.INFEASIBLE, Status.UNKNOWN)


def plan_within(plan: Plan, budget_bytes: int, options: OptimizeOptions) -> Planned:
    """A schedule whose measured peak keeps the budget.

    Raises Infeasible R301 with the proof, NoAnswer R401 where none was found, CheckFailed R101
    where outputs differ or the budget is broken after every attempt.
    """
    attempts = MOST_PINNED_ATTEMPTS if options.pin else MOST_ATTEMPTS
    try:
        return _searched(plan, budget_bytes, options, attempts)
    except NoAnswer as refusal:
        return _spare(plan, budget_bytes, options, refusal)
    except Infeasible as refusal:
        if not options.pin:
            raise
        return _spare(plan, budget_bytes, options, refusal)


def _searched(plan: Plan, budget_bytes: int, options: OptimizeOptions, attempts: int) -> Planned:
    begin, planned = time.monotonic(), None
    limit, solution = _first(plan, budget_bytes, options, begin)
    _require_steps(plan, solution, budget_bytes, options)
    # What is proven under a tighter limit is no bound for the budget: the first one stays.
    bound_ns = solution.lower_bound_ns
    for attempt in range(attempts):
        if attempt:
            solution = _solve(plan, limit, options, begin, solution)
            if solution.status in NO_STEPS:
                raise not_kept(plan, limit, budget_bytes)
            bound_ns = min(bound_ns, solution.time_ns)
        planned = _lower(plan, _bounded(solution, bound_ns), limit, budget_bytes, options)
        allowed = _allowed(plan, planned, budget_bytes)
        excess = planned.trace.peak_bytes - allowed
        if excess <= 0:
            planned = _proven(plan, planned, budget_bytes, options)
            if planned.verdict is None or not planned.verdict.failures:
                return planned
            if any(not one.equal for one in planned.verdict.outputs):
                break
            over_bytes = planned.verdict.optimized.peak_bytes - budget_bytes
            # Below what this schedule holds: a limit that it keeps would bring it back.
            spare_bytes = min(RESERVE_BYTES, solution.peak_bytes // SPARE_PARTS)
            limit = solution.peak_bytes - over_bytes - spare_bytes
        else:
            # The clones' own bookkeeping does not fit: plan for as many as there were.
            # Where a plain session's reuse takes more than liveness, leave room for that as well.
            limit = min(allowed, limit - excess)
            # A tighter limit takes more clones again: from the second time on, go ahead of them.
            limit -= excess if attempt and not options.pin else 0
        if limit < 0:
            break
    if planned is None or planned.verdict is None:
        raise not_kept(plan, limit, budget_bytes)
    raise broken(plan, planned)


def _first(
    plan: Plan, budget_bytes: int, options: OptimizeOptions, begin: float
) -> tuple[int, Solution]:
    """The limit to begin with, which leaves room for a few clones, and what is found within it.
    Only what does not fit without any clone is proven not to, so that is asked where it matters.
    """
    accounted = plan.accounted
    few = accounted.limit(budget_bytes, accounted.nodes_with_few_clones)
    none = accounted.limit(budget_bytes, accounted.nodes)
    if none < 0:
        raise nothing_left(plan, budget_bytes)
    if few >= 0:
        solution = _solve(plan, few, options, begin, None)
        if solution.status is not Status.INFEASIBLE or few == none:
            return few, solution
    return none, _solve(plan, none, options, begin, None)


def _allowed(plan: Plan, planned: Planned, budget_bytes: int) -> int:
    """What the tensors of a lowered model may take."""
    return plan.accounted.limit(budget_bytes, onnx_io.node_count(planned.model.graph))


def _proven(plan: Plan, planned: Planned, budget_bytes: int, options: OptimizeOptions) -> Planned:
    """The same with its verdict, where one is asked for."""
    if not options.verify:
        return planned
    return replace(planned, verdict=_measured(plan, planned, budget_bytes, options))


def _spare(
    plan: Plan, budget_bytes: int, options: OptimizeOptions, refusal: Infeasible | NoAnswer
) -> Planned:
    """What is done if the search finds nothing: the order as it is or the schedule of the least
    peak, whichever of them fits. These do not depend on the budget, so a budget that they are
    recommended for is kept. Raises the refusal, with such a budget where one was planned for."""
    least_bytes = None
    for solution in _budgetless(plan, options):
        try:
            planned = _lower(plan, solution, solution.peak_bytes, budget_bytes, options)
        except NoAnswer:
            continue
        if planned.trace.peak_bytes <= _allowed(plan, planned, budget_bytes):
            planned = _proven(plan, planned, budget_bytes, options)
            if planned.verdict is None or not planned.verdict.failures:
                return planned
        measured_bytes = planned.verdict.optimized.peak_bytes if planned.verdict else 0
        taken_bytes = max(planned.predicted.total_bytes, measured_bytes, budget_bytes)
        total = taken_bytes + ADVISED_BYTES
        least_bytes = total if least_bytes is None else min(total, least_bytes)
    if options.pin:
        raise pinned(refusal, least_bytes)
    raise with_least(refusal, least_bytes) if least_bytes else refusal


def _budgetless(plan: Plan, options: OptimizeOptions) -> Iterator[Solution]:
    """Schedules that are found without a limit: the fastest, and one of a low peak."""
    problem, bound_ns = plan.problem, sum(plan.problem.time_ns)
    seed, seconds = options.model.seed, max(LEAST_SECONDS, options.time_limit_s)
    for found_by in ("order", "least peak"):
        steps: Sequence[int] = range(len(problem.op_names))
        if found_by == "least peak":
            _, _, steps = least_budget(problem, seed=seed, time_limit_s=seconds)
        trace = strict(problem, run_order(problem, steps))
        solution = Solution(
            status=Status.FEASIBLE,
            steps=tuple(Step(op) for op in steps),
            peak_bytes=trace.peak_bytes,
            time_ns=trace.time_ns,
            lower_bound_ns=bound_ns,
            bound_kind=BoundKind.ORDER_FREE,
            least_bytes=trace.peak_bytes,
            needed_bytes=0,
            needed_by=NONE,
            found_by=found_by,
        )
        yield _bounded(solution, bound_ns)


def _solve(
    plan: Plan, limit: int, options: OptimizeOptions, begin: float, looser: Solution | None
) -> Solution:
    left = max(LEAST_SECONDS, options.time_limit_s - (time.monotonic() - begin))
    return solve(
        plan.problem.with_limit(limit),
        seed=options.model.seed,
        time_limit_s=left,
        on_progress=_progress(options.model.progress),
        looser=looser,
    )


def _bounded(solution: Solution, bound_ns: int) -> Solution:
    """The solution with a bound that holds for the budget, and the status that follows."""
    proven = solution.time_ns <= bound_ns * (1 + GAP)
    status = Status.OPTIMAL if proven else Status.FEASIBLE
    return replace(solution, lower_bound_ns=bound_ns, status=status)


def _require_steps(
    plan: Plan, solution: Solution, budget_bytes: int, options: OptimizeOptions
) -> None:
    if solution.status is Status.INFEASIBLE:
        raise infeasible(plan, solution, budget_bytes)
    if solution.status is Status.UNKNOWN:
        refusal = no_answer(plan, solution, budget_bytes)
        # In strict mode `_spare` finds out what is enough; with a pin it needs to know this, too.
        raise with_least(refusal, enough(plan, solution, budget_bytes)) if options.pin else refusal


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
    model = lower(plan.prepared.model, steps, trace)
    nodes = onnx_io.node_count(model.graph)
    predicted = breakdown(plan.accounted, problem, order, trace, nodes)
    describe(model, _metadata(plan, budget_bytes, predicted, trace.time_ns, Mode.STRICT))
    file = plan.prepared.folder / "lowered.onnx"
    onnx_io.write(model, file)
    onnx.checker.check_model(str(file), full_check=True)
    solution = replace(solution, steps=steps, time_ns=trace.time_ns, peak_bytes=trace.peak_bytes)
    return Planned(solution, trace, model, file, predicted, None)


def _pinned(plan: Plan, solution: Solution, scheduled: Trace, budget_bytes: int) -> Planned:
    """The same for a plain session: the peak is that of its own order and reuse."""
    arranged = arrange(plan.prepared.model, solution.steps, scheduled)
    pinned = pin(arranged, solution.steps, plan.graph, plan.costs)
    _require_kept(plan, pinned)
    trace, model = pinned.trace, pinned.model
    nodes = onnx_io.node_count(model.graph)
    predicted = breakdown(plan.accounted, pinned.problem, pinned.order, trace, nodes)
    file = plan.prepared.folder / "lowered.onnx"
    onnx_io.write(model, file)
    onnx.checker.check_model(str(file), full_check=True)
    mode = plain_mode(pinned, file, portable=plan.prepared.portable)
    describe(model, _metadata(plan, budget_bytes, predicted, trace.time_ns, mode))
    onnx_io.write(model, file)
    solution = replace(solution, time_ns=trace.time_ns, peak_bytes=trace.peak_bytes)
    dropped_ns, bound_ns = _without_dropped(plan, solution.lower_bound_ns, model)
    solution = _bounded(solution, bound_ns)
    return Planned(solution, trace, model, file, predicted, None, mode, pinned.is_exact, dropped_ns)


def _without_dropped(plan: Plan, bound_ns: int, model: ModelProto) -> tuple[int, int]:
    """The time of the ops that a pinned model lacks, and the bound on that of the others.

    It lacks the readers of unread outputs: with them, right behind what they read, a schedule of
    the others takes no more memory, so the bound falls by their time. Where it lacks ops that only
    these read, their memory is gone too, and all that holds is that each op runs once.
    """
    names = {node.name for node in model.graph.node}
    ops, time_ns = plan.graph.ops, plan.problem.time_ns
    dropped = [at for at, op in enumerate(ops) if op.name not in names]
    written = {name for at in dropped for name in ops[at].outputs}
    others = any(written.intersection(ops[at].inputs) for at in dropped)
    dropped_ns = sum(time_ns[at] for at in dropped)
    base_ns = sum(time_ns) - dropped_ns
    return dropped_ns, base_ns if others else max(base_ns, bound_ns - dropped_ns)


def _require_kept(plan: Plan, pinned: Pinned) -> None:
    """Where the schedule could not be pinned, outputs might differ: raises NoAnswer R403."""
    number = {op.name: index for index, op in enumerate(plan.graph.ops)}
    names = [pinned.model.graph.node[index].name for index in pinned.order]
    if not is_kept(plan.chains, [number[name] for name in names if name in number]):
        fact = "no edge pins the order of ops that write over what others read"
        raise NoAnswer("R403", fact, place=str(plan.prepared.source), fix="leave out --pin")


def _metadata(
    plan: Plan, budget_bytes: int, predicted: Breakdown, time_ns: int, mode: Mode
) -> Mapping[str, str]:
    prepared = plan.prepared
    return {
        "mode": "strict" if mode is Mode.STRICT else "pinned",
        "budget_bytes": str(budget_bytes),
        "as_is_bytes": str(plan.as_is.total_bytes),
        "predicted_peak_bytes": str(predicted.total_bytes),
        "predicted_ns": str(time_ns),
        "session_options": json.dumps(asdict(settings(mode, plan.threads)), sort_keys=True),
        "cpu_family": cpu_family() if prepared.cpu_specific else "",
        "portable": "1" if prepared.portable else "0",
        "dims": json.dumps(dict(prepared.dims), sort_keys=True),
        "source_sha256": prepared.sha256,
    }


def _measured(plan: Plan, planned: Planned, budget_bytes: int, options: OptimizeOptions) -> Verdict:
    """Run the lowered model and the original, and compare."""
    folder, inputs = plan.prepared.folder, plan.prepared.feeds
    candidate = folder / "candidate.npz"
    match = Match(
        original=Trial(plan.prepared.bound, Mode.DEFAULT, inputs, plan.threads, 3),
        optimized=Trial(planned.file, planned.mode, inputs, plan.threads, 3, candidate),
        reference=plan.base_trial,
        promise=Promise(budget_bytes, planned.predicted.total_bytes, planned.solution.time_ns),
    )
    return decide(match, options.model.progress)

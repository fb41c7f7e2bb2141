"""Why no schedule is answered with, and what to ask for instead."""

from remat.budget import ADVISED_BYTES
from remat.errors import CheckFailed, Infeasible, NoAnswer
from remat.plan import Plan, Planned, total_of
from remat.schedule import Solution
from remat.units import format_bytes, format_mem_argument

# Refusals of pinned models for which strict mode has a schedule.
NEEDS_MORE_THAN_STRICT = frozenset({"R402", "R403"})


def infeasible(plan: Plan, solution: Solution, budget_bytes: int) -> Infeasible:
    """R301: proven, by one op or by the whole."""
    op = plan.graph.ops[solution.needed_by] if solution.needed_by >= 0 else None
    who = f"op {op.name} ({op.kind}) alone" if op else "every schedule"
    fact = (
        f"no schedule fits {format_bytes(budget_bytes)}: {who} needs "
        f"{format_bytes(solution.needed_bytes)} of tensors and workspace, on top of "
        f"{format_bytes(plan.graph.weights_bytes)} of weights and "
        f"{format_bytes(plan.accounted.overhead_bytes)} of overhead"
    )
    fix = _use(enough(plan, solution, budget_bytes))
    return Infeasible("R301", fact, place=str(plan.prepared.source), fix=fix)


def no_answer(plan: Plan, solution: Solution, budget_bytes: int) -> NoAnswer:
    """R401: the search came to its end. What would be enough, `with_least` says."""
    needed_bytes = plan.accounted.total_for(solution.needed_bytes, plan.accounted.nodes)
    fact = (
        f"no schedule found within {format_bytes(budget_bytes)}; none is proven impossible "
        f"above {format_bytes(needed_bytes)}"
    )
    return NoAnswer("R401", fact, place=str(plan.prepared.source))


def not_kept(plan: Plan, limit: int, budget_bytes: int) -> NoAnswer:
    """R402: a schedule fits by liveness, but what it takes beside that (clones' bookkeeping, reuse
    in a pinned session, what was measured) does not, and none was found that leaves room for it.
    What would be enough, `with_least` or `pinned` says.
    """
    few = plan.accounted.nodes_with_few_clones
    short = max(0, plan.accounted.limit(budget_bytes, few) - limit)
    fact = (
        f"no schedule found within {format_bytes(budget_bytes)} that leaves "
        f"{format_bytes(short)} for what a session adds to it"
    )
    return NoAnswer("R402", fact, place=str(plan.prepared.source))


def enough(plan: Plan, solution: Solution, budget_bytes: int) -> int:
    """A budget above this one that the schedule of the least peak seen keeps, by measurement."""
    steps = solution.least_steps or range(len(plan.graph.ops))
    return max(total_of(plan, steps), budget_bytes + ADVISED_BYTES)


def _use(least_bytes: int) -> str:
    use = f"use --mem {format_mem_argument(least_bytes)}"
    return f"the least budget found is {format_bytes(least_bytes)}: {use}"


def with_least(refusal: Infeasible | NoAnswer, least_bytes: int) -> Infeasible | NoAnswer:
    """The same with the least budget that a schedule was found for."""
    return _with_fix(refusal, _use(least_bytes))


def _with_fix(refusal: Infeasible | NoAnswer, fix: str) -> Infeasible | NoAnswer:
    return type(refusal)(refusal.code, refusal.fact, place=refusal.place, fix=fix)


def nothing_left(plan: Plan, budget_bytes: int) -> Infeasible:
    """R302: what every session holds is more than the budget."""
    fact = (
        f"no schedule fits {format_bytes(budget_bytes)}: weights take "
        f"{format_bytes(plan.graph.weights_bytes)} and the session itself "
        f"{format_bytes(plan.accounted.overhead_bytes)}"
    )
    enough = plan.as_is.total_bytes + ADVISED_BYTES
    fix = f"the model as it is runs with --mem {format_mem_argument(enough)}"
    return Infeasible("R302", fact, place=str(plan.prepared.source), fix=fix)


def pinned(refusal: Infeasible | NoAnswer, enough_bytes: int | None) -> Infeasible | NoAnswer:
    """The same for a model that is to be pinned: a plain session takes more than the schedule
    itself. `enough_bytes` is a budget within which a pinned schedule was made, if one was."""
    if refusal.code in NEEDS_MORE_THAN_STRICT:
        without = "without it, less may be enough"
    else:
        without = f"without it, {refusal.fix}"
    with_pin = f"use --mem {format_mem_argument(enough_bytes)} with --pin; " if enough_bytes else ""
    return _with_fix(refusal, f"{with_pin}{without}" if with_pin else f"leave out --pin: {without}")


def broken(plan: Plan, planned: Planned) -> CheckFailed:
    """R101: what was measured of the last schedule."""
    fact = planned.verdict.failures[0] if planned.verdict else "it was not measured"
    fix = "give more memory, or report the model as a bug"
    return CheckFailed(
        "R101", f"nothing was written: {fact}", place=str(plan.prepared.source), fix=fix
    )

"""What `remat optimize` says when it is done, for people."""

from remat.report import breakdown_facts, side_by_side, verdict_facts
from remat.results import Optimization, Verdict
from remat.schedule import BoundKind
from remat.text_table import named
from remat.units import format_bytes_exact, format_ns, format_share


def optimization_text(optimization: Optimization) -> str:
    """The decision, what is proven about it, the measurements, and how to run the model."""
    facts = [
        ("model", optimization.model),
        ("written", optimization.output or "nothing (--check)"),
        *([("schedule", optimization.schedule_file)] if optimization.schedule_file else []),
        ("budget", _budget(optimization)),
        ("peak", f"{format_bytes_exact(optimization.predicted.total_bytes)}, predicted"),
        *breakdown_facts(optimization.predicted),
        ("time", _time(optimization)),
        ("recomputed", _recomputed(optimization)),
        ("search", f"{optimization.status}, found by {optimization.found_by}"),
        (
            "proven",
            proven(optimization.predicted_ns, optimization.lower_bound_ns, optimization.bound_kind),
        ),
        ("took", f"{optimization.seconds:.1f} s in all, with profiling and measuring"),
    ]
    parts = [named(facts), *_notes(optimization), *_measured(optimization.verdict)]
    return "\n".join([*parts, *_session_options(optimization)])


def _budget(optimization: Optimization) -> str:
    as_is = f"as it is, the peak is {format_bytes_exact(optimization.as_is_bytes)}"
    if not optimization.budget_bytes:
        return f"none applies; {as_is}"
    resolved = format_bytes_exact(optimization.budget_bytes)
    return f"{optimization.budget_text} = {resolved}; {as_is}"


def _time(optimization: Optimization) -> str:
    extra_ns = optimization.predicted_ns - optimization.base_ns
    return (
        f"{format_ns(optimization.predicted_ns)} predicted, {format_ns(optimization.base_ns)} "
        f"without recomputation: overhead {format_share(extra_ns, optimization.base_ns)}"
    )


def _recomputed(optimization: Optimization) -> str:
    return f"{optimization.recomputed_ops} times, in a model of {optimization.ops} ops"


def proven(time_ns: int, bound_ns: int, kind: BoundKind) -> str:
    """What a bound says of schedules that are faster than `time_ns`."""
    bound = f"under {format_ns(bound_ns)} (gap {format_share(time_ns - bound_ns, time_ns)})"
    match kind:
        case BoundKind.ORDER_FREE:
            return f"no schedule of any order runs {bound}"
        case BoundKind.FIXED_ORDER:
            return f"no schedule that keeps the order of first runs is {bound}"
        case BoundKind.NONE:
            return "nothing about faster schedules"


def _notes(optimization: Optimization) -> list[str]:
    notes = [f"warning: {warning}" for warning in optimization.warnings]
    if optimization.interrupted:
        notes.append("interrupted (time limit or signal): this is the best the search had found")
    return notes


def _measured(verdict: Verdict | None) -> list[str]:
    if verdict is None:
        return ["", "not measured: outputs and peak are unproven without `remat verify`"]
    failures = [f"FAILED: {failure}" for failure in verdict.failures]
    return [
        "",
        "measured",
        side_by_side(verdict),
        named(verdict_facts(verdict)),
        *failures,
    ]


def _session_options(optimization: Optimization) -> list[str]:
    if not optimization.session_options:
        return []
    lines = ["", "run it with these session options"]
    for language, text in optimization.session_options:
        lines += [f"  {language}", *(f"    {line}" for line in text.splitlines())]
    return lines

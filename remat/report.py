"""Results for people, as text: one function for each noun of `remat.results`.

Sizes are rounded up. The same for programs is in `remat.report_data`.
"""

import math
from collections.abc import Callable, Iterable, Sequence

from remat.results import (
    Breakdown,
    Comparison,
    Enforcement,
    Inspection,
    Measurement,
    OpProfile,
    Profile,
    Verdict,
)
from remat.text_table import aligned, named
from remat.units import format_bytes, format_bytes_exact, format_ns, format_share


def inspection_text(inspection: Inspection) -> str:
    """What `remat inspect` prints."""
    least = format_bytes_exact(inspection.least_proven_bytes)
    reason = f", because of op '{inspection.needed_by}'" if inspection.needed_by else ""
    facts = [
        ("model", inspection.model),
        ("ops", _ops(inspection)),
        *_dimensions(inspection),
        ("all tensors", f"{format_bytes_exact(inspection.activations_bytes)} if none were freed"),
        ("peak as it is", _peak_as_is(inspection)),
        *breakdown_facts(inspection.as_is),
        ("least found", f"{format_bytes_exact(inspection.least_found_bytes)}, with a schedule"),
        ("least proven", f"{least} is needed by every schedule{reason}"),
    ]
    return "\n".join([named(facts), *_holders(inspection)])


def _ops(inspection: Inspection) -> str:
    if not inspection.ops:
        return "none: all is computed when the model is loaded"
    return f"{inspection.ops}: {_kinds(inspection.kinds)}"


def profile_text(profile: Profile) -> str:
    """What `remat profile` prints: a table in execution order and what it adds up to."""
    header = ("op", "kind", "time", "spread", "share", "output", "workspace", "shares input")
    rows = [_profile_row(op, profile.sum_ns) for op in profile.ops]
    against = format_share(profile.sum_ns, profile.measured_ns)
    facts = [
        ("model", profile.model),
        ("measured by", f"{profile.runtime}, {profile.provider}"),
        ("on", f"{profile.cpu}, {_counted(profile.threads, 'thread')}"),
        ("ops", f"{len(profile.ops)}, {profile.cached_ops} of them measured earlier"),
        ("sum of ops", f"{format_ns(profile.sum_ns)}, {against} of a run"),
        ("a run", format_ns(profile.measured_ns)),
    ]
    return aligned(header, rows, left=(0, 1, 7)) + "\n\n" + named(facts)


def measurement_text(measurement: Measurement) -> str:
    """What `remat run` prints."""
    return named(
        [
            ("model", measurement.model),
            ("session", measurement.mode),
            ("peak", format_bytes_exact(measurement.peak_bytes)),
            ("  held", f"{format_bytes(measurement.held_bytes)} by the loaded session"),
            ("  run", f"{format_bytes(measurement.run_bytes)} more at the peak of a run"),
            ("load peak", format_bytes(measurement.load_peak_bytes)),
            ("time", _times(measurement.run_ns, measurement.median_ns)),
        ]
    )


def verdict_text(verdict: Verdict) -> str:
    """What `remat verify` prints: both models side by side, the outputs, and the verdict."""
    failures = [f"FAILED: {failure}" for failure in verdict.failures]
    facts = named(verdict_facts(verdict))
    return "\n".join([side_by_side(verdict), "", facts, *(failures or ["everything holds"])])


def verdict_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """The budget, real limits, what changed against the original, how the outputs compare, and how
    near the prediction was."""
    before, after = verdict.original, verdict.optimized
    peak = _change(before.peak_bytes, after.peak_bytes)
    time = _change(before.median_ns, after.median_ns)
    return [
        *budget_facts(verdict),
        *_enforcement(verdict.enforcement),
        ("change", f"peak {peak}, time {time}"),
        ("outputs", outputs_summary(verdict.outputs) + _compared_with(verdict)),
        *_accuracy(verdict),
    ]


def _enforcement(enforced: Enforcement | None) -> list[tuple[str, str]]:
    if enforced is None:
        return []
    original = _fate(enforced.original_survived)
    optimized = _fate(enforced.optimized_survived)
    limit = format_bytes(enforced.limit_bytes)
    return [("real limit", f"{limit}: the original {original}, the optimized model {optimized}")]


def _fate(survived: bool) -> str:
    return "came through" if survived else "died"


def _compared_with(verdict: Verdict) -> str:
    random, racing = verdict.seeded_ops, verdict.racing_ops
    seeded = f", with {_counted(random, 'random op')} seeded alike in both models"
    alone = f", on one thread since {_counted(racing, 'op')} may lose updates on several"
    return (seeded if random else "") + (alone if racing else "")


def _accuracy(verdict: Verdict) -> list[tuple[str, str]]:
    if not verdict.predicted_bytes:
        return []
    parts = [_off("peak", verdict.optimized.peak_bytes, verdict.predicted_bytes, format_bytes)]
    if verdict.predicted_ns:
        fastest = verdict.optimized.fastest_ns
        parts.append(_off("fastest run", fastest, verdict.predicted_ns, format_ns))
    return [("prediction", "; ".join(parts))]


def _off(what: str, measured: int, predicted: int, shown: Callable[[int], str]) -> str:
    off = measured - predicted
    side = "above" if off > 0 else "below"
    return f"{what} {shown(abs(off))} ({format_share(abs(off), predicted)}) {side} it"


def side_by_side(verdict: Verdict) -> str:
    """A table of both measurements, and of the prediction where there is one."""
    both = (verdict.original, verdict.optimized)
    header = ["", "original", "optimized"]
    rows = [
        ["session", *(one.mode for one in both)],
        ["peak", *(format_bytes(one.peak_bytes) for one in both)],
        ["  held when loaded", *(format_bytes(one.held_bytes) for one in both)],
        ["  more in a run", *(format_bytes(one.run_bytes) for one in both)],
        ["peak while loading", *(format_bytes(one.load_peak_bytes) for one in both)],
        ["time, median run", *(format_ns(one.median_ns) for one in both)],
        ["time, fastest run", *(format_ns(one.fastest_ns) for one in both)],
    ]
    if verdict.predicted_bytes:
        header.append("predicted")
        predicted = {1: format_bytes(verdict.predicted_bytes)}
        if verdict.predicted_ns:
            predicted[6] = format_ns(verdict.predicted_ns)
        rows = [[*row, predicted.get(index, "")] for index, row in enumerate(rows)]
    return aligned(header, rows, left=(0,))


def budget_facts(verdict: Verdict) -> list[tuple[str, str]]:
    """Whether the measured peak keeps the budget; empty where none applies."""
    if not verdict.budget_bytes:
        return []
    spare = verdict.budget_bytes - verdict.optimized.peak_bytes
    how = f"kept, {format_bytes(spare)} to spare" if spare >= 0 else _broken_by(-spare)
    return [("budget", f"{format_bytes_exact(verdict.budget_bytes)}: {how}")]


def outputs_summary(outputs: Sequence[Comparison]) -> str:
    """How many outputs agree, and by how much the worst one differs."""
    if not outputs:
        return "not compared"
    # Equal with a note: an output that cannot be compared in full, such as a random one.
    noted = [one for one in outputs if one.equal and one.note]
    compared = [one for one in outputs if not (one.equal and one.note)]
    texts = [_agreement(compared)] if compared else []
    return "; ".join([*texts, *(f"'{one.output}' {one.note}" for one in noted)])


def breakdown_facts(peak: Breakdown) -> list[tuple[str, str]]:
    """The parts of a peak, and what the caller holds apart from it."""
    return [
        ("  weights", format_bytes(peak.weights_bytes)),
        ("  tensors", format_bytes(peak.tensors_bytes)),
        ("  workspace", format_bytes(peak.workspace_bytes)),
        ("  overhead", f"{format_bytes(peak.overhead_bytes)} of the session itself"),
        ("  apart", f"{format_bytes(peak.inputs_bytes)} of inputs, held by the caller"),
    ]


def _change(before: int, after: int) -> str:
    share = format_share(after - before, before)
    return f"+{share}" if after > before and before else share


def _agreement(outputs: Sequence[Comparison]) -> str:
    count = _counted(len(outputs), "output")
    if all(one.bitwise for one in outputs):
        return f"{count}, equal to the bit"
    worst = max(outputs, key=_badness)
    equal = sum(one.equal for one in outputs)
    note = f", {worst.note}" if worst.note else ""
    return (
        f"{equal} of {count} equal; worst '{worst.output}': absolute difference "
        f"{worst.worst_absolute:.3g}, relative {worst.worst_relative:.3g}{note}"
    )


def _badness(one: Comparison) -> tuple[bool, float, float]:
    worst = (one.worst_relative, one.worst_absolute)
    relative, absolute = (math.inf if math.isnan(value) else value for value in worst)
    return (not one.equal, relative, absolute)


def _broken_by(excess_bytes: int) -> str:
    return f"BROKEN by {format_bytes_exact(excess_bytes)}"


def _kinds(kinds: Iterable[tuple[str, int]]) -> str:
    return ", ".join(f"{count} {kind}" for kind, count in kinds)


def _dimensions(inspection: Inspection) -> list[tuple[str, str]]:
    texts = [f"{name} = {value}" for name, value in inspection.bound_dims]
    texts += [f"{name} of '{owner}' is dynamic" for owner, name in inspection.dynamic_dims]
    return [("dimensions", ", ".join(texts))] if texts else []


def _peak_as_is(inspection: Inspection) -> str:
    where = f" at op '{inspection.peak_op}'" if inspection.peak_op else ""
    return f"{format_bytes_exact(inspection.as_is.total_bytes)}{where}"


def _holders(inspection: Inspection) -> list[str]:
    if not inspection.holders:
        return []
    total = inspection.as_is.total_bytes
    rows = [
        (format_bytes(one.held_bytes), format_share(one.held_bytes, total), one.value, one.op)
        for one in inspection.holders
    ]
    header = ("held", "of the peak", "value", "written by")
    return ["", "largest at the peak", aligned(header, rows, left=(2, 3))]


def _profile_row(op: OpProfile, sum_ns: int) -> tuple[str, ...]:
    return (
        op.name,
        op.kind,
        format_ns(op.time_ns),
        format_ns(op.spread_ns),
        format_share(op.time_ns, sum_ns),
        format_bytes(op.output_bytes),
        format_bytes(op.workspace_bytes),
        _sharing(op),
    )


def _sharing(op: OpProfile) -> str:
    aliases = [f"alias of {position}" for position in op.alias]
    return ", ".join([*aliases, *(f"in place of {position}" for position in op.in_place)])


def _times(run_ns: Sequence[int], median_ns: int) -> str:
    if len(run_ns) == 1:
        return format_ns(median_ns)
    low, high = format_ns(min(run_ns)), format_ns(max(run_ns))
    return f"{format_ns(median_ns)}, the median of {len(run_ns)} runs from {low} to {high}"


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}" if count == 1 else f"{count} {noun}s"

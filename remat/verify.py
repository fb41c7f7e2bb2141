"""Do two models agree, and does the second keep its limit? By running them, not by reasoning.

Every model runs in a process of its own. The outputs that count are those of the original
after the runtime's own optimizer at the level that the optimized model was made from, run in
strict mode: a schedule must not change a bit of them.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from onnx import ModelProto

from remat import feeds
from remat.build import RANDOM_OPS
from remat.child import Payload, call, call_timed
from remat.onnx_io import read_names
from remat.results import Comparison, Measurement, Verdict
from remat.units import format_bytes


@dataclass(frozen=True, slots=True)
class Tolerance:
    """As in numpy.allclose; both 0 ask for equal bits."""

    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Trial:
    """One model to run: `outputs` may be None where they are not compared."""

    model: Path
    mode: str
    feeds: Path
    threads: int
    repeats: int
    outputs: Path | None = None
    enforce_bytes: int = 0


def run_trial(trial: Trial) -> tuple[Measurement, Payload]:
    """Measure memory in a fresh process and, with `repeats` above 0, time in another.

    Raises BadModel R508 where the model does not run.
    """
    payload = {
        "model": str(trial.model),
        "mode": trial.mode,
        "feeds": str(trial.feeds),
        "threads": trial.threads,
        "repeats": trial.repeats,
        "outputs": str(trial.outputs or ""),
        "enforce_bytes": trial.enforce_bytes,
    }
    memory = call("remat.measure:measure_memory", payload)
    timed = call_timed("remat.measure:measure_time", payload) if trial.repeats else {"run_ns": [0]}
    measured = Measurement(
        model=str(trial.model),
        mode=trial.mode,
        held_bytes=memory["held_bytes"],
        run_bytes=memory["run_bytes"],
        load_peak_bytes=memory["load_peak_bytes"],
        run_ns=tuple(timed["run_ns"]),
    )
    return measured, memory


def unrepeatable(model: ModelProto) -> frozenset[str]:
    """Values that differ from run to run: those of random ops without a seed, and what follows."""
    found: set[str] = set()
    for node in model.graph.node:
        seeded = any(attribute.name == "seed" for attribute in node.attribute)
        if (node.op_type in RANDOM_OPS and not seeded) or any(
            name in found for name in read_names(node)
        ):
            found.update(node.output)
    return frozenset(found)


def compare(
    reference: Path, candidate: Path, tolerance: Tolerance, ignored: frozenset[str]
) -> tuple[Comparison, ...]:
    """One comparison per output of the reference. `ignored` outputs are random: only their type
    and shape are compared."""
    wanted, got = feeds.load(reference), feeds.load(candidate)
    return tuple(_compare(name, wanted[name], got.get(name), tolerance, ignored) for name in wanted)


def _compare(
    name: str,
    wanted: feeds.Array,
    got: feeds.Array | None,
    tolerance: Tolerance,
    ignored: frozenset[str],
) -> Comparison:
    if got is None:
        return Comparison(name, False, False, np.inf, np.inf, "it is missing")
    if wanted.dtype != got.dtype or wanted.shape != got.shape:
        note = f"it is {got.dtype}{list(got.shape)}, not {wanted.dtype}{list(wanted.shape)}"
        return Comparison(name, False, False, np.inf, np.inf, note)
    if name in ignored:
        return Comparison(name, True, False, 0.0, 0.0, "random: only type and shape are compared")
    if wanted.dtype == object or wanted.tobytes() == got.tobytes():
        same = bool(np.array_equal(wanted, got)) if wanted.dtype == object else True
        return Comparison(name, same, same, 0.0, 0.0, "" if same else "the texts differ")
    return _compare_numbers(name, wanted, got, tolerance)


def _compare_numbers(
    name: str, wanted: feeds.Array, got: feeds.Array, tolerance: Tolerance
) -> Comparison:
    kind = np.complex128 if wanted.dtype.kind == "c" else np.float64
    left, right = wanted.astype(kind), got.astype(kind)
    with np.errstate(all="ignore"):
        distance = np.abs(left - right)
        both = np.isnan(left) & np.isnan(right) | (left == right)
        distance = np.where(both, 0.0, distance)
        relative = np.where(both, 0.0, distance / np.maximum(np.abs(left), np.finfo(float).tiny))
        close = both | (distance <= tolerance.atol + tolerance.rtol * np.abs(left))
    asked = tolerance.rtol > 0 or tolerance.atol > 0
    worst = float(np.max(np.nan_to_num(distance, nan=np.inf)))
    worst_relative = float(np.max(np.nan_to_num(relative, nan=np.inf)))
    equal = asked and bool(close.all())
    return Comparison(name, equal, False, worst, worst_relative)


@dataclass(frozen=True, slots=True)
class Promise:
    """What the optimized model is held to; 0 where nothing was promised."""

    budget_bytes: int = 0
    predicted_bytes: int = 0
    predicted_ns: int = 0


def judge(
    original: Measurement,
    optimized: Measurement,
    outputs: tuple[Comparison, ...],
    promise: Promise,
    enforced: Mapping[str, bool],
) -> Verdict:
    """The verdict; `enforced` tells, where a real limit was set, whether the run came through."""
    failures = [_difference(one) for one in outputs if not one.equal]
    budget = promise.budget_bytes
    if budget and optimized.peak_bytes > budget:
        failures.append(
            f"the measured peak of {format_bytes(optimized.peak_bytes)} "
            f"breaks the budget of {format_bytes(budget)} "
            f"by {optimized.peak_bytes - budget} bytes"
        )
    if enforced.get("optimized") is False:
        failures.append(f"the run died under a real limit of {format_bytes(budget)}")
    return Verdict(
        original=original,
        optimized=optimized,
        outputs=outputs,
        budget_bytes=budget,
        predicted_bytes=promise.predicted_bytes,
        predicted_ns=promise.predicted_ns,
        failures=tuple(failures),
    )


def _difference(one: Comparison) -> str:
    if one.note:
        return f"output {one.output} differs: {one.note}"
    return (
        f"output {one.output} differs by {one.worst_absolute:.3g} at most "
        f"(relative {one.worst_relative:.3g})"
    )

"""Do two models agree, and does the second keep its limit? By running them, not by reasoning.

Every model runs in a process of its own. The outputs that count are those of the original
after the runtime's own optimizer at the level that the optimized model was made from, run in
strict mode: a schedule must not change a bit of them.
"""

import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from onnx import ModelProto

from remat import feeds, onnx_io
from remat.child import Payload, call, call_timed
from remat.errors import BadModel
from remat.racing_ops import racing
from remat.random_ops import give_seeds, seeds_for, unrepeatable, unseeded
from remat.results import Comparison, Enforcement, Measurement, Verdict
from remat.units import format_bytes

# The code of `remat.child` for a process that the runtime took down.
DIED = "R510"


@dataclass(frozen=True, slots=True)
class Tolerance:
    """As in numpy.allclose; both 0 ask for equal bits."""

    rtol: float = 0.0
    atol: float = 0.0


@dataclass(frozen=True, slots=True)
class Promise:
    """What the optimized model is held to; 0 where nothing was promised."""

    budget_bytes: int = 0
    predicted_bytes: int = 0
    predicted_ns: int = 0


EXACT, NO_PROMISE = Tolerance(), Promise()


@dataclass(frozen=True, slots=True)
class Trial:
    """One model to run: `outputs` may be None where they are not compared."""

    model: Path
    mode: str
    feeds: Path
    threads: int
    repeats: int
    outputs: Path | None = None


def run_trial(trial: Trial) -> Measurement:
    """Measure memory in a fresh process and, with `repeats` above 0, time in another.

    Raises BadModel R508 where the model does not run.
    """
    payload = _payload(trial)
    memory = call("remat.measure:measure_memory", payload)
    timed = call_timed("remat.measure:measure_time", payload) if trial.repeats else {"run_ns": [0]}
    return Measurement(
        model=str(trial.model),
        mode=trial.mode,
        held_bytes=memory["held_bytes"],
        run_bytes=memory["run_bytes"],
        load_peak_bytes=memory["load_peak_bytes"],
        run_ns=tuple(timed["run_ns"]),
    )


def _payload(trial: Trial, enforce_bytes: int = 0) -> Payload:
    return {
        "model": str(trial.model),
        "mode": trial.mode,
        "feeds": str(trial.feeds),
        "threads": trial.threads,
        "repeats": trial.repeats,
        "outputs": str(trial.outputs or ""),
        "enforce_bytes": enforce_bytes,
    }


def survives(trial: Trial, limit_bytes: int) -> bool:
    """Whether a model that runs comes through a real limit, set in a process of its own.

    One whose idle session holds more than the limit does not, and neither does one that takes
    its process down.
    """
    payload = _payload(replace(trial, outputs=None), limit_bytes)
    try:
        memory = call("remat.measure:measure_memory", payload)
    except BadModel as error:
        if error.code != DIED:
            raise
        return False
    return bool(memory["survived"]) and memory["held_bytes"] <= limit_bytes


@dataclass(frozen=True, slots=True)
class Match:
    """Two models to be measured. The outputs of `reference` are those that `optimized` must
    compute; if its file of outputs is there already, `reference` is not run again.
    `enforce_bytes`, where not 0, is a real limit that both are run under as well."""

    original: Trial
    optimized: Trial
    reference: Trial
    tolerance: Tolerance = EXACT
    promise: Promise = NO_PROMISE
    enforce_bytes: int = 0


def decide(match: Match, progress: Callable[[str, int, int], None]) -> Verdict:
    """Measure both models, compare outputs and judge; see `judge`."""
    steps = 4 if match.enforce_bytes else 3
    progress("verify", 0, steps)
    original = run_trial(match.original)
    progress("verify", 1, steps)
    optimized = run_trial(match.optimized)
    progress("verify", 2, steps)
    models = [onnx_io.read(trial.model) for trial in (match.reference, match.optimized)]
    seeded_ops, racing_ops = len(unseeded(models[0])), max(map(racing, models))
    outputs = _compared(match, models)
    progress("verify", 3, steps)
    enforcement = _enforced(match) if match.enforce_bytes else None
    progress("verify", steps, steps)
    verdict = judge(original, optimized, outputs, match.promise, enforcement)
    return replace(verdict, seeded_ops=seeded_ops, racing_ops=racing_ops)


def _enforced(match: Match) -> Enforcement:
    limit = match.enforce_bytes
    return Enforcement(limit, survives(match.original, limit), survives(match.optimized, limit))


def _compared(match: Match, models: Sequence[ModelProto]) -> tuple[Comparison, ...]:
    """The comparisons, of runs that differ in nothing but the schedule: with seeds for random ops,
    and on one thread where ops race."""
    pair = (match.reference, match.optimized)
    if unseeded(models[0]):
        pair = _seeded(match, models)
    if any(map(racing, models)):
        pair = (_on_one_thread(pair[0]), _on_one_thread(pair[1]))
    wanted, got = (_outputs(trial) for trial in pair)
    outputs = compare(wanted, got, match.tolerance, frozenset())
    doubtful = unrepeatable(models[0]) & {one.output for one in outputs if not one.equal}
    if doubtful:
        # Seeds are no help where the reference does not even repeat itself.
        again = _outputs(replace(pair[0], outputs=wanted.with_name("again.npz")))
        wavering = {
            one.output for one in compare(wanted, again, EXACT, frozenset()) if not one.equal
        }
        outputs = compare(wanted, got, match.tolerance, doubtful & wavering)
    return outputs


def _outputs(trial: Trial) -> Path:
    """Where the trial's outputs are; it is run if they are not there yet."""
    path = trial.outputs or trial.model.with_suffix(".npz")
    if not path.exists():
        run_trial(replace(trial, outputs=path, repeats=0))
    return path


def _on_one_thread(trial: Trial) -> Trial:
    folder = Path(tempfile.mkdtemp(prefix="alone-", dir=trial.feeds.parent))
    return replace(trial, threads=1, outputs=folder / "outputs.npz")


def _seeded(match: Match, models: Sequence[ModelProto]) -> tuple[Trial, Trial]:
    """Runs of copies whose random ops have seeds, in folders of their own beside the outputs."""
    seeds = seeds_for(models)
    trials = []
    for trial, model in zip((match.reference, match.optimized), models, strict=True):
        folder = Path(tempfile.mkdtemp(prefix="seeded-", dir=trial.feeds.parent))
        onnx_io.link_external_files(model, trial.model.parent, folder)
        give_seeds(model, seeds)
        copy = folder / "seeded.onnx"
        onnx_io.write(model, copy)
        trials.append(replace(trial, model=copy, outputs=None))
    return trials[0], trials[1]


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


def judge(
    original: Measurement,
    optimized: Measurement,
    outputs: tuple[Comparison, ...],
    promise: Promise,
    enforcement: Enforcement | None,
) -> Verdict:
    """The verdict. Nothing is demanded of the original: it may break any limit."""
    failures = [_difference(one) for one in outputs if not one.equal]
    budget = promise.budget_bytes
    if budget and optimized.peak_bytes > budget:
        failures.append(
            f"the measured peak of {format_bytes(optimized.peak_bytes)} "
            f"breaks the budget of {format_bytes(budget)} "
            f"by {optimized.peak_bytes - budget} bytes"
        )
    if enforcement and not enforcement.optimized_survived:
        limit = format_bytes(enforcement.limit_bytes)
        failures.append(f"the run died under a real limit of {limit}")
    return Verdict(
        original=original,
        optimized=optimized,
        outputs=outputs,
        budget_bytes=budget,
        predicted_bytes=promise.predicted_bytes,
        predicted_ns=promise.predicted_ns,
        failures=tuple(failures),
        enforcement=enforcement,
    )


def _difference(one: Comparison) -> str:
    if one.note:
        return f"output {one.output} differs: {one.note}"
    return (
        f"output {one.output} differs by {one.worst_absolute:.3g} at most "
        f"(relative {one.worst_relative:.3g})"
    )

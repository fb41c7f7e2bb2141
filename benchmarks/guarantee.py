"""The promise, measured: every model of a folder at falling budgets.

    python -m benchmarks.guarantee FOLDER [-o guarantee.json] [--budgets 90%,...,50%,least]

Prints one row per model and budget: the exit code, predicted and measured peak, their
difference, time overhead predicted, bounded and measured, seconds. Writes the same as JSON.
The measured overhead is the median ratio to the model at 100%, and `to_default` that to a
default session of the original, each run in turn with it in one process.
"""

import dataclasses
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import click

from benchmarks.paired import paired, ratio
from remat import feeds
from remat.errors import RematError
from remat.onnx_io import bind, dynamic_dims, read
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import inspect, optimize
from remat.profiles.session import Mode
from remat.results import Optimization

# Dynamic dimensions of models we know; everything else dynamic gets 1.
KNOWN_SIZES = {
    "p2o.DynamicDimension.1": 320,
    "p2o.DynamicDimension.2": 320,
    "input.1": 512,
}
COLUMNS = (
    ("model", 28),
    ("budget", 7),
    ("exit", 4),
    ("budget_mib", 10),
    ("measured_mib", 12),
    ("kept", 5),
    ("error_pct", 9),
    ("equal", 5),
    ("status", 9),
    ("overhead_pct", 12),
    ("bound_pct", 9),
    ("measured_pct", 12),
    ("to_default", 10),
    ("seconds", 7),
)
MIB = 1 << 20
# Slow models are run three times each, however long that takes.
PAIRED_SECONDS = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Setting:
    """How every row is made; `base` is where the model at 100% is, or is to be put."""

    options: ModelOptions
    base: Path
    limit_s: float
    pairs: int


def row(model: Path, budget: str, setting: Setting) -> dict[str, Any]:
    """One model at one budget ("90%" or "least")."""
    begin = time.monotonic()
    found: dict[str, Any] = {"model": model.stem, "budget": budget, "exit": 0}
    options = setting.options
    try:
        mem = budget
        if budget == "least":
            mem = str(inspect(model, options).least_found_bytes)
        target = setting.base if budget == "100%" else setting.base.with_name("out.onnx")
        wanted = OptimizeOptions(
            mem=mem, model=options, output=target, force=True, time_limit_s=setting.limit_s
        )
        found |= facts(optimize(model, wanted))
        found["seconds"] = round(time.monotonic() - begin, 1)
        found |= timed(model, target, setting)
    except RematError as error:
        found |= {"exit": int(error.exit_code), "code": error.code, "fact": error.fact}
        found["seconds"] = round(time.monotonic() - begin, 1)
    return found


def timed(model: Path, target: Path, setting: Setting) -> dict[str, Any]:
    """The paired times of the original, the model at 100% and the one at this budget."""
    inputs = target.with_name("feeds.npz")
    # The original, since the optimizer may have folded away what its inputs are compared with.
    original = read(model)
    bind(original, setting.options.dims, str(model))
    feeds.save(feeds.make(original, setting.options.seed), inputs)
    models = [(model, Mode.DEFAULT), (setting.base, Mode.STRICT), (target, Mode.STRICT)]
    kept = [one for one in models if one[0].exists()]
    times = paired(kept, inputs, setting.options.threads, setting.pairs, PAIRED_SECONDS)
    found = {"to_default": round(ratio(times[-1], times[0]), 3)}
    if setting.base.exists():
        found["measured_pct"] = round(100 * (ratio(times[-1], times[1]) - 1), 2)
    return found


def facts(result: Optimization) -> dict[str, Any]:
    """What the table shows of a result."""
    verdict = result.verdict
    if verdict is None:
        raise ValueError("the benchmark needs the measurement")
    measured, predicted = verdict.optimized.peak_bytes, result.predicted.total_bytes
    return {
        "budget_mib": round(result.budget_bytes / MIB, 2),
        "as_is_mib": round(result.as_is_bytes / MIB, 2),
        "predicted_mib": round(predicted / MIB, 2),
        "measured_mib": round(measured / MIB, 2),
        "default_mib": round(verdict.original.peak_bytes / MIB, 2),
        "kept": measured <= result.budget_bytes,
        "error_pct": round(100 * (predicted - measured) / max(1, measured), 2),
        "equal": all(one.equal for one in verdict.outputs),
        "status": str(result.status),
        "overhead_pct": round(100 * (result.predicted_ns / max(1, result.base_ns) - 1), 3),
        "bound_pct": round(100 * (result.lower_bound_ns / max(1, result.base_ns) - 1), 3),
        "recomputed": result.recomputed_ops,
        "default_ms": round(verdict.original.median_ns / 1e6, 2),
        "measured_ms": round(verdict.optimized.median_ns / 1e6, 2),
    }


def line(found: dict[str, Any]) -> str:
    """A row of the table."""
    cells = (
        str(found.get(name, found.get("code", "") if name == "kept" else "")) for name, _ in COLUMNS
    )
    return " ".join(
        cell[:width].ljust(width) for cell, (_, width) in zip(cells, COLUMNS, strict=True)
    )


@click.command()
@click.argument("folder", type=click.Path(path_type=Path, exists=True))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("guarantee.json"))
@click.option("--budgets", default="100%,90%,80%,70%,60%,50%,least")
@click.option("--models", default="", help="Comma-separated names; all if empty.")
@click.option("--time-limit", default=45.0, help="Seconds of search per budget.")
@click.option("--threads", default=2)
@click.option("--pairs", default=7, type=click.IntRange(min=1), help="Runs of each model in turn.")
def main(
    folder: Path,
    output: Path,
    budgets: str,
    models: str,
    time_limit: float,
    threads: int,
    pairs: int,
) -> None:
    """Run every model of FOLDER at every budget."""
    wanted = set(filter(None, models.split(",")))
    click.echo(" ".join(name[:width].ljust(width) for name, width in COLUMNS))
    rows = []
    for model in sorted(folder.glob("*.onnx")):
        if wanted and model.stem not in wanted:
            continue
        names = {name for _, name in dynamic_dims(read(model))}
        dims = {name: KNOWN_SIZES.get(name, 1) for name in sorted(names)}
        options = dataclasses.replace(ModelOptions(), dims=dims, threads=threads, repeats=3)
        with tempfile.TemporaryDirectory() as work:
            setting = Setting(options, Path(work, "base.onnx"), time_limit, pairs)
            for budget in budgets.split(","):
                rows.append(row(model, budget, setting))
                click.echo(line(rows[-1]))
                output.write_text(json.dumps(rows, indent=1) + "\n")
    broken = [one for one in rows if one["exit"] not in (0, 3, 4)]
    sys.exit(1 if broken else 0)


if __name__ == "__main__":
    main()

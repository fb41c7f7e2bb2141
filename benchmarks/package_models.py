"""Graphs nobody here made: the models that come with the onnx package, at 100% and at the least.

    python -m benchmarks.package_models [-o package_models.json] [--nodes 300] [--least]

Takes every `light_*` model and a seeded sample of the backend's node models (all with --nodes -1).
A model is done where `optimize` keeps the budget with equal outputs, and refused where it raises
BadModel; an exception of any other kind than RematError, or exit code 1, is a bug of ours. Prints
one row per model that is not done and the counts; writes all rows as JSON.
"""

import collections
import importlib
import json
import os
import random
import sys
import tempfile
import time
import traceback
import warnings
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click
import numpy as np
import onnx

from remat import feeds
from remat.errors import ExitCode, RematError
from remat.onnx_io import caller_inputs, dynamic_dims, read
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import inspect, optimize

WORKERS = 2
# Small models: a schedule is found at once.
SEARCH_SECONDS = 5.0
BUG_CODES = (ExitCode.CHECK_FAILED, ExitCode.INTERNAL)


@dataclass(frozen=True, slots=True)
class Job:
    """A model file, and an .npz of its inputs or None where they are to be made up."""

    model: Path
    inputs: Path | None


@dataclass(frozen=True, slots=True)
class Outcome:
    """`result` is "ok", the code of a RematError, or the name of another exception; `exit_code`
    that of the command line; `fact` says why it is not "ok"."""

    model: str
    budget: str
    result: str
    exit_code: int
    fact: str
    ops: int
    seconds: float

    @property
    def is_bug(self) -> bool:
        """Whether it is neither done nor refused as documented."""
        return self.exit_code in BUG_CODES


def light_models() -> list[Path]:
    """Whole networks whose weights are made by the file itself."""
    folder = Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"
    return sorted(folder.glob("light_*.onnx"))


def node_cases() -> list[Any]:
    """The backend's test cases of single operators, sorted by name; the package makes them."""
    from onnx.backend.test.case.node import collect_testcases

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cases = collect_testcases(None)
    return sorted((case for case in cases if case.model is not None), key=lambda case: case.name)


def node_cases_of(modules: Sequence[str]) -> dict[str, Any]:
    """The cases of some of the package's modules, by name: all of them take many seconds to make.

    Importing such a module makes its cases and puts them in the list that is collected.
    """
    node = importlib.import_module("onnx.backend.test.case.node")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for module in modules:
            importlib.import_module(f"{node.__name__}.{module}")
    return {case.name: case for case in node._NodeTestCases}


def write_case(case: Any, folder: Path) -> Job:
    """Write the model of a test case and, where all are plain tensors, its inputs."""
    path = folder / f"{case.name}.onnx"
    path.write_bytes(case.model.SerializeToString())
    names = [info.name for info in caller_inputs(case.model)]
    given = case.data_sets[0][0] if case.data_sets else ()
    arrays = dict(zip(names, (_plain(one) for one in given), strict=False))
    kept = {key: array for key, array in arrays.items() if array is not None}
    if len(kept) < len(names) or not names:
        return Job(path, None)
    inputs = path.with_suffix(".npz")
    feeds.publish(kept, inputs)
    return Job(path, inputs)


def _plain(value: Any) -> feeds.Array | None:
    if not isinstance(value, np.ndarray | np.generic):
        return None
    array = np.asarray(value)
    array = array.astype(str) if array.dtype == object else array
    return array if array.dtype.kind == "U" or array.dtype.isbuiltin == 1 else None


def attempt(job: Job, mem: str) -> Outcome:
    """Optimize one model at a budget as typed, or "least", without writing anything.

    Any exception but a RematError gets out: it is a bug.
    """
    begin = time.monotonic()
    ops, result, code, fact = 0, "ok", int(ExitCode.DONE), ""
    try:
        options = _options(job)
        size = str(inspect(job.model, options).least_found_bytes) if mem == "least" else mem
        wanted = OptimizeOptions(mem=size, model=options, time_limit_s=SEARCH_SECONDS, check=True)
        ops = optimize(job.model, wanted).ops
    except RematError as error:
        result, code, fact = error.code, int(error.exit_code), error.fact
    seconds = round(time.monotonic() - begin, 1)
    return Outcome(job.model.stem, mem, result, code, fact, ops, seconds)


def _options(job: Job) -> ModelOptions:
    dims = {} if job.inputs else {name: 1 for _, name in dynamic_dims(read(job.model))}
    return ModelOptions(dims=dims, inputs=job.inputs, threads=1, repeats=2)


def attempts(
    todo: Iterable[Job], mem: str, pool: ProcessPoolExecutor
) -> Iterator[tuple[Job, Outcome]]:
    """What became of each job at one budget, as they finish."""
    futures = {pool.submit(attempt, job, mem): job for job in todo}
    for future in as_completed(futures):
        job, error = futures[future], future.exception()
        yield job, future.result() if error is None else _unexpected(job, mem, error)


def _unexpected(job: Job, mem: str, error: BaseException) -> Outcome:
    fact = " ".join("".join(traceback.format_exception(error)).split())[-300:]
    return Outcome(job.model.stem, mem, type(error).__name__, int(ExitCode.INTERNAL), fact, 0, 0.0)


def node_jobs(nodes: int, seed: int, folder: Path) -> list[Job]:
    """A sample of `nodes` node models (all where negative), written out."""
    if not nodes:
        return []
    cases = node_cases()
    if 0 <= nodes < len(cases):
        cases = random.Random(seed).sample(cases, nodes)
    return [write_case(case, folder) for case in cases]


def summary(outcomes: Iterable[Outcome]) -> list[str]:
    """How often each result came, by budget."""
    counts = collections.Counter((one.budget, one.exit_code, one.result) for one in outcomes)
    return [
        f"{budget:>6}  exit {code:<2}  {result:24} {count}"
        for (budget, code, result), count in sorted(counts.items())
    ]


def line(one: Outcome) -> str:
    """A row of the table."""
    return f"{one.model[:44]:44} {one.budget:>6} {one.result:16} {one.seconds:6} {one.fact[:160]}"


@click.command()
@click.option(
    "-o", "--output", type=click.Path(path_type=Path), default=Path("package_models.json")
)
@click.option("--nodes", default=300, help="Node models in the sample; -1 for all.")
@click.option("--light/--no-light", default=True, help="The whole networks.")
@click.option("--seed", default=0, help="Of the sample.")
@click.option("--least", is_flag=True, help="The least feasible budget as well.")
def main(output: Path, nodes: int, light: bool, seed: int, least: bool) -> None:
    """Optimize the models of the onnx package."""
    budgets = ("100%", "least") if least else ("100%",)
    outcomes: list[Outcome] = []
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        os.environ["REMAT_CACHE_DIR"] = str(Path(folder, "cache"))
        todo = node_jobs(nodes, seed, Path(folder))
        todo += [Job(path, None) for path in light_models()] if light else []
        with ProcessPoolExecutor(WORKERS) as pool:
            for mem in budgets:
                done: list[Job] = []
                for job, one in attempts(todo, mem, pool):
                    outcomes.append(one)
                    if one.result == "ok":
                        done.append(job)
                    else:
                        click.echo(line(one))
                    _write(outcomes, output)
                todo = done
    click.echo("\n".join(summary(outcomes)))
    sys.exit(1 if any(one.is_bug for one in outcomes) else 0)


def _write(outcomes: Sequence[Outcome], output: Path) -> None:
    rows = [
        {name: getattr(one, name) for name in Outcome.__slots__}
        for one in sorted(outcomes, key=lambda one: (one.model, one.budget))
    ]
    output.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()

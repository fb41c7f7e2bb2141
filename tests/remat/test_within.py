"""What happens when a lowered model is measured over its budget, or the search finds nothing."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remat.errors import NoAnswer
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import inspect, optimize
from remat.problem import Problem
from remat.results import Verdict
from remat.schedule import Solution, Status
from remat.scheduler.auto import solve
from remat.verify import Match, decide

OVER_BYTES = 1000


@pytest.mark.parametrize("pin", [False, True])
def test_a_schedule_that_broke_the_budget_does_not_come_back(
    pin: bool, models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    solved: list[tuple[int, Solution]] = []
    broken: list[int] = []

    def recorded(problem: Problem, **options: Any) -> Solution:
        solution = solve(problem, **options)
        solved.append((problem.limit_bytes, solution))
        return solution

    def over_at_first(match: Match, progress: Any) -> Verdict:
        verdict = decide(match, progress)
        if broken:
            return verdict
        broken.append(len(solved))
        run_bytes = match.promise.budget_bytes + OVER_BYTES - verdict.optimized.held_bytes
        optimized = replace(verdict.optimized, run_bytes=run_bytes)
        return replace(verdict, optimized=optimized, failures=("as if it took more",))

    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr("remat.within.solve", recorded)
    monkeypatch.setattr("remat.within.decide", over_at_first)
    model = ModelOptions(threads=1, repeats=1)
    options = OptimizeOptions("70%", model, time_limit_s=3.0, pin=pin)
    result = optimize(models / "cnn_train.onnx", options)
    assert result.verdict is not None
    assert not result.verdict.failures
    _, first = solved[broken[0] - 1]
    limit_bytes, second = solved[broken[0]]
    assert limit_bytes <= first.peak_bytes - OVER_BYTES
    assert second.peak_bytes < first.peak_bytes
    assert second.steps != first.steps


def test_the_least_budget_that_inspect_names_needs_no_search(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    model = ModelOptions(threads=1, repeats=1)
    source = models / "unet_train.onnx"
    found = inspect(source, model)
    assert found.least_found_bytes < found.as_is.total_bytes

    def nothing(problem: Problem, **options: Any) -> Solution:
        solution = solve(problem.with_limit(0), **options)
        return replace(solution, status=Status.UNKNOWN, steps=())

    monkeypatch.setattr("remat.within.solve", nothing)
    result = optimize(source, OptimizeOptions(str(found.least_found_bytes), model))
    assert result.verdict is not None
    assert not result.verdict.failures
    assert result.recomputed_ops > 0
    tight = OptimizeOptions(str(found.least_proven_bytes), model, output=tmp_path / "o.onnx")
    with pytest.raises(NoAnswer, match="R401"):
        optimize(source, tight)
    assert not (tmp_path / "o.onnx").exists()

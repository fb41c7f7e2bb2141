"""Imports follow the data flow, one way, and heavy packages stay where they belong.

nouns <- judges <- scheduler <- remat.pipeline <- cli
nouns <- the rest of remat, passes, profiles <- remat.pipeline
"""

from pathlib import Path

import networkx
import pytest

from tests.source_files import imports_of, module_name, product_files

FILES = product_files()
NOUNS = {
    f"remat.{name}"
    for name in (
        "errors",
        "units",
        "problem",
        "problem_fields",
        "problem_file",
        "node_link",
        "schedule",
        "schedule_file",
        "results",
        "options",
        "graph",
        "costs",
    )
}
JUDGES = {"remat.simulate", "remat.check"}
PIPE = {"remat.pipeline", "remat.solving"}
REPORTS = {
    "remat.report",
    "remat.report_data",
    "remat.report_optimize",
    "remat.report_solve",
    "remat.text_table",
}

# What a file of the first name may import of remat; the first prefix that fits counts.
MAY_IMPORT = (
    *((noun, NOUNS) for noun in sorted(NOUNS)),
    *((judge, NOUNS | JUDGES) for judge in sorted(JUDGES)),
    *((report, NOUNS | REPORTS) for report in sorted(REPORTS)),
    ("remat.scheduler", NOUNS | JUDGES | {"remat.scheduler"}),
    ("remat.cli", NOUNS | PIPE | REPORTS | {"remat", "remat.cli"}),
)
# Everything else, passes and profiles included, is below the pipe.
ABOVE = ("remat.pipeline", "remat.solving", "remat.cli")
MAY_KNOW_THE_PIPE = {"remat.pipeline", "remat.solving"}

# Which files may import a heavy package; a prefix ends in a dot.
HOMES = {
    "onnxruntime": (
        "remat.profiles.",
        "remat.passes.",
        "remat.worker",
        "remat.verify",
        "remat.runtime",
        "remat.feeds",
    ),
    "numba": ("remat.scheduler.",),
    "highspy": ("remat.scheduler.",),
    "ortools": ("remat.scheduler.",),
    "click": ("remat.cli.",),
}
NEVER = {
    "onnx": ("remat.scheduler.", "remat.cli."),
    "onnx_ir": ("remat.scheduler.", "remat.cli."),
}


def _within(module: str, places: tuple[str, ...]) -> bool:
    return any(
        module.startswith(place) if place[-1] == "." else module == place for place in places
    )


def _is_or_lies_in(module: str, name: str) -> bool:
    return module == name or module.startswith(name + ".")


def _own_imports(path: Path) -> list[tuple[str, int]]:
    return [(name, line) for name, line in imports_of(path) if _is_or_lies_in(name, "remat")]


def _allowed(module: str) -> set[str] | None:
    return next((names for prefix, names in MAY_IMPORT if _is_or_lies_in(module, prefix)), None)


def _fits(module: str, name: str) -> bool:
    allowed = _allowed(module)
    if allowed is None:
        return module in MAY_KNOW_THE_PIPE or not any(_is_or_lies_in(name, one) for one in ABOVE)
    # The bare package is no leave to import all that lies in it.
    return name in allowed or any(
        _is_or_lies_in(name, one) for one in sorted(allowed) if one != "remat"
    )


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_follow_the_layers(path: Path) -> None:
    wrong = [
        f"{path}:{line} imports {name}"
        for name, line in _own_imports(path)
        if not _fits(module_name(path), name)
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_heavy_packages_stay_at_home(path: Path) -> None:
    module = module_name(path)
    wrong = [
        f"{path}:{line} imports {name}"
        for name, line in imports_of(path)
        if not _within(module, HOMES.get(name.split(".")[0], (module,)))
        or _within(module, NEVER.get(name.split(".")[0], ()))
    ]
    assert wrong == []


@pytest.mark.parametrize("path", FILES, ids=module_name)
def test_imports_are_absolute_and_by_the_name_at_run_time(path: Path) -> None:
    folders = {"cli", "passes", "profiles", "scheduler"}
    wrong = [
        f"{path}:{line} imports {name}"
        for name, line in imports_of(path)
        if name.startswith(".") or name.split(".")[0] in folders
    ]
    assert wrong == []


def test_there_are_no_cycles() -> None:
    # The package itself is left out: its only import is the lazy `remat.load`.
    edges = [
        (module_name(path), name)
        for path in FILES
        if module_name(path) != "remat"
        for name, _ in _own_imports(path)
        if name not in ("remat", module_name(path))
    ]
    assert list(networkx.simple_cycles(networkx.DiGraph(edges), length_bound=6)) == []
    assert networkx.is_directed_acyclic_graph(networkx.DiGraph(edges))


def test_passes_profiles_and_scheduler_do_not_know_each_other() -> None:
    wrong = [
        f"{path}:{line} imports {name}"
        for path in FILES
        for name, line in _own_imports(path)
        for one, other in (
            ("scheduler", "passes"),
            ("scheduler", "profiles"),
            ("passes", "scheduler"),
        )
        if _is_or_lies_in(module_name(path), f"remat.{one}")
        and _is_or_lies_in(name, f"remat.{other}")
    ]
    assert wrong == []

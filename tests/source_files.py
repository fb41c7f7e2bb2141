"""The project's Python files and what they import, for tests of the architecture."""

import ast
import functools
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
PACKAGES = ("cli", "passes", "profiles", "scheduler")
OTHERS = ("tests", "sample_models", "benchmarks")


def product_files() -> list[Path]:
    """The files of the import package, by their real place: each is listed once."""
    return [path for folder in ("remat", *PACKAGES) for path in _python_files(ROOT / folder)]


def all_files() -> list[Path]:
    """All of them, tests and generators included."""
    return product_files() + [path for folder in OTHERS for path in _python_files(ROOT / folder)]


def module_name(path: Path) -> str:
    """The name a file of the import package is imported by: "remat.cli.main"."""
    parts = path.relative_to(ROOT).with_suffix("").parts
    parts = parts if parts[0] == "remat" else ("remat", *parts)
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@functools.cache
def tree_of(path: Path) -> ast.Module:
    """The file, parsed."""
    return ast.parse(path.read_text(encoding="utf-8"), str(path))


def imports_of(path: Path) -> list[tuple[str, int]]:
    """Every module the file imports, wherever in it, with the line.

    `from remat.cli import options` counts as `remat.cli.options`. A relative import starts
    with a dot.
    """
    modules = {module_name(file) for file in product_files()}
    found = []
    for node in ast.walk(tree_of(path)):
        if isinstance(node, ast.Import):
            found += [(alias.name, node.lineno) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = "." * node.level + (node.module or "")
            names = {f"{base}.{alias.name}" for alias in node.names}
            found += [(name if name in modules else base, node.lineno) for name in sorted(names)]
    return found


def _python_files(folder: Path) -> Iterator[Path]:
    # remat/cli and its like are links to the folders that are listed by themselves.
    for path in sorted(folder.glob("**/*.py")):
        inside = [folder / part for part in path.relative_to(folder).parents]
        if not any(parent.is_symlink() for parent in inside if parent != folder):
            yield path

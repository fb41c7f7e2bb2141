"""Files and functions stay small, and public names say what they are."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.source_files import ROOT, all_files, product_files, tree_of

MOST_LINES_OF_A_FILE = 400
MOST_LINES_OF_A_FUNCTION = 60
Definition = ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef


def _place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def _public(parent: ast.Module | ast.ClassDef) -> Iterator[Definition]:
    for node in parent.body:
        if isinstance(node, Definition) and not node.name.startswith("_"):
            yield node
            if isinstance(node, ast.ClassDef):
                yield from _public(node)


@pytest.mark.parametrize("path", all_files(), ids=_place)
def test_files_are_small(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= MOST_LINES_OF_A_FILE


@pytest.mark.parametrize("path", all_files(), ids=_place)
def test_functions_are_small(path: Path) -> None:
    long = [
        f"{node.name}: {node.end_lineno - node.lineno + 1} lines"
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and node.end_lineno is not None
        and node.end_lineno - node.lineno >= MOST_LINES_OF_A_FUNCTION
    ]
    assert long == []


@pytest.mark.parametrize("path", product_files(), ids=_place)
def test_public_names_have_docstrings(path: Path) -> None:
    tree = tree_of(path)
    assert ast.get_docstring(tree)
    bare = [node.name for node in _public(tree) if not ast.get_docstring(node)]
    assert bare == []

"""Error codes: the hundreds name the class, and no two modules use one code for two things."""

import ast
import collections

import pytest

from remat.errors import RematError
from tests.source_files import module_name, product_files, tree_of

HUNDREDS = {
    "CheckFailed": "R1",
    "UsageError": "R2",
    "Infeasible": "R3",
    "NoAnswer": "R4",
    "BadModel": "R5",
    "InternalError": "R9",
}


def _raised() -> list[tuple[str, str, str]]:
    """(module, class, code) of every error that is built with a literal code."""
    return [
        (module_name(path), node.func.id, str(node.args[0].value))
        for path in product_files()
        for node in ast.walk(tree_of(path))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in HUNDREDS
        and node.args
        and isinstance(node.args[0], ast.Constant)
    ]


def test_every_class_of_error_is_known_here() -> None:
    assert {child.__name__ for child in RematError.__subclasses__()} == set(HUNDREDS)


@pytest.mark.parametrize(("module", "kind", "code"), _raised())
def test_the_hundreds_name_the_class(module: str, kind: str, code: str) -> None:
    assert code.startswith(HUNDREDS[kind])
    assert len(code) == 4
    assert code[1:].isdecimal()


def test_a_code_belongs_to_one_module() -> None:
    homes = collections.defaultdict(set)
    for module, _, code in _raised():
        homes[code].add(module)
    assert {code: sorted(names) for code, names in homes.items() if len(names) > 1} == {}

"""The fields of a scheduling problem's JSON, each of the kind that it must be.

`where` names the object that a field belongs to. All raise UsageError R260.
"""

from collections.abc import Mapping
from typing import Any

from remat.errors import UsageError

# So that a sum of many still fits into 64 bits with a sign.
MOST = 2**48


def malformed(fact: str) -> UsageError:
    """The error for a file that is no problem."""
    return UsageError("R260", f"not a scheduling problem: {fact}")


def text_of(row: Mapping[str, Any], key: str, where: str, default: str | None) -> str:
    """A text that is not empty."""
    value = row.get(key, default)
    if not isinstance(value, str) or not value:
        raise malformed(f"{where}: {key} is not a text")
    return value


def count_of(row: Mapping[str, Any], key: str, where: str, default: int | None) -> int:
    """An integer from 0 up."""
    value = row.get(key, default)
    # Not isinstance: true is no integer here.
    if type(value) is not int or not 0 <= value <= MOST:
        raise malformed(f"{where}: {key} is not an integer from 0 up")
    return value


def flag_of(row: Mapping[str, Any], key: str, where: str, *, default: bool) -> bool:
    """True or false."""
    value = row.get(key, default)
    if not isinstance(value, bool):
        raise malformed(f"{where}: {key} is neither true nor false")
    return value


def list_of(row: Mapping[str, Any], key: str, where: str) -> list[Any]:
    """A list, empty where there is none."""
    value = row.get(key, [])
    if not isinstance(value, list):
        raise malformed(f"{where}: {key} is not a list")
    return value

"""Results for programs: one JSON document or one CSV table each.

The keys are the fields and properties of `remat.results`, so the units stand in their names.
"""

import csv
import io
import json
import math
from dataclasses import fields, is_dataclass
from enum import StrEnum
from typing import Any

from remat.results import Inspection, Measurement, Optimization, Profile, Solved, Verdict

VERSION = 1
Result = Inspection | Profile | Measurement | Verdict | Optimization | Solved

# Fields that hold (key, value) pairs with unique keys.
_MAPPINGS = frozenset({"kinds", "bound_dims", "session_options"})
_PROFILE_COLUMNS = (
    "name",
    "kind",
    "time_ns",
    "spread_ns",
    "output_bytes",
    "workspace_bytes",
    "alias",
    "in_place",
)


def as_json(verb: str, result: Result) -> str:
    """One JSON document without a line end: format "remat.report.VERB", version 1, the result.

    JSON has no infinities: they are the texts "inf", "-inf" and "nan".
    """
    head = {"format": f"remat.report.{verb}", "version": VERSION}
    body: dict[str, Any] = _plain(result)
    return json.dumps(head | body, ensure_ascii=False, indent=2, allow_nan=False)


def profile_csv(profile: Profile) -> str:
    """A line for each op in execution order; input positions are separated by spaces."""
    stream = io.StringIO()
    writer = csv.writer(stream, lineterminator="\n")
    writer.writerow(_PROFILE_COLUMNS)
    for op in profile.ops:
        cells = [getattr(op, column) for column in _PROFILE_COLUMNS]
        writer.writerow([" ".join(map(str, c)) if isinstance(c, tuple) else c for c in cells])
    return stream.getvalue()


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {name: _member(name, getattr(value, name)) for name in _names(value)}
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return str(value) if isinstance(value, StrEnum) else value


def _member(name: str, value: Any) -> Any:
    return dict(value) if name in _MAPPINGS else _plain(value)


def _names(noun: Any) -> list[str]:
    derived = [name for name, item in vars(type(noun)).items() if isinstance(item, property)]
    return [item.name for item in fields(noun)] + derived

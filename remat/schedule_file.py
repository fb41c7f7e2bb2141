"""The schedule file: what was decided for a model, on what grounds, and how to run it.

JSON, versioned, made to be compared line by line: keys in a fixed order, one step per line,
LF, integers only, units in the key names, no wall-clock time. The published format is
`schedule.schema.json` beside this module. A reader of version n reads every file of version n,
whatever keys were added since, and refuses later versions by name.
"""

import functools
import json
from collections.abc import Mapping
from dataclasses import dataclass, fields, is_dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, get_type_hints

from remat.errors import UsageError
from remat.schedule import BoundKind, Status

FORMAT = "remat.schedule"
VERSION = 1

Json = Mapping[str, Any]
_SHA256_DIGITS = frozenset("0123456789abcdef")
_KIND_NAMES = {int: "an integer", str: "a text", bool: "true or false", list: "a list"}


class Mode(StrEnum):
    """STRICT needs the session options named in the file; PINNED holds in any plain session."""

    STRICT = "strict"
    PINNED = "pinned"


@dataclass(frozen=True, slots=True)
class ModelRecord:
    """The model that was optimized: its file name and the SHA-256 of its bytes."""

    name: str
    sha256: str

    def __post_init__(self) -> None:
        _is_sha256("model.sha256", self.sha256)


@dataclass(frozen=True, slots=True)
class CostsRecord:
    """The cost table the decision rests on: its SHA-256, and where it was measured."""

    sha256: str
    provider: str
    threads: int
    cpu: str
    ort_version: str

    def __post_init__(self) -> None:
        _is_sha256("costs.sha256", self.sha256)
        _is_count("costs.threads", self.threads)


@dataclass(frozen=True, slots=True)
class SessionRecord:
    """The session options under which the prediction holds, by their names in Python.

    `graph_optimization_level` and `execution_order` name the members of ONNX Runtime's
    enumerations; `intra_op_threads` is 0 for one per core.
    """

    graph_optimization_level: str
    execution_order: str
    enable_cpu_mem_arena: bool
    enable_mem_pattern: bool
    enable_mem_reuse: bool
    intra_op_threads: int

    def __post_init__(self) -> None:
        _is_count("session_options.intra_op_threads", self.intra_op_threads)


@dataclass(frozen=True, slots=True)
class SolverRecord:
    """Who found the schedule, and what is proven about it (see `remat.schedule.Solution`)."""

    found_by: str
    status: Status
    seed: int
    lower_bound_ns: int
    bound_kind: BoundKind

    def __post_init__(self) -> None:
        _is_count("solver.seed", self.seed)
        _is_count("solver.lower_bound_ns", self.lower_bound_ns)


@dataclass(frozen=True, slots=True)
class PredictionRecord:
    """What a run is predicted to hold at its peak, and to take.

    `peak_bytes` is the sum of the four parts. `base_time_ns` is the time without any
    recomputation.
    """

    peak_bytes: int
    weights_bytes: int
    tensors_bytes: int
    workspace_bytes: int
    overhead_bytes: int
    time_ns: int
    base_time_ns: int

    def __post_init__(self) -> None:
        parts = (
            self.weights_bytes,
            self.tensors_bytes,
            self.workspace_bytes,
            self.overhead_bytes,
        )
        for count in (*parts, self.time_ns, self.base_time_ns):
            _is_count("predicted", count)
        if self.peak_bytes != sum(parts):
            raise ValueError("predicted.peak_bytes is not the sum of its parts")


@dataclass(frozen=True, slots=True)
class StepRecord:
    """One op of the output model, in the order of execution.

    `recompute_of` names the op whose result it computes again, or is empty. `live_bytes` is
    what tensors and workspace hold while it runs.
    """

    op: str
    device: str
    recompute_of: str
    live_bytes: int

    def __post_init__(self) -> None:
        _is_count("live_bytes", self.live_bytes)


@dataclass(frozen=True, slots=True)
class ScheduleFile:
    """The whole file; one that exists is valid (ValueError otherwise).

    `optimized_graph_sha256` is that of the output model's bytes: a schedule is refused for any
    other. `budget_text` is what was typed, `budget_bytes` what it came to, `as_is_bytes` the
    peak a share refers to. `cpu_family` is empty for a portable model.
    """

    remat_version: str
    model: ModelRecord
    optimized_graph_sha256: str
    costs: CostsRecord
    cpu_family: str
    budget_bytes: int
    budget_text: str
    as_is_bytes: int
    mode: Mode
    session_options: SessionRecord
    solver: SolverRecord
    predicted: PredictionRecord
    steps: tuple[StepRecord, ...]

    def __post_init__(self) -> None:
        _is_sha256("optimized_graph_sha256", self.optimized_graph_sha256)
        _is_count("budget_bytes", self.budget_bytes)
        _is_count("as_is_bytes", self.as_is_bytes)

    @property
    def recomputed_ops(self) -> int:
        """How many steps compute something again."""
        return sum(1 for step in self.steps if step.recompute_of)


def to_text(schedule: ScheduleFile) -> str:
    """The file's text; equal schedules give equal bytes."""
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION}
    head |= {
        item.name: _plain(getattr(schedule, item.name))
        for item in fields(schedule)
        if item.name != "steps"
    }
    lines = [f"  {_compact(key)}: {_compact(value)},\n" for key, value in head.items()]
    rows = [f"\n    {_compact(list(_plain(step).values()))}" for step in schedule.steps]
    end = "\n  ]\n}\n" if rows else "]\n}\n"
    return "{\n" + "".join(lines) + '  "steps": [' + ",".join(rows) + end


def from_text(text: str, place: str = "") -> ScheduleFile:
    """The schedule that `text` holds; `place` (the file's name) is for messages.

    Raises UsageError R250 for text that is no schedule file, R251 for one of a later version.
    """
    data = _parsed(text, place)
    if not isinstance(data, dict) or data.get("format") != FORMAT:
        raise _malformed(place, f'it does not say "format": "{FORMAT}"')
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise _malformed(place, "version is not a positive integer")
    if version > VERSION:
        raise UsageError(
            "R251",
            f"the schedule file is of version {version}, this remat reads up to {VERSION}",
            place=place,
            fix="install a newer remat: pip install --upgrade remat",
        )
    steps = _of_kind(data.get("steps"), list, "steps", place)
    head = {key: value for key, value in data.items() if key != "steps"}
    rows = tuple(_step(row, f"steps[{index}]", place) for index, row in enumerate(steps))
    schedule: ScheduleFile = _record(ScheduleFile, {**head, "steps": rows}, "", place)
    return schedule


def read(path: Path) -> ScheduleFile:
    """The schedule in the file `path`. Raises UsageError R250, R251, or R252 if unreadable."""
    try:
        text = path.read_bytes().decode()
    except OSError as error:
        raise UsageError(
            "R252", f"cannot read the schedule file: {error.strerror}", place=str(path)
        ) from error
    except UnicodeDecodeError as error:
        raise _malformed(str(path), "it is not UTF-8 text") from error
    return from_text(text, str(path))


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False)


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    return str(value) if isinstance(value, StrEnum) else value


def _parsed(text: str, place: str) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        where = f"{place}:{error.lineno}:{error.colno}"
        raise _malformed(where, f"it is not JSON ({error.msg.lower()})") from error
    except (ValueError, RecursionError) as error:
        raise _malformed(place, "it is not JSON of a sane size") from error


def _step(row: Any, name: str, place: str) -> StepRecord:
    cells = _of_kind(row, list, name, place)
    names = [item.name for item in fields(StepRecord)]
    if len(cells) < len(names):
        raise _malformed(place, f"{name} has {len(cells)} entries instead of {len(names)}")
    step: StepRecord = _record(StepRecord, dict(zip(names, cells, strict=False)), name, place)
    return step


def _record(noun: Any, data: Json, name: str, place: str) -> Any:
    """An instance of the dataclass `noun` from the keys of `data` that are its fields."""
    values = {}
    for key, kind in _kinds(noun).items():
        path = f"{name}.{key}" if name else key
        if key not in data:
            raise _malformed(place, f"{path} is missing")
        values[key] = _value(kind, data[key], path, place)
    try:
        return noun(**values)
    except ValueError as error:
        raise _malformed(place, f"{name}: {error}" if name else str(error)) from error


@functools.cache
def _kinds(noun: type) -> dict[str, Any]:
    return get_type_hints(noun)


def _value(kind: Any, value: Any, name: str, place: str) -> Any:
    if is_dataclass(kind):
        if not isinstance(value, dict):
            raise _malformed(place, f"{name} is not an object")
        return _record(kind, value, name, place)
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        if value not in list(kind):
            raise _malformed(place, f"{name} is not one of {', '.join(kind)}")
        return kind(value)
    return _of_kind(value, kind, name, place) if kind in _KIND_NAMES else value


def _of_kind(value: Any, kind: type, name: str, place: str) -> Any:
    # Not isinstance: true is no integer here.
    if type(value) is not kind:
        raise _malformed(place, f"{name} is not {_KIND_NAMES[kind]}")
    return value


def _malformed(place: str, fact: str) -> UsageError:
    return UsageError("R250", f"not a schedule file: {fact}", place=place)


def _is_sha256(name: str, text: str) -> None:
    if len(text) != 64 or not _SHA256_DIGITS.issuperset(text):
        raise ValueError(f"{name} is not the SHA-256 of anything")


def _is_count(name: str, value: int) -> None:
    if value < 0:
        raise ValueError(f"{name} is below 0")

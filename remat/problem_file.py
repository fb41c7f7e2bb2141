"""Scheduling problems as files.

JSON, versioned, one op per line, in an order in which the ops may run:

    {"format": "remat.problem", "version": 1, "name": "...", "budget_bytes": 4096,
     "ops": [{"name": "conv", "time_ns": 265, "workspace_bytes": 0, "reads": ["x"],
              "writes": [{"name": "y", "bytes": 2048, "kept": false, "alias_of": "x",
                          "in_place_of": ["x"]}], "recomputable": true}]}

Values are what ops write (`remat.problem` has the terms); an op without "writes" writes nothing.
`budget_bytes`, `workspace_bytes`, `kept`, `alias_of`, `in_place_of` and `recomputable` may be left
out: no budget, 0, false, nobody, none, true. `alias_of` may be true: a constant's memory.

Other files are read as node-link graphs: `remat.node_link`.
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from remat.errors import UsageError, located
from remat.node_link import read_graph
from remat.problem import CONSTANT, NONE, Problem
from remat.problem_fields import count_of, flag_of, list_of, malformed, text_of

FORMAT = "remat.problem"
VERSION = 1


@dataclass(frozen=True, slots=True)
class ProblemFile:
    """`budget_bytes` is 0 where the file names none; the problem's own limit is the same."""

    name: str
    problem: Problem
    budget_bytes: int


@dataclass(slots=True)
class _Columns:
    """A problem in the making."""

    op_names: list[str] = field(default_factory=list)
    time_ns: list[int] = field(default_factory=list)
    workspace_bytes: list[int] = field(default_factory=list)
    reads: list[tuple[int, ...]] = field(default_factory=list)
    writes: list[tuple[int, ...]] = field(default_factory=list)
    recomputable: list[bool] = field(default_factory=list)
    value_of: dict[str, int] = field(default_factory=dict)
    value_bytes: list[int] = field(default_factory=list)
    alias_of: list[int] = field(default_factory=list)
    inplace_of: list[tuple[int, ...]] = field(default_factory=list)
    kept: set[int] = field(default_factory=set)

    def problem(self, limit_bytes: int) -> Problem:
        """What was read, as a problem."""
        return Problem(
            op_names=tuple(self.op_names),
            time_ns=tuple(self.time_ns),
            workspace_bytes=tuple(self.workspace_bytes),
            reads=tuple(self.reads),
            writes=tuple(self.writes),
            value_names=tuple(self.value_of),
            value_bytes=tuple(self.value_bytes),
            alias_of=tuple(self.alias_of),
            inplace_of=tuple(self.inplace_of),
            reuse_class=(NONE,) * len(self.value_bytes),
            kept=frozenset(self.kept),
            recomputable=tuple(self.recomputable),
            hoisted=(False,) * len(self.op_names),
            limit_bytes=limit_bytes,
        )


def read(path: Path) -> ProblemFile:
    """The problem in the file `path`. Raises UsageError R260, R261, or R262 if unreadable."""
    with located(str(path)):
        try:
            text = path.read_bytes().decode()
        except OSError as error:
            fact = f"cannot read the problem: {error.strerror}"
            raise UsageError("R262", fact) from None
        except UnicodeDecodeError:
            raise malformed("it is not UTF-8 text") from None
        return from_text(text, path.stem)


def from_text(text: str, name: str) -> ProblemFile:
    """The problem that `text` holds, in either format; `name` is for one that has none.

    Raises UsageError R260 for text that is no problem, R261 for one of a later version.
    """
    try:
        data = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise malformed(f"it is not JSON ({error.msg.lower()}; {where})") from None
    except (ValueError, RecursionError):
        raise malformed("it is not JSON of a sane size") from None
    if isinstance(data, dict) and data.get("format") == FORMAT:
        return _own(data, name)
    if isinstance(data, dict) and "nodes" in data and ("links" in data or "edges" in data):
        return ProblemFile(*read_graph(data, name), 0)
    raise malformed(f'it says neither "format": "{FORMAT}" nor has it "nodes" and "links"')


def to_text(file: ProblemFile) -> str:
    """The file's text; equal problems give equal bytes.

    Raises ValueError for hoisted ops and reuse classes, which only a model's problem has.
    """
    problem = file.problem
    if any(problem.hoisted) or any(reuse != NONE for reuse in problem.reuse_class):
        raise ValueError("a problem with hoisted ops or reuse classes has no file format")
    head: dict[str, Any] = {"format": FORMAT, "version": VERSION, "name": file.name}
    if file.budget_bytes:
        head["budget_bytes"] = file.budget_bytes
    lines = [f"  {json.dumps(key)}: {json.dumps(value)},\n" for key, value in head.items()]
    rows = [f"\n    {json.dumps(_op_row(problem, op))}" for op in range(len(problem.op_names))]
    return "{\n" + "".join(lines) + '  "ops": [' + ",".join(rows) + "\n  ]\n}\n"


def _op_row(problem: Problem, op: int) -> dict[str, Any]:
    row: dict[str, Any] = {"name": problem.op_names[op], "time_ns": problem.time_ns[op]}
    if problem.workspace_bytes[op]:
        row["workspace_bytes"] = problem.workspace_bytes[op]
    row["reads"] = [problem.value_names[value] for value in problem.reads[op]]
    row["writes"] = [_value_row(problem, value) for value in problem.writes[op]]
    if not problem.recomputable[op]:
        row["recomputable"] = False
    return row


def _value_row(problem: Problem, value: int) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": problem.value_names[value],
        "bytes": problem.value_bytes[value],
    }
    alias = problem.alias_of[value]
    if value in problem.kept:
        row["kept"] = True
    if alias != NONE:
        row["alias_of"] = True if alias == CONSTANT else problem.value_names[alias]
    if problem.inplace_of[value]:
        row["in_place_of"] = [problem.value_names[other] for other in problem.inplace_of[value]]
    return row


def _own(data: Mapping[str, Any], name: str) -> ProblemFile:
    version = data.get("version")
    if type(version) is not int or version < 1:
        raise malformed("version is not a positive integer")
    if version > VERSION:
        fact = f"the problem is of version {version}, this remat reads up to {VERSION}"
        raise UsageError("R261", fact, fix="pip install --upgrade remat")
    budget = count_of(data, "budget_bytes", "the problem", 0)
    columns = _Columns()
    for at, row in enumerate(list_of(data, "ops", "the problem")):
        where = f"ops[{at}]"
        if not isinstance(row, dict):
            raise malformed(f"{where} is not an object")
        _add_op(columns, row, where)
    return ProblemFile(text_of(data, "name", "the problem", name), columns.problem(budget), budget)


def _add_op(columns: _Columns, row: Mapping[str, Any], where: str) -> None:
    name = text_of(row, "name", where, None)
    if name in columns.op_names:
        raise malformed(f"{where}: another op has the name {name!a}")
    reads = tuple(_read(columns, value, where) for value in list_of(row, "reads", where))
    columns.op_names.append(name)
    columns.time_ns.append(count_of(row, "time_ns", where, None))
    columns.workspace_bytes.append(count_of(row, "workspace_bytes", where, 0))
    columns.reads.append(reads)
    columns.recomputable.append(flag_of(row, "recomputable", where, default=True))
    written = []
    for at, value in enumerate(list_of(row, "writes", where)):
        inner = f"{where}.writes[{at}]"
        if not isinstance(value, dict):
            raise malformed(f"{inner} is not an object")
        written.append(_add_value(columns, value, reads, inner))
    columns.writes.append(tuple(written))


def _add_value(columns: _Columns, row: Mapping[str, Any], reads: Sequence[int], where: str) -> int:
    name, number = text_of(row, "name", where, None), len(columns.value_bytes)
    if columns.value_of.setdefault(name, number) != number:
        raise malformed(f"{where}: {name!a} is written twice")
    columns.value_bytes.append(count_of(row, "bytes", where, None))
    alias = row.get("alias_of")
    if alias is True:
        columns.alias_of.append(CONSTANT)
    else:
        columns.alias_of.append(NONE if alias is None else _own_read(columns, alias, reads, where))
    places = list_of(row, "in_place_of", where)
    columns.inplace_of.append(tuple(_own_read(columns, one, reads, where) for one in places))
    if flag_of(row, "kept", where, default=False):
        columns.kept.add(number)
    return number


def _read(columns: _Columns, name: Any, where: str) -> int:
    if not isinstance(name, str) or name not in columns.value_of:
        raise malformed(f"{where} reads {name!a}, which no earlier op writes")
    return columns.value_of[name]


def _own_read(columns: _Columns, name: Any, reads: Sequence[int], where: str) -> int:
    value = columns.value_of.get(name, NONE) if isinstance(name, str) else NONE
    if value not in reads:
        raise malformed(f"{where} shares the memory of {name!a}, which its op does not read")
    return value

"""Cost tables: what each op takes, as the runtime reported it, and where that holds.

A table is keyed by op signature (kind, version, attributes, types and shapes, small constants),
so one table serves every model that has the same ops. It is valid for one runtime version,
provider, thread count and CPU model; used anywhere else it is stale and refused, or foreign
and said so.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remat.errors import UsageError

FORMAT = "remat.costs"
VERSION = 1
# Sums over the ops of a model stay exact in 64 bits; 13 days or a PiB for one op is an error.
MOST = 1 << 50
NO_SLOT = -1


@dataclass(frozen=True, slots=True)
class Environment:
    """Where costs were measured. `allocator` says where tensors lived: mapping each anew takes
    time that the page pool saves."""

    runtime: str
    provider: str
    threads: int
    cpu: str
    allocator: str


@dataclass(frozen=True, slots=True)
class OpCost:
    """One signature. `time_ns` is its fastest run with its share of the executor's overhead,
    scaled so that the ops of a model add up to the model's run; `spread_ns` is the slowest run
    minus the fastest.

    `alias[k]` is the input slot whose buffer output k always shares, or -1. `in_place[k]` are
    the input slots whose buffer output k takes over where that input dies, in the runtime's order.
    """

    kind: str
    time_ns: int
    spread_ns: int
    workspace_bytes: int
    alias: tuple[int, ...]
    in_place: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class CostTable:
    """Costs by op signature, and the environment they were measured in."""

    environment: Environment
    ops: Mapping[str, OpCost]


def dumps(table: CostTable) -> str:
    """The table as JSON: keys sorted, one op a line, LF."""
    head = {"format": FORMAT, "version": VERSION, "environment": asdict(table.environment)}
    lines = [
        f'    "{signature}": {json.dumps(asdict(cost))}'
        for signature, cost in sorted(table.ops.items())
    ]
    body = ",\n".join(lines)
    return json.dumps(head)[:-1] + ', "ops": {\n' + body + "\n}}\n"


def sha256(table: CostTable) -> str:
    """The content hash that a schedule file records."""
    return hashlib.sha256(dumps(table).encode()).hexdigest()


def load(path: Path) -> CostTable:
    """The table in a file. Raises UsageError R220 where it is not one of ours."""
    try:
        data = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(data, dict) or data.get("format") != FORMAT:
            raise _unreadable(path, f'it has no "format": "{FORMAT}"')
        if data["version"] > VERSION:
            raise _unreadable(path, f"it has version {data['version']}, we read up to {VERSION}")
        environment = _environment(data["environment"])
        return CostTable(environment, {key: _op_cost(row) for key, row in data["ops"].items()})
    except OSError as error:
        raise _unreadable(path, error.strerror or "it cannot be opened") from None
    except KeyError as error:
        raise _unreadable(path, f"it is malformed: there is no {error}") from None
    except ValueError as error:
        raise _unreadable(path, f"it is malformed: {error}") from None
    except (TypeError, AttributeError, RecursionError):
        raise _unreadable(path, "it is malformed: a part of it is of another kind") from None


def _environment(row: dict[str, Any]) -> Environment:
    threads = _count(row, "threads")
    texts = {name: str(row[name]) for name in ("runtime", "provider", "cpu", "allocator")}
    return Environment(threads=threads, **texts)


def _op_cost(row: dict[str, Any]) -> OpCost:
    return OpCost(
        kind=str(row["kind"]),
        time_ns=_count(row, "time_ns"),
        spread_ns=_count(row, "spread_ns"),
        workspace_bytes=_count(row, "workspace_bytes"),
        alias=_slots(row["alias"], NO_SLOT),
        in_place=tuple(_slots(slots, 0) for slots in row["in_place"]),
    )


def _count(row: Mapping[str, Any], key: str) -> int:
    value = row[key]
    if not isinstance(value, int) or not 0 <= value <= MOST:
        raise ValueError(f"{key} is {value!r}, not an integer from 0 to {MOST}")
    return value


def _slots(values: list[Any], least: int) -> tuple[int, ...]:
    for value in values:
        if not isinstance(value, int) or value < least:
            raise ValueError(f"{value!r} is no slot of an op")
    return tuple(values)


def _unreadable(path: Path, why: str) -> UsageError:
    return UsageError(
        "R220",
        f"the cost table cannot be used: {why}",
        place=str(path),
        fix="make a new one: `remat profile MODEL -o costs.json`",
    )


def stale_reason(table: CostTable, here: Environment) -> str:
    """Why a table of another environment does not hold here; "" where it does.

    Another CPU is not stale but foreign: a table may be made on the target and used elsewhere.
    """
    there = table.environment
    if there.runtime != here.runtime:
        return f"it was measured with {there.runtime}, this is {here.runtime}"
    if there.provider != here.provider:
        return f"it was measured on {there.provider}, this is {here.provider}"
    if there.threads != here.threads:
        return f"it was measured with {there.threads} threads, {here.threads} are asked for"
    if there.allocator != here.allocator:
        return f"it was measured with {there.allocator}, this is {here.allocator}"
    return ""


def is_foreign(table: CostTable, here: Environment) -> bool:
    """Measured on another CPU model than this one."""
    return table.environment.cpu != here.cpu

"""Options that several verbs share, as decorators, and the values they take.

A verb's parameters reach it packed into the dataclasses of `remat.options`.
"""

import functools
import importlib
import math
import os
from collections.abc import Callable, Sequence
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from remat.errors import UsageError
from remat.options import SEARCH_SECONDS, THREADS_PER_CORE, ModelOptions, checked_threads

Function = Callable[..., None]
Decorator = Callable[[Function], Function]

_VERBOSE = "remat.verbose"
FILE = click.Path(path_type=Path)
# ONNX keeps sizes in 64 bits.
_MOST_SIZE = (1 << 63) - 1
_MOST_DIGITS = 30


def pipeline() -> Any:
    """`remat.pipeline`, imported now: it takes a second.

    Raises UsageError R200 where neither wheel of ONNX Runtime is installed.
    """
    require_runtime()
    return importlib.import_module("remat.pipeline")


def require_runtime() -> None:
    """Raise UsageError R200 unless one of the two wheels of ONNX Runtime is installed.

    Both install the module `onnxruntime`. What is left of a removed one is a folder without
    code, which has no origin.
    """
    spec = find_spec("onnxruntime")
    if spec is None or spec.origin is None:
        raise UsageError(
            "R200",
            "ONNX Runtime is not installed",
            fix="pip install 'remat[cpu]', or 'remat[gpu]' for CUDA; never both in one place",
        )


def stacked(*decorators: Decorator) -> Decorator:
    """All of them as one; the first one's option is listed first."""

    def decorate(function: Function) -> Function:
        return functools.reduce(lambda inner, outer: outer(inner), reversed(decorators), function)

    return decorate


def packed(noun: type[Any], name: str) -> Decorator:
    """Hand the parameters that are fields of `noun` over as one argument `name`."""
    mine = {item.name for item in fields(noun)}

    def decorate(function: Function) -> Function:
        @functools.wraps(function)
        def call(**given: Any) -> None:
            values = {key: given.pop(key) for key in sorted(mine & given.keys())}
            function(**given, **{name: noun(**values)})

        return call

    return decorate


def wants_traceback(ctx: click.Context) -> bool:
    """Whether errors are to be shown with their traceback."""
    return bool(ctx.find_root().meta.get(_VERBOSE)) or os.environ.get("REMAT_TRACEBACK", "") == "1"


def _note_verbose(ctx: click.Context, _option: click.Parameter, value: bool) -> None:
    if value:
        ctx.find_root().meta[_VERBOSE] = True


def _dims(_ctx: click.Context, _option: click.Parameter, texts: Sequence[str]) -> dict[str, int]:
    """The bindings that texts like "batch=8" name. Raises UsageError R212."""
    dims: dict[str, int] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        digits = number.isascii() and number.isdecimal() and number.strip("0")
        if digits and (len(number) > _MOST_DIGITS or int(number) > _MOST_SIZE):
            fact = f"{text[:60]!a} is larger than any dimension: {_MOST_SIZE} at most"
            raise UsageError("R212", fact)
        if not (name and equals and digits):
            raise UsageError(
                "R212",
                f"{text!a} binds no dimension",
                fix="write the dimension's name and a number above 0: --dim batch=8",
            )
        if dims.setdefault(name, int(number)) != int(number):
            raise UsageError("R212", f"dimension '{name}' is bound to two numbers")
    return dims


def _size_text(_ctx: click.Context, _option: click.Parameter, text: str | None) -> str:
    if text is None:
        return ""
    from remat.units import parse_size

    parse_size(text)
    return text


def _threads(_ctx: click.Context, _option: click.Parameter, count: int) -> int:
    return checked_threads(count)


def _seconds(_ctx: click.Context, _option: click.Parameter, text: str | None) -> float | None:
    if text is None:
        return None
    from remat.units import parse_seconds

    return parse_seconds(text)


def _tolerance(_ctx: click.Context, option: click.Parameter, value: float) -> float:
    if not math.isfinite(value) or value < 0:
        raise click.BadParameter("it is not a number from 0 up", param=option)
    return value


def _output(_ctx: click.Context, _option: click.Parameter, path: Path | None) -> Path | None:
    """Neither nothing nor `-`, which users of a shell take for stdout. Raises UsageError R213."""
    if path is not None and str(path) in (".", "-"):
        fix = "name a file; stdout has the report alone"
        raise UsageError("R213", f"'{path}' is no file to write to", fix=fix)
    return path


def output_option(*names: str, metavar: str, text: str) -> Decorator:
    """A file to write."""
    return click.option(*names, type=FILE, metavar=metavar, callback=_output, help=text)


def tolerance_option(name: str, text: str) -> Decorator:
    """A number from 0 up, 0 if not given."""
    return click.option(
        name, type=float, default=0.0, show_default=True, callback=_tolerance, help=text
    )


def mem_option(*, required: bool, text: str) -> Decorator:
    """--mem, read as a size at once so that a wrong one is told at once."""
    return click.option("--mem", metavar="SIZE", required=required, callback=_size_text, help=text)


def repeats_option(default: int, text: str) -> Decorator:
    """--repeats."""
    return click.option(
        "--repeats", type=click.IntRange(1), default=default, show_default=True, help=text
    )


def argument(name: str, metavar: str) -> Decorator:
    """A file named by its position."""
    return click.argument(name, type=FILE, metavar=metavar)


verbose_option: Decorator = click.option(
    "-v",
    "--verbose",
    is_flag=True,
    expose_value=False,
    callback=_note_verbose,
    help="Show the traceback of an error.",
)
quiet_option: Decorator = click.option(
    "-q", "--quiet", is_flag=True, help="Show no progress on stderr."
)
json_option: Decorator = click.option(
    "--json", "as_json", is_flag=True, help="Print one JSON document instead of text."
)
force_option: Decorator = click.option(
    "--force", is_flag=True, help="Replace output files that exist; never an input."
)
portable_option: Decorator = click.option(
    "--portable",
    is_flag=True,
    help="Keep to optimizations that hold on any CPU, not only on this family.",
)
dim_option: Decorator = click.option(
    "--dim",
    "dims",
    multiple=True,
    metavar="NAME=VALUE",
    callback=_dims,
    help="Bind a dynamic dimension; may be repeated. Outputs are compared with those of the "
    "model bound this way.",
)
inputs_option: Decorator = click.option(
    "--inputs",
    type=FILE,
    metavar="X.npz",
    help="Run on these graph inputs; random ones are made otherwise.",
)
threads_option: Decorator = click.option(
    "--threads",
    type=click.IntRange(0),
    default=ModelOptions().threads,
    show_default=True,
    callback=_threads,
    help=f"Intra-op threads; 0 for one per core, {THREADS_PER_CORE} per core at most.",
)
seconds_option: Decorator = click.option(
    "--time-limit",
    "time_limit_s",
    metavar="TIME",
    callback=_seconds,
    default=f"{SEARCH_SECONDS:g}s",
    show_default=True,
    help="Stop the search after 60, 60s, 2m ...; the answer then depends on the machine's speed.",
)
model_options = stacked(dim_option, inputs_option, threads_option)
common_options = stacked(json_option, quiet_option, verbose_option)

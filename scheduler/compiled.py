"""How kernels are compiled, and the array types they share.

The first run of an installation pays for compilation, so only the kernels that Python calls
get the glue that such calls need (`entry`); what they are made of is plain machine code (`part`).
All integers are 64 bit wide, indices too, so that each function is compiled for one type only.
No fast-math anywhere: the same input and seed give the same answer on every run.
"""

import builtins
import dis
import hashlib
from collections.abc import Callable
from types import FunctionType
from typing import Any, TypeVar, cast

import numba
import numpy as np
from numpy.typing import NDArray

Flags = NDArray[np.bool_]
Int64 = NDArray[np.int64]
Real = NDArray[np.float64]
Word = NDArray[np.uint64]

# Without the interpreter's lock, so that two searches can run side by side.
ENTRY_OPTIONS: dict[str, Any] = {"error_model": "numpy", "nogil": True}

F = TypeVar("F", bound=Callable[..., object])


def entry(function: F) -> F:
    """Compile a kernel that Python calls, and keep it on disk under a name of its own content.

    The compiler's cache looks at the file of the kernel alone; a change in the file of one of
    its parts would go unseen, were the name not derived from all of them.
    """
    lines = [repr(ENTRY_OPTIONS), *_content(cast(FunctionType, function), [])]
    digest = hashlib.sha256("\n".join(lines).encode())
    function.__qualname__ += "_" + digest.hexdigest()[:12]
    return cast(F, numba.njit(cache=True, **ENTRY_OPTIONS)(function))


def part(function: F) -> F:
    """Compile a function that kernels alone call; its code is kept as part of theirs."""
    options: dict[str, Any] = {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
    return cast(F, numba.njit(error_model="numpy", **options)(function))


def _content(function: FunctionType, seen: list[FunctionType]) -> list[str]:
    """Byte code, constants and argument types of a function and of all parts that it calls.

    Raises NameError if it uses a name that is not defined yet: a kernel stands below its parts.
    """
    if function in seen:
        return []
    seen.append(function)
    code = function.__code__
    lines = [code.co_code.hex(), repr(code.co_consts)]
    lines += [repr(getattr(kind, "_fields", "")) for kind in function.__annotations__.values()]
    names = {i.argval for i in dis.get_instructions(code) if i.opname == "LOAD_GLOBAL"}
    for name in sorted(names):
        if name not in function.__globals__ and not hasattr(builtins, name):
            raise NameError(f"{function.__qualname__} uses {name}, which is defined below it")
        used: Any = function.__globals__.get(name)
        if isinstance(used, int | float):
            lines.append(f"{name} = {used!r}")
        elif hasattr(used, "py_func"):
            lines += _content(used.py_func, seen)
    return lines

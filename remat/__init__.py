"""remat: run an ONNX model within a memory limit, at the least cost in time."""

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from remat.runtime import load as load

__version__ = "0.1.0"
__all__ = ["__version__", "load"]


def __getattr__(name: str) -> object:
    """`remat.load`, imported when first asked for: the runtime is heavy."""
    if name == "load":
        from remat.runtime import load

        return load
    raise AttributeError(f"module 'remat' has no attribute {name!r}")

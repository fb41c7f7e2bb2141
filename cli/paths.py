"""Files that a call names: an input is never written over, by whatever name or option."""

import os
from pathlib import Path

from remat.errors import UsageError

Paths = tuple[Path | None, ...]


def keep_apart(*, inputs: Paths, outputs: Paths) -> None:
    """Raise UsageError R207 where an output is an input, or the same file as another output.

    None stands for an option that was not given. Links are followed.
    """
    # Unlike Path.resolve, realpath bears links that go round in a circle.
    taken = {os.path.realpath(path): "an input" for path in inputs if path is not None}
    for path in outputs:
        if path is None:
            continue
        real = os.path.realpath(path)
        if real in taken:
            fact = f"the output is {taken[real]} of this call as well"
            raise UsageError("R207", fact, place=str(path), fix="name another file")
        taken[real] = "an output"


def refuse_existing(path: Path | None, *, force: bool) -> None:
    """Raise UsageError R208 where the file exists and `force` does not say to replace it."""
    if path is not None and path.exists() and not force:
        fix = "use --force to replace it, or name another file"
        raise UsageError("R208", "the output exists already", place=str(path), fix=fix)

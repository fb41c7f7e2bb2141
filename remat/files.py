"""Files that are there whole or not at all: written under another name, then renamed.

Whether a file may be replaced is for the callers to decide.
"""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A free name in the folder of `path`: what the block writes there becomes `path` if the
    block ends well, and is removed otherwise. Raises OSError."""
    partial = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """A text file, in UTF-8 with LF as it stands in `text`. Raises OSError."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")

"""Files that are there whole or not at all: written under another name, then renamed.

Whether a file may be replaced is for the callers to decide.
"""

import os
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def whole(path: Path) -> Iterator[Path]:
    """A free name in the folder of `path`: what the block writes there becomes `path` if the
    block ends well, and is removed otherwise. Raises OSError."""
    with all_or_none([path]) as [partial]:
        yield partial


@contextmanager
def all_or_none(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """The same for files that belong together: where one cannot be put in its place, those that
    were there before are there again. A name that the block does not write is left alone."""
    partials = [_beside(path, "part") for path in paths]
    try:
        yield partials
        _put_in_place([pair for pair in zip(partials, paths, strict=True) if pair[0].exists()])
    finally:
        for partial in partials:
            partial.unlink(missing_ok=True)


def _put_in_place(pairs: Sequence[tuple[Path, Path]]) -> None:
    done: list[Path] = []
    # The last one replaces what it replaces at once; those before it can be undone.
    undone = [path for _, path in pairs[:-1]]
    try:
        for path in undone:
            if path.exists():
                path.replace(_beside(path, "old"))
        for partial, path in pairs:
            partial.replace(path)
            done.append(path)
    except BaseException:
        for path in undone:
            if path in done:
                path.unlink()
            if _beside(path, "old").exists():
                _beside(path, "old").replace(path)
        raise
    for path in undone:
        _beside(path, "old").unlink(missing_ok=True)


def _beside(path: Path, role: str) -> Path:
    """A free name in the same folder, short however long the file's own is."""
    digest = zlib.crc32(path.name.encode("utf-8", "surrogateescape"))
    return path.with_name(f".{path.name[:40]}.{digest:08x}.{os.getpid()}.{role}")


def write_text(path: Path, text: str) -> None:
    """A text file, in UTF-8 with LF as it stands in `text`. Raises OSError."""
    with whole(path) as partial:
        partial.write_text(text, encoding="utf-8", newline="\n")

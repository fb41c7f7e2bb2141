"""Where results go: refused before any work where they could not, or must not, be written.

A result is renamed to its place, so whatever lies there is gone: a regular file may be replaced
if the caller says so, but an input never, and nothing that is no file (a device, a pipe, a link).
"""

import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

from remat.errors import UsageError


def check_output(output: Path, taken: Iterable[Path], *, force: bool) -> None:
    """Refuse to write over what is `taken`, over a file without `force`, or where we cannot.

    Raises UsageError R203, R204, R205.
    """
    try:
        _check_target(output, taken, force=force)
        _check_folder(output.parent)
    except OSError as error:
        fact = f"the output cannot be written: {error.strerror or error}"
        raise UsageError("R205", fact, place=str(output)) from None


def _check_target(output: Path, taken: Iterable[Path], *, force: bool) -> None:
    if output.is_symlink():
        fact = "the output is a symbolic link, which would be replaced by a file"
        fix = f"name the file itself: {os.path.realpath(output)}"
        raise UsageError("R205", fact, place=str(output), fix=fix)
    if output.is_dir():
        raise UsageError("R205", "the output is a directory", place=str(output))
    if output.exists() and not output.is_file():
        fact = "the output exists and is no regular file"
        raise UsageError("R205", fact, place=str(output), fix="name another file")
    if any(_same(output, path) for path in taken):
        fact = "the output is an input of this call, or another output"
        raise UsageError("R203", fact, place=str(output), fix="name another file")
    if output.exists() and not force:
        fix = "use --force to replace it, or name another file with -o"
        raise UsageError("R204", "the output exists already", place=str(output), fix=fix)


def _same(one: Path, other: Path) -> bool:
    if one.exists() and other.exists():
        return one.samefile(other)
    # Unlike Path.resolve, realpath bears links that go round in a circle.
    return os.path.realpath(one) == os.path.realpath(other)


def _check_folder(folder: Path) -> None:
    """By writing there: some file systems refuse what the mode of a folder allows."""
    if not folder.is_dir():
        raise UsageError("R205", "the folder of the output does not exist", place=str(folder))
    try:
        if not os.access(folder, os.W_OK):
            raise PermissionError
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError:
        fact = "the folder of the output is not writable"
        raise UsageError("R205", fact, place=str(folder)) from None

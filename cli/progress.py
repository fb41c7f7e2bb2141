"""Progress on stderr: a bar where somebody watches, silence otherwise."""

import contextlib
import sys
from collections.abc import Callable, Iterator
from typing import Any

import click

Progress = Callable[[str, int, int], None]


class _Bars:
    """One bar at a time, labelled with the stage; a new stage closes the bar before it.

    A bar counts percent, since the total of a search changes on the way, and never goes back.
    """

    def __init__(self) -> None:
        self._stage = ""
        self._bar: Any = None

    def show(self, stage: str, done: int, total: int) -> None:
        """`total` 0 where the end is not known: the stage is named, without a bar."""
        if stage != self._stage:
            self.close()
            self._stage = stage
            self._open(stage, total)
        if self._bar is not None and total > 0:
            percent = max(0, min(100, 100 * done // total))
            self._bar.update(max(0, percent - self._bar.pos))

    def close(self) -> None:
        """End the line of the bar that is open, if one is."""
        if self._bar is not None:
            self._bar.__exit__(None, None, None)
        self._bar = None
        self._stage = ""

    def _open(self, stage: str, total: int) -> None:
        if total <= 0:
            click.echo(stage, err=True)
            return
        self._bar = click.progressbar(length=100, label=stage, show_eta=False, file=sys.stderr)
        self._bar.__enter__()


@contextlib.contextmanager
def shown(*, quiet: bool) -> Iterator[Progress]:
    """A function to call as `progress(stage, done, total)` while the block runs."""
    if quiet or not sys.stderr.isatty():
        yield _silent
        return
    bars = _Bars()
    try:
        yield bars.show
    finally:
        bars.close()


def _silent(_stage: str, _done: int, _total: int) -> None:
    """Nobody watches."""

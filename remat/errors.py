"""Errors a user can act on: a code, the fact, the place, and a fix that can be pasted.

Every error that reaches the command line is a `RematError`; its class fixes the exit code.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from enum import IntEnum
from typing import ClassVar


class ExitCode(IntEnum):
    """Documented in the README, one test each."""

    DONE = 0
    CHECK_FAILED = 1
    USAGE = 2
    INFEASIBLE = 3
    NO_ANSWER = 4
    BAD_MODEL = 5
    INTERNAL = 70


class RematError(Exception):
    """`code` as in R301; `fact` lower case, no full stop; `place` and `fix` may be empty."""

    exit_code: ClassVar[ExitCode] = ExitCode.INTERNAL

    def __init__(self, code: str, fact: str, *, place: str = "", fix: str = "") -> None:
        super().__init__(f"{code}: {fact}")
        self.code = code
        self.fact = fact
        self.place = place
        self.fix = fix

    def render(self) -> str:
        """The text for stderr."""
        lines = [f"error[{self.code}]: {self.fact}"]
        if self.place:
            lines.append(f"  --> {self.place}")
        if self.fix:
            lines.append(f"  help: {self.fix}")
        return "\n".join(lines)


@contextmanager
def located(place: str) -> Iterator[None]:
    """Name the place of errors from the block that know none."""
    try:
        yield
    except RematError as error:
        error.place = error.place or place
        raise


class CheckFailed(RematError):
    """R1xx: outputs differ, or a budget is broken when measured."""

    exit_code = ExitCode.CHECK_FAILED


class UsageError(RematError):
    """R2xx: the call is wrong (an unknown size, a stale cost table, an output in the way)."""

    exit_code = ExitCode.USAGE


class Infeasible(RematError):
    """R3xx: no schedule fits, with the proof."""

    exit_code = ExitCode.INFEASIBLE


class NoAnswer(RematError):
    """R4xx: nothing found within the limits; nothing is proven either."""

    exit_code = ExitCode.NO_ANSWER


class BadModel(RematError):
    """R5xx: the model cannot be read, run, or is not supported."""

    exit_code = ExitCode.BAD_MODEL


class InternalError(RematError):
    """R9xx: our own fault."""

    exit_code = ExitCode.INTERNAL

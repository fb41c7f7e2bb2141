"""Linear programs solved in a process of their own, which can be ended whatever it does.

HiGHS looks at its clock and calls back only now and then, and its presolve has loops that need
not end (its issues 1883 and 2226; strengthening inequalities at a restart of branch and bound
went on for ten minutes here). Nothing stops a thread from outside. A process ends by an alarm of
the system, and what it was to find is then unknown; the search goes on without it.

The process is started with the first program and answers one after another.
"""

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, Pipe

import numpy as np

from remat.errors import InternalError
from remat.scheduler import linear
from remat.scheduler.linear import INFINITY, Answer, Effort, Outcome, Program

# What a solver may take beyond its time to come to an end by itself.
GRACE_SECONDS = 2.0
# How often the caller's wish to stop is looked at.
POLL_SECONDS = 0.05
_UNKNOWN = Answer(Outcome.CUT, -INFINITY, np.zeros(0), np.zeros(0))


def _never() -> bool:
    return False


@dataclass(slots=True)
class _Solver:
    """The process and our end of the pipe to it."""

    process: "subprocess.Popen[bytes]"
    pipe: Connection

    def end(self) -> str:
        """Stop the process; what it said last."""
        self.pipe.close()
        self.process.kill()
        _, said = self.process.communicate()
        return said.decode(errors="replace").strip()


_running: list[_Solver] = []
_turn = threading.Lock()
# A fork of ours must not speak on the same pipe.
os.register_at_fork(after_in_child=_running.clear)


def relaxed(program: Program, effort: Effort) -> Answer:
    """`linear.relaxed`, apart; CUT where it did not come to an end in time."""
    with _turn:
        return _answer("relaxed", program, effort)


def whole(program: Program, effort: Effort, start: Sequence[float] = ()) -> Answer:
    """`linear.whole`, apart; CUT where it did not come to an end in time."""
    with _turn:
        return _answer("whole", program, effort, start)


def _answer(function: str, program: Program, effort: Effort, *more: object) -> Answer:
    """Raises InternalError R904 where the process cannot be started or fails by itself."""
    solver = _running[0] if _running else _start()
    try:
        solver.pipe.send((function, (program, replace(effort, stop=_never), *more)))
        if _is_answered(solver.pipe, effort):
            answer: Answer = solver.pipe.recv()
            return answer
    except (EOFError, OSError):
        solver.process.wait()
    except BaseException:
        _end()
        raise
    code, said = solver.process.returncode, _end()
    if code is not None and code > 0:
        raise InternalError("R904", f"the linear solver's process ended with {code}: {said[-500:]}")
    return _UNKNOWN


def _is_answered(pipe: Connection, effort: Effort) -> bool:
    """Wait; False if the caller wants to stop and there is no answer soon after."""
    stopped_at = None
    while not pipe.poll(POLL_SECONDS):
        if stopped_at is None and effort.stop():
            stopped_at = time.monotonic()
        if stopped_at is not None and time.monotonic() - stopped_at > GRACE_SECONDS / 2:
            return False
    return True


def _start() -> _Solver:
    ours, theirs = Pipe()
    with theirs:
        process = subprocess.Popen(
            [sys.executable, "-m", "remat.scheduler.apart", str(theirs.fileno())],
            env=dict(os.environ, PYTHONPATH=os.pathsep.join(filter(None, sys.path))),
            pass_fds=[theirs.fileno()],
            stdin=subprocess.DEVNULL,
            # HiGHS greets on standard output, and no option turns that off.
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    _running.append(_Solver(process, ours))
    return _running[0]


@atexit.register
def _end() -> str:
    """End the process, if there is one; what it said last."""
    return _running.pop().end() if _running else ""


def _serve(pipe: Connection) -> None:
    """Answer programs until the other end is closed. Ctrl-C is the caller's to act on."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGALRM, signal.SIG_DFL)
    while True:
        try:
            function, arguments = pipe.recv()
        except EOFError:
            return
        seconds = arguments[1].seconds
        signal.setitimer(signal.ITIMER_REAL, max(0.0, seconds) + GRACE_SECONDS)
        answer = getattr(linear, function)(*arguments)
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        pipe.send(answer)


if __name__ == "__main__":
    _serve(Connection(int(sys.argv[1])))

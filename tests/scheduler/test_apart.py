"""The linear solver's process: it answers as the solver does, ends in time, and starts again."""

import math
import os
import signal
import threading
import time
from dataclasses import replace

import pytest

from remat.errors import InternalError
from remat.scheduler import apart, linear
from remat.scheduler.linear import Effort, Outcome, Program

EFFORT = Effort(10**6, 10**4, 30.0, 1e-9, math.inf, lambda: False)


def knapsack(items: int, seed: int = 7) -> Program:
    """A program of the usual kind: what to leave out so that the rest fits in half the room."""
    program, state = Program(), seed
    weights = []
    for _ in range(items):
        state = (state * 1103515245 + 12345) % 2**31
        weights.append(1.0 + state % 97)
        program.variable(cost=weights[-1] * (1 + state % 13 / 100), whole=True)
    program.at_least([(i, w) for i, w in enumerate(weights)], sum(weights) / 2)
    return program


class Endless(list[float]):
    """A row of costs that nobody comes to the end of, as a stand-in for a solver's loop."""

    def __len__(self) -> int:
        time.sleep(3600)
        return super().__len__()


def solver_pid() -> int:
    """The process that answers."""
    apart.relaxed(knapsack(4), EFFORT)
    return apart._running[0].process.pid


def test_answers_are_those_of_the_solver() -> None:
    program = knapsack(25)
    for there, here in ((apart.relaxed, linear.relaxed), (apart.whole, linear.whole)):
        far, near = there(program, EFFORT), here(program, EFFORT)
        assert far.outcome is near.outcome is Outcome.SOLVED
        assert far.bound == near.bound
        assert far.point.tolist() == near.point.tolist()
    assert solver_pid() == solver_pid()


def test_a_solver_that_does_not_come_back_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    pid = solver_pid()
    os.kill(pid, signal.SIGSTOP)
    begin = time.monotonic()
    monkeypatch.setattr(apart, "GRACE_SECONDS", 0.2)
    stopping = replace(EFFORT, stop=lambda: time.monotonic() > begin + 0.2)
    answer = apart.whole(knapsack(25), stopping)
    assert time.monotonic() - begin < 5
    assert (answer.outcome, answer.bound) == (Outcome.CUT, -math.inf)
    assert solver_pid() != pid


def test_a_solver_that_passes_its_time_ends_itself() -> None:
    pid = solver_pid()
    process = apart._running[0].process
    hanging = knapsack(4)
    hanging.cost = Endless(hanging.cost)
    begin = time.monotonic()
    answer = apart.whole(hanging, replace(EFFORT, seconds=0.1))
    assert (answer.outcome, answer.bound) == (Outcome.CUT, -math.inf)
    assert process.returncode == -signal.SIGALRM
    assert apart.GRACE_SECONDS < time.monotonic() - begin < apart.GRACE_SECONDS + 5
    assert solver_pid() != pid


def test_a_crash_is_no_answer() -> None:
    pid = solver_pid()
    killer = threading.Timer(0.2, os.kill, (pid, signal.SIGKILL))
    os.kill(pid, signal.SIGSTOP)
    killer.start()
    answer = apart.whole(knapsack(25), EFFORT)
    assert (answer.outcome, answer.bound) == (Outcome.CUT, -math.inf)


def test_what_cannot_start_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    apart._end()
    monkeypatch.setattr("sys.path", ["/nowhere"])
    monkeypatch.setenv("PYTHONNOUSERSITE", "1")
    monkeypatch.setattr("sys.executable", "/bin/false")
    with pytest.raises(InternalError, match="R904"):
        apart.relaxed(knapsack(4), EFFORT)
    monkeypatch.undo()
    assert apart.relaxed(knapsack(4), EFFORT).outcome is Outcome.SOLVED


def test_ctrl_c_gets_through() -> None:
    solver_pid()

    def interrupt() -> bool:
        raise KeyboardInterrupt

    os.kill(apart._running[0].process.pid, signal.SIGSTOP)
    with pytest.raises(KeyboardInterrupt):
        apart.whole(knapsack(25), replace(EFFORT, stop=interrupt))
    assert not apart._running

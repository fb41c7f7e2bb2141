"""Blocks whose sequence repeats are laid out once, and then no page moves any more."""

import ctypes
import itertools
import random
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from remat import page_pool
from tests.page_pool_runs import PAGE_BYTES, Native

ROOT = Path(__file__).resolve().parents[2]

pytestmark = pytest.mark.skipif(
    page_pool.library() is None, reason="the page pool is not built on this system"
)

# (pages, how many blocks later it is freed), in the order in which they are taken. No free run is
# long enough for the last ones unless the first lie well.
FRAGMENTING = ((40, 3), (20, 5), (40, 2), (60, 2), (30, 3), (90, 2), (50, 3), (100, 1))


class Block(ctypes.Structure):
    """As in page_plan.h."""

    _fields_ = (
        ("pages", ctypes.c_uint32),
        ("life", ctypes.c_uint32),
        ("offset", ctypes.c_uint32),
    )


class Plan(ctypes.Structure):
    """As in page_plan.h."""

    _fields_ = (
        ("blocks", ctypes.POINTER(Block)),
        ("count", ctypes.c_size_t),
        ("height", ctypes.c_size_t),
        ("quiet", ctypes.c_size_t),
    )


@dataclass(slots=True)
class Cycles:
    """Takes the same blocks again and again, and checks that nobody else writes into them."""

    native: Native
    taken: int = 0
    peak: int = 0
    live: list[tuple[int, tuple[int, int, int]]] = field(default_factory=list)

    def run(self, cycle: tuple[tuple[int, int], ...], times: int) -> None:
        """Take the blocks of a cycle; those whose time has come are freed before each."""
        for pages, life in cycle * times:
            for due, block in [one for one in self.live if one[0] <= self.taken]:
                self.native.check_and_free(*block)
                self.live.remove((due, block))
            block = self.native.take_and_fill(pages, self.taken % 251)
            self.live.append((self.taken + life, block))
            self.taken += 1
            self.peak = max(self.peak, sum(one[1][1] for one in self.live) * PAGE_BYTES)

    def end(self) -> None:
        """Free all."""
        for _, block in self.live:
            self.native.check_and_free(*block)
        self.live.clear()


@pytest.fixture
def native() -> Native:
    path = page_pool.library()
    assert path is not None
    pool = Native(ctypes.CDLL(str(path)))
    page_pool.trim()
    return pool


def moved_by(cycles: Cycles, cycle: tuple[tuple[int, int], ...], times: int) -> int:
    before = page_pool.statistics().moved_bytes
    cycles.run(cycle, times)
    return page_pool.statistics().moved_bytes - before


def test_no_page_moves_once_the_sequence_is_known(native: Native) -> None:
    cycles = Cycles(native)
    assert moved_by(cycles, FRAGMENTING, 8) > 0
    cycles.run(FRAGMENTING, 8)
    assert moved_by(cycles, FRAGMENTING, 50) == 0
    assert page_pool.statistics().held_bytes <= cycles.peak
    cycles.end()


def test_another_sequence_is_learned_after_the_first(native: Native) -> None:
    cycles = Cycles(native)
    other = tuple((pages + 30, life) for pages, life in reversed(FRAGMENTING))
    cycles.run(FRAGMENTING, 50)
    assert moved_by(cycles, other, 8) > 0
    cycles.run(other, 600)
    assert moved_by(cycles, other, 50) == 0
    assert page_pool.statistics().held_bytes <= cycles.peak
    cycles.end()


def test_trimming_begins_anew(native: Native) -> None:
    cycles = Cycles(native)
    cycles.run(FRAGMENTING, 50)
    cycles.end()
    page_pool.trim()
    assert page_pool.statistics().held_bytes == 0
    assert moved_by(cycles, FRAGMENTING, 8) > 0
    cycles.end()


lives = st.lists(st.tuples(st.integers(16, 80), st.integers(1, 30)), min_size=2, max_size=24).map(
    tuple
)


@given(lives, st.integers(0, 2**32))
@settings(max_examples=40, deadline=None)
def test_whatever_repeats_keeps_its_contents_and_the_peak(
    cycle: tuple[tuple[int, int], ...], seed: int
) -> None:
    path, draw = page_pool.library(), random.Random(seed)
    assert path is not None
    page_pool.trim()
    cycles = Cycles(Native(ctypes.CDLL(str(path))))
    for _ in range(3):
        cycles.run(cycle, 1 + 200 // len(cycle))
        assert page_pool.statistics().held_bytes <= cycles.peak
        # A run that breaks off, or one of another model.
        cycles.run(tuple(draw.sample(cycle, draw.randrange(len(cycle)))), 1)
    cycles.end()


@given(lives)
@settings(max_examples=200, deadline=None)
def test_a_layout_keeps_apart_what_is_in_use_together(cycle: tuple[tuple[int, int], ...]) -> None:
    made = [Block(pages, life, 0) for pages, life in cycle * 4]
    # Those of the last period are in use still, as far as anyone knows.
    for block in made[-len(cycle) :]:
        block.life = 0
    longest = max(life for _, life in cycle)
    assume(longest <= 2 * len(cycle))
    plan = _plan(made, len(cycle), sum(pages for pages, _ in cycle) * 3)
    count = plan.count
    assert count % len(cycle) == 0
    assert longest < count
    blocks = [plan.blocks[i] for i in range(count)]
    used = [[(at - i) % count < blocks[i].life for i in range(count)] for at in range(count)]
    for row in used:
        spans = sorted(
            (b.offset, b.offset + b.pages)
            for b, is_used in zip(blocks, row, strict=True)
            if is_used
        )
        assert all(one[1] <= next_[0] for one, next_ in itertools.pairwise(spans))
        assert spans[-1][1] <= plan.height
    in_use = [
        sum(blocks[i].pages for i in range(count) if row[i] and i != at)
        for at, row in enumerate(used)
    ]
    assert in_use[plan.quiet] == min(in_use)


def test_a_plan_that_needs_more_pages_than_there_are_is_none() -> None:
    made = [Block(pages, life, 0) for pages, life in FRAGMENTING * 4]
    assert _plan(made, len(FRAGMENTING), 100).count == 0


@given(st.lists(st.integers(1, 3), min_size=1, max_size=12), st.integers(0, 10))
def test_the_period_is_the_least_that_explains_the_later_half(
    cycle: list[int], before: int
) -> None:
    sizes = [9] * before + cycle * 12
    log = (Block * len(sizes))(*(Block(pages, 1, 0) for pages in sizes))
    count, half = len(sizes), len(sizes) // 2
    repeats = (
        p
        for p in range(1, count // 4 + 1)
        if all(sizes[-1 - i] == sizes[-1 - i - p] for i in range(half))
    )
    assert _native().remat_plan_period(log, ctypes.c_size_t(count)) == next(repeats, 0)


def test_resident_memory_stays_at_the_peak_while_outputs_are_kept() -> None:
    command = [sys.executable, "-m", "tests.page_plan_resident"]
    resident, peak = map(int, subprocess.check_output(command, cwd=ROOT).split())
    assert 0.9 * peak < resident < peak + (2 << 20)


def _native() -> ctypes.CDLL:
    library = ctypes.CDLL(str(page_pool.library()))
    library.remat_plan_period.restype = ctypes.c_size_t
    library.remat_plan_make.restype = Plan
    return library


def _plan(log: list[Block], period: int, most_pages: int) -> Plan:
    array = (Block * len(log))(*log)
    sizes = (ctypes.c_size_t(one) for one in (len(log), period, most_pages))
    plan: Plan = _native().remat_plan_make(array, *sizes)
    return plan

"""The page pool holds what is in use at the peak, and no more, whatever the order of sizes."""

import ctypes
import random
import subprocess
import sys
from pathlib import Path

import onnx
import pytest
from onnx import helper

from remat import feeds, page_pool
from remat.onnx_io import read
from remat.profiles.session import Mode, left_over_bytes, open_session, session_options
from remat.verify import Trial, run_trial
from tests.page_pool_runs import PAGE_BYTES, Native

ROOT = Path(__file__).resolve().parents[2]
SAMPLES = ROOT / "sample_models"

pytestmark = pytest.mark.skipif(
    page_pool.library() is None, reason="the page pool is not built on this system"
)


@pytest.fixture
def native() -> Native:
    path = page_pool.library()
    assert path is not None
    pool = Native(ctypes.CDLL(str(path)))
    page_pool.trim()
    return pool


@pytest.mark.parametrize("seed", range(20))
def test_the_pool_never_holds_more_than_the_peak_in_use(native: Native, seed: int) -> None:
    draw, peak = random.Random(seed), 0
    live: list[tuple[int, int, int]] = []
    for _ in range(400):
        if live and draw.random() < 0.5:
            native.check_and_free(*live.pop(draw.randrange(len(live))))
        else:
            pages = draw.choice((16, 17, 40, 300, 1000, 2049))
            live.append(native.take_and_fill(pages, draw.randrange(256)))
        in_use = sum(pages for _, pages, _ in live) * PAGE_BYTES
        peak = max(peak, in_use)
        held = page_pool.statistics()
        assert held.held_bytes == peak
        assert held.free_bytes == peak - in_use
    for block in live:
        native.check_and_free(*block)
    page_pool.trim()
    assert page_pool.statistics().held_bytes == 0


def test_pages_are_gathered_where_no_run_is_long_enough(native: Native) -> None:
    before = page_pool.statistics().moved_bytes
    blocks = [native.take_and_fill(100, number) for number in range(10)]
    for block in blocks[::2]:
        native.check_and_free(*block)
    large = native.take_and_fill(500, 7)
    after = page_pool.statistics()
    assert after.held_bytes == 1000 * PAGE_BYTES
    assert after.moved_bytes - before == 500 * PAGE_BYTES
    for block in (*blocks[1::2], large):
        native.check_and_free(*block)


def test_what_is_allowed_beyond_the_peak_is_not_gathered(native: Native) -> None:
    before = page_pool.statistics().moved_bytes
    page_pool.allow(200 * PAGE_BYTES)
    try:
        blocks = [native.take_and_fill(100, number) for number in range(10)]
        for block in blocks[::2]:
            native.check_and_free(*block)
        for pages in (150, 300):
            blocks.append(native.take_and_fill(pages, 7))
            held = page_pool.statistics()
            assert held.held_bytes <= (1000 + 200) * PAGE_BYTES
            assert (held.moved_bytes > before) == (pages == 300)
        for block in (*blocks[1:10:2], *blocks[10:]):
            native.check_and_free(*block)
    finally:
        page_pool.allow(0)


def test_a_model_allows_half_of_what_its_budget_leaves(tmp_path: Path) -> None:
    model = onnx.load(SAMPLES / "knn.onnx")
    texts = {"remat.budget_bytes": "5000", "remat.predicted_peak_bytes": "3000"}
    assert left_over_bytes(texts) == 1000
    assert left_over_bytes({**texts, "remat.budget_bytes": "2000"}) == 0
    assert left_over_bytes({**texts, "remat.budget_bytes": "-1"}) == 0
    assert left_over_bytes({}) == 0
    helper.set_model_props(model, texts)
    onnx.save(model, tmp_path / "m.onnx")
    session = open_session(tmp_path / "m.onnx", session_options(Mode.STRICT, 1))
    assert left_over_bytes(session.get_modelmeta().custom_metadata_map) == 1000


def test_small_blocks_are_not_pages(native: Native) -> None:
    block = native.take(4096)
    assert page_pool.statistics().held_bytes == 0
    native.put_back(block)


def test_a_block_that_cannot_be_mapped_is_refused(native: Native) -> None:
    assert native.take(1 << 62) is None
    assert native.take(ctypes.c_size_t(-1).value) is None
    assert page_pool.statistics().held_bytes == 0


@pytest.mark.parametrize("name", ["unet_train", "cnn_train", "unet_infer", "transformer_train"])
def test_a_session_of_the_pool_keeps_the_measured_peak(name: str, tmp_path: Path) -> None:
    model = SAMPLES / f"{name}.onnx"
    command = [sys.executable, "-m", "tests.page_pool_runs", str(model)]
    held = [int(word) for word in subprocess.check_output(command, cwd=ROOT).split()]
    inputs = tmp_path / "feeds.npz"
    feeds.save(feeds.make(read(model), 0), inputs)
    measured = run_trial(Trial(model=model, mode=Mode.STRICT, feeds=inputs, threads=1, repeats=0))
    assert len(set(held)) == 1
    assert 0 < held[0] <= measured.peak_bytes

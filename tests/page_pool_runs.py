"""The page pool, called from Python, and a session on it in a process of its own.

python -m tests.page_pool_runs MODEL     prints the pool's bytes after each of four runs
"""

import ctypes
import gc
import os
import sys
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from remat import feeds, page_pool
from remat.onnx_io import read
from remat.profiles.session import Mode, open_pooled, open_session, session_options

PAGE_BYTES = os.sysconf("SC_PAGESIZE")
RUNS = 3


@dataclass(frozen=True, slots=True)
class Native:
    """The pool's own functions; a block is (address, pages, the byte that fills it)."""

    library: ctypes.CDLL

    def take(self, count: int) -> int | None:
        """The address of a new block, None where it is refused."""
        self.library.remat_page_pool_take.restype = ctypes.c_void_p
        address: int | None = self.library.remat_page_pool_take(ctypes.c_size_t(count))
        return address

    def put_back(self, address: int | None) -> None:
        """Free a block."""
        self.library.remat_page_pool_put_back(ctypes.c_void_p(address))

    def take_and_fill(self, pages: int, byte: int) -> tuple[int, int, int]:
        """A block in which every byte is written."""
        address = self.take(pages * PAGE_BYTES)
        assert address is not None
        ctypes.memset(address, byte, pages * PAGE_BYTES)
        return address, pages, byte

    def check_and_free(self, address: int, pages: int, byte: int) -> None:
        """Nobody else has written into the block."""
        assert ctypes.string_at(address, pages * PAGE_BYTES) == bytes([byte]) * pages * PAGE_BYTES
        self.put_back(address)


def main(model: Path) -> None:
    """Run a model on the pool and off it; print what the pool held after each run."""
    arrays = feeds.make(read(model), 0)
    plain = open_session(model, session_options(Mode.STRICT, 1)).run(None, arrays)
    page_pool.trim()
    session = open_pooled(model, session_options(Mode.STRICT, 1))
    for _ in range(RUNS):
        # Outputs are pool memory as long as the caller keeps them, so they are dropped at once.
        assert all(map(np.array_equal, plain, session.run(None, arrays)))
        print(page_pool.statistics().held_bytes)
    # The runtime closes the library here; the next session finds the pool in place.
    del session
    gc.collect()
    print(_held_after_run(model, arrays))


def _held_after_run(model: Path, arrays: dict[str, feeds.Array]) -> int:
    open_pooled(model, session_options(Mode.STRICT, 1)).run(None, arrays)
    return page_pool.statistics().held_bytes


if __name__ == "__main__":
    main(Path(sys.argv[1]))

"""Runs that keep their outputs until the next has ended: the resident peak beside that in use.

python -m tests.page_plan_resident     prints both in bytes
"""

import ctypes
from pathlib import Path

from remat import page_pool
from tests.page_pool_runs import PAGE_BYTES, Native

# Pages and lives in blocks of one run; a life longer than the run is that of an output.
RUN = (
    *((4000, 3), (2000, 5), (4000, 2), (6000, 2), (3000, 3), (9000, 2), (5000, 3), (10000, 1)),
    (1500, 10),
)
RUNS = 60


def resident_peak_bytes() -> int:
    """The highest resident size of this process so far."""
    status = Path("/proc/self/status").read_text()
    return int(status.split("VmHWM:")[1].split()[0]) * 1024


def main() -> None:
    """Take, fill and free; what the pool moved at the end is nothing."""
    pool, taken, peak = Native(ctypes.CDLL(str(page_pool.library()))), 0, 0
    live: list[tuple[int, int, int]] = []
    # As much as Python itself needs for this.
    before, moved = resident_peak_bytes(), 0
    for number in range(RUNS):
        if number == RUNS - 10:
            moved = page_pool.statistics().moved_bytes
        for pages, life in RUN:
            for due, address, size in [one for one in live if one[0] <= taken]:
                pool.put_back(address)
                live.remove((due, address, size))
            address, size, _ = pool.take_and_fill(pages, 1)
            live.append((taken + life, address, size))
            taken += 1
            peak = max(peak, sum(one[2] for one in live) * PAGE_BYTES)
    assert page_pool.statistics().moved_bytes == moved > 0
    print(resident_peak_bytes() - before, peak)


if __name__ == "__main__":
    main()

"""Times of several models, run in turn in one process, so that noise hits all of them alike.

    python -m benchmarks.paired REQUEST.json     prints a JSON list of run times per model

The request has `models` ([path, mode] each), `feeds` (an .npz), `threads`, `pairs` and `seconds`.
"""

import json
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from remat import feeds
from remat.profiles.session import Mode, open_pooled, session_options

# However slow the models are.
LEAST_PAIRS = 3


def paired(
    models: Sequence[tuple[Path, Mode]], inputs: Path, threads: int, pairs: int, seconds: float
) -> list[list[int]]:
    """Nanoseconds of `pairs` runs of each model, in a fresh process; fewer runs, but at least
    three, where they take longer than `seconds`."""
    request = {
        "models": [[str(model), str(mode)] for model, mode in models],
        "feeds": str(inputs),
        "threads": threads,
        "pairs": pairs,
        "seconds": seconds,
    }
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "request.json")
        file.write_text(json.dumps(request))
        command = [sys.executable, "-m", "benchmarks.paired", str(file)]
        times: list[list[int]] = json.loads(subprocess.check_output(command))
    return times


def ratio(times: Sequence[int], others: Sequence[int]) -> float:
    """The median over pairs of the one's time divided by the other's."""
    return statistics.median(a / b for a, b in zip(times, others, strict=True))


def main(request: dict[str, Any]) -> list[list[int]]:
    """One warm run of each, then pairs."""
    arrays = feeds.load(Path(request["feeds"]))
    sessions = [
        open_pooled(model, session_options(Mode(mode), request["threads"]))
        for model, mode in request["models"]
    ]
    for session in sessions:
        session.run(None, arrays)
    times: list[list[int]] = [[] for _ in sessions]
    begin = time.perf_counter()
    for number in range(request["pairs"]):
        if number >= LEAST_PAIRS and time.perf_counter() - begin > request["seconds"]:
            break
        # Each goes first in turn.
        for index in range(len(sessions)):
            which = (index + number) % len(sessions)
            start = time.perf_counter_ns()
            sessions[which].run(None, arrays)
            times[which].append(time.perf_counter_ns() - start)
    return times


if __name__ == "__main__":
    print(json.dumps(main(json.loads(Path(sys.argv[1]).read_text()))))

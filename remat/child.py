"""Run one function of ours in a fresh process, so that what it holds or breaks stays there.

Measurements need a process nobody else has allocated in, with a fixed mmap threshold (glibc's
grows at run time, and freed tensors would stay in the heap unseen); a runtime that crashes must
not take the tool with it. A payload goes in and a result comes out as JSON files.
"""

import importlib
import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from remat.errors import BadModel, InternalError, RematError

# Every block of this size or more is its own mapping and goes back to the system when freed.
MMAP_THRESHOLD_BYTES = 65536
_TAIL_LINES = 6

Payload = dict[str, Any]


def call(target: str, payload: Payload) -> Payload:
    """The result of `target` ("remat.module:function"), called on `payload` in a fresh process
    that gives freed tensors back at once: for measuring memory.

    Raises the RematError that the function raised, or BadModel R510 where the process died.
    """
    threshold = str(MMAP_THRESHOLD_BYTES)
    fixed = {"MALLOC_MMAP_THRESHOLD_": threshold, "MALLOC_TRIM_THRESHOLD_": threshold}
    return _call(target, payload, _environment() | fixed)


def call_timed(target: str, payload: Payload) -> Payload:
    """The same in a process with the usual allocator: for measuring time. Mapping each tensor
    anew, as `call` has it, costs page faults that a caller need not pay."""
    environment = _environment()
    for name in ("MALLOC_MMAP_THRESHOLD_", "MALLOC_TRIM_THRESHOLD_"):
        environment.pop(name, None)
    return _call(target, payload, environment)


def _call(target: str, payload: Payload, environment: dict[str, str]) -> Payload:
    with tempfile.TemporaryDirectory(prefix="remat-") as folder:
        request, reply = Path(folder, "request.json"), Path(folder, "reply.json")
        request.write_text(json.dumps({"target": target, "payload": payload}))
        process = subprocess.run(
            [sys.executable, "-m", "remat.child", str(request), str(reply)],
            env=environment,
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )
        if not reply.exists():
            raise _died(process, payload)
        answer: Payload = json.loads(reply.read_text())
    if "error" in answer:
        raise _error(answer["error"])
    result: Payload = answer["result"]
    return result


def _environment() -> dict[str, str]:
    # The parent may have been started from a checkout that is not installed.
    paths = [entry for entry in sys.path if entry]
    return dict(os.environ, PYTHONPATH=os.pathsep.join(dict.fromkeys(paths)))


def _died(process: "subprocess.CompletedProcess[str]", payload: Payload) -> RematError:
    """The runtime took the process down: a crash or the system's memory limit."""
    if process.returncode == -2:
        raise KeyboardInterrupt
    model = str(payload.get("model", ""))
    tail = " | ".join(process.stderr.strip().splitlines()[-_TAIL_LINES:])
    if process.returncode > 0:
        return InternalError("R902", f"a helper process ended with {process.returncode}: {tail}")
    return BadModel(
        "R510",
        f"the runtime was killed by signal {-process.returncode} {tail}".rstrip(),
        place=model,
        fix="check that the model runs on this machine: `remat run MODEL`",
    )


_ERRORS = {kind.__name__: kind for kind in RematError.__subclasses__()}


def _error(fields: dict[str, str]) -> RematError:
    kind = _ERRORS[fields["kind"]]
    return kind(fields["code"], fields["fact"], place=fields["place"], fix=fields["fix"])


def _serve(request: Path, reply: Path) -> None:
    job = json.loads(request.read_text())
    module, _, function = job["target"].partition(":")
    if not module.startswith("remat."):
        raise ValueError(f"{module} is not ours to run")
    try:
        result = getattr(importlib.import_module(module), function)(job["payload"])
        answer = {"result": result}
    except RematError as error:
        fields = {"code": error.code, "fact": error.fact, "place": error.place, "fix": error.fix}
        answer = {"error": {"kind": type(error).__name__, **fields}}
    partial = reply.with_suffix(".part")
    partial.write_text(json.dumps(answer))
    partial.rename(reply)


if __name__ == "__main__":
    # A process that is killed cleans up nothing: whoever started it does, with the request.
    tempfile.tempdir = str(Path(sys.argv[1]).parent)
    _serve(Path(sys.argv[1]), Path(sys.argv[2]))

"""The promise: a model is written only if it keeps the budget and computes the same bits.

Held over random graphs of everything that makes memory hard to predict, with the product's own
measure, and over a sample model with an independent one that counts every allocation.
"""

import os
import re
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import onnx
import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from onnx import ModelProto, NodeProto, TensorProto, ValueInfoProto, helper, numpy_helper

from remat import feeds
from remat.child import Payload
from remat.errors import ExitCode, Infeasible, NoAnswer, RematError
from remat.options import ModelOptions, OptimizeOptions
from remat.pipeline import optimize
from remat.profiles.session import Mode, open_session, session_options
from remat.results import Optimization
from tests.malloc_hook import compile_hook, compiler, count

DOCUMENTED = (ExitCode.INFEASIBLE, ExitCode.NO_ANSWER, ExitCode.BAD_MODEL)
LEAST = "the least that is found"
MOST_REFUSALS = 2
ASKED_FIRST = "60%"
COLUMNS = 1024
FLOAT_BYTES = 4
UNARY = ("Relu", "Sigmoid", "Tanh", "Softmax", "Transpose")
KINDS = (*UNARY, "Relu", "Identity", "Reshape", "Squeeze", "Split", "Clip", "Add", "Twice", "If")
# An op, the choice of its first input and of its second.
Move = tuple[str, int, int]


@st.composite
def _moves(draw: st.DrawFn) -> list[Move]:
    """Every kind of op once, in any order, so that few graphs cover all of them."""
    kinds = draw(st.permutations(KINDS))
    return [(kind, draw(st.integers(0, 3)), draw(st.integers(0, 7))) for kind in kinds]


def _info(name: str, shape: Sequence[int]) -> ValueInfoProto:
    return helper.make_tensor_value_info(name, TensorProto.FLOAT, shape)


@dataclass(slots=True)
class _Builder:
    """A graph under construction: the shape of every float tensor, oldest first."""

    rows: int
    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)
    nodes: list[NodeProto] = field(default_factory=list)
    constants: list[TensorProto] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.shapes["x"] = (self.rows, COLUMNS)

    def add(self, kind: str, inputs: Sequence[str], shape: tuple[int, ...], **extra: Any) -> str:
        """A node with one output, whose name is the answer."""
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, inputs, [name], name=f"n_{name}", **extra))
        self.shapes[name] = shape
        return name

    def constant(self, value: Any) -> str:
        """An initializer."""
        name = f"c{len(self.constants)}"
        self.constants.append(numpy_helper.from_array(value, name))
        return name

    def partner(self, source: str, choice: int) -> str:
        """A tensor of the same shape, old ones preferred: that keeps them alive."""
        same = [name for name, shape in self.shapes.items() if shape == self.shapes[source]]
        return same[choice % len(same)]

    def move(self, move: Move) -> None:
        """Append what the move says, on one of the latest tensors."""
        kind, first, second = move
        source = list(self.shapes)[-1 - first % len(self.shapes)]
        shape = self.shapes[source]
        if kind in ("Reshape", "Squeeze"):
            self._view(kind, source)
        elif kind == "Split":
            self._split(source)
        elif kind == "Clip":
            # Without its minimum: an optional input in the middle that is left out.
            self.add("Clip", [source, "", self.constant(np.float32(0.75))], shape)
        elif kind == "Add":
            self.add("Add", [source, self.partner(source, second)], shape)
        elif kind == "Twice":
            self.add("Mul", [source, source], shape)
        elif kind == "If":
            self._if(source, self.partner(source, second))
        elif kind == "Transpose":
            self.add("Transpose", [source], shape[::-1])
        else:
            self.add(kind, [source], shape)

    def _view(self, kind: str, source: str) -> None:
        """Two aliases in a row; the second has the other aspect, or drops the added axis."""
        shape = self.shapes[source]
        if kind == "Reshape":
            target = (shape[0] * 2, shape[1] // 2)
            to = self.constant(np.array(target, np.int64))
            self.add("Reshape", [source, to], target)
        else:
            axis = self.constant(np.array([0], np.int64))
            wide = self.add("Unsqueeze", [source, axis], (1, *shape))
            del self.shapes[wide]  # every other op wants two axes
            self.add("Squeeze", [wide, axis], shape)

    def _split(self, source: str) -> None:
        """Two halves of 64 KiB or more; one of them may stay unread."""
        shape = self.shapes[source]
        if np.prod(shape) * FLOAT_BYTES < 128 << 10 or shape[0] % 2:
            self.add("Tanh", [source], shape)
            return
        names = [f"v{len(self.nodes)}_{half}" for half in range(2)]
        node = helper.make_node("Split", [source], names, f"n_{names[0]}", axis=0, num_outputs=2)
        self.nodes.append(node)
        self.shapes |= dict.fromkeys(names, (shape[0] // 2, shape[1]))

    def _if(self, left: str, right: str) -> None:
        """Both branches capture both tensors."""
        shape = self.shapes[left]
        branches = {
            f"{branch}_branch": helper.make_graph(
                [helper.make_node(kind, [left, right], [f"{branch}{len(self.nodes)}"])],
                branch,
                [],
                [_info(f"{branch}{len(self.nodes)}", shape)],
            )
            for branch, kind in (("then", "Sub"), ("else", "Mul"))
        }
        self.add("If", ["flag"], shape, **branches)

    def model(self, kept_every: int) -> ModelProto:
        """Graph outputs: the last tensor, and one in `kept_every`, most of which are read too."""
        names = [name for name in self.shapes if name != "x"]
        kept = [
            name for at, name in enumerate(names, 1) if at % kept_every == 0 or at == len(names)
        ]
        flag = helper.make_tensor_value_info("flag", TensorProto.BOOL, [])
        graph = helper.make_graph(
            self.nodes,
            "random",
            [_info("x", self.shapes["x"]), flag],
            [_info(name, self.shapes[name]) for name in kept],
            self.constants,
        )
        return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)


def _random_model(rows: int, moves: Sequence[Move], kept_every: int) -> ModelProto:
    """The moves, then a sum of the tensors still around, latest first: a training step's shape."""
    builder = _Builder(rows)
    for move in moves:
        builder.move(move)
    for name in list(builder.shapes)[-2:0:-1]:
        latest = list(builder.shapes)[-1]
        if builder.shapes[name] == builder.shapes[latest]:
            builder.add("Add", [latest, name], builder.shapes[latest])
    return builder.model(kept_every)


def _untimed(_target: str, payload: Payload) -> Payload:
    """Times decide nothing here, so no process is spent on them."""
    return {"run_ns": [1] * payload["repeats"]}


def _attempt(model: Path, mem: str) -> Optimization | RematError:
    """One call of the tool. What is refused must say so as documented and write nothing."""
    options = OptimizeOptions(
        mem=mem,
        model=ModelOptions(threads=1, repeats=1),
        output=model.with_suffix(".out.onnx"),
        time_limit_s=3.0,
    )
    try:
        return optimize(model, options)
    except RematError as error:
        return error


def _follow(model: Path, mem: str) -> Optimization | RematError:
    """The tool's answer at `mem`. For LEAST too little is asked for, and then what the tool itself
    recommends, as often as it does: a budget that only the clones' bookkeeping breaks is
    corrected by a second refusal."""
    if mem != LEAST:
        return _attempt(model, mem)
    result = _attempt(model, ASKED_FIRST)
    for _ in range(MOST_REFUSALS):
        if not isinstance(result, Infeasible | NoAnswer):
            break
        result = _attempt(model, _advice(result))
    return result


def _advice(error: RematError) -> str:
    found = re.search(r"--mem (\w+)$", error.fix)
    assert found is not None, error.render()
    return found[1]


def _assert_refused(source: Path, error: RematError) -> None:
    assert error.exit_code in DOCUMENTED, error.render()
    assert [path.name for path in source.parent.iterdir()] == [source.name]


def _outputs(model: Path, mode: Mode, arrays: dict[str, feeds.Array]) -> list[feeds.Array]:
    values: list[feeds.Array] = open_session(model, session_options(mode, 1)).run(None, arrays)
    return values


def _assert_promise(source: Path, result: Optimization) -> None:
    """In sessions of this process, on other inputs than those it was planned with."""
    output, verdict = Path(result.output), result.verdict
    assert verdict is not None
    assert verdict.failures == ()
    assert verdict.optimized.peak_bytes <= result.budget_bytes
    onnx.checker.check_model(str(output), full_check=True)
    for seed in (1, 2):
        arrays = feeds.make(onnx.load(source), seed)
        arrays["flag"] = np.array(seed == 1)
        arrays = {one.name: arrays[one.name] for one in onnx.load(source).graph.input}
        wanted = _outputs(source, Mode.DEFAULT, arrays)
        for mode in (Mode.STRICT, Mode.DEFAULT):
            got = _outputs(output, mode, arrays)
            assert [one.shape for one in got] == [one.shape for one in wanted]
            assert [one.tobytes() for one in got] == [one.tobytes() for one in wanted]


@pytest.mark.slow
def test_random_models_keep_the_promise(
    tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path_factory.mktemp("cache")))
    written = []

    # No shrinking: every example takes seconds.
    @settings(max_examples=9, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
    @given(
        rows=st.sampled_from((64, 128)),
        moves=_moves(),
        kept_every=st.integers(5, 14),
        mem=st.sampled_from((LEAST, "90%")),
    )
    def hold(rows: int, moves: list[Move], kept_every: int, mem: str) -> None:
        source = tmp_path_factory.mktemp("random") / "model.onnx"
        onnx.save_model(_random_model(rows, moves, kept_every), str(source))
        onnx.checker.check_model(str(source), full_check=True)
        with patch("remat.verify.call_timed", _untimed):
            result = _follow(source, mem)
        if isinstance(result, RematError):
            _assert_refused(source, result)
            # What the tool itself recommends has to work.
            assert mem != LEAST, result.render()
            return
        _assert_promise(source, result)
        written.append(mem)

    hold()
    assert {LEAST, "90%"} == set(written)


# Prints the live and the peak bytes that a few calls of the C allocator leave.
_ALLOCATE = """
import ctypes
libc = ctypes.CDLL(None)
libc.malloc.restype = libc.calloc.restype = libc.realloc.restype = ctypes.c_void_p
libc.aligned_alloc.restype = libc.memalign.restype = ctypes.c_void_p
libc.malloc_hook_reset()
before, mega = libc.malloc_hook_live(), 1 << 20
first, second = ctypes.c_void_p(libc.malloc(3 * mega)), ctypes.c_void_p(libc.calloc(2, mega))
second = ctypes.c_void_p(libc.realloc(second, 4 * mega))
third, fourth = ctypes.c_void_p(), ctypes.c_void_p(libc.aligned_alloc(64, 5 * mega))
assert libc.posix_memalign(ctypes.byref(third), 64, 6 * mega) == 0
assert libc.posix_memalign(ctypes.byref(third), 3, mega) != 0
fifth = ctypes.c_void_p(libc.memalign(4096, 7 * mega))
for block in (first, third, fourth):
    libc.free(block)
print(libc.malloc_hook_live() - before, libc.malloc_hook_peak() - before)
"""


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_the_counter_counts_every_kind_of_call(tmp_path: Path) -> None:
    environment = {**os.environ, "LD_PRELOAD": str(compile_hook(tmp_path))}
    command = [sys.executable, "-c", _ALLOCATE]
    printed = subprocess.run(command, env=environment, check=True, capture_output=True, text=True)
    live, peak = (int(word) for word in printed.stdout.split())
    assert 11 << 20 <= live <= (11 << 20) + 65_536
    assert 25 << 20 <= peak <= (25 << 20) + 65_536


@pytest.mark.skipif(compiler() is None, reason="no C compiler")
def test_the_promise_holds_when_every_allocation_is_counted(
    models: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path))
    source, hook = models / "cnn_train.onnx", compile_hook(tmp_path)
    options = OptimizeOptions("60%", ModelOptions(threads=1, repeats=1), time_limit_s=3.0)
    with patch("remat.verify.call_timed", _untimed):
        result = optimize(source, options)
    counted = count(hook, Path(result.output), Mode.STRICT)
    assert counted.peak_bytes <= result.budget_bytes
    predicted = result.predicted.tensors_bytes + result.predicted.workspace_bytes
    assert result.recomputed_ops > 0
    assert counted.run_bytes > 20_000_000
    assert abs(predicted - counted.run_bytes) * 100 <= counted.run_bytes, (predicted, counted)
    for mode in (Mode.DEFAULT, Mode.PLAIN):
        assert count(hook, source, mode).peak_bytes > result.budget_bytes

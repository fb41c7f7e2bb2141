"""Session options have one source: sessions, files and texts agree."""

import dataclasses
import json
from typing import Any

import onnxruntime as ort
import pytest

from remat.profiles.session import Mode, session_options, settings
from remat.runtime import recorded_mode, recorded_threads
from remat.session_text import session_options as texts


@pytest.mark.parametrize("mode", list(Mode))
def test_a_session_is_set_up_as_recorded(mode: Mode) -> None:
    wanted, got = settings(mode, 3), session_options(mode, 3)
    for name in ("enable_cpu_mem_arena", "enable_mem_pattern", "enable_mem_reuse"):
        assert getattr(got, name) == getattr(wanted, name)
    assert got.execution_order.name == wanted.execution_order
    assert got.graph_optimization_level.name == wanted.graph_optimization_level
    assert got.intra_op_num_threads == wanted.intra_op_threads == 3


@pytest.mark.parametrize("mode", list(Mode))
def test_the_python_text_makes_the_same_options(mode: Mode) -> None:
    record = settings(mode, 2)
    names: dict[str, Any] = {"onnxruntime": ort}
    exec(dict(texts(record))["Python"], names)  # noqa: S102 - our own text is what is tested
    made, wanted = names["options"], session_options(mode, 2)
    for field in dataclasses.fields(record):
        name = field.name.replace("intra_op", "intra_op_num")
        assert getattr(made, name) == getattr(wanted, name)


def test_other_languages_say_what_they_cannot_set() -> None:
    strict = dict(texts(settings(Mode.STRICT, 1)))
    assert "--pin" in strict["C"]
    assert "--pin" in strict["C#"]
    plain = dict(texts(settings(Mode.PLAIN, 1)))
    assert "--pin" not in plain["C"] + plain["C#"]
    assert "OptimizationLevel" not in plain["C"] + plain["C#"]
    unoptimized = dict(texts(settings(Mode.UNOPTIMIZED, 1)))
    assert "SetSessionGraphOptimizationLevel(options, ORT_DISABLE_ALL)" in unoptimized["C"]
    assert "ORT_DISABLE_ALL" in unoptimized["C#"]


@pytest.mark.parametrize("mode", [Mode.STRICT, Mode.PLAIN, Mode.UNOPTIMIZED])
def test_a_model_is_run_as_its_notes_say(mode: Mode) -> None:
    notes = {
        "mode": "strict" if mode is Mode.STRICT else "pinned",
        "session_options": json.dumps(dataclasses.asdict(settings(mode, 5))),
    }
    assert recorded_mode(notes) is mode
    assert recorded_threads(notes, 0) == 5
    assert recorded_mode({}) is Mode.DEFAULT

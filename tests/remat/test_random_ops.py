"""Random ops without a seed: compared to the bit all the same, in copies with seeds."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import ModelProto, TensorProto, helper, numpy_helper

from remat import feeds
from remat.onnx_io import all_nodes, read, tidy, write
from remat.profiles.session import Mode
from remat.random_ops import RANDOM_OPS, give_seeds, is_random, seeds_for, unrepeatable, unseeded
from remat.verify import EXACT, Match, Trial, compare, decide, run_trial
from tests.cli_runner import invoke

SHAPE = (64, 512)
# By the op that writes them; `noise` is a RandomNormal in both branches of an If.
RANDOM = ("normal", "uniform", "normal_like", "uniform_like", "chance", "choice", "kept", "noise")


def _info(name: str, shape: tuple[int, ...], kind: int = TensorProto.FLOAT) -> onnx.ValueInfoProto:
    return helper.make_tensor_value_info(name, kind, shape)


def _branch(scale: float) -> onnx.GraphProto:
    node = helper.make_node("RandomNormal", [], ["drawn"], shape=SHAPE, scale=scale)
    return helper.make_graph([node], "branch", [], [_info("drawn", SHAPE)])


def _model(scale: float = 2.0, first: str = "normal") -> ModelProto:
    """Every random op there is before optimization, and one output that is not random.

    `scale` is that of the If's noise; `first` is which of two random values feeds `sum`.
    """
    second = "noise" if first == "normal" else "normal"
    nodes = [
        helper.make_node("RandomNormal", [], ["normal"], shape=SHAPE),
        helper.make_node("RandomUniform", [], ["uniform"], shape=SHAPE),
        helper.make_node("RandomNormalLike", ["x"], ["normal_like"]),
        helper.make_node("RandomUniformLike", ["x"], ["uniform_like"]),
        helper.make_node("Sigmoid", ["x"], ["share"]),
        helper.make_node("Bernoulli", ["share"], ["chance"]),
        helper.make_node("Multinomial", ["x"], ["choice"], sample_size=9),
        helper.make_node("Dropout", ["share", "ratio", "training"], ["kept", "mask"]),
        helper.make_node("ReduceMax", ["x"], ["most"], keepdims=0),
        helper.make_node("Greater", ["most", "ratio"], ["flag"]),
        helper.make_node(
            *("If", ["flag"], ["noise"]), then_branch=_branch(scale), else_branch=_branch(1.0)
        ),
        helper.make_node("Sub", [first, second], ["sum"]),
    ]
    kinds = {"choice": TensorProto.INT32}
    outputs = [
        _info(name, (SHAPE[0], 9) if name == "choice" else SHAPE, kinds.get(name, 1))
        for name in (*RANDOM, "sum", "share")
    ]
    constants = {"ratio": np.float32(0.5), "training": np.array(True)}
    weights = [numpy_helper.from_array(np.array(v), name) for name, v in constants.items()]
    graph = helper.make_graph(nodes, "random", [_info("x", SHAPE)], outputs, weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 20)], ir_version=10)
    tidy(model)
    onnx.checker.check_model(model, full_check=True)
    return model


def _trial(model: ModelProto, path: Path) -> Trial:
    write(model, path)
    inputs = path.with_name("feeds.npz")
    feeds.save(feeds.make(model, 0), inputs)
    return Trial(path, Mode.STRICT, inputs, 1, 0, path.with_suffix(".out.npz"))


def _silent(_stage: str, _done: int, _total: int) -> None:
    """Progress of nobody's interest."""


def _equal(reference: Path, other: Path) -> dict[str, bool]:
    assert reference.exists()
    return {one.output: one.bitwise for one in compare(reference, other, EXACT, frozenset())}


def test_what_is_random_is_known() -> None:
    model = _model()
    named = {node.op_type for node in all_nodes(model.graph)} & RANDOM_OPS
    assert len(named) == 7
    assert len(unseeded(model)) == 9
    assert unrepeatable(model) == {*RANDOM, "mask", "sum"}
    assert [node.op_type for node in model.graph.node if is_random(node)][-1] == "If"


@pytest.fixture
def seeded() -> ModelProto:
    """All ops of the model with seeds."""
    model = _model()
    give_seeds(model, seeds_for([model]))
    onnx.checker.check_model(model, full_check=True)
    assert unseeded(model) == ()
    return model


def test_seeds_make_two_processes_draw_the_same(seeded: ModelProto, tmp_path: Path) -> None:
    trials = [_trial(seeded, tmp_path / f"{name}.onnx") for name in ("one", "two")]
    for trial in trials:
        run_trial(trial)
    wanted, got = (trial.model.with_suffix(".out.npz") for trial in trials)
    assert all(_equal(wanted, got).values())
    drawn = [array.tobytes() for name, array in feeds.load(wanted).items() if name != "share"]
    assert len({*drawn}) == len(drawn)


def test_without_seeds_they_differ(tmp_path: Path) -> None:
    trials = [_trial(_model(), tmp_path / f"{name}.onnx") for name in ("one", "two")]
    for trial in trials:
        run_trial(trial)
    wanted, got = (trial.model.with_suffix(".out.npz") for trial in trials)
    assert _equal(wanted, got) == {name: name == "share" for name in (*RANDOM, "sum", "share")}


def _decided(one: ModelProto, other: ModelProto, folder: Path) -> tuple[set[str], int]:
    """Which outputs differ, and how many ops were seeded."""
    original, optimized = _trial(one, folder / "one.onnx"), _trial(other, folder / "two.onnx")
    verdict = decide(Match(original, optimized, original), _silent)
    assert all(output.note == "" for output in verdict.outputs)
    return {one.output for one in verdict.outputs if not one.bitwise}, verdict.seeded_ops


@pytest.mark.parametrize(
    ("other", "wrong"),
    [
        (_model(), set[str]()),
        # What types and shapes cannot tell.
        (_model(scale=3.0), {"noise", "sum"}),
        (_model(first="noise"), {"sum"}),
    ],
    ids=["the same", "another scale in a branch", "two values exchanged"],
)
def test_verify_tells_random_models_apart(
    other: ModelProto, wrong: set[str], tmp_path: Path
) -> None:
    assert _decided(_model(), other, tmp_path) == (wrong, 9)
    assert unseeded(read(tmp_path / "two.onnx")) != ()


def test_where_names_differ_all_seeds_are_the_same(tmp_path: Path) -> None:
    other = _model()
    for node in other.graph.node:
        if node.op_type == "Bernoulli":
            node.output[0] = "inner"
    other.graph.node.append(helper.make_node("Identity", ["inner"], ["chance"], name="again"))
    assert len({*seeds_for([_model(), other]).values()}) == 1
    assert _decided(_model(), other, tmp_path) == (set(), 9)


def test_where_seeds_are_no_help_type_and_shape_are_compared(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(_model: ModelProto, _seeds: dict[str, int]) -> None:
        """As a provider whose kernels ignore seeds."""

    monkeypatch.setattr("remat.verify.give_seeds", refuse)
    trials = [_trial(_model(), tmp_path / f"{name}.onnx") for name in ("one", "two")]
    verdict = decide(Match(trials[0], trials[1], trials[0]), _silent)
    assert verdict.failures == ()
    notes = {one.output: one.note for one in verdict.outputs}
    assert notes.pop("share") == ""
    assert set(notes.values()) == {"random: only type and shape are compared"}


def test_optimize_and_verify_seed_copies_and_leave_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("REMAT_CACHE_DIR", str(tmp_path / "cache"))
    source, output = tmp_path / "model.onnx", tmp_path / "out.onnx"
    write(_model(), source)
    verdict = _json("optimize", str(source), "--mem", "110%", "-o", str(output))["verdict"]
    again = _json("verify", str(source), str(output), "--repeats", "1")
    for one in (verdict, again):
        assert one["failures"] == []
        assert [output["bitwise"] for output in one["outputs"]] == [True] * 10
        assert one["seeded_ops"] == 9
    assert len(unseeded(read(output))) == 9


def _json(*arguments: str) -> dict[str, Any]:
    result = invoke(*arguments, "--threads", "1", "--json")
    assert result.exit_code == 0, result.stdout + result.stderr
    found: dict[str, Any] = json.loads(result.stdout)
    return found

"""Problem files: what is written is read again, what others publish is read, the rest refused."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from remat.errors import UsageError
from remat.problem import CONSTANT, NONE, Problem
from remat.problem_file import ProblemFile, from_text, read, to_text
from remat.simulate import strict
from tests.problems import NO_HOISTED, random_problem, training_like


def _own(*ops: Any, **more: Any) -> str:
    return json.dumps({"format": "remat.problem", "version": 1, "ops": ops, **more})


def _graph(nodes: Any, links: Any, **more: Any) -> str:
    return json.dumps({"nodes": nodes, "links": links, **more})


A = {"name": "a", "time_ns": 3, "writes": [{"name": "x", "bytes": 8}]}
B = {"name": "b", "time_ns": 4, "reads": ["x"], "writes": [{"name": "y", "bytes": 8}]}
ALIAS = {"name": "y", "bytes": 1, "alias_of": "x"}
N0 = {"id": 0, "cost_cpu": 3, "cost_ram": 5}
N1 = {"id": 1, "cost_cpu": 4, "cost_ram": 6}


def _filed(problem: Problem) -> Problem:
    return replace(problem, reuse_class=(NONE,) * len(problem.value_names))


@pytest.mark.parametrize("seed", range(30))
def test_what_is_written_is_read_again(seed: int) -> None:
    problem = _filed(random_problem(seed, 12, NO_HOISTED))
    file = ProblemFile("some", problem, problem.limit_bytes)
    assert from_text(to_text(file), "other") == file


def test_a_problem_of_a_model_keeps_what_the_format_lacks_to_itself() -> None:
    problem = replace(random_problem(1, 12, NO_HOISTED), hoisted=(True,) * 12)
    with pytest.raises(ValueError, match="no file format"):
        to_text(ProblemFile("some", problem, 1))


def test_what_is_left_out_is_nothing() -> None:
    read_back = from_text(_own(A, B), "stem")
    problem = read_back.problem
    assert (read_back.name, read_back.budget_bytes) == ("stem", 0)
    assert problem.workspace_bytes == (0, 0)
    assert problem.alias_of == (NONE, NONE)
    assert problem.recomputable == (True, True)
    assert not problem.kept


def test_memory_that_is_shared() -> None:
    shared = [{"name": "y", "bytes": 8, "alias_of": "x"}, {"name": "z", "bytes": 8}]
    shared[1] |= {"in_place_of": ["x"], "kept": True}
    constant = {"name": "c", "time_ns": 0, "writes": [{"name": "k", "bytes": 8, "alias_of": True}]}
    problem = from_text(_own(A, {**B, "writes": shared}, constant), "stem").problem
    assert problem.alias_of == (NONE, 0, NONE, CONSTANT)
    assert problem.inplace_of == ((), (), (0,), ())
    assert problem.kept == {2}


def test_a_node_link_graph() -> None:
    nodes = [{**N1, "name": "loss"}, {**N0, "name": "conv"}]
    text = _graph(nodes, [{"source": 0, "target": 1}], graph={"name": "net"})
    file = from_text(text, "stem")
    assert file.name == "net"
    assert file.problem.op_names == ("conv", "loss")
    assert file.problem.reads == ((), (0,))
    assert file.problem.value_bytes == (5, 6)
    assert strict(file.problem, (0, 1)).peak_bytes == 11


def test_a_layered_graph_with_its_own_order_and_numbers_for_keys() -> None:
    nodes = [{"name": n, "duration": n + 0.5, "out_cost": 2, "param_cost": 9} for n in range(3)]
    links = [{"0": 0, "1": 2}, {"0": 0, "1": 2}]
    problem = from_text(_graph(nodes, links, graph={"order": [1, 0, 2]}), "stem").problem
    assert problem.op_names == ("1", "0", "2")
    assert problem.time_ns == (2, 1, 3)
    assert problem.reads == ((), (), (1,))


def test_nodes_of_one_name_are_told_apart() -> None:
    nodes = [{**N0, "name": "conv"}, {**N1, "name": "conv"}]
    assert from_text(_graph(nodes, []), "").problem.op_names == ("conv (0)", "conv (1)")


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("{", "not JSON"),
        ("[]", "neither"),
        ("{}", "neither"),
        (_own(A, version=0), "version"),
        (_own(A, budget_bytes=-1), "budget_bytes"),
        (_own(A, budget_bytes=True), "budget_bytes"),
        (_own(7), "ops[0] is not an object"),
        (_own({**A, "name": ""}), "name is not a text"),
        (_own(A, {**B, "name": "a"}), "another op"),
        (_own({**A, "time_ns": 1.5}), "time_ns"),
        (_own({**A, "time_ns": 2**60}), "time_ns"),
        (_own({**A, "recomputable": 1}), "recomputable"),
        (_own(B, A), "no earlier op writes"),
        (_own({**B, "reads": "x"}), "reads is not a list"),
        (_own(A, {**B, "writes": [3]}), "ops[1].writes[0] is not an object"),
        (_own(A, {**B, "writes": [{"name": "x", "bytes": 1}]}), "written twice"),
        (_own(A, {**B, "reads": [], "writes": [ALIAS]}), "does not read"),
        (_graph([N0, N0], []), "nodes[1]"),
        (_graph([3], []), "nodes[0]"),
        (_graph([N0], [{"source": 0, "target": 1}]), "links[0]"),
        (_graph([N0], [{"source": [], "target": {}}]), "links[0]"),
        (_graph([N0, N1], [{"source": 0, "target": 1}, {"source": 1, "target": 0}]), "go round"),
        (_graph([{"id": 0, "cost_cpu": 1}], []), "cost_ram or out_cost"),
        (_graph([{**N0, "cost_cpu": "3"}], []), "cost_cpu or duration"),
        (_graph([{**N0, "cost_cpu": float("nan")}], []), "cost_cpu or duration"),
        (_graph([N0, N1], [], graph={"order": [0]}), "each node once"),
        (_graph([N0, N1], [], graph={"order": [0, {}]}), "each node once"),
        (_graph([N0, N1], [{"source": 0, "target": 1}], graph={"order": [1, 0]}), "before one"),
    ],
)  # fmt: skip
def test_what_is_no_problem_is_refused(text: str, fact: str) -> None:
    with pytest.raises(UsageError) as refused:
        from_text(text, "stem")
    assert refused.value.code == "R260"
    assert fact in refused.value.fact


def test_a_later_version_is_refused_by_name() -> None:
    with pytest.raises(UsageError) as refused:
        from_text(_own(A, version=2), "stem")
    assert refused.value.code == "R261"


def test_a_file_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "none.json")
    assert (refused.value.code, refused.value.place) == ("R262", str(tmp_path / "none.json"))
    (tmp_path / "latin.json").write_bytes(b"\xff")
    with pytest.raises(UsageError) as refused:
        read(tmp_path / "latin.json")
    assert (refused.value.code, refused.value.place) == ("R260", str(tmp_path / "latin.json"))


def test_the_text_is_one_op_per_line() -> None:
    problem = _filed(training_like(1, 3, 80))
    lines = to_text(ProblemFile("t", problem, problem.limit_bytes)).splitlines()
    assert sum(line.startswith("    {") for line in lines) == len(problem.op_names)

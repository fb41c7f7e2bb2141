"""Schedule files: what is written is read, byte for byte, today and from stored files."""

import json
from dataclasses import fields, is_dataclass
from enum import StrEnum
from importlib import resources
from pathlib import Path
from typing import Any, get_args, get_type_hints

import jsonschema
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remat.errors import UsageError
from remat.files import write_text
from remat.schedule import BoundKind, Status
from remat.schedule_file import (
    CostsRecord,
    Mode,
    ModelRecord,
    PredictionRecord,
    ScheduleFile,
    SessionRecord,
    SolverRecord,
    StepRecord,
    from_text,
    read,
    to_text,
)

STORED = Path(__file__).parent / "schedules" / "version_1.json"
COUNTS = st.integers(0, 2**62)
TEXTS = st.text(max_size=12)
HASHES = st.text("0123456789abcdef", min_size=64, max_size=64)
SCHEMA = json.loads(resources.files("remat").joinpath("schedule.schema.json").read_text())
EXAMPLE = ScheduleFile(
    remat_version="0.1.0",
    model=ModelRecord("net.onnx", "0" * 64),
    optimized_graph_sha256="1" * 64,
    costs=CostsRecord("2" * 64, "CPUExecutionProvider", 2, "some cpu", "1.23.0"),
    cpu_family="x86_64",
    budget_bytes=60,
    budget_text="60%",
    as_is_bytes=100,
    mode=Mode.STRICT,
    session_options=SessionRecord("ORT_DISABLE_ALL", "PRIORITY_BASED", False, False, False, 2),
    solver=SolverRecord("greedy", Status.FEASIBLE, 0, 90, BoundKind.ORDER_FREE),
    predicted=PredictionRecord(58, 10, 40, 5, 3, 95, 80),
    steps=(StepRecord("a", "cpu", "", 40), StepRecord("a_again", "cpu", "a", 45)),
)


def _predictions() -> st.SearchStrategy[PredictionRecord]:
    parts = st.tuples(COUNTS, COUNTS, COUNTS, COUNTS)
    times = st.tuples(COUNTS, COUNTS)
    return st.builds(lambda p, t: PredictionRecord(sum(p), *p, *t), parts, times)


def _schedules() -> st.SearchStrategy[ScheduleFile]:
    return st.builds(
        ScheduleFile,
        remat_version=TEXTS,
        model=st.builds(ModelRecord, TEXTS, HASHES),
        optimized_graph_sha256=HASHES,
        costs=st.builds(CostsRecord, HASHES, TEXTS, COUNTS, TEXTS, TEXTS),
        cpu_family=TEXTS,
        budget_bytes=COUNTS,
        budget_text=TEXTS,
        as_is_bytes=COUNTS,
        mode=st.sampled_from(Mode),
        session_options=st.builds(
            SessionRecord, TEXTS, TEXTS, st.booleans(), st.booleans(), st.booleans(), COUNTS
        ),
        solver=st.builds(
            SolverRecord, TEXTS, st.sampled_from(Status), COUNTS, COUNTS, st.sampled_from(BoundKind)
        ),
        predicted=_predictions(),
        steps=st.lists(st.builds(StepRecord, TEXTS, TEXTS, TEXTS, COUNTS), max_size=4).map(tuple),
    )


@given(_schedules())
@settings(max_examples=60, deadline=None)
def test_what_is_written_is_read_and_fits_the_schema(schedule: ScheduleFile) -> None:
    text = to_text(schedule)
    assert from_text(text) == schedule
    assert to_text(from_text(text)) == text
    jsonschema.validate(json.loads(text), SCHEMA, cls=jsonschema.Draft202012Validator)


def test_the_schema_is_a_schema_and_tells_a_wrong_file() -> None:
    jsonschema.Draft202012Validator.check_schema(SCHEMA)
    data = json.loads(to_text(EXAMPLE))
    data["budget_bytes"] = -1
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate(data, SCHEMA, cls=jsonschema.Draft202012Validator)


def _schema_of(kind: Any) -> Any:
    if not (isinstance(kind, type) and is_dataclass(kind)):
        return sorted(kind) if isinstance(kind, type) and issubclass(kind, StrEnum) else None
    return {name: _schema_of(value) for name, value in get_type_hints(kind).items()}


def _published(schema: dict[str, Any]) -> Any:
    if "properties" not in schema:
        return sorted(schema["enum"]) if "enum" in schema else None
    assert schema["required"] == list(schema["properties"])
    return {name: _published(value) for name, value in schema["properties"].items()}


def test_the_schema_names_every_field_in_the_order_of_the_file() -> None:
    published = _published(SCHEMA)
    assert list(published)[:2] == ["format", "version"]
    del published["format"], published["version"]
    assert published == _schema_of(ScheduleFile)
    assert list(published) == [item.name for item in fields(ScheduleFile)]
    (step, _) = get_args(get_type_hints(ScheduleFile)["steps"])
    assert SCHEMA["properties"]["steps"]["items"]["minItems"] == len(fields(step))


def test_one_step_a_line() -> None:
    lines = to_text(EXAMPLE).splitlines()
    assert '    ["a", "cpu", "", 40],' in lines
    assert '    ["a_again", "cpu", "a", 45]' in lines
    assert EXAMPLE.recomputed_ops == 1


def test_a_file_holds_the_text(tmp_path: Path) -> None:
    path = tmp_path / "s.json"
    write_text(path, to_text(EXAMPLE))
    assert read(path) == EXAMPLE
    assert path.read_bytes() == to_text(EXAMPLE).encode()


def test_a_stored_file_of_version_1_stays_readable() -> None:
    assert read(STORED) == EXAMPLE


def test_unknown_keys_are_ignored() -> None:
    data = json.loads(to_text(EXAMPLE))
    data["later"] = {"x": 1.5}
    data["model"]["later"] = None
    data["steps"][0].append("later")
    assert from_text(json.dumps(data)) == EXAMPLE


def test_a_later_version_asks_for_a_newer_remat() -> None:
    text = to_text(EXAMPLE).replace('"version": 1', '"version": 2')
    with pytest.raises(UsageError, match="R251") as caught:
        from_text(text, "s.json")
    assert "newer remat" in caught.value.fix
    assert caught.value.place == "s.json"


def _without(name: str) -> str:
    data = json.loads(to_text(EXAMPLE))
    del data[name]
    return json.dumps(data)


def _with(path: str, value: Any) -> str:
    data = json.loads(to_text(EXAMPLE))
    *parents, last = path.split(".")
    place = data
    for parent in parents:
        place = place[parent]
    place[last] = value
    return json.dumps(data)


@pytest.mark.parametrize(
    ("text", "fact"),
    [
        ("", "not JSON"),
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        (f'{{"x": {"9" * 5000}}}', "not JSON"),
        ("[]", "format"),
        ("null", "format"),
        ('{"format": "remat.costs", "version": 1}', "format"),
        (_with("version", 0), "version"),
        (_with("version", True), "version"),
        (_without("solver"), "solver is missing"),
        (_without("steps"), "steps is not a list"),
        (_with("model", "net"), "model is not an object"),
        (_with("model.sha256", "beef"), "SHA-256"),
        (_with("budget_bytes", 1.0), "budget_bytes is not an integer"),
        (_with("budget_bytes", True), "budget_bytes is not an integer"),
        (_with("budget_bytes", -1), "below 0"),
        (_with("budget_text", 60), "budget_text is not a text"),
        (_with("mode", "loose"), "mode is not one of strict, pinned"),
        (_with("mode", ["strict"]), "mode is not one of"),
        (_with("session_options.enable_mem_reuse", 0), "true or false"),
        (_with("predicted.peak_bytes", 59), "not the sum"),
        (_with("steps", [["a", "cpu", ""]]), r"steps\[0\] has 3 entries"),
        (_with("steps", [["a", "cpu", "", "1"]]), r"steps\[0\].live_bytes"),
        (_with("steps", ["a"]), r"steps\[0\] is not a list"),
    ],
)
def test_a_malformed_file_is_a_usage_error_that_names_the_place(text: str, fact: str) -> None:
    with pytest.raises(UsageError, match=f"R250.*{fact}") as caught:
        from_text(text, "s.json")
    assert caught.value.place.startswith("s.json")


def test_an_unreadable_file_is_a_usage_error(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="R252"):
        read(tmp_path / "none.json")
    with pytest.raises(UsageError, match="R252"):
        read(tmp_path)
    (tmp_path / "binary").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"R250.*UTF-8"):
        read(tmp_path / "binary")

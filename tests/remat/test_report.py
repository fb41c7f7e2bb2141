"""Reports: golden texts, and that nothing that was found out is left unsaid."""

import csv
import io
import json
from dataclasses import fields, replace
from pathlib import Path

import pytest

from remat.report import (
    inspection_text,
    measurement_text,
    outputs_summary,
    profile_text,
    verdict_text,
)
from remat.report_data import Result, as_json, profile_csv
from remat.report_optimize import optimization_text
from remat.schedule import BoundKind
from remat.text_table import aligned, named
from tests import result_samples as samples

GOLDEN = Path(__file__).parent / "reports"


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("inspect", inspection_text(samples.INSPECTION)),
        ("profile", profile_text(samples.PROFILE)),
        ("run", measurement_text(samples.OPTIMIZED)),
        ("verify_good", verdict_text(samples.GOOD)),
        ("verify_bad", verdict_text(samples.BAD)),
        ("verify_enforced", verdict_text(samples.ENFORCED)),
        ("optimize", optimization_text(samples.OPTIMIZATION)),
    ],
)
def test_golden_texts(name: str, text: str) -> None:
    assert text + "\n" == (GOLDEN / f"{name}.txt").read_text()


@pytest.mark.parametrize(
    ("verb", "result"),
    [
        ("inspect", samples.INSPECTION),
        ("profile", samples.PROFILE),
        ("run", samples.OPTIMIZED),
        ("verify", samples.BAD),
        ("optimize", samples.OPTIMIZATION),
    ],
)
def test_json_holds_every_field_under_its_name(verb: str, result: Result) -> None:
    data = json.loads(as_json(verb, result), parse_constant=pytest.fail)
    assert data["format"] == f"remat.report.{verb}"
    assert data["version"] == 1
    assert {item.name for item in fields(result)} <= data.keys()


def test_json_has_sums_mappings_and_numbers_that_are_none() -> None:
    data = json.loads(as_json("optimize", samples.OPTIMIZATION))
    assert data["predicted"]["total_bytes"] == samples.PEAK.total_bytes
    assert data["verdict"]["optimized"]["peak_bytes"] == 55 * samples.MIB
    assert data["session_options"]["C#"] == "X();"
    assert data["status"] == "feasible"
    assert data["verdict"]["enforcement"] is None
    verdict = json.loads(as_json("verify", samples.ENFORCED))
    assert verdict["enforcement"] == {
        "limit_bytes": 60 * samples.MIB,
        "original_survived": False,
        "optimized_survived": True,
    }
    verdict = json.loads(as_json("verify", samples.BAD))
    assert verdict["outputs"][2]["worst_relative"] == "nan"


def test_csv_is_one_line_an_op() -> None:
    rows = list(csv.DictReader(io.StringIO(profile_csv(samples.PROFILE))))
    assert [row["name"] for row in rows] == ["conv_1", "relu, 1", "reshape"]
    assert rows[0]["time_ns"] == "750000"
    assert rows[2]["alias"] == "0 1"


def test_optimize_says_what_was_not_done() -> None:
    bare = replace(
        samples.OPTIMIZATION,
        output="",
        schedule_file="",
        verdict=None,
        interrupted=True,
        bound_kind=BoundKind.NONE,
        session_options=(),
        budget_bytes=0,
    )
    text = optimization_text(bare)
    assert "nothing (--check)" in text
    assert "not measured" in text
    assert "interrupted" in text
    assert "nothing about faster schedules" in text
    assert "none applies" in text
    assert "session options" not in text


def test_a_bound_for_one_order_says_so() -> None:
    fixed = replace(samples.OPTIMIZATION, bound_kind=BoundKind.FIXED_ORDER)
    assert "keeps the order" in optimization_text(fixed)


def test_failures_are_shown_by_optimize_too() -> None:
    text = optimization_text(replace(samples.OPTIMIZATION, verdict=samples.BAD))
    assert "FAILED: output 'w' differs" in text


def test_the_worst_output_is_the_wrong_one_even_if_it_is_not_a_number() -> None:
    assert "worst 'w'" in outputs_summary((samples.WRONG, samples.CLOSE))
    assert "worst 'z'" in outputs_summary((samples.SAME, samples.CLOSE))
    assert outputs_summary(()) == "not compared"
    assert outputs_summary((samples.SAME,)) == "1 output, equal to the bit"


def test_a_random_output_is_named_and_spoils_no_proof() -> None:
    random = replace(samples.CLOSE, note="random: only type and shape are compared")
    text = outputs_summary((samples.SAME, random))
    assert text == "1 output, equal to the bit; 'z' random: only type and shape are compared"
    assert outputs_summary((random,)).startswith("'z' random")


def test_no_time_is_shown_as_predicted_where_none_was() -> None:
    text = verdict_text(replace(samples.GOOD, predicted_ns=0))
    assert "54.0 MiB" in text
    assert "0 ns" not in text
    assert "fastest run 100 us (1.1 %) above it" in verdict_text(samples.GOOD)
    assert "prediction  peak 1.0 MiB (1.9 %) above it\n" in text


def test_one_run_has_no_median() -> None:
    one = replace(samples.ORIGINAL, run_ns=(9_000_000,))
    assert "9.00 ms" in measurement_text(one)
    assert "median" not in measurement_text(one)


def test_columns_line_up() -> None:
    assert aligned(("a", "bb"), [("xx", "1")], left=(0,)) == "a   bb\nxx   1"
    assert aligned(("a",), []) == "a"
    assert named([]) == ""

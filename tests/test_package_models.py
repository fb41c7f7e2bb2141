"""Graphs nobody here made: models of the onnx package are done, or refused as documented."""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest

from benchmarks.package_models import (
    WORKERS,
    Job,
    Outcome,
    attempts,
    light_models,
    node_cases_of,
    write_case,
)
from remat.errors import ExitCode

# Name of the case, and the package's module that makes it.
DONE = {
    "test_add_bcast": "add",
    "test_add_int8": "add",
    "test_batchnorm_example_training_mode": "batch_normalization",
    "test_cast_FLOAT_to_FLOAT8E4M3FN": "cast",
    "test_compress_0": "compress",
    "test_constantofshape_int_shape_zero": "constantofshape",
    "test_einsum_scalar": "einsum",
    "test_identity": "identity",
    "test_if": "if_",
    "test_isnan_float16": "isnan",
    "test_loop11": "loop",
    "test_lstm_defaults": "lstm",
    "test_qlinearmatmul_2D_int8_float32": "qlinearmatmul",
    "test_scan9_sum": "scan",
    "test_softmax_example_expanded": "softmax",
    "test_split_zero_size_splits_opset18": "split",
    "test_string_concat": "string_concat",
    "test_training_dropout_default_mask": "dropout",
}
REFUSED = {
    "test_cast_BFLOAT16_to_FLOAT": "cast",
    "test_cast_FLOAT_to_BFLOAT16": "cast",
    "test_cast_FLOAT_to_INT4": "cast",
    "test_identity_opt": "identity",
    "test_identity_sequence": "identity",
    "test_if_seq": "if_",
    "test_loop13_seq": "loop",
    "test_split_to_sequence_1": "splittosequence",
}


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Outcome]]:
    """What became of every model of the selection, two at a time."""
    folder = tmp_path_factory.mktemp("package")
    selection = DONE | REFUSED
    cases = node_cases_of(sorted(set(selection.values())))
    todo = [write_case(cases[name], folder) for name in selection]
    todo += [Job(path, None) for path in light_models() if path.stem == "light_squeezenet"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("REMAT_CACHE_DIR", str(folder / "cache"))
        with ProcessPoolExecutor(WORKERS) as pool:
            yield {job.model.stem: one for job, one in attempts(todo, "100%", pool)}


@pytest.mark.parametrize("name", [*DONE, "light_squeezenet"])
def test_a_budget_of_all_is_kept_with_equal_outputs(
    outcomes: dict[str, Outcome], name: str
) -> None:
    one = outcomes[name]
    # An older runtime may lack the operator set: its refusal is documented as well.
    assert one.result in ("ok", "R505"), one.fact


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_not_a_numpy_tensor_is_refused_by_name(
    outcomes: dict[str, Outcome], name: str
) -> None:
    one = outcomes[name]
    assert one.exit_code == ExitCode.BAD_MODEL, one.result
    assert one.result in ("R504", "R505"), one.fact
    assert "input" in one.fact or "output" in one.fact or "does not accept" in one.fact


def test_most_of_the_selection_is_done(outcomes: dict[str, Outcome]) -> None:
    done = [one.model for one in outcomes.values() if one.result == "ok"]
    assert len(done) > len(DONE) // 2, done


def test_inputs_that_numpy_cannot_store_are_left_to_be_made_up(tmp_path: Path) -> None:
    cases = node_cases_of(["identity", "cast", "string_concat"])
    assert write_case(cases["test_identity_sequence"], tmp_path).inputs is None
    assert write_case(cases["test_cast_BFLOAT16_to_FLOAT"], tmp_path).inputs is None
    assert write_case(cases["test_string_concat"], tmp_path).inputs is not None

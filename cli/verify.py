"""`remat verify`: do two models agree, and does the second keep the budget?"""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import click

from remat.cli.options import (
    argument,
    common_options,
    mem_option,
    model_options,
    packed,
    pipeline,
    repeats_option,
    tolerance_option,
)
from remat.cli.progress import shown
from remat.errors import CheckFailed
from remat.options import ModelOptions, VerifyOptions

if TYPE_CHECKING:
    from remat.results import Verdict


@click.command("verify")
@argument("original", "ORIGINAL")
@argument("optimized", "OPTIMIZED")
@mem_option(required=False, text="Judge the measured peak of OPTIMIZED by this limit, too.")
@model_options
@tolerance_option("--rtol", "Relative tolerance of outputs; with --atol 0: bitwise equal.")
@tolerance_option("--atol", "Absolute tolerance of outputs; with --rtol 0: bitwise equal.")
@repeats_option(VerifyOptions().repeats, "Runs per measurement.")
@click.option(
    "--enforce",
    is_flag=True,
    help="Run both under a hard limit of the operating system, too; OPTIMIZED must come through.",
)
@common_options
@packed(ModelOptions, "model")
@packed(VerifyOptions, "options")
def command(
    original: Path,
    optimized: Path,
    options: VerifyOptions,
    *,
    as_json: bool,
    quiet: bool,
) -> None:
    """Compare two models, and judge the second.

    Each runs in a process of its own. Outputs must be equal to the bit
    unless tolerances are given. Ends with exit code 1 if anything does not hold.
    """
    from remat.report import verdict_text
    from remat.report_data import as_json as to_json

    verbs = pipeline()
    with shown(quiet=quiet) as progress:
        model = replace(options.model, progress=progress)
        given = replace(options, model=model, repeats=model.repeats)
        verdict: Verdict = verbs.verify(original, optimized, given)
    click.echo(to_json("verify", verdict) if as_json else verdict_text(verdict))
    if verdict.failures:
        raise _failed(verdict, optimized)


def _failed(verdict: "Verdict", optimized: Path) -> CheckFailed:
    more = len(verdict.failures) - 1
    fact = verdict.failures[0] + (f", and {more} more" if more else "")
    return CheckFailed("R100", fact, place=str(optimized))

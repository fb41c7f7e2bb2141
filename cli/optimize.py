"""`remat optimize`: the model within the budget, proven by measurement."""

from dataclasses import replace
from pathlib import Path

import click

from remat.cli.options import (
    FILE,
    argument,
    common_options,
    force_option,
    mem_option,
    model_options,
    output_option,
    packed,
    pipeline,
    portable_option,
    repeats_option,
    seconds_option,
    stacked,
)
from remat.cli.progress import shown
from remat.options import ModelOptions, OptimizeOptions

_FILES = stacked(
    output_option("-o", "--output", metavar="OUT", text="Write the model here."),
    output_option("--schedule", metavar="S.json", text="Write the schedule here."),
    click.option("--costs", type=FILE, metavar="C.json", help="Take costs from `remat profile`."),
    force_option,
)
_SEARCH = stacked(
    click.option(
        "--pin",
        is_flag=True,
        help="Fix the order within the model, so that a plain session keeps it.",
    ),
    seconds_option,
    click.option(
        "--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the search."
    ),
    repeats_option(ModelOptions().repeats, "Runs per measurement; the fastest counts."),
)
_PROOF = stacked(
    click.option("--check", is_flag=True, help="Write nothing; say by the exit code if it fits."),
    click.option(
        "--no-verify",
        "verify",
        flag_value=False,
        default=True,
        help="Skip the runs of both models that compare outputs and measure the peak.",
    ),
)


@click.command("optimize")
@argument("path", "MODEL")
@mem_option(
    required=True,
    text="The memory limit: 4GB, 512MiB, or 60% of the peak as it is. It covers weights, "
    "tensors, workspace and the session's overhead.",
)
@_FILES
@model_options
@portable_option
@_SEARCH
@_PROOF
@common_options
@packed(ModelOptions, "model")
@packed(OptimizeOptions, "options")
def command(path: Path, options: OptimizeOptions, *, as_json: bool, quiet: bool) -> None:
    """Make MODEL run within a memory limit.

    Writes a model that computes the same outputs, and the schedule that says what was decided
    and what is proven. Ctrl-C ends the search and keeps the best schedule found so far.
    """
    from remat.report_data import as_json as to_json
    from remat.report_optimize import optimization_text

    verbs = pipeline()
    with shown(quiet=quiet) as progress:
        model = replace(options.model, progress=progress)
        optimization = verbs.optimize(path, replace(options, model=model))
    click.echo(to_json("optimize", optimization) if as_json else optimization_text(optimization))

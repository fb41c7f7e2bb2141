"""`remat run`: one model in a fresh process, its time and its peak."""

from dataclasses import replace
from pathlib import Path

import click

from remat.cli.options import (
    argument,
    common_options,
    force_option,
    model_options,
    output_option,
    packed,
    pipeline,
)
from remat.cli.progress import shown
from remat.options import ModelOptions


@click.command("run")
@argument("model", "MODEL")
@model_options
@output_option("--outputs", metavar="Y.npz", text="Write the outputs of the last run here.")
@click.option(
    "--repeat", type=click.IntRange(1), default=1, show_default=True, help="How many runs."
)
@force_option
@common_options
@packed(ModelOptions, "options")
def command(
    model: Path,
    options: ModelOptions,
    *,
    outputs: Path | None,
    repeat: int,
    force: bool,
    as_json: bool,
    quiet: bool,
) -> None:
    """Run MODEL; measure its time and peak.

    It runs in a fresh process.
    A model that `remat optimize` wrote is run with the session options it was made for.
    """
    from remat.report import measurement_text
    from remat.report_data import as_json as to_json

    verbs = pipeline()
    with shown(quiet=quiet) as progress:
        given = replace(options, progress=progress)
        measurement = verbs.run(model, given, repeat=repeat, outputs=outputs, force=force)
    click.echo(to_json("run", measurement) if as_json else measurement_text(measurement))

"""`remat inspect`: what the model holds as it is, and how little it could do with."""

from dataclasses import replace
from pathlib import Path

import click

from remat.cli.options import (
    argument,
    common_options,
    model_options,
    packed,
    pipeline,
    portable_option,
)
from remat.cli.progress import shown
from remat.options import ModelOptions


@click.command("inspect")
@argument("model", "MODEL")
@click.option(
    "--top",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="How many of the largest buffers at the peak to list.",
)
@model_options
@portable_option
@common_options
@packed(ModelOptions, "options")
def command(model: Path, options: ModelOptions, *, top: int, as_json: bool, quiet: bool) -> None:
    """Show where MODEL's memory goes.

    The peak is that of ONNX Runtime's default order without arena. Also shown: the least
    memory for which a schedule was found, and the least that every schedule needs.
    """
    from remat.report import inspection_text
    from remat.report_data import as_json as to_json

    verbs = pipeline()
    with shown(quiet=quiet) as progress:
        inspection = verbs.inspect(model, replace(options, progress=progress), top=top)
    click.echo(to_json("inspect", inspection) if as_json else inspection_text(inspection))

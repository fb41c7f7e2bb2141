"""`remat profile`: what each op costs in time and memory."""

from dataclasses import replace
from pathlib import Path

import click

from remat.cli.options import (
    argument,
    force_option,
    model_options,
    output_option,
    packed,
    pipeline,
    portable_option,
    quiet_option,
    repeats_option,
    stacked,
    verbose_option,
)
from remat.cli.progress import shown
from remat.options import ModelOptions

_LAYOUTS = stacked(
    click.option("--table", "layout", flag_value="table", default=True, help="Print a table."),
    click.option("--json", "layout", flag_value="json", help="Print one JSON document."),
    click.option("--csv", "layout", flag_value="csv", help="Print comma-separated values."),
)


@click.command("profile")
@argument("model", "MODEL")
@output_option("-o", "--output", metavar="COSTS", text="Write the cost table here, as JSON.")
@repeats_option(ModelOptions().repeats, "Runs per measurement; the fastest counts.")
@_LAYOUTS
@model_options
@portable_option
@force_option
@stacked(quiet_option, verbose_option)
@packed(ModelOptions, "options")
def command(
    model: Path,
    options: ModelOptions,
    *,
    output: Path | None,
    force: bool,
    layout: str,
    quiet: bool,
) -> None:
    """Measure what each op of MODEL costs.

    Its time, output and workspace in ONNX Runtime, from runs of the whole model.
    `remat optimize --costs COSTS` takes the file, also on another machine.
    """
    from remat.report import profile_text
    from remat.report_data import as_json, profile_csv

    verbs = pipeline()
    with shown(quiet=quiet) as progress:
        found = verbs.profile(
            model, replace(options, progress=progress), output=output, force=force
        )
    if layout == "csv":
        click.echo(profile_csv(found), nl=False)
    else:
        click.echo(as_json("profile", found) if layout == "json" else profile_text(found))

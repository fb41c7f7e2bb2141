"""`remat solve`: a scheduling problem without a model."""

import importlib
from dataclasses import replace
from pathlib import Path

import click

from remat.cli.options import (
    argument,
    common_options,
    force_option,
    mem_option,
    output_option,
    packed,
    seconds_option,
)
from remat.cli.progress import shown
from remat.options import SolveOptions


@click.command("solve")
@argument("problem", "PROBLEM.json")
@mem_option(
    required=False,
    text="The memory limit, or its share of the peak of the order given; the problem's own "
    "budget if not given.",
)
@click.option(
    "--solver",
    metavar="NAME",
    default=SolveOptions().solver,
    show_default=True,
    help="A formulation as published, to compare with: checkmate, keep-all, sa, sqrt-n ...",
)
@output_option("-o", "--output", metavar="S.json", text="Write the schedule here.")
@seconds_option
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Of the search.")
@force_option
@common_options
@packed(SolveOptions, "options")
def command(problem: Path, options: SolveOptions, *, as_json: bool, quiet: bool) -> None:
    """Schedule a bare problem, without a model.

    PROBLEM.json lists ops with times, sizes and workspace; the graphs that Checkmate and Moccasin
    publish are read as well. Needs neither ONNX nor ONNX Runtime.
    """
    from remat.report_data import as_json as to_json
    from remat.report_solve import solved_text

    verbs = importlib.import_module("remat.solving")
    with shown(quiet=quiet) as progress:
        solved = verbs.solve(problem, replace(options, progress=progress))
    click.echo(to_json("solve", solved) if as_json else solved_text(solved))

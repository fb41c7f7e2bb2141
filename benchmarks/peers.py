"""Our scheduler beside the formulations that others have published, on the same machine.

    python -m benchmarks.peers [FOLDER] [-o peers.json] [--budgets 90,80,70] [--limit 60]

Solves problems of the families in `sample_models/problems.py` and, where FOLDER is given, the
node-link graphs in it (nothing is downloaded), at shares of the peak of the order given. Prints
time overhead, the bound, seconds and peak for each solver; writes all rows as JSON. A solver that
found nothing in its time has no overhead; `over` counts budgets that were missed, which is none.
"""

import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import click

from remat.problem_file import ProblemFile, from_text, read
from remat.schedule import Solution
from remat.scheduler.search import never, silent
from remat.scheduler.solvers import Request, find, names
from remat.simulate import strict
from sample_models import problems

GENERATED = (
    *(("layered", size) for size in (100, 250, 500, 1000)),
    *(("unet", 4), ("residual", 32), ("transformer", 12), ("transformer", 48)),
)


@dataclass(frozen=True, slots=True)
class Row:
    """One answer. Overhead and bound in percent of the time of every op once; -1: none."""

    problem: str
    ops: int
    budget_percent: int
    solver: str
    status: str
    overhead_percent: float
    bound_percent: float
    bound_kind: str
    seconds: float
    peak_percent: float
    found_by: str

    @property
    def is_over(self) -> bool:
        """Whether the budget was missed."""
        return self.peak_percent > self.budget_percent


def generated() -> Iterator[ProblemFile]:
    """One problem of each family and size."""
    for family, size in GENERATED:
        yield from_text(problems.text(family, size), f"{family}-{size}")


def public(folder: Path) -> Iterator[ProblemFile]:
    """Every graph in a folder, by name."""
    for path in sorted(folder.glob("*.json")):
        yield read(path)


def solved(file: ProblemFile, percent: int, solver: str, limit_s: float) -> Row:
    """One solver's answer to one problem at a share of its peak."""
    base = strict(file.problem, range(len(file.problem.op_names)))
    limited = file.problem.with_limit(base.peak_bytes * percent // 100)
    begin = time.monotonic()
    solution = find(solver)(limited, Request(0, limit_s, never, silent))
    seconds = time.monotonic() - begin
    return _row(file, percent, solver, solution, (base.peak_bytes, base.time_ns, seconds))


def _row(
    file: ProblemFile,
    percent: int,
    solver: str,
    solution: Solution,
    base: tuple[int, int, float],
) -> Row:
    peak_bytes, base_ns, seconds = base
    overhead = 100 * (solution.time_ns / base_ns - 1) if solution.steps else -1.0
    return Row(
        problem=file.name,
        ops=len(file.problem.op_names),
        budget_percent=percent,
        solver=solver,
        status=str(solution.status),
        overhead_percent=round(overhead, 4),
        bound_percent=round(100 * (solution.lower_bound_ns / base_ns - 1), 4),
        bound_kind=str(solution.bound_kind),
        seconds=round(seconds, 2),
        peak_percent=round(100 * solution.peak_bytes / peak_bytes, 3),
        found_by=solution.found_by,
    )


HEADER = (
    f"{'problem':34} {'ops':>5} {'budget':>6} {'solver':10} {'status':10} {'overhead':>8} "
    f"{'bound':>8} {'seconds':>7} {'peak':>7}  found by"
)


def line(row: Row) -> str:
    """A row of the table."""
    overhead = f"{row.overhead_percent:8.3f}" if row.overhead_percent >= 0 else f"{'-':>8}"
    return (
        f"{row.problem[:34]:34} {row.ops:5} {row.budget_percent:5}% {row.solver:10} "
        f"{row.status:10} {overhead} {row.bound_percent:8.3f} {row.seconds:7.1f} "
        f"{row.peak_percent:6.1f}%  {row.found_by}"
    )


def _numbers(_ctx: click.Context, _option: click.Parameter, text: str) -> list[int]:
    try:
        return [int(one) for one in text.split(",")]
    except ValueError:
        raise click.BadParameter("percents, separated by commas") from None


@click.command()
@click.argument("folder", required=False, type=click.Path(exists=True, path_type=Path))
@click.option("-o", "--output", type=click.Path(path_type=Path), default=Path("peers.json"))
@click.option("--budgets", default="90,80,70", callback=_numbers, help="Percent of the peak.")
@click.option("--limit", "limit_s", default=60.0, help="Seconds for each answer.")
@click.option("--solvers", default=",".join(names()), help="Names, separated by commas.")
@click.option("--only", default="", help="Problems with this in their names.")
def main(
    folder: Path | None,
    output: Path,
    budgets: Sequence[int],
    limit_s: float,
    solvers: str,
    only: str,
) -> None:
    """Compare the solvers."""
    files = [*generated(), *(public(folder) if folder else ())]
    rows: list[Row] = []
    click.echo(HEADER)
    for file in (one for one in files if only in one.name):
        for percent in budgets:
            for solver in solvers.split(","):
                rows.append(solved(file, percent, solver, limit_s))
                click.echo(line(rows[-1]))
                output.write_text(json.dumps([asdict(row) for row in rows], indent=1) + "\n")
    click.echo(f"{len(rows)} answers, {sum(row.is_over for row in rows)} over their budget")


if __name__ == "__main__":
    main()

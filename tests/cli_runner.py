"""The command line called within the test's own process."""

from click.testing import CliRunner, Result

from remat.cli.main import group


def invoke(*arguments: str) -> Result:
    """What `remat ARGUMENTS` prints, on stdout and stderr apart, and its exit code."""
    return CliRunner().invoke(group, arguments, prog_name="remat")

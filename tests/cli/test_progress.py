"""Progress: a bar on stderr where somebody watches, silence otherwise."""

import io
import sys

import pytest

from remat.cli.progress import shown


class Terminal(io.StringIO):
    """A stderr that somebody watches."""

    def isatty(self) -> bool:
        """Always."""
        return True


def _report(*, quiet: bool) -> None:
    with shown(quiet=quiet) as progress:
        progress("load", 0, 0)
        for done in range(4):
            progress("measure", done, 3)
        progress("search", 1, 2)
        progress("search", 1, 4)
        progress("solve", 5, 0)


def test_silent_without_a_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    _report(quiet=False)
    assert capsys.readouterr() == ("", "")


def test_silent_when_told_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _report(quiet=True)
    assert terminal.getvalue() == ""


def test_a_terminal_sees_each_stage(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    terminal = Terminal()
    monkeypatch.setattr(sys, "stderr", terminal)
    _report(quiet=False)
    text = terminal.getvalue()
    assert text.startswith("load\n")
    assert text.index("load") < text.index("measure") < text.index("search") < text.index("solve")
    assert "100%" in text
    assert "50%" in text
    assert "25%" not in text
    assert capsys.readouterr().out == ""

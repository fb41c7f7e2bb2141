"""A file is there whole or not at all."""

import re
from pathlib import Path

import pytest

from remat.files import all_or_none, whole, write_text
from tests.source_files import product_files


def test_a_text_replaces_what_was_there(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text("a long text that was there before")
    write_text(path, "\u00fc\n")
    assert path.read_bytes() == b"\xc3\xbc\n"
    assert list(tmp_path.iterdir()) == [path]


def _write_half(path: Path) -> None:
    with whole(path) as partial:
        partial.write_text("half")
        raise KeyboardInterrupt


def test_a_block_that_fails_leaves_everything_as_it_was(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    path.write_text("old")
    with pytest.raises(KeyboardInterrupt):
        _write_half(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]


def test_a_new_file_has_the_usual_mode(tmp_path: Path) -> None:
    (tmp_path / "usual").touch()
    write_text(tmp_path / "ours", "x")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def _write_all(paths: list[Path], but: int = 0) -> None:
    with all_or_none(paths) as partials:
        for partial in partials[but:]:
            partial.write_text("new")


@pytest.mark.parametrize("there", [True, False])
def test_of_files_that_belong_together_none_is_new_alone(there: bool, tmp_path: Path) -> None:
    paths = [tmp_path / name for name in ("a", "b", "folder")]
    if there:
        paths[0].write_text("old")
    paths[2].mkdir()
    (paths[2] / "held").touch()
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(OSError, match="directory"):
        _write_all(paths)
    assert sorted(tmp_path.rglob("*")) == before
    assert not there or paths[0].read_text() == "old"


def test_files_that_belong_together_replace_what_was_there(tmp_path: Path) -> None:
    paths = [tmp_path / ("x" * 250 + letter) for letter in "abc"]
    for path in paths[:2]:
        path.write_text("old")
    _write_all(paths, but=1)
    assert [path.read_text() for path in paths] == ["old", "new", "new"]
    assert sorted(tmp_path.iterdir()) == paths


def test_nobody_else_names_partial_files() -> None:
    """`remat.child` alone may: its reply lies in a folder of its own."""
    found = [path.name for path in product_files() if re.search(r'\.part\b"', path.read_text())]
    assert set(found) <= {"child.py", "files.py"}

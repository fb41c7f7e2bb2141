"""A fake pipeline for tests of the command line alone."""

import sys

import pytest

from tests.fake_pipeline import Calls, Fake


@pytest.fixture
def fake(monkeypatch: pytest.MonkeyPatch) -> Calls:
    """The calls that reach a fake `remat.pipeline`, as (verb, arguments)."""
    calls: Calls = []
    monkeypatch.setitem(sys.modules, "remat.pipeline", Fake(calls))
    return calls

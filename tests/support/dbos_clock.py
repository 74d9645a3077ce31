"""A faster clock for DBOS."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
from dbos import _dbos

__all__ = ["looks_often"]


@pytest.fixture(autouse=True)
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shorten the interval at which DBOS checks, on closing a worker, whether its calls have ended."""
    often = SimpleNamespace(time=time.time, sleep=lambda seconds: time.sleep(seconds / 50))
    monkeypatch.setattr(_dbos, "time", often)

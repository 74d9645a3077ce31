"""Third-party clients use our wire servers: those in `dev` here, the rest by `python -m benchmarks.interop`."""

from __future__ import annotations

import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from benchmarks.interop.driven import CLIENTS, drive


@pytest.mark.ci
@pytest.mark.parametrize("script", [script for script, home in CLIENTS.items() if home == "clients"])
def test_a_vendors_client_takes_our_server_for_the_vendor(script: str) -> None:
    """Replies, streams, typed helpers, tool loops and errors work, and no request is refused unexpectedly."""
    if find_spec(script.removesuffix("_client")) is None:
        pytest.skip(f"{script} needs a package that `dev` has not: python -m benchmarks.interop")
    rows = list(drive(script, Path(sys.executable)))
    assert len(rows) > 8
    assert [row for row in rows if not row.ok] == []

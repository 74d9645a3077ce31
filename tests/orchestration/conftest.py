"""Fixtures of the tests of several agents."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent))

from compositions import COMPOSITIONS, Compose


@pytest.fixture(params=COMPOSITIONS)
def compose(request: pytest.FixtureRequest) -> Compose:
    """Each composition in turn."""
    return COMPOSITIONS[request.param]


@pytest.fixture
def named(request: pytest.FixtureRequest) -> str:
    """The name of the composition in turn."""
    return str(request.node.callspec.params["compose"])

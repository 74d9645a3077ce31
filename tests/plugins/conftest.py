"""A clean end for LiteLLM."""

import pytest


@pytest.fixture(autouse=True)
def _closed(closed_clients: None) -> None:
    """Each test leaves no open connection of LiteLLM."""

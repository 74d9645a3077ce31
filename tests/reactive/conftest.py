"""These tests count tasks: objects that earlier tests left to the collector are collected first."""

from __future__ import annotations

import gc
import warnings

import pytest


@pytest.fixture(autouse=True, scope="module")
def _nothing_of_others() -> None:
    """LiteLLM's dropped clients, once they are collected, begin a task in whatever loop runs then."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()

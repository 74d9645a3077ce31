"""What the tests of plugins share: the helpers of the other suites, either wire, and a clean end for LiteLLM."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from agentflow.models.litellm import close_clients

sys.path.append(str(Path(__file__).parents[1] / "support"))
sys.path.append(str(Path(__file__).parents[1] / "end_to_end"))

from wired import WIRES, Wired


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """LiteLLM reads attributes that pydantic deprecates; its own warnings are not ours to fail on."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.filterwarnings("ignore::DeprecationWarning:litellm"))


@pytest.fixture(autouse=True)
async def _closed_clients() -> AsyncIterator[None]:
    yield
    await close_clients()


@pytest.fixture(params=WIRES)
def wired(request: pytest.FixtureRequest) -> Wired:
    """Each wire in turn."""
    return Wired(request.param)

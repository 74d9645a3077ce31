"""The page on the wire servers leaves nothing out, and its tables are the rules in force."""

from pathlib import Path

import pytest

from agentflow.testing.wire import Dialect, Fault, WireServer

DOCS = Path(__file__).parents[2] / "docs"
PAGE = DOCS / "testing-wire.md"
RULES = DOCS / "testing-wire-rules.md"


@pytest.mark.parametrize("server", [WireServer.openai([]), WireServer.anthropic([])], ids=["openai", "anthropic"])
def test_the_page_shows_the_rules_in_force(server: WireServer) -> None:
    """The printed table stands in the page, so it cannot go stale."""
    assert server.describe_rules() in RULES.read_text(encoding="utf-8")


@pytest.mark.parametrize("owner", [Fault, Dialect], ids=["Fault", "Dialect"])
def test_the_page_names_every_fault_and_dialect(owner: type) -> None:
    """Nothing that can be built is left out of the page."""
    page = PAGE.read_text(encoding="utf-8")
    built = [name for name, value in vars(owner).items() if isinstance(value, classmethod)]
    assert [name for name in built if f"{name}(" not in page] == []

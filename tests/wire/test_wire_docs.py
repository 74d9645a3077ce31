"""The pages on the wire servers name every fault, dialect and rule."""

import re
from collections import Counter
from pathlib import Path

import pytest

from agentflow.testing.wire import Dialect, Fault, WireServer

DOCS = Path(__file__).parents[2] / "docs"
RULES = DOCS / "testing-wire-rules.md"


def test_the_page_counts_the_rules() -> None:
    """The page says how many rules of each wire have each mark."""
    rules = [*WireServer.openai([]).rules, *WireServer.anthropic([]).rules]
    found = Counter((rule.mark, rule.id.partition(".")[0]) for rule in rules)
    counts = [[str(found[mark, wire]) for wire in ("openai", "responses", "anthropic")] for mark in "DIB"]
    rows = re.findall(
        r"^\| `[DIB]` \|.*\| (\d+) \| (\d+) \| (\d+) \|$", RULES.read_text(encoding="utf-8"), re.MULTILINE
    )
    assert [[*row] for row in rows] == counts


@pytest.mark.parametrize("owner", [Fault, Dialect], ids=["Fault", "Dialect"])
def test_the_page_names_every_fault_and_dialect(owner: type) -> None:
    """The page has every fault and dialect."""
    page = RULES.read_text(encoding="utf-8")
    built = [name for name, value in vars(owner).items() if isinstance(value, classmethod)]
    assert [name for name in built if f"{name}(" not in page] == []

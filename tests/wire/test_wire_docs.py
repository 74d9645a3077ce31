"""The page on the wire servers runs, and its tables are the rules in force."""

import ast
import inspect
import re
from pathlib import Path

import pytest

from agentflow.testing.wire import Dialect, Fault, WireServer

PAGE = Path(__file__).parents[2] / "docs" / "testing-wire.md"
BLOCKS = re.findall(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)


@pytest.mark.parametrize("source", BLOCKS, ids=range(len(BLOCKS)))
async def test_an_example_of_the_page_runs(source: str) -> None:
    """Each block stands alone and its assertions hold."""
    code = compile(source, str(PAGE), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    result = eval(code, {"__name__": "example"})
    if inspect.isawaitable(result):
        await result


@pytest.mark.parametrize("server", [WireServer.openai([]), WireServer.anthropic([])], ids=["openai", "anthropic"])
def test_the_page_shows_the_rules_in_force(server: WireServer) -> None:
    """The printed table stands in the page, so it cannot go stale."""
    assert server.describe_rules() in PAGE.read_text(encoding="utf-8")


@pytest.mark.parametrize("owner", [Fault, Dialect], ids=["Fault", "Dialect"])
def test_the_page_names_every_fault_and_dialect(owner: type) -> None:
    """Nothing that can be built is left out of the page."""
    page = PAGE.read_text(encoding="utf-8")
    built = [name for name, value in vars(owner).items() if isinstance(value, classmethod)]
    assert [name for name in built if f"{name}(" not in page] == []

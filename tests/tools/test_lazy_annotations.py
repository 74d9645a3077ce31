"""A name that only the type checker knows, in code without `from __future__ import annotations`.

Up to Python 3.13 such code ends at the `def`; 3.14 evaluates annotations when they are read. It is compiled here with
the import on older ones, and behaves alike on all.
"""

from __future__ import annotations
import __future__

import sys
from typing import Any

import pytest

from agentflow.agent import Agent
from agentflow.errors import UsageError
from agentflow.testing import ScriptedModel

FLAGS = 0 if sys.version_info >= (3, 14) else __future__.annotations.compiler_flag
IMPORTS = "from agentflow import PreActing, on, tool\n"


def written(source: str) -> dict[str, Any]:
    """What a module of this source defines."""
    names: dict[str, Any] = {"__name__": "written"}
    exec(compile(IMPORTS + source, "written", "exec", FLAGS, dont_inherit=True), names)
    return names


async def test_what_a_tool_returns_may_be_known_to_the_checker_alone() -> None:
    """The parameters are described by their types all the same."""
    price = written("@tool\nasync def price(n: int) -> 'Money | Nothing':\n    return n\n")["price"]
    lazy = written("@tool\nasync def price(n: int) -> Money:\n    return n\n")["price"]
    assert lazy.spec.parameters == price.spec.parameters
    assert lazy.spec.parameters["properties"]["n"]["type"] == "integer"


def test_what_a_tool_takes_may_not() -> None:
    """The parameter and the name are said."""
    source = "@tool\nasync def price(n: int, kind: Money) -> int:\n    return n\n"
    with pytest.raises(UsageError, match="the annotation of parameter 'kind' names 'Money'"):
        written(source)["price"].prepare()


async def test_a_hook_may_return_what_is_unknown() -> None:
    """Its event alone is looked at."""
    hook = written("@on(PreActing)\nasync def watch(event: PreActing) -> Verdicts: ...\n")["watch"]
    assert (await Agent("a", ScriptedModel(["hi"]), hooks=[hook]).call("x")).text == "hi"


def test_a_hook_may_not_take_it() -> None:
    """The parameter's annotation is the only thing that names its event."""
    with pytest.raises(UsageError, match=r"Name the events: @on\(PreActing\)"):
        written("@on\nasync def watch(event: Unknown) -> None: ...\n")

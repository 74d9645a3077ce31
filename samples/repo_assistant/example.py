"""The repository and the model of the offline run: a discount that is a hundred times too large, and its fix."""

from __future__ import annotations

from agentflow import ModelChunk, ModelRequest, ToolUseBlock, Usage
from agentflow.testing import Line, ScriptedModel

from .sandbox import Sandbox

TASK = "The test of the discount fails. Find out why, mend it, and note it in CHANGES.md."

FILES = {
    "shop/__init__.py": "",
    "shop/prices.py": '''"""Prices of a small shop."""


def total(prices: list[float], discount: float = 0.0) -> float:
    """The sum of prices, less a discount in percent."""
    return sum(prices) * (1 - discount)
''',
    "tests/__init__.py": "",
    "tests/test_prices.py": """import unittest

from shop.prices import total


class Total(unittest.TestCase):
    def test_discount(self) -> None:
        self.assertAlmostEqual(total([40.0, 60.0], discount=10), 90.0)
""",
    "CHANGES.md": "# Changes\n",
}

OLD, NEW = "(1 - discount)", "(1 - discount / 100)"


def fill(sandbox: Sandbox) -> None:
    """Write the example's files."""
    for name, text in FILES.items():
        sandbox.write(name, text)


def _use(n: int, name: str, **arguments: str) -> ToolUseBlock:
    return ToolUseBlock(f"call_{n}", name, arguments)


ROUNDS: list[list[str | ToolUseBlock]] = [
    ["I look ", "around first. ", _use(1, "list_files"), _use(2, "search", text="discount")],
    [_use(3, "read_file", path="shop/prices.py"), _use(4, "read_file", path="tests/test_prices.py")],
    ["Let me see ", "the test fail. ", _use(5, "bash", command="python -m unittest -q")],
    [
        "The discount is in percent, ",
        "but used as a factor. ",
        _use(6, "edit_file", path="shop/prices.py", old=OLD, new=NEW),
    ],
    ["Now the test ", "again. ", _use(7, "bash", command="python -m unittest -q")],
    [
        "I note it, and tidy up. ",
        _use(8, "write_file", path="CHANGES.md", text="# Changes\n\n- A discount of 10 is 10 percent.\n"),
        _use(9, "read_file", path="../../etc/passwd"),
        _use(10, "bash", command="rm -rf shop/__pycache__"),
    ],
    ["`total` took a discount of 10 as 1000 percent; ", "it is divided by 100 now, ", "and the test passes. "],
]


def script() -> ScriptedModel:
    """Make a model that answers by the state of the conversation, so that another process can continue it."""

    def answer(request: ModelRequest) -> list[Line]:
        messages = request.messages
        asked = max(n for n, message in enumerate(messages) if message.role == "user")
        done = sum(message.role == "assistant" for message in messages[asked:])
        spent = Usage(input_tokens=600 + 250 * done, output_tokens=60, cost=0.0004 * (done + 1))
        if done >= len(ROUNDS) or asked > 1:
            return ["Offline I can only do this task; use --model for others.", ModelChunk(usage=spent)]
        return [*ROUNDS[done], ModelChunk(usage=spent)]

    return ScriptedModel(answer)

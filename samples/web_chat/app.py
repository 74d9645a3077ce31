"""The web chat of `agentflow serve --ui` in your own program: the order desk of a bookshop, which asks before it refunds.

python samples/web_chat/app.py                                   # offline, with a scripted model: http://127.0.0.1:8000
python samples/web_chat/app.py --model openai/gpt-5              # a real one, with its key in the environment
python samples/web_chat/app.py --store sqlite:///chat.db         # conversations outlive the process
"""

from __future__ import annotations

import argparse
import asyncio
import os
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import uvicorn

from agentflow import (
    Agent,
    MemoryStore,
    Model,
    ModelChunk,
    ModelRequest,
    PreActing,
    Suspend,
    ToolResultBlock,
    ToolUseBlock,
    on,
    tool,
)
from agentflow.serve import App, View
from agentflow.testing import ScriptedModel

PACE = float(os.environ.get("WEB_CHAT_PACE", "0.03"))  # seconds between two words of the scripted model


@dataclass
class Order:
    """An order of the shop."""

    book: str
    euros: float
    state: str
    refunded: bool = False


ORDERS = {
    1042: Order("The Sea, the Sea", 14.5, "was delivered on Monday"),
    1043: Order("Invisible Cities", 12.0, "is on its way, due tomorrow"),
}


@tool(type="read")
async def look_up_order(number: int) -> Order:
    """Look up an order: its book, price and state."""
    await asyncio.sleep(PACE * 20)
    return ORDERS[number]


@tool
async def refund(number: int) -> str:
    """Refund an order in full."""
    await asyncio.sleep(PACE * 20)
    ORDERS[number].refunded = True
    return f"refunded {ORDERS[number].euros:.2f} euros"


@on
def ask_before_refunds(event: PreActing) -> Suspend | None:
    """Suspend the call with a question if it would refund an order; the answer resumes it."""
    number = event.tool_use.input.get("number")
    if event.tool_use.name != "refund" or number not in ORDERS:
        return None
    order = ORDERS[number]
    return Suspend({"question": f"Refund {order.euros:.2f} € for order {number}, “{order.book}”?"})


LABELS = {"look_up_order": "Looking up the order", "refund": "Refunding"}
SYSTEM = "You are the order desk of a small bookshop. Look orders up before you speak of them. Be brief."


def make_agent(model: Model | str, store: Any) -> Agent:
    return Agent(
        "desk",
        model,
        system=SYSTEM,
        description="Ask about an order (1042 or 1043), or have it refunded. Refunds need your approval.",
        tools=[look_up_order, refund],
        hooks=[ask_before_refunds],
        store=store,
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=None)
    parser.add_argument("--store", default=None)
    parser.add_argument("--port", type=int, default=8000)
    parser.add_argument("--limit", type=float, default=20.0, help="seconds that running calls have at a shutdown")
    args = parser.parse_args()
    agent = make_agent(args.model or ScriptedModel(brain), args.store or MemoryStore())
    app = App(agent, view=View(tools="label", labels=LABELS), ui=True, resume=True, shutdown_seconds=args.limit)
    # The server's own limit is above ours: a call that the server cancels is lost.
    uvicorn.run(app, port=args.port, access_log=False, timeout_graceful_shutdown=int(args.limit) + 10)


# ---- the scripted model


def brain(request: ModelRequest) -> list[Any]:
    """Answer questions on orders and refunds by number, and count until stopped."""
    last = request.messages[-1]
    asked = next(msg.text for msg in reversed(request.messages) if msg.role == "user")
    number = int(found[0]) if (found := re.search(r"\d+", asked)) else None
    if last.role == "tool":
        return after(last.tool_results[0], asked, number)
    if "count" in asked.lower():
        return [paced(f"{n}, ") for n in range(1, 5_000)]
    if number is None:
        return spoken("Hello! I know where your order is, and I can refund it. Tell me its number: try 1042 or 1043.")
    return [
        *spoken("One moment, I look it up."),
        ToolUseBlock(f"look-{len(request.messages)}", "look_up_order", {"number": number}),
    ]


def after(result: ToolResultBlock, asked: str, number: int | None) -> list[Any]:
    """Answer after a tool's result."""
    if result.state == "denied":
        return spoken("Then nothing is refunded, and your order stays as it is. Is there anything else?")
    if result.state != "success" or number not in ORDERS:
        return spoken(f"I do not find an order {number}. Could you check its number?")
    order = ORDERS[number]
    if result.name == "refund":
        return spoken(
            f"Done: {order.euros:.2f} € for “{order.book}” are on their way back to you. It takes two or three days."
        )
    if "refund" in asked.lower() and not order.refunded:
        return [ToolUseBlock(f"refund-{result.tool_use_id}", "refund", {"number": number})]
    return spoken(f"“{order.book}” {order.state}.{' It has been refunded.' if order.refunded else ''}")


def spoken(text: str) -> list[Any]:
    """Return a thought and a text, word by word."""
    return [
        ModelChunk(thinking="The customer must not see this."),
        *(paced(word) for word in re.findall(r"\S+\s*", text)),
    ]


def paced(word: str) -> Callable[[], Awaitable[str]]:
    """Return a word that arrives after a pause."""
    return partial(asyncio.sleep, PACE, word)


if __name__ == "__main__":
    main()

"""Two hundred tools, of which a request shows three: the others are found with `search_tools` if they are needed."""

from __future__ import annotations

import asyncio
from typing import Any

from agentflow import Agent, Deny, PreActing, ToolUseBlock, on
from agentflow.plugins import ToolSearch
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool, ToolContext, schema_tool

THINGS = ("invoice", "refund", "customer", "coupon", "contract", "parcel", "return", "ticket", "employee", "shift")
VERBS = ("create", "get", "list", "search", "update", "delete", "archive", "export", "share", "approve")
PLACES = ("shop", "office")


async def run(arguments: dict[str, Any], context: ToolContext) -> str:
    return f"{context.tool_use.name} has done it for {arguments['id']}"


def tools() -> list[Tool[..., Any]]:
    parameters = {"type": "object", "properties": {"id": {"type": "string"}}, "required": ["id"]}
    return [
        schema_tool(f"{place}_{verb}_{thing}", f"{verb.title()} a {thing} of the {place}.", parameters, run)
        for place in PLACES
        for thing in THINGS
        for verb in VERBS
    ]


@on(guard=True, tools=["*_delete_*"])
def no_deletes(event: PreActing) -> Deny:
    return Deny("nothing is deleted here")


script = [
    ToolUseBlock("t1", "search_tools", {"query": "make a refund in the shop"}),
    ToolUseBlock("t2", "shop_create_refund", {"id": "order 7"}),
    ToolUseBlock("t3", "search_tools", {"query": "remove an invoice"}),
    ToolUseBlock("t4", "shop_delete_invoice", {"id": "invoice 7"}),
    "The refund is made. The invoice stays.",
]


async def work() -> None:
    model = ScriptedModel(script)
    finder = ToolSearch(always=["shop_get_customer", "shop_get_ticket"], results=3)
    agent = Agent("desk", model, tools=tools(), hooks=[finder, no_deletes])
    reply = await agent.call("Refund order 7, and remove its invoice.")
    for number, request in enumerate(model.requests, 1):
        print(f"request {number}:", *[spec.name for spec in request.tools])
    for message in agent.session().messages:
        for result in message.tool_results:
            if result.name != "search_tools":
                print(f"{result.name}: {result.state}: {result.text}")
    print(reply.text)


def main() -> None:
    print(f"{len(tools())} tools")
    asyncio.run(work())


if __name__ == "__main__":
    main()

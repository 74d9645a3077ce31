"""Typed answers: a call returns an object instead of text, with the method that the model supports.

An invalid answer goes back to the model; a growing mapping shows the answer while it arrives; a function as the output is the
last step, which may require approval.
"""

from __future__ import annotations

import asyncio

from pydantic import BaseModel, Field

from agentflow import Again, Agent, Approve, Msg, Output, ToolUseBlock, on, tool
from agentflow.testing import ScriptedModel
from agentflow.vocabulary import PostReasoning


class Line(BaseModel):
    item: str
    euros: float = Field(gt=0)


class Invoice(BaseModel):
    """An invoice to be paid."""

    customer: str
    lines: list[Line] = []


@on(observer=True)
def show(event: PostReasoning) -> None:
    match event.verdict:
        case Again(messages=Msg(text=told)):
            print("again  ", told.splitlines()[1])
        case _:
            pass


@tool(requires_approval=True)
async def pay(customer: str, euros: float) -> str:
    """Pay a customer back."""
    return f"{customer} got {euros} euros"


async def answers() -> None:
    # With a tool that takes the answer; the first one has a price of 0 and is sent back with pydantic's message.
    wrong = ToolUseBlock("t1", "final_answer", {"customer": "Ada", "lines": [{"item": "tea", "euros": 0}]})
    right = ToolUseBlock("t2", "final_answer", {"customer": "Ada", "lines": [{"item": "tea", "euros": 2.5}]})
    clerk = Agent("clerk", ScriptedModel([wrong, right]), hooks=[show], output=Invoice)
    reply = await clerk.call("Ada bought tea.")
    print("output ", reply.output)  # a type checker knows that it is an Invoice
    print("history", [msg.role for msg in clerk.session().messages])

    # While it arrives: a growing mapping of the fields received so far.
    pieces = ['{"customer": "A', 'da", "lines": [{"item": "tea", ', '"euros": 2.5}, {"item": "mil', 'k", "euros": 1}]}']
    clerk = Agent("clerk", ScriptedModel([pieces]), output=Output(Invoice, via="prompt"))
    async for invoice in clerk.stream("And milk.").partials():
        print("so far ", invoice.get("customer", ""), [line.get("item") for line in invoice.get("lines", [])])
        if invoice.complete:
            print("at last", sum(line.euros for line in invoice.output.lines), "euros")

    # A value that is not an object is a field of one; the nearest `output=` applies.
    counter = Agent("counter", ScriptedModel(['{"answer": [3, 1, 2]}']))
    print("sorted ", sorted((await counter.call("Count.", output=list[int])).output))

    # The arguments of a function: it runs as the last step, after a person's approval.
    asked = ToolUseBlock("t3", "pay", {"customer": "Ada", "euros": 2.5})
    treasurer = Agent("treasurer", ScriptedModel([asked]), output=pay)
    waits = await treasurer.call("Refund Ada.")
    print("waits  ", [call.id for call in waits.pending])
    print("paid   ", (await treasurer.resume(decisions={"t3": Approve()})).output)


def main() -> None:
    asyncio.run(answers())


if __name__ == "__main__":
    main()

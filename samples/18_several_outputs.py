"""Several outputs: the model selects an invoice, a refusal, a function that asks a person, or plain text.

With `end="first"` nothing else of the reply runs once there is an answer.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Any

from pydantic import BaseModel, Field

from agentflow import Agent, Output, RunContext, ToolUseBlock, tool
from agentflow.testing import ScriptedModel


class Invoice(BaseModel):
    """An invoice to be paid."""

    customer: str
    euros: float = Field(gt=0)


class Refusal(BaseModel):
    """Why there is no invoice."""

    reason: str


async def escalate(question: str) -> str:
    """Pass the case to a person."""
    return f"a person looks at {question!r}"


@tool
async def send_mail(to: str) -> str:
    """Send a mail."""
    return f"sent to {to}"


@dataclass
class Customers:
    names: list[str]


def known(value: object, run: RunContext) -> None:
    """Refuse invoices to strangers; the customers are those of this call."""
    names = run.deps(Customers).names
    if isinstance(value, Invoice) and value.customer not in names:
        raise ValueError(f"{value.customer} is not a customer; known are {names}")


async def answers() -> None:
    stranger = ToolUseBlock("t1", "final_answer_Invoice", {"customer": "Bob", "euros": 5})
    customer = ToolUseBlock("t2", "final_answer_Invoice", {"customer": "Ada", "euros": 5})
    refused = ToolUseBlock("t3", "final_answer_Refusal", {"reason": "nothing was sold"})
    asked = ToolUseBlock("t4", "escalate", {"question": "may she pay later?"})
    mail = ToolUseBlock("t5", "send_mail", {"to": "everybody"})
    model = ScriptedModel([stranger, customer, [refused, mail], asked, "Good morning."])
    output: Output[Any] = Output([Invoice, Refusal, escalate, str], validate=known, end="first")
    clerk = Agent("clerk", model, tools=[send_mail], output=output)
    for said in ("Ada bought tea.", "Nobody bought anything.", "Ada wants to pay later.", "Hello!"):
        reply = await clerk.call(said, deps=Customers(["Ada", "Eve"]))
        print(f"{said:24} {reply.output!r}")
    print("results ", [result.state for msg in clerk.session().messages for result in msg.tool_results])


def main() -> None:
    asyncio.run(answers())


if __name__ == "__main__":
    main()

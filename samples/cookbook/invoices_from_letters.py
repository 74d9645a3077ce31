"""Invoices from letters: typed objects, validated, requested again if invalid, and set aside if that fails.

    python samples/cookbook/invoices_from_letters.py                         # offline, with a scripted model
    python samples/cookbook/invoices_from_letters.py --model openai/gpt-5    # a real one

The letters are read concurrently. If the sum is not that of the lines, the model reads the error and tries again.
"""

from __future__ import annotations

import argparse
import asyncio

from pydantic import BaseModel, Field

from agentflow import Again, Agent, Model, ModelRequest, Msg, Output, PostReasoning, on
from agentflow.agent.orchestration import StepError, ask, gather, workflow
from agentflow.testing import Line, ScriptedModel

LETTERS = [
    "Dear Ada, for 2 lamps at 20 euros each I get 40 euros from you. Yours, Bob",
    "ADA!! three chairs, 30 euros a piece. pay up. Cyd",
    "Dear Ada, the roses are in bloom. Yours, Dan",
]


class Item(BaseModel):
    """One line of an invoice."""

    what: str
    count: int = Field(ge=1)
    euros_each: float = Field(gt=0)


class Invoice(BaseModel):
    """A request for payment."""

    by: str
    items: list[Item] = Field(min_length=1)
    sum: float


def sum_fits(invoice: Invoice) -> None:
    """Check a rule that a schema cannot express; the model reads the error message."""
    really = sum(item.count * item.euros_each for item in invoice.items)
    if abs(really - invoice.sum) > 0.005:
        raise ValueError(f"the items add up to {really:g} euros, not {invoice.sum:g}")


@on(PostReasoning, observer=True)
def show(event: PostReasoning) -> None:
    """Print the request for a correction."""
    match event.verdict:
        case Again(messages=Msg(text=text)):
            print("  again:", text.splitlines()[0])
        case _:
            pass


def make_office(model: Model | str) -> Agent[list[Invoice | str]]:
    clerk = Agent(
        "clerk",
        model,
        system="Read the letter, and return its invoice.",
        output=Output(Invoice, retries=1, validate=sum_fits),
        hooks=[show],
    )

    @workflow(clerk, max_concurrency=4)
    async def office(letters: str) -> list[Invoice | str]:
        """Reads letters, separated by empty lines."""
        each = letters.split("\n\n")
        found = await gather(*[ask(clerk, letter) for letter in each], return_exceptions=True)
        return [letter if isinstance(one, StepError) else one.output for letter, one in zip(each, found, strict=True)]

    return office


async def work(model: Model | str) -> None:
    reply = await make_office(model).call("\n\n".join(LETTERS))
    for found in reply.output:
        match found:
            case Invoice():
                items = ", ".join(f"{item.count} x {item.what}" for item in found.items)
                print(f"{found.by:4} {found.sum:6.2f}  {items}")
            case str():
                print(f"?    for a person: {found[:30]}...")
    print(f"({reply.usage.model_calls} model calls)")


# ---- the offline run


def scripted(request: ModelRequest) -> Line:
    """A model that adds up wrongly at first, and finds an invoice in a letter that has none."""
    letter, again = request.messages[1].text, len(request.messages) > 2
    if "lamps" in letter:
        return '{"by": "Bob", "items": [{"what": "lamp", "count": 2, "euros_each": 20}], "sum": 40}'
    if "chairs" in letter:
        cost = 90 if again else 60
        return f'{{"by": "Cyd", "items": [{{"what": "chair", "count": 3, "euros_each": 30}}], "sum": {cost}}}'
    return '{"by": "Dan", "items": [], "sum": 0}'


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--model", help="such as openai/gpt-5; without one, a scripted model")
    asyncio.run(work(parser.parse_args().model or ScriptedModel(scripted)))


if __name__ == "__main__":
    main()

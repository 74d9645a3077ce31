"""A research agent: it splits a question, asks sub-agents in parallel, and writes one answer from their findings.

    python samples/cookbook/research_agent.py                                    # offline, with scripted models
    python samples/cookbook/research_agent.py --model openai/gpt-5 "Which …?"    # real ones

The sub-agents only read, so the calls of one reply run in parallel. Each has its own session; the caller pays.
"""

from __future__ import annotations

import argparse
import asyncio
from collections import defaultdict

from agentflow import Agent, CallEnded, HookEvent, Model, ModelRequest, PostReasoning, PostToolRound, ToolUseBlock, tool
from agentflow.plugins import UsageLimits
from agentflow.testing import Line, ScriptedModel

LIBRARY = {
    "hooks": "Editing hooks run first, then guards, then observers.",
    "events": "There are twenty events in one closed union.",
    "stores": "A store is an append-only journal of facts.",
}
together = asyncio.Barrier(len(LIBRARY))  # proves that they run in parallel: a search continues once all have started


@tool(type="research", timeout=10)
async def search(topic: str) -> str:
    """Search the library for a topic, in one word."""
    await together.wait()
    return LIBRARY.get(topic, "nothing found")


def make_agents(lead_model: Model | str, researcher_model: Model | str) -> Agent:
    researcher = Agent(
        "researcher",
        researcher_model,
        description="Answers one question in one sentence. Ask several at once, one for each question.",
        system="Search once, then answer in one sentence.",
        tools=[search],
        max_iterations=4,
    )
    return Agent(
        "lead",
        lead_model,
        system="Split the question, ask a researcher for each part, all in one reply; then write the answer.",
        tools=[researcher],
        hooks=[UsageLimits(model_calls=20, tokens=200_000)],  # of the run, including sub-agents
    )


def show(event: HookEvent, said: dict[str, list[str]]) -> None:
    """Note the steps by agent; the events of parallel sub-agents arrive in any order."""
    match event:
        case PostReasoning(reasoning_result=reply) if reply.tool_uses:
            for use in reply.tool_uses:
                said[event.source or "lead"].append(f"asks {use.name}: {next(iter(use.input.values()), '')}")
        case PostToolRound(tool_uses=uses, tool_results=results):  # in the order of the calls
            for use, result in zip(uses, results, strict=True):
                said[event.source or "lead"].append(f"{use.name} answers: {result.text}")
        case CallEnded(outcome=outcome, usage=usage) if not event.source:
            said["lead"].append(f"{outcome}, with {usage.model_calls} model calls in total")
        case _:
            pass


async def research(lead: Agent, question: str) -> None:
    said: dict[str, list[str]] = defaultdict(list)
    async with lead.stream(question, children=True, timeout=120) as events:
        async for event in events:
            show(event, said)
    for name, lines in sorted(said.items()):
        print(name)
        print("\n".join(f"  {line}" for line in (lines if name == "lead" else sorted(lines))))
    print(lead.session().messages[-1].text)


def finds_out(request: ModelRequest) -> Line:
    """The offline researcher: it searches for the last word of the question, and then returns the result."""
    last = request.messages[-1]
    if last.role == "tool":
        return last.tool_results[0].text
    return ToolUseBlock("s1", "search", {"topic": last.text.rstrip("?").split()[-1]})


def offline() -> Agent:
    parts = [ToolUseBlock(f"r{n}", "researcher", {"message": f"What of {topic}?"}) for n, topic in enumerate(LIBRARY)]
    return make_agents(
        ScriptedModel([parts, "Hooks are ordered, events are typed, stores are journals."]), ScriptedModel(finds_out)
    )


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--model", default=None)
    parser.add_argument("question", nargs="?", default="How does agentflow work?")
    args = parser.parse_args()
    lead = make_agents(args.model, args.model) if args.model else offline()
    asyncio.run(research(lead, args.question))


if __name__ == "__main__":
    main()

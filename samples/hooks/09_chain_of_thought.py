"""Chain of thought: the model thinks aloud on the side first, and answers with the thought before it.

What a side call costs is on the run's bill; nothing of it is in the history but what the hook injects.
"""

from __future__ import annotations

from agentflow import Agent, Msg, PreCall, after_user_input
from agentflow.testing import ScriptedModel


@after_user_input
async def think(event: PreCall) -> None:
    thought = await event.context.complete([*event.input_messages, Msg.user("Think step by step.")], source="thinking")
    event.context.inject(Msg.assistant(thought.text), source="thinking")


# ---- to run it here, offline


def main() -> None:
    model = ScriptedModel(["Seven weeks are 7 x 7 days.", "49 days."])
    agent = Agent("thinker", model, hooks=[think])
    reply = agent.call("How many days are seven weeks?").block()
    print(reply)
    for message in agent.session().messages:
        print(f"{message.role}: {message.text}", dict(message.metadata) or "")
    print("model calls:", reply.usage.model_calls if reply.usage else 0)


if __name__ == "__main__":
    main()

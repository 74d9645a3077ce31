"""Chain of thought: a side call to the model thinks first, and the answer uses its result.

The side call's cost counts for the run. Only the injected thought is in the history.
"""

from __future__ import annotations

from agentflow import Agent, Msg, PreCall, after_user_input
from agentflow.testing import ScriptedModel


@after_user_input
async def think(event: PreCall) -> None:
    thought = await event.context.complete([*event.input_messages, Msg.user("Think step by step.")], source="thinking")
    event.context.inject(Msg.assistant(thought.text), source="thinking")


# ---- the offline run


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

"""A prompt enhancer: a system hint in front of the messages, for this request only."""

from __future__ import annotations

from agentflow import Agent, Msg, PreReasoning, before_llm
from agentflow.testing import ScriptedModel


@before_llm
def enhance(event: PreReasoning) -> None:
    event.input_messages = [Msg.system("Answer in one word."), *event.input_messages]


# ---- the offline run


def main() -> None:
    model = ScriptedModel(["Paris."])
    agent = Agent("terse", model, hooks=[enhance])
    print(agent.call("What is the capital of France?").block())
    print("sent:  ", [f"{message.role}: {message.text}" for message in model.requests[0].messages])
    print("stored:", [f"{message.role}: {message.text}" for message in agent.session().messages])


if __name__ == "__main__":
    main()

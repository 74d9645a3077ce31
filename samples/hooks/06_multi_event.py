"""One hook for several events: a class, and a `match` that the type checker understands."""

from __future__ import annotations

from agentflow import Agent, Error, Hook, HookEvent, HookResult, PostCall, PreCall
from agentflow.testing import ScriptedModel


class Log(Hook):
    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreCall():
                print("starting: ", event.input_messages[-1].text)
            case PostCall():
                print("completed:", event.final_message.text)
            case Error():
                print("error:    ", event.error)
            case _:
                pass
        return event


# ---- the offline run


def main() -> None:
    agent = Agent("greeter", ScriptedModel(["Hello.", ConnectionError("no network")]), hooks=[Log()])
    agent.call("Hi").block()
    try:
        agent.call("Hi again").block()
    except ConnectionError as error:
        print("raised:   ", error)


if __name__ == "__main__":
    main()

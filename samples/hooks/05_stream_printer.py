"""A stream printer: it prints the model's text as it arrives, and changes nothing."""

from __future__ import annotations

from agentflow import Agent, ReasoningChunk, on
from agentflow.testing import ScriptedModel


@on
def print_words(event: ReasoningChunk) -> None:
    print(event.incremental_chunk.text, end="|")


# ---- the offline run


def main() -> None:
    agent = Agent("poet", ScriptedModel([["Roses ", "are ", "red."]]), hooks=[print_words])
    agent.call("A line, please").block()
    print()


if __name__ == "__main__":
    main()

"""A stream printer: the model's words as they come, and nothing can be changed by it."""

from __future__ import annotations

from agentflow import Agent, ReasoningChunk, on
from agentflow.testing import ScriptedModel


@on
def print_words(event: ReasoningChunk) -> None:
    print(event.incremental_chunk.text, end="|")


# ---- to run it here, offline


def main() -> None:
    agent = Agent("poet", ScriptedModel([["Roses ", "are ", "red."]]), hooks=[print_words])
    agent.call("A line, please").block()
    print()


if __name__ == "__main__":
    main()

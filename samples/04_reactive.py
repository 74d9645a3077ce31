"""Reactive: calls are Monos and streams are Fluxes, and both are reactivex Observables.

Subscribe to them, compose them with their own operators (which keep type and back-pressure), or pass them to reactivex with
`pipe`. Hooks wrap the work of an event with the same operators: `around` receives it as a cold source.
"""

from __future__ import annotations

import asyncio
from typing import Any

from reactivex import Observable
from reactivex import operators as ops

from agentflow import Agent, Flux, Hook, HookEvent, ModelRequest, Mono, PreReasoning, ReasoningChunk
from agentflow.errors import ModelError
from agentflow.testing import ScriptedModel


def echo(request: ModelRequest) -> list[str]:
    """Repeat the question, word by word."""
    first, *others = request.messages[-1].text.split()
    return [first, *(f" {word}" for word in others)]


class Stubborn(Hook):
    """`around`: the source is the model call; subscribing again calls the model again, so a retry is one operator."""

    def around(self, event: HookEvent, source: Observable[Any]) -> Observable[Any]:
        match event, source:
            case PreReasoning(), Flux():
                return source.timeout(5).retry(2)  # at most 5 s between two chunks, at most two attempts
            case _:
                return source


async def main_async() -> None:
    agent = Agent("echo", ScriptedModel(echo))

    # 1. A Mono can map, zip and fall back; each await is a new run.
    shout = agent.call("hello world", session="a").map(lambda reply: reply.text.upper())
    length = agent.call("four words are here", session="b").map(lambda reply: len(reply.text.split()))
    print("zip:      ", await shout.zip(length))

    # 2. A Flux of events, filtered and mapped with its own operators.
    words = (
        agent.stream("one two three four")
        .filter(lambda event: isinstance(event, ReasoningChunk))
        .map(lambda event: event.incremental_chunk.text.strip() if isinstance(event, ReasoningChunk) else "")
        .filter(bool)
    )
    print("flux:     ", await words.to_list())

    # 3. Any operator of reactivex, through `pipe`.
    pairs = words.pipe(ops.buffer_with_count(2), ops.map("+".join))
    print("pipe:     ", [pair async for pair in pairs])

    # 4. Errors are values until they are awaited: a model that is down, and a replacement for its answer.
    down = Agent("down", ScriptedModel([ModelError("the provider is down"), ModelError("the provider is down")]))
    print("catch:    ", await down.call("hi").map(str).catch(lambda error, _: Mono.just(f"sorry: {error}")))

    # 5. The same failure, handled by a hook that retries.
    shaky = Agent("shaky", ScriptedModel([["Hel", ModelError("broken line")], ["Hel", "lo"]]), hooks=[Stubborn()])
    print("retry:    ", await shaky.call("hi"))


def main() -> None:
    asyncio.run(main_async())

    # 6. Without a running loop, a subscription runs in a thread.
    agent = Agent("echo", ScriptedModel(echo))
    subscription = agent.call("and done").subscribe(lambda reply: print("subscribe:", reply.text), on_error=print)
    subscription.wait()


if __name__ == "__main__":
    main()

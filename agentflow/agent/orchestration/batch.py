"""`batch`: one agent called with many inputs, a limited number at a time.

Rules:

1. Each input is a separate call, in a fresh session. If a call fails, its error is its result, and the other calls continue.
2. All calls belong to the block that awaits the batch: if that block is cancelled, all calls are cancelled, and have
   ended before the block ends.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, NamedTuple, TypeVar, Unpack, overload

from agentflow.agent.agent import Agent
from agentflow.agent.arguments import Input, ResumeOptions
from agentflow.errors import UsageError
from agentflow.loop.output.output import OutputLike
from agentflow.loop.session import Session
from agentflow.reactive import Mono
from agentflow.vocabulary.messages import Msg, Reply

T = TypeVar("T")
U = TypeVar("U")


class BatchProgress(NamedTuple):
    """The progress of a batch.

    Attributes:
        done: The number of ended calls.
        failed: How many of them raised an error.
        total: The number of inputs.
    """

    done: int
    failed: int
    total: int


@overload
def batch(
    agent: Agent[T],
    inputs: Iterable[Input],
    *,
    concurrency: int = 8,
    progress: Callable[[BatchProgress], object] | None = None,
    output: None = None,
    **options: Unpack[ResumeOptions],
) -> Mono[tuple[Reply[T] | Exception, ...]]: ...
@overload
def batch(
    agent: Agent[Any],
    inputs: Iterable[Input],
    *,
    concurrency: int = 8,
    progress: Callable[[BatchProgress], object] | None = None,
    output: OutputLike[U],
    **options: Unpack[ResumeOptions],
) -> Mono[tuple[Reply[U] | Exception, ...]]: ...
def batch(
    agent: Agent[Any],
    inputs: Iterable[Input],
    *,
    concurrency: int = 8,
    progress: Callable[[BatchProgress], object] | None = None,
    output: Any = None,
    **options: Unpack[ResumeOptions],
) -> Mono[tuple[Reply[Any] | Exception, ...]]:
    """Call an agent once for each input, each in a fresh session.

    Args:
        agent: The agent.
        inputs: The inputs.
        concurrency: The maximum number of calls at the same time.
        progress: Called at the beginning and after each call; `agentflow.terminal.progress_bar()` returns such a function.
        output: The type of `reply.output`, as in `agent.call`.
        options: The options of each call: `options`, `timeout`, `deps`, `hooks`.

    Returns:
        When awaited, the reply to each input, in order, or the error that its call raised. Awaiting it again makes the
        calls again.

    Raises:
        UsageError: `inputs` is a single input, or `concurrency` is not 1 or more.

    Example:
        >>> agent = Agent("echo", ScriptedModel(lambda request: request.messages[-1].text.upper()))
        >>> [reply.text for reply in await batch(agent, ["a", "b"]) if isinstance(reply, Reply)]
        ['A', 'B']
    """
    if isinstance(inputs, str | Msg):
        raise UsageError(
            "batch(agent, inputs): inputs is a single input. Pass a list of inputs, or await agent.call(...)."
        )
    if type(concurrency) is not int or concurrency < 1:
        raise UsageError(
            f"batch(concurrency={concurrency!r}) is invalid; use the number of calls at the same time, 1 or more."
        )
    unknown = sorted(options.keys() - ResumeOptions.__annotations__.keys())
    if unknown:
        raise UsageError(
            f"batch({unknown[0]}=...): there is no such option. Each call has a fresh session; use output, "
            f"{', '.join(ResumeOptions.__annotations__)}."
        )

    def call(item: Input) -> Mono[Reply[Any]]:
        return agent.call(item, session=Session.fresh(), output=output, **options)

    return Mono(partial(_run, call, tuple(inputs), concurrency, progress))


async def _run(
    call: Callable[[Input], Mono[Reply[Any]]],
    inputs: Sequence[Input],
    concurrency: int,
    progress: Callable[[BatchProgress], object] | None,
) -> tuple[Reply[Any] | Exception, ...]:
    """Run all calls, in `concurrency` tasks."""
    results: list[Reply[Any] | Exception | None] = [None] * len(inputs)
    done = failed = 0
    todo = iter(list(enumerate(inputs)))

    async def work() -> None:
        nonlocal done, failed
        for index, item in todo:  # shared by all workers, so each input is taken once
            try:
                results[index] = await call(item)
            except Exception as error:
                results[index] = error
                failed += 1
            done += 1
            if progress is not None:
                progress(BatchProgress(done, failed, len(inputs)))

    if progress is not None:
        progress(BatchProgress(0, 0, len(inputs)))
    async with asyncio.TaskGroup() as group:
        for _ in range(min(concurrency, len(inputs))):
            group.create_task(work())
    # All are set once the group has ended; the condition is for the type checker.
    return tuple([result for result in results if result is not None])

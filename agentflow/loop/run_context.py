"""The loop's part of `RunContext` methods: injections, compactions, the use of the context window, side calls.

Rules:

1. Messages that hooks and tools add are validated before they become facts.
2. The use of the context window is only computed on request: it is the usage that the last reply reported, plus an
   estimate for later messages. The estimate assumes the ratio of characters to tokens of that reply's request, or four
   characters per token if no reply has reported its usage.
3. A side call (`context.complete`) has no events, and nothing of it is stored. It is billed to the run.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Final, Protocol

from agentflow._support.cancellation import cancel_requests
from agentflow._support.frozen import FrozenDict
from agentflow._support.ids import new_id as fresh_id
from agentflow.errors import UsageError
from agentflow.hooks.hook_set import FullHookSet
from agentflow.hooks.injections import injecting
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource
from agentflow.loop.machine import Machine
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk, fold
from agentflow.vocabulary.context import Compaction, ContextWindow, RunContext
from agentflow.vocabulary.messages import (
    DATA_TOKENS,
    Msg,
    characters,
    data_blocks,
    with_metadata,
)
from agentflow.vocabulary.ports.model import Model, ModelRequest, context_limit, resolve_model, token_count
from agentflow.vocabulary.specs import ModelOptions, ToolSpec, Usage, one_call
from agentflow.vocabulary.transcript import legalise

__all__ = [
    "ask_beside",
    "changed_request",
    "compaction_of",
    "estimate_tokens",
    "injected",
    "measure",
    "note_injection",
    "window_of",
]

_MAX_IN_A_ROW: Final = 100


def injected(messages: Sequence[Msg], source: str, finished: bool, announcements: int) -> tuple[Msg, ...]:
    """Return the messages of `context.inject`, marked with their source.

    Args:
        messages: The messages, as passed.
        source: The origin, as passed.
        finished: Whether the call has ended already.
        announcements: The number of `MessagesAdded` events in a row.

    Raises:
        UsageError: The call has ended, hooks inject messages in an infinite loop, or a message has an invalid role or
            contains tool calls.
    """
    if finished:
        raise UsageError("This call has ended, so no message can be injected into it.")
    if announcements > _MAX_IN_A_ROW:
        raise UsageError(
            f"Infinite injection loop: a hook of MessagesAdded injected {_MAX_IN_A_ROW} messages in a row in response to its "
            "own. Skip events with the origin 'injected'."
        )
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise UsageError(
                f"context.inject takes user messages and assistant messages without tool calls, not {msg.role!r}."
            )
    return tuple([msg if "synthetic" in msg.metadata else with_metadata(msg, synthetic=source) for msg in messages])


def note_injection(run: object, messages: tuple[Msg, ...], keep: bool) -> None:
    """Record the messages that the running code injects into a run, if a listener needs them."""
    noting = injecting.get()
    if noting is not None and noting.run is run:
        noting.note(messages, keep)


def compaction_of(machine: Machine, iteration: int, until: int, messages: Sequence[Msg]) -> Compaction:
    """Describe the replacement that `context.compact` is about to make.

    Args:
        machine: The session's state.
        iteration: The number of the current request to the model.
        until: The number of messages of the history to replace in requests.
        messages: The replacement.

    Raises:
        UsageError: The history is shorter, or calls would be separated from their results.
    """
    transcript = machine.transcript
    check_compacted(until, transcript.messages, bool(transcript.open_round))
    since, earlier = machine.compacted or (0, ())
    old = (*earlier, *[transcript.messages[index] for index in range(since, until)])
    return Compaction(iteration, len(old), estimate_tokens(old), len(messages), estimate_tokens(messages))


def check_compacted(until: int, stored: Sequence[Msg], round_is_open: bool) -> None:
    """Refuse a compaction that would separate tool calls from their results.

    Args:
        until: The number of messages to replace in requests.
        stored: The history.
        round_is_open: Whether the calls of its last message have no results yet.

    Raises:
        UsageError: The history is shorter, or calls would be separated from their results.
    """
    if not 0 <= until <= len(stored):
        raise UsageError(
            f"compact(until={until}): the history has {len(stored)} messages. Use a number from 0 to {len(stored)}."
        )
    if (until == len(stored) and round_is_open) or (until < len(stored) and stored[until].role == "tool"):
        raise UsageError(f"compact(until={until}) would separate tool calls from their results.")


_USUAL_RATE: Final = 4.0  # characters per token in English text, roughly
_MAX_RATE: Final = 8.0  # an upper limit, for a provider that reports too few input tokens
_TOKENS_PER_MESSAGE: Final = 4  # for a message's role and separators, roughly


def window_of(messages: Sequence[Msg], tools: Iterable[ToolSpec], model: str | Model) -> ContextWindow:
    """Return how much of the context window a request uses, without I/O.

    Args:
        messages: The request, including the system prompt.
        tools: The tools that the model may call.
        model: The model.
    """
    limit = context_limit(model)
    last, reported = _last_report(messages)
    if reported is None:
        specs = sum(len(spec.name) + len(spec.description) + len(str(spec.parameters)) for spec in tools)
        return ContextWindow(_estimate(messages, _USUAL_RATE) + int(specs / _USUAL_RATE), limit, "estimate")
    used, prompt = reported.total_tokens, reported.input_tokens
    later = [messages[index] for index in range(last + 1, len(messages))]
    if not later:
        return ContextWindow(used, limit, "reported")
    length = sum(characters(messages[index]) for index in range(last))
    return ContextWindow(used + _estimate(later, min(_MAX_RATE, max(1.0, length / prompt))), limit, "estimate")


async def measure(request: ModelRequest, model: str | Model) -> ContextWindow:
    """Return how much of the context window a request uses, counted by the provider or a tokenizer, or estimated if
    neither is available."""
    counted = await token_count(model, request)
    if counted is None:
        return window_of(request.messages, request.tools, model)
    return ContextWindow(counted.tokens, context_limit(model), counted.how)


def estimate_tokens(messages: Iterable[Msg]) -> int:
    """Estimate the number of tokens of some messages by their size."""
    return _estimate(messages, _USUAL_RATE)


def _last_report(messages: Sequence[Msg]) -> tuple[int, Usage | None]:
    """Return the index of the last reply that reported its usage, and the usage. Replies before a compaction are ignored."""
    first = next((n for n, msg in enumerate(messages) if msg.role != "system"), 0)
    fresh = first if not messages else _first_after_summary(messages[first], first)
    for index in range(len(messages) - 1, fresh, -1):
        msg = messages[index]
        if msg.role == "assistant" and msg.usage is not None and msg.usage.input_tokens:
            return index, msg.usage
    return 0, None


def _first_after_summary(first: Msg, head: int) -> int:
    """Return the index of the message after which replies report the usage of the compacted request, not of a longer one.

    Args:
        first: The first message after the system prompt; it has the compaction's metadata if there was one.
        head: The index of that message.
    """
    mark = first.metadata.get("compaction") if first.metadata.get("synthetic") == "compaction" else None
    return head if mark is None else mark["stored"] - mark["until"] + head + mark["messages"] - 1


def _estimate(messages: Iterable[Msg], rate: float) -> int:
    total = 0
    for msg in messages:
        total += _TOKENS_PER_MESSAGE + int(characters(msg) / rate) + data_blocks(msg) * DATA_TOKENS
    return total


class SideCallRun(Protocol):
    """The run that makes a side call."""

    @property
    def hooks(self) -> FullHookSet:
        """Its hooks."""
        ...

    @property
    def context(self) -> RunContext:
        """The context of its hooks and tools."""
        ...

    def add_usage(self, usage: Usage) -> None:
        """Add usage to the run."""
        ...


async def ask_beside(
    run: SideCallRun,
    model: str | Model,
    messages: Sequence[Msg],
    options: ModelOptions,
    source: str,
    new_id: Callable[[str], str],
) -> Msg:
    """Call a model through the hooks that wrap side calls, and bill the run.

    Args:
        run: The run.
        model: The model.
        messages: The messages to send.
        options: The options of the request.
        source: The name of the caller.
        new_id: Creates ids.

    Raises:
        CancelledError: The task was cancelled, and the model swallowed the cancellation.
    """
    resolved = resolve_model(model)
    work = _work(resolved, ModelRequest(legalise(messages, new_id), (), options, resolved.name), new_id)
    for hook in run.hooks.side_wrappers:
        work = _wrapped(hook, run.context, source, work)
    received: list[ModelChunk] = []
    chunks = work.open()
    try:
        async for chunk in chunks:
            if chunk.restart:  # the model starts the reply again, but the tokens so far are billed too
                _bill(run, received)
                received = []
            received.append(chunk)
    except BaseException:  # bill the usage reported so far
        _bill(run, received)
        raise
    finally:
        await close(chunks)
    reply = fold(received, new_id=new_id)
    run.add_usage(one_call(reply.usage))
    return Msg(reply.role, reply.content, source, reply.id, FrozenDict(side=source), reply.usage, reply.finish_reason)


def _bill(run: SideCallRun, received: Sequence[ModelChunk]) -> None:
    usage = next((chunk.usage for chunk in reversed(received) if chunk.usage is not None), None)
    if usage is not None:
        run.add_usage(one_call(usage))


def _work(current: str | Model, request: ModelRequest, new_id: Callable[[str], str]) -> ModelSource:
    """Return the model call as a source, which a hook can also run with another request."""

    def using(
        *, model: str | Model | None, input_messages: Sequence[Msg] | None, options: ModelOptions | None
    ) -> ModelSource:
        changed = changed_request(request, model, input_messages, options, new_id)
        return _work(current if model is None else model, changed, new_id)

    return ModelSource(Flux(lambda: _stream(resolve_model(current), request)), request, using, opens=None)


async def _stream(model: Model, request: ModelRequest) -> AsyncIterator[ModelChunk]:
    """Call the model; raise `CancelledError` if it swallows a cancellation of the task."""
    requested = cancel_requests()
    chunks = model.stream(request)
    try:
        async for chunk in chunks:
            yield chunk
        if cancel_requests() > requested:
            raise asyncio.CancelledError("a model swallowed the cancellation")
    finally:
        await close(chunks)


def changed_request(
    request: ModelRequest,
    model: str | Model | None,
    input_messages: Sequence[Msg] | None,
    options: ModelOptions | None,
    new_id: Callable[[str], str] = fresh_id,
) -> ModelRequest:
    """Return a request with other values; see `ModelSource.using`."""
    return ModelRequest(
        request.messages if input_messages is None else legalise(input_messages, new_id),
        request.tools,
        request.options.merge(options),
        request.model if model is None else model if isinstance(model, str) else model.name,
    )


def _wrapped(hook: SideWrapper, context: RunContext, side: str, work: ModelSource) -> ModelSource:
    """Apply one hook's `around_side`. The result is a source, too; with another request it passes through the hook again."""
    wrapped = hook.around_side(context, work.request, side, work)
    if wrapped is work:
        return work

    def using(
        *, model: str | Model | None, input_messages: Sequence[Msg] | None, options: ModelOptions | None
    ) -> ModelSource:
        return _wrapped(hook, context, side, work.using(model=model, input_messages=input_messages, options=options))

    return ModelSource(wrapped, work.request, using, opens=None)

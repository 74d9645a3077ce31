"""`SummaryCompaction`: in a long conversation, requests contain a summary instead of the oldest part.

Rules:

1. The conversation is split only between whole rounds; the history keeps the originals.
2. A new summary is written from the last one and the following messages.
3. If summarising fails, nothing changes, and the next attempt waits.
"""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice
from typing import NamedTuple

from agentflow._support.frozen import FrozenDict
from agentflow._support.logs import ids_of, log_failure, logger
from agentflow.errors import AgentFlowError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._attempts import is_context_overflow, shorter_request
from agentflow.plugins._counting import (
    CountTokens,
    SharedPart,
    count_tokens,
    head_length,
    last_request,
    most_tokens,
    render,
    unit_starts,
)
from agentflow.reactive import Flux
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext, own
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.messages import Msg, TextBlock
from agentflow.vocabulary.ports.model import Model

__all__ = ["SUMMARISE", "SummaryCompaction"]

SUMMARISE = """You write the memory of an agent. What you write takes the place of the conversation below; what you leave \
out is forgotten. Keep: what the user wants, in the user's words; decisions and why; facts, names, numbers, paths and ids \
that may be needed again; what was tried and failed; what is still to do. If a summary of what came before is given, carry \
it on. Write plain notes, no greeting, and do not go on with the task."""

INTRODUCTION = "[summary] What came before in this conversation, in short:\n{summary}"
SOURCE = "compaction"
_SHORT_CLIP = 300
_NEAR = 8
"""The number of last messages that are searched first for a reply with usage."""


@dataclass
class _Cooldown:
    """The pause of a session between two compactions.

    Attributes:
        left: The number of requests before the next compaction is considered.
    """

    left: int = 0


class _ObservedRequest:
    """A run's last request, before changes by other hooks, and an upper bound of its tokens."""

    def __init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self._shared = SharedPart()
        self._bound = 0

    def bound(self) -> int:
        """Return an upper bound of the tokens: the last reply's usage, and a bound for the messages after it."""
        messages = self.messages
        # First look at the last messages, at a cost that does not grow with the conversation: most replies report their usage.
        near = _near_bound(messages)
        if near is not None:
            return near
        extends, new, rest = self._shared.split(messages)
        # The last bound can be extended only by messages without usage.
        if not extends or rest or _has_usage(new):
            known, since = _reported(messages)
            bound = known + most_tokens(messages[since:])
        else:
            bound = self._bound + most_tokens(new)
        self._bound = bound
        return bound


class _ShortRequest(NamedTuple):
    """A compacted request: the summary's messages, and the recent ones."""

    summary: tuple[Msg, ...]
    recent: tuple[Msg, ...]


class SummaryCompaction(Hook):
    """Replaces the older rounds of long requests by a summary, in this and in later requests.

    The history keeps the originals. The summary is a user message marked `metadata["synthetic"] == "compaction"`; the user's
    last request is kept unchanged. A side model call, billed to the run, writes the summary. If it fails, requests stay
    unchanged, and the next attempt follows after `cooldown` requests.

    If the provider reports that the conversation is too long, it is compacted, and the request is sent again.

    Priority 40 (system): it must see the stored messages, before other hooks change the request.

    Args:
        at_tokens: Compact a request with more tokens.
        at_messages: Compact a request with more messages (not counting the system prompt).
        keep_rounds: The number of most recent rounds to keep. A round is a reply with its tool results.
        model: The model for the summary, or its name; the agent's own by default.
        prompt: The instructions. The last summary and the conversation follow, as text.
        cooldown: The number of requests between two attempts, successful or not.
        clip: The maximum number of characters of one text, tool call or result shown to the summarising model.
        count: A token counter, `(text, model's name) -> tokens`; LiteLLM's by default. If a provider has reported the usage of
            the last reply, only the messages after it are counted.

    Example:
        >>> agent = Agent("coder", "openai/gpt-5", tools=[search], hooks=[SummaryCompaction(at_tokens=100_000)])
    """

    priority = 40
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(
        self,
        at_tokens: int | None = None,
        *,
        at_messages: int | None = None,
        keep_rounds: int = 4,
        model: str | Model | None = None,
        prompt: str = SUMMARISE,
        cooldown: int = 5,
        clip: int = 4_000,
        count: CountTokens | None = None,
    ) -> None:
        for name, value, least in (
            ("at_tokens", at_tokens, 1),
            ("at_messages", at_messages, 1),
            ("keep_rounds", keep_rounds, 1),
            ("cooldown", cooldown, 0),
            ("clip", clip, 1),
        ):
            if value is not None and value < least:
                raise UsageError(f"SummaryCompaction({name}={value}) must be at least {least}.")
        self.at_tokens = at_tokens
        self.at_messages = at_messages
        self.keep_rounds = keep_rounds
        self.model = model
        self.prompt = prompt
        self.cooldown = cooldown
        self.clip = clip
        self.count = count

    # ---- before a request

    def on_event(self, event: HookEvent) -> HookEvent | Awaitable[None]:
        """Compact the conversation before a request that is too long."""
        if not isinstance(event, PreReasoning):
            return event
        request = own(event.context, self, _ObservedRequest)
        request.messages = event.input_messages
        cooldown = event.context.session_state[_Cooldown]
        if cooldown.left > 0:
            cooldown.left -= 1
        elif not self._is_surely_short(request):
            return self._compact_request(event, request)
        return event

    async def _compact_request(self, event: PreReasoning, request: _ObservedRequest) -> None:
        messages = event.input_messages
        if not await self._is_too_long(messages, event.model):
            return
        compaction = await self._compact(event.context, messages)
        if compaction is not None:
            head = tuple(messages[: head_length(messages)])
            request.messages = event.input_messages = (*head, *compaction.summary, *compaction.recent)

    def _is_surely_short(self, request: _ObservedRequest) -> bool:
        """Return whether the request is certainly short enough, by the number of messages and a bound without a tokenizer."""
        if self.at_messages is not None and len(request.messages) > self.at_messages:
            return False
        return self.at_tokens is None or request.bound() <= self.at_tokens

    async def _is_too_long(self, messages: Sequence[Msg], model: str) -> bool:
        if self.at_messages is not None and len(messages) - head_length(messages) > self.at_messages:
            return True
        if self.at_tokens is None:
            return False
        known, since = _reported(messages)
        if known <= self.at_tokens:  # if the reported tokens alone are too many, the others need not be counted
            known += await count_tokens(messages[since:], model, self.count)
        return known > self.at_tokens

    # ---- if the provider reports that the conversation is too long

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Send the request once more, with a shorter conversation, if this one does not fit."""
        return shorter_request(source, partial(self._shorter, event.context, source))

    async def _shorter(self, context: RunContext, source: ModelSource) -> Sequence[Msg] | None:
        compaction = await self._compact(context, own(context, self, _ObservedRequest).messages, overflow=True)
        return None if compaction is None else _spliced(source.request.messages, compaction)

    # ---- compacting

    async def _compact(
        self, context: RunContext, messages: Sequence[Msg], *, overflow: bool = False
    ) -> _ShortRequest | None:
        """Summarise the oldest part; return None if it is too short to split, or there is no summary."""
        messages = tuple(messages)
        head = head_length(messages)
        split = _split_index(messages, head, self.keep_rounds, halve=overflow)
        if split is None:
            return None
        # Set before the attempt, so that it applies after a failure too.
        context.session_state[_Cooldown].left = self.cooldown
        offset = _offset(messages[head], head, context.history)
        if offset is None:
            logger.bind(**ids_of(context)).warning(
                "a request is not compacted, because it does not begin with the history: another hook has changed it"
            )
            return None
        old, recent = messages[head:split], messages[split:]
        try:
            text = await self._summary(context, old)
            summary = _messages(text, old, recent, offset + split, offset + len(messages), context.new_id("msg_"))
            context.compact(offset + split, summary, by=self.name)
        except Exception as error:  # a failure of the side model call should not harm the run
            log_failure(
                "WARNING",
                error,
                "session {} could not be compacted; its requests stay as they are",
                context.session_id,
                where=context,
            )
            return None
        logger.bind(**ids_of(context)).info("session {}: compacted {}", context.session_id, context.compaction)
        return _ShortRequest(summary, recent)

    async def _summary(self, context: RunContext, old: Sequence[Msg]) -> str:
        clip = self.clip
        while True:
            conversation = Msg.user(f"The conversation:\n{render(old, clip)}")
            try:
                reply = await context.complete((Msg.system(self.prompt), conversation), model=self.model, source=SOURCE)
            except Exception as error:
                if clip <= _SHORT_CLIP or not is_context_overflow(error):
                    raise
                clip = _SHORT_CLIP  # the text to summarise was too long itself; try once more with a shorter one
                continue
            if summary := reply.text.strip():
                return summary
            raise AgentFlowError("The model wrote an empty summary.")


def _near_bound(messages: Sequence[Msg]) -> int | None:
    """Return an upper bound of the tokens, from the usage of one of the last messages; None if none of them has a usage."""
    total = 0
    for msg in islice(reversed(messages), _NEAR):
        if msg.usage is not None and msg.usage.input_tokens:
            return total + msg.usage.total_tokens
        total += most_tokens((msg,))
    return None


def _has_usage(messages: Sequence[Msg]) -> bool:
    """Return whether one of the messages has the usage of its request."""
    for msg in messages:  # noqa: SIM110 - a generator would double the cost
        if msg.usage is not None and msg.usage.input_tokens:
            return True
    return False


def _mark(msg: Msg) -> dict[str, int] | None:
    """Return the mark of a summary's message: the numbers that `_messages` stores in it; None for any other message."""
    return msg.metadata.get(SOURCE) if msg.metadata.get("synthetic") == SOURCE else None


def _reported(messages: Sequence[Msg]) -> tuple[int, int]:
    """Return the size of the conversation by the last reply's usage, and the index of the first message after it.

    A reply from before the last compaction had a longer request, so its usage does not apply.
    """
    head = head_length(messages)
    mark = _mark(messages[head]) if head < len(messages) else None
    # The index of the first message that was stored after the last compaction.
    fresh = 0 if mark is None else mark["stored"] - mark["until"] + head + mark["messages"]
    for index in range(len(messages) - 1, max(fresh, head) - 1, -1):
        msg = messages[index]
        if msg.role == "assistant" and msg.usage is not None and msg.usage.input_tokens:
            return msg.usage.total_tokens, index + 1
    return 0, 0


def _offset(first: Msg, head: int, history: Sequence[Msg]) -> int | None:
    """Return the difference between indices in the history and in the request; None if it is unknown."""
    mark = _mark(first)
    if mark is not None:
        return mark["until"] - head - mark["messages"]
    return -head if len(history) and history[0].id == first.id else None


def _split_index(messages: Sequence[Msg], head: int, keep: int, *, halve: bool) -> int | None:
    """Return the index at which to split to keep the last rounds; None if nothing would be gained."""
    mark = _mark(messages[head]) if head < len(messages) else None
    start = head + (mark["messages"] if mark is not None else 0)
    units = unit_starts(messages, start)
    if halve:
        keep = min(keep, max(1, len(units) // 2))
    if len(units) <= keep:
        return None
    return units[-keep]


def _messages(
    summary: str, old: Sequence[Msg], recent: Sequence[Msg], until: int, stored: int, id_: str
) -> tuple[Msg, ...]:
    """Return the replacement of the summarised part: the summary, and the user's last request if it would be lost.

    Args:
        summary: The text of the summary.
        old: The summarised messages.
        recent: The messages after them.
        until: The number of messages of the history that the summary replaces.
        stored: The number of messages in the history.
        id_: The id of the summary's message.
    """
    request = last_request(old) if last_request(recent) is None else None
    notes = FrozenDict(
        {
            "synthetic": SOURCE,
            SOURCE: FrozenDict({"until": until, "messages": 1 if request is None else 2, "stored": stored}),
        }
    )
    note = Msg("user", (TextBlock(INTRODUCTION.format(summary=summary)),), id=id_, metadata=notes)
    return (note,) if request is None else (note, request)


def _spliced(messages: Sequence[Msg], compaction: _ShortRequest) -> tuple[Msg, ...]:
    """Insert the compaction into the request, which other hooks may have changed."""
    head = tuple(messages[: head_length(messages)])
    # Messages are matched by id: later hooks may have added, removed or replaced some.
    ids = [msg.id for msg in messages]
    first = next((ids.index(msg.id) for msg in compaction.recent if msg.id in ids), None)
    rest = compaction.recent if first is None else tuple(messages[first:])
    return (*head, *compaction.summary, *rest)

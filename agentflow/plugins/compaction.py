"""`SummaryCompaction`: when a conversation gets long, requests carry a summary of its start in place of the start.

Rules:

1. A cut is made between whole rounds only; the history keeps the originals.
2. The last summary is part of what the next one is made from.
3. A summary that cannot be made changes nothing, and is not tried again at once.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple, cast

from reactivex import Observable

from agentflow.context import RunContext
from agentflow.errors import AgentFlowError, UsageError
from agentflow.events import HookEvent, PreReasoning
from agentflow.ground.frozen import FrozenDict
from agentflow.ground.logs import ids_of, log_failure, logger
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import ModelSource
from agentflow.messages import Msg, TextBlock
from agentflow.plugins._counting import (
    CountTokens,
    count_tokens,
    fitting,
    head_length,
    is_context_overflow,
    last_request,
    most_tokens,
    render,
    tail,
    unit_starts,
)
from agentflow.ports.model import Model
from agentflow.reactive import Flux
from agentflow.transcript import MessageView

__all__ = ["SUMMARISE", "SummaryCompaction"]

SUMMARISE = """You write the memory of an agent. What you write takes the place of the conversation below; what you leave \
out is forgotten. Keep: what the user wants, in the user's words; decisions and why; facts, names, numbers, paths and ids \
that may be needed again; what was tried and failed; what is still to do. If a summary of what came before is given, carry \
it on. Write plain notes, no greeting, and do not go on with the task."""

INTRODUCTION = "[summary] What came before in this conversation, in short:\n{summary}"
SOURCE = "compaction"
_SHORT_CLIP = 300


@dataclass
class _Cooldown:
    """How many requests of the session pass before compaction is thought of again."""

    left: int = 0


@dataclass
class _Request:
    """What a run's last request was made of, before other hooks have changed it. Nothing of it is stored with a session."""

    def __post_init__(self) -> None:
        self.messages: Sequence[Msg] = ()
        self.short: dict[int, tuple[Sequence[Msg], int]] = {}
        """By hook: a request that was short for certain, and the bound of its tokens."""


class _Compacted(NamedTuple):
    """What a compaction makes of a request."""

    instead: tuple[Msg, ...]
    kept: tuple[Msg, ...]


class SummaryCompaction(Hook):
    """When a request gets too long, its older rounds are replaced by a summary, in this and in later requests.

    The history keeps the originals. The summary is a user's note, marked `metadata["synthetic"] == "compaction"`; the last
    thing that the user asked for stays word for word. A side model call writes it, billed to the run. If that fails,
    requests stay as they are, and `cooldown` requests go by before the next try.

    It also works when the provider says that the conversation is too long: it compacts, and asks once more.

    Priority 40 (system): it has to see what is stored, before other hooks change the request.

    Args:
        at_tokens: Compact a request of more tokens.
        at_messages: Compact a request of more messages (the system prompt not counted).
        keep_rounds: The last so many rounds stay as they are. A round is a reply with the results that it asked for.
        model: Who writes the summary: a model or its name; the agent's own by default.
        prompt: The instructions. The last summary and the conversation follow, as text.
        cooldown: Requests that go by after a try, good or bad.
        clip: The most characters of one message that the summarising model is shown.
        count: A token counter, `(text, model's name) -> tokens`; LiteLLM's by default. Where a provider has reported the
            usage of the last reply, only what came after it is counted.

    Example:
        >>> agent = Agent("coder", "openai/gpt-5", tools=[search], hooks=[SummaryCompaction(at_tokens=100_000)])
    """

    priority = 40
    on_failure = "skip"
    events = (PreReasoning,)
    wraps = (PreReasoning,)

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
                raise UsageError(f"SummaryCompaction({name}={value}): it is at least {least}.")
        self.at_tokens = at_tokens
        self.at_messages = at_messages
        self.keep_rounds = keep_rounds
        self.model = model
        self.prompt = prompt
        self.cooldown = cooldown
        self.clip = clip
        self.count = count

    # ---- before a request

    def on_event(self, event: HookEvent) -> Any:
        """Compact the conversation before a request that is too long."""
        if isinstance(event, PreReasoning):
            context, messages = event.context, event.input_messages
            request = context.state[_Request]
            request.messages = messages
            cooldown = context.session_state[_Cooldown]
            if cooldown.left > 0:
                cooldown.left -= 1
            elif not self._surely_short(messages, request):
                return self._before(event)
        return event

    async def _before(self, event: PreReasoning) -> None:
        messages = event.input_messages
        if not await self._too_long(messages, event.model):
            return
        compacted = await self._compact(event.context, messages, self.keep_rounds)
        if compacted is not None:
            head = tuple(messages[: head_length(messages)])
            event.input_messages = (*head, *compacted.instead, *compacted.kept)
            event.context.state[_Request].messages = event.input_messages

    def _surely_short(self, messages: Sequence[Msg], request: _Request) -> bool:
        """The cheap check, for most requests: the counts, and a bound that needs no tokenizer.

        A request usually is the last one and a little more: then only that is looked at.
        """
        if self.at_messages is not None and len(messages) > self.at_messages:
            return False
        if self.at_tokens is None:
            return True
        if not isinstance(messages, MessageView):
            return self._bound(messages) <= self.at_tokens
        before, bound = request.short.get(id(self), ((), 0))
        new = tail(messages, len(before)) if messages.shared(before) == len(before) else None
        bound = self._bound(messages) if new is None or _billed(new) else bound + most_tokens(new)
        if bound > self.at_tokens:
            return False
        request.short[id(self)] = messages, bound
        return True

    def _bound(self, messages: Sequence[Msg]) -> int:
        """A number that the tokens of a request do not exceed: what the last reply's usage says, and what came after it."""
        known, since = _reported(messages)
        return known + most_tokens(tail(messages, since))

    async def _too_long(self, messages: Sequence[Msg], model: str) -> bool:
        if self.at_messages is not None and len(messages) - head_length(messages) > self.at_messages:
            return True
        if self.at_tokens is None:
            return False
        known, since = _reported(messages)
        if known <= self.at_tokens:
            known += await count_tokens(tail(messages, since), model, self.count)
        return known > self.at_tokens

    # ---- when the provider says it is too long

    def around(self, event: HookEvent, source: Any) -> Observable[Any]:
        """Ask once more, with a shorter conversation, if this one does not fit."""
        if not isinstance(event, PreReasoning):
            return source
        return Flux(partial(fitting, source, partial(self._shorter, event, source)))

    async def _shorter(self, event: PreReasoning, source: ModelSource) -> Sequence[Msg] | None:
        stored = event.context.state[_Request].messages
        compacted = await self._compact(event.context, stored, self.keep_rounds, overflow=True)
        return None if compacted is None else _spliced(source.request.messages, compacted)

    # ---- the work

    async def _compact(
        self, context: RunContext, messages: Sequence[Msg], keep: int, *, overflow: bool = False
    ) -> _Compacted | None:
        """Summarise and cut; None where there is nothing to cut, or no summary."""
        messages = tuple(messages)
        head = head_length(messages)
        cut = _cut(messages, head, keep, halve=overflow)
        if cut is None:
            return None
        context.session_state[_Cooldown].left = self.cooldown
        offset = _offset(messages[head], head, context.history)
        if offset is None:
            logger.bind(**ids_of(context)).warning(
                "a request does not begin with the history: something else has compacted or changed it"
            )
            return None
        old, kept = messages[head:cut], messages[cut:]
        try:
            summary = await self._summary(context, old)
            instead = _instead(summary, old, kept, offset + cut, offset + len(messages), context.new_id("msg_"))
            context.compact(offset + cut, instead, by=self.name)
        except Exception as error:  # any: the side call is a model, and a model's failure must not harm the run
            log_failure(
                "WARNING",
                error,
                "session {} could not be compacted; its requests stay as they are",
                context.session_id,
                where=context,
            )
            return None
        logger.bind(**ids_of(context)).info("session {}: compacted {}", context.session_id, context.compaction)
        return _Compacted(instead, kept)

    async def _summary(self, context: RunContext, old: Sequence[Msg]) -> str:
        clip = self.clip
        while True:
            told = Msg.user(f"The conversation:\n{render(old, clip)}")
            try:
                reply = await context.complete((Msg.system(self.prompt), told), model=self.model, source=SOURCE)
            except Exception as error:
                if clip <= _SHORT_CLIP or not is_context_overflow(error):
                    raise
                clip = _SHORT_CLIP
                continue
            if summary := reply.text.strip():
                return summary
            raise AgentFlowError("The model that was asked for a summary wrote nothing.")


def _billed(messages: Sequence[Msg]) -> bool:
    """Whether one of the messages tells what its request has cost."""
    for msg in messages:  # noqa: SIM110 - a generator costs as much as the look
        if msg.usage is not None and msg.usage.input_tokens:
            return True
    return False


def _mark(msg: Msg) -> dict[str, int] | None:
    """What a summary's message says of the cut that it stands for."""
    return cast("dict[str, int] | None", msg.metadata.get(SOURCE)) if msg.metadata.get("synthetic") == SOURCE else None


def _reported(messages: Sequence[Msg]) -> tuple[int, int]:
    """The size of the conversation as the last reply's usage tells it, and where what it does not tell begins.

    A reply that is older than the last compaction was made from a longer request: its usage tells nothing.
    """
    head = head_length(messages)
    mark = _mark(messages[head]) if head < len(messages) else None
    fresh = 0 if mark is None else mark["stored"] - mark["until"] + head + mark["messages"]
    for index in range(len(messages) - 1, max(fresh, head) - 1, -1):
        msg = messages[index]
        if msg.role == "assistant" and msg.usage is not None and msg.usage.input_tokens:
            return msg.usage.total_tokens, index + 1
    return 0, 0


def _offset(first: Msg, head: int, history: Sequence[Msg]) -> int | None:
    """What to add to a place in the request to have the place in the history; None where that cannot be told."""
    mark = _mark(first)
    if mark is not None:
        return mark["until"] - head - mark["messages"]
    return -head if len(history) and history[0].id == first.id else None


def _cut(messages: Sequence[Msg], head: int, keep: int, *, halve: bool) -> int | None:
    """Where to cut so that the last rounds stay; None if nothing would be gained."""
    mark = _mark(messages[head]) if head < len(messages) else None
    start = head + (mark["messages"] if mark is not None else 0)
    units = unit_starts(messages, start)
    if halve:
        keep = min(keep, max(1, len(units) // 2))
    if len(units) <= keep:
        return None
    return units[-keep]


def _instead(
    summary: str, old: Sequence[Msg], kept: Sequence[Msg], until: int, stored: int, id_: str
) -> tuple[Msg, ...]:
    """What stands for the cut part: the summary, and the user's last words if they would be lost."""
    asked = last_request(old) if last_request(kept) is None else None
    notes = FrozenDict(
        {
            "synthetic": SOURCE,
            SOURCE: FrozenDict({"until": until, "messages": 1 if asked is None else 2, "stored": stored}),
        }
    )
    told = Msg("user", (TextBlock(INTRODUCTION.format(summary=summary)),), id=id_, metadata=notes)
    return (told,) if asked is None else (told, asked)


def _spliced(messages: Sequence[Msg], compacted: _Compacted) -> tuple[Msg, ...]:
    """The request as other hooks have left it, with the compaction in place of its start."""
    head = tuple(messages[: head_length(messages)])
    ids = [msg.id for msg in messages]
    first = next((ids.index(msg.id) for msg in compacted.kept if msg.id in ids), None)
    rest = compacted.kept if first is None else tuple(messages[first:])
    return (*head, *compacted.instead, *rest)

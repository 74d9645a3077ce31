"""Removes secrets from streams: a model's reply, and a tool's chunks.

Rules:

1. Text is held back only while it could still become part of a secret.
2. A call's arguments are held back until the call is complete: a secret may be written with JSON escapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentflow.hooks.wrapping import ModelSource, PrivateFlux, checks_its_end
from agentflow.plugins.redaction.text import StreamScanner
from agentflow.plugins.redaction.values import Cleaning
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.vocabulary.chunks import ModelChunk, ToolUseDelta
from agentflow.vocabulary.messages import ThinkingBlock
from agentflow.vocabulary.specs import ToolSpec


class RedactedFlux(PrivateFlux):
    """A model call with a redacted request and reply.

    It is private, since an outer cache would store restored text for a request that another session makes too: a `ModelCache`
    outside of it raises an error, which says that the cache needs a higher priority.

    Args:
        source: The model call.
        cleaning: Removes the secrets.
    """

    def __init__(self, source: ModelSource, cleaning: Cleaning) -> None:
        # The event does not contain messages injected by its chain; the request does.
        cleaned = cleaning.messages(source.request.messages)
        self._work = source if cleaned is None else source.using(input_messages=cleaned)
        self._cleaning = cleaning

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start a run; see `Flux.open`."""
        return self._run()

    @checks_its_end
    async def _run(self) -> AsyncIterator[ModelChunk]:
        reply = _RedactedReply(self._cleaning, self._work.request.tools)
        stream = self._work.open()
        first, whole = True, None
        try:
            async for chunk in stream:
                if first:
                    first = False
                    # A frequent reply is one chunk with clean tool calls. It is passed on unchanged if no other chunk follows.
                    if reply.is_whole_and_clean(chunk):
                        whole = chunk
                        continue
                elif whole is not None:
                    for shown in reply.add(whole):
                        yield shown
                    whole = None
                for shown in reply.add(chunk):
                    yield shown
            if whole is not None:
                yield whole
                return
            for shown in reply.end():
                yield shown
        except Exception:
            for shown in reply.end(failed=True):
                yield shown
            raise
        finally:
            await close(stream)


async def redacted_chunks(chunks: Flux[Any], cleaning: Cleaning, *, whole: bool) -> AsyncIterator[Any]:
    """Redact a tool's chunks; adjacent texts form one text. With `whole` (for a turn that no model requested) each text
    is a separate value.
    """
    replacer = cleaning.masking()
    text = StreamScanner(cleaning.scanner, replacer)
    stream = chunks.open()
    try:
        async for chunk in stream:
            if isinstance(chunk, str) and not whole:
                shown = text.feed(chunk)
                if shown:
                    yield shown
                continue
            rest = text.end()
            if rest:
                yield rest
            changed = cleaning.walk(chunk, replacer)
            yield chunk if changed == chunk else changed
        rest = text.end()
        if rest:
            yield rest
    finally:
        await close(stream)


class _PartialCall:
    """A tool call with arguments that are still arriving."""

    __slots__ = ("arguments", "id")

    def __init__(self, use_id: str) -> None:
        self.id = use_id
        self.arguments: list[str] = []


class _RedactedReply:
    """One attempt at a reply."""

    __slots__ = ("_calls", "_cleaning", "_finish", "_model", "_text", "_thinking", "_thought", "_tools")

    def __init__(self, cleaning: Cleaning, tools: Sequence[ToolSpec]) -> None:
        self._cleaning = cleaning
        self._tools = tools
        self._begin()

    def _begin(self) -> None:
        self._text: StreamScanner | None = None
        self._thinking: StreamScanner | None = None
        self._thought: list[str] = []
        self._calls: dict[int, _PartialCall] = {}
        self._finish: str | None = None
        self._model: str | None = None

    def is_whole_and_clean(self, chunk: ModelChunk) -> bool:
        """Return whether the first chunk, if it is also the last one, contains only tool calls, and no secrets."""
        if chunk.finish_reason is None or not chunk.tool_uses or chunk.restart:
            return False
        if chunk.text or chunk.thinking or chunk.signature is not None or chunk.blocks or chunk.citations:
            return False
        for delta in chunk.tool_uses:
            if self._name(delta.name) != delta.name or not self._cleaning.are_clean_arguments(delta.arguments):
                return False
        return len(chunk.tool_uses) == 1 or len({delta.index for delta in chunk.tool_uses}) == len(chunk.tool_uses)

    def add(self, chunk: ModelChunk) -> Iterable[ModelChunk]:
        """Add a chunk; return the chunks that can be shown."""
        if chunk.restart:
            self._begin()
        self._model = chunk.model or self._model
        self._finish = chunk.finish_reason or self._finish
        out: list[ModelChunk] = []
        thinking, text = "", ""
        if chunk.thinking or chunk.signature is not None:
            text_before = _end(self._text)
            if text_before:  # thoughts precede the text of the same chunk
                out.append(ModelChunk(text_before, restart=chunk.restart))
        if chunk.thinking:
            self._thinking = self._thinking or self._hold_back()
            thinking = self._thinking.feed(chunk.thinking)
            self._thought.append(chunk.thinking)
        if chunk.signature is not None or chunk.text or chunk.tool_uses or chunk.blocks:
            thinking += self._end_thought(chunk.signature)
        if chunk.text:
            self._text = self._text or self._hold_back()
            text = self._text.feed(chunk.text)
        if chunk.tool_uses or chunk.blocks or chunk.citations:
            text += _end(self._text)
        deltas: list[ToolUseDelta] = []
        for delta in chunk.tool_uses:
            self._add_delta(delta, deltas)
        for block in chunk.blocks:
            if isinstance(block, ThinkingBlock) and block.signature:
                self._cleaning.vault.keep_thought(block.signature, block.text)
        shown = ModelChunk(
            text,
            thinking,
            chunk.signature,
            tuple(deltas),
            tuple([self._cleaning.block(block, self._cleaning.showing()) for block in chunk.blocks])
            if chunk.blocks
            else (),
            chunk.usage,
            None,  # the finish reason comes last, after text that is held back
            chunk.restart,
            chunk.model,
            tuple([self._cleaning.citation(cited, self._cleaning.showing()) for cited in chunk.citations])
            if chunk.citations
            else (),
        )
        if text or deltas or shown != ModelChunk(model=chunk.model):
            out.append(shown)
        return out

    def _hold_back(self) -> StreamScanner:
        return StreamScanner(self._cleaning.scanner, self._cleaning.showing())

    def _end_thought(self, signature: str | None) -> str:
        if signature:
            self._cleaning.vault.keep_thought(signature, "".join(self._thought))
        if self._thinking is None:
            return ""
        self._thought = []
        return self._thinking.end()

    def _name(self, name: str) -> str:
        """Redact a tool's name, unless such a tool exists."""
        cleaning = self._cleaning
        if cleaning.is_clean(name) or any(spec.name == name for spec in self._tools):
            return name
        return cleaning.text(name, cleaning.masking(by_model=True))

    def _add_delta(self, delta: ToolUseDelta, out: list[ToolUseDelta]) -> None:
        call = self._calls.get(delta.index)
        # Another id and a name: the model has begun another call with the same index.
        if call is None or (delta.id and call.id and delta.id != call.id and delta.name):
            if call is not None:
                out.append(ToolUseDelta(delta.index, arguments=self._cleaning.arguments("".join(call.arguments))))
            call = self._calls[delta.index] = _PartialCall(delta.id)
            out.append(ToolUseDelta(delta.index, delta.id, self._name(delta.name)))
        elif delta.id or delta.name:
            call.id = call.id or delta.id
            out.append(replace(delta, name=self._name(delta.name), arguments=""))
        call.arguments.append(delta.arguments)

    def end(self, *, failed: bool = False) -> Iterable[ModelChunk]:
        """Return the remaining chunks; if the reply failed, without the calls."""
        thinking, text = _end(self._thinking), _end(self._text)
        deltas: list[ToolUseDelta] = []
        for index, call in self._calls.items():
            arguments = "" if failed else self._cleaning.arguments("".join(call.arguments))
            if arguments:
                deltas.append(ToolUseDelta(index, arguments=arguments))
        if not (text or thinking or deltas or self._finish):
            return ()
        return (ModelChunk(text, thinking, tool_uses=tuple(deltas), finish_reason=self._finish, model=self._model),)


def _end(scanner: StreamScanner | None) -> str:
    return "" if scanner is None else scanner.end()

"""Streams without their secrets: a model's reply on its way out, and the pieces that a tool hands out.

Rules:

1. Text is held back exactly as long as it could still become part of a secret.
2. A call's arguments are held until the call is whole: a secret may be written with JSON's escapes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Sequence
from dataclasses import replace
from typing import Any

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.hooks.wrapping import ModelSource, PrivateFlux
from agentflow.messages import ThinkingBlock
from agentflow.plugins.redaction.text import Streaming
from agentflow.plugins.redaction.values import Cleaning
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.specs import ToolSpec

__all__ = ["RedactedFlux", "redacted_pieces"]


class RedactedFlux(PrivateFlux):
    """The model's work, asked without secrets and shown without secrets.

    It is private: a cache further out would keep restored words under a request that another session makes too. So
    `ModelCache` refuses such a place, and says that it needs a higher priority.

    Args:
        source: The work.
        cleaning: Takes the secrets out.
    """

    def __init__(self, source: ModelSource, cleaning: Cleaning) -> None:
        # The event does not hold what its chain has injected; the request does.
        cleaned = cleaning.messages(source.request.messages)
        self._work = source if cleaned is None else source.using(input_messages=cleaned)
        self._cleaning = cleaning

    def open(self) -> AsyncIterator[ModelChunk]:
        """Start a run; see `Flux.open`."""
        return self._run()

    async def _run(self) -> AsyncIterator[ModelChunk]:
        reply = _Reply(self._cleaning, self._work.request.tools)
        stream = self._work.open()
        try:
            async for chunk in stream:
                for shown in reply.add(chunk):
                    yield shown
            for shown in reply.end():
                yield shown
        except Exception:
            for shown in reply.end(failed=True):
                yield shown
            raise
        finally:
            await close(stream)


async def redacted_pieces(pieces: Flux[Any], cleaning: Cleaning, *, whole: bool) -> AsyncIterator[Any]:
    """A tool's pieces; neighbouring texts are one text, or (`whole`, in a turn that no model asked for) values."""
    found = cleaning.masking()
    text = Streaming(cleaning.scanner, found)
    stream = pieces.open()
    try:
        async for piece in stream:
            if isinstance(piece, str) and not whole:
                shown = text.feed(piece)
                if shown:
                    yield shown
                continue
            rest = text.end()
            if rest:
                yield rest
            changed = cleaning.walk(piece, found)
            yield piece if changed == piece else changed
        rest = text.end()
        if rest:
            yield rest
    finally:
        await close(stream)


class _Call:
    """A tool call while its arguments come in."""

    __slots__ = ("arguments", "id")

    def __init__(self, use_id: str) -> None:
        self.id = use_id
        self.arguments: list[str] = []


class _Reply:
    """One attempt at a reply, on its way out."""

    __slots__ = ("_calls", "_cleaning", "_finish", "_model", "_thinking", "_thought", "_tools", "_words")

    def __init__(self, cleaning: Cleaning, tools: Sequence[ToolSpec]) -> None:
        self._cleaning = cleaning
        self._tools = tools
        self._begin()

    def _begin(self) -> None:
        self._words: Streaming | None = None
        self._thinking: Streaming | None = None
        self._thought: list[str] = []
        self._calls: dict[int, _Call] = {}
        self._finish: str | None = None
        self._model: str | None = None

    def add(self, chunk: ModelChunk) -> Iterable[ModelChunk]:
        """The next chunk; returns what can be shown."""
        if chunk.restart:
            self._begin()
        self._model = chunk.model or self._model
        self._finish = chunk.finish_reason or self._finish
        out: list[ModelChunk] = []
        thinking, text = "", ""
        if chunk.thinking or chunk.signature is not None:
            words = _end(self._words)
            if words:  # in a chunk, thoughts come before words
                out.append(ModelChunk(words, restart=chunk.restart))
        if chunk.thinking:
            self._thinking = self._thinking or self._hold_back()
            thinking = self._thinking.feed(chunk.thinking)
            self._thought.append(chunk.thinking)
        if chunk.signature is not None or chunk.text or chunk.tool_uses or chunk.blocks:
            thinking += self._end_thought(chunk.signature)
        if chunk.text:
            self._words = self._words or self._hold_back()
            text = self._words.feed(chunk.text)
        if chunk.tool_uses or chunk.blocks or chunk.citations:
            text += _end(self._words)
        deltas: list[ToolUseDelta] = []
        for delta in chunk.tool_uses:
            self._add_delta(delta, deltas)
        for block in chunk.blocks:
            if isinstance(block, ThinkingBlock) and block.signature:
                self._cleaning.vault.sealed_thought(block.signature, block.text)
        shown = ModelChunk(
            text,
            thinking,
            chunk.signature,
            tuple(deltas),
            tuple([self._cleaning.block(block, self._cleaning.showing()) for block in chunk.blocks])
            if chunk.blocks
            else (),
            chunk.usage,
            None,  # the finish reason comes last, behind what is held
            chunk.restart,
            chunk.model,
            tuple([self._cleaning.citation(cited, self._cleaning.showing()) for cited in chunk.citations])
            if chunk.citations
            else (),
        )
        if text or deltas or shown != ModelChunk(model=chunk.model):
            out.append(shown)
        return out

    def _hold_back(self) -> Streaming:
        return Streaming(self._cleaning.scanner, self._cleaning.showing())

    def _end_thought(self, signature: str | None) -> str:
        if signature:
            self._cleaning.vault.sealed_thought(signature, "".join(self._thought))
        if self._thinking is None:
            return ""
        self._thought = []
        return self._thinking.end()

    def _name(self, name: str) -> str:
        """A tool's name; one that exists is no secret."""
        cleaning = self._cleaning
        if cleaning.is_clean(name) or any(spec.name == name for spec in self._tools):
            return name
        return cleaning.text(name, cleaning.masking(by_model=True))

    def _add_delta(self, delta: ToolUseDelta, out: list[ToolUseDelta]) -> None:
        call = self._calls.get(delta.index)
        if call is None or (delta.id and call.id and delta.id != call.id and delta.name):
            if call is not None:
                out.append(ToolUseDelta(delta.index, arguments=self._cleaning.arguments("".join(call.arguments))))
            call = self._calls[delta.index] = _Call(delta.id)
            out.append(ToolUseDelta(delta.index, delta.id, self._name(delta.name)))
        elif delta.id or delta.name:
            call.id = call.id or delta.id
            out.append(replace(delta, name=self._name(delta.name), arguments=""))
        call.arguments.append(delta.arguments)

    def end(self, *, failed: bool = False) -> Iterable[ModelChunk]:
        """The rest; of a reply that failed, without the calls."""
        thinking, words = _end(self._thinking), _end(self._words)
        deltas: list[ToolUseDelta] = []
        for index, call in self._calls.items():
            arguments = "" if failed else self._cleaning.arguments("".join(call.arguments))
            if arguments:
                deltas.append(ToolUseDelta(index, arguments=arguments))
        if not (words or thinking or deltas or self._finish):
            return ()
        return (ModelChunk(words, thinking, tool_uses=tuple(deltas), finish_reason=self._finish, model=self._model),)


def _end(held: Streaming | None) -> str:
    return "" if held is None else held.end()

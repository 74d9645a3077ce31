"""`SystemReminder` and `DynamicContext`: additions to a single request.

Rules:

1. An addition is part of one request only. It is never stored, so it cannot accumulate in the history.
2. If a provider fails, its hook adds nothing to that request, not even the texts of its other providers, but the call
   continues.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import replace
from datetime import datetime, timezone, tzinfo
from os import PathLike
from pathlib import Path
from typing import Literal, TypeAlias

from agentflow._support.frozen import FrozenDict
from agentflow._support.validation import is_a
from agentflow.errors import UsageError
from agentflow.hooks.hook import Hook
from agentflow.vocabulary.context import own
from agentflow.vocabulary.events import HookEvent, PreReasoning
from agentflow.vocabulary.messages import Msg, TextBlock, message
from agentflow.vocabulary.transcript import with_appended

__all__ = ["DynamicContext", "FileContent", "Position", "Provider", "SystemReminder", "current_time"]

Provider: TypeAlias = Callable[[PreReasoning], "str | Awaitable[str | None] | None"]
"""Returns a text for a request; None or an empty text adds nothing."""

Position: TypeAlias = Literal["end", "system"]
"""`"end"`: after the last message; `"system"`: after the system prompt. With `"system"`, the prompt cache of the model's vendor
covers only the system prompt, not the conversation."""


class SystemReminder(Hook):
    """Reminds the model of something from time to time, without storing it in the history.

    The reminder follows the last message of the request, in a `<system-reminder>` tag, as a user message marked
    `metadata["synthetic"] == "reminder"`. The summary at the iteration limit gets none.

    Priority 350 (behaviour). One instance serves any number of agents and runs.

    Args:
        text: The reminder, or a function that takes the `PreReasoning` event and returns it (it may be async).
        every: Remind with the first model call of a run and every n-th after it; 1 reminds with each model call.
        when: A function that takes the event: remind only if it returns true. `every` must match as well.
        tag: The tag around the reminder; empty for none.

    Example:
        >>> careful = SystemReminder("Never touch the production database.", every=5)
        >>> hurry = SystemReminder("Finish now.", when=lambda event: event.iteration > 15)
        >>> agent = Agent("operator", "openai/gpt-5", tools=[search], hooks=[careful, hurry])
    """

    priority = 350
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(
        self,
        text: str | Provider,
        *,
        every: int = 1,
        when: Callable[[PreReasoning], bool] | None = None,
        tag: str = "system-reminder",
    ) -> None:
        if every < 1:
            raise UsageError(f"SystemReminder(every={every}) must be at least 1 model call.")
        self.text = text
        self.every = every
        self.when = when
        self.tag = tag

    def on_event(self, event: HookEvent) -> Awaitable[None] | None:
        """Add the reminder, if it is due."""
        if not isinstance(event, PreReasoning) or event.purpose == "summary" or (event.iteration - 1) % self.every:
            return None
        if self.when is not None and not self.when(event):
            return None
        text = self.text if isinstance(self.text, str) else self.text(event)
        if not isinstance(text, str) and isinstance(text, Awaitable):
            return self._later(event, text)
        _append(self, event, text, self.tag, "reminder")
        return None

    async def _later(self, event: PreReasoning, text: Awaitable[str | None]) -> None:
        _append(self, event, await text, self.tag, "reminder")


class DynamicContext(Hook):
    """Adds current information to each request: the time, files, or the result of any function.

    The texts follow the last message in a `<context>` tag, as a user message marked `metadata["synthetic"] == "context"`, or
    they follow the system prompt (`position="system"`).

    Priority 340 (behaviour). One instance serves any number of agents and runs.

    Args:
        providers: Functions that take the `PreReasoning` event and return a text or None; they may be async. `current_time()`
            and `FileContent(path)` are such functions.
        position: Where the texts are added.
        tag: The tag around the texts; empty for none.

    Example:
        >>> context = DynamicContext(current_time(), FileContent("notes.txt"), lambda event: f"Round {event.iteration}")
        >>> agent = Agent("assistant", "openai/gpt-5", hooks=[context])
    """

    priority = 340
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(self, *providers: Provider, position: Position = "end", tag: str = "context") -> None:
        if not providers or not all(callable(provider) for provider in providers):
            raise UsageError(
                "DynamicContext takes functions that receive the PreReasoning event, such as current_time(); got "
                f"{providers!r:.80}."
            )
        if position not in ("end", "system"):
            raise UsageError(f"DynamicContext(position={position!r}): use 'end' or 'system'.")
        self.providers = providers
        self.position: Position = position
        self.tag = tag

    def on_event(self, event: HookEvent) -> Awaitable[None] | None:
        """Call the providers, and add their texts."""
        if not isinstance(event, PreReasoning):
            return None
        texts: list[str] = []
        for at, provider in enumerate(self.providers):
            text = provider(event)
            if not (text is None or isinstance(text, str)):
                return self._later(event, texts, text, at + 1)
            if text:
                texts.append(text)
        self._add(event, texts)
        return None

    async def _later(self, event: PreReasoning, texts: list[str], first: Awaitable[str | None], rest: int) -> None:
        """Await the first async provider, and call the providers from the index `rest` on."""
        texts.append(await first or "")
        for provider in self.providers[rest:]:
            text = provider(event)
            texts.append((text if text is None or isinstance(text, str) else await text) or "")
        self._add(event, [text for text in texts if text])

    def _add(self, event: PreReasoning, texts: list[str]) -> None:
        text = "\n".join(texts)
        if self.position == "end":
            _append(self, event, text, self.tag, "context")
        elif tagged := _tagged(text, self.tag):
            _add_to_system(event, tagged)


def current_time(tz: tzinfo = timezone.utc, format: str = "%A, %d %B %Y, %H:%M %Z") -> Provider:  # noqa: A002, UP017 - strftime's name; the name that help() shows
    """Create a provider of the current time, by the run's clock.

    Args:
        tz: The time zone, such as `zoneinfo.ZoneInfo("Europe/Rome")`.
        format: A format of `strftime`. Minutes should be enough: with seconds, no two requests would be the same, so
            no cache could help.

    Example:
        >>> agent = Agent("assistant", "openai/gpt-5", hooks=[DynamicContext(current_time())])
    """

    known: tuple[int, str] = (-1, "")
    steady = "%f" not in format

    def now(event: PreReasoning) -> str:
        nonlocal known
        time = event.context.clock.now()
        second, text = known
        if not steady or second != int(time):  # `strftime` is slow, and most texts are the same for a second
            text = f"It is {datetime.fromtimestamp(time, tz).strftime(format)}."
            known = int(time), text
        return text

    return now


class FileContent:
    """A provider of a file's text; the file is read again if it has changed. A missing file adds nothing.

    Args:
        path: The file, in UTF-8.
        limit: The maximum number of characters; a longer text is truncated, with a note.

    Example:
        >>> hook = DynamicContext(FileContent("AGENTS.md"), FileContent("todo.txt", limit=2_000))
    """

    def __init__(self, path: str | PathLike[str], *, limit: int = 50_000) -> None:
        if limit < 1:
            raise UsageError(f"FileContent(limit={limit}) must be at least 1 character.")
        self.path = Path(path)
        self.limit = limit
        self._known: tuple[object, str] | None = None

    async def __call__(self, event: PreReasoning) -> str | None:
        """Return the file's current text."""
        del event
        return await asyncio.to_thread(self._read)

    def _read(self) -> str | None:
        try:
            stat = self.path.stat()  # before reading: a change in between is seen next time
        except FileNotFoundError:
            return None
        # `ctime` and the inode reveal that a file was replaced by another with the same `mtime` and size.
        stamp = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
        known = self._known
        if known is not None and known[0] == stamp:
            return known[1]
        with self.path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(self.limit + 1)
        if len(text) > self.limit:
            text = f"{text[: self.limit]}\n(cut after {self.limit} characters)"
        shown = f'<file path="{self.path}">\n{text.rstrip()}\n</file>'
        self._known = stamp, shown
        return shown


def _tagged(text: str | None, tag: str) -> str:
    if text is not None and not is_a(text, str):
        raise UsageError(f"A reminder or provider must return a string or None, not {type(text).__name__}.")
    if not text or not text.strip():
        return ""
    return f"<{tag}>\n{text}\n</{tag}>" if tag else text


class _LastNote:
    """The last message that a hook added in a call; it is reused while its text is the same."""

    def __init__(self) -> None:
        self.text: str | None = None
        self.note: Msg | None = None


def _append(hook: Hook, event: PreReasoning, text: str | None, tag: str, source: str) -> None:
    last = own(event.context, hook, _LastNote)
    note = last.note
    if note is None or text != last.text:
        tagged = _tagged(text, tag)
        if not tagged:
            return
        marked = FrozenDict({"synthetic": source})
        note = last.note = message("user", (TextBlock(tagged),), event.context.new_id("msg_"), marked)
        last.text = text
    event.input_messages = with_appended(event.input_messages, note)


def _add_to_system(event: PreReasoning, text: str) -> None:
    messages = event.input_messages
    if messages and messages[0].role == "system":
        first = messages[0]
        grown = replace(first, content=(*first.content, TextBlock(f"\n\n{text}")))
        event.input_messages = (grown, *messages[1:])
    else:
        event.input_messages = (Msg.system(text, id=event.context.new_id("msg_")), *messages)

"""`SystemReminder` and `DynamicContext`: additions to a request that are gone with the next one.

Rules:

1. What is added is part of one request only. It is never stored, so it cannot pile up in the history.
2. A provider that fails costs its addition, not the call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from datetime import datetime, timezone, tzinfo
from os import PathLike
from pathlib import Path
from typing import Any, Literal, TypeAlias

from agentflow.errors import UsageError
from agentflow.events import PreReasoning
from agentflow.ground.frozen import FrozenDict
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg, TextBlock, message
from agentflow.transcript import with_appended

__all__ = ["DynamicContext", "FileContent", "Place", "Provider", "SystemReminder", "current_time"]

Provider: TypeAlias = Callable[[PreReasoning], "str | Awaitable[str | None] | None"]
"""Gives a text for a request; None or an empty text adds nothing."""

Place: TypeAlias = Literal["end", "system"]
"""`"end"`: behind the last message; `"system"`: behind the system prompt, which ends a provider's prompt cache early."""


class SystemReminder(Hook):
    """Reminds the model of something, now and then, without leaving a trace in the history.

    The reminder stands behind the last message of the request, in a `<system-reminder>` tag, as a user's message marked
    `metadata["synthetic"] == "reminder"`. The summary at the iteration limit gets none.

    Priority 350 (behaviour). One instance serves any number of agents and runs.

    Args:
        text: The reminder, or a function of the `PreReasoning` event that gives it (it may be async).
        every: Remind with the first model call of a run and every so many after it; 1 is each time.
        when: Remind only if this function of the event says so; together with `every` both must agree.
        tag: The tag around it; empty for none.

    Example:
        >>> careful = SystemReminder("Never touch the production database.", every=5)
        >>> hurry = SystemReminder("Come to an end.", when=lambda event: event.iteration > 15)
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
            raise UsageError(f"SystemReminder(every={every}): it is a number of model calls, at least 1.")
        self.text = text
        self.every = every
        self.when = when
        self.tag = tag

    def on_event(self, event: PreReasoning) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Add the reminder, if it is time."""
        if event.purpose == "summary" or (event.iteration - 1) % self.every:
            return None
        if self.when is not None and not self.when(event):
            return None
        text = self.text if isinstance(self.text, str) else self.text(event)
        if not isinstance(text, str) and isinstance(text, Awaitable):
            return self._later(event, text)
        _append(event, _tagged(text, self.tag), "reminder")
        return None

    async def _later(self, event: PreReasoning, text: Awaitable[str | None]) -> None:
        _append(event, _tagged(await text, self.tag), "reminder")


class DynamicContext(Hook):
    """Adds to each request what is true just then: the time, files, anything that a function can tell.

    It stands behind the last message in a `<context>` tag, as a user's message marked
    `metadata["synthetic"] == "context"`, or behind the system prompt (`place="system"`).

    Priority 340 (behaviour). One instance serves any number of agents and runs.

    Args:
        providers: Functions of the `PreReasoning` event that give a text or None; they may be async. `current_time()` and
            `FileContent(path)` are such functions.
        place: Where it goes.
        tag: The tag around it; empty for none.

    Example:
        >>> context = DynamicContext(current_time(), FileContent("notes.txt"), lambda event: f"Round {event.iteration}")
        >>> agent = Agent("assistant", "openai/gpt-5", hooks=[context])
    """

    priority = 340
    on_failure = "skip"
    events = (PreReasoning,)

    def __init__(self, *providers: Provider, place: Place = "end", tag: str = "context") -> None:
        if not providers or not all(callable(provider) for provider in providers):
            raise UsageError(
                f"DynamicContext takes functions of the PreReasoning event, such as current_time(); got {providers!r:.80}."
            )
        if place not in ("end", "system"):
            raise UsageError(f"DynamicContext(place={place!r}): legal are 'end' and 'system'.")
        self.providers = providers
        self.place: Place = place
        self.tag = tag

    def on_event(self, event: PreReasoning) -> Awaitable[None] | None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Ask the providers, and add what they tell."""
        texts: list[str] = []
        for at, provider in enumerate(self.providers):
            told = provider(event)
            if not (told is None or isinstance(told, str)):
                return self._later(event, texts, told, at + 1)
            if told:
                texts.append(told)
        self._add(event, texts)
        return None

    async def _later(self, event: PreReasoning, texts: list[str], first: Awaitable[str | None], rest: int) -> None:
        """Wait for the first provider that has to be waited for, and ask the rest of them."""
        texts.append(await first or "")
        for provider in self.providers[rest:]:
            told = provider(event)
            texts.append((told if told is None or isinstance(told, str) else await told) or "")
        self._add(event, [text for text in texts if text])

    def _add(self, event: PreReasoning, texts: list[str]) -> None:
        text = _tagged("\n".join(texts), self.tag)
        if self.place == "end":
            _append(event, text, "context")
        elif text:
            _add_to_system(event, text)


def current_time(tz: tzinfo = timezone.utc, format: str = "%A, %d %B %Y, %H:%M %Z") -> Provider:  # noqa: A002, UP017 - strftime's word; the name that shows in help()
    """A provider of the time, by the run's clock.

    Args:
        tz: The time zone: `zoneinfo.ZoneInfo("Europe/Rome")`, for example.
        format: As `strftime` takes it. Down to the minute: what changes with every second is never the same request twice.

    Example:
        >>> agent = Agent("assistant", "openai/gpt-5", hooks=[DynamicContext(current_time())])
    """

    known: tuple[int, str] = (-1, "")
    steady = "%f" not in format

    def now(event: PreReasoning) -> str:
        nonlocal known
        time = event.context.clock.now()
        second, told = known
        if not steady or second != int(time):
            told = f"It is {datetime.fromtimestamp(time, tz).strftime(format)}."
            known = int(time), told
        return told

    return now


class FileContent:
    """A provider of a file's text; the file is read again when it has changed. A file that is not there adds nothing.

    Args:
        path: The file, in UTF-8.
        limit: The most characters; what is longer is cut, and says so.

    Example:
        >>> hook = DynamicContext(FileContent("AGENTS.md"), FileContent("todo.txt", limit=2_000))
    """

    def __init__(self, path: str | PathLike[str], *, limit: int = 50_000) -> None:
        if limit < 1:
            raise UsageError(f"FileContent(limit={limit}): it is a number of characters, at least 1.")
        self.path = Path(path)
        self.limit = limit
        self._known: tuple[object, str] | None = None

    async def __call__(self, event: PreReasoning) -> str | None:
        """The file as it is now."""
        del event
        return await asyncio.to_thread(self._look)

    def _look(self) -> str | None:
        try:
            stat = self.path.stat()
        except FileNotFoundError:
            return None
        stamp = stat.st_mtime_ns, stat.st_ctime_ns, stat.st_size, stat.st_ino
        known = self._known
        if known is not None and known[0] == stamp:
            return known[1]
        with self.path.open(encoding="utf-8", errors="replace") as file:
            text = file.read(self.limit + 1)
        if len(text) > self.limit:
            text = f"{text[: self.limit]}\n(cut after {self.limit} characters)"
        told = f'<file path="{self.path}">\n{text.rstrip()}\n</file>'
        self._known = stamp, told
        return told


def _tagged(text: str | None, tag: str) -> str:
    if text is not None and not isinstance(text, str):  # pyright: ignore[reportUnnecessaryIsInstance] - a user's function
        raise UsageError(f"A reminder or provider gives a text or None, not {type(text).__name__}.")
    if not text or not text.strip():
        return ""
    return f"<{tag}>\n{text}\n</{tag}>" if tag else text


def _append(event: PreReasoning, text: str, source: str) -> None:
    if text:
        marked = FrozenDict({"synthetic": source})
        note = message("user", (TextBlock(text),), event.context.new_id("msg_"), marked)
        event.input_messages = with_appended(event.input_messages, note)


def _add_to_system(event: PreReasoning, text: str) -> None:
    messages = event.input_messages
    if messages and messages[0].role == "system":
        first = messages[0]
        grown = message("system", (*first.content, TextBlock(f"\n\n{text}")), first.id, first.metadata)
        event.input_messages = (grown, *messages[1:])
    else:
        event.input_messages = (Msg.system(text, id=event.context.new_id("msg_")), *messages)

"""The names of function hooks and their events."""

from __future__ import annotations

from typing import Any, Literal, cast

from agentflow.errors import UsageError, close_to
from agentflow.vocabulary.events import EVENT_TYPES, Event

EventName = Literal[
    "after_user_input",
    "before_llm",
    "after_llm",
    "before_tool_round",
    "before_each_tool",
    "after_each_tool",
    "after_tool_round",
    "on_complete",
    "on_error",
    "before_put",
    "after_put",
    "before_turn",
    "on_turn_value",
    "after_turn",
    "on_pause",
    "on_resume",
]

EVENT_NAMES: dict[str, type[Event]] = {}  # the decorators of `agentflow.hooks.named` add theirs
"""The names of function hooks and their events. There are no others and no aliases."""


def kinds_of(target: Any) -> tuple[type[Event], ...]:
    """Return the event classes for a class, a base class or a name.

    Raises:
        UsageError: The target is neither an event class nor an event name.
    """
    if isinstance(target, str):
        return (event_named(target),)
    if isinstance(target, type) and issubclass(target, Event):
        return tuple(kind for kind in EVENT_TYPES if issubclass(kind, target))
    raise UsageError(f"@on takes event classes and names, not {target!r}. Names: {', '.join(EVENT_NAMES)}.")


def event_named(name: str) -> type[Event]:
    """Return the event class for the name of a function hook.

    Raises:
        UsageError: There is no such name; the message lists similar ones.

    Example:
        >>> event_named("after_llm").__name__
        'PostReasoning'
    """
    kind = EVENT_NAMES.get(name) if isinstance(cast("object", name), str) else None
    if kind is not None:
        return kind
    close = _meant(str(name))
    could = (
        f"it could mean {' or '.join(repr(c) for c in close)}" if close else f"the names are {', '.join(EVENT_NAMES)}"
    )
    raise UsageError(f"There is no event named {name!r}; {could}.")


def _meant(name: str) -> list[str]:
    """Return the known names that are similar to this one, the best match first."""
    # In this order: the class's name; a misspelt name; names that share two words; any similar name.
    by_class = [known for known, kind in EVENT_NAMES.items() if name.removesuffix("Event") == kind.__name__]
    if by_class:
        return by_class
    typed = name.strip().lower().replace("-", "_").replace(" ", "_")
    typo = close_to(typed, EVENT_NAMES, 1, 0.85)
    if typo:
        return list(typo)
    # `after_tool` shares two words with more than one name, so all of them are shown.
    words = set(typed.replace("tools", "tool").split("_"))
    shared = {known: len(words & set(known.split("_"))) for known in EVENT_NAMES}
    most = max(shared.values())
    if most > 1:
        return [known for known, count in shared.items() if count == most]
    return list(close_to(typed, EVENT_NAMES, 2, 0.7))


def registered_as(kind: type[Event]) -> str:
    """Return why a function receives an event, for error messages."""
    named = next((name for name, event in EVENT_NAMES.items() if event is kind), None)
    return f"the event of {named!r}" if named else "the event for which it is registered"

"""Facts and messages at rest: what `Redaction` gives to a store, and to models that are asked on the side."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, cast

from agentflow.facts import Fact
from agentflow.messages import ContentBlock, Msg, Pending, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.plugins.redaction_text import Scanner, Vault
from agentflow.plugins.redaction_values import Cleaning, named_anew
from agentflow.verdicts import AnyVerdict, carried

__all__ = ["Numberless", "at_rest", "fact_at_rest", "message_at_rest"]


class Numberless(Vault):
    """Hides and forgets."""

    @classmethod
    def knowing(cls, vault: Vault | None) -> Numberless:
        """One that finds what a session knows by now, and tells the session nothing."""
        return cls() if vault is None else cls(_words=list(vault._words))

    def hide(self, value: str, kind: str, base: Scanner, *, by_model: bool) -> str:
        """The kind alone."""
        return f"<{kind}>"


def fact_at_rest(fact: Fact, cleaning: Cleaning) -> Fact:
    """A fact as a store gets it."""
    values = {
        name: at_rest(value, cleaning)
        for name, value in fact._asdict().items()  # NamedTuple's public method
        if not name.endswith("_id")
    }
    return fact._replace(**values)


def message_at_rest(msg: Msg, cleaning: Cleaning) -> Msg:
    """A message at rest: a sealed thought that holds a secret loses the secret, and the seal that does not fit then."""
    msg = cleaning.message(msg)
    if not any(isinstance(block, ThinkingBlock) for block in msg.content):
        return msg
    found = cleaning.masking(by_model=True)
    content: list[ContentBlock] = []
    for block in msg.content:
        if isinstance(block, ThinkingBlock) and (text := cleaning.text(block.text, found)) != block.text:
            block = replace(block, text=text, signature=None)
        content.append(block)
    return msg if content == list(msg.content) else replace(msg, content=tuple(content))


def at_rest(value: Any, cleaning: Cleaning) -> Any:
    """A value of a fact as a store gets it."""
    found = cleaning.masking(by_model=True)
    match value:
        case str():
            return cleaning.text(value, found)
        case Msg():
            return message_at_rest(value, cleaning)
        case ToolUseBlock():
            return cleaning.use(value)
        case ToolResultBlock():
            return cleaning.result(value, found)
        case Pending():
            use = None if value.tool_use is None else cleaning.use(value.tool_use)
            return replace(value, request=at_rest(value.request, cleaning), tool_use=use)
        case verdict if isinstance(verdict, AnyVerdict):
            return type(verdict)(at_rest(carried(verdict), cleaning))
        case tuple():
            return tuple(at_rest(item, cleaning) for item in cast("tuple[Any, ...]", value))
        case Mapping():  # of verdicts too: what a resume decides
            mapping = cast("Mapping[str, Any]", value)
            items = {key: at_rest(item, cleaning) for key, item in mapping.items()}
            return named_anew(items, {key: cleaning.text(key, found) for key in mapping})
        case list():
            return [at_rest(item, cleaning) for item in cast("list[Any]", value)]
        case _:
            return value

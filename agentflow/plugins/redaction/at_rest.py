"""Remove secrets from facts and messages, for stores and side model calls, and restore facts from a store."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, assert_never, cast

from agentflow.plugins.redaction.text import Replacer, Scanner
from agentflow.plugins.redaction.values import Cleaning, renamed_keys
from agentflow.plugins.redaction.vault import Vault
from agentflow.vocabulary.facts import (
    CallClosed,
    CallOpened,
    CallResumed,
    Compacted,
    Fact,
    Injected,
    Reasoned,
    RoundClosed,
    RoundSuspended,
    SessionBegan,
    StateKept,
    ToolDecided,
    ToolFinished,
    ToolStarted,
)
from agentflow.vocabulary.messages import (
    ContentBlock,
    DataBlock,
    Msg,
    Pending,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.typed_state import state_name
from agentflow.vocabulary.verdicts import AnyVerdict, verdict_value

_VAULT = state_name(Vault)


class AnonymousVault(Vault):
    """A vault whose placeholders contain only the kind of the value (`<email>`), without a number. It adds no values."""

    @classmethod
    def of(cls, vault: Vault | None) -> AnonymousVault:
        """Create a vault that finds the values of a session, without changing the session's vault."""
        return cls() if vault is None else cls(_literals=list(vault._literals))  # a copy

    def hide(self, value: str, kind: str, base: Scanner, *, by_model: bool) -> str:
        """Return a placeholder with only the kind."""
        return f"<{kind}>"


def fact_at_rest(fact: Fact, cleaning: Cleaning) -> Fact:
    """Return a fact without secrets, for a store."""
    # The vault's own encrypted values are not searched for secrets.
    if isinstance(fact, StateKept) and _VAULT in fact.values:
        rest = {name: value for name, value in fact.values.items() if name != _VAULT}
        vault = cleaning.vault
        own = fact.values[_VAULT] if isinstance(vault, AnonymousVault) else vault.to_stored()
        return StateKept({**at_rest(rest, cleaning), _VAULT: own})
    values = {
        name: at_rest(value, cleaning)
        for name, value in fact._asdict().items()  # `_replace` is a public method of named tuples
        if not name.endswith("_id")  # ids connect facts, so they must stay equal
    }
    return fact._replace(**values)


def message_at_rest(msg: Msg, cleaning: Cleaning) -> Msg:
    """Return a message without secrets. A signed thought that contains a secret loses the secret and its signature, which
    no longer matches."""
    msg = cleaning.message(msg)
    if not any(isinstance(block, ThinkingBlock) for block in msg.content):
        return msg
    replacer = cleaning.masking(by_model=True)
    content: list[ContentBlock] = []
    for block in msg.content:
        if isinstance(block, ThinkingBlock) and (text := cleaning.text(block.text, replacer)) != block.text:
            block = replace(block, text=text, signature=None)
        content.append(block)
    return msg if content == list(msg.content) else replace(msg, content=tuple(content))


def at_rest(value: Any, cleaning: Cleaning) -> Any:
    """Return a value of a fact without secrets, for a store."""
    replacer = cleaning.masking(by_model=True)
    match value:
        case str():
            return cleaning.text(value, replacer)
        case Msg():
            return message_at_rest(value, cleaning)
        case ToolUseBlock():
            return cleaning.use(value)
        case ToolResultBlock():
            return cleaning.result(value, replacer)
        case Pending():
            use = None if value.tool_use is None else cleaning.use(value.tool_use)
            return replace(value, request=at_rest(value.request, cleaning), tool_use=use)
        case verdict if isinstance(verdict, AnyVerdict):
            return type(verdict)(at_rest(verdict_value(verdict), cleaning))
        case tuple():
            return tuple(at_rest(item, cleaning) for item in cast("tuple[Any, ...]", value))
        case Mapping():  # its values may be verdicts, such as the decisions of a resume
            mapping = cast("Mapping[str, Any]", value)
            items = {key: at_rest(item, cleaning) for key, item in mapping.items()}
            return renamed_keys(items, {key: cleaning.text(key, replacer) for key in mapping})
        case list():
            return [at_rest(item, cleaning) for item in cast("list[Any]", value)]
        case _:
            return value


# ---- restoring


def vault_of(facts: Sequence[Fact]) -> Vault | None:
    """Return the vault in a store's facts; None if there is none, or it has no sealed values.

    Raises:
        ValueError: The stored data is not a vault.
    """
    for fact in reversed(facts):  # the last state counts
        if isinstance(fact, StateKept):
            data: object = fact.values.get(_VAULT)
            vault = None if data is None else Vault.from_stored(data)
            return vault if vault is not None and vault.is_sealed else None
    return None


class Restoring:
    """Restores the facts of a session from stored facts. Each placeholder becomes its original value again if it was an
    original in the session.

    Args:
        cleaning: The session's cleaner.
        original: Whether the session had input and tool results unchanged.
        trusts: Returns whether a tool gets original values.
    """

    def __init__(self, cleaning: Cleaning, original: bool, trusts: Callable[[str], bool]) -> None:
        self._cleaning = cleaning
        self._replacer = cleaning.resolving()
        self._all = cleaning.restoring([])
        self._original = original
        self._trusts = trusts

    def fact(self, fact: Fact) -> Fact:
        """Return a fact in the form that it had in the session."""
        match fact:
            case Reasoned():  # the text of a reply had originals, its tool calls had placeholders
                return fact._replace(message=self._restored_reply(fact.message))
            case CallClosed(final=Msg() as final):
                return fact._replace(final=self._restored_reply(final))
            case CallOpened():
                messages = self._restored_input(fact.messages) if self._original else fact.messages
                return fact._replace(messages=messages, answer=fact.answer and self._restored_reply(fact.answer))
            case ToolDecided():
                return fact._replace(tool_use=self._use(fact.tool_use), verdict=self._value(fact.verdict))
            case ToolFinished():
                result = self._value(fact.result) if self._original else fact.result
                return fact._replace(tool_use=self._use(fact.tool_use), result=result)
            case RoundClosed() if self._original:
                return fact._replace(results=self._value(fact.results))
            case RoundSuspended():
                return fact._replace(pending=tuple(map(self._pending, fact.pending)))
            case CallResumed():
                return fact._replace(decisions=self._value(fact.decisions))
            case Injected() | Compacted() | SessionBegan():
                return fact._replace(messages=self._restored_input(fact.messages))
            case ToolStarted() | StateKept() | CallClosed() | RoundClosed():
                return fact
            case _:
                assert_never(fact)

    def _pending(self, pending: Pending) -> Pending:
        use = pending.tool_use
        if use is not None and not self._trusts(use.name):
            return pending
        return replace(pending, request=self._value(pending.request), tool_use=use and self._use(use))

    def _use(self, use: ToolUseBlock) -> ToolUseBlock:
        if not self._trusts(use.name):
            return use
        changed = self._cleaning.walk(use.input, self._all)
        return use if changed == use.input else use.replace(input=changed)

    def _restored_reply(self, msg: Msg) -> Msg:
        return self._message(msg, self._replacer)

    def _restored_input(self, messages: tuple[Msg, ...]) -> tuple[Msg, ...]:
        return tuple([self._message(msg, self._all) for msg in messages])

    def _message(self, msg: Msg, replacer: Replacer) -> Msg:
        content = tuple([self._block(block, replacer) for block in msg.content])
        return msg if content == msg.content else replace(msg, content=content)

    def _block(self, block: ContentBlock, replacer: Replacer) -> ContentBlock:
        match block:
            case TextBlock() | DataBlock() | ServerToolBlock():
                return self._cleaning.block(block, replacer)
            case ThinkingBlock(text=text):
                return replace(block, text=self._cleaning.text(text, replacer))
            case ToolResultBlock():
                return self._cleaning.result(block, replacer) if self._original else block
            case ToolUseBlock():
                return block
            case _:
                assert_never(block)

    def _value(self, value: Any) -> Any:
        match value:
            case Msg():
                return self._message(value, self._all)
            case ToolResultBlock():
                return self._cleaning.result(value, self._all)
            case verdict if isinstance(verdict, AnyVerdict):
                return type(verdict)(self._value(verdict_value(verdict)))
            case tuple():
                return tuple([self._value(item) for item in cast("tuple[Any, ...]", value)])
            case Mapping():
                items = cast("Mapping[str, Any]", value)
                return {key: self._value(item) for key, item in items.items()}
            case _:
                return self._cleaning.walk(value, self._all)

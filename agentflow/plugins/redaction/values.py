"""Redacts texts, values, blocks and messages.

Rules:

1. A clean message is returned as the same object. The check is cheap: texts known to be clean, then the scanner's hints. Only
   values that may contain a secret are searched.
2. A clean value stays clean until the vault gets a new value.
"""

from __future__ import annotations

import json
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, assert_never, cast

from agentflow._support.json_text import read_json_text
from agentflow.plugins.redaction.text import Replacer, Scanner, scan
from agentflow.plugins.redaction.vault import MAX_CLEAN_TEXTS, RedactedRequest, Vault
from agentflow.vocabulary.messages import (
    Citation,
    ContentBlock,
    DataBlock,
    Msg,
    ServerToolBlock,
    TextBlock,
    ThinkingBlock,
    ToolResultBlock,
    ToolUseBlock,
)
from agentflow.vocabulary.transcript import MessageView, Replacements


class Cleaning:
    """Removes secrets from values, for one session.

    Args:
        base: The scanner, without the values of the session.
        restore: Whether readers see originals.
        vault: The session's vault.
    """

    __slots__ = ("_base", "_cache", "_clean", "_restore", "vault")

    def __init__(self, base: Scanner, restore: bool, vault: Vault) -> None:
        self._base = base
        self._restore = restore
        self._cache = vault.cache_of(base)
        self._clean = self._cache.clean
        self.vault = vault

    def scanner(self) -> Scanner:
        """Return the current scanner."""
        return self._cache.scanner or self.vault.scanner(self._base)

    # ---- replacements

    def masking(self, *, by_model: bool = False) -> Replacer:
        """Return a replacer that hides secrets with placeholders."""
        vault = self.vault

        def replacer(kind: str, text: str, /) -> str:
            if not kind:
                vault.original(text)  # reserves the name if the placeholder is unknown
                return text
            return vault.hide(text, kind, self._base, by_model=by_model)

        return replacer

    def restoring(self, lost: list[str]) -> Replacer:
        """Return a replacer of placeholders by originals, which adds placeholders with a lost value to `lost`."""
        vault = self.vault

        def replacer(kind: str, text: str, /) -> str:
            if not kind and vault.is_lost(text):
                lost.append(text)
            return text if kind else vault.original(text) or text

        return replacer

    def showing(self) -> Replacer:
        """Return a replacer for readers: restore values of users and tools, hide secrets that only the model wrote."""
        if not self._restore:
            return self.masking(by_model=True)
        vault = self.vault

        def replacer(kind: str, text: str, /) -> str:
            placeholder = vault.hide(text, kind, self._base, by_model=True) if kind else text
            if vault.is_models_own(placeholder):
                return placeholder
            return vault.original(placeholder) or text

        return replacer

    def resolving(self) -> Replacer:
        """Return a replacer of placeholders by originals, except for values that only the model wrote."""
        vault = self.vault
        return lambda kind, text: text if kind or vault.is_models_own(text) else vault.original(text) or text

    def begin(self, history: Iterable[Msg]) -> None:
        """Scan the stored conversation, so that no new value gets the name of a placeholder in it."""
        if not self.vault.begun:
            self.messages(history)
            self.vault.begun = True

    # ---- cheap checks

    def is_clean(self, text: str) -> bool:
        """Return whether a text is certainly clean, by a cheap check."""
        if text in self._clean:
            return True
        if self.scanner().may_find(text):
            return False
        self._clean.add(text)
        return True

    def are_clean_arguments(self, raw: str) -> bool:
        """Return whether the JSON text of a call's arguments, and all values in it, are certainly clean."""
        key = (raw,)  # a tuple, since the text itself may be clean while its values are not
        if key in self._clean:
            return True
        # Without escapes, all names, texts and numbers occur in it literally.
        if "\\" in raw or self.scanner().may_find_within(raw):
            return False
        self._clean.add(key)
        return True

    def is_clean_result(self, result: ToolResultBlock) -> bool:
        """Return whether a tool's result is certainly clean; False if it consists of blocks."""
        return isinstance(result.content, str) and self.is_clean(result.content) and self.is_clean(result.name)

    def _is_clean_block(self, block: ContentBlock) -> bool:
        if isinstance(block, TextBlock):
            return not block.citations and self.is_clean(block.text)
        if isinstance(block, ToolUseBlock):
            return self.are_clean_arguments(block.raw) and self.is_clean(block.name)
        return isinstance(block, ToolResultBlock) and self.is_clean_result(block)

    def _is_clean_metadata(self, metadata: Mapping[str, Any]) -> bool:
        for name, value in metadata.items():  # noqa: SIM110 - a generator would double the cost
            if not (isinstance(value, str) and self.is_clean(value) and self.is_clean(name)):
                return False
        return True

    # ---- texts and JSON-like values

    def text(self, text: str, replacer: Replacer) -> str:
        """Replace the secrets or placeholders in a text."""
        if self.is_clean(text):
            return text
        parts, _ = scan(self.scanner, text, 0, True, replacer)
        if len(parts) != 1:
            return "".join(parts)
        self._clean.add(text)  # a single part means no matches
        return text

    def walk(self, value: Any, replacer: Replacer) -> Any:
        """Replace the findings in JSON-like data: in texts, and in integers that are secrets."""
        if isinstance(value, str):
            return self.text(value, replacer)
        if isinstance(value, int) and not isinstance(value, bool):
            digits = str(value)
            text = self.text(digits, replacer)
            return value if text == digits else text
        if isinstance(value, Mapping):
            mapping = cast("Mapping[Any, Any]", value)
            items = {key: self.walk(item, replacer) for key, item in mapping.items()}
            keys = {key: self.walk(key, replacer) if isinstance(key, str) else key for key in mapping}
            if all(items[key] is item and keys[key] == key for key, item in mapping.items()):
                return mapping
            return renamed_keys(items, keys)
        if isinstance(value, list | tuple):
            before = cast("Sequence[Any]", value)
            after = [self.walk(item, replacer) for item in before]
            return before if all(map(is_, after, before)) else after
        return value

    # ---- blocks

    def arguments(self, raw: str) -> str:
        """Redact the JSON text of a call's arguments, escapes included; unchanged if there is nothing to redact."""
        masked = ("masked", raw)  # a key for a text without secrets, but perhaps with placeholders
        if masked in self._clean or self.are_clean_arguments(raw):
            return raw
        replacer = self.masking(by_model=True)
        try:
            value = read_json_text(raw)
            cleaned = self.walk(value, replacer)
        except ValueError:  # not JSON, or nested too deeply: treat it as text
            return self.text(raw, replacer)
        # A duplicate key is in the text, but not in the value.
        if cleaned == value and self.text(raw, replacer) == raw:
            self._clean.add(masked)
            return raw
        return json.dumps(cleaned, ensure_ascii=False)

    def use(self, use: ToolUseBlock) -> ToolUseBlock:
        """Redact a call."""
        raw, name = self.arguments(use.raw), self.text(use.name, self.masking(by_model=True))
        return use if raw == use.raw and name == use.name else ToolUseBlock.from_json(use.id, name, raw)

    def result(self, result: ToolResultBlock, replacer: Replacer) -> ToolResultBlock:
        """Redact a tool's result."""
        content, name = result.content, self.text(result.name, replacer)
        if name != result.name:
            result = replace(result, name=name)
        if isinstance(content, str):
            text = self.text(content, replacer)
            return result if text == content else replace(result, content=text)
        blocks = tuple(
            self.data(block, replacer)
            if isinstance(block, DataBlock)
            else replace(block, text=self.text(block.text, replacer))
            for block in content
        )
        return replace(result, content=blocks)

    def block(self, block: ContentBlock, replacer: Replacer) -> ContentBlock:
        """Redact a part of a message; a thought is replaced by the model's original, if that is known."""
        match block:
            case TextBlock(text=before):
                text = self.text(before, replacer)
                cited = tuple(self.citation(citation, replacer) for citation in block.citations)
                same = text == before and cited == block.citations
                return block if same else replace(block, text=text, citations=cited)
            case ToolUseBlock():
                return self.use(block)
            case ToolResultBlock():
                return self.result(block, replacer)
            case ThinkingBlock():
                thought = self.vault.thoughts.get(block.signature or "")
                return replace(block, text=self.text(block.text, replacer) if thought is None else thought)
            case DataBlock():
                return self.data(block, replacer)
            case ServerToolBlock():
                raw = self.walk(block.raw, replacer)
                return block if raw == block.raw else replace(block, raw=tuple(raw))
            case _:
                assert_never(block)

    def data(self, block: DataBlock, replacer: Replacer) -> DataBlock:
        """Redact a file: its name, its URL, and its content if it is text (UTF-8)."""
        name, url = (part and self.text(part, replacer) for part in (block.name, block.url))
        data = block.data
        if data is not None and (block.kind in ("text", "file") or block.media_type.endswith("+xml")):
            data = self._content(data, replacer)
        same = name == block.name and url == block.url and data is block.data
        return block if same else replace(block, name=name, url=url, data=data)

    def _content(self, data: str, replacer: Replacer) -> str:
        key = ("data", data)
        if key in self._clean:
            return data
        try:
            before = b64decode(data, validate=True).decode()
        except ValueError:  # the content is not base64, or not text
            before = ""
        parts, _ = scan(self.scanner, before, 0, True, replacer) if self.scanner().may_find(before) else ([before], 0)
        after = "".join(parts)
        if "\\" in after:  # JSON may contain a secret with escapes
            try:
                value = read_json_text(after)
                cleaned = self.walk(value, replacer)
            except ValueError:
                value = cleaned = None
            if cleaned is not value:
                after = json.dumps(cleaned, ensure_ascii=False)
        if after != before:
            return b64encode(after.encode()).decode()
        self._clean.add(key)
        return data

    def citation(self, cited: Citation, replacer: Replacer) -> Citation:
        """Redact a citation: its quotation may contain a secret."""
        url, title, text = (part and self.text(part, replacer) for part in (cited.url, cited.title, cited.text))
        return Citation(url, title, text, self.walk(cited.raw, replacer), cited.model)

    # ---- messages

    def message(self, msg: Msg) -> Msg:
        """Redact a message for sending, once."""
        messages, version = self._cache.messages, self.vault.version
        known = messages.get(id(msg))
        if known is not None and known[0] is msg:  # the id of a deleted message can be used again
            return known[1]
        cleaned = self._message(msg)
        if self.vault.version == version:  # otherwise an earlier part may contain a value found in a later one
            messages[id(msg)] = msg, cleaned
        return cleaned

    def _message(self, msg: Msg) -> Msg:
        for block in msg.content:
            if not self._is_clean_block(block):
                break
        else:
            if (not msg.name or self.is_clean(msg.name)) and (
                not msg.metadata or self._is_clean_metadata(msg.metadata)
            ):
                return msg
        replacer = self.masking(by_model=msg.role == "assistant")
        content = tuple(self.block(block, replacer) for block in msg.content)
        cleaned = msg if content == msg.content else replace(msg, content=content)
        if msg.name and (name := self.text(msg.name, replacer)) != msg.name:
            cleaned = replace(cleaned, name=name)
        if msg.metadata and (metadata := self.walk(msg.metadata, replacer)) is not msg.metadata:
            cleaned = replace(cleaned, metadata=metadata)
        return cleaned

    def messages(self, messages: Iterable[Msg]) -> Sequence[Msg] | None:
        """Redact messages; None if there is nothing to redact."""
        if len(self._clean) > MAX_CLEAN_TEXTS:
            self._clean.clear()
        if isinstance(messages, MessageView):
            cleaned = self._view(messages)
            if cleaned is not None:
                return None if cleaned is messages else cleaned
        before = tuple(messages)
        after, version = before, -1
        while version != self.vault.version:  # a value found in the last message may also be in the first
            version = self.vault.version
            after = self._all(before)
        self._forget(before)
        return None if after is before else after

    def _view(self, view: MessageView) -> MessageView | None:
        """Redact a request. Return the same object if it has no secrets, None if another hook replaced messages in it.

        Only messages added since the last request are searched, so the cost does not grow with the history.
        """
        vault, cache, version, cleaned = self.vault, self._cache, -1, view
        while version != vault.version:  # a value found in the last message may also be in the first
            version, known = vault.version, cache.last
            if known is not None and known.cleaned is view:
                return view  # the request was cleaned before, and has not changed since
            cleaned_before = view.replacements is not None  # the request was cleaned before, and may have been extended
            if cleaned_before and (known is None or view.replacements is not known.replacements):
                return None
            shared = 0 if known is None else view.shared(known.cleaned if cleaned_before else known.original)
            replacements = Replacements() if known is None or not shared else known.replacements
            replaced = not cleaned_before and bool(shared and replacements.order)
            head, tail = view.head, view.tail
            begin, by_place = max(shared, len(head)), replacements.by_place
            for at, msg in enumerate(view.since(begin), begin):
                if by_place and view.place(at) in by_place:
                    replaced = True
                    continue
                instead = self.message(msg)
                if instead is not msg:
                    if not replacements.put(view, at, instead):
                        return None
                    replaced = True
            clean_head = known.cleaned.head if known is not None and shared else self._all(head)
            clean_tail = self._all(tail) if tail else tail
            cleaned = view
            if clean_tail is not tail or (clean_head is not head and clean_head != head):
                cleaned = view.with_ends(clean_head, clean_tail)
            if replaced:
                cleaned = cleaned.with_replacements(replacements)
            if not cleaned_before and version == vault.version:
                cache.last = RedactedRequest(view, cleaned, replacements)
        if len(cache.messages) > 2 * len(view) + 64:
            self._forget(tuple(view))
        return cleaned

    def _all(self, messages: tuple[Msg, ...]) -> tuple[Msg, ...]:
        """Redact messages; the same object if all are clean."""
        after = tuple([self.message(msg) for msg in messages])
        return messages if all(map(is_, after, messages)) else after

    def _forget(self, messages: tuple[Msg, ...]) -> None:
        """Forget cleaned messages that were part of an earlier request only."""
        known = self._cache.messages
        if len(known) > 2 * len(messages) + 64:  # rarely, because it visits all of them
            current = set(map(id, messages))
            self._cache.messages = {key: pair for key, pair in known.items() if key in current}


def renamed_keys(items: Mapping[Any, Any], names: Mapping[Any, Any]) -> dict[Any, Any]:
    """Return items under other keys; if two keys become equal, both items are kept."""
    renamed: dict[Any, Any] = {}
    for key, item in items.items():
        name = names[key]
        while name in renamed:
            name += "'"
        renamed[name] = item
    return renamed

"""`Redaction`: secrets and personal data never reach a model's provider, and come back on the way out.

Rules:

1. Nothing that a detector finds leaves for the model: input, history, system prompt, tool names and arguments, tool results,
   messages that hooks inject, and what a message has for name and metadata. A placeholder such as `<secret-1>` goes in its
   place, the same one throughout a session.
2. Nobody sees a secret that the model writes by itself, however its reply is cut into chunks: text is held back exactly as
   long as it could still become one. What is held is let go at the end of the reply, before tool calls, before thoughts,
   and when the model fails; where the call is cancelled it is dropped.
3. With `restore`, placeholders become originals again in the words that readers see, and in the arguments of trusted tools
   before guards judge them. What a placeholder stood for in an earlier process is not kept: such a call is refused.
4. What readers saw is what the session keeps (the fold law), so a restored reply stands in the session as it was shown. A
   store gets placeholders only, if it is wrapped: `Agent(..., store=redaction.store(store))`.

A `ModelCache` belongs inside, `ModelCache(priority=950)`, so that it keeps placeholders.

What other hooks ask on the side (`context.complete`) does not pass here: give them `redaction.model(...)` as their model.

Not covered: images and files, and exceptions in `Error` events.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from operator import is_
from typing import Any, Literal, cast
from weakref import WeakValueDictionary

from agentflow.chunks import ModelChunk, ToolUseDelta
from agentflow.errors import UsageError
from agentflow.events import CallEnded, HookEvent, PostActing, PreActing, PreCall, PreReasoning
from agentflow.facts import Fact
from agentflow.hooks.hook import Hook
from agentflow.hooks.wrapping import PrivateFlux
from agentflow.messages import ContentBlock, Msg, Pending, TextBlock, ThinkingBlock, ToolResultBlock, ToolUseBlock
from agentflow.plugins._matching import names
from agentflow.plugins.redaction_model import RedactedModel
from agentflow.plugins.redaction_store import redacted_store
from agentflow.plugins.redaction_text import DETECTORS, Detector, Found, Scanner, Streaming, Vault, scan
from agentflow.ports.model import Model, ModelRequest
from agentflow.ports.store import Store
from agentflow.reactive import Flux
from agentflow.reactive.iterators import close
from agentflow.transcript import MessageView
from agentflow.verdicts import Again, Answer, Approve, Deny, Stop, Suspend

__all__ = ["Redaction"]

_LOST = "what {lost} stands for was known before a restart only, and is not kept; ask the user for it again"


class Redaction(Hook):
    """Hides secrets and personal data from the model, and brings them back on the way out.

    Priority 900 (output band): it edits what all other hooks have made of a request or a call, and sits directly around the
    model. It applies inside sub-agents too.

    Args:
        detectors: What to look for; `DETECTORS` are secrets, mail addresses, IBANs, card and social security numbers.
        patterns: More of them, kind to regular expression: `{"badge": r"B-\\d{6}"}`.
        values: Texts that are secret wherever they occur.
        restore: Give originals back, in replies and in tool arguments. False: placeholders everywhere.
        stored: What the session keeps of input and tool results: `"redacted"`, or `"original"` (then only what is sent to
            the model is changed).
        trusted_tools: Patterns of the tools that get originals; others get placeholders. Name them where a tool can send
            data away: a web page may tell the model to pass `<secret-1>` to it.

    Example:
        >>> model = ScriptedModel(lambda request: f"You wrote: {request.messages[-1].text}")
        >>> agent = Agent("a", model, hooks=[Redaction()])
        >>> (await agent.call("I am ada@example.com")).text
        'You wrote: I am ada@example.com'
        >>> model.requests[0].messages[-1].text
        'I am <email-1>'
    """

    priority = 900
    scope = "tree"
    events = (PreCall, PreReasoning, PreActing, PostActing, CallEnded)
    wraps = (PreReasoning, PreActing)

    def __init__(
        self,
        detectors: Iterable[Detector] = DETECTORS,
        *,
        patterns: Mapping[str, str] | None = None,
        values: Iterable[str] = (),
        restore: bool = True,
        stored: Literal["redacted", "original"] = "redacted",
        trusted_tools: Sequence[str] = ("*",),
    ) -> None:
        if stored not in ("redacted", "original"):
            raise UsageError(f"Redaction(stored={stored!r}): legal are 'redacted' and 'original'.")
        if isinstance(trusted_tools, str) or isinstance(values, str):
            raise UsageError("Redaction: trusted_tools= and values= take a list of texts, not one text.")
        more = tuple(Detector(kind, pattern) for kind, pattern in (patterns or {}).items())
        self.restore = restore
        self.stored = stored
        self.trusted_tools = tuple(trusted_tools)
        self._base = Scanner((*more, *detectors), values)
        self._vaults: WeakValueDictionary[str, Vault] = WeakValueDictionary()

    # ---- events

    def on_event(self, event: HookEvent) -> HookEvent | Deny:
        """Redact what goes to the model, restore what goes to a tool."""
        vault = event.context.session_state[Vault]
        match event:
            case CallEnded():
                if event.outcome != "suspended":
                    self._vaults.pop(event.run_id, None)
                return event
            case PreCall():
                if not vault.begun:  # placeholders of an earlier life of this session are nobody's
                    vault.begun = True
                    self._messages(event.history, vault)
                if self.stored == "redacted":
                    cleaned = self._messages(event.input_messages, vault)
                    if cleaned is not None:
                        event.input_messages = cleaned
            case PreReasoning():
                cleaned = self._messages(event.input_messages, vault)
                if cleaned is not None:
                    event.input_messages = cleaned
            case PreActing():
                use = event.tool_use
                lost: list[str] = []
                trusted = self._trusts(use.name)
                text = self._restoring(vault, lost) if trusted else self._masking(vault, by_model=True)
                changed = self._walk(use.input, vault, text)
                if lost:
                    return Deny(_LOST.format(lost=", ".join(dict.fromkeys(lost))))
                if changed != use.input:
                    event.tool_use = use.replace(input=changed)
            case PostActing():
                if self.stored == "redacted":
                    result = self._result(event.tool_result, vault, self._masking(vault))
                    if result != event.tool_result:
                        event.tool_result = result
            case _:
                pass
        run_id = event.run_id
        if self._vaults.get(run_id) is not vault:
            self._vaults[run_id] = vault
        return event

    def around(self, event: HookEvent, source: Any) -> Any:
        """Pass the model's chunks, and the pieces of a tool, through the hold-back."""
        vault = event.context.session_state[Vault]
        if isinstance(event, PreReasoning):
            return _RedactedFlux(
                source, lambda messages: self._messages(messages, vault), lambda: self._reply(event, vault)
            )
        if isinstance(event, PreActing) and self.stored == "redacted":

            def redacted(pieces: Any) -> Flux[Any]:
                return Flux(lambda: self._pieces(Flux[Any].wrap(pieces), vault, whole=event.iteration == 0))

            return source.chunks(redacted)
        return source

    def store(self, inner: Store) -> Store:
        """A store that gets placeholders only; give it to the agent in place of `inner`. It can do what `inner` can.

        Example:
            >>> from agentflow.ports.store import MemoryStore
            >>> redaction, kept = Redaction(), MemoryStore()
            >>> agent = Agent("a", ScriptedModel(["Noted."]), hooks=[redaction], store=redaction.store(kept))
            >>> (await agent.call("I am ada@example.com", session="s")).text
            'Noted.'
            >>> kept.load("s")[0].messages[0].text
            'I am <email-1>'
        """
        return redacted_store(inner, self._at_rest)

    def model(self, inner: str | Model) -> Model:
        """A model for what other hooks ask on the side (a judge, a summary): it gets `<email>` in place of a mail address.

        Example:
            >>> from agentflow.plugins.goal import GoalJudge
            >>> redaction = Redaction()
            >>> judge = ScriptedModel(['{"done": true}'])
            >>> hooks = [redaction, GoalJudge("It is polite.", redaction.model(judge))]
            >>> reply = await Agent("a", ScriptedModel(["Dear <email-1>,"]), hooks=hooks).call("Write to ada@example.com")
            >>> reply.text, judge.requests[0].messages[-1].text.endswith("Dear <email>,")
            ('Dear ada@example.com,', True)
        """
        return RedactedModel(inner, lambda messages: cast("tuple[Msg, ...]", self._kept(tuple(messages), None)))

    def _trusts(self, tool: str) -> bool:
        return self.restore and names(self.trusted_tools, tool)

    # ---- what stands for what

    def _masking(self, vault: Vault, *, by_model: bool = False) -> Found:
        def found(kind: str, text: str, /) -> str:
            if not kind:
                vault.original(text)
                return text
            return vault.hide(text, kind, self._base, by_model=by_model)

        return found

    def _restoring(self, vault: Vault, lost: list[str]) -> Found:
        def found(kind: str, text: str, /) -> str:
            if not kind and vault.is_lost(text):
                lost.append(text)
            return text if kind else vault.original(text) or text

        return found

    def _showing(self, vault: Vault) -> Found:
        """For readers: their own values as they are, the model's own hidden."""
        if not self.restore:
            return self._masking(vault, by_model=True)

        def found(kind: str, text: str, /) -> str:
            placeholder = vault.hide(text, kind, self._base, by_model=True) if kind else text
            if vault.is_models_own(placeholder):
                return placeholder
            return vault.original(placeholder) or text

        return found

    def _text(self, text: str, vault: Vault, found: Found) -> str:
        spotless = vault.spotless(self._base)
        if text in spotless:
            return text
        if not vault.scanner(self._base).may_find(text):
            spotless.add(text)
            return text
        parts, _ = scan(lambda: vault.scanner(self._base), text, 0, True, found)
        if len(parts) != 1:
            return "".join(parts)
        spotless.add(text)  # one part: nothing was found
        return text

    # ---- values, blocks, messages

    def _walk(self, value: Any, vault: Vault, found: Found) -> Any:
        """JSON-like data with its texts replaced, and its whole numbers where they are secrets."""
        if isinstance(value, str):
            return self._text(value, vault, found)
        if isinstance(value, int) and not isinstance(value, bool):
            digits = str(value)
            text = self._text(digits, vault, found)
            return value if text == digits else text
        if isinstance(value, Mapping):
            mapping = cast("Mapping[Any, Any]", value)
            items = {key: self._walk(item, vault, found) for key, item in mapping.items()}
            keys = {key: self._walk(key, vault, found) if isinstance(key, str) else key for key in mapping}
            if all(items[key] is item and keys[key] == key for key, item in mapping.items()):
                return cast("object", value)
            return _named_anew(items, keys)
        if isinstance(value, list | tuple):
            before = cast("Sequence[Any]", value)
            after = [self._walk(item, vault, found) for item in before]
            return cast("object", value) if all(map(is_, after, before)) else after
        return value

    def _arguments(self, raw: str, vault: Vault) -> str:
        """The JSON text of a call's arguments, without secrets, escaped ones included; unchanged where there are none."""
        spotless = vault.spotless(self._base)
        if (raw,) in spotless:  # as arguments: none of the values, and not the text
            return raw
        found = self._masking(vault, by_model=True)
        try:
            value = json.loads(raw)
        except ValueError:
            return self._text(raw, vault, found)
        cleaned = self._walk(value, vault, found)
        # A key that is there twice is in the text, and not in the value.
        if cleaned == value and self._text(raw, vault, found) == raw:
            spotless.add((raw,))
            return raw
        return json.dumps(cleaned, ensure_ascii=False)

    def _use(self, use: ToolUseBlock, vault: Vault) -> ToolUseBlock:
        raw, name = self._arguments(use.raw, vault), self._text(use.name, vault, self._masking(vault, by_model=True))
        return use if raw == use.raw and name == use.name else ToolUseBlock.from_json(use.id, name, raw)

    def _result(self, result: ToolResultBlock, vault: Vault, found: Found) -> ToolResultBlock:
        content, name = result.content, self._text(result.name, vault, found)
        if name != result.name:
            result = replace(result, name=name)
        if isinstance(content, str):
            text = self._text(content, vault, found)
            return result if text == content else replace(result, content=text)
        blocks = tuple(
            replace(block, text=self._text(block.text, vault, found)) if isinstance(block, TextBlock) else block
            for block in content
        )
        return replace(result, content=blocks)

    def _block(self, block: ContentBlock, vault: Vault, found: Found) -> ContentBlock:
        if isinstance(block, TextBlock):
            text = self._text(block.text, vault, found)
            return block if text == block.text else replace(block, text=text)
        if isinstance(block, ToolUseBlock):
            return self._use(block, vault)
        if isinstance(block, ToolResultBlock):
            return self._result(block, vault, found)
        if isinstance(block, ThinkingBlock):
            thought = vault.thoughts.get(block.signature or "")
            return replace(block, text=self._text(block.text, vault, found) if thought is None else thought)
        return block

    def _message(self, msg: Msg, vault: Vault) -> Msg:
        key = (id(msg), id(self._base))
        known = vault.clean.get(key)
        if known is not None and known[0] is msg and known[1] == vault.version:
            return known[2]
        found = self._masking(vault, by_model=msg.role == "assistant")
        content = tuple(self._block(block, vault, found) for block in msg.content)
        cleaned = msg if content == msg.content else replace(msg, content=content)
        if msg.name and (name := self._text(msg.name, vault, found)) != msg.name:
            cleaned = replace(cleaned, name=name)
        if msg.metadata and (metadata := self._walk(msg.metadata, vault, found)) is not msg.metadata:
            cleaned = replace(cleaned, metadata=metadata)
        vault.clean[key] = (msg, vault.version, cleaned)
        return cleaned

    def _messages(self, messages: Iterable[Msg], vault: Vault) -> tuple[Msg, ...] | None:
        """The messages without secrets; None where there were none."""
        known = vault.checked.get(id(self._base))
        if known is not None and (known[0] is not self._base or known[1] != vault.version):
            known = None
        if known is not None and isinstance(messages, MessageView):
            seen = messages.shared(known[2])
            new = [messages[at] for at in range(seen, len(messages))]
            if all(self._message(msg, vault) is msg for msg in new) and known[1] == vault.version:
                if new:
                    vault.checked[id(self._base)] = (self._base, vault.version, messages)
                return None
        before = tuple(messages)
        version = -1
        after = before
        while version != vault.version:  # a value found in the last message may stand in the first
            version = vault.version
            after = tuple(self._message(msg, vault) for msg in before)
        if len(vault.clean) > 2 * len(before) + 64:  # messages that were part of one request only
            kept = {(id(msg), id(self._base)) for msg in before}
            vault.clean = {key: known for key, known in vault.clean.items() if key in kept}
        if not all(map(is_, after, before)):
            return after
        if isinstance(messages, MessageView):
            vault.checked[id(self._base)] = (self._base, vault.version, messages)
        return None

    # ---- streams

    def _reply(self, event: PreReasoning, vault: Vault) -> _Reply:
        def hold_back() -> Streaming:
            return Streaming(lambda: vault.scanner(self._base), self._showing(vault))

        def name(text: str) -> str:
            if any(spec.name == text for spec in event.tools):
                return text
            return self._text(text, vault, self._masking(vault, by_model=True))

        return _Reply(
            hold_back,
            name,
            lambda raw: self._arguments(raw, vault),
            lambda block: self._block(block, vault, self._showing(vault)),
            vault.thoughts,
        )

    async def _pieces(self, pieces: Flux[Any], vault: Vault, *, whole: bool) -> AsyncIterator[Any]:
        """A tool's pieces; neighbouring texts are one text, or (`whole`, in a turn that no model asked for) values."""
        text = Streaming(lambda: vault.scanner(self._base), self._masking(vault))
        found = self._masking(vault)
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
                changed = self._walk(piece, vault, found)
                yield piece if changed == piece else changed
            rest = text.end()
            if rest:
                yield rest
        finally:
            await close(stream)

    # ---- at rest

    def _at_rest(self, fact: Fact) -> Fact:
        """A fact as the store gets it."""
        vault = self._vaults.get(getattr(fact, "run_id", ""))
        values = {
            name: self._kept(value, vault)
            for name, value in fact._asdict().items()  # NamedTuple's public method
            if not name.endswith("_id")
        }
        return fact._replace(**values)

    def _kept(self, value: Any, known: Vault | None) -> Any:
        if known is None:  # a fact of no run: nobody could tell what a number means
            return self._kept(value, _Numberless())
        vault, found = known, self._masking(known, by_model=True)
        match value:
            case str():
                return self._text(value, vault, found)
            case Msg():
                return self._unsealed(self._message(value, vault), vault, found)
            case ToolUseBlock():
                return self._use(value, vault)
            case ToolResultBlock():
                return self._result(value, vault, found)
            case Pending():
                use = None if value.tool_use is None else self._use(value.tool_use, vault)
                return replace(value, request=self._kept(value.request, vault), tool_use=use)
            case Deny() | Stop():
                return replace(value, reason=self._text(value.reason, vault, found))
            case Answer():
                return Answer(self._kept(value.value, vault))
            case Suspend():
                return Suspend(self._kept(value.request, vault))
            case Again():
                return Again(self._kept(value.messages, vault))
            case Approve():
                return Approve(self._kept(value.input, vault))
            case tuple():
                return tuple(self._kept(item, vault) for item in cast("tuple[Any, ...]", value))
            case Mapping():  # of verdicts too: what a resume decides
                mapping = cast("Mapping[str, Any]", value)
                items = {key: self._kept(item, vault) for key, item in mapping.items()}
                return _named_anew(items, {key: self._text(key, vault, found) for key in mapping})
            case list():
                return [self._kept(item, vault) for item in cast("list[Any]", value)]
            case _:
                return value

    def _unsealed(self, msg: Msg, vault: Vault, found: Found) -> Msg:
        """A message at rest: a sealed thought that holds a secret loses the secret, and the seal that does not fit then."""
        if not any(isinstance(block, ThinkingBlock) for block in msg.content):
            return msg
        content: list[ContentBlock] = []
        for block in msg.content:
            if isinstance(block, ThinkingBlock) and (text := self._text(block.text, vault, found)) != block.text:
                block = replace(block, text=text, signature=None)
            content.append(block)
        return msg if content == list(msg.content) else replace(msg, content=tuple(content))


def _named_anew(items: Mapping[Any, Any], names: Mapping[Any, Any]) -> dict[Any, Any]:
    """Items under other keys; where two become alike, both stay."""
    renamed: dict[Any, Any] = {}
    for key, item in items.items():
        name = names[key]
        while name in renamed:
            name += "'"
        renamed[name] = item
    return renamed


class _Numberless(Vault):
    """Hides and forgets."""

    def hide(self, value: str, kind: str, base: Scanner, *, by_model: bool) -> str:
        """The kind alone."""
        return f"<{kind}>"


class _RedactedFlux(PrivateFlux):
    """The model's work, asked without secrets and shown without secrets.

    It is private: a cache further out would keep restored words under a request that another session
    makes too. So `ModelCache` refuses such a place, and says that it needs a higher priority.
    """

    def __init__(
        self,
        source: Any,
        clean: Callable[[Iterable[Msg]], tuple[Msg, ...] | None],
        reply: Callable[[], _Reply],
    ) -> None:
        request = getattr(source, "request", None)
        if isinstance(request, ModelRequest):
            # The event does not hold what its chain has injected; the request does.
            cleaned = clean(request.messages)
            source = source if cleaned is None else source.using(input_messages=cleaned)
        self._work = source
        self._clean = clean
        self._make = reply
        super().__init__(self._run)

    async def _run(self) -> AsyncIterator[ModelChunk]:
        reply = self._make()
        work = self._work
        stream = (cast("Flux[ModelChunk]", work) if isinstance(work, Flux) else Flux[ModelChunk].wrap(work)).open()
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


class _Call:
    """A tool call while its arguments come in."""

    def __init__(self, use_id: str) -> None:
        self.id = use_id
        self.arguments: list[str] = []


class _Reply:
    """One attempt at a reply, on its way out."""

    def __init__(
        self,
        hold_back: Callable[[], Streaming],
        name: Callable[[str], str],
        arguments: Callable[[str], str],
        block: Callable[[ContentBlock], ContentBlock],
        thoughts: dict[str, str],
    ) -> None:
        self._hold_back = hold_back
        self._name = name
        self._arguments = arguments
        self._block = block
        self._thoughts = thoughts
        self._begin()

    def _begin(self) -> None:
        self._words = self._hold_back()
        self._thinking = self._hold_back()
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
        if chunk.thinking or chunk.signature is not None:
            words = self._words.end()
            if words:  # in a chunk, thoughts come before words
                out.append(ModelChunk(words, restart=chunk.restart))
        thinking = self._thinking.feed(chunk.thinking)
        if chunk.thinking:
            self._thought.append(chunk.thinking)
        text = ""
        if chunk.signature is not None or chunk.text or chunk.tool_uses or chunk.blocks:
            thinking += self._end_thought(chunk.signature)
        if chunk.text:
            text = self._words.feed(chunk.text)
        if chunk.tool_uses or chunk.blocks:
            text += self._words.end()
        deltas = [part for delta in chunk.tool_uses for part in self._delta(delta)]
        for block in chunk.blocks:
            if isinstance(block, ThinkingBlock) and block.signature:
                self._thoughts[block.signature] = block.text
        shown = ModelChunk(
            text,
            thinking,
            chunk.signature,
            tuple(deltas),
            tuple(map(self._block, chunk.blocks)) if chunk.blocks else (),
            chunk.usage,
            None,  # the finish reason comes last, behind what is held
            chunk.restart,
            chunk.model,
        )
        if text or deltas or shown != ModelChunk(model=chunk.model):
            out.append(shown)
        return out

    def _end_thought(self, signature: str | None) -> str:
        if signature:
            self._thoughts[signature] = "".join(self._thought)
        self._thought = []
        return self._thinking.end()

    def _delta(self, delta: ToolUseDelta) -> Iterable[ToolUseDelta]:
        """Arguments are kept until the call is whole: a secret may be written with JSON's escapes."""
        call = self._calls.get(delta.index)
        if call is None or (delta.id and call.id and delta.id != call.id and delta.name):
            if call is not None:
                yield ToolUseDelta(delta.index, arguments=self._arguments("".join(call.arguments)))
            call = self._calls[delta.index] = _Call(delta.id)
            yield ToolUseDelta(delta.index, delta.id, self._name(delta.name))
        elif delta.id or delta.name:
            call.id = call.id or delta.id
            yield replace(delta, name=self._name(delta.name), arguments="")
        call.arguments.append(delta.arguments)

    def end(self, *, failed: bool = False) -> Iterable[ModelChunk]:
        """The rest; of a reply that failed, without the calls."""
        thinking, words = self._thinking.end(), self._words.end()
        deltas: list[ToolUseDelta] = []
        for index, call in self._calls.items():
            arguments = "" if failed else self._arguments("".join(call.arguments))
            if arguments:
                deltas.append(ToolUseDelta(index, arguments=arguments))
        if not (words or thinking or deltas or self._finish):
            return ()
        return (ModelChunk(words, thinking, tool_uses=tuple(deltas), finish_reason=self._finish, model=self._model),)

"""`Redaction`: keeps secrets and personal data from a model's provider, and restores them on the way out.

Rules:

1. Data that a detector finds is never sent to the model, be it in input, history, system prompt, tool names and arguments, tool
   results, messages that hooks inject, and names and metadata of messages. A placeholder such as `<secret-1>` is sent instead,
   the same one throughout a session.
2. Readers never see a secret that the model itself writes, however its reply is split into chunks: text is held back only
   while it could still become a secret. Held-back text is released at the end of the reply, before tool calls, before thoughts,
   and if the model fails; if the call is cancelled, it is discarded.
3. With `restore`, placeholders become originals again in the text for readers, and in the arguments of trusted tools
   before guards evaluate them.
4. The session keeps replies as readers saw them (the fold law), with originals. A store gets only placeholders if it is
   wrapped: `Agent(..., store=redaction.store(store))`.
5. With keys, the values of placeholders are stored with the session, encrypted, in the same write as the first fact that
   contains them: they can be resolved in any process with the keys. Without keys, a call with a placeholder of an earlier
   process is refused.

A `ModelCache` should be inside, `ModelCache(priority=950)`, so that it stores placeholders. Side model calls of hooks and tools
(`context.complete`) are redacted too, so a judge or a summary gets placeholders. Text files (UTF-8) are searched, and names and
URLs of all files. Not covered: images, audio, PDF and other binary files, and exceptions in `Error` events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from agentflow._support.logs import ids_of, logger
from agentflow._support.shown import one_line
from agentflow.errors import UsageError, Veto
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource
from agentflow.plugins._matching import matches, strings
from agentflow.plugins.redaction.at_rest import (
    AnonymousVault,
    Restoring,
    at_rest,
    fact_at_rest,
    message_at_rest,
    vault_of,
)
from agentflow.plugins.redaction.detectors import DETECTORS, Detector
from agentflow.plugins.redaction.reply import RedactedFlux, redacted_chunks
from agentflow.plugins.redaction.seal import KEYS_VARIABLE, KeySource, seal_from
from agentflow.plugins.redaction.store import RedactedModel, redacted_store
from agentflow.plugins.redaction.text import Scanner, scan
from agentflow.plugins.redaction.values import Cleaning
from agentflow.plugins.redaction.vault import Vault
from agentflow.reactive import Flux
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext, own
from agentflow.vocabulary.events import HookEvent, PostActing, PreActing, PreCall, PreReasoning
from agentflow.vocabulary.facts import Fact, StateKept
from agentflow.vocabulary.messages import Msg
from agentflow.vocabulary.ports.model import Model, ModelRequest
from agentflow.vocabulary.ports.store import Store
from agentflow.vocabulary.verdicts import Deny

T = TypeVar("T")

_LOST = "the value of {lost} was lost with a restart; ask the user for it again"
_NO_KEYS = (
    "{} denied {}: its arguments contain placeholders of an earlier process, whose values are not stored. Pass keys to the "
    "hook, Redaction(keys=...) or the environment variable {}, to store them with the session, encrypted."
)


class Redaction(SideWrapper):
    """Hides secrets and personal data from the model, and restores them on the way out.

    Priority 900 (output band): it edits a request or a call after all hooks with a lower priority, and wraps the model inside
    them. It applies inside sub-agents too.

    Args:
        detectors: The detectors; `DETECTORS` find secrets, mail addresses, IBANs, card and social security numbers.
        patterns: More detectors, kind to regular expression: `{"badge": r"B-\\d{6}"}`.
        values: Texts that are secret wherever they occur.
        restore: Restore originals in replies and in tool arguments. False: placeholders everywhere.
        stored: The form of input and tool results in the session: `"redacted"`, or `"original"` (then only requests to the
            model are changed).
        keys: Fernet keys (a string, or several, the newest first), or a function that returns them: the values of placeholders
            are then stored with the session, encrypted. None: the keys in the environment variable
            `AGENTFLOW_REDACTION_KEYS`, separated by commas; if it is not set, values are not stored.
        trusted_tools: Patterns of the tools that get originals; others get placeholders. You should limit them if a tool can
            send data away: a web page may ask the model to pass `<secret-1>` to it.

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
    events = (PreCall, PreReasoning, PreActing, PostActing)
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
        keys: KeySource | None = None,
    ) -> None:
        if stored not in ("redacted", "original"):
            raise UsageError(f"Redaction(stored={stored!r}): use 'redacted' or 'original'.")
        more = tuple(Detector(kind, pattern) for kind, pattern in (patterns or {}).items())
        self.restore = restore
        self.stored = stored
        self.trusted_tools = strings("Redaction(trusted_tools=...)", trusted_tools)
        self._base = Scanner((*more, *detectors), strings("Redaction(values=...)", values))
        self._seal = seal_from(keys)
        # By run id. The references are weak, since the session owns the vault.
        self._vaults: WeakValueDictionary[str, Vault] = WeakValueDictionary()

    # ---- events

    def on_event(self, event: HookEvent) -> HookEvent | Deny:
        """Redact a request to the model; restore the arguments for a tool."""
        context = event.context
        cleaning = own(context, self, self._enter, context)
        if isinstance(event, PreActing):
            unresolved = self._clean_call(event, cleaning)
            if unresolved:
                return Deny(self._refusal(event, unresolved))
        elif isinstance(event, PostActing):
            if self.stored == "redacted" and not cleaning.is_clean_result(event.tool_result):
                result = cleaning.result(event.tool_result, cleaning.masking())
                if result != event.tool_result:
                    event.tool_result = result
        elif isinstance(event, PreReasoning) or (isinstance(event, PreCall) and self.stored == "redacted"):
            cleaned = cleaning.messages(event.input_messages)
            if cleaned is not None:
                event.input_messages = cleaned
        return event

    def _enter(self, context: RunContext) -> Cleaning:
        """Return the redaction of a call's session; the first call of a run restores the stored vault."""
        vault = context.session_state[Vault]
        cleaning = self._cleaning(vault)
        if vault.runs.get(id(self)) == context.run_id:  # keyed by hook: an agent can have several
            return cleaning
        vault.use(self._seal)
        cleaning.begin(context.history)
        # The last run's vault was kept until now, for recorders and exporters that write after the end of a run.
        self._vaults.pop(vault.runs.get(id(self), ""), None)
        vault.runs[id(self)] = context.run_id
        self._vaults[context.run_id] = vault
        return cleaning

    def _clean_call(self, event: PreActing, cleaning: Cleaning) -> list[str]:
        """Restore or mask a tool's arguments; return unresolved placeholders."""
        use, unresolved = event.tool_use, list[str]()
        if cleaning.are_clean_arguments(use.raw):
            return unresolved
        text = cleaning.restoring(unresolved) if self._trusts(use.name) else cleaning.masking(by_model=True)
        changed = cleaning.walk(use.input, text)
        if not unresolved and changed != use.input:
            event.tool_use = use.replace(input=changed)
        return unresolved

    def _refusal(self, event: PreActing, lost: Iterable[str]) -> str:
        if self._seal is None:
            logger.bind(**ids_of(event)).warning(_NO_KEYS, self.name, one_line(event.tool_use.name), KEYS_VARIABLE)
        return _LOST.format(lost=", ".join(dict.fromkeys(lost)))

    def around(self, event: HookEvent, source: Any) -> Any:
        """Redact a request to the model, and the chunks of models and tools while they stream."""
        context = event.context
        cleaning = own(context, self, self._enter, context)
        if isinstance(event, PreReasoning):
            return RedactedFlux(source, cleaning)
        if isinstance(event, PreActing) and cleaning.vault.has_lost:
            unresolved = self._lost_in(event, cleaning)
            if unresolved:  # the call was allowed in an earlier process, and the store contains only placeholders
                raise Veto(self._refusal(event, unresolved))
        if isinstance(event, PreActing) and self.stored == "redacted" and source.emits:
            whole = event.iteration == 0  # a turn that no model requested: each chunk is a separate value

            def redacted(chunks: Any) -> Flux[Any]:
                return Flux(lambda: redacted_chunks(Flux[Any].wrap(chunks), cleaning, whole=whole))

            return source.chunks(redacted)
        return source

    def _lost_in(self, event: PreActing, cleaning: Cleaning) -> list[str]:
        unresolved = list[str]()
        if self._trusts(event.tool_use.name) and not cleaning.are_clean_arguments(event.tool_use.raw):
            cleaning.walk(event.tool_use.input, cleaning.restoring(unresolved))
        return unresolved

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Hide secrets from the model of a side call, and restore them in its answer."""
        return RedactedFlux(chunks, own(context, self, self._enter, context))

    def store(self, inner: Store) -> Store:
        """Wrap a store so that it gets only placeholders; pass the result to the agent. It supports everything that `inner`
        does.

        Example:
            >>> from agentflow.vocabulary.ports.memory_store import MemoryStore
            >>> redaction, store = Redaction(), MemoryStore()
            >>> agent = Agent("a", ScriptedModel(["Noted."]), hooks=[redaction], store=redaction.store(store))
            >>> (await agent.call("I am ada@example.com", session="s")).text
            'Noted.'
            >>> store.load("s")[1].messages[0].text  # the fact after the session's state
            'I am <email-1>'
        """
        return redacted_store(inner, self._at_rest, self._restored)

    def model(self, inner: str | Model) -> Model:
        """Wrap a model for calls outside of a run: it gets `<email>` instead of a mail address.

        Side calls within a run (`context.complete`) do not need it: they are redacted anyway.

        Example:
            >>> judge = ScriptedModel(["Polite."])
            >>> reply = await Agent("judge", Redaction().model(judge)).call("Is this polite? Dear ada@example.com")
            >>> judge.requests[0].messages[-1].text
            'Is this polite? Dear <email>'
        """

        def clean(messages: Sequence[Msg]) -> tuple[Msg, ...]:
            cleaning = self._cleaning(AnonymousVault())
            return tuple([message_at_rest(msg, cleaning) for msg in messages])

        return RedactedModel(inner, clean)

    def outside(self, value: T, run_id: str = "") -> T:
        """Redact a message, a call, a result or a text for use outside the run, such as in a trace: `<email>` for an address.

        Args:
            value: The value to redact.
            run_id: The id of the run that the value belongs to: values found in the run's session are redacted too; the
                session does not change.

        Example:
            >>> Redaction().outside("Write to ada@example.com")
            'Write to <email>'
        """
        return at_rest(value, self._cleaning(AnonymousVault.of(self._vaults.get(run_id))))

    def finds(self, text: str, start: int, whole: bool, run_id: str = "") -> tuple[list[tuple[int, int, str]], int]:
        """Find what `outside` would redact in a text that may still grow.

        Args:
            text: The text so far.
            start: Where to begin; the text before it serves as context only.
            whole: Whether the text is complete.
            run_id: The id of the run that the text belongs to.

        Returns:
            The start, end and replacement of each finding; and the position up to which further text cannot change the result.

        Example:
            >>> Redaction().finds("Write to ada@example.com, or bob@exam", 0, whole=False)
            ([(9, 24, '<email>')], 29)
        """
        scanner = self._cleaning(AnonymousVault.of(self._vaults.get(run_id))).scanner()
        kinds: list[str] = []

        def noted(kind: str, found: str) -> str:
            kinds.append(kind)
            return found

        # the parts alternate: plain text, match, plain text, match, ...
        parts, upto = scan(lambda: scanner, text, start, whole, noted)
        ends = list(accumulate(map(len, parts), initial=start))
        return [(ends[2 * n + 1], ends[2 * n + 2], f"<{kind}>") for n, kind in enumerate(kinds) if kind], upto

    def _trusts(self, tool: str) -> bool:
        return self.restore and matches(self.trusted_tools, tool)

    def _cleaning(self, vault: Vault) -> Cleaning:
        return Cleaning(self._base, self.restore, vault)

    def _at_rest(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Return facts for the store. Facts of an unknown run get placeholders without numbers, since no
        vault could resolve numbers."""
        runs = [run_id for fact in facts if (run_id := getattr(fact, "run_id", "")) in self._vaults]
        vault = self._vaults.get(runs[0]) if runs else None
        cleaning = self._cleaning(AnonymousVault() if vault is None else vault)
        # The state comes first, but is converted last: the other facts may add values to the vault.
        cleaned = [fact if isinstance(fact, StateKept) else fact_at_rest(fact, cleaning) for fact in facts]
        return [fact_at_rest(fact, cleaning) if isinstance(fact, StateKept) else fact for fact in cleaned]

    def _restored(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Return facts as the session had them, if the values of their placeholders are known."""
        vault = vault_of(facts) if self.restore else None
        if vault is None or self._seal is None:
            return facts
        vault.use(self._seal)
        restoring = Restoring(self._cleaning(vault), self.stored == "original", self._trusts)
        return [restoring.fact(fact) for fact in facts]

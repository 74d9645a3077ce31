"""`Redaction`: secrets and personal data never reach a model's provider, and come back on the way out.

Rules:

1. Nothing that a detector finds leaves for the model: input, history, system prompt, tool names and arguments, tool results,
   messages that hooks inject, and what a message has for name and metadata. A placeholder such as `<secret-1>` goes in its
   place, the same one throughout a session.
2. Nobody sees a secret that the model writes by itself, however its reply is cut into chunks: text is held back exactly as
   long as it could still become one. What is held is let go at the end of the reply, before tool calls, before thoughts,
   and when the model fails; where the call is cancelled it is dropped.
3. With `restore`, placeholders become originals again in the words that readers see, and in the arguments of trusted tools
   before guards judge them.
4. What readers saw is what the session keeps (the fold law), so a restored reply stands in the session as it was shown. A
   store gets placeholders only, if it is wrapped: `Agent(..., store=redaction.store(store))`.
5. With keys, what the placeholders stand for is stored with the session, encrypted, in the same write as the first fact that
   speaks of it: they resolve in any process that has the keys. Without, a call with a placeholder of an earlier process is
   refused.

A `ModelCache` belongs inside, `ModelCache(priority=950)`, so that it keeps placeholders.

What hooks and tools ask on the side (`context.complete`) passes here too, so a judge or a summary gets placeholders.

Files are looked into where they are text (UTF-8); names and addresses of all. Not covered: images, sounds, PDF and other
binary files, and exceptions in `Error` events.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import accumulate
from typing import Any, Literal, TypeVar
from weakref import WeakValueDictionary

from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import UsageError, Veto
from agentflow.events import CallEnded, HookEvent, PostActing, PreActing, PreCall, PreReasoning
from agentflow.facts import Fact, StateKept
from agentflow.ground.logs import ids_of, logger
from agentflow.ground.shown import one_line
from agentflow.hooks.recording import SideWrapper
from agentflow.hooks.wrapping import ModelSource
from agentflow.messages import Msg
from agentflow.plugins._matching import names
from agentflow.plugins.redaction.at_rest import (
    Numberless,
    Restoring,
    at_rest,
    fact_at_rest,
    message_at_rest,
    vault_of,
)
from agentflow.plugins.redaction.detectors import DETECTORS, Detector
from agentflow.plugins.redaction.model import RedactedModel
from agentflow.plugins.redaction.reply import RedactedFlux, redacted_pieces
from agentflow.plugins.redaction.seal import KEYS_VARIABLE, KeySource, seal_from
from agentflow.plugins.redaction.store import redacted_store
from agentflow.plugins.redaction.text import Scanner, Vault, scan
from agentflow.plugins.redaction.values import Cleaning
from agentflow.ports.model import Model, ModelRequest
from agentflow.ports.store import Store
from agentflow.reactive import Flux
from agentflow.verdicts import Deny

__all__ = ["Redaction"]

T = TypeVar("T")

_LOST = "what {lost} stands for was known before a restart only, and is not kept; ask the user for it again"
_NO_KEYS = (
    "{} denied {}: its arguments hold placeholders of an earlier process, whose values are kept nowhere. Give the hook keys, "
    "Redaction(keys=...) or the environment variable {}, and they are kept with the session, encrypted."
)


class Redaction(SideWrapper):
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
        keys: Fernet keys (a text, or several, the newest first), or a function that gives them: what placeholders stand for
            is then stored with the session, encrypted. None: those in the environment variable `AGENTFLOW_REDACTION_KEYS`,
            separated by commas; where that is not set, nothing is kept.
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
        keys: KeySource | None = None,
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
        self._seal = seal_from(keys)
        self._vaults: WeakValueDictionary[str, Vault] = WeakValueDictionary()

    # ---- events

    def on_event(self, event: HookEvent) -> HookEvent | Deny:
        """Redact what goes to the model, restore what goes to a tool."""
        context = event.context
        if isinstance(event, CallEnded):
            if event.outcome != "suspended":
                context.session_state[Vault].runs.pop(id(self), None)
                self._vaults.pop(context.run_id, None)
            return event
        vault = context.session_state[Vault]
        if vault.runs.get(id(self)) != context.run_id:
            self._enter(vault, context)
        match event:
            case PreCall() | PreReasoning():
                if self.stored == "redacted" or isinstance(event, PreReasoning):
                    cleaned = self._cleaning(vault).messages(event.input_messages)
                    if cleaned is not None:
                        event.input_messages = cleaned
            case PreActing():
                lost = self._clean_call(event, vault)
                if lost:
                    return Deny(self._refusal(event, lost))
            case PostActing():
                cleaning = self._cleaning(vault)
                if self.stored == "redacted" and not cleaning.is_clean_result(event.tool_result):
                    result = cleaning.result(event.tool_result, cleaning.masking())
                    if result != event.tool_result:
                        event.tool_result = result
            case _:
                pass
        return event

    def _enter(self, vault: Vault, context: RunContext) -> None:
        """Take in what was stored of what the session knows, the first time in a run."""
        vault.use(self._seal)
        self._cleaning(vault).begin(context.history)
        vault.runs[id(self)] = context.run_id
        self._vaults[context.run_id] = vault

    def _clean_call(self, event: PreActing, vault: Vault) -> list[str]:
        """Give a tool what it may get; returns the placeholders that nobody knows any more."""
        use, cleaning, lost = event.tool_use, self._cleaning(vault), list[str]()
        if cleaning.are_clean_arguments(use.raw):
            return lost
        text = cleaning.restoring(lost) if self._trusts(use.name) else cleaning.masking(by_model=True)
        changed = cleaning.walk(use.input, text)
        if not lost and changed != use.input:
            event.tool_use = use.replace(input=changed)
        return lost

    def _refusal(self, event: PreActing, lost: Iterable[str]) -> str:
        if self._seal is None:
            logger.bind(**ids_of(event)).warning(_NO_KEYS, self.name, one_line(event.tool_use.name), KEYS_VARIABLE)
        return _LOST.format(lost=", ".join(dict.fromkeys(lost)))

    def around(self, event: HookEvent, source: Any) -> Any:
        """Pass the model's chunks, and the pieces of a tool, through the hold-back."""
        context = event.context
        vault = context.session_state[Vault]
        if vault.runs.get(id(self)) != context.run_id:
            self._enter(vault, context)
        if isinstance(event, PreReasoning):
            return RedactedFlux(source, self._cleaning(vault))
        if isinstance(event, PreActing) and vault.has_lost:
            lost = self._lost_in(event, vault)
            if lost:  # it was allowed in an earlier process, and a wrapped store had placeholders of it
                raise Veto(self._refusal(event, lost))
        if isinstance(event, PreActing) and self.stored == "redacted":
            whole = event.iteration == 0

            def redacted(pieces: Any) -> Flux[Any]:
                return Flux(lambda: redacted_pieces(Flux[Any].wrap(pieces), self._cleaning(vault), whole=whole))

            return source.chunks(redacted)
        return source

    def _lost_in(self, event: PreActing, vault: Vault) -> list[str]:
        cleaning, lost = self._cleaning(vault), list[str]()
        if self._trusts(event.tool_use.name) and not cleaning.are_clean_arguments(event.tool_use.raw):
            cleaning.walk(event.tool_use.input, cleaning.restoring(lost))
        return lost

    def around_side(
        self, context: RunContext, request: ModelRequest, side: str, chunks: ModelSource
    ) -> Flux[ModelChunk]:
        """Hide secrets from the model that is asked on the side, and bring them back in its answer."""
        vault = context.session_state[Vault]
        if vault.runs.get(id(self)) != context.run_id:
            self._enter(vault, context)
        return RedactedFlux(chunks, self._cleaning(vault))

    def store(self, inner: Store) -> Store:
        """A store that gets placeholders only; give it to the agent in place of `inner`. It can do what `inner` can.

        Example:
            >>> from agentflow.ports.store import MemoryStore
            >>> redaction, kept = Redaction(), MemoryStore()
            >>> agent = Agent("a", ScriptedModel(["Noted."]), hooks=[redaction], store=redaction.store(kept))
            >>> (await agent.call("I am ada@example.com", session="s")).text
            'Noted.'
            >>> kept.load("s")[1].messages[0].text  # behind the state of the session
            'I am <email-1>'
        """
        return redacted_store(inner, self._at_rest, self._restored)

    def model(self, inner: str | Model) -> Model:
        """A model for what is asked outside of a run: it gets `<email>` in the place of a mail address.

        What hooks and tools ask in a run (`context.complete`) needs none: it passes here anyway.

        Example:
            >>> judge = ScriptedModel(["Polite."])
            >>> reply = await Agent("judge", Redaction().model(judge)).call("Is this polite? Dear ada@example.com")
            >>> judge.requests[0].messages[-1].text
            'Is this polite? Dear <email>'
        """

        def clean(messages: Sequence[Msg]) -> tuple[Msg, ...]:
            cleaning = self._cleaning(Numberless())
            return tuple([message_at_rest(msg, cleaning) for msg in messages])

        return RedactedModel(inner, clean)

    def outside(self, value: T, run_id: str = "") -> T:
        """A message, a call, a result or a text as it may be told outside the run, in a trace say: `<email>` for an address.

        Args:
            value: One of them.
            run_id: The run that it is of: what its session has learned to be secret is found too, and nothing is learned.

        Example:
            >>> Redaction().outside("Write to ada@example.com")
            'Write to <email>'
        """
        return at_rest(value, self._cleaning(Numberless.knowing(self._vaults.get(run_id))))

    def finds(self, text: str, start: int, whole: bool, run_id: str = "") -> tuple[list[tuple[int, int, str]], int]:
        """Where something is in a text that `outside` takes out, for whoever writes a text down while it comes.

        Args:
            text: The text so far.
            start: Where to begin; what stands before is only looked back on.
            whole: No more of it follows.
            run_id: The run that it is of.

        Returns:
            Each place, its end, and what stands for it; and up to where nothing that follows could change that.

        Example:
            >>> Redaction().finds("Write to ada@example.com, or bob@exam", 0, whole=False)
            ([(9, 24, '<email>')], 29)
        """
        scanner = self._cleaning(Numberless.knowing(self._vaults.get(run_id))).scanner()
        kinds: list[str] = []

        def noted(kind: str, found: str) -> str:
            kinds.append(kind)
            return found

        parts, upto = scan(lambda: scanner, text, start, whole, noted)  # plain, found, plain, found, ...
        ends = list(accumulate(map(len, parts), initial=start))
        return [(ends[2 * n + 1], ends[2 * n + 2], f"<{kind}>") for n, kind in enumerate(kinds) if kind], upto

    def _trusts(self, tool: str) -> bool:
        return self.restore and names(self.trusted_tools, tool)

    def _cleaning(self, vault: Vault) -> Cleaning:
        return Cleaning(self._base, self.restore, vault)

    def _at_rest(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Facts as the store gets them; those of no run have no numbers, as nobody could tell what they mean."""
        runs = [run_id for fact in facts if (run_id := getattr(fact, "run_id", "")) in self._vaults]
        vault = self._vaults.get(runs[0]) if runs else None
        cleaning = self._cleaning(Numberless() if vault is None else vault)
        # The state comes first, and is made last: the other facts may teach the vault a value.
        cleaned = [fact if isinstance(fact, StateKept) else fact_at_rest(fact, cleaning) for fact in facts]
        return [fact_at_rest(fact, cleaning) if isinstance(fact, StateKept) else fact for fact in cleaned]

    def _restored(self, facts: Sequence[Fact]) -> Sequence[Fact]:
        """Facts as the session held them, where it can be known what their placeholders stand for."""
        vault = vault_of(facts) if self.restore else None
        if vault is None or self._seal is None:
            return facts
        vault.use(self._seal)
        restoring = Restoring(self._cleaning(vault), self.stored == "original", self._trusts)
        return [restoring.fact(fact) for fact in facts]

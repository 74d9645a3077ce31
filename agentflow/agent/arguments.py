"""What a call is given, checked before its first event: a refused call raises and fires nothing.

Rules:

1. `CallArguments` is made when a call begins, and whoever holds one need not look again at what stands in it.
2. What depends on the session (`not_open`, `check_decisions`) is checked when the call has it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from typing import Any, Final, NoReturn, Protocol, TypeAlias, TypedDict, cast

from agentflow.context import as_messages
from agentflow.errors import SuspendedError, ToolArgumentError, UsageError, unknown_keyword
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registering import refuse_tools
from agentflow.loop.config import LoopConfig
from agentflow.loop.session import FullSession, Session
from agentflow.loop.states import State
from agentflow.messages import Msg, Pending, Reply, ToolUseBlock, message, text_block
from agentflow.output.output import OutputLike
from agentflow.ports.store import Store
from agentflow.specs import ModelOptions, Usage, is_seconds
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import Tool
from agentflow.verdicts import Answer, Approve, Deny, Resolution

__all__ = [
    "Behind",
    "CallArguments",
    "CallOptions",
    "Decisions",
    "Input",
    "ResumeOptions",
    "ResumeStream",
    "StreamOptions",
    "Where",
    "agent_behind",
    "check_decisions",
    "check_timeout",
    "input_of",
    "last_reply",
    "not_open",
    "outer_arguments",
    "put_behind",
    "refuse_keywords",
    "resolve_store",
]

Input: TypeAlias = str | Msg | Sequence[Msg]
"""What a user says to an agent."""

Where: TypeAlias = str | Session | None
"""A session, or its id; None is the agent's own."""

Decisions: TypeAlias = Mapping[str, Resolution] | Iterable[tuple[str, Resolution]]
"""What a suspended call is resumed with: decisions by the keys of `reply.pending`."""


class CallOptions(TypedDict, total=False):
    """What `call` and `resume` take by name besides `output`; `Agent.call` says what each means."""

    session: str | Session | None
    options: ModelOptions | None
    timeout: float | None
    deps: object
    hooks: HookSource


class ResumeOptions(TypedDict, total=False):
    """What `resume` takes by name besides `output`."""

    options: ModelOptions | None
    timeout: float | None
    deps: object
    hooks: HookSource


class StreamOptions(CallOptions, total=False):
    """What `stream` takes by name besides `output`."""

    children: bool
    buffer: int


class ResumeStream(ResumeOptions, total=False):
    """What `resume_stream` takes by name besides `output`."""

    children: bool
    buffer: int


_KEYWORDS: Final = {
    "call": ("output", *CallOptions.__annotations__),
    "stream": ("output", *StreamOptions.__annotations__),
    "resume": ("output", *ResumeOptions.__annotations__),
    "resume_stream": ("output", *ResumeStream.__annotations__),
}


def refuse_keywords(method: str, unknown: Iterable[str]) -> NoReturn:
    """Raise for keywords that a call does not take.

    Raises:
        UsageError: With the one that was probably meant.
    """
    raise unknown_keyword(f"agent.{method}(...)", unknown, _KEYWORDS[method])


class Behind(Protocol):
    """An agent that is a tool."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def config(self) -> LoopConfig:
        """What it gives the loop."""
        ...

    @property
    def own_tools(self) -> Iterable[Tool[..., Any]]:
        """Its tools, those of toolsets left out."""
        ...

    @property
    def live_toolsets(self) -> tuple[LiveToolset, ...]:
        """Its toolsets that are opened and closed."""
        ...

    @property
    def hooks(self) -> Iterable[Hook]:
        """Its hooks."""
        ...


def put_behind(function: Callable[..., Any], agent: Behind) -> None:
    """Note that an agent is a tool itself, on the function behind that tool; elsewhere it would outlive both."""
    vars(function)["agent_behind"] = agent


def agent_behind(function: Callable[..., Any]) -> Behind | None:
    """The agent that is this function's tool; None: it is no agent."""
    return cast("Behind | None", getattr(function, "agent_behind", None))


class CallArguments:
    """What a call, or its continuation, is given.

    Args:
        input: What the user says; None where a call is continued.
        decisions: What a call is continued with; None where one begins.
        session: Where.
        options: Laid over the agent's.
        timeout: Seconds for the whole call.
        deps: What tools and hooks may ask for by type.
        hooks: Added for this call.
        children: Whether its reader gets the events of sub-agents too.
        output: What it is to give; None: what its agent gives.
        new_id: Ids of the messages that are made of texts.

    Attributes:
        messages: The input.

    Raises:
        UsageError: One of them cannot be used.
    """

    __slots__ = ("children", "decisions", "deps", "hooks", "messages", "options", "output", "session", "timeout")

    def __init__(
        self,
        input: str | Msg | Sequence[Msg] | None,  # noqa: A002 - the contract's word
        decisions: Decisions | None,
        session: str | Session | None,
        options: ModelOptions | None,
        timeout: float | None,
        deps: object,
        hooks: HookSource,
        children: bool,
        output: OutputLike[Any] | None,
        new_id: Callable[[str], str],
    ) -> None:
        if decisions is not None:
            self.messages: tuple[Msg, ...] = ()
        elif isinstance(input, str) and input.strip():
            self.messages = (message("user", (text_block(input),), new_id("msg_")),)
        else:
            self.messages = input_of(input, new_id)
        if timeout is not None:
            check_timeout(timeout)
        self.decisions = decisions
        self.session = session
        self.options = options
        self.timeout = timeout
        self.deps = deps
        self.hooks = _of_a_call(hooks) if hooks else ()
        self.children = children
        self.output = output


def _of_a_call(hooks: HookSource) -> tuple[Hook, ...]:
    given = hooks_of(hooks)
    refuse_tools(given, "a call's agent")
    return given


def input_of(given: Any, new_id: Callable[[str], str]) -> tuple[Msg, ...]:
    """What the user says, as messages.

    Raises:
        UsageError: It is empty, or no legal start of a call.
    """
    messages = as_messages(given, new_id)
    if not messages or (isinstance(given, str) and not given.strip()):
        raise UsageError("The input is empty; say something to the agent, or resume(...) a suspended session.")
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise UsageError(
                f"A call's input is user messages (and assistant messages without tool calls), not a {msg.role} message. "
                "A system prompt is the agent's system=; a conversation to start from is Session.fresh(messages=...)."
            )
    return messages


def check_timeout(timeout: float | None) -> None:
    """Refuse a limit that is none."""
    if timeout is not None and not is_seconds(timeout):
        raise UsageError(f"timeout={timeout!r}: it is seconds (a number above 0), or None for no limit.")


def not_open(session: FullSession) -> Exception:
    """Why a plain call is not legal on a session."""
    machine = session.machine
    if machine.state is State.SUSPENDED:
        return SuspendedError(session.id, tuple(p.id for p in machine.pending if p.kind != "parked"))
    return UsageError(
        f"Session {session.id!r} holds an unfinished call (state {machine.state.name}); continue it with "
        "agent.resume(session) before the next one."
    )


def _by_key(session: FullSession, decisions: Decisions) -> Mapping[str, Resolution]:
    """Decisions by key; given as pairs, a key may stand once.

    Raises:
        UsageError: It stands twice.
    """
    if isinstance(decisions, Mapping):
        return cast("Mapping[str, Resolution]", decisions)
    found: dict[str, Resolution] = {}
    for key, decision in decisions:
        if key in found:
            raise UsageError(f"Session {session.id!r}: two decisions are given for {key!r}; give one.")
        found[key] = decision
    return found


def outer_arguments(
    given: CallArguments, session: FullSession
) -> tuple[object, Callable[[Callable[[str], str]], CallArguments]]:
    """What resumes the call that a sub-agent's session is suspended in: its agent, and what makes its arguments.

    Args:
        given: What the sub-agent is resumed with.
        session: The sub-agent's session.

    Raises:
        UsageError: Something was given that the outer call cannot pass on.
    """
    assert session.outer is not None
    owner, outer, use_id = session.outer.owner(), session.outer.session(), session.outer.use_id
    assert outer is not None
    if given.options is not None or given.hooks or given.output is not None:
        raise UsageError(
            f"Session {session.id!r} is a part of session {outer.id!r}, which is resumed with it and passes on neither "
            f"options=, hooks= nor output=. Leave them out, or resume session {outer.id!r} with the agent that it belongs to."
        )
    decisions = {f"{use_id}/{key}": decision for key, decision in _by_key(session, given.decisions or {}).items()}
    return owner, partial(
        CallArguments, None, decisions, outer, None, given.timeout, given.deps, (), given.children, None
    )


def last_reply(session: FullSession) -> Reply[Any]:
    """The reply of the last call on a session, or of the one that is suspended there."""
    machine = session.machine
    ended = machine.ended
    if machine.state is State.SUSPENDED or ended is None:
        waits = Msg.assistant("", id=f"{machine.run_id}-wait"[-40:]) if machine.final is None else machine.final
        return Reply.of(waits, "suspended", machine.run_id, Usage(), session.pending, session.id)
    last = Msg.assistant("", id=f"{ended.run_id}-last"[-40:]) if ended.final is None else ended.final
    return Reply.of(last, ended.outcome, ended.run_id, Usage(), (), session.id)


def check_decisions(
    session: FullSession, given: Decisions, tools: Mapping[str, Tool[..., Any]]
) -> Mapping[str, Resolution]:
    """Refuse decisions that do not fit what the session waits for; nothing has been done yet.

    Args:
        session: The session that holds an open call.
        given: The decisions.
        tools: The agent's.

    Returns:
        The decisions by key.

    Raises:
        UsageError: They do not fit, or the session holds no open call.
    """
    if session.machine.next() == "input":
        raise UsageError(f"Session {session.id!r} is not suspended: there is nothing to resume. Call the agent.")
    decisions = _by_key(session, given)
    pending = {p.id: p for p in session.pending}
    unknown = [key for key in decisions if key not in pending]
    if unknown:
        raise UsageError(f"Session {session.id!r}: no call {unknown} waits for a decision; waiting: {list(pending)}.")
    for key, decision in decisions.items():
        waits = pending[key]
        if not isinstance(decision, Approve | Deny | Answer):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise UsageError(
                f"The decision for {key!r} is {decision!r:.60}; legal are Approve(), Approve(input=...), Deny(reason), "
                "Answer(value)."
            )
        if waits.kind == "external" and isinstance(decision, Approve):
            raise UsageError(
                f"Session {session.id!r}: {key!r} is a call that is answered from outside, so it cannot be approved. Legal are "
                "Answer(value) with its result, or Deny(reason)."
            )
        if isinstance(decision, Approve) and decision.input is not None and waits.tool_use is not None:
            found = _tool_of(session, waits, tools)
            if found is not None:
                _check_edited(session, key, waits.tool_use.replace(input=decision.input), found)
    missing = [key for key, p in pending.items() if key not in decisions and p.kind != "parked"]
    if missing:
        raise UsageError(
            f"Session {session.id!r}: decisions are missing for {missing}; give one for each pending call."
        )
    return decisions


def _tool_of(session: FullSession, waits: Pending, tools: Mapping[str, Tool[..., Any]]) -> Tool[..., Any] | None:
    """The tool of a call that waits, also where it is one of a sub-agent's; None where it cannot be known here."""
    key = waits.id
    while waits.within is not None:
        outer = next((call for call in session.machine.open_calls if call.id == waits.within), None)
        agent = None if outer is None else tools.get(outer.name)
        behind = None if agent is None else agent_behind(agent.function)
        inner = (session.inner or {}).get(waits.within)
        if behind is None or inner is None:
            return None
        session, tools = inner, behind.config.tools
        key = key.removeprefix(f"{waits.within}/")
        found = next((theirs for theirs in session.pending if theirs.id == key), None)
        if found is None:
            return None
        waits = found
    return None if waits.tool_use is None else tools.get(waits.tool_use.name)


def _check_edited(session: FullSession, key: str, use: ToolUseBlock, tool: Tool[..., Any]) -> None:
    try:
        tool.validate(use)
    except ToolArgumentError as error:
        raise UsageError(
            f"Session {session.id!r}: the edited arguments for {key!r} do not fit, so nothing was resumed. {error}"
        ) from error


def resolve_store(store: Store | str) -> Store:
    """The store that is meant: `Agent(store="sqlite:///agentflow.db")` keeps sessions in that database.

    Args:
        store: A store, or a URL as `agentflow.stores.SqlStore` takes it.

    Raises:
        UsageError: It is no URL, and no store.
        StoreError: It is no database that can be used.
    """
    if not isinstance(store, str) and hasattr(store, "load"):
        return store
    if not isinstance(store, str) or "://" not in store:
        raise UsageError(
            f'store={store!r:.60} is no store. Write store="sqlite:///agentflow.db" (a file), '
            'store="postgresql+psycopg://user:password@host/database", MemoryStore(), or a store of your own.'
        )
    return cast("Store", import_module("agentflow.state.sql").SqlStore(store))

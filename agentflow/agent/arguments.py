"""The arguments of a call, checked before its first event: a refused call raises, and fires no event. An argument that
`Agent` does not take is refused with an error that shows agentflow's name for it.

Rules:

1. `CallArguments` is created at the start of a call; later checks concern only the session (rule 2).
2. Checks that depend on the session (`open_call_error`, `check_decisions`) run after the call has acquired the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeAlias, cast

from agentflow._support.ids import derived_id
from agentflow._support.validation import is_a
from agentflow._support.values import NamedTuple, TypedDict
from agentflow.errors import SuspendedError, ToolArgumentError, UsageError, close_to, unknown_keyword
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.registering import refuse_tools
from agentflow.loop.config import LoopConfig
from agentflow.loop.session import FullSession, Session
from agentflow.loop.states import State
from agentflow.tools.live_toolset import LiveToolset
from agentflow.tools.tool import Tool
from agentflow.vocabulary.messages import Msg, Pending, Reply, ToolUseBlock, as_messages, message, text_block, undecided
from agentflow.vocabulary.specs import ModelOptions, Usage, is_seconds
from agentflow.vocabulary.verdicts import Answer, Approve, Deny, Resolution

if TYPE_CHECKING:
    from agentflow.loop.output.output import OutputLike
    from agentflow.vocabulary.ports.store import Store

_HERE: Final = {
    "system": "system_prompt system_message instructions instruction prompt preamble backstory persona",
    "model": "llm lm chat_model model_name model_id model_client client",
    "tools": "functions toolsets toolkits mcp_servers handoffs sub_agents",
    "hooks": "callbacks callback_handler middleware plugins guardrails",
    "max_iterations": "max_turns max_steps max_iter max_loops max_tool_calls recursion_limit",
    "output": "output_type output_schema response_format response_model result_type structured_output",
    "store": "checkpointer memory session_service session_manager",
    "options": "model_settings generation_config model_kwargs temperature max_tokens top_p",
}
"""The names of arguments in other frameworks, by the name of the equivalent argument here."""

_NAMES: Final = {theirs: ours for ours, names in _HERE.items() for theirs in names.split()}


def check_limit(agent: str, limit: int | None) -> None:
    """Refuse an invalid limit.

    Raises:
        UsageError: The limit is not a positive number of turns.
    """
    if limit is not None and (type(limit) is not int or limit < 1):
        raise UsageError(
            f"Agent {agent!r}: queue_limit={limit!r} is invalid; use the maximum number of waiting turns, at "
            "least 1, or None for no limit."
        )


def refuse_unknown(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise for an argument that `Agent` does not take.

    Args:
        names: The names of the arguments that the user passed.
        known: The valid names.

    Raises:
        UsageError: An argument is unknown; the error shows agentflow's name for it, or a similar one.

    Example:
        >>> refuse_unknown(["instructions"], ["system"])
        Traceback (most recent call last):
        agentflow.errors.UsageError: Agent takes no instructions=; here that is system=.
    """
    for name in names:
        if name in known:
            continue
        ours = _NAMES.get(name)
        if ours is not None:
            example = "options=ModelOptions(temperature=..., max_tokens=...)" if ours == "options" else f"{ours}="
            raise UsageError(f"Agent takes no {name}=; here that is {example}.")
        close = close_to(name, known, 2)
        hint = (
            f"did you mean {' or '.join(f'{name}=' for name in close)}?" if close else f"it takes {', '.join(known)}."
        )
        raise UsageError(f"Agent takes no {name}=; {hint}")


Input: TypeAlias = str | Msg | Sequence[Msg]
"""A user's input to an agent."""

Where: TypeAlias = str | Session | None
"""A session, or its id; None means the agent's implicit session."""

Decisions: TypeAlias = Mapping[str, Resolution] | Iterable[tuple[str, Resolution]]
"""The decisions with which a suspended call is resumed, by the keys of `reply.pending`."""


class CallOptions(TypedDict, total=False):
    """The keyword arguments of `call` besides `output`; see `Agent.call`."""

    session: str | Session | None
    options: ModelOptions | None
    timeout: float | None
    deps: object
    hooks: HookSource


class ResumeOptions(TypedDict, total=False):
    """The keyword arguments of `resume` besides `output`."""

    options: ModelOptions | None
    timeout: float | None
    deps: object
    hooks: HookSource


class StreamOptions(CallOptions, total=False):
    """The keyword arguments of `stream` besides `output`."""

    children: bool
    buffer: int


class ResumeStream(ResumeOptions, total=False):
    """The keyword arguments of `resume_stream` besides `output`."""

    children: bool
    buffer: int


_KEYWORDS: Final = {
    "call": ("output", *CallOptions.__annotations__),
    "stream": ("output", *StreamOptions.__annotations__),
    "resume": ("output", *ResumeOptions.__annotations__),
    "resume_stream": ("output", *ResumeStream.__annotations__),
}


class CallRequest(NamedTuple):
    """The arguments of a call or a resume, as its caller wrote them.

    Attributes:
        input: The user's input; None if a call is resumed.
        decisions: The decisions of a resume; None for a new call.
        output: The type of the output; None means the agent's.
        options: The other keyword arguments.
    """

    input: str | Msg | Sequence[Msg] | None
    decisions: Decisions | None
    output: OutputLike[Any] | None
    options: StreamOptions


def refuse_keywords(method: str, options: Mapping[str, object]) -> None:
    """Refuse keyword arguments that a call does not take.

    Raises:
        UsageError: A keyword is unknown; the error names the closest valid one.
    """
    known = _KEYWORDS[method]
    for name in options:
        if name not in known:
            raise unknown_keyword(f"agent.{method}(...)", [key for key in options if key not in known], known)


class ToolableAgent(Protocol):
    """An agent that is wrapped as a tool."""

    @property
    def name(self) -> str:
        """Its name."""
        ...

    @property
    def config(self) -> LoopConfig:
        """The agent's configuration for the loop."""
        ...

    @property
    def own_tools(self) -> Iterable[Tool[..., Any]]:
        """The agent's tools, without the tools of live toolsets."""
        ...

    @property
    def live_toolsets(self) -> tuple[LiveToolset, ...]:
        """The agent's live toolsets, which have to be opened and closed."""
        ...

    @property
    def hooks(self) -> Iterable[Hook]:
        """Its hooks."""
        ...


def set_wrapped_agent(function: Callable[..., Any], agent: ToolableAgent) -> None:
    """Store the agent as an attribute of the tool function that calls it, so that both are released together."""
    vars(function)["wrapped_agent"] = agent


def wrapped_agent(function: Callable[..., Any]) -> ToolableAgent | None:
    """Return the agent that a tool's function calls; None if it calls no agent."""
    return cast("ToolableAgent | None", getattr(function, "wrapped_agent", None))


class CallArguments:
    """The checked arguments of one call or resume.

    Args:
        request: The arguments.
        new_id: The source of ids for messages built from texts.

    Attributes:
        messages: The user's input; empty if a call is resumed.
        decisions: See `CallRequest`.
        output: See `CallRequest`.
        options: The keyword arguments, with a valid `timeout`.
        hooks: The hooks that were added for this call.

    Raises:
        UsageError: An argument is invalid.
    """

    __slots__ = ("decisions", "hooks", "messages", "options", "output")

    def __init__(self, request: CallRequest, new_id: Callable[[str], str]) -> None:
        input, self.decisions, self.output, self.options = request  # noqa: A001 - public name
        if self.decisions is not None:
            self.messages: tuple[Msg, ...] = ()
        # The fast path: most inputs are a text, and need no further checks.
        elif isinstance(input, str) and input.strip():
            self.messages = (message("user", (text_block(input),), new_id("msg_")),)
        else:
            self.messages = input_of(input, new_id)
        timeout, hooks = self.options.get("timeout"), self.options.get("hooks")
        if timeout is not None:
            check_timeout(timeout)
        self.hooks = _of_a_call(hooks) if hooks else ()


def _of_a_call(hooks: HookSource) -> tuple[Hook, ...]:
    checked = hooks_of(hooks)
    refuse_tools(checked, "a call's agent")
    return checked


def input_of(value: Any, new_id: Callable[[str], str]) -> tuple[Msg, ...]:
    """Return the user's input as messages.

    Raises:
        UsageError: The input is empty, or a call cannot begin with it.
    """
    messages = as_messages(value, new_id)
    if not messages or (isinstance(value, str) and not value.strip()):
        raise UsageError("The input is empty. Pass a message, or resume(...) a suspended session.")
    for msg in messages:
        if msg.role not in ("user", "assistant") or msg.tool_uses:
            raise UsageError(
                f"A call's input must be user messages (and assistant messages without tool calls), not a {msg.role} "
                "message. Pass a system prompt as system=; start from an earlier conversation with "
                "Session.fresh(messages=...)."
            )
    return messages


def check_timeout(timeout: float | None) -> None:
    """Refuse an invalid time limit."""
    if timeout is not None and not is_seconds(timeout):
        raise UsageError(f"timeout={timeout!r}: use a number of seconds above 0, or None for no limit.")


def open_call_error(session: FullSession) -> Exception:
    """Return the error for a plain call on a session with an open call."""
    machine = session.machine
    if machine.state is State.SUSPENDED:
        return SuspendedError(session.id, tuple(wait.id for wait in undecided(machine.suspension.pending)))
    return UsageError(
        f"Session {session.id!r} has an unfinished call (state {machine.state.name}). Continue that call with "
        "agent.resume(session) before the next call."
    )


def _by_key(session: FullSession, decisions: Decisions) -> Mapping[str, Resolution]:
    """Return decisions by key. In decisions given as pairs, each key must be unique.

    Raises:
        UsageError: A key appears twice, or an item is not a pair.
    """
    if isinstance(decisions, Mapping):
        return cast("Mapping[str, Resolution]", decisions)
    found: dict[str, Resolution] = {}
    for pair in decisions:
        if not is_a(pair, tuple):
            raise UsageError(
                f"Session {session.id!r}: the decisions contain {pair!r:.60}, which names no pending call. Pass "
                "{reply.pending[0].id: Approve()}, or pairs of an id and a decision."
            )
        key, decision = pair
        if key in found:
            raise UsageError(f"Session {session.id!r}: there are two decisions for {key!r}. Pass only one.")
        found[key] = decision
    return found


def outer_request(arguments: CallArguments, session: FullSession) -> tuple[object, CallRequest]:
    """Return the agent of the outer call in which a sub-agent's session is suspended, and the request to resume that call.

    Args:
        arguments: The arguments with which the sub-agent is resumed.
        session: The sub-agent's session.

    Raises:
        UsageError: An argument was given that the outer call cannot pass on to the sub-agent.
    """
    assert session.outer is not None
    owner, outer, use_id = session.outer.owner(), session.outer.session(), session.outer.use_id
    assert outer is not None
    options = arguments.options
    if options.get("options") is not None or arguments.hooks or arguments.output is not None:
        raise UsageError(
            f"Session {session.id!r} belongs to session {outer.id!r}, so it is resumed without options=, "
            f"hooks= and output=. Leave them out, or resume session {outer.id!r} with the agent that owns it."
        )
    decisions = {f"{use_id}/{key}": decision for key, decision in _by_key(session, arguments.decisions or {}).items()}
    return owner, CallRequest(None, decisions, None, {**options, "session": outer})


def last_reply(session: FullSession) -> Reply[Any]:
    """Return the reply of the last call on a session, or of the call that is suspended there."""
    machine = session.machine
    ended = machine.ended
    if machine.state is State.SUSPENDED or ended is None:
        msg = Msg.assistant("", id=derived_id(machine.run_id, "-wait")) if machine.final is None else machine.final
        return Reply.of(msg, "suspended", machine.run_id, Usage(), session.pending, session.id)
    last = Msg.assistant("", id=derived_id(ended.run_id, "-last")) if ended.final is None else ended.final
    return Reply.of(last, ended.outcome, ended.run_id, Usage(), (), session.id)


def check_decisions(
    session: FullSession, unchecked: Decisions, tools: Mapping[str, Tool[..., Any]]
) -> Mapping[str, Resolution]:
    """Check, before anything is done, that decisions fit the session's open call.

    Args:
        session: The session with an open call.
        unchecked: The decisions.
        tools: The agent's tools, which validate edited arguments.

    Returns:
        The decisions by key.

    Raises:
        UsageError: A decision is missing or invalid, or the session has no open call.
    """
    if session.machine.next() == "input":
        raise UsageError(
            f"Session {session.id!r} is not suspended, so there is nothing to resume. Use agent.call(...) instead."
        )
    decisions = _by_key(session, unchecked)
    pending = {p.id: p for p in session.pending}
    unknown = [key for key in decisions if key not in pending]
    if unknown:
        raise UsageError(f"Session {session.id!r}: no call {unknown} waits for a decision; waiting: {list(pending)}.")
    for key, decision in decisions.items():
        wait = pending[key]
        if not isinstance(cast("object", decision), Approve | Deny | Answer):
            raise UsageError(
                f"The decision for {key!r} is {decision!r:.60}; use Approve(), Approve(input=...), Deny(reason), "
                "Answer(value)."
            )
        if wait.kind == "external" and isinstance(decision, Approve):
            raise UsageError(
                f"Session {session.id!r}: {key!r} is a call of an external tool, so it cannot be approved. "
                "Use Answer(value) with its result, or Deny(reason)."
            )
        if isinstance(decision, Approve) and decision.input is not None and wait.tool_use is not None:
            found = _tool_of(session, wait, tools)
            if found is not None:
                _check_edited(session, key, wait.tool_use.replace(input=decision.input), found)
    missing = [wait.id for wait in undecided(pending.values(), decisions)]
    if missing:
        raise UsageError(
            f"Session {session.id!r}: decisions are missing for {missing}. Pass one for each pending call."
        )
    return decisions


def _tool_of(session: FullSession, wait: Pending, tools: Mapping[str, Tool[..., Any]]) -> Tool[..., Any] | None:
    """Return the tool of a pending call, including calls of sub-agents; None if the tool is not known here."""
    key = wait.id
    # One level down for each sub-agent; each has its own session and tools.
    while wait.within is not None:
        outer = next((call for call in session.machine.open_calls if call.id == wait.within), None)
        agent = None if outer is None else tools.get(outer.name)
        subagent = None if agent is None else wrapped_agent(agent.function)
        inner = (session.inner or {}).get(wait.within)
        if subagent is None or inner is None:
            return None
        session, tools = inner, subagent.config.tools
        key = key.removeprefix(f"{wait.within}/")
        found = next((inner_wait for inner_wait in session.pending if inner_wait.id == key), None)
        if found is None:
            return None
        wait = found
    return None if wait.tool_use is None else tools.get(wait.tool_use.name)


def _check_edited(session: FullSession, key: str, use: ToolUseBlock, tool: Tool[..., Any]) -> None:
    try:
        tool.validate(use)
    except ToolArgumentError as error:
        raise UsageError(
            f"Session {session.id!r}: the edited arguments for {key!r} are invalid, so nothing was resumed. {error}"
        ) from error


def resolve_store(store: Store | str) -> Store:
    """Return the store for the argument `store=`: `Agent(store="sqlite:///agentflow.db")` keeps sessions in that
    database.

    Args:
        store: A store, or a URL for `agentflow.state.SqlStore`.

    Raises:
        UsageError: The argument is neither a URL nor a store.
        StoreError: The database cannot be used.
    """
    if not isinstance(store, str | type) and hasattr(store, "load"):
        return store
    if not isinstance(store, str) or "://" not in store:
        raise UsageError(
            f'store={store!r:.60} is not a store. Write store="sqlite:///agentflow.db" (a file), '
            'store="postgresql+psycopg://user:password@host/database", MemoryStore(), or your own store.'
        )
    # Imported by name, because `state` is a higher layer (`tests/test_layers.py`).
    return cast("Store", import_module("agentflow.state.sql").SqlStore(store))

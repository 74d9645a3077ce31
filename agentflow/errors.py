"""All errors that agentflow raises (layer 0: imports no other module of agentflow).

Rules:

1. The base class is `AgentFlowError`; its subclasses name the part at fault: `UsageError` the caller, `ModelError` the
   provider, `ToolError` a tool, `HookError` a hook, `StoreError` the store. `ScriptError`, a mistake in a test, does not
   inherit from it.
2. A message names the action, the state, the legal alternatives, and the hook, tool or model.
3. Cancellation (`asyncio.CancelledError`), `KeyboardInterrupt` and `SystemExit` are never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

__all__ = [
    "AgentFlowError",
    "CallTimeoutError",
    "DuplicateNameError",
    "FailureNote",
    "FetchError",
    "HookContractError",
    "HookError",
    "HookTimeoutError",
    "MissingOutputError",
    "ModelError",
    "ModelFault",
    "NeverEndsError",
    "NotIterableError",
    "NotRegisteredError",
    "OutputError",
    "QueueFullError",
    "SafeExecutionError",
    "SandboxError",
    "ScriptError",
    "SessionConflictError",
    "ShutdownError",
    "StoreError",
    "SuspendedError",
    "ToolArgumentError",
    "ToolContractError",
    "ToolError",
    "ToolNotFoundError",
    "TranscriptError",
    "TurnDeniedError",
    "TurnTimeoutError",
    "UnsupportedContentError",
    "UsageError",
    "Veto",
    "WrongRunMethodError",
    "close_to",
    "unknown_keyword",
]


ModelFault: TypeAlias = Literal[
    "context_overflow", "quota", "authentication", "content_policy", "rate_limit", "unsupported_content"
]
"""Failures of a model that hooks can react to."""


class FailureNote(str):
    """A note on an exception, such as `error.add_note(FailureNote("raised by hook 'x' on PostCall"))`.

    The note is for the code that handles the exception. A model never sees the note; it reads a tool's exception as
    the tool raised it.
    """

    __slots__ = ()


class AgentFlowError(Exception):
    """The base class of all errors of agentflow."""


class UsageError(AgentFlowError):
    """The caller made a mistake: invalid configuration, an overlapping call, a wrong argument."""


class TranscriptError(UsageError):
    """A message or result does not fit the conversation (see `agentflow.vocabulary.transcript.Transcript`)."""


class MissingOutputError(UsageError):
    """`Reply.output` was read on a reply without a typed output."""


class NotIterableError(UsageError, TypeError):
    """A Mono or a Flux was read with a plain `for` (or `list`, unpacking), which cannot wait for its values.

    Args:
        kind: The kind of stream, such as `AgentFlux`.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"A plain `for` (or list(), unpacking) over {kind} runs nothing: its values come later. Read a stream "
            "with `async for item in stream`, one value with `await mono`; from synchronous code use "
            "`for item in stream.to_list().block()` and `mono.block()`."
        )


class NotRegisteredError(UsageError, LookupError):
    """A name was looked up that is not registered.

    Args:
        kind: The kind of object, such as `tool`.
        name: The requested name.
        known: The registered names.
        close: The registered names that look similar.
    """

    def __init__(self, kind: str, name: str, known: tuple[str, ...], close: tuple[str, ...] = ()) -> None:
        hint = f" Did you mean {' or '.join(map(repr, close))}?" if close else ""
        super().__init__(
            f"No {kind} is registered as {name!r}.{hint} Registered here: {', '.join(known) or 'nothing'}."
        )
        self.kind = kind
        self.name = name
        self.known = known


class DuplicateNameError(UsageError, ValueError):
    """Two different objects were registered under one name.

    Args:
        kind: The kind of the objects, such as `tool`.
        name: The name.
        first: The object that has the name, and where it was defined and registered.
        second: The other object, likewise.
        fix: A legal alternative.
    """

    def __init__(self, kind: str, name: str, first: str, second: str, fix: str) -> None:
        super().__init__(f"Two {kind}s are registered as {name!r}: {first}, and {second}. {fix}")
        self.kind = kind
        self.name = name


class Veto(AgentFlowError):  # noqa: N818 - control flow, not a fault
    """Raised by a hook (or passed to `Mono.error`) instead of returning `Deny(reason)`.

    Args:
        reason: The reason, for the model or the caller.

    Example:
        >>> raise Veto("not on a Friday")
        Traceback (most recent call last):
        agentflow.errors.Veto: not on a Friday
    """

    def __init__(self, reason: str = "denied") -> None:
        super().__init__(reason)
        self.reason = reason


class CallTimeoutError(AgentFlowError, TimeoutError):
    """A call exceeded its `timeout=`; finished work is in the history.

    Args:
        timeout: The limit, in seconds.
        agent: The agent's name.
    """

    def __init__(self, timeout: float, agent: str) -> None:
        super().__init__(
            f"The call on agent {agent!r} did not end within timeout={timeout:g} s. Finished tool results are kept in "
            "the session; call again to continue, or give it more time."
        )
        self.timeout = timeout


class SuspendedError(AgentFlowError):
    """A new call was made on a suspended session. Call `agent.resume(session, decisions)` instead.

    Args:
        session: The session's id.
        pending: The tool-use ids that wait for a decision.
    """

    def __init__(self, session: str, pending: tuple[str, ...]) -> None:
        if pending:
            what = f"waits for {', '.join(pending)}. Answer with agent.resume({session!r}, "
            what += "{id: Approve() | Deny(reason) | Answer(value)})"
        else:
            what = f"is parked. Continue it with agent.resume({session!r})"
        super().__init__(f"Session {session!r} is suspended and {what} before the next plain call.")
        self.session = session
        self.pending = pending


class ShutdownError(AgentFlowError):
    """An agent is shutting down: no new call begins, and running calls are stopped. A later process can continue them.

    Args:
        agent: The agent's name.
        session: The session's id; None if a `GracefulShutdown` block was stopped with its agents.
        stopped: Whether the call was running; if False, it did not begin.
    """

    def __init__(self, agent: str, session: str | None, *, stopped: bool) -> None:
        if session is None:
            what = "its calls and this block were stopped. agent.unfinished() lists the calls that the next process can resume"
        elif stopped:
            what = f"its call on session {session!r} was stopped; finished work is kept. Continue it in the next"
            what += f" process: agent.resume({session!r})"
        else:
            what = f"the call on session {session!r} did not begin, and nothing of it is stored. Call again in the next"
            what += " process"
        super().__init__(f"Agent {agent!r} is shutting down: {what}.")
        self.agent = agent
        self.session = session
        self.stopped = stopped


class ModelError(AgentFlowError):
    """A model provider failed or sent an invalid answer; the provider's own error is the `__cause__`.

    Args:
        message: A description of the failure.
        retryable: Whether the same request may succeed later.
        retry_after: The number of seconds that the provider requires to wait, if any.
        status: The HTTP status, if any.
        model: The model's name.
        kind: The kind of failure, if hooks can react to it: `"context_overflow"`, `"quota"`, `"authentication"`,
            `"content_policy"`, `"rate_limit"`, `"unsupported_content"`.
    """

    def __init__(
        self,
        message: str,
        *,
        retryable: bool = False,
        retry_after: float | None = None,
        status: int | None = None,
        model: str | None = None,
        kind: ModelFault | None = None,
    ) -> None:
        super().__init__(message)
        self.kind = kind
        self.retryable = retryable
        self.retry_after = retry_after
        self.status = status
        self.model = model


class UnsupportedContentError(ModelError):
    """The request contains content that the model's provider does not accept; nothing was sent.

    Args:
        model: The model's name.
        shown: The content, as shown in messages.
        why: The reason, after "it": such as "takes no audio; it takes images".
        media_type: The media type of the content.
    """

    def __init__(self, model: str, shown: str, why: str, media_type: str) -> None:
        super().__init__(
            f"The model {model!r} cannot be sent {shown}: it {why}. Nothing was sent. Send it in another form, or use "
            "another model.",
            model=model,
            kind="unsupported_content",
        )
        self.media_type = media_type


class FetchError(AgentFlowError):
    """The content of an address could not be fetched, or fetching it is not allowed.

    Args:
        url: The address.
        why: The reason.
        retryable: Whether another attempt may succeed later.
    """

    def __init__(self, url: str, why: str, *, retryable: bool = False) -> None:
        shown = url.partition("?")[0]  # the query may contain a key
        super().__init__(f"{shown} was not fetched: {why}.")
        self.url = url
        self.retryable = retryable


class OutputError(ModelError):
    """None of the model's answers was accepted as the requested output.

    Args:
        form: The requested type of output.
        times: How often the model answered.
        problem: The problem with the last answer, as reported to the model.
        answer: The last answer, a `Msg`, which is not in the history.
        model: The model's name.
    """

    def __init__(self, form: str, times: int, problem: str, answer: object, model: str) -> None:
        often = "once" if times == 1 else f"{times} times"
        super().__init__(
            f"The model answered {often}, and no answer was accepted as output={form}. The last time: "
            f"{problem.rstrip('.')}. More attempts: Output(..., retries={times}); another method: Output(..., "
            "via='tool').",
            model=model or None,
        )
        self.form = form
        self.times = times
        self.problem = problem
        self.answer = answer


class ScriptError(BaseException):  # like a test framework's own failures
    """A scripted model received more requests than its script has replies, or some replies were not used.

    This is a mistake in a test, so it is not an `Exception`: handlers in the code under test (tools of sub-agents,
    `on_failure`, retries, fallbacks, judges) do not catch it, and it reaches the test.
    """


class ToolError(AgentFlowError):
    """A failure of a tool; a tool should raise it to show the model how to correct the call.

    The model reads the text of a `ToolError` unchanged. Any other exception of a tool reaches the model with the name of
    its class, and is logged as a warning with its traceback, because it may be a bug.

    Example:
        >>> raise ToolError("There is no customer 17; the ids begin with C-, such as C-17.")
        Traceback (most recent call last):
        agentflow.errors.ToolError: There is no customer 17; the ids begin with C-, such as C-17.
    """


class ToolNotFoundError(ToolError):
    """A tool was requested by a name that is not registered.

    Args:
        name: The requested name.
        known: The registered names.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        tools = ", ".join(known) if known else "none"
        super().__init__(f"There is no tool named {name!r}. Known tools: {tools}.")
        self.name = name
        self.known = known


class ToolArgumentError(ToolError):
    """The arguments of a tool call do not fit its signature; the message names each wrong field."""


class ToolContractError(ToolError, UsageError):
    """A tool violates the contract of its `type`; the tool's author must fix it.

    Args:
        tool: The tool's name.
        type: The tool's type, such as `completion_check`.
        got: The actual behaviour or value.
        demand: The contract of the type.
    """

    def __init__(self, tool: str, type: str, got: str, demand: str) -> None:  # noqa: A002 - as the tool's attribute
        super().__init__(f"Tool {tool!r} has type={type!r} and {got}. Such a tool {demand}.")
        self.tool = tool
        self.type = type


class TurnTimeoutError(ToolError, TimeoutError):
    """A tool exceeded its time limit and was cancelled.

    Args:
        tool: The tool's name.
        timeout: The limit, in seconds.
        turn: The id of the turn (within a call, the id of the tool use).
        late: Whether the tool ignored the cancellation and finished later; its result is discarded.
    """

    def __init__(self, tool: str, timeout: float, turn: str = "", late: bool = False) -> None:
        dropped = " It ignored the cancellation and finished later; that result was discarded." if late else ""
        super().__init__(f"Tool {tool!r} did not finish within {timeout:g} s and was cancelled.{dropped}")
        self.tool = tool
        self.timeout = timeout
        self.turn = turn
        self.late = late


class TurnDeniedError(ToolError):
    """A turn outside a call (run directly or by a queue) was denied by a hook, or lacks a required approval.

    Args:
        tool: The tool's name.
        reason: The reason.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"The turn of tool {tool!r} was denied: {reason}")
        self.tool = tool
        self.reason = reason


class WrongRunMethodError(ToolError):
    """A streaming tool was run like a tool with a single value, or the other way round."""


class SafeExecutionError(ToolError):
    """A turn was run or changed while it was already running."""


class QueueFullError(UsageError):
    """A turn was put into a full queue.

    Args:
        agent: The agent that owns the queue.
        size: The number of waiting turns.
        why: Why the turn could not wait for a free slot.
    """

    def __init__(self, agent: str, size: int, why: str) -> None:
        super().__init__(
            f"The queue of agent {agent!r} is full: {size} turns wait, and {why}. Let it run (agent.run()), put the "
            "turn later, or give the agent a larger queue_limit."
        )
        self.agent = agent


class NeverEndsError(UsageError):
    """A deadlock: a turn waits for a turn in a queue that cannot continue before the first one has ended.

    Args:
        way: The names of the agents with queues that wait for each other: a cycle that starts and ends with the same agent.
    """

    def __init__(self, way: tuple[str, ...]) -> None:
        alone = len(way) == 2  # there and back
        line = " → ".join(way)
        why = (
            f"agent {way[0]!r} runs one turn at a time"
            if alone
            else f"{line}: each of these agents waits for the next one"
        )
        super().__init__(
            f"The current turn would wait for a queue that cannot continue until this turn has ended ({why}), so neither "
            "would ever end. Send a turn without awaiting its receipt there, or await it after the turn."
        )
        self.way = way


class HookError(AgentFlowError):
    """A hook violated its contract (an exception that the hook raises is not wrapped)."""


class HookContractError(HookError, UsageError):
    """A hook returned a value that is not legal for its event.

    Args:
        hook: The hook's name.
        event: The event's name.
        got: The returned value.
        legal: The legal values.
    """

    def __init__(self, hook: str, event: str, got: str, legal: str) -> None:
        super().__init__(f"Hook {hook!r} answered {event} with {got}. Allowed answers: {legal}.")
        self.hook = hook
        self.event = event


class HookTimeoutError(HookError, TimeoutError):
    """A hook exceeded its own `timeout`.

    Args:
        hook: The hook's name.
        event: The event's name.
        timeout: The limit, in seconds.
    """

    def __init__(self, hook: str, event: str, timeout: float) -> None:
        super().__init__(f"Hook {hook!r} did not finish handling {event} within its timeout of {timeout:g} s.")
        self.hook = hook
        self.event = event
        self.timeout = timeout


class SandboxError(AgentFlowError):
    """A sandbox for code does not work, or a program behaved differently when it ran again."""


class StoreError(AgentFlowError):
    """A session store could not perform an operation; the message shows the fix.

    Args:
        message: A description of the failure.
        retryable: Whether the same operation may succeed later: the database was locked, full, or unreachable.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class SessionConflictError(StoreError):
    """Another process has written to the session since it was read."""


def close_to(name: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> tuple[str, ...]:
    """Return the known names that are similar to a name, closest first; for error messages.

    Example:
        >>> close_to("prioritty", ["priority", "timeout"])
        ('priority',)
    """
    from difflib import get_close_matches

    return tuple(get_close_matches(name, list(known), most, cutoff))


def unknown_keyword(
    what: str, names: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> UsageError:
    """Return the error for unknown keyword arguments of a function, with the closest legal ones.

    Args:
        what: The function, as users write it.
        names: The unknown keywords.
        known: The legal keywords.
        elsewhere: Keywords of other libraries, with their names in agentflow.

    Example:
        >>> raise unknown_keyword("agent.call(...)", ["sesion"], ["session", "timeout"])
        Traceback (most recent call last):
        agentflow.errors.UsageError: agent.call(...) takes no sesion=; did you mean session=?
    """
    name, known = next(iter(names)), tuple(known)
    right = (elsewhere or {}).get(name)
    close = (right,) if right is not None else close_to(name, known, 2)
    meant = f"did you mean {' or '.join(f'{name}=' for name in close)}?" if close else f"it takes {', '.join(known)}."
    return UsageError(f"{what} takes no {name}=; {meant}")

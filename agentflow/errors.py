"""Every error that agentflow raises (layer 0: imports nothing of ours).

Rules:

1. One root, `AgentFlowError`; below it the families say who has to act: `UsageError` you, `ModelError` the provider,
   `ToolError` a tool, `HookError` a hook, `StoreError` the store. Apart from it stands `ScriptError`, a test's mistake.
2. A message says what was done, in what state, what would have been legal, and who did it.
3. Cancellation (`asyncio.CancelledError`), `KeyboardInterrupt` and `SystemExit` are never wrapped.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Literal, TypeAlias

__all__ = [
    "AgentFlowError",
    "Aside",
    "CallTimeoutError",
    "DuplicateNameError",
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
"""Failures of a model that hooks can do something about."""


class Aside(str):
    """A note on somebody's exception about what happened around it: `error.add_note(Aside("while ..., hook 'x' failed"))`.

    It is for whoever handles the exception. A model is not told: it reads a tool's exception as the tool raised it.
    """

    __slots__ = ()


class AgentFlowError(Exception):
    """The root of every error of this package."""


class UsageError(AgentFlowError):
    """The caller did something that is not legal here: bad configuration, an overlapping call, a wrong argument."""


class TranscriptError(UsageError):
    """A message or result does not fit the conversation as it stands (see `agentflow.transcript.Transcript`)."""


class MissingOutputError(UsageError):
    """`Reply.output` was read on a reply that carries no typed output."""


class NotIterableError(UsageError, TypeError):
    """A Mono or a Flux was read with a plain `for` (or `list`, unpacking), which cannot wait for what it gives.

    Args:
        kind: What was to be read, such as `AgentFlux`.
    """

    def __init__(self, kind: str) -> None:
        super().__init__(
            f"A plain `for` (or list(), unpacking) over {kind} runs nothing: its values come later. Read a stream "
            "with `async for item in stream`, one value with `await mono`; from synchronous code use "
            "`for item in stream.to_list().block()` and `mono.block()`."
        )


class NotRegisteredError(UsageError, LookupError):
    """A name was looked up that nobody registered.

    Args:
        kind: What was looked for, such as `tool`.
        name: The name that was asked for.
        known: The names that exist here.
        close: Those of them that look like it.
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
    """Two different things were registered under one name.

    Args:
        kind: What they are, such as `tool`.
        name: The name.
        first: What has the name, and where it was written and registered.
        second: What was to get it, likewise.
        fix: What would be legal.
    """

    def __init__(self, kind: str, name: str, first: str, second: str, fix: str) -> None:
        super().__init__(f"Two {kind}s are registered as {name!r}: {first}, and {second}. {fix}")
        self.kind = kind
        self.name = name


class Veto(AgentFlowError):  # noqa: N818 - a hook raises a veto; it is control flow that reads as a word, not a fault
    """Raised by a hook (or signalled through `Mono.error`), it equals returning `Deny(reason)`.

    Args:
        reason: What the model or the caller is told.

    Example:
        >>> raise Veto("not on a Friday")
        Traceback (most recent call last):
        agentflow.errors.Veto: not on a Friday
    """

    def __init__(self, reason: str = "denied") -> None:
        super().__init__(reason)
        self.reason = reason


class CallTimeoutError(AgentFlowError, TimeoutError):
    """A call passed its `timeout=`; what was done so far is in the history.

    Args:
        timeout: The limit, in seconds.
        agent: The agent's name.
    """

    def __init__(self, timeout: float, agent: str) -> None:
        super().__init__(
            f"The call on agent {agent!r} did not end within timeout={timeout:g} s. Finished tool results are kept in "
            "the session; call again to go on, or give it more time."
        )
        self.timeout = timeout


class SuspendedError(AgentFlowError):
    """A plain call was made on a session whose round is open: `agent.resume(session, decisions)` is what is legal.

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
    """An agent shuts down: no call begins any more, and one that was running stops; a later process goes on with it.

    Args:
        agent: The agent's name.
        session: The session's id; None: a block of code ends with its agents.
        stopped: Whether the call was running; else it did not begin.
    """

    def __init__(self, agent: str, session: str | None, *, stopped: bool) -> None:
        if session is None:
            what = "its calls have stopped, and with them this block. agent.unfinished() lists what the next process can resume"
        elif stopped:
            what = f"its call on session {session!r} was stopped, with everything kept that is done. Continue it in the next"
            what += f" process: agent.resume({session!r})"
        else:
            what = (
                f"so the call on session {session!r} did not begin, and nothing of it is stored. Call again in the next"
            )
            what += " process"
        super().__init__(f"Agent {agent!r} is shutting down: {what}.")
        self.agent = agent
        self.session = session
        self.stopped = stopped


class ModelError(AgentFlowError):
    """A model provider failed or answered nonsense; the provider's own error is the `__cause__`.

    Args:
        message: What happened.
        retryable: Whether the same request may succeed later.
        retry_after: Seconds that the provider asked to wait, if it said so.
        status: The HTTP status, if there was one.
        model: The model's name.
        kind: What it was, where hooks can do something about it: `"context_overflow"`, `"quota"`, `"authentication"`,
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
    """A model was to be shown what its provider does not take; nothing was sent.

    Args:
        model: The model's name.
        shown: What was to be sent, as it is shown.
        why: What the model takes in its place.
        media_type: The type of what was to be sent.
    """

    def __init__(self, model: str, shown: str, why: str, media_type: str) -> None:
        super().__init__(
            f"The model {model!r} cannot be sent {shown}: it {why}. Nothing was sent. Give it in another form, or ask "
            "another model.",
            model=model,
            kind="unsupported_content",
        )
        self.media_type = media_type


class FetchError(AgentFlowError):
    """The content of an address could not be fetched, or is not to be.

    Args:
        url: The address.
        why: What stands in the way.
        retryable: Whether it may succeed later.
    """

    def __init__(self, url: str, why: str, *, retryable: bool = False) -> None:
        shown = url.partition("?")[0]  # what stands behind it may be a key
        super().__init__(f"{shown} was not fetched: {why}.")
        self.url = url
        self.retryable = retryable


class OutputError(ModelError):
    """No answer of the model was accepted as the output that the call asked for, as often as it was asked.

    Args:
        form: What was asked for.
        times: How often the model answered.
        problem: What is wrong with its last answer, as the model was told.
        answer: That answer, a `Msg`; it is in the error and not in the history.
        model: The model's name.
    """

    def __init__(self, form: str, times: int, problem: str, answer: object, model: str) -> None:
        often = "once" if times == 1 else f"{times} times"
        super().__init__(
            f"The model answered {often}, and no answer was accepted as output={form}. The last time: {problem.rstrip('.')}. "
            f"More attempts: Output(..., retries={times}); another way of asking: Output(..., via='tool').",
            model=model or None,
        )
        self.form = form
        self.times = times
        self.problem = problem
        self.answer = answer


class ScriptError(BaseException):  # like a test framework's own failures
    """A scripted model was asked for more than its script holds, or the script was not used up.

    It tells of a mistake in a test, so it is no `Exception`: whatever handles failures in what is tested (tools of
    sub-agents, `on_failure`, retries, fallbacks, judges) lets it pass, and it reaches the test.
    """


class ToolError(AgentFlowError):
    """What can go wrong with one tool; and what a tool raises to tell the model what it should do instead.

    The model reads the text of a plain `ToolError` as it is. Any other exception that leaves a tool reaches the model too,
    with the name of its class, and is logged as a warning with its traceback: it may be a bug.

    Example:
        >>> raise ToolError("There is no customer 17; the ids begin with C-, such as C-17.")
        Traceback (most recent call last):
        agentflow.errors.ToolError: There is no customer 17; the ids begin with C-, such as C-17.
    """


class ToolNotFoundError(ToolError):
    """A tool was asked for by a name that nobody registered.

    Args:
        name: The name that was asked for.
        known: The names that exist here.
    """

    def __init__(self, name: str, known: tuple[str, ...]) -> None:
        tools = ", ".join(known) if known else "none"
        super().__init__(f"There is no tool named {name!r}. Known tools: {tools}.")
        self.name = name
        self.known = known


class ToolArgumentError(ToolError):
    """The arguments of a tool call do not fit its signature; the message names each field that is wrong."""


class ToolContractError(ToolError, UsageError):
    """A tool does not keep what its `type` promises: its author has to act.

    Args:
        tool: The tool's name.
        type: Its type, such as `completion_check`.
        got: What it does or gave instead.
        demand: What the type demands.
    """

    def __init__(self, tool: str, type: str, got: str, demand: str) -> None:  # noqa: A002 - as the tool's attribute
        super().__init__(f"Tool {tool!r} has type={type!r} and {got}. Such a tool {demand}.")
        self.tool = tool
        self.type = type


class TurnTimeoutError(ToolError, TimeoutError):
    """A tool passed its time limit and was cancelled.

    Args:
        tool: The tool's name.
        timeout: The limit, in seconds.
        turn: The id of the turn (in a call: of the tool use).
        late: Whether it ignored that and finished later; what it made then is dropped.
    """

    def __init__(self, tool: str, timeout: float, turn: str = "", late: bool = False) -> None:
        dropped = " It finished all the same, later: that came too late and was dropped." if late else ""
        super().__init__(f"Tool {tool!r} did not finish within {timeout:g} s and was cancelled.{dropped}")
        self.tool = tool
        self.timeout = timeout
        self.turn = turn
        self.late = late


class TurnDeniedError(ToolError):
    """A turn that was run by hand or by a queue was refused: a hook denied it, or it needs an approval that it has not.

    Args:
        tool: The tool's name.
        reason: Why.
    """

    def __init__(self, tool: str, reason: str) -> None:
        super().__init__(f"The turn of tool {tool!r} was denied: {reason}")
        self.tool = tool
        self.reason = reason


class WrongRunMethodError(ToolError):
    """A streaming tool was run as a single-value one, or the other way round."""


class SafeExecutionError(ToolError):
    """A turn was run or changed while it was already running."""


class QueueFullError(UsageError):
    """A turn was put into a queue that has no place left.

    Args:
        agent: The agent whose queue it is.
        size: How many turns wait in it.
        why: Why the turn could not wait for a place.
    """

    def __init__(self, agent: str, size: int, why: str) -> None:
        super().__init__(
            f"The queue of agent {agent!r} is full: {size} turns wait, and {why}. Let it run (agent.run()), put the turn "
            "later, or give the agent a larger queue_limit."
        )
        self.agent = agent


class NeverEndsError(UsageError):
    """A turn waits for a turn of a queue that cannot go on before it has ended.

    Args:
        way: The names of the agents whose queues wait for each other, from the first back to it.
    """

    def __init__(self, way: tuple[str, ...]) -> None:
        alone = len(way) == 2  # there and back
        line = " → ".join(way)
        why = (
            f"agent {way[0]!r} runs one at a time" if alone else f"{line}: each of these agents waits for the next one"
        )
        super().__init__(
            f"This is awaited within a turn that would have to end first ({why}), so neither would ever answer. Send a turn "
            "without awaiting its receipt there, or await it after the turn."
        )
        self.way = way


class HookError(AgentFlowError):
    """The family of what a hook can do wrong by contract (a hook's own exception stays itself)."""


class HookContractError(HookError, UsageError):
    """A hook returned something that is not legal for the event it was given.

    Args:
        hook: The hook's name.
        event: The event's name.
        got: What came back.
        legal: What would have been legal.
    """

    def __init__(self, hook: str, event: str, got: str, legal: str) -> None:
        super().__init__(f"Hook {hook!r} answered {event} with {got}. Legal here: {legal}.")
        self.hook = hook
        self.event = event


class HookTimeoutError(HookError, TimeoutError):
    """A hook passed its own `timeout`.

    Args:
        hook: The hook's name.
        event: The event's name.
        timeout: The limit, in seconds.
    """

    def __init__(self, hook: str, event: str, timeout: float) -> None:
        super().__init__(f"Hook {hook!r} did not answer {event} within its timeout of {timeout:g} s.")
        self.hook = hook
        self.event = event
        self.timeout = timeout


class StoreError(AgentFlowError):
    """A session store could not do what was asked; the message says what to do about it.

    Args:
        message: What happened.
        retryable: Whether the same may succeed later: the database was locked, full, or could not be reached.
    """

    def __init__(self, message: str, *, retryable: bool = False) -> None:
        super().__init__(message)
        self.retryable = retryable


class SessionConflictError(StoreError):
    """Somebody else has written to the session since it was read."""


def close_to(name: str, known: Iterable[str], most: int = 3, cutoff: float = 0.6) -> tuple[str, ...]:
    """The known names that somebody may have meant, the closest first; for the texts of errors.

    Example:
        >>> close_to("prioritty", ["priority", "timeout"])
        ('priority',)
    """
    from difflib import get_close_matches

    return tuple(get_close_matches(name, list(known), most, cutoff))


def unknown_keyword(
    what: str, given: Iterable[str], known: Iterable[str], elsewhere: Mapping[str, str] | None = None
) -> UsageError:
    """Return the error about keyword arguments that a function does not take, with those that were probably meant.

    Args:
        what: The function, as users write it.
        given: The unknown keywords.
        known: Those that it takes.
        elsewhere: What other libraries call them, and what they are called here.

    Example:
        >>> raise unknown_keyword("agent.call(...)", ["sesion"], ["session", "timeout"])
        Traceback (most recent call last):
        agentflow.errors.UsageError: agent.call(...) takes no sesion=; did you mean session=?
    """
    name, known = next(iter(given)), tuple(known)
    right = (elsewhere or {}).get(name)
    close = (right,) if right is not None else close_to(name, known, 2)
    meant = f"did you mean {' or '.join(f'{one}=' for one in close)}?" if close else f"it takes {', '.join(known)}."
    return UsageError(f"{what} takes no {name}=; {meant}")

"""The steps of a workflow: `ask` an agent, `use` a tool; `gather` and `race` run several steps at the same time.

Rules:

1. A step can only be awaited in a workflow's function. It is a tool call of the workflow's agent, so all rules of tool
   calls apply to it.
2. Its value is read from the tool call's result, so it is the same before and after a restart.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from dataclasses import replace
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, cast, overload

from agentflow.agent.agent import Agent
from agentflow.agent.arguments import ResumeOptions
from agentflow.errors import AgentFlowError, UsageError
from agentflow.loop.output.form import InvalidOutputError
from agentflow.loop.output.output import Output, OutputLike, output_of
from agentflow.tools.results import read_back
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import Tool
from agentflow.vocabulary.messages import Msg, Reply, ToolResultBlock, ToolState
from agentflow.vocabulary.saving.codec import msg_to_dict
from agentflow.vocabulary.specs import Usage

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Answered: TypeAlias = Callable[[Reply[Any], Sequence[Msg]], str]

working: ContextVar[list[Step[Any]] | None] = ContextVar("agentflow_workflow", default=None)
"""The steps that the workflow's function in this context has made; None outside a workflow."""


class StepError(AgentFlowError):
    """A step of a workflow failed.

    Attributes:
        step: The name of the agent or tool.
        state: How its call ended: `"error"`, `"denied"`, `"timeout"`, `"interrupted"`, `"not_found"`.
        reason: The text of its result.
        others: The other steps of its group, in order, as `(name, state)`.
    """

    def __init__(
        self, step: str, state: ToolState, reason: str, others: tuple[tuple[str, ToolState], ...] = ()
    ) -> None:
        rest = f" Other steps: {', '.join(f'{name} {state}' for name, state in others)}." if others else ""
        super().__init__(f"Step {step!r} of the workflow ended with {state!r}: {reason}{rest}")
        self.step = step
        self.state: ToolState = state
        self.reason = reason
        self.others = others


class Group(Generic[T_co]):
    """Steps that run at the same time.

    Args:
        steps: The steps.
        kind: `"one"`: a single step; `"all"`: the values, in order; `"each"`: values and errors; `"race"`: the first
            value.
    """

    def __init__(self, steps: Sequence[Step[Any]], kind: Literal["one", "all", "each", "race"]) -> None:
        self._steps = tuple(steps)
        self.kind = kind

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        """The steps."""
        return self._steps

    def __await__(self) -> Generator[Any, Any, T_co]:
        if working.get() is None:
            _refuse_outside()
        # `replay._driven` gets the group here, and sends its value back.
        return cast("T_co", (yield self))

    def value(self, results: Sequence[ToolResultBlock]) -> T_co:
        """Return the group's value, given the results of its calls.

        Raises:
            StepError: A step failed; in a race, all steps failed.
        """
        ended = list(zip(self.steps, results, strict=True))
        states: list[tuple[str, ToolState]] = [(step.label, result.state) for step, result in ended]
        values: list[Any] = []
        for index, (step, result) in enumerate(ended):
            if result.state == "success":
                values.append(step.read(result))
            else:
                others = (*states[:index], *states[index + 1 :])
                values.append(StepError(step.label, result.state, result.text, others))
        successful = [value for value in values if not isinstance(value, StepError)]
        if self.kind != "each" and len(successful) < (1 if self.kind == "race" else len(values)):
            try:
                raise next(value for value in values if isinstance(value, StepError))
            finally:
                del values  # the error's traceback holds this frame
        return cast("T_co", successful[0] if self.kind in ("one", "race") else tuple(values))


class Step(Group[T_co]):
    """One step; awaiting it returns its value.

    Args:
        name: The name of the agent or tool, and so of the tool call.
        input: The input of the call.
        read: Converts a successful result to a value.
        output: The requested output of an agent.
        options: Options of the agent's call.
        answered: Converts the agent's reply and conversation to a result; by default the reply's text.
        work: Runs a function's step; None for agents and tools.
        label: The name in errors; by default `name`.
    """

    def __init__(
        self,
        name: str,
        input: dict[str, Any],  # noqa: A002 - the name in tool calls
        read: Callable[[ToolResultBlock], T_co],
        output: Output[Any] | None = None,
        options: ResumeOptions = ResumeOptions(),  # noqa: B008 - never changed
        answered: Answered | None = None,
        work: Callable[[], Awaitable[object]] | None = None,
        label: str = "",
    ) -> None:
        super().__init__((), "one")
        self.name = name
        self.input = input
        self.read = read
        self.output = output
        self.options = options
        self.answered = answered
        self.work = work
        self.label = label or name
        # Listed for the error about a step that was never awaited.
        steps = working.get()
        if steps is not None:
            steps.append(self)

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        """Return the step itself. Storing it in an attribute would create a reference cycle."""
        return (self,)

    def __repr__(self) -> str:
        return f"Step({self.label!r})"


def _refuse_outside() -> NoReturn:
    """Raise, because a step cannot be awaited outside a workflow.

    Raises:
        UsageError: Always.
    """
    raise UsageError(
        "A step can only be awaited in the function of a @workflow, alone or in gather(...) or race(...) of "
        "agentflow.agent.orchestration (asyncio.gather would create tasks). Outside a workflow, await agent.call(...)."
    )


@overload
def ask(
    agent: Agent[T],
    message: str | Msg | Sequence[Msg],
    *,
    output: None = None,
    conversation: bool = False,
    timeout: float | None = None,
) -> Step[Reply[T]]: ...
@overload
def ask(
    agent: Agent[Any],
    message: str | Msg | Sequence[Msg],
    *,
    output: OutputLike[A],
    conversation: bool = False,
    timeout: float | None = None,
) -> Step[Reply[A]]: ...
def ask(
    agent: Agent[Any],
    message: str | Msg | Sequence[Msg],
    *,
    output: Any = None,
    conversation: bool = False,
    timeout: float | None = None,
) -> Step[Reply[Any]]:
    """Ask an agent, as a step of a workflow.

    Args:
        agent: A participant of the workflow.
        message: The message, or messages.
        output: Overrides the agent's `output`.
        conversation: If True, the agent remembers earlier steps with `conversation=True` in this session of the
            workflow. If False, each step is a separate conversation.
        timeout: The time limit in seconds.

    Returns:
        When awaited, the reply: its text and the typed `output`. Its usage is part of the usage of the workflow's
        reply.
    """
    wanted = output_of(output)
    form = agent.output if wanted is None else wanted

    def read(result: ToolResultBlock) -> Reply[Any]:
        answer = Msg.assistant(result.content, name=agent.name, id=result.tool_use_id)
        reply: Reply[Any] = Reply.of(answer, "completed", "", Usage(), ())
        if form is None:
            return reply
        try:
            # The agent's call has validated the text, unless a hook has replaced it.
            return replace(reply, value=form.read_result(reply.text), typed=True)
        except InvalidOutputError:
            return reply

    return Step(agent.name, input_of(message, conversation), read, wanted, {"timeout": timeout})


def input_of(message: str | Msg | Sequence[Msg], conversation: bool) -> dict[str, Any]:
    """Return the input of a tool call that asks an agent."""
    several = (message,) if isinstance(message, Msg) else message
    content = several if isinstance(several, str) else [msg_to_dict(msg) for msg in several]
    return {"message": content, **({"conversation": True} if conversation else {})}


def use(tool: Tool[..., Coroutine[Any, Any, T]], **arguments: object) -> Step[T]:
    """Use a tool, as a step of a workflow. I/O and side effects should be in tools, because the function runs
    repeatedly.

    Args:
        tool: A participant of the workflow.
        arguments: The arguments by name: JSON-compatible data, as a model would pass them.

    Returns:
        When awaited, the tool's return value, or the result's text if that is not a value of the return annotation.
    """

    def read(result: ToolResultBlock) -> T:
        hint = return_hint(tool.function, {})
        return cast("T", result.text if hint is MISSING else read_back(result.text, hint))

    return Step(tool.name, dict(arguments), read)


@overload
def gather(first: Step[A], /, *, return_exceptions: Literal[False] = False) -> Group[tuple[A]]: ...
@overload
def gather(first: Step[A], second: Step[B], /, *, return_exceptions: Literal[False] = False) -> Group[tuple[A, B]]: ...
@overload
def gather(
    first: Step[A], second: Step[B], third: Step[C], /, *, return_exceptions: Literal[False] = False
) -> Group[tuple[A, B, C]]: ...
@overload
def gather(
    first: Step[A], second: Step[B], third: Step[C], fourth: Step[D], /, *, return_exceptions: Literal[False] = False
) -> Group[tuple[A, B, C, D]]: ...
@overload
def gather(*steps: Step[A], return_exceptions: Literal[False] = False) -> Group[tuple[A, ...]]: ...
@overload
def gather(first: Step[A], /, *, return_exceptions: Literal[True]) -> Group[tuple[A | StepError]]: ...
@overload
def gather(
    first: Step[A], second: Step[B], /, *, return_exceptions: Literal[True]
) -> Group[tuple[A | StepError, B | StepError]]: ...
@overload
def gather(
    first: Step[A], second: Step[B], third: Step[C], /, *, return_exceptions: Literal[True]
) -> Group[tuple[A | StepError, B | StepError, C | StepError]]: ...
@overload
def gather(
    first: Step[A], second: Step[B], third: Step[C], fourth: Step[D], /, *, return_exceptions: Literal[True]
) -> Group[tuple[A | StepError, B | StepError, C | StepError, D | StepError]]: ...
@overload
def gather(*steps: Step[A], return_exceptions: Literal[True]) -> Group[tuple[A | StepError, ...]]: ...
def gather(*steps: Step[Any], return_exceptions: bool = False) -> Group[Any]:
    """Run several steps at the same time, at most as many as `max_concurrency` of the workflow.

    Args:
        steps: The steps.
        return_exceptions: Whether to return a `StepError` as the value of a failed step. If False, the first error is
            raised after all steps have ended.

    Returns:
        When awaited, the values in the order of the steps.
    """
    return Group(steps, "each" if return_exceptions else "all")


@overload
def race(first: Step[A], second: Step[B], /) -> Group[A | B]: ...
@overload
def race(first: Step[A], second: Step[B], third: Step[C], /) -> Group[A | B | C]: ...
@overload
def race(*agents: Step[A]) -> Group[A]: ...
def race(*agents: Step[Any]) -> Group[Any]:
    """Ask several agents at the same time and return the first answer, after the others have been interrupted and have
    ended.

    An agent that fails is out of the race. An agent that waits for a person is only resumed if no other agent answers.

    Returns:
        When awaited, the first answer.

    Raises:
        UsageError: A step does not ask an agent, or has `conversation=True` (its conversation would be interrupted).
    """
    if not agents or any("message" not in step.input or "conversation" in step.input for step in agents):
        raise UsageError(
            "race(...) takes steps that ask agents, without conversation=True, because the losers are interrupted."
        )
    return Group(agents, "race")

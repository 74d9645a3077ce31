"""The steps of a workflow: `ask` an agent, `use` a tool; several at once with `gather` and `race`.

Rules:

1. A step is awaited in a workflow's function, and nowhere else. It is a tool call of the workflow's agent, so everything that
   holds for tool calls holds for it.
2. What it gives is read from the tool call's result, so it is the same before and after a restart.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator, Sequence
from contextvars import ContextVar
from typing import Any, Generic, Literal, NoReturn, TypeAlias, TypeVar, cast, overload

from agentflow.agent.agent import Agent
from agentflow.errors import AgentFlowError, UsageError
from agentflow.hooks.hook import Hook
from agentflow.messages import Msg, Reply, ToolResultBlock, ToolState
from agentflow.output.output import Output, OutputLike, output_of
from agentflow.output.replying import with_stored_output
from agentflow.saving.codec import msg_to_dict
from agentflow.specs import Usage
from agentflow.tools.results import read_back
from agentflow.tools.signature import MISSING, return_hint
from agentflow.tools.tool import Tool

__all__ = ["Group", "Step", "StepError", "ask", "gather", "input_of", "race", "use", "working"]

A = TypeVar("A")
B = TypeVar("B")
C = TypeVar("C")
D = TypeVar("D")
T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)

Answered: TypeAlias = Callable[[Reply[Any], Sequence[Msg]], str]

working: ContextVar[bool] = ContextVar("agentflow_workflow", default=False)
"""Whether a workflow's function is running here."""


class StepError(AgentFlowError):
    """A step of a workflow came to nothing.

    Attributes:
        step: The agent or the tool.
        state: How its call ended: `"error"`, `"denied"`, `"timeout"`, `"interrupted"`, `"not_found"`.
        reason: What it said.
        others: What became of the steps beside it, in their order, this one left out: `(name, state)`.
    """

    def __init__(
        self, step: str, state: ToolState, reason: str, others: tuple[tuple[str, ToolState], ...] = ()
    ) -> None:
        beside = f" Beside it: {', '.join(f'{name} {state}' for name, state in others)}." if others else ""
        super().__init__(f"Step {step!r} of the workflow ended with {state!r}: {reason}{beside}")
        self.step = step
        self.state: ToolState = state
        self.reason = reason
        self.others = others


class Group(Generic[T_co]):
    """Steps that are taken at once.

    Args:
        steps: The steps.
        kind: `"one"`: a single step; `"all"`: their values, in their order; `"each"`: values and errors; `"race"`: the first
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
        if not working.get():
            _refuse_outside()
        return cast("T_co", (yield self))

    def value(self, results: Sequence[ToolResultBlock]) -> T_co:
        """What the results of its calls come to.

        Raises:
            StepError: One of them failed, or in a race all.
        """
        ended = list(zip(self.steps, results, strict=True))
        states: list[tuple[str, ToolState]] = [(step.name, result.state) for step, result in ended]
        values: list[Any] = []
        for place, (step, result) in enumerate(ended):
            if result.state == "success":
                values.append(step.read(result))
            else:
                others = (*states[:place], *states[place + 1 :])
                values.append(StepError(step.name, result.state, result.text, others))
        made = [value for value in values if not isinstance(value, StepError)]
        if self.kind != "each" and len(made) < (1 if self.kind == "race" else len(values)):
            try:
                raise next(value for value in values if isinstance(value, StepError))
            finally:
                del values  # the error's traceback holds this frame
        return cast("T_co", made[0] if self.kind in ("one", "race") else tuple(values))


class Step(Group[T_co]):
    """One step; awaiting it gives its value.

    Args:
        name: Of the agent or the tool: of the tool call.
        input: What the call is given.
        read: Makes the value of a successful result.
        output: What an agent is asked for.
        hooks: What a call of the agent is given besides.
        timeout: Seconds for it.
        answered: Makes the result of the agent's reply and its conversation; by default the reply's text.
    """

    def __init__(
        self,
        name: str,
        input: dict[str, Any],  # noqa: A002 - a tool call's word
        read: Callable[[ToolResultBlock], T_co],
        output: Output[Any] | None = None,
        hooks: tuple[Hook, ...] = (),
        timeout: float | None = None,
        answered: Answered | None = None,
    ) -> None:
        super().__init__((), "one")
        self.name = name
        self.input = input
        self.read = read
        self.output = output
        self.hooks = hooks
        self.timeout = timeout
        self.answered = answered

    @property
    def steps(self) -> tuple[Step[Any], ...]:
        """Itself, which it does not hold: that would be a ring."""
        return (self,)

    def __repr__(self) -> str:
        return f"Step({self.name!r})"


def _refuse_outside() -> NoReturn:
    """Say where steps are awaited.

    Raises:
        UsageError: Always.
    """
    raise UsageError(
        "A step is awaited in the function of a @workflow, by itself or in gather(...) and race(...) of "
        "agentflow.orchestration; asyncio's own make tasks of it. Outside of a workflow: await agent.call(...)."
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
        agent: One of those that the workflow was given.
        message: What to ask.
        output: What it is to give, in place of its own `output`.
        conversation: Let it remember what it was asked with `conversation=True` before, in this session of the workflow; else
            each step is a conversation of its own.
        timeout: Seconds for it.

    Returns:
        Awaited, its reply: the text, and the typed `output`. What it cost is in the usage of the workflow's own reply.
    """
    wanted = output_of(output)
    form = agent.output if wanted is None else wanted

    def read(result: ToolResultBlock) -> Reply[Any]:
        said = Msg.assistant(result.content, name=agent.name, id=result.tool_use_id)
        reply: Reply[Any] = Reply.of(said, "completed", "", Usage(), ())
        return reply if form is None else with_stored_output(reply, form)

    return Step(agent.name, input_of(message, conversation), read, wanted, (), timeout)


def input_of(message: str | Msg | Sequence[Msg], conversation: bool) -> dict[str, Any]:
    """The input of a tool call that asks an agent."""
    several = (message,) if isinstance(message, Msg) else message
    said = several if isinstance(several, str) else [msg_to_dict(msg) for msg in several]
    return {"message": said, **({"conversation": True} if conversation else {})}


def use(tool: Tool[..., Coroutine[Any, Any, T]], **arguments: object) -> Step[T]:
    """Use a tool, as a step of a workflow: what touches the world belongs there, since the function runs again and again.

    Args:
        tool: One of those that the workflow was given.
        arguments: By name; JSON-compatible data, as a model would give them.

    Returns:
        Awaited, what it returned; where it returned something that its annotation cannot read back, the text.
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
    """Take several steps at the same time, at most `max_concurrency` of the workflow.

    Args:
        steps: The steps.
        return_exceptions: Give a `StepError` in the place of a value; else the first one is raised when all have ended.

    Returns:
        Awaited, the values in the order of the steps.
    """
    return Group(steps, "each" if return_exceptions else "all")


@overload
def race(first: Step[A], second: Step[B], /) -> Group[A | B]: ...
@overload
def race(first: Step[A], second: Step[B], third: Step[C], /) -> Group[A | B | C]: ...
@overload
def race(*agents: Step[A]) -> Group[A]: ...
def race(*agents: Step[Any]) -> Group[Any]:
    """Ask several agents at the same time, and take the first answer; by then the others have been interrupted and have ended.

    Who fails is out, and who waits for a person waits: it is asked only if nobody answers.

    Returns:
        Awaited, the first answer.

    Raises:
        UsageError: One of them is a tool, or is asked in a conversation, which would be left broken off.
    """
    if not agents or any("message" not in step.input or "conversation" in step.input for step in agents):
        raise UsageError("race(...) takes steps that ask agents, without conversation=True: who loses is interrupted.")
    return Group(agents, "race")

"""`workflow`: an agent whose next step is decided by code, in the place of a model.

Rules:

1. A workflow is an `Agent`. Its function runs in `PreReasoning`, and answers in the model's place: with the tool calls of the
   next steps, or with what it returns.
2. The journal is the session's. The function runs from its start whenever steps have ended, and is given the results that
   the facts hold; so it goes on after a crash or a suspension as it does in between. It awaits nothing but steps.
3. Steps that are awaited at once are the calls of one round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from inspect import cleandoc, iscoroutinefunction, signature
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, cast, get_type_hints

from reactivex import Observable

from agentflow.agent.agent import Agent
from agentflow.chunks import ModelChunk
from agentflow.context import RunContext
from agentflow.errors import UsageError
from agentflow.events import HookEvent, PreReasoning, PreToolRound
from agentflow.hooks.hook import Hook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.scope import ProcessHooks
from agentflow.hooks.wrapping import ModelSource
from agentflow.loop.config import OnUnknownOutcome
from agentflow.loop.schedule import ToolSchedule
from agentflow.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.orchestration.asking import Live, asking_tool
from agentflow.orchestration.replay import Replayed, call_id, replay
from agentflow.orchestration.steps import StepError
from agentflow.output.output import Output
from agentflow.ports.model import ModelRequest
from agentflow.ports.store import Store
from agentflow.reactive import Flux, Mono
from agentflow.specs import WORKFLOW, Clock
from agentflow.tools.tool import Tool
from agentflow.verdicts import Answer

__all__ = ["WorkflowOptions", "make_workflow", "workflow"]

R = TypeVar("R")
S = TypeVar("S", bound=Observable[Any])


class WorkflowOptions(TypedDict, total=False):
    """What `workflow` takes by name besides its own; `Agent` says what each means."""

    store: Store | str | None
    tags: Sequence[str]
    process_hooks: ProcessHooks
    clock: Clock
    new_id: Callable[[str], str]
    on_unknown_outcome: OnUnknownOutcome
    cleanup_timeout: float


class _Decorator(Protocol):
    def __call__(self, function: Callable[..., Coroutine[Any, Any, R]], /) -> Agent[R]: ...


def workflow(
    *participants: Agent[Any] | Tool[..., Any],
    name: str | None = None,
    description: str | None = None,
    max_rounds: int = 100,
    max_concurrency: int = 16,
    hooks: HookSource = (),
    **options: Unpack[WorkflowOptions],
) -> _Decorator:
    """Make an agent of a function that says who does what; each step is a tool call of that agent.

    The function takes what the user says, as `str` or as `Sequence[Msg]`, and the `RunContext` if it asks for it. It awaits
    `ask`, `use`, `gather` and `race`, and what it returns is the typed `reply.output`. It runs from its start whenever steps
    have ended, with the results so far: what it does besides must come to the same each time, and touch nothing.

    Args:
        participants: The agents that it asks and the tools that it uses.
        name: The agent's name; the function's by default.
        description: What it is for; the function's docstring by default.
        max_rounds: Most times that it awaits steps in one run; then the reply's outcome is `limited`.
        max_concurrency: Most steps at a time.
        hooks: The agent's hooks.
        options: See `WorkflowOptions`.

    Returns:
        A decorator that gives an `Agent`: call it, stream it, resume it, use it as a tool, or as a step of another workflow.

    Raises:
        UsageError: It is no coroutine function, or two participants have one name.

    Example:
        >>> from agentflow.orchestration import ask, workflow
        >>> writer, editor = Agent("writer", ScriptedModel(["Bees hum."])), Agent("editor", ScriptedModel(["Bees buzz."]))
        >>> @workflow(writer, editor)
        ... async def article(topic: str) -> str:
        ...     draft = await ask(writer, topic)
        ...     return (await ask(editor, draft.text)).text
        >>> (await article.call("Bees")).output
        'Bees buzz.'
    """
    wrong = next((one for one in participants if not isinstance(one, Agent | Tool)), None)  # pyright: ignore[reportUnnecessaryIsInstance]
    if wrong is not None:
        raise UsageError(
            f"@workflow(...) takes the agents that it asks and the tools that it uses, not {wrong!r:.60}: write "
            "@workflow(writer, my_tool), with parentheses also where it takes none."
        )

    def made(function: Callable[..., Coroutine[Any, Any, R]]) -> Agent[R]:
        return make_workflow(function, participants, name, description, max_rounds, max_concurrency, (), hooks, options)

    return made


def make_workflow(
    function: Callable[..., Coroutine[Any, Any, R]],
    participants: Sequence[Agent[Any] | Tool[..., Any]],
    name: str | None,
    description: str | None,
    max_rounds: int,
    max_concurrency: int,
    passes: tuple[tuple[str, str], ...],
    hooks: HookSource,
    options: WorkflowOptions,
) -> Agent[R]:
    """What `workflow` does; `passes` says which participants hand to which."""
    code = _Code(function)
    flow = RunWorkflow(code, max_rounds, passes)
    tools = [asking_tool(one, flow.pending) if isinstance(one, Agent) else one for one in participants]
    flow.known = frozenset(made.name for made in tools)
    return Agent(
        name or code.name,
        _NoModel(),
        description=code.description if description is None else description,
        tools=tools,
        hooks=[flow, *hooks_of(hooks)],
        default_hooks=(),
        max_iterations=max_rounds,
        schedule=ToolSchedule.PARALLEL.limit(max_concurrency),
        output=code.output,
        **options,
    )


class _Code(Generic[R]):
    """A workflow's function, and what it takes and gives.

    Args:
        function: The function.

    Raises:
        UsageError: It cannot be a workflow's.
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, R]]) -> None:
        self.name = getattr(function, "__name__", "workflow")
        if not iscoroutinefunction(function):
            raise UsageError(f"@workflow(...) takes a coroutine function: async def {self.name}(message: str) -> str.")
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise UsageError(
                f"The annotations of workflow {self.name!r} cannot be read: {error}. Name types that its module knows at "
                "run time."
            ) from error
        given = list(signature(function).parameters)
        self._context = next((one for one in given if hints.get(one) is RunContext), None)
        rest = [one for one in given if one != self._context]
        if len(rest) != 1:
            raise UsageError(
                f"Workflow {self.name!r} takes {len(rest)} arguments besides the RunContext; it is given one, what the user "
                f"says: async def {self.name}(message: str)."
            )
        self._input = rest[0]
        self._as_text = hints.get(rest[0], str) is str
        self._function = function
        self.description = cleandoc(function.__doc__ or "")
        self.output: Output[R] = Output(hints.get("return", str), via="prompt", retries=0)

    def start(self, said: Sequence[Msg], context: RunContext) -> Coroutine[Any, Any, R]:
        """Begin a run of it."""
        told: Any = "\n\n".join(msg.text for msg in said) if self._as_text else tuple(said)
        arguments = {self._input: told, **({} if self._context is None else {self._context: context})}
        return self._function(**arguments)

    def text(self, value: R) -> str:
        """What it has returned, as the text of the answer.

        Raises:
            UsageError: It is not what its annotation says.
        """
        if self.output.is_text:
            if not isinstance(value, str):
                raise UsageError(
                    f"Workflow {self.name!r} returned {type(value).__name__}; it is annotated to return str."
                )
            return value
        try:
            return self.output.shape.write(value)
        except UsageError as error:
            raise UsageError(
                f"Workflow {self.name!r} returned {value!r:.80}, which is no {self.output.name_of_form}: {error}"
            ) from error


class RunWorkflow(Hook):
    """Runs a workflow's function in the model's place.

    Priority 0: nothing asks the model that is not there.

    Args:
        code: The function.
        max_rounds: Most rounds of steps.
        passes: Which participants hand the conversation to which.
    """

    priority = 0
    events = (PreReasoning,)
    wraps = (PreReasoning, PreToolRound)
    known: frozenset[str] = frozenset()
    no_data = (
        "it is a workflow, and its function is code that no name leads to. What can be saved of it are its sessions "
        "(session.to_dict(), or a store) and its queue (agent.queue.to_dict()); make the workflow again where it runs."
    )

    def __init__(self, code: _Code[Any], max_rounds: int, passes: tuple[tuple[str, str], ...]) -> None:
        self._code = code
        self.passes = passes
        self._max_rounds = max_rounds

    def on_event(self, event: PreReasoning) -> Answer | None:  # pyright: ignore[reportIncompatibleMethodOverride] - it listens to one event
        """Answer with the next steps, or with what the function returns."""
        context = event.context
        if event.purpose == "summary":
            return Answer(f"Workflow {event.agent.name!r} has not ended after {self._max_rounds} rounds of steps.")
        try:
            found = self._replayed(context)
        except StepError:  # a budget that is used up stops the call now, as any agent's; else `around_model` raises
            return None
        group = found.group
        if group is None:
            return Answer(self._code.text(found.value) or "(no answer)")
        strangers = [step.name for step in group.steps if step.name not in self.known]
        if strangers:
            raise UsageError(
                f"Workflow {event.agent.name!r} takes a step with {strangers[0]!r}, which it was not given: "
                f"@workflow({', '.join(sorted({*self.known, *strangers}))})."
            )
        uses = [ToolUseBlock(call_id(context.new_id("call_"), step), step.name, step.input) for step in group.steps]
        context.state[Live].begin(group, [use.id for use in uses])
        return Answer(Msg.assistant(uses, id=context.new_id("msg_")))

    def around(self, event: HookEvent, source: S) -> S | Mono[Any]:
        """Answer those in a race who wait for a person, where another one has answered."""
        if not isinstance(event, PreToolRound) or not (live := self.pending(event.context)).races:
            return source
        return cast("Mono[tuple[ToolResultBlock, ...]]", source).map(live.settled)

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Fail with the step that came to nothing, where no hook behind this one has decided otherwise."""
        return Flux(partial(self._failing, event.context))

    async def _failing(self, context: RunContext) -> AsyncIterator[ModelChunk]:
        self._replayed(context)
        yield ModelChunk()  # never: the function fails as it did in `on_event`

    def pending(self, context: RunContext) -> Live:
        """The steps of the open round; found out anew where another process has begun them."""
        live = context.state[Live]
        if not live.steps:
            found = self._replayed(context)
            if found.group is not None:
                live.begin(found.group, found.open)
        return live

    def _replayed(self, context: RunContext) -> Replayed:
        return replay(lambda said: self._code.start(said, context), context)


class _NoModel:
    """Stands where an agent has its model; nothing asks it."""

    name = WORKFLOW

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """See `Model.stream`."""
        raise UsageError(
            "A workflow has no model: its function answers in PreReasoning (priority 0), and a hook before it keeps it out."
        )
        yield ModelChunk()  # it is a generator

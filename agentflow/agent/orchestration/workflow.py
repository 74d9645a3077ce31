"""`workflow`: an agent whose next step is decided by code instead of a model.

Rules:

1. A workflow is an `Agent`. Its function runs in `PreReasoning` and answers instead of the model: with the tool calls
   of the next steps, or with its return value.
2. The session's journal contains the results. After each step the function runs again from its start, with these
   results. So a workflow continues in the same way after a crash or a suspension. Its function awaits only steps.
3. Steps that are awaited together are the calls of one round.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from functools import partial
from inspect import cleandoc, iscoroutinefunction, signature
from typing import Any, Generic, Protocol, TypedDict, TypeVar, Unpack, cast, get_type_hints

from reactivex import Observable

from agentflow.agent.agent import Agent
from agentflow.agent.orchestration.asking import Live, asking_tool
from agentflow.agent.orchestration.functions import step_tool
from agentflow.agent.orchestration.replay import Replayed, call_id, replay
from agentflow.agent.orchestration.steps import StepError
from agentflow.errors import UsageError
from agentflow.hooks.hook import NarrowHook
from agentflow.hooks.named import HookSource, hooks_of
from agentflow.hooks.scope import ProcessHooks
from agentflow.hooks.wrapping import ModelSource
from agentflow.loop.config import OnUnknownOutcome
from agentflow.loop.output.output import FullOutput, Output, full_output
from agentflow.loop.schedule import ToolSchedule
from agentflow.reactive import Flux, Mono
from agentflow.tools.tool import Tool
from agentflow.vocabulary.chunks import ModelChunk
from agentflow.vocabulary.context import RunContext
from agentflow.vocabulary.events import HookEvent, PreReasoning, PreToolRound
from agentflow.vocabulary.messages import Msg, ToolResultBlock, ToolUseBlock
from agentflow.vocabulary.ports.model import ModelRequest
from agentflow.vocabulary.ports.store import Store
from agentflow.vocabulary.specs import WORKFLOW, WORKFLOW_STEP, Clock
from agentflow.vocabulary.verdicts import Answer

R = TypeVar("R")
S = TypeVar("S", bound=Observable[Any])


class WorkflowOptions(TypedDict, total=False):
    """More keyword arguments of `workflow`; see `Agent`."""

    store: Store | str | None
    tags: Sequence[str]
    process_hooks: ProcessHooks
    clock: Clock
    new_id: Callable[[str], str]
    on_unknown_outcome: OnUnknownOutcome
    cleanup_timeout: float


class _WorkflowDecorator(Protocol):
    def __call__(self, function: Callable[..., Coroutine[Any, Any, R]], /) -> Agent[R]: ...


def workflow(
    *participants: Agent[Any] | Tool[..., Any],
    name: str | None = None,
    description: str | None = None,
    max_rounds: int = 100,
    max_concurrency: int = 16,
    hooks: HookSource = (),
    **options: Unpack[WorkflowOptions],
) -> _WorkflowDecorator:
    """Make an agent from a function that decides which agents and tools run. Each step is a tool call of that agent.

    The function takes the user's input, as `str` or `Sequence[Msg]`, and optionally the `RunContext`. It awaits `ask`,
    `use`, `step`, `gather` and `race`; its return value is the typed `reply.output`. A reply is never empty: an empty text
    becomes "(no answer)". After each step the function runs again from its start, with the results so far, so its other
    code must be deterministic and should have no side effects.

    Args:
        participants: The agents and tools of its steps.
        name: The agent's name; by default the function's.
        description: The agent's description; by default the function's docstring.
        max_rounds: The maximum number of times that the function awaits steps in one run; after that, the reply's
            outcome is `limited`.
        max_concurrency: The maximum number of steps at the same time.
        hooks: The agent's hooks.
        options: See `WorkflowOptions`.

    Returns:
        A decorator that returns an `Agent`: call it, stream it, resume it, use it as a tool, or as a step of another
        workflow.

    Raises:
        UsageError: The function is not a coroutine function, or two participants have the same name.

    Example:
        >>> from agentflow.agent.orchestration import ask, workflow
        >>> writer, editor = Agent("writer", ScriptedModel(["Bees hum."])), Agent("editor", ScriptedModel(["Bees buzz."]))
        >>> @workflow(writer, editor)
        ... async def article(topic: str) -> str:
        ...     draft = await ask(writer, topic)
        ...     return (await ask(editor, draft.text)).text
        >>> (await article.call("Bees")).output
        'Bees buzz.'
    """
    wrong = next((part for part in participants if not isinstance(cast("object", part), Agent | Tool)), None)
    if wrong is not None:
        raise UsageError(
            f"@workflow(...) takes agents and tools, not {wrong!r:.60}. Write @workflow(writer, my_tool), with "
            "parentheses even without participants."
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
    """Create the workflow's agent; `passes` lists the possible handoffs between participants."""
    code = _Code(function)
    flow = RunWorkflow(code, max_rounds, passes)
    tools = [asking_tool(part, flow.pending) if isinstance(part, Agent) else part for part in participants]
    tools.append(step_tool(flow.pending))
    # Set after the tools are made, since the tools refer to the hook.
    flow.known = frozenset(tool.name for tool in tools)
    return Agent(
        name or code.name,
        _NoModel(),
        description=code.description if description is None else description,
        tools=tools,
        hooks=[flow, *hooks_of(hooks)],
        default_hooks=(),
        max_iterations=max_rounds,
        # The function decides which steps run at the same time, so the types of tools do not.
        schedule=ToolSchedule.PARALLEL.limit(max_concurrency),
        output=code.output,
        **options,
    )


class _Code(Generic[R]):
    """A workflow's function, with its input and output types.

    Args:
        function: The function.

    Raises:
        UsageError: The function cannot be used for a workflow.
    """

    def __init__(self, function: Callable[..., Coroutine[Any, Any, R]]) -> None:
        self.name = getattr(function, "__name__", "workflow")
        if not iscoroutinefunction(function):
            raise UsageError(f"@workflow(...) needs a coroutine function: async def {self.name}(message: str) -> str.")
        try:
            hints = get_type_hints(function)
        except NameError as error:
            raise UsageError(
                f"The annotations of workflow {self.name!r} cannot be resolved: {error}. Use types that "
                "are defined in its module at run time."
            ) from error
        names = list(signature(function).parameters)
        self._context = next((name for name in names if hints.get(name) is RunContext), None)
        rest = [name for name in names if name != self._context]
        if len(rest) != 1:
            raise UsageError(
                f"Workflow {self.name!r} takes {len(rest)} arguments besides the RunContext, but must take one, the "
                f"user's input: async def {self.name}(message: str)."
            )
        self._input = rest[0]
        self._as_text = hints.get(rest[0], str) is str
        self.function = function
        self.description = cleandoc(function.__doc__ or "")
        # The function's value is checked, but no model can be asked for another one.
        self.output: FullOutput[R] = full_output(Output(hints.get("return", str), via="prompt", retries=0))

    def start(self, messages: Sequence[Msg], context: RunContext) -> Coroutine[Any, Any, R]:
        """Start the function."""
        text: Any = "\n\n".join(msg.text for msg in messages) if self._as_text else tuple(messages)
        arguments = {self._input: text, **({} if self._context is None else {self._context: context})}
        return self.function(**arguments)

    def text(self, value: R) -> str:
        """Return the function's return value as the text of the answer.

        Raises:
            UsageError: The value does not match the annotation.
        """
        if self.output.is_text:
            if not isinstance(value, str):
                raise UsageError(
                    f"Workflow {self.name!r} returned {type(value).__name__}, but its return type is str (the default). "
                    "Annotate the function with the type that it returns."
                )
            return value
        try:
            return self.output.shape.write(value)
        except UsageError as error:
            raise UsageError(
                f"Workflow {self.name!r} returned {value!r:.80}, which is not a valid {self.output.name_of_form}: {error}"
            ) from error


class RunWorkflow(NarrowHook):
    """Runs a workflow's function instead of a model.

    Priority 0: it answers before any hook that would call the model.

    Args:
        code: The function.
        max_rounds: The maximum number of rounds of steps.
        passes: The possible handoffs between participants.
    """

    priority = 0
    events = (PreReasoning,)
    wraps = (PreReasoning, PreToolRound)
    known: frozenset[str] = frozenset()
    no_data = (
        "it is a workflow, and its function cannot be saved. Save its sessions (session.to_dict(), or a store) and its "
        "queue (agent.queue.to_dict()), and create the workflow again in the other process."
    )

    def __init__(self, code: _Code[Any], max_rounds: int, passes: tuple[tuple[str, str], ...]) -> None:
        self._code = code
        self.function = code.function
        self.passes = passes
        self._max_rounds = max_rounds

    def on_event(self, event: PreReasoning) -> Answer | None:
        """Answer with the next steps, or with the function's return value."""
        context = event.context
        if event.purpose == "summary":
            return Answer(f"Workflow {event.agent.name!r} has not finished after {self._max_rounds} rounds of steps.")
        try:
            found = self._replayed(context)
        except StepError:  # other hooks, such as a budget, may stop the call first; otherwise `around_model` raises
            return None
        group = found.group
        if group is None:
            # A message without content would not be stored.
            return Answer(self._code.text(found.value) or "(no answer)")
        strangers = [step.name for step in group.steps if step.name not in self.known]
        if strangers:
            raise UsageError(
                f"Workflow {event.agent.name!r} uses {strangers[0]!r}, which is not a participant. Write "
                f"@workflow({', '.join(sorted({*self.known, *strangers} - {WORKFLOW_STEP}))})."
            )
        uses = [ToolUseBlock(call_id(context.new_id("call_"), step), step.name, step.input) for step in group.steps]
        context.state[Live].begin(group, [use.id for use in uses])
        return Answer(Msg.assistant(uses, id=context.new_id("msg_")))

    def around(self, event: HookEvent, source: S) -> S | Mono[Any]:
        """End the suspended calls of a race if another agent has answered."""
        if not isinstance(event, PreToolRound) or not (live := self.pending(event.context)).races:
            return source
        return cast("Mono[tuple[ToolResultBlock, ...]]", source).map(live.with_winner)

    def around_model(self, event: PreReasoning, source: ModelSource) -> Flux[ModelChunk]:
        """Raise the error of the failed step, unless a later hook has decided otherwise."""
        return Flux(partial(self._failing, event.context))

    async def _failing(self, context: RunContext) -> AsyncIterator[ModelChunk]:
        self._replayed(context)
        yield ModelChunk()  # unreachable: the function fails as it did in `on_event`

    def pending(self, context: RunContext) -> Live:
        """Return the steps of the open round; restored by a replay if another process began them."""
        live = context.state[Live]
        # The state is not stored, so it is empty if another process began the round.
        if not live.steps:
            found = self._replayed(context)
            if found.group is not None:
                live.begin(found.group, found.open)
        return live

    def _replayed(self, context: RunContext) -> Replayed:
        return replay(lambda messages: self._code.start(messages, context), context)


class _NoModel:
    """The model of a workflow, which is never called."""

    name = WORKFLOW

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        """See `Model.stream`."""
        raise UsageError(
            "A workflow has no model: its function answers in PreReasoning (priority 0), but an earlier hook "
            "prevented that. Give that hook a priority above 0, or remove it."
        )
        yield ModelChunk()  # makes this a generator

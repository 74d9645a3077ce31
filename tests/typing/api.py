"""What the checker must infer for the public names (pyright strict; never run). Its counterpart is `wrong.py`."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, TypedDict, assert_never, assert_type

from reactivex import operators as ops

from agentflow import (
    ActingChunk,
    Again,
    Agent,
    AgentBuilder,
    Answer,
    Approve,
    CallEnded,
    Console,
    Deny,
    Dep,
    Error,
    Flux,
    Hook,
    HookEvent,
    HookResult,
    MemoryStore,
    MessagesAdded,
    Model,
    ModelChunk,
    ModelOptions,
    ModelRequest,
    Mono,
    Msg,
    Output,
    PostActing,
    PostCall,
    PostReasoning,
    PostToolRound,
    PreActing,
    PreCall,
    PreReasoning,
    PreToolRound,
    ReasoningChunk,
    Recover,
    Reply,
    RunContext,
    Session,
    Stop,
    Suspend,
    ToolContext,
    ToolResultBlock,
    ToolUseBlock,
    Usage,
    after_each_tool,
    after_llm,
    after_tool_round,
    before_each_tool,
    before_llm,
    on,
    tool,
)
from agentflow.agent import AgentFlux
from agentflow.agent.orchestration import Hub, StepError, ask, gather, handoffs, race, use, workflow
from agentflow.hooks import FunctionHook, HookOptions, HooksByName, installed_hooks
from agentflow.loop.output import Partial
from agentflow.reactive import Subscription
from agentflow.state import Store
from agentflow.testing import ScriptedModel
from agentflow.tools import Tool, ToolRegistry, Toolset, default_tools, external_tool
from agentflow.vocabulary.chunks import fold
from agentflow.vocabulary.context import AgentView
from agentflow.vocabulary.events import (
    ActingEvent,
    Event,
    Paused,
    PostPut,
    PostTurn,
    PrePut,
    PreTurn,
    Resumed,
    TurnValue,
)
from agentflow.vocabulary.messages import Outcome, Pending
from agentflow.vocabulary.specs import ToolSpec
from agentflow.vocabulary.verdicts import Decided, Verdict

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine


@dataclass
class Counter:
    count: int = 0


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


@tool(type="read", timeout=5)
async def pages(count: int) -> AsyncIterator[str]:
    """Read."""
    for number in range(count):
        yield f"page {number}"


@tool(in_thread=True)
def blocking(path: str) -> bytes:
    """Read a file."""
    return path.encode()


async def tools_keep_their_function_types() -> None:
    assert_type(await add(1, 2), int)
    async for page in pages(3):
        assert_type(page, str)
    assert_type(await blocking("x"), bytes)
    assert_type(add.name, str)
    assert_type(add.spec, ToolSpec)
    both: Sequence[Tool[..., Any]] = (add, pages, blocking)
    Agent("a", "openai/gpt-5", tools=both)


async def calls(agent: Agent, session: Session) -> None:
    assert_type(await agent.call("hi"), Reply)
    assert_type(agent.call("hi").block(), Reply)
    assert_type(agent.call(Msg.user("hi")).subscribe(print, on_error=print), Subscription)
    assert_type(agent.call([Msg.user("hi")], session=session).map(lambda reply: reply.text), Mono[str])
    assert_type(await agent.resume(session, {"t1": Approve(), "t2": Deny("no"), "t3": Answer(1)}), Reply)
    assert_type(agent.stream("hi"), AgentFlux)
    assert_type(agent.resume_stream("s", {}), AgentFlux)
    async with agent.stream("hi") as events:
        async for event in events:
            assert_type(event, HookEvent)
    async for event in agent.stream("hi", children=True):
        assert_type(event, HookEvent)
    texts = agent.stream("hi").filter(lambda event: isinstance(event, ReasoningChunk)).map(str)
    assert_type(texts, Flux[str])
    assert_type(agent.stream("hi").pipe(ops.map(str)), Flux[str])
    assert_type(agent.session("s").messages, Sequence[Msg])
    assert_type(agent.session().pending, tuple[Pending, ...])
    assert_type(agent.interrupt("s", "enough"), bool)


def building() -> None:
    whatever: AgentBuilder[Agent] = Agent.builder()
    whatever.name("a")
    built = Agent.builder().name("a").model("openai/gpt-5").tools([add]).hook(Everything()).max_iterations(3).build()
    assert_type(built, Agent[None])
    whichever: Agent = built
    assert_type(whichever.name, str)


class Bill(TypedDict):
    total: int


async def book(customer: str, total: int) -> float:
    """Book it."""
    return total / len(customer)


def look_up(customer: str) -> bytes:
    """Look it up."""
    return customer.encode()


async def typed_answers(agent: Agent, context: RunContext) -> None:
    clerk = Agent("clerk", "openai/gpt-5", output=Counter)
    assert_type(clerk, Agent[Counter])
    assert_type((await clerk.call("hi")).output, Counter)
    assert_type(clerk.call("hi").block().output, Counter)
    assert_type(await clerk.call("hi", output=int), Reply[int])
    assert_type(await Console(clerk.stream("hi", output=int)), Reply[int])
    assert_type((await Console(clerk.stream("hi"), quiet=True)).output, Counter)
    assert_type(await clerk.call("hi", session="s", output=list[Counter]), Reply[list[Counter]])
    assert_type((await clerk.call("hi", output=int | str)).output, int | str)
    assert_type((await clerk.call("hi", output=Bill)).output, Bill)
    assert_type((await clerk.call("hi", output=book)).output, float)
    assert_type((await clerk.call("hi", output=look_up)).output, bytes)
    assert_type((await clerk.call("hi", output=Output(Counter, via="tool", retries=1))).output, Counter)
    one_of = Output[Literal["a", "b"]](Literal["a", "b"])
    assert_type((await clerk.call("hi", output=one_of)).output, Literal["a", "b"])
    assert_type((await clerk.resume("s", {}, output=Counter)).output, Counter)
    assert_type((await clerk.resume("s")).output, Counter)
    assert_type(clerk.stream("hi"), AgentFlux[Counter])
    assert_type((await clerk.stream("hi", output=int).reply()).output, int)
    async with clerk.stream("hi") as events:
        assert_type((await events.reply()).output, Counter)
    built = Agent.builder().name("a").output(Counter).model("openai/gpt-5").tools([add]).build()
    assert_type(built, Agent[Counter])
    assert_type((await Agent("a", "openai/gpt-5").call("hi")).output, None)
    assert_type(clerk.branch("other"), Agent[Counter])
    assert_type(await agent.call("hi", output=Counter), Reply[Counter])
    assert_type((await context.complete("hi", output=Counter)).output, Counter)
    assert_type((await context.complete("hi", output=Output(Counter))).output, Counter)
    assert_type(await context.complete("hi"), Msg)
    async for counter in clerk.stream("hi").partials():
        assert_type(counter, Partial[Counter])
        assert_type(counter.output, Counter)
    async for numbers in clerk.stream("hi", output=list[int]).partials():
        assert_type(numbers, Partial[list[int]])
    anybody: list[Agent] = [clerk, built, Agent("a", "openai/gpt-5")]
    replies(await clerk.call("hi"))
    replies(await anybody[0].call("hi"))


def replies(reply: Reply) -> None:
    assert_type(reply.text, str)
    assert_type(reply.outcome, Outcome)
    assert_type(reply.usage, Usage)
    assert_type(reply.pending, tuple[Pending, ...])
    assert_type(reply.tool_uses, tuple[ToolUseBlock, ...])
    message: Msg = reply
    assert_type(message.to_json(), str)


class Everything(Hook):
    """A match over all events is complete without a default."""

    priority = 10

    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreCall(input_messages=messages):
                assert_type(messages, Sequence[Msg])
                event.input_messages = [*messages, Msg.user("more")]
            case PreReasoning():
                event.input_messages = [Msg.system("short"), *event.input_messages]
                event.tools = ()
                event.model = "openai/gpt-5-mini"
                event.options = ModelOptions(temperature=0.0)
                return Answer("cached")
            case ReasoningChunk(incremental_chunk=chunk):
                assert_type(chunk, ModelChunk)
                assert_type(event.accumulated_message, Msg)
            case PostReasoning(reasoning_result=result):
                event.reasoning_result = result
                return Again("once more")
            case PreToolRound(tool_uses=uses):
                assert_type(uses, tuple[ToolUseBlock, ...])
                return Stop("enough")
            case PreActing(tool_use=ToolUseBlock(name="add", input={"a": 1})):
                return Suspend({"why": "one"})
            case PreActing(tool_use=use):
                event.tool_use = use.replace(input={"a": 2})
                return event.replace(tool_use=use)
            case ActingChunk():
                assert_type(event.tool_use, ToolUseBlock)
            case PostActing(tool_result=answer):
                assert_type(answer, ToolResultBlock)
                event.tool_result = answer
            case PostToolRound(tool_results=results):
                assert_type(results, tuple[ToolResultBlock, ...])
            case PostCall():
                event.final_message = Msg.assistant("done")
                assert_type(event.outcome, Outcome)
            case Error(error=error):
                assert_type(error, BaseException)
                return Recover("sorry")
            case CallEnded():
                assert_type(event.usage, Usage)
            case MessagesAdded(messages=added):
                assert_type(added, tuple[Msg, ...])
            case PrePut() | PostPut() | PreTurn() | TurnValue() | PostTurn() | Paused() | Resumed():
                pass
            case _:
                assert_never(event)
        return event


class Later(Hook):
    """The answer may come later, in any of the ways that reactive code has."""

    async def on_event(self, event: HookEvent) -> HookEvent | None:
        return event


class Reactive(Hook):
    def on_event(self, event: HookEvent) -> HookResult:
        return Mono.just(event).delay(0.1)


@on(PreActing, priority=5, on_failure="deny")
def careful(event: PreActing) -> Deny | None:
    return Deny("no") if event.tool_use.name == "delete" else None


@on
def log(event: PostReasoning | PostActing) -> None:
    print(event)


def hooks_from_functions() -> None:
    same: FunctionHook[Callable[[PreActing], Deny | None]] = careful
    Agent("a", "openai/gpt-5", hooks=[same, log, [Everything(), Later()]])
    Agent("a", "openai/gpt-5", hooks={"before_llm": print})


@before_each_tool(priority=10, tools=["delete_*"], timeout=2, on_failure="deny")
async def named(event: PreActing) -> Deny | None:
    return Deny("no")


@before_llm
@after_llm
def stacked(event: HookEvent) -> None: ...


def watches(event: HookEvent) -> HookResult:
    return event


def unnamed(event: PreActing) -> None: ...


def hooks_by_name(agent: Agent) -> None:
    one = after_llm(lambda event: print(event.usage.total_tokens))
    assert_type(one, FunctionHook[Callable[[PostReasoning], None]])
    later = before_llm(lambda event: Mono.just(event).delay(1))
    assert_type(later, FunctionHook[Callable[[PreReasoning], Mono[PreReasoning]]])
    several = after_tool_round(watches, watches, serial=True)
    assert_type(several, list[FunctionHook[Callable[[PostToolRound], HookResult]]])
    by_name: HooksByName = {"on_error": lambda event: print(event.phase), "on_complete": [watches, watches]}
    Agent("a", "openai/gpt-5", hooks=[named, [stacked, several], by_name, one])
    Agent("b", "openai/gpt-5", hooks={"after_llm": [lambda event: print(event.reasoning_result.text)]})
    Agent.builder().hook(after_each_tool(watches)).hooks([named, [several]]).hooks(by_name)
    Agent("c", "openai/gpt-5", hooks=installed_hooks("redact"))
    agent.call("hi", hooks={"after_user_input": watches})
    agent.on("after_llm", watches, priority=10).dispose()
    same: Callable[[PreActing], None] = agent.on("before_each_tool", tools=["delete_*"])(unnamed)
    print(same)
    options: HookOptions = {"priority": 10, "tools": ["delete_*"]}
    assert_type(before_each_tool(watches, **options).priority, int)


def what_every_event_knows(event: ActingEvent) -> None:
    assert_type(event.run_id, str)
    assert_type(event.seq, int)
    assert_type(event.agent, AgentView)
    assert_type(event.context, RunContext)
    assert_type(event.decision, Decided | None)
    assert_type(event.context.state[Counter].count, int)
    assert_type(event.context.session_state[Counter], Counter)
    assert_type(event.context.deps(Counter), Counter)
    assert_type(event.context.usage, Usage)


def what_was_decided(event: PreActing, end: PostToolRound, any_event: Event) -> None:
    assert_type(event.verdict, Deny | Answer | Suspend | None)
    assert_type(end.verdict, Stop | Suspend | None)
    assert_type(any_event.verdict, Verdict | None)
    verdict = event.verdict
    match verdict:
        case None | Deny() | Answer() | Suspend():
            pass
        case _:
            assert_never(verdict)


async def contexts(context: RunContext) -> None:
    assert_type(await context.complete("a side question"), Msg)
    assert_type(context.trace.turns[0].arguments, Mapping[str, Any])


@tool
async def charge(cents: int, book: Dep[Counter], context: ToolContext) -> str:
    """Charge."""
    assert_type(book, Counter)
    assert_type(context.run, RunContext)
    return f"{cents} under {context.idempotency_key}"


class Parrot:
    """A model of one's own needs no base class."""

    name = "parrot"

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelChunk]:
        yield ModelChunk(request.messages[-1].text)


def ports() -> None:
    model: Model = Parrot()
    scripted: Model = ScriptedModel(["hi"])
    store: Store = MemoryStore()
    Agent("a", model, store=store)
    Agent("b", scripted)
    assert_type(fold([ModelChunk("a")]), Msg)


def a_mono_is_a_coroutine(agent: Agent) -> None:
    work: Awaitable[Reply] = agent.call("hi")
    task: Coroutine[Any, Any, Reply] = agent.call("hi")
    print(work, task)


registry = ToolRegistry()


@registry.register
@tool(lock=True, retries=2)
async def registered(a: int) -> int:
    """Add one."""
    return a + 1


@registry.tool(type="read")
async def registered_lines(count: int) -> AsyncIterator[str]:
    """Read."""
    for number in range(count):
        yield f"line {number}"


@registry.tool
async def registered_bare(a: int) -> str:
    """Show."""
    return str(a)


@registry.tool(in_thread=True)
def registered_blocking(a: int) -> str:
    """Show."""
    return str(a)


@default_tools.register(name="other")
@tool(external=True)
async def asked(question: str) -> str:
    """Ask."""
    return question


async def registering_keeps_function_types() -> None:
    assert_type(await registered(1), int)
    async for line in registered_lines(3):
        assert_type(line, str)
    assert_type(await registered_bare(1), str)
    assert_type(await registered_blocking(1), str)
    assert_type(await asked("why?"), str)
    assert_type(await registered.renamed("other")(1), int)
    assert_type(registry.specs(), tuple[ToolSpec, ...])
    assert_type(registry["registered"], Tool[..., Any])
    made = external_tool("look", "Look.", {"type": "object"})
    toolset = Toolset(object(), prefix="my_", include="*", type="read", lock=True)
    Agent("a", "openai/gpt-5", tools=[*toolset, *registry, made])


async def agents_together() -> None:
    clerk, poet = Agent("clerk", "openai/gpt-5", output=Counter), Agent("poet", "openai/gpt-5", output=str)

    @workflow(clerk, poet, add, max_concurrency=2)
    async def team(task: str) -> list[int]:
        assert_type(await ask(clerk, task), Reply[Counter])
        assert_type(await ask(poet, task, output=int), Reply[int])
        assert_type(await use(add, a=1, b=2), int)
        assert_type(await gather(ask(clerk, task), use(add, a=1, b=2)), tuple[Reply[Counter], int])
        assert_type(
            await gather(ask(clerk, task), ask(poet, task), return_exceptions=True),
            tuple[Reply[Counter] | StepError, Reply[str] | StepError],
        )
        assert_type(await gather(*[ask(clerk, one) for one in task]), tuple[Reply[Counter], ...])
        assert_type(await race(ask(clerk, task), ask(poet, task)), Reply[Counter] | Reply[str])
        hub = Hub([clerk, poet])
        assert_type(await hub.ask(clerk), Reply[Counter])
        assert_type((await hub.ask(poet, output=bool)).output, bool)
        return [1]

    assert_type(team, Agent[list[int]])
    assert_type((await team.call("go")).output, list[int])
    assert_type(handoffs(clerk, poet, history="last", max_handoffs=2), Agent[str])
    assert_type(team.graph().mermaid(), str)

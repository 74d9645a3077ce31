"""What the checker must refuse (never run): each line with an `ignore` is an error, of exactly that kind.

The first directive makes an `ignore` that nothing needs an error itself. So a mistake that the types stop catching fails
the same run of pyright as everything else.
"""

# pyright: strict, reportUnnecessaryTypeIgnoreComment=true

from __future__ import annotations

from agentflow import (
    Agent,
    CallEnded,
    Hook,
    HookEvent,
    HookResult,
    ModelOptions,
    Msg,
    PostActing,
    PostCall,
    PostReasoning,
    PreActing,
    PreCall,
    PreReasoning,
    ReasoningChunk,
    Session,
    TextBlock,
    ToolUseBlock,
    Turn,
    after_llm,
    before_each_tool,
    before_llm,
    on,
    tool,
)
from agentflow.agent.orchestration import ask, gather, race, workflow
from agentflow.hooks import FunctionHook
from agentflow.recording.replay import Replay
from agentflow.state import MemoryStore
from agentflow.testing import check_hook_async, check_model_async, check_store_async
from agentflow.tools import ToolRegistry, Toolset


class Writes(Hook):
    """Only writable fields can be assigned, and only with their type."""

    def on_event(self, event: HookEvent) -> HookResult:
        match event:
            case PreCall():
                event.history = ()  # pyright: ignore[reportAttributeAccessIssue]
                event.input_messages = "hi"  # pyright: ignore[reportAttributeAccessIssue]
            case PreReasoning():
                event.purpose = "summary"  # pyright: ignore[reportAttributeAccessIssue]
                event.model = None  # pyright: ignore[reportAttributeAccessIssue]
            case ReasoningChunk():
                event.restart = True  # pyright: ignore[reportAttributeAccessIssue]
                event.accumulated_message = Msg.assistant("x")  # pyright: ignore[reportAttributeAccessIssue]
            case PostReasoning():
                event.usage = event.usage  # pyright: ignore[reportAttributeAccessIssue]
            case PreActing():
                event.approval = None  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use.input["a"] = 1  # pyright: ignore[reportIndexIssue]
            case PostActing():
                event.original_tool_use = event.tool_use  # pyright: ignore[reportAttributeAccessIssue]
                event.tool_use = event.tool_use  # pyright: ignore[reportAttributeAccessIssue]
            case PostCall():
                event.outcome = "failed"  # pyright: ignore[reportAttributeAccessIssue]
            case CallEnded():
                event.error = None  # pyright: ignore[reportAttributeAccessIssue]
            case _:
                pass
        event.run_id = "mine"  # pyright: ignore[reportAttributeAccessIssue]
        event.seq = 0  # pyright: ignore[reportAttributeAccessIssue]
        event.decision = None  # pyright: ignore[reportAttributeAccessIssue]
        event.note = "mine"  # pyright: ignore[reportAttributeAccessIssue]
        return event


class Returns(Hook):
    """A hook returns the event, a verdict, None, or one of these later."""

    def on_event(self, event: HookEvent) -> HookResult:
        return True  # pyright: ignore[reportReturnType]


class Options(Hook):
    """A hook's options have their values."""

    priority = "high"  # pyright: ignore[reportAssignmentType]
    on_failure = "ignore"  # pyright: ignore[reportAssignmentType]


async def calls(agent: Agent) -> None:
    """An agent's calls take what they say."""
    agent.call(3)  # pyright: ignore[reportArgumentType]
    agent.call("hi", sesion="s")  # pyright: ignore[reportCallIssue]
    agent.call("hi", options={"temperature": 0})  # pyright: ignore[reportArgumentType]
    agent.on("after_tool", print)  # pyright: ignore[reportCallIssue, reportArgumentType]
    agent.name = "other"  # pyright: ignore[reportAttributeAccessIssue]
    await agent.resume("s", {"t1": True})  # pyright: ignore[reportArgumentType]
    print((await agent.call("hi")).txt)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    Agent("a")  # pyright: ignore[reportCallIssue]


def values() -> None:
    """Messages, blocks and options are frozen."""
    Msg.user("hi").role = "system"  # pyright: ignore[reportAttributeAccessIssue]
    TextBlock("hi").text = "ho"  # pyright: ignore[reportAttributeAccessIssue]
    ToolUseBlock("t1", "add").id = "t2"  # pyright: ignore[reportAttributeAccessIssue]
    ModelOptions(temperatur=0.0)  # pyright: ignore[reportCallIssue]
    Msg("robot")  # pyright: ignore[reportArgumentType]


@on("after_tool")  # pyright: ignore[reportCallIssue, reportArgumentType, reportUntypedFunctionDecorator]
def unknown_name(event: PostActing) -> None: ...


@after_llm  # pyright: ignore[reportArgumentType]
def another_event(event: PreReasoning) -> None: ...


@before_each_tool(priority=10)  # pyright: ignore[reportArgumentType]
async def another_event_with_options(event: PostActing) -> None: ...


@after_llm  # pyright: ignore[reportArgumentType]
def truth_is_no_verdict(event: PostReasoning) -> bool:
    return True


@after_llm(priorty=10)  # pyright: ignore[reportCallIssue, reportUntypedFunctionDecorator]
def misspelt_option(event: PostReasoning) -> None: ...


def unmarked(event: PostReasoning) -> None: ...


def registered(agent: Agent) -> None:
    """What is passed as `hooks=` is hooks, or functions by the name of an event."""
    Agent("a", "openai/gpt-5", hooks=[3])  # pyright: ignore[reportArgumentType]
    Agent("a", "openai/gpt-5", hooks=Hook)  # pyright: ignore[reportArgumentType]
    Agent("a", "openai/gpt-5", hooks={"after_lm": [unmarked]})  # pyright: ignore[reportArgumentType]
    Agent("a", "openai/gpt-5", hooks={"before_llm": unmarked})  # pyright: ignore[reportArgumentType]
    Agent.builder().hooks({"after_tool": unmarked})  # pyright: ignore[reportArgumentType]
    agent.call("hi", hooks=["after_llm", 3])  # pyright: ignore[reportArgumentType]
    before_llm(unmarked, unmarked)  # pyright: ignore[reportArgumentType]


@tool
async def add(a: int, b: int) -> int:
    """Add."""
    return a + b


async def tools() -> None:
    """A tool is called like its function."""
    await add("1", 2)  # pyright: ignore[reportArgumentType]
    await add(1)  # pyright: ignore[reportCallIssue]
    print(add.deadline)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]


registry = ToolRegistry()
registry.register(print)  # pyright: ignore[reportArgumentType]


@registry.tool(lock="yes")  # pyright: ignore[reportArgumentType]
async def locked(a: int) -> int:
    """A lock is there or not."""
    return a


async def registered_tools() -> None:
    """A registered tool is called like its function."""
    await registry.register(add)("1", 2)  # pyright: ignore[reportArgumentType]


async def plain_for(agent: Agent) -> None:
    """What comes later is read with `async for`."""
    for event in agent.stream("hi"):  # pyright: ignore[reportGeneralTypeIssues, reportUnknownVariableType]
        print(event)  # pyright: ignore[reportUnknownArgumentType]


async def what_the_package_needs(agent: Agent, session: Session, turn: Turn[int], event: PreActing) -> None:
    """What is behind a facade cannot be seen from here."""
    receipt = await agent.put(turn)
    print(session.machine)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(turn.begin)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(receipt.settle)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(event.context.legal_reply)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(agent.hooks.chain)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(agent.config)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    print(add.start)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    Session("ada")  # pyright: ignore[reportCallIssue]


async def agents_together(agent: Agent[int]) -> None:
    both = await gather(ask(agent, "hi"), ask(agent, "hi"), return_exceptions=True)
    print(both[0].output)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
    await race(ask(agent, "hi"), "hi")  # pyright: ignore[reportArgumentType, reportCallIssue]

    @workflow(agent)  # pyright: ignore[reportArgumentType]
    def plain(task: str) -> str:
        return task

    print(plain)  # pyright: ignore[reportUnknownArgumentType]


async def partial_answers(agent: Agent[Msg]) -> None:
    """What is not whole has no attributes of the output: only its fields as data, and the output at the end."""
    async for partial in agent.stream("hi").partials():
        print(partial.role)  # pyright: ignore[reportAttributeAccessIssue, reportUnknownMemberType, reportUnknownArgumentType]
        print(partial.output.role)


async def misspelt_options(agent: Agent, replay: Replay, hook: Hook, event: PreActing, ended: CallEnded) -> None:
    """An option that is not known, or of a wrong type, is an error wherever options are passed by name."""
    replay.run(agent, hoks=[])  # pyright: ignore[reportCallIssue]
    Msg.user("hi", nmae="ada")  # pyright: ignore[reportCallIssue]
    Agent.from_json("{}", stor=None)  # pyright: ignore[reportCallIssue]
    Agent.from_dict({}, clok=None)  # pyright: ignore[reportCallIssue]
    await check_hook_async(hook, run=3)  # pyright: ignore[reportCallIssue]
    await check_model_async(lambda scene: None, patence=3)  # pyright: ignore[reportCallIssue]
    await check_store_async(MemoryStore(), patence=3)  # pyright: ignore[reportCallIssue]
    FunctionHook(print, (PreActing,), prority=3)  # pyright: ignore[reportCallIssue]
    Toolset(hook, timeout="3")  # pyright: ignore[reportArgumentType]
    tool(add.function, timeout="3")  # pyright: ignore[reportArgumentType]
    event.replace(approval=None)  # pyright: ignore[reportCallIssue]
    event.replace(tool_use="add")  # pyright: ignore[reportArgumentType]
    ended.replace(outcome="denied")  # pyright: ignore[reportCallIssue]

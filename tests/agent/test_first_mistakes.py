"""What people write at first, and the one line that each gets: it says what to write."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from agentflow import (
    Agent,
    Console,
    Hook,
    Msg,
    PostCall,
    PreActing,
    ToolUseBlock,
    Usage,
    after_user_input,
    before_each_tool,
    before_llm,
    on_complete,
)
from agentflow.errors import AgentFlowError
from agentflow.testing import ScriptedModel, fire

MODEL = ScriptedModel(lambda request: "ok")


class Words:
    """A model whose stream gives texts."""

    name = "words"

    async def stream(self, request: object) -> AsyncIterator[Any]:
        """Give a text."""
        yield "Hello."


class Misspelt(Hook):
    """A hook with an option that is none."""

    priorty = 3

    def on_event(self, event: Any) -> None: ...


class Nameless(Hook):
    """A hook whose method nothing calls."""

    def on_evnt(self, event: Any) -> None: ...


def agent_of(*hooks: Any) -> Agent:
    return Agent("a", MODEL, hooks=hooks)


def told(change: Callable[[Any], object]) -> Any:
    """A hook that does something with its event."""

    def hook(event: Any) -> None:
        change(event)

    return hook


def setting(owner: Callable[[Any], object], name: str) -> Callable[[Any], None]:
    return lambda event: setattr(owner(event), name, "x")


ENDED = PostCall(final_message=Msg.assistant("Hi."))
ASKED = PreActing(tool_use=ToolUseBlock("t1", "add", {"a": 1}))
VIEW = "Messages of an event are read-only; assign others: event.input_messages ="
OF_MSG = (
    "is worked out from its fields (role, content, name, id, metadata, usage, finish_reason), and those are read-only"
)

MISTAKES: dict[str, tuple[Callable[[], Any], str]] = {
    "agent.run(text)": (lambda: agent_of().run("hi"), "To ask the model: await agent.call('Hi')"),
    "agent.invoke": (lambda: agent_of().invoke("hi"), "To ask it: agent.call('Hi').block()"),
    "Agent()": (Agent, "An agent needs a name and a model: Agent('assistant', 'openai/gpt-5')."),
    "no model": (lambda: Agent("a"), "Agent 'a' was given no model: Agent('a', 'openai/gpt-5')"),
    "system_prompt=": (
        lambda: Agent("a", MODEL, system_prompt="Be brief."),
        "Agent takes no system_prompt=; here that is system=.",
    ),
    "llm=": (lambda: Agent("a", llm=MODEL), "Agent takes no llm=; here that is model=."),
    "temperature=": (lambda: Agent("a", MODEL, temperature=1), "here that is options=ModelOptions(temperature=..."),
    "a misspelt argument": (lambda: Agent("a", MODEL, sistem="x"), "Agent takes no sistem=; did you mean system="),
    "model=3": (lambda: Agent("a", 3), "model= takes a Model or a name like 'openai/gpt-5', not 3."),
    "tools=[function]": (lambda: Agent("a", MODEL, tools=[print]), "tools= takes tools and agents, not"),
    "options={...}": (
        lambda: Agent("a", MODEL, options={"temperature": 1}),
        "options={'temperature': 1} is a dict. Write options=ModelOptions(temperature=1).",
    ),
    "call(options={...})": (
        lambda: agent_of().call("Hi", options={"temperature": 1}).block(),
        "Write options=ModelOptions(temperature=1).",
    ),
    "store=path": (lambda: Agent("a", MODEL, store="x.db"), 'Write store="sqlite:///agentflow.db" (a file)'),
    "store={}": (lambda: Agent("a", MODEL, store={}), "store={} is no store."),
    "a misspelt option": (
        lambda: agent_of(Misspelt()),
        "Hook 'Misspelt' has 'priorty', which nothing looks at: the name is 'priority'.",
    ),
    "a misspelt method": (lambda: agent_of(Nameless()), "Did you mean 'on_event' by 'on_evnt'?"),
    "a model of texts": (
        lambda: Agent("a", Words()).call("Hi").block(),
        "(a str) as a piece of its reply; a model's stream gives ModelChunks: yield ModelChunk(text).",
    ),
    "stream as a call": (
        lambda: agent_of().stream("Hi").block(),
        "it is a stream of events. `await agent.stream(...)",
    ),
    "a dict as message": (
        lambda: agent_of().call({"role": "user", "content": "Hi"}).block(),
        "Messages are a str, a Msg or a sequence of them, not dict. Write Msg.user('hello')",
    ),
    "a text as script": (lambda: ScriptedModel("Hi"), "A script is a list of replies: ScriptedModel(['Hi'])."),
    "a tool use without id": (lambda: ToolUseBlock("add", {"a": 1}), "name is a dict; was the id left out?"),
    "insert": (
        lambda: (
            agent_of(before_llm(told(lambda event: event.input_messages.insert(0, Msg.user("x"))))).call("Hi").block()
        ),
        f"{VIEW} [msg, *event.input_messages].",
    ),
    "append": (
        lambda: agent_of(before_llm(told(lambda event: event.input_messages.append(Msg.user("x"))))).call("Hi").block(),
        f"{VIEW} [*event.input_messages, msg].",
    ),
    "append to a call's": (
        lambda: (
            agent_of(after_user_input(told(lambda event: event.input_messages.append(Msg.user("x")))))
            .call("Hi")
            .block()
        ),
        f"{VIEW} [*event.input_messages, msg].",
    ),
    "pop": (
        lambda: agent_of(before_llm(told(lambda event: event.input_messages.pop()))).call("Hi").block(),
        f"{VIEW} [msg for msg in event.input_messages if ...].",
    ),
}

FROZEN: dict[str, tuple[Any, Any, Callable[[Any], object], str]] = {
    "msg.text": (on_complete, ENDED, setting(lambda event: event.final_message, "text"), f"Msg.text {OF_MSG}"),
    "msg.role": (on_complete, ENDED, setting(lambda event: event.final_message, "role"), "Msg.role is read-only"),
    "msg.nothing": (
        on_complete,
        ENDED,
        setting(lambda event: event.final_message, "nothing"),
        "Msg has no field 'nothing' (role, content,",
    ),
    "tool_use.name": (
        before_each_tool,
        ASKED,
        setting(lambda event: event.tool_use, "name"),
        "ToolUseBlock.name is read-only; build a new one: block.replace(name=...)",
    ),
    "an argument": (
        before_each_tool,
        ASKED,
        lambda event: event.tool_use.input.__setitem__("a", 2),
        "this mapping is read-only; build a new one from it: {**mapping, key: value}",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_gets_one_line_that_says_what_to_write(mistake: str) -> None:
    """The first line of the error holds the cure."""
    make, cure = MISTAKES[mistake]
    with pytest.raises((AgentFlowError, AttributeError)) as caught:
        make()
    assert cure in str(caught.value).splitlines()[0]


async def test_a_call_that_was_not_awaited_is_no_reply() -> None:
    """Asked for what a reply has, or shown like a stream, it says what it is."""
    call = agent_of().call("Hi")
    with pytest.raises(AttributeError, match="it is a call that has not run"):
        _ = call.text  # type: ignore
    with pytest.raises(AgentFlowError, match=r"Console shows a stream, not CallMono: Console\(agent.stream\('Hi'\)\)"):
        Console(call)  # type: ignore
    assert (await call).text == "ok"


@pytest.mark.parametrize("value", FROZEN)
async def test_a_frozen_value_says_how_to_change_it(value: str) -> None:
    """Fields, what is worked out from them, and what is no field at all."""
    name, event, change, cure = FROZEN[value]
    with pytest.raises((AttributeError, TypeError)) as caught:
        await fire(name(told(change)), event)
    assert cure in str(caught.value)
    with pytest.raises(AttributeError, match=r"Usage\.total_tokens is worked out from its fields"):
        Usage().total_tokens = 3  # pyright: ignore[reportAttributeAccessIssue]


async def test_a_url_is_a_store(tmp_path: Path) -> None:
    """`store="sqlite:///…"` keeps sessions in that file: another agent goes on with the conversation."""
    url = f"sqlite:///{tmp_path / 'agent.db'}"
    await Agent("a", ScriptedModel(["Hello Ada."]), store=url).call("I am Ada.", session="ada")
    other = Agent("a", ScriptedModel([]), store=url)
    assert [msg.text for msg in await other.history("ada")] == ["I am Ada.", "Hello Ada."]
    built = Agent.builder().name("a").model(MODEL).store(url).build()
    assert len(await built.history("ada")) == 2
